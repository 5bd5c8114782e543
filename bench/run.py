"""Measures foldmq beside Mosquitto and NATS Server on this machine: ``make bench``.

Every run has a freshly started broker, and the brokers take turns, so that a machine that gets
slower or faster meanwhile does so for all of them. The median of the runs is shown.
"""

import argparse
import datetime as dt
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridgeload import BRIDGE
from brokers import BROKERS, ROOT, BenchError, Broker, Foldmq, output, running
from inspection import INSPECTION
from loads import LOADS, Load, Target
from measuring import Row, compile_loader, median, number, report, run_load, say
from sparkload import SPARK_LOADS
from timemachine import TIME_MACHINE


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
            which = f"{repetition + 1}/{options.repeat} {broker.title}"
            report(load.name, which, load.metrics, result)
    for metric in load.metrics:
        values = {name: median(metric, runs) for name, runs in results.items()}
        yield Row(load.name, metric, values, () if options.quick else metric.targets)


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
when it is in memory. A dash is a run that lost something or did not end, or a load that only
foldmq has. An entry is one message published, delivered or acknowledged; one event of the log may
hold many of them. foldmq runs as it does by default, with metrics and web page on.

The loads that only foldmq has (`bench/timemachine.py`), all with files that the operating system
may have in its page cache:

- "restart": a log of 5 million entries is folded from its beginning, without projections.
- "recovery": the broker was killed; its projections hold 100,000 offline sessions with a
  subscription each and 100,000 retained messages, and do not reflect the last million events.
  Every event of these holds one message only, the worst case. The time is that of the log line
  "log replayed"; "start to accept" is all from the start of the process to an open port.
- "passive": resident memory of the broker's process after a start with offline sessions (no
  retained messages), less that of a broker without any, for each session.
- "open": from CONNECT to the first of 1,000 queued messages, after a start of the broker, so that
  the session and its messages are only on disk; "alone": each in a record of its own.
- "log": the whole commands `foldmq log verify` and `foldmq replay` on the log of a broker that
  does not run, a million events of one message each: Python and the NATS server start and end in
  that time, nothing is subtracted. Once with the NATS server on another core, once on the same.
- "projections": the load "qos1" with and without the background writing of projections, in at
  least 5 pairs, fresh brokers, the order changing; CPU time is that of the broker's process alone.

What looking into a running foldmq costs (`bench/inspection.py`), in at least 9 pairs of runs with
and without it, fresh brokers, the order changing; ratios and differences are the medians of those
of the pairs, CPU time is that of the broker's process alone:

- "inspection": the load "qos1" with metrics, web page and `$SYS` topics on, for which nobody asks,
  and with all of them off.
- "top": the load "qos1" with and without an open `foldmq top`, 120 x 40 characters.
- "trace": 10,000 clients of which one publishes ten times a second and the rest nothing, and 8
  others with a load: 5,000 messages a second at QoS 1, for their latency, then "qos1". With
  `foldmq actors tail --client` of the one, and without.
- "list": 10,000 connected clients with 8 subscriptions each, that is 100,000 actors, and 2,000
  messages a second at QoS 1 between 8 others: their latency while all actors are listed, page by
  page, then the busiest, again and again, and while nobody asks. "loop held": for how long the
  inspector worked at a time, in CPU time of its thread; garbage collections that came meanwhile
  are apart, and the time by the wall has in it whatever else the machine did. "JSON of a page"
  follows when others had their turn.

Between MQTT and NATS (`bench/bridgeload.py`), the embedded NATS opened for clients:

- "on / off": the load "qos0" with 4 topics, and the same at QoS 1, with the bridge and without it
  and nobody subscribed in NATS, in at least 5 pairs, fresh brokers, the order changing.
- "to NATS": 4 publishers and one NATS client that takes everything; all arrive, or there is none.
- "NATS to MQTT": a NATS client that sends 150,000 a second, one MQTT client; all arrive.

Spark on a log (`bench/sparkload.py`): 5 million events of one message each, written by
`bench/loggen.py` as a broker writes them under load, in a plain NATS server on the same machine;
`local[2]`, a heap of 2 GiB, every job in a process of its own, timed from when its session has
started:

- "read and count": every event with node, position, time, type and session; "entries with their
  fields": also topic, QoS, packet identifier and what it refers to.
- "audit": all promises, with the figures of its report. "of half", "of a quarter": up to there;
  "another 1 M events" is what the second half costs, by the million. Its memory is the largest sum
  of the resident memory of all processes, JVM and Python workers, in which what they share counts
  for each.
- "stats": the traffic by topic, as `foldmq spark stats` prints it.
"""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    names = [*(load.name for load in LOADS), *TIME_MACHINE, *INSPECTION, *BRIDGE, *SPARK_LOADS]
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench ARGS='...'")
    parser.add_argument("--load", action="append", choices=names, help="only these loads")
    parser.add_argument("--broker", action="append", choices=[broker.name for broker in BROKERS])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--sessions", type=int, help="sessions of the load passive (100000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, no targets")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where data is kept")
    options = parser.parse_args()
    options.load = options.load or names
    if options.sessions is not None and options.sessions < 1:
        parser.error("--sessions must be at least 1")
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
    for name, measure_own in (TIME_MACHINE | INSPECTION | BRIDGE | SPARK_LOADS).items():
        if name in options.load and Foldmq in brokers:
            rows += measure_own(options)
    queued_like_qos1(rows)
    tables = f"{table(rows, brokers)}\n\n{machine(brokers, options.dir)}\n"
    print(tables)
    if options.write:
        text = INTRODUCTION.format(repeat=options.repeat) + "\n" + tables
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
