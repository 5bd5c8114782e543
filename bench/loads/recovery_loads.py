"""Loads that only foldmq has: restarts, recovery, frozen sessions, reading the log."""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.brokers.broker_processes import ROOT, BenchError, Foldmq, Running, cpu, logged, running
from bench.brokers.mqtt_client import (
    fill_queue,
    first_message,
    make_sessions,
    present,
    session_name,
)
from bench.measuring.load_generator import run_load
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import number, report, say
from bench.measuring.rows import Row, own_rows
from bench.processes.programs import program

RESTART_ENTRIES = 5_000_000
SESSIONS = 100_000
RETAINED = 100_000
TAIL_MESSAGES = 340_000
ENTRIES_EACH = 3  # entries of such a message: published, delivered, acknowledged
QUEUES, QUEUED = 20, 1000
PAIRS = 5
PAIR_MESSAGES = 1_500_000
SETTLED = 3.0  # seconds after which an offline session is frozen, and a start is over
_UNREFLECTED = 1000  # entries of the log that up-to-date projections may miss
_ATTEMPTS = 20

# Every message is alone in its events, since each publisher and subscriber has but one in flight:
# that is as many events as a log can hold for so many messages, and entries are events. A record
# holds those of the messages that are on their way at a time.
_SINGLE = "pubsub -p 100 -s 100 -t 100 --topic-by-pub -q 1 -w 1 -T 900 -n"
_QOS1 = "pubsub -p 4 -s 4 -q 1 -w 200 -T 300 -n"

# An entry is one message published, delivered or acknowledged: what happens together for a session
# is one event of many entries, so that events alone would say little about the work.
RESTART = (Metric("replayed", "entries/s", value("entries_per_s"), (Target(300_000),)),)
RECOVERY = (
    Metric("recovered in", "s", value("seconds"), (Target(8, at_most=True),)),
    Metric("start to accept", "s", value("wall")),
    Metric("tail", "entries", value("entries"), (Target(1_000_000),)),
)
PASSIVE = (
    Metric("memory", "bytes each", value("bytes_each"), (Target(600, at_most=True),)),
    Metric("sessions", "", value("sessions")),
)
OPEN = (
    Metric("first of 1000, alone", "ms", value("alone"), (Target(20, at_most=True),)),
    Metric("slowest, alone", "ms", value("alone_slowest")),
    Metric("first of 1000, burst", "ms", value("burst"), (Target(20, at_most=True),)),
    Metric("slowest, burst", "ms", value("burst_slowest")),
)
LOG = (
    Metric("verify", "events/s", value("verify_per_s"), (Target(300_000),)),
    Metric("replay", "events/s", value("replay_per_s"), (Target(300_000),)),
    Metric("verify, with NATS on its core", "events/s", value("verify_pinned_per_s")),
    Metric("replay, with NATS on its core", "events/s", value("replay_pinned_per_s")),
    Metric("verify memory", "MiB", value("verify_mib")),
    Metric("replay memory", "MiB", value("replay_mib")),
    Metric("events", "", value("entries"), (Target(1_000_000),)),
)
PROJECTIONS = (
    Metric("QoS 1 with / without", "", value("ratio"), (Target(0.9),)),
    Metric("with", "/s", value("with_per_s")),
    Metric("without", "/s", value("without_per_s")),
    Metric("CPU with", "us/message", value("with_us")),
    Metric("CPU without", "us/message", value("without_us")),
)


class WithoutProjections(Foldmq):
    """foldmq without projections."""

    name = "without"
    title = "foldmq without projections"

    @staticmethod
    def command(port: int, work: Path) -> list[str]:
        module = Foldmq.command(port, work)
        return program("processes.no_projections", *module[module.index("serve") :])


# ----------------------------------------------------------------------------- the data directory


@contextlib.contextmanager
def work_directory(options: argparse.Namespace) -> Iterator[Path]:
    """Yield a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as work:
        yield Path(work)


def kill(server: Running, work: Path) -> None:
    """Kill the broker (SIGKILL) and wait until its NATS server has ended, too."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    _until_released(work)


