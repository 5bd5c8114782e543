"""A time axis for the page: the visible span of time, its ticks, bars and lanes of marks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cli.web.timeline_marks import MARK_LABELS, Mark
from eventstore.display import iso
from eventstore.errors import UsageError

WIDTH: Final = 1000
"""Width of the axis in units of the drawing."""
BUCKETS: Final = 250
"""Number of buckets of the axis; the marks in one are drawn as one."""
SHORTEST_MS: Final = 1_000
_MAX_TICKS: Final = 7
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 30, 90, 365)),
)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The visible span of time, Unix time in milliseconds."""

    begin_ms: int
    end_ms: int

    @property
    def span_ms(self) -> int:
        """Its length."""
        return self.end_ms - self.begin_ms

    def place(self, time_ms: float) -> float:
        """Return the place of a time on the axis."""
        return round(WIDTH * (time_ms - self.begin_ms) / self.span_ms, 1)

    def edges(self, count: int) -> list[int]:
        """Return the times that divide it into equal parts."""
        return [self.begin_ms + self.span_ms * number // count for number in range(count + 1)]

    def holds(self, time_ms: int) -> bool:
        """Return whether it contains a time."""
        return self.begin_ms <= time_ms <= self.end_ms


def window_within(whole: TimeWindow, begin_ms: int | None, end_ms: int | None) -> TimeWindow:
    """Return the part of ``whole`` between two times; None: from its beginning, to its end.

    Raises UsageError if the first time is not before the second one.
    """
    begin = whole.begin_ms if begin_ms is None else begin_ms
    end = whole.end_ms if end_ms is None else end_ms
    if begin >= end:
        raise UsageError("from must be before to")
    begin = max(whole.begin_ms, min(begin, whole.end_ms - SHORTEST_MS))
    return TimeWindow(begin, max(begin + SHORTEST_MS, min(end, whole.end_ms)))


def offset_ms(time_ms: int) -> int:
    """Return the offset of local time from UTC at a time."""
    shift = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().utcoffset()
    return 0 if shift is None else round(shift.total_seconds() * 1000)


def ticks(window: TimeWindow) -> list[tuple[float, str]]:
    """Return round clock times on the axis: their places and labels, in the server's zone."""
    step = next((span for span in _STEPS if window.span_ms <= span * _MAX_TICKS), _STEPS[-1])
    shift = offset_ms(window.begin_ms)
    first = -(-(window.begin_ms + shift) // step) * step
    return [
        (window.place(local - shift), _label(local, step))
        for local in range(first, window.end_ms + shift + 1, step)
    ]


def _label(local_ms: int, step: int) -> str:
    moment = datetime.fromtimestamp(local_ms / 1000, UTC)
    if local_ms % _DAY == 0:
        return moment.strftime("%m-%d")
    return moment.strftime("%H:%M:%S" if step < _MINUTE else "%H:%M")


def mark_row(window: TimeWindow, marks: Iterable[Mark]) -> list[list[Any]]:
    """Return the marks in a window as [place, count, record, time]; close ones as one."""
    buckets: dict[int, list[Any]] = {}
    for mark in marks:
        if not window.holds(mark.time_ms):
            continue
        bucket = BUCKETS * (mark.time_ms - window.begin_ms) // window.span_ms
        held = buckets.get(bucket)
        if held is None:
            place = window.place(mark.time_ms)
            buckets[bucket] = [place, mark.number, mark.record, mark.time_ms]
        else:
            held[1] += mark.number
    return [buckets[bucket] for bucket in sorted(buckets)]


def axis(
    whole: TimeWindow,
    window: TimeWindow,
    marks: Mapping[str, Iterable[Mark]],
    *,
    by_time: bool = False,
) -> dict[str, Any]:
    """Return the axis with its lanes as JSON.

    Marks lead to their records, or ``by_time`` to their times: those of several logs.
    """
    lanes = []
    for kind, label in MARK_LABELS.items():
        drawn = mark_row(window, marks.get(kind, ()))
        if by_time:
            drawn = [[place, count, iso(ms), ms] for place, count, _, ms in drawn]
        total = sum(round(mark[1]) for mark in drawn)
        lanes.append({"kind": kind, "label": label, "total": total, "marks": drawn})
    return {
        "first": whole.begin_ms,
        "last": whole.end_ms,
        "from": window.begin_ms,
        "to": window.end_ms,
        "offset": offset_ms(window.end_ms),
        "ticks": ticks(window),
        "lanes": lanes,
    }
