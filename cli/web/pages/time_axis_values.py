"""Parameters that a page passes to the template of a time axis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from cli.logs.point_resolution import clock_notes
from cli.web.pages.render import url
from cli.web.pages.responses import asked, is_fragment
from cli.web.timeline_marks import MARK_LABELS
from eventstore.errors import UsageError
from eventstore.format.positions import MAX_INDEX, Position, format_position, index_of, sequence_of
from eventstore.reading.log_points import LogPoint, time_of
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from projections.past.replay import AsOf


def axis_about(
    path: str, fields: Mapping[str, str], bars: str, axis: str = "axis"
) -> dict[str, Any]:
    """Return the addresses of a page with a time axis, and its labels.

    ``fields`` are the parameters of the page, ``bars`` describes the counts of its bars.
    """
    return {
        "page": url(path, fields),
        "axis": url(f"{path}/{axis}", fields),
        "past": url(f"{path}/past", fields, part="live"),
        "diff": url(f"{path}/diff", fields, part="live"),
        "action": path,
        "fields": fields,
        "lanes": MARK_LABELS,
        "bars": bars,
    }


def moments_compared(request: web.Request) -> tuple[str, str] | None:
    """Return the moments of the two pins, if their difference is requested."""
    a, b = asked(request, "a"), asked(request, "b")
    if a is None or b is None or (is_fragment(request) and not request.path.endswith("/diff")):
        return None
    return a, b


def pins_compared(request: web.Request, difference: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parameters of a request for the template of a time axis.

    Raises UsageError if the difference is requested without its moments.
    """
    if difference is None and request.path.endswith("/diff"):
        raise UsageError("the URL lacks a or b, the moments to compare")
    return {**{key: asked(request, key) for key in ("at", "a", "b")}, "diff": difference}


def place_text(at: Position | None) -> str | None:
    """Return a position of a request; the last position of a record is the whole record."""
    if at is None:
        return None
    return str(sequence_of(at)) if index_of(at) == MAX_INDEX else format_position(at)


async def moment_of(source: LogSource, point: LogPoint) -> AsOf:
    """Return a point of the log with its time."""
    if not point.sequence:
        return AsOf(point, 0)
    record = (await source.some([point.sequence]))[0]
    return AsOf(point, record.time_ms, record.jumps.total_ms)


async def notes_on_clocks(
    sources: Mapping[str, LogSource], *moments: PointSpec | None
) -> list[str]:
    """Return what must be known about times in logs whose clock jumped."""
    return [
        f"log {log}: {note}" if len(sources) > 1 else note
        for log, source in sources.items()
        for note in await clock_notes(source, moments)
    ]


def check_times(*moments: PointSpec | None) -> None:
    """Raise UsageError if a moment is a position, which is one of a single log."""
    for moment in moments:
        if moment is not None and moment.position is not None:
            raise UsageError(
                f"{moment.text} is a position, and each log has its own: choose a log, or give a "
                "time"
            )


@dataclass(frozen=True, slots=True)
class SharedMoment:
    """A moment of several logs, or of one: the point of each."""

    points: Mapping[str, AsOf]
    """By the names of the logs."""

    @property
    def record_ms(self) -> int:
        """The time of the last record until then; 0: there is none."""
        return max(as_of.record_ms for as_of in self.points.values())

    @property
    def known(self) -> bool:
        """Whether there is a record until then."""
        return any(as_of.point.sequence for as_of in self.points.values())

    @property
    def place(self) -> str:
        """The positions, or records, of the logs."""
        several = len(self.points) > 1
        return ", ".join(
            f"{as_of.place} of {log.rpartition('-')[2]}" if several else as_of.place
            for log, as_of in self.points.items()
            if as_of.point.sequence
        )


def jumped_between(first: SharedMoment, second: SharedMoment) -> bool:
    """Return whether the clock of some log jumped between two moments."""
    return any(
        first.points[log].jumped_ms != as_of.jumped_ms for log, as_of in second.points.items()
    )


async def shared_moment(
    sources: Mapping[str, LogSource], points: Mapping[str, LogPoint]
) -> SharedMoment:
    """Return the points of some logs with their times."""
    return SharedMoment({log: await moment_of(sources[log], points[log]) for log in sources})


async def neighbours(
    sources: Mapping[str, LogSource], moment: SharedMoment
) -> tuple[int | None, int | None]:
    """Return the times of the record before a moment and of the one after it, if there are any.

    Records of several logs are in the order of their times.
    """
    before: list[int] = []
    after: list[int] = []
    for log, as_of in moment.points.items():
        source, sequence = sources[log], as_of.point.sequence
        while sequence >= source.begin:
            time_ms = await time_of(source, sequence)
            if time_ms < moment.record_ms:
                before.append(time_ms)
                break
            sequence -= 1
        if as_of.point.sequence < source.last:
            after.append(await time_of(source, max(source.begin, as_of.point.sequence + 1)))
    return max(before, default=None), min(after, default=None)