def _until_released(work: Path) -> None:
    deadline = time.monotonic() + 60
    with (work / "data" / "nats.lock").open("rb") as lock:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > deadline:
                raise BenchError("the NATS server of a broker that was killed does not end")
            time.sleep(0.05)


def projections(work: Path) -> Path:
    """Return the directory of the projections' stream; no server may run on it."""
    _until_released(work)
    found = list((work / "data" / "jetstream").glob("**/streams/FOLDMQ_STATE_*"))
    if len(found) != 1:
        raise BenchError(f"{len(found)} streams with projections, not 1, below {work}")
    return found[0]


def drop_projections(work: Path) -> None:
    """Remove the projections: the next start folds the whole log."""
    shutil.rmtree(projections(work))


def replayed(log: Path) -> dict[str, Any]:
    """Return foldmq's log line about the replay."""
    line = logged(log, "log replayed")
    if line is None:
        raise BenchError(f"foldmq did not log its replay in {log}")
    return line


def settle(work: Path) -> None:
    """Start and stop the broker until its projections reflect all of its log."""
    for _ in range(_ATTEMPTS):
        with running(Foldmq, work) as server:
            entries = replayed(server.log)["entries"]
            if entries > _UNREFLECTED:
                time.sleep(SETTLED)
        if entries <= _UNREFLECTED:
            return
    raise BenchError(f"the projections stay {number(entries)} entries behind the log")


def fill(server: Running, arguments: str) -> None:
    """Run mqttload; raise BenchError if it reports a problem."""
    result = run_load(arguments.split(), server.port, server.pid)
    if "problem" in result:
        raise BenchError(f"mqttload {arguments}: {result['problem']}")


def fill_sessions(server: Running, count: int) -> None:
    """Create offline sessions and report the progress."""
    for made in make_sessions(server.port, count):
        if made % 100_000 == 0:
            say(f"  {made:,} sessions made")


# ----------------------------------------------------------------------------- recovery


def measure_restart(options: argparse.Namespace) -> list[Row]:
    """Fill foldmq's log, kill it, remove its projections, and measure how fast it folds the log."""
    wanted = RESTART_ENTRIES // 50 if options.quick else RESTART_ENTRIES
    runs: list[dict[str, Any]] = []
    with work_directory(options) as work:
        entries = 0
        while entries < wanted:
            with running(Foldmq, work) as server:
                fill(server, f"{_QOS1} {max(1000, wanted // 2)}")
                kill(server, work)
            drop_projections(work)
            with running(Foldmq, work) as server:
                entries = replayed(server.log)["entries"]
        for repetition in range(options.rounds):
            drop_projections(work)
            with running(Foldmq, work) as server:
                line = replayed(server.log)
            line["entries_per_s"] = line["entries"] / line["seconds"]
            if line["entries"] < wanted:
                line["problem"] = "not the whole log was folded"
            runs.append(line)
            report("restart", f"{repetition + 1}/{options.rounds}", RESTART, line)
    return own_rows("restart", RESTART, runs, quick=options.quick)


def measure_recovery(options: argparse.Namespace) -> list[Row]:
    """Start with projections of sessions and retained messages, and a tail they do not reflect."""
    part = 10 if options.quick else 1
    sessions, messages = SESSIONS // part, TAIL_MESSAGES // part
    runs: list[dict[str, Any]] = []
    with work_directory(options) as work:
        with running(Foldmq, work) as server:
            fill_sessions(server, sessions)
            retain = f"retain -q 1 -p 4 -w 200 -s 1 -T 300 --keep -n {RETAINED // part}"
            fill(server, retain)
        settle(work)
        stored, kept = projections(work), work / "projections"
        shutil.copytree(stored, kept)
        with running(Foldmq, work) as server:
            fill(server, f"{_SINGLE} {messages}")
            kill(server, work)
        for repetition in range(options.rounds):
            shutil.rmtree(stored)
            shutil.copytree(kept, stored)
            result = _recover(work, sessions, messages * ENTRIES_EACH)
            runs.append(result)
            report("recovery", f"{repetition + 1}/{options.rounds}", RECOVERY, result)
    return own_rows("recovery", RECOVERY, runs, quick=options.quick)


