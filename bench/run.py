"""Measures foldmq beside Mosquitto and NATS Server on this machine: ``make bench``.

Every run has a freshly started broker, and the brokers take turns, so that a machine that gets
slower or faster meanwhile does so for all of them. The median of the runs is shown.
"""

import argparse
import datetime as dt
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokers import BROKERS, ROOT, BenchError, Broker, Foldmq, output, running
from loads import LOADS, RESTART, Load, Metric, Target, Values

HERE = Path(__file__).resolve().parent
LOADER = HERE / "mqttload"
RESTART_ENTRIES = 5_000_000


@dataclass
class Row:
    """One metric of one load with the median of every broker."""

    load: str
    metric: Metric
    values: Values
    targets: tuple[Target, ...]


def compile_loader() -> None:
    """Build mqttload when its source is newer than the program."""
    source = HERE / "mqttload.c"
    if LOADER.exists() and LOADER.stat().st_mtime >= source.stat().st_mtime:
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchError("no C compiler found to build bench/mqttload (on Debian: apt install gcc)")
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", LOADER, source], check=True)


def run_load(arguments: list[str], port: int, pid: int) -> dict[str, Any]:
    """Run mqttload; the result has a key ``problem`` when something was lost or did not end."""
    command = [str(LOADER), *arguments, "-P", str(port), "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"problem": done.stderr.strip() or f"mqttload ended with {done.returncode}"}
    if done.returncode:
        faults = ("lost", "dup", "misordered", "corrupt", "refused", "failed", "disconnects")
        seen = [f"{fault} {result[fault]}" for fault in faults if result.get(fault)]
        result["problem"] = ", ".join([*seen, f"status {result.get('status')}"])
    return result


def measure(load: Load, brokers: list[Broker], options: argparse.Namespace) -> Iterator[Row]:
    """Run one load against every broker in turn and give a row per metric."""
    results: dict[str, list[dict[str, Any]]] = {broker.name: [] for broker in brokers}
    for repetition in range(options.repeat):
        for broker in brokers:
            arguments = load.command(broker.name, quick=options.quick)
            with (
                tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as work,
                running(broker, Path(work)) as server,
            ):
                result = run_load(arguments, server.port, server.pid)
            results[broker.name].append(result)
            note = f" PROBLEM: {result['problem']}" if "problem" in result else ""
            shown = ", ".join(
                f"{metric.label} {number(metric.read(result))} {metric.unit}".rstrip()
                for metric in load.metrics
            )
            say(f"{load.name} {repetition + 1}/{options.repeat} {broker.title}: {shown}{note}")
    for metric in load.metrics:
        values = {name: median(metric, runs) for name, runs in results.items()}
        yield Row(load.name, metric, values, () if options.quick else metric.targets)


def median(metric: Metric, runs: list[dict[str, Any]]) -> float | None:
    """Give the median; None when a run failed: a rate at which messages are lost is none."""
    values = [None if "problem" in run else metric.read(run) for run in runs]
    good = [value for value in values if value is not None]
    return statistics.median(good) if len(good) == len(runs) else None


def measure_restart(options: argparse.Namespace) -> Row:
    """Fill foldmq's log, kill it, start it again, and read from its log how fast it replayed."""
    wanted = RESTART_ENTRIES // 50 if options.quick else RESTART_ENTRIES
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as work:
        entries = 0
        while entries < wanted:
            with running(Foldmq, Path(work)) as server:
                arguments = f"pubsub -p 4 -s 4 -q 1 -w 200 -T 300 -n {max(1000, wanted // 2)}"
                result = run_load(arguments.split(), server.port, server.pid)
                if "problem" in result:
                    raise BenchError(f"filling the log: {result['problem']}")
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
            with running(Foldmq, Path(work)) as server:
                entries = recovered(server.log)["entries"]
        for _ in range(options.repeat):
            with running(Foldmq, Path(work)) as server:
                line = recovered(server.log)
            line["entries_per_s"] = line["entries"] / line["seconds"]
            runs.append(line)
            say(f"restart: {number(line['entries'])} entries in {line['seconds']:.2f} s")
    targets = () if options.quick else RESTART.targets
    return Row("restart", RESTART, {"foldmq": median(RESTART, runs)}, targets)


def recovered(log: Path) -> dict[str, Any]:
    """Give the log line in which foldmq says what it replayed."""
    for text in log.read_text("utf-8", "replace").splitlines():
        if text.startswith("{"):
            line: dict[str, Any] = json.loads(text)
            if line.get("event") == "log replayed":
                return line
    raise BenchError(f"foldmq did not say what it replayed in {log}")


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: list[Row], brokers: list[Broker]) -> str:
    """Give the rows as a Markdown table with the ratio of foldmq to every other broker."""
    others = [broker for broker in brokers if broker is not Foldmq]
    head = ["load", "foldmq"]
    for broker in others:
        head += [broker.title, "foldmq is"]
    lines = [[*head, "target", "met"]]
    for row in rows:
        own = row.values.get("foldmq")
        cells = [f"{row.load}: {row.metric.label} {row.metric.unit}".rstrip(), number(own)]
        for broker in others:
            value = row.values.get(broker.name)
            cells += [number(value), f"{own / value:.2f} x" if own and value else "-"]
        verdicts = {None: "?", True: "yes", False: "NO"}
        cells.append("; ".join(str(target) for target in row.targets) or "-")
        cells.append("; ".join(verdicts[target.met(row.values)] for target in row.targets) or "-")
        lines.append(cells)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def queued_like_qos1(rows: list[Row]) -> None:
    """Give ``offline: queued`` its target: foldmq's own QoS 1 rate of this run."""
    found = {(row.load, row.metric.label): row for row in rows}
    plain, queued = found.get(("qos1", "delivered")), found.get(("offline", "queued"))
    if plain and queued and plain.targets and (rate := plain.values.get("foldmq")):
        queued.targets = (Target(round(rate)),)


