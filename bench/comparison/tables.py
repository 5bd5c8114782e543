"""Tables of a run for bench/results.md, and its line for bench/history.jsonl."""

import datetime as dt
import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.brokers.broker_processes import (
    BenchError,
    Broker,
    Foldmq,
    Mosquitto,
    NatsServer,
    Released,
    output,
)
from bench.loads.compared_loads import LOADS
from bench.measuring.metrics import BULK, DEVICES, MQTT5
from bench.measuring.progress import number
from bench.measuring.rows import Row
from cli.common import interpreter

OWN = "own"
GROUPS = (DEVICES, BULK, MQTT5, OWN)
_ORDER: tuple[Broker, ...] = (Foldmq, Mosquitto, NatsServer, Released)
_ON_DISK = {"foldmq": "on disk", "mosquitto": "in memory", "nats": "on disk", "released": "on disk"}
"""The place of a message when each broker acknowledges it."""
_COSTS = (
    "Processor time for each message or connection, in microseconds: of foldmq + of the NATS "
    "server that it runs."
)
_VERDICTS = {None: "?", True: "yes", False: "NO"}


def tables(group: str, rows: Sequence[Row], brokers: Sequence[Broker]) -> str:
    """Return the tables of a group: rates and times, processor time, and the loads."""
    shown = [row for row in rows if row.group == group]
    if not shown:
        return ""
    if group in (MQTT5, OWN):
        return _markdown(_results(shown, [Foldmq]))
    ordered = [broker for broker in _ORDER if broker in brokers]
    parts = [
        _markdown(_results(shown, ordered)),
        _COSTS,
        _markdown(_costs(shown, ordered)),
        "The loads, as options of `bench/mqttload`:",
        _markdown(_loads(shown, ordered)),
    ]
    return "\n\n".join(parts)


def _results(rows: Iterable[Row], brokers: Sequence[Broker]) -> list[list[str]]:
    head = ["load", *(f"{broker.title}, {_ON_DISK[broker.name]}" for broker in brokers[:1])]
    if len(brokers) == 1:
        head[1] = brokers[0].title
    for broker in brokers[1:]:
        head += [f"{broker.title}, {_ON_DISK[broker.name]}", "foldmq is"]
    lines = [[*head, "target", "met"]]
    for row in rows:
        cells = [row.name, number(row.values.get(Foldmq.name))]
        for broker in brokers[1:]:
            found = row.ratios.get(broker.name)
            value = row.values.get(broker.name)
            cells += [number(value), "-" if found is None else f"{found:.2f} x"]
        cells.append("; ".join(map(str, row.targets)) or "-")
        cells.append("; ".join(_VERDICTS[row.met(target)] for target in row.targets) or "-")
        lines.append(cells)
    return lines


def _costs(rows: Iterable[Row], brokers: Sequence[Broker]) -> list[list[str]]:
    lines = [["load", *(broker.title for broker in brokers)]]
    for row in rows:
        if row.metric.phase is None:
            continue
        cells = [f"{row.load}: {row.metric.label}"]
        for broker in brokers:
            own, nats = row.costs.get(broker.name, (None, 0.0))
            cells.append(number(own) + (f" + {number(nats)}" if nats else ""))
        lines.append(cells)
    return lines


def _loads(rows: Iterable[Row], brokers: Sequence[Broker]) -> list[list[str]]:
    names = {broker.name: broker.title for broker in brokers}
    measured = {row.load for row in rows}
    lines = [["load", "options", "messages or connections"]]
    for load in LOADS:
        if load.name not in measured:
            continue
        fewer = [f"{names[name]} {n:,}" for name, n in load.counts.items() if name in names]
        lines.append([load.name, f"`{load.arguments}`", ", ".join([f"{load.count:,}", *fewer])])
    return lines


def _markdown(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def machine(brokers: Sequence[Broker], directory: Path, rounds: int) -> str:
    """Return date, machine and versions of the measurement, as a Markdown list."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    disk = output(["stat", "--file-system", "--format=%T", str(directory)])
    ordered = [broker for broker in _ORDER if broker in brokers]
    software = ", ".join(f"{broker.title} {broker.version()}" for broker in ordered)
    return "\n".join(
        [
            f"- {today()}, {rounds} round{'s' * (rounds > 1)}",
            f"- {model}, {os.cpu_count()} cores, {memory:.0f} GiB, data on {disk}",
            f"- {platform.system()} {platform.release()}, {interpreter.described()}",
            f"- {software}",
        ]
    )


def today() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"


def replaced(text: str, group: str, content: str) -> str:
    """Return a page with new content between the marks of a group."""
    begin, end = f"<!-- make bench: {group} -->", f"<!-- end of {group} -->"
    marked = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise BenchError(f"bench/results.md must have exactly one part between {begin} and {end}")
    return marked.sub(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text)


def history_line(rows: Iterable[Row], brokers: Sequence[Broker], rounds: int) -> str:
    """Return a run as a line of JSON: date, versions, and all values."""
    line: dict[str, Any] = {
        "date": today(),
        "rounds": rounds,
        "python": interpreter.described(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "brokers": {broker.name: f"{broker.title} {broker.version()}" for broker in brokers},
        "rows": {
            row.name: {
                "values": {name: _rounded(value) for name, value in row.values.items()},
                **({"ratios": _all_rounded(row.ratios)} if row.ratios else {}),
                **(
                    {"cpu_us": {name: [*map(_rounded, cost)] for name, cost in row.costs.items()}}
                    if row.costs
                    else {}
                ),
            }
            for row in rows
        },
    }
    return json.dumps(line) + "\n"


def _all_rounded(values: Any) -> dict[str, float | None]:
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: float | None) -> float | None:
    """Four digits: more are noise."""
    return None if value is None else float(f"{value:.4g}")
