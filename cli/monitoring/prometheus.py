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

from cli.monitoring.metrics import METRICS, Meter, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def families(status: Status) -> Iterator[Metric]:
    """Yield the metrics of a status one by one, without those that are unknown yet."""
    for meter in METRICS:
        reading = meter.read(status)
        if reading is not None:
            yield _family(meter, reading)


def process_families() -> list[Metric]:
    """Return the standard metrics of a process: memory, processor time, open files.

    Reads files and lists all open ones: not for the event loop.
    """
    return list(ProcessCollector(registry=None).collect())


def text(family: Metric) -> bytes:
    """Return one metric in Prometheus' text format."""
    return generate_latest(_Alone(family))


class _Alone(Collector):
    """A registry for prometheus_client with one metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        return (self._family,)


def _family(meter: Meter, reading: Any) -> Metric:
    if meter.kind == "histogram":
        return HistogramMetricFamily(
            meter.name, meter.help, buckets=_buckets(reading), sum_value=reading["sum"]
        )
    make = CounterMetricFamily if meter.kind == "counter" else GaugeMetricFamily
    if not meter.labels:
        return make(meter.name, meter.help, value=reading)
    family = make(meter.name, meter.help, labels=meter.labels)
    for values, number in reading.items():
        family.add_metric(values, number)
    return family


def _buckets(histogram: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return upper bounds with the number of values up to each."""
    bounds = [*(repr(float(bound)) for bound in histogram["bounds"]), "+Inf"]
    return list(zip(bounds, accumulate(histogram["counts"]), strict=True))
