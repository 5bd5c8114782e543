"""Loads that measure the cost of inspecting a running foldmq for its other clients.

All are pairs of runs, with and without, each with a fresh broker, the order changing. A ratio is
the median of those of the pairs: what makes the machine slower for a while hits both of a pair.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from bench.brokers.broker_processes import Foldmq, Running, cpu, running
from bench.brokers.mqtt_client import session_name
from bench.loads.compared_loads import LOADS
from bench.loads.recovery_loads import SETTLED, work_directory
from bench.measuring.load_generator import run_load
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import number, report, say
from bench.measuring.rows import Row, own_rows
from bench.processes.programs import program
from bench.processes.watchers import InspectionLoad, PublishingClient, Tail, Top, idle_clients

PAIRS = 9
MESSAGES = 4_000_000
TRACED_MESSAGES = 2_000_000
PACED_RATE, PACED_MESSAGES = 5000, 75_000
LISTED_RATE, LISTED_MESSAGES = 2000, 60_000
CLIENTS = 10_000
FILTERS = 8  # subscriptions of each listed client: with its connection and session ten actors

_QOS1 = next(load.arguments for load in LOADS if load.name == "qos1")
_PACED = "pubsub -p 4 -s 4 -q 1 -T 300"

Run = Callable[[bool], dict[str, Any]]
"""Measures with or without the feature; returns numbers by name, and ``problem``."""


def pair(label: str, unit: str, key: str) -> tuple[Metric, Metric]:
    """Return the metrics for a figure with and without the feature."""
    return (
        Metric(f"{label} with", unit, value(f"with_{key}")),
        Metric(f"{label} without", unit, value(f"without_{key}")),
    )


def _ratio(label: str, key: str, *targets: Target) -> Metric:
    return Metric(f"{label} with / without", "", value(f"ratio_{key}"), targets)


IDLE = (
    _ratio("QoS 1", "per_s", Target(0.97)),
    _ratio("CPU per message", "us", Target(1.03, at_most=True)),
    *pair("delivered", "/s", "per_s"),
    *pair("CPU", "us/message", "us"),
)
TOP = (
    _ratio("QoS 1", "per_s", Target(0.95)),
    _ratio("CPU per message", "us"),
    *pair("delivered", "/s", "per_s"),
    Metric("CPU of top", "% of a core", value("with_top_percent")),
)
TRACE = (
    _ratio("QoS 1 of others", "per_s", Target(0.97)),
    _ratio("CPU per message", "us"),
    *pair("delivered", "/s", "per_s"),
    *pair("p50", "ms", "p50"),
    *pair("p99", "ms", "p99"),
    Metric("more at p99", "ms", value("more_p99")),
)
LIST = (
    Metric("more at p99", "ms", value("more_p99"), (Target(1, at_most=True),)),
    Metric("more at p50", "ms", value("more_p50")),
    *pair("p50", "ms", "p50"),
    *pair("p99", "ms", "p99"),
    *pair("slowest", "ms", "max"),
    Metric("loop held at most", "ms CPU", value("with_held_cpu"), (Target(1, at_most=True),)),
    Metric("loop held at p99", "ms CPU", value("with_held_cpu_p99")),
    Metric("collection in it at most", "ms CPU", value("with_collecting")),
    Metric("both at most by the wall", "ms", value("with_held")),
    Metric("JSON of a page at most", "ms CPU", value("with_json_cpu")),
    Metric("whole list", "s", value("with_list_s")),
    Metric("top by recent", "s", value("with_top_s")),
    Metric("actors", "", value("with_actors"), (Target(CLIENTS * (FILTERS + 2)),)),
)


class Unwatched(Foldmq):
    """foldmq with neither metrics nor web page nor $SYS."""

    name = "unwatched"
    title = "foldmq without monitoring"
    watching: ClassVar[tuple[str, ...]] = (
        *("--metrics", "off"),
        *("--web", "off"),
        *("--sys-interval", "0"),
    )


class Timed(Foldmq):
    """foldmq that measures for how long its inspector holds the event loop."""

    name = "timed"
    title = "foldmq with a timed inspector"

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        words = super().command(port, work)
        serve = words[words.index("serve") :]
        return program("processes.timed_inspector", cls.file(work), *serve)

    @staticmethod
    def file(work: Path) -> Path:
        return work / "inspector.json"


# ----------------------------------------------------------------------------- pairs


def measure_pairs(
    name: str, metrics: tuple[Metric, ...], run: Run, options: argparse.Namespace
) -> list[Row]:
    """Measure in pairs and return the rows of the table."""
    pairs = 2 if options.quick else max(PAIRS, options.rounds)
    runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for attempt in range(pairs):
        for how in (True, False) if attempt % 2 else (False, True):
            result = run(how)
            runs[how].append(result)
            shown = ", ".join(
                f"{key} {number(found) if isinstance(found, float | int) else found}"
                for key, found in result.items()
            )
            say(f"{name} {attempt + 1}/{pairs} {'with' if how else 'without'}: {shown}")
    result = _compared(runs[True], runs[False])
    report(name, f"{pairs} pairs", metrics, result)
    return own_rows(name, metrics, [result], quick=options.quick)


def _compared(with_it: list[dict[str, Any]], without: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of each figure, of its ratios and of its differences in the pairs."""
    bad = [run["problem"] for run in [*with_it, *without] if "problem" in run]
    if bad:
        return {"problem": bad[0]}
    result = {f"with_{key}": statistics.median(run[key] for run in with_it) for key in with_it[0]}
    for key in without[0]:
        pairs = [(one[key], other[key]) for one, other in zip(with_it, without, strict=True)]
        result[f"without_{key}"] = statistics.median(other for _, other in pairs)
        result[f"more_{key}"] = statistics.median(one - other for one, other in pairs)
        if all(other for _, other in pairs):
            result[f"ratio_{key}"] = statistics.median(one / other for one, other in pairs)
    return result