def _recover(work: Path, sessions: int, tail: int) -> dict[str, Any]:
    with running(Foldmq, work) as server:
        result = {**replayed(server.log), "wall": server.seconds}
        # A fold of the whole log would meet two entries of every session, and more.
        if not tail <= result["entries"] < tail + sessions:
            result["problem"] = f"not a tail of {tail:,} entries: {result['entries']:,} were folded"
        elif not present(server.port, session_name(sessions - 1)):
            result["problem"] = "a session is missing"
        kill(server, work)
    return result


# ----------------------------------------------------------------------------- frozen sessions


def measure_passive(options: argparse.Namespace) -> list[Row]:
    """Compare the memory of a broker that was started with offline sessions to an empty one's."""
    count = options.sessions or (SESSIONS // 10 if options.quick else SESSIONS)
    runs: list[dict[str, Any]] = []
    with work_directory(options) as empty, work_directory(options) as work:
        with running(Foldmq, empty):
            pass
        with running(Foldmq, work) as server:
            fill_sessions(server, count)
        settle(work)
        for repetition in range(options.rounds):
            bare, full = _memory_after_start(empty), _memory_after_start(work, count)
            result = {**full, "sessions": count, "bytes_each": (full["rss"] - bare["rss"]) / count}
            runs.append(result)
            report("passive", f"{repetition + 1}/{options.rounds}", PASSIVE, result)
    return own_rows("passive", PASSIVE, runs, quick=options.quick)


def _memory_after_start(work: Path, sessions: int = 0) -> dict[str, Any]:
    with running(Foldmq, work) as server:
        time.sleep(SETTLED)
        result: dict[str, Any] = {"rss": _status(server.pid, "VmRSS")}
        if sessions and not present(server.port, session_name(sessions - 1)):
            result["problem"] = "a session is missing"
    return result


def _status(pid: int, key: str) -> int:
    """Return a size from the status of one process, without its children, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def measure_open(options: argparse.Namespace) -> list[Row]:
    """Time the first message of offline sessions whose queues are only in the log.

    Messages of a queue came alone, each in a record of its own, or in a burst, in few records.
    """
    queues = QUEUES // 4 if options.quick else QUEUES
    result: dict[str, Any] = {}
    for kind, window in (("alone", 1), ("burst", QUEUED)):
        with work_directory(options) as work:
            with running(Foldmq, work) as server:
                for index in range(queues):
                    fill_queue(server.port, f"queue-{index}", QUEUED, window)
                time.sleep(SETTLED)
            with running(Foldmq, work) as server:
                time.sleep(SETTLED)
                waited = []
                for index in range(queues):
                    waited.append(first_message(server.port, f"queue-{index}", QUEUED) * 1000)
                    time.sleep(0.2)
        result |= {kind: statistics.median(waited), f"{kind}_slowest": max(waited)}
    report("open", f"{queues} sessions each", OPEN, result)
    return own_rows("open", OPEN, [result], quick=options.quick)


# ----------------------------------------------------------------------------- reading the log


def measure_log(options: argparse.Namespace) -> list[Row]:
    """Time ``foldmq log verify`` and ``foldmq replay`` on the log of a broker that is not running.

    The wall time is that of the whole command: Python starts, the NATS server starts on the data
    directory, the log is read and looked at, both end. Once the command is free to use one core
    and its NATS server another, once both have to share one core.
    """
    messages = TAIL_MESSAGES // 10 if options.quick else TAIL_MESSAGES
    runs: list[dict[str, Any]] = []
    with work_directory(options) as work:
        with running(Foldmq, work) as server:
            fill(server, f"{_SINGLE} {messages}")
        for repetition in range(options.rounds):
            result = _read_log(work, messages * ENTRIES_EACH)
            runs.append(result)
            report("log", f"{repetition + 1}/{options.rounds}", LOG, result)
    return own_rows("log", LOG, runs, quick=options.quick)


def _read_log(work: Path, entries: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, words in (("verify", ["log", "verify", "--json"]), ("replay", ["replay"])):
        for how in ("", "_pinned"):
            seconds, memory, output = _timed(words, work, pinned=bool(how))
            if name == "verify":
                found = json.loads(output)
                result["entries"] = found["entries"]
                if found["problems"] or found["entries"] < entries:
                    result["problem"] = f"log verify found {output.strip()}"
            result[f"{name}{how}_per_s"] = result["entries"] / seconds
            result[f"{name}_mib"] = memory / 2**20
    return result


def _timed(words: list[str], work: Path, *, pinned: bool) -> tuple[float, int, str]:
    """Run a ``foldmq`` command; return its seconds, its peak memory, and its output."""
    allowed = os.sched_getaffinity(0)
    command = [sys.executable, "-m", "cli.main", *words, "--data-dir", str(work / "data")]
    largest = 0
    with tempfile.TemporaryFile(dir=work) as output:
        started = time.monotonic()
        try:
            if pinned:  # inherited by the child processes
                os.sched_setaffinity(0, {max(allowed)})
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE)
        finally:
            os.sched_setaffinity(0, allowed)
        while process.poll() is None:
            largest = max(largest, _status(process.pid, "VmHWM"))
            time.sleep(0.01)
        seconds = time.monotonic() - started
        said = process.communicate()[1].decode("utf-8", "replace").strip()
        if process.returncode:
            raise BenchError(f"foldmq {' '.join(words)} ended with {process.returncode}: {said}")
        output.seek(0)
        return seconds, largest, output.read().decode()


# ----------------------------------------------------------------------------- projections


def measure_projections(options: argparse.Namespace) -> list[Row]:
    """Measure QoS 1 with and without the writing of projections, in pairs that alternate."""
    messages = PAIR_MESSAGES // 10 if options.quick else PAIR_MESSAGES
    brokers: list[type[Foldmq]] = [Foldmq, WithoutProjections]
    runs: dict[str, list[dict[str, Any]]] = {broker.name: [] for broker in brokers}
    pairs = max(2 if options.quick else PAIRS, options.rounds)
    for pair in range(pairs):
        for broker in brokers if pair % 2 else reversed(brokers):
            with work_directory(options) as work, running(broker, work) as server:
                before = cpu(server.pid)
                result = run_load(f"{_QOS1} {messages}".split(), server.port, server.pid)
                result["us"] = (cpu(server.pid) - before) * 1e6 / messages
            runs[broker.name].append(result)
        shown = ", ".join(
            f"{name} {number(of[-1].get('recv_per_s'))} /s, {of[-1]['us']:.2f} us/message"
            + (f" PROBLEM: {of[-1]['problem']}" if "problem" in of[-1] else "")
            for name, of in runs.items()
        )
        say(f"projections {pair + 1}/{pairs}: {shown}")
    result = _compared(runs[Foldmq.name], runs[WithoutProjections.name])
    report("projections", f"{pairs} pairs", PROJECTIONS, result)
    return own_rows("projections", PROJECTIONS, [result], quick=options.quick)


def _compared(with_them: list[dict[str, Any]], without: list[dict[str, Any]]) -> dict[str, Any]:
    bad = [run["problem"] for run in [*with_them, *without] if "problem" in run]
    if bad:
        return {"problem": bad[0]}
    result: dict[str, Any] = {}
    for name, runs in (("with", with_them), ("without", without)):
        result[f"{name}_per_s"] = statistics.median(run["recv_per_s"] for run in runs)
        result[f"{name}_us"] = statistics.median(run["us"] for run in runs)
    result["ratio"] = result["with_per_s"] / result["without_per_s"]
    return result


RECOVERY_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "restart": measure_restart,
    "recovery": measure_recovery,
    "passive": measure_passive,
    "open": measure_open,
    "log": measure_log,
    "projections": measure_projections,
}
"""Loads by name."""
