"""Loads of mqttload, the metrics read from their results, and the targets of foldmq."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Median results of one metric: broker name to value, None where a run failed.
Values = Mapping[str, float | None]
Result = dict[str, Any]

DEVICES, BULK, MQTT5 = "devices", "bulk", "mqtt5"


@dataclass(frozen=True)
class Target:
    """A target of foldmq: an absolute value, or a multiple of another broker's value."""

    factor: float
    of: str | None = None
    at_most: bool = False
    aim: bool = False
    """A goal: the table shows whether it is met, but the run does not fail."""

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.factor:g} x {self.of}" if self.of else f"{sign} {self.factor:,.10g}"

    def met(self, own: float | None, ratios: Values) -> bool | None:
        """Return whether it is met; None if the other broker has no value."""
        reached = own if self.of is None else ratios.get(self.of)
        if self.of is not None and own is not None and reached is None:
            return None
        compare = operator.le if self.at_most else operator.ge
        return own is not None and reached is not None and compare(reached, self.factor)


@dataclass(frozen=True)
class Phase:
    """A part of a run whose processor time mqttload reports, and its divisor."""

    prefix: str = ""
    per: str = "received"

    def cost(self, result: Result) -> tuple[float, float] | None:
        """Return microseconds for each message: of the broker, and of the NATS beneath it."""
        whole, count = result.get(f"{self.prefix}broker_cpu_s"), result.get(self.per)
        if whole is None or not count:
            return None
        apart = result.get(f"{self.prefix}apart_cpu_s", 0.0)
        return (whole - apart) * 1e6 / count, apart * 1e6 / count


@dataclass(frozen=True)
class Metric:
    label: str
    unit: str
    read: Callable[[Result], float | None]
    targets: tuple[Target, ...] = ()
    less: bool = False
    """Lower is better."""
    compared: bool = True
    """The run fails if it is worse than that of the released version."""
    phase: Phase | None = None
    """The part whose processor time the table shows."""


@dataclass(frozen=True)
class Load:
    """One run of mqttload; ``count`` is -n, smaller for brokers that would take minutes."""

    name: str
    group: str
    arguments: str
    count: int
    metrics: tuple[Metric, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of foldmq, but not of its release, which may not have these settings."""

    def command(self, broker: str, *, quick: bool) -> list[str]:
        count = self.counts.get(broker, self.count)
        least = 1000 if self.count > 1000 else 100
        return [*self.arguments.split(), "-n", str(max(least, count // 10) if quick else count)]


def value(key: str) -> Callable[[Result], float | None]:
    """Return a function that reads a field of a result."""
    return lambda result: result.get(key)
