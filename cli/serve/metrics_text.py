"""The metrics of a status in Prometheus' text format, version 0.0.4.

A counter's name ends in ``_total`` already; a histogram has cumulative buckets, count and sum.
"""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from actors.inspection.status_metrics import METRICS
from eventstore.metric_types import Kind, Labels, Metric, Status

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED_VALUE: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_PAGE_SIZE: Final = resource.getpagesize()


def metric_texts(status: Status) -> Iterator[str]:
    """Yield the metrics of a status one by one, without those that are unknown yet."""
    for metric in METRICS:
        reading = metric.reading(status)
        if reading is not None:
            yield _text(metric.name, metric.kind, metric.help, _samples(metric, reading))


def process_texts() -> list[str]:
    """Return the standard metrics of a process: memory, processor time, open files.

    Reads files and lists all open ones: not for the event loop. Empty without ``/proc``.
    """
    own = Path("/proc/self")
    try:
        fields = (own / "stat").read_bytes().rpartition(b")")[2].split()
        booted = _line(Path("/proc/stat"), b"btime ")[1]
        open_files = sum(1 for _ in (own / "fd").iterdir())
        most_files = _line(own / "limits", b"Max open files ")[3]
    except (OSError, StopIteration):
        return []
    ticks = os.sysconf("SC_CLK_TCK")
    rows: tuple[tuple[str, Kind, str, float], ...] = (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", int(fields[20])),
        (
            "resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            int(fields[21]) * _PAGE_SIZE,
        ),
        (
            "start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            int(fields[19]) / ticks + float(booted),
        ),
        (
            "cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            (int(fields[11]) + int(fields[12])) / ticks,
        ),
        ("open_fds", "gauge", "Number of open file descriptors.", open_files),
        ("max_fds", "gauge", "Maximum number of open file descriptors.", _limit(most_files)),
    )
    return [
        _text(f"process_{name}", kind, meaning, [(f"process_{name}", number)])
        for name, kind, meaning, number in rows
    ]


def _line(file: Path, start: bytes) -> list[bytes]:
    """Return the words of the first line that begins so."""
    with file.open("rb") as lines:
        return next(line for line in lines if line.startswith(start)).split()


def _limit(text: bytes) -> float:
    return float("inf") if text == b"unlimited" else float(text)


def _text(name: str, kind: Kind, meaning: str, samples: Iterable[tuple[str, float]]) -> str:
    lines = [
        f"# HELP {name} {meaning.translate(_ESCAPED)}",
        f"# TYPE {name} {kind}",
        *(f"{sample} {_number(number)}" for sample, number in samples),
        "",
    ]
    return "\n".join(lines)


def _samples(metric: Metric, reading: Any) -> Iterator[tuple[str, float]]:
    """Yield name with labels, and value."""
    if metric.kind == "histogram":
        yield from _histogram(metric.name, reading)
    elif metric.labels:
        for values, number in reading.items():
            yield metric.name + _labels(metric.labels, values), number
    else:
        yield metric.name, reading


def _histogram(name: str, reading: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the values up to each upper bound, all values, and their sum."""
    bounds = [*(repr(float(bound)) for bound in reading["bounds"]), "+Inf"]
    counts = [*accumulate(reading["counts"])]
    for bound, count in zip(bounds, counts, strict=True):
        yield f'{name}_bucket{{le="{bound}"}}', count
    yield f"{name}_count", counts[-1]
    yield f"{name}_sum", reading["sum"]


def _labels(names: Labels, values: Labels) -> str:
    pairs = zip(names, values, strict=True)
    return (
        "{" + ",".join(f'{name}="{text.translate(_ESCAPED_VALUE)}"' for name, text in pairs) + "}"
    )


def _number(number: float) -> str:
    """Return a number as Go parses it."""
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    return repr(float(number))
