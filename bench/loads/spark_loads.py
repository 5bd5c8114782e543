"""The load of Spark: a log of millions of events, read, counted and audited."""

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.brokers.broker_processes import ROOT, BenchError, NatsServer, free_port
from bench.loads.recovery_loads import work_directory
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import number, report, say
from bench.measuring.rows import Row, own_rows
from bench.processes.programs import program

ENTRIES = 5_000_000
_STREAM = "FOLDMQ_LOG_bench"
_SAMPLED = 0.05
_START_SECONDS = 30.0

SPARK = (
    Metric("read and count", "events/s", value("count_per_s"), (Target(400_000),)),
    Metric("read and count, one core", "events/s", value("one_core_per_s")),
    Metric("two cores / one", "", value("cores")),
    Metric("read entries, all columns", "entries/s", value("entries_per_s"), (Target(400_000),)),
    Metric("read entries, nine columns", "entries/s", value("fields_per_s")),
    Metric("audit of all", "s", value("audit"), (Target(90, at_most=True),)),
    Metric("audit of half", "s", value("audit_half")),
    Metric("audit of a quarter", "s", value("audit_quarter")),
    Metric("audit, another 1 M events", "s", value("audit_million")),
    Metric("audit memory", "MiB", value("audit_mib"), (Target(4096, at_most=True),)),
    Metric("stats of all", "s", value("stats")),
    Metric("session start", "s", value("start")),
    Metric("events", "", value("events"), (Target(ENTRIES),)),
    Metric("log", "MiB", value("log_mib")),
)


def measure_spark(options: argparse.Namespace) -> list[Row]:
    """Fill a log in a separate NATS server, and run each job in a separate process."""
    entries = ENTRIES // 10 if options.quick else ENTRIES
    runs: list[dict[str, Any]] = []
    with work_directory(options) as work, nats_server(work) as url:
        written = _generate(url, entries)
        for repetition in range(options.rounds):
            result = _measure(url, written)
            runs.append(result)
            report("spark", f"{repetition + 1}/{options.rounds}", SPARK, result)
    return own_rows("spark", SPARK, runs, quick=options.quick)


def _measure(url: str, written: dict[str, Any]) -> dict[str, Any]:
    events, records = written["events"], written["records"]
    whole = _job(url, "count")
    one = _job(url, "count", "--master", "local[1]")
    every, fields = _job(url, "entries"), _job(url, "fields")
    audits = {
        share: _job(url, "audit", "--until", str(records * share // 4)) for share in (1, 2, 4)
    }
    traffic = _job(url, "stats")
    result = {
        "events": whole["events"],
        "log_mib": written["bytes"] / 2**20,
        "start": whole["start"],
        "count_per_s": whole["events"] / whole["seconds"],
        "one_core_per_s": one["events"] / one["seconds"],
        "cores": one["seconds"] / whole["seconds"],
        "entries_per_s": every["events"] / every["seconds"],
        "fields_per_s": fields["events"] / fields["seconds"],
        "audit": audits[4]["seconds"],
        "audit_half": audits[2]["seconds"],
        "audit_quarter": audits[1]["seconds"],
        "audit_million": _slope(audits[2], audits[4]) * 1e6,
        "audit_mib": max(audits[share]["memory"] for share in audits) / 2**20,
        "stats": traffic["seconds"],
    }
    problems = [
        job["problem"] for job in (whole, one, every, fields, *audits.values()) if "problem" in job
    ]
    if {whole["events"], one["events"], audits[4]["events"]} != {events}:
        problems.append(f"not the {events:,} events that were written")
    if problems:
        result["problem"] = "; ".join(problems)
    return result


def _slope(less: dict[str, Any], more: dict[str, Any]) -> float:
    """Return the seconds per additional event."""
    slope: float = (more["seconds"] - less["seconds"]) / (more["events"] - less["events"])
    return slope


def _generate(url: str, entries: int) -> dict[str, Any]:
    command = program("logs.log_generator", "--nats", url, "--entries", entries)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(done.stderr.strip())
    written: dict[str, Any] = json.loads(done.stdout)
    rate = number(written["entries"] / written["seconds"])
    say(f"spark: {written['entries']:,} entries written, {rate} a second")
    return written


def _job(url: str, job: str, *more: str) -> dict[str, Any]:
    """Run a job; return its result, and the peak memory of all its processes together."""
    script = program("processes.spark_job", job, "--nats", url, "--stream", _STREAM)
    with subprocess.Popen(
        [*script, *more], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        largest = 0
        while process.poll() is None:
            largest = max(largest, resident(process.pid))
            time.sleep(_SAMPLED)
        output, said = process.communicate()
    if process.returncode:
        raise BenchError(f"spark: {job} ended with {process.returncode}: {said.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(output)
    how = " ".join((job, *more))
    say(f"  {how}: {result['seconds']:.1f} s, {largest / 2**20:,.0f} MiB")
    return {**result, "memory": largest}


def resident(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; shared memory counts for each."""
    parents: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(entry.path, "stat").read_text("ascii", "replace").rpartition(")")[2]
            parents.setdefault(int(fields.split()[1]), []).append(int(entry.name))
            sizes[int(entry.name)] = int(fields.split()[21]) * page
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += sizes.get(one, 0)
        waiting += parents.get(one, [])
    return total


@contextlib.contextmanager
def nats_server(work: Path) -> Iterator[str]:
    """Run a plain NATS server with JetStream; yield its URL."""
    program = NatsServer.program()
    if program is None:
        raise BenchError("nats-server is not installed")
    port = free_port()
    config = work / "log.json"
    settings = {"listen": f"127.0.0.1:{port}", "jetstream": {"store_dir": str(work / "store")}}
    config.write_text(json.dumps(settings))
    with (work / "nats.log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while b"Server is ready" not in (work / "nats.log").read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"nats-server did not start: see {work / 'nats.log'}")
            time.sleep(0.05)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


SPARK_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {"spark": measure_spark}
"""Loads by name."""
