"""The broker's status in the text format of Prometheus."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from actors.inspection.status_metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from eventstore import metric_types
    from eventstore.metric_types import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def families(status: Status) -> Iterator[Metric]:
    """Yield the metrics of a status one by one, without those that are unknown yet."""
    for metric in METRICS:
        reading = metric.reading(status)
        if reading is not None:
            yield _family(metric, reading)


def process_families() -> list[Metric]:
    """Return the standard metrics of a process: memory, processor time, open files.

    Reads files and lists all open ones: not for the event loop.
    """
    return list(ProcessCollector(registry=None).collect())


def text(family: Metric) -> bytes:
    """Return one metric in Prometheus' text format."""
    return generate_latest(_SingleMetric(family))


class _SingleMetric(Collector):
    """A registry for prometheus_client with one metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        return (self._family,)


def _family(metric: metric_types.Metric, reading: Any) -> Metric:
    if metric.kind == "histogram":
        return HistogramMetricFamily(
            metric.name, metric.help, buckets=_buckets(reading), sum_value=reading["sum"]
        )
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    if not metric.labels:
        return make(metric.name, metric.help, value=reading)
    family = make(metric.name, metric.help, labels=metric.labels)
    for values, number in reading.items():
        family.add_metric(values, number)
    return family


def _buckets(histogram: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return upper bounds with the number of values up to each."""
    bounds = [*(repr(float(bound)) for bound in histogram["bounds"]), "+Inf"]
    return list(zip(bounds, accumulate(histogram["counts"]), strict=True))
