"""Loads in MQTT 5, each in pairs with the same at MQTT 3.1.1 on the same foldmq.

Both of a pair have a fresh broker, and the order changes. A ratio is the median of those of the
pairs: what makes the machine slower for a while hits both.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.brokers.broker_processes import Foldmq, running
from bench.loads.compared_loads import LOADS
from bench.measuring.load_generator import run_load
from bench.measuring.metrics import MQTT5, Load, Metric, Phase, Result, Target, value
from bench.measuring.progress import report
from bench.measuring.rows import Row, own_rows

PAIRS = 5
ALONE = 0.95
"""Ratio that a load must reach in MQTT 5 without properties."""
_FAN = "pubsub -f -p 4 -s 4 -t 4 -T 300"
_TEN = "pubsub -p 10 -s 10 -t 10 -q 1 -w 200 -T 300"


@dataclass(frozen=True)
class Comparison:
    """A load and the one that it is compared with."""

    name: str
    arguments: str
    other: str
    count: int
    metrics: tuple[Metric, ...]
    goal: float
    """Times the other's rate."""


def _without_properties(load: Load) -> Comparison:
    rates = tuple(metric for metric in load.metrics if metric.compared and metric.unit)
    arguments = f"{load.arguments} -V 5"
    return Comparison(f"5-{load.name}", arguments, load.arguments, load.count, rates, ALONE)


def _with_properties(load: Load) -> Comparison:
    arguments = f"{load.arguments} -V 5 --props"
    return Comparison(
        f"5-props-{load.name}", arguments, load.arguments, load.count, load.metrics, 0.8
    )


def _delivered(name: str, arguments: str, more: str, less: str, goal: float) -> Comparison:
    metrics = (Metric("delivered", "/s", value("recv_per_s"), phase=Phase()),)
    return Comparison(
        name, f"{arguments} {more}".strip(), f"{arguments} {less}".strip(), 300_000, metrics, goal
    )


_PROPERTIES = ("pairs", "qos0", "qos1", "qos2")
COMPARISONS = (
    *map(_without_properties, LOADS),
    *(_with_properties(load) for load in LOADS if load.name in _PROPERTIES),
    _delivered("5-mixed0", f"{_FAN} -q 0 -W 10000", "-V 5 --mixed", "", 0.5),
    _delivered("5-mixed1", f"{_FAN} -q 1 -w 200", "-V 5 --mixed", "", 0.85),
    _delivered("5-shared", _TEN, "-V 5 --share load", "-V 5", 0.9),
)


def _rows_of(comparison: Comparison) -> tuple[Metric, ...]:
    """Return the metrics of the table: ratio with its target, both figures, processor time.

    The rate depends on what the load generator needs for each level, too; the ratio of the
    broker's own processor time for a message or connection does not.
    """
    found: list[Metric] = []
    for metric in comparison.metrics:
        key = metric.label
        target = Target(comparison.goal)
        if metric.less:
            target = Target(round(1 / comparison.goal, 2), at_most=True)
        # The memory of a connection is only shown here; the load "conn" has the target.
        targets = () if metric.label == "memory" else (target,)
        found += [
            Metric(f"{key} ratio", "", value(f"ratio_{key}"), targets, less=metric.less),
            Metric(key, metric.unit, value(f"own_{key}")),
            Metric(f"{key} compared with", metric.unit, value(f"other_{key}")),
        ]
        if metric.phase is not None:
            found.append(Metric(f"{key} processor time ratio", "", value(f"cpu_{key}"), less=True))
    return tuple(found)


def measure_comparison(comparison: Comparison, options: argparse.Namespace) -> list[Row]:
    """Measure, and return the rows of the table.

    Where a target is missed, as many pairs are measured again, and all of them count.
    """
    pairs = 2 if options.quick else max(PAIRS, options.rounds)
    own: list[Result] = []
    other: list[Result] = []
    rows: list[Row] = []
    for first in (0, pairs):
        for pair in range(first, first + pairs):
            both = [("", comparison.arguments, own), ("compared", comparison.other, other)]
            for which, arguments, results in both if pair % 2 else reversed(both):
                results.append(_run(comparison, arguments, options))
                shown = f"{pair + 1}/{first + pairs} {which}".rstrip()
                report(comparison.name, shown, comparison.metrics, results[-1])
        found = summary(comparison, own, other)
        rows = own_rows(
            comparison.name, _rows_of(comparison), [found], quick=options.quick, group=MQTT5
        )
        if "problem" in found or _meets_targets(rows):
            break
    return rows


def _meets_targets(rows: list[Row]) -> bool:
    return not any(row.met(target) is False for row in rows for target in row.targets)


def summary(comparison: Comparison, own: list[Result], other: list[Result]) -> dict[str, Any]:
    """Return medians of both, and of the ratios of the pairs; a problem if a run had one."""
    problems = [run["problem"] for run in (*own, *other) if "problem" in run]
    if problems:
        return {"problem": problems[0]}
    found: dict[str, Any] = {}
    for metric in comparison.metrics:
        ours, theirs = map(metric.read, own), map(metric.read, other)
        read = [(mine, his) for mine, his in zip(ours, theirs, strict=True) if mine and his]
        if not read:
            continue
        found[f"ratio_{metric.label}"] = statistics.median(mine / his for mine, his in read)
        found[f"own_{metric.label}"] = statistics.median(mine for mine, _ in read)
        found[f"other_{metric.label}"] = statistics.median(his for _, his in read)
        if metric.phase is not None:
            costs = zip(map(metric.phase.cost, own), map(metric.phase.cost, other), strict=True)
            ratios = [mine[0] / his[0] for mine, his in costs if mine and his and his[0]]
            if ratios:
                found[f"cpu_{metric.label}"] = statistics.median(ratios)
    return found


def _run(comparison: Comparison, arguments: str, options: argparse.Namespace) -> Result:
    count = max(1000, comparison.count // 10) if options.quick else comparison.count
    command = [*arguments.split(), "-n", str(count)]
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as work,
        running(Foldmq, Path(work)) as server,
    ):
        return run_load(command, server.port, server.pid, server.nats_pid())


MQTT5_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    comparison.name: partial(measure_comparison, comparison) for comparison in COMPARISONS
}
