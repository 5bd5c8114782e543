"""The loads, what is read from each, and what foldmq has to reach."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Median results of one metric: broker name to value, None where a run failed.
Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Target:
    """What foldmq must reach: an absolute value, or so many times another broker's value."""

    factor: float
    of: str | None = None
    at_most: bool = False

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.factor:g} x {self.of}" if self.of else f"{sign} {self.factor:,.10g}"

    def met(self, values: Values) -> bool | None:
        """Tell whether it is met; None when the other broker gave nothing to compare with."""
        other = 1.0 if self.of is None else values.get(self.of)
        if other is None:
            return None
        own = values.get("foldmq")
        compare = operator.le if self.at_most else operator.ge
        return own is not None and compare(own, self.factor * other)


@dataclass(frozen=True)
class Metric:
    label: str
    unit: str
    read: Callable[[dict[str, Any]], float | None]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Load:
    """One run of mqttload; ``count`` is -n, smaller for brokers that would take minutes."""

    name: str
    arguments: str
    count: int
    metrics: tuple[Metric, ...]
    counts: Mapping[str, int] = field(default_factory=dict)

    def command(self, broker: str, *, quick: bool) -> list[str]:
        count = self.counts.get(broker, self.count)
        return [*self.arguments.split(), "-n", str(max(1000, count // 10) if quick else count)]


def _rate(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda result: result.get(key)


def _milliseconds(percentile: str) -> Callable[[dict[str, Any]], float | None]:
    def read(result: dict[str, Any]) -> float | None:
        histogram = result.get("latency_us")
        return None if histogram is None else histogram[percentile] / 1000

    return read


def _received(*targets: Target) -> tuple[Metric, ...]:
    return (Metric("delivered", "/s", _rate("recv_per_s"), targets),)


_4X4 = "pubsub -p 4 -s 4 -T 300"

LOADS = [
    Load(
        "qos0",
        f"{_4X4} -q 0 -W 10000",
        8_000_000,
        _received(Target(4, "mosquitto")),
        {"mosquitto": 600_000},
    ),
    Load(
        "qos1",
        f"{_4X4} -q 1 -w 200",
        1_000_000,
        _received(Target(2, "mosquitto"), Target(30, "nats")),
        {"mosquitto": 300_000, "nats": 20_000},
    ),
    Load(
        "qos2",
        f"{_4X4} -q 2 -w 200",
        300_000,
        _received(Target(1.5, "mosquitto")),
        {"mosquitto": 120_000, "nats": 8_000},
    ),
    Load(
        "fan0",
        "pubsub -f -p 1 -s 50 -q 0 -W 10000 -T 300",
        1_000_000,
        _received(Target(2, "mosquitto")),
        {"mosquitto": 40_000, "nats": 100_000},
    ),
    Load(
        "fan1",
        "pubsub -f -p 1 -s 50 -q 1 -w 200 -T 300",
        20_000,
        _received(Target(2, "mosquitto")),
        {"mosquitto": 10_000, "nats": 3_000},
    ),
    Load(
        "latency",
        "pubsub -q 1 -r 5000 -T 120",
        50_000,
        (
            Metric("p50", "ms", _milliseconds("p50"), (Target(1.5, at_most=True),)),
            Metric("p99", "ms", _milliseconds("p99"), (Target(6, at_most=True),)),
        ),
    ),
    Load(
        "conn",
        "conn -q 1 --sub --hold 5 -T 120",
        10_000,
        (
            Metric("accepted", "", _rate("connected"), (Target(10_000),)),
            Metric("connected", "/s", _rate("conn_per_s"), (Target(4_000),)),
            Metric("memory", "KiB each", _rate("kib_per_conn"), (Target(12, at_most=True),)),
        ),
    ),
    Load(
        "offline",
        "offline -q 1 -p 4 -w 200 -s 10 -T 300",
        100_000,
        (
            Metric("queued", "/s", _rate("publish_per_s")),
            Metric("drained", "/s", _rate("drain_per_s"), (Target(100_000),)),
        ),
        {"nats": 20_000},
    ),
    Load(
        "retain",
        "retain -q 1 -p 4 -w 200 -s 5 -T 300",
        50_000,
        (
            Metric("set", "/s", _rate("set_per_s"), (Target(50_000),)),
            Metric("replayed", "/s", _rate("replay_per_s"), (Target(200_000),)),
        ),
        {"nats": 10_000},
    ),
]
