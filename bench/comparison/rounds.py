"""Runs a load against all brokers in turn, and reports where foldmq is worse than its release."""

import argparse
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.brokers.broker_processes import (
    Broker,
    Foldmq,
    Released,
    log_bytes,
    running,
    written_bytes,
)
from bench.measuring.load_generator import run_load
from bench.measuring.metrics import Load, Metric, Result
from bench.measuring.progress import number, report, say
from bench.measuring.rows import Cost, Row, median

TOLERANCE = 0.05
"""Factor by which a row may be worse than that of the released version."""

Runs = dict[str, list[Result]]


def measure(load: Load, brokers: Sequence[Broker], options: argparse.Namespace) -> list[Row]:
    """Run a load in rounds, each broker fresh, the order changing; return a row for each metric.

    A row that looks worse than that of the release is measured for as many rounds again, foldmq
    and the release alone: one bad moment of the machine is no verdict.
    """
    runs: Runs = {broker.name: [] for broker in brokers}
    for number_ in range(options.rounds):
        _round(load, brokers, runs, number_, options)
    rows = rows_of(load, runs, quick=options.quick)
    pair = [broker for broker in brokers if issubclass(broker, Foldmq)]
    if not options.quick and len(pair) == 2 and worse(rows):
        say(f"{load.name} looks worse than that of {Released.title}: measured again")
        for number_ in range(options.rounds, 2 * options.rounds):
            _round(load, pair, runs, number_, options)
        rows = rows_of(load, runs, quick=options.quick)
    return rows


def _round(
    load: Load, brokers: Sequence[Broker], runs: Runs, which: int, options: argparse.Namespace
) -> None:
    for broker in brokers if which % 2 == 0 else list(reversed(brokers)):
        before = runs[broker.name]
        if before and "problem" in before[-1]:  # a rate with lost messages does not count
            before.append(before[-1])
            continue
        result = _run(load, broker, options)
        before.append(result)
        report(load.name, f"{which + 1} {broker.title}", load.metrics, result)


def _run(load: Load, broker: Broker, options: argparse.Namespace) -> Result:
    arguments = load.command(broker.name, quick=options.quick)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as work,
        running(broker, Path(work), load.settings if broker is Foldmq else {}) as server,
    ):
        if not issubclass(broker, Foldmq):
            return run_load(arguments, server.port, server.pid)
        before = log_bytes(Path(work)), written_bytes(server.pid)
        result = run_load(arguments, server.port, server.pid, server.nats_pid())
        if received := result.get("received"):
            result["log_bytes"] = (log_bytes(Path(work)) - before[0]) / received
            result["written_kib"] = (written_bytes(server.pid) - before[1]) / 1024 / received
        return result


def rows_of(load: Load, runs: Runs, *, quick: bool) -> list[Row]:
    """Return the rows of a load: medians, and the medians of the ratios of the pairs."""
    own = runs.get(Foldmq.name, [])
    problems = {
        name: result["problem"]
        for name, results in runs.items()
        for result in results
        if "problem" in result
    }
    return [
        Row(
            load.name,
            metric,
            {name: median(metric, results) for name, results in runs.items()},
            () if quick else metric.targets,
            load.group,
            {name: ratio(metric, own, runs[name]) for name in runs if name != Foldmq.name},
            _costs(metric, runs),
            problems,
        )
        for metric in load.metrics
    ]


def ratio(metric: Metric, own: Iterable[Result], other: Iterable[Result]) -> float | None:
    """Return the median of own / other over the pairs; None when a run of them failed."""
    pairs = [
        (None, None) if "problem" in mine or "problem" in theirs else _values(metric, mine, theirs)
        for mine, theirs in zip(own, other, strict=False)
    ]
    found = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
    return statistics.median(found) if pairs and len(found) == len(pairs) else None


def _values(metric: Metric, mine: Result, theirs: Result) -> tuple[float | None, float | None]:
    return metric.read(mine), metric.read(theirs)


def _costs(metric: Metric, runs: Runs) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    for name, results in runs.items():
        if metric.phase is None or any("problem" in result for result in results):
            continue
        costs = [cost for cost in map(metric.phase.cost, results) if cost is not None]
        if costs:
            broker, nats = zip(*costs, strict=True)
            found[name] = statistics.median(broker), statistics.median(nats)
    return found


def worse(rows: Iterable[Row]) -> list[str]:
    """Return a line for each row that is worse than the release by more than the tolerance."""
    lines = []
    for row in rows:
        own, theirs = row.values.get(Foldmq.name), row.values.get(Released.name)
        if theirs is None or not row.metric.compared:
            continue
        found = row.ratios.get(Released.name)
        if own is None:
            lines.append(f"{row.name} has no value, {Released.title} has {number(theirs)}")
        elif found is not None and _is_worse(row.metric, found):
            lines.append(
                f"{row.name} is {number(own)}, {Released.title} {number(theirs)}: "
                f"{100 * abs(found - 1):.0f} % worse in the median of the pairs"
            )
    return lines


def _is_worse(metric: Metric, found: float) -> bool:
    return found > 1 + TOLERANCE if metric.less else found < 1 - TOLERANCE


def failed(rows: Iterable[Row]) -> list[str]:
    """Return a line for each load in which foldmq lost something or did not end."""
    found = {row.load: row.problems[Foldmq.name] for row in rows if Foldmq.name in row.problems}
    return [f"{load} failed: {problem}" for load, problem in found.items()]


def missed(rows: Iterable[Row], *, aims: bool) -> list[str]:
    """Return a line for each target that is not met; ``aims``: for each goal instead."""
    return [
        f"{row.name} is {number(row.values.get(Foldmq.name))}, not {target}"
        for row in rows
        for target in row.targets
        if target.aim == aims and row.met(target) is False
    ]