def _at_full_speed(server: Running, messages: int) -> dict[str, Any]:
    """Run the load "qos1"; CPU time is that of the broker's process alone."""
    before = cpu(server.pid)
    result = run_load([*_QOS1.split(), "-n", str(messages)], server.port, server.pid)
    if "problem" in result:
        return {"problem": result["problem"]}
    used = cpu(server.pid) - before
    return {"per_s": result["recv_per_s"], "us": used * 1e6 / messages}


def paced_latency(server: Running, rate: int, messages: int) -> dict[str, Any]:
    """Run a load of this many messages per second; return its latency in milliseconds."""
    arguments = [*_PACED.split(), "-r", str(rate), "-n", str(messages)]
    result = run_load(arguments, server.port, server.pid)
    if "problem" in result:
        return {"problem": result["problem"]}
    return {key: result["latency_us"][key] / 1000 for key in ("p50", "p99", "max")}


# ----------------------------------------------------------------------------- idle


def measure_idle(options: argparse.Namespace) -> list[Row]:
    """Measure QoS 1 with metrics, web page and $SYS enabled but idle, and without them."""
    messages = MESSAGES // 10 if options.quick else MESSAGES

    def run(watched: bool) -> dict[str, Any]:
        broker = Foldmq if watched else Unwatched
        with work_directory(options) as work, running(broker, work) as server:
            time.sleep(SETTLED)
            return _at_full_speed(server, messages)

    return measure_pairs("inspection", IDLE, run, options)


# ----------------------------------------------------------------------------- top


def measure_top(options: argparse.Namespace) -> list[Row]:
    """Measure QoS 1 with and without an open ``foldmq top``."""
    messages = MESSAGES // 10 if options.quick else MESSAGES

    def run(opened: bool) -> dict[str, Any]:
        with work_directory(options) as work, running(Foldmq, work) as server:
            if not opened:
                time.sleep(SETTLED)
                return _at_full_speed(server, messages)
            with Top(work) as top:
                top.wait()
                time.sleep(SETTLED)
                return _beside(top, server, messages)

    return measure_pairs("top", TOP, run, options)


def _beside(top: Top, server: Running, messages: int) -> dict[str, Any]:
    """Run the load while ``foldmq top`` is open."""
    drawn, used, started = top.drawn, cpu(top.process.pid), time.monotonic()
    result = _at_full_speed(server, messages)
    seconds = time.monotonic() - started
    if top.process.poll() is not None or top.drawn == drawn:
        return {"problem": "foldmq top displayed nothing during the load"}
    return {**result, "top_percent": (cpu(top.process.pid) - used) / seconds * 100}


# ----------------------------------------------------------------------------- trace


def measure_trace(options: argparse.Namespace) -> list[Row]:
    """Measure the cost of tracing one client for the others."""
    part = 10 if options.quick else 1
    traced_name = session_name(CLIENTS)

    def run(traced: bool) -> dict[str, Any]:
        with (
            work_directory(options) as work,
            running(Foldmq, work) as server,
            idle_clients(server.port, CLIENTS // part - 1),
            PublishingClient(server.port, traced_name) as speaker,
            Tail(work, traced_name) if traced else contextlib.nullcontext() as tail,
        ):
            if tail:
                tail.wait()
            time.sleep(SETTLED)
            before = tail.packets() if tail else 0
            result = {
                **paced_latency(server, PACED_RATE, PACED_MESSAGES // part),
                **_at_full_speed(server, TRACED_MESSAGES // part),
            }
            if tail and tail.packets() == before:
                result["problem"] = "the trace displayed nothing during the load"
            if speaker.problem is not None:
                result["problem"] = speaker.problem
            return result

    return measure_pairs("trace", TRACE, run, options)


# ----------------------------------------------------------------------------- lists


def measure_list(options: argparse.Namespace) -> list[Row]:
    """Measure the latency of messages while all actors of a large broker are listed."""
    part = 10 if options.quick else 1

    def run(listing: bool) -> dict[str, Any]:
        with work_directory(options) as work:
            with (
                running(Timed, work) as server,
                idle_clients(server.port, CLIENTS // part, FILTERS),
                InspectionLoad(work) if listing else contextlib.nullcontext() as asker,
            ):
                time.sleep(SETTLED)
                result = paced_latency(server, LISTED_RATE, LISTED_MESSAGES // part)
            return {**result, **_listed(asker, work)} if asker else result

    return measure_pairs("list", LIST, run, options)


def _listed(asker: InspectionLoad, work: Path) -> dict[str, Any]:
    """Return the time of the lists, and how long the inspector held the event loop."""
    if asker.problem is not None:
        return {"problem": asker.problem}
    held = json.loads(Timed.file(work).read_text("utf-8"))
    slices, answers = held["slices"], held["answers"]
    return {
        "held_cpu": slices["cpu_most"],
        "held_cpu_p99": slices["cpu_p99"],
        "collecting": slices["collecting_most"],
        "held": slices["wall_most"],
        "json_cpu": answers["cpu_most"],
        "list_s": statistics.median(asker.lists),
        "top_s": statistics.median(asker.tops),
        "actors": asker.actors,
    }


INSPECTION_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "inspection": measure_idle,
    "top": measure_top,
    "trace": measure_trace,
    "list": measure_list,
}
"""Loads by name."""
