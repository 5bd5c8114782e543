"""Loads between MQTT and NATS: the cost of the bridge, and its throughput.

The cost while no NATS client listens is measured in pairs of runs with and without it, each
with a fresh broker, the order changing; a ratio is the median of those of the pairs.
"""

import argparse
import json
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from bench.brokers.broker_processes import ROOT, Foldmq, Running, cpu, free_port, running
from bench.measuring.load_generator import run_load
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import report, say
from bench.measuring.rows import Row, own_rows
from bench.processes.programs import program

PAIRS = 5
_COST_LOADS = {
    "QoS 0": ("pubsub -p 4 -s 4 -t 4 -W 100000 -q 0", 8_000_000),
    "QoS 1": ("pubsub -p 4 -s 4 -t 4 -W 100000 -q 1", 1_500_000),
    "pairs": ("pubsub -p 500 -s 500 -t 500 --topic-by-pub -q 1 -w 1 -T 300", 60_000),
}
"""The loads whose cost is measured: their options, and the number of messages."""
CARRIED = 1_000_000
TO_MQTT_RATE = 150_000

COST = tuple(
    metric
    for load in _COST_LOADS
    for metric in (
        Metric(
            f"{load} on / off",
            "",
            value(f"ratio_{load}"),
            (Target(0.5 if load == "pairs" else 0.85),),
        ),
        Metric(f"{load} on", "/s", value(f"on_{load}")),
        Metric(f"{load} off", "/s", value(f"off_{load}")),
        Metric(f"{load} CPU on", "us/message", value(f"on_cpu_{load}")),
        Metric(f"{load} CPU off", "us/message", value(f"off_cpu_{load}")),
    )
)
CARRY = (
    Metric("MQTT QoS 0 to NATS", "/s", value("out_0"), (Target(150_000),)),
    Metric("MQTT QoS 1 to NATS", "/s", value("out_1"), (Target(150_000),)),
    Metric("NATS to MQTT QoS 0", "/s", value("in_0"), (Target(100_000),)),
)


class Bridged(Foldmq):
    """foldmq with an open embedded NATS."""

    name = "bridged"
    title = "foldmq with the bridge"
    bridge: ClassVar[str] = "--bridge"
    nats: ClassVar[int] = 0

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        cls.nats = free_port()
        words = super().command(port, work)
        return [*words, "--nats-listen", f"127.0.0.1:{cls.nats}", cls.bridge]


class Unbridged(Bridged):
    """The same without the bridge."""

    name = "unbridged"
    title = "foldmq without the bridge"
    bridge = "--no-bridge"


def measure_bridge(options: argparse.Namespace) -> list[Row]:
    """Measure, and return the rows of the table."""
    small = 10 if options.quick else 1
    pairs = 2 if options.quick else max(PAIRS, options.rounds)
    found: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
    for pair in range(pairs):
        for how in ("on", "off") if pair % 2 else ("off", "on"):
            found[how].append(_cost(options, Bridged if how == "on" else Unbridged, small))
            say(f"bridge {pair + 1}/{pairs} {how}: {found[how][-1]}")
    cost: dict[str, Any] = {}
    for how, runs in found.items():
        for key in runs[0]:
            cost[f"{how}_{key}"] = statistics.median(run[key] for run in runs)
    for load in _COST_LOADS:
        ratios = [on[load] / off[load] for on, off in zip(found["on"], found["off"], strict=True)]
        cost[f"ratio_{load}"] = statistics.median(ratios)
    report("bridge", f"{pairs} pairs", COST, cost)
    carried = [_carry(options, small) for _ in range(options.rounds)]
    for one in carried:
        report("bridge", "carried", CARRY, one)
    return [
        *own_rows("bridge", COST, [cost], quick=options.quick),
        *own_rows("bridge", CARRY, carried, quick=options.quick),
    ]


@contextmanager
def _broker(options: argparse.Namespace, kind: type[Bridged]) -> Iterator[Running]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as work,
        running(kind, Path(work)) as server,
    ):
        yield server


def _cost(options: argparse.Namespace, kind: type[Bridged], small: int) -> dict[str, float]:
    """Return deliveries a second and CPU per message of each load, MQTT to MQTT."""
    result = {}
    for name, (load, messages) in _COST_LOADS.items():
        with _broker(options, kind) as server:
            before = cpu(server.pid)
            options_of_load = f"{load} -n {messages // small}".split()
            seen = run_load(options_of_load, server.port, server.pid)
            used = cpu(server.pid) - before
        result[name] = 0.0 if "problem" in seen else float(seen["recv_per_s"])
        result[f"cpu_{name}"] = used / (messages // small) * 1e6
    return result


def _carry(options: argparse.Namespace, small: int) -> dict[str, float]:
    """Return the messages per second to a NATS client, and from NATS to an MQTT client."""
    result: dict[str, float] = {}
    count = CARRIED // small
    with _broker(options, Bridged) as server:
        for qos in (0, 1):
            taker = _client("take", "bench.>", count)
            assert taker.stdout is not None
            taker.stdout.readline()
            load = f"pubsub -p 4 -s 0 -t 4 -q {qos} -n {count}".split()
            run_load(load, server.port, server.pid)
            taken = json.loads(taker.communicate()[0])
            whole = taken["messages"] == count
            result[f"out_{qos}"] = count / taken["seconds"] if whole else 0.0
        with socket.create_connection(("127.0.0.1", server.port)) as reader:
            result["in_0"] = _read_from_nats(reader, count)
    return result


def _read_from_nats(reader: socket.socket, count: int) -> float:
    """Subscribe on a raw connection, send messages, and return the received rate."""
    reader.sendall(b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03cnt")
    reader.recv(4)
    reader.sendall(b"\x82\x08\0\x01\0\x03b/#\0")
    reader.recv(5)
    size = 2 + 2 + len("b/x") + 64
    sender = _client("send", "b.x", count, TO_MQTT_RATE)
    reader.settimeout(20)
    missing, first = size * count, 0.0
    while missing:
        got = len(reader.recv(1 << 20))
        first = first or time.perf_counter()
        missing -= got
    seconds = time.perf_counter() - first
    sender.wait()
    return count / seconds


def _client(how: str, subject: str, count: int, rate: int = 0) -> subprocess.Popen[bytes]:
    url = f"nats://127.0.0.1:{Bridged.nats}"
    words = [how, url, subject, str(count), str(rate)] if rate else [how, url, subject, str(count)]
    command = program("processes.nats_load", *words)
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


BRIDGE_LOADS = {"bridge": measure_bridge}
