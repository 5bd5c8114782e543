"""Metrics of a broker in the JSON encoding of OTLP."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from eventstore.metric_types import Metric
from outbox.sinks.span_json import attribute

_CUMULATIVE: Final = 2
_MS: Final = 1_000_000


def metric_objects(
    metrics: Iterable[Metric], status: Mapping[str, Any], started_ms: int, now_ms: int
) -> list[dict[str, Any]]:
    """Return the metrics that are known in a status; times are Unix time in milliseconds."""
    times = {"startTimeUnixNano": str(started_ms * _MS), "timeUnixNano": str(now_ms * _MS)}
    objects = []
    for metric in metrics:
        reading = metric.reading(status)
        if reading is not None:
            objects.append(
                {
                    # A collector that writes them for Prometheus appends the suffix again.
                    "name": metric.name.removesuffix("_total"),
                    "description": metric.help,
                    **_data(metric, reading, times),
                }
            )
    return objects


def _data(metric: Metric, reading: Any, times: dict[str, str]) -> dict[str, Any]:
    if metric.kind == "histogram":
        counts = reading["counts"]
        point = {
            **times,
            "count": str(sum(counts)),
            "sum": reading["sum"],
            "bucketCounts": [str(count) for count in counts],
            "explicitBounds": reading["bounds"],
        }
        return {"histogram": {"dataPoints": [point], "aggregationTemporality": _CUMULATIVE}}
    numbers = reading if metric.labels else {(): reading}
    points = [
        {
            **times,
            "asDouble": float(number),
            "attributes": [
                attribute(*pair) for pair in zip(metric.labels, map(str, values), strict=True)
            ],
        }
        for values, number in numbers.items()
    ]
    if metric.kind == "gauge":
        return {"gauge": {"dataPoints": points}}
    total = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
    return {"sum": {"dataPoints": points, **total}}
