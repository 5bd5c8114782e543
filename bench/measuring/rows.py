"""Rows of the tables: medians of the runs of a load."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.measuring.metrics import Metric, Target, Values

Cost = tuple[float, float]
"""Microseconds of processor time for each message: of the broker, of the NATS beneath it."""


@dataclass
class Row:
    """One metric of one load with the median of every broker."""

    load: str
    metric: Metric
    values: Values
    targets: tuple[Target, ...]
    group: str = "own"
    ratios: Values = field(default_factory=dict)
    """foldmq's value divided by the other broker's: the median over the pairs."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a broker has no value."""

    @property
    def name(self) -> str:
        return f"{self.load}: {self.metric.label} {self.metric.unit}".rstrip()

    def met(self, target: Target) -> bool | None:
        return target.met(self.values.get("foldmq"), self.ratios)


def own_rows(
    load: str,
    metrics: Iterable[Metric],
    runs: list[dict[str, Any]],
    *,
    quick: bool,
    group: str = "own",
) -> list[Row]:
    """Return the rows of a load that only foldmq has."""
    return [
        Row(load, metric, {"foldmq": median(metric, runs)}, () if quick else metric.targets, group)
        for metric in metrics
    ]


def median(metric: Metric, runs: list[dict[str, Any]]) -> float | None:
    """Return the median; None if a run failed, because a rate with lost messages does not count."""
    values = [None if "problem" in run else metric.read(run) for run in runs]
    good = [value for value in values if value is not None]
    return statistics.median(good) if runs and len(good) == len(runs) else None