def machine(brokers: list[Broker], directory: Path) -> str:
    """Say where and with what was measured, as a Markdown list."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    disk = output(["stat", "--file-system", "--format=%T", str(directory)])
    software = ", ".join(f"{broker.title} {broker.version()}" for broker in brokers)
    return "\n".join(
        [
            f"- {dt.datetime.now(dt.UTC):%Y-%m-%d}",
            f"- {model}, {os.cpu_count()} cores, {memory:.0f} GiB, data on {disk}",
            f"- {platform.system()} {platform.release()}, Python {platform.python_version()}",
            f"- {software}",
        ]
    )


INTRODUCTION = """# Benchmarks

Made by `make bench ARGS=--write`: the last run, {repeat} runs each, medians. Payloads have 64
bytes; the load generator `bench/mqttload.c` runs on the same machine and checks every message.
foldmq and NATS Server (`sync_interval: always`) acknowledge when a message is on disk, Mosquitto
when it is in memory. A dash is a run that lost something or did not end. "restart" counts entries:
one message published, delivered or acknowledged; one event of the log may hold many of them.
"""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    names = [load.name for load in LOADS] + ["restart"]
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench ARGS='...'")
    parser.add_argument("--load", action="append", choices=names, help="only these loads")
    parser.add_argument("--broker", action="append", choices=[broker.name for broker in BROKERS])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, no targets")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where data is kept")
    options = parser.parse_args()
    options.load = options.load or names
    if options.repeat < 1:
        parser.error("--repeat must be at least 1")
    if options.write and options.quick:
        parser.error("--write needs a full run, not --quick")
    return options


def chosen_brokers(names: list[str] | None) -> list[Broker]:
    """Give the brokers to run; one that is not installed is left out and named."""
    chosen = []
    for broker in BROKERS:
        if names and broker.name not in names:
            continue
        if broker.installed():
            chosen.append(broker)
        else:
            say(f"{broker.title} is not installed: left out")
    return chosen


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> int:
    """Run what was chosen and print the table; 1 when a target is not met."""
    compile_loader()
    options.dir.mkdir(parents=True, exist_ok=True)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    brokers = chosen_brokers(options.broker)
    rows = [
        row
        for load in LOADS
        if load.name in options.load
        for row in measure(load, brokers, options)
    ]
    if "restart" in options.load and Foldmq in brokers:
        rows.append(measure_restart(options))
    queued_like_qos1(rows)
    report = f"{table(rows, brokers)}\n\n{machine(brokers, options.dir)}\n"
    print(report)
    if options.write:
        text = INTRODUCTION.format(repeat=options.repeat) + "\n" + report
        (ROOT / "docs" / "benchmarks.md").write_text(text, "utf-8")
    missed = [row for row in rows if any(t.met(row.values) is False for t in row.targets)]
    return 1 if missed and Foldmq in brokers else 0


def main() -> None:
    try:
        sys.exit(run(parse_arguments()))
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
