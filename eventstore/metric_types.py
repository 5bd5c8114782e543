"""Metrics, declared where they are counted: name, kind, meaning, and path in the status.

A counter of a dataclass is one field::

    expired: int = counted("foldmq_sessions_expired_total", "Expired sessions.", "sessions.expired")

It appears in the status of the broker, in the metrics for Prometheus and in their documentation.
No label contains names chosen by clients.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, Literal, NamedTuple

Status = Mapping[str, Any]
Labels = tuple[str, ...]
Numbers = dict[Labels, float]
"""Numbers by label values."""
Kind = Literal["counter", "gauge", "histogram"]

_METRIC = "metric"
_DIGITS = 6


def unchanged(value: Any) -> Any:
    """Return the value of the status unchanged."""
    return value


class Metric(NamedTuple):
    """One metric."""

    name: str
    kind: Kind
    help: str
    path: str
    """Keys of the status, joined by dots; empty: the whole status."""
    labels: Labels = ()
    read: Callable[[Any], Any] = unchanged
    """Returns a number, :data:`Numbers` or a histogram from the value in the status, or None."""

    def reading(self, status: Status) -> Any:
        """Return the metric's value in a status; None if it is not known."""
        value: Any = status
        for step in self.path.split(".") if self.path else ():
            if value is None:
                return None
            value = value.get(step)
        return None if value is None else self.read(value)


def counted(
    name: str,
    meaning: str,
    path: str,
    *,
    kind: Kind = "counter",
    start: Callable[[], Any] = int,
    labels: Labels = (),
    read: Callable[[Any], Any] = unchanged,
) -> Any:
    """Return a dataclass field that is a metric; ``start`` returns its first value."""
    metric = Metric(name, kind, meaning, path, labels, read)
    return field(default_factory=start, metadata={_METRIC: metric})


def metrics_of(counters: type) -> tuple[Metric, ...]:
    """Return the metrics declared by the fields of a dataclass."""
    return tuple(
        counter.metadata[_METRIC] for counter in fields(counters) if _METRIC in counter.metadata
    )


def put_counters(status: dict[str, Any], counters: Any) -> None:
    """Put the values of a dataclass's metrics into a status."""
    for counter in fields(counters):
        metric = counter.metadata.get(_METRIC)
        if metric is not None:
            set_path(status, metric.path, _copied(getattr(counters, counter.name)))


def set_path(status: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path in a status."""
    *steps, last_step = path.split(".")
    for step in steps:
        status = status.setdefault(step, {})
    status[last_step] = value


def by_qos(counts: list[int]) -> Numbers:
    """Return counts by QoS."""
    return {(str(qos),): count for qos, count in enumerate(counts)}


def by_reason(*shown: str) -> Callable[[Mapping[str, float]], Numbers]:
    """Return a function that returns numbers by reason, including ``shown`` reasons with 0."""

    def count(counts: Mapping[str, float]) -> Numbers:
        return {(why,): number for why, number in {**dict.fromkeys(shown, 0), **counts}.items()}

    return count


def _copied(value: Any) -> Any:
    if isinstance(value, Counter):
        return dict(value)
    if isinstance(value, list):
        return [*value]
    if isinstance(value, float):
        return round(value, _DIGITS)
    as_object = getattr(value, "as_object", None)
    return value if as_object is None else as_object()
