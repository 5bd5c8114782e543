"""Answers about the messages of the past, and about the times without messages."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from pydantic import Field

from cli.logs.logs import Logs
from cli.logs.topic_flags import check_filter
from cli.web.api.live_answers import numbered
from cli.web.api.operation import Call, Item, StreamMark, open_sources, positions_text, unsure_mark
from cli.web.api.parameters import ListParams, Name, Params
from cli.web.api.past_answers import Places, gap, later_items, place_text, places_after
from eventstore.errors import CutOff, NotFound, UsageError
from eventstore.format.positions import (
    Position,
    index_of,
    parse_position,
    position,
    sequence_of,
)
from eventstore.reading.log_points import LogPoint
from eventstore.reading.moments import ALL, LAST, NEW, BadMoment, Moment, ends_before, parse_moment
from projections.past.lost_records import lost_in
from projections.past.message_history import (
    HistoryRange,
    MessageHistory,
    history_range,
    last_messages,
)
from projections.past.silences import gaps, silent_clients, topic_counts
from projections.views.publication_view import PublicationView, publication_object
from projections.views.silence_view import gap_object, silence_object, topic_object

_View = TypeVar("_View")
_MOST_SILENCES: Final = 1000
_NEWEST: Final = 100
"""Messages that are read at a time, the newest first."""
_BEGINNINGS: Final = frozenset({ALL, NEW, LAST})

Beginning = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        examples=["10m", "12.3", "all"],
        description="Begin here: all, new or last; after a position such as 12.3, or positions of "
        "several logs such as p0:12.3,p1:7; an age such as 10m; a time in UTC.",
    ),
]
Ending = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        examples=["2026-11-20T12:49:10Z"],
        description="End here: a position, an age, a time in UTC, or now.",
    ),
]
TopicFilter = Annotated[Name, Field(description="A topic filter.", examples=["hall/#"])]


class RangeParams(ListParams):
    """The parameters of a list about a part of the log."""

    filter: TopicFilter = "#"
    from_: Annotated[Beginning | None, Field(alias="from")] = None
    to: Ending | None = None


class HistoryParams(RangeParams):
    """The parameters of ``history``."""

    order: Annotated[
        Literal["oldest", "newest"], Field(description="Which messages come first.")
    ] = "oldest"
    follow: Annotated[
        bool, Field(description="Go on with what is published later; in streams only.")
    ] = False


def _moment(name: str, text: str | None, words: frozenset[str] = frozenset()) -> Moment | None:
    if text is None:
        return None
    now_ms = round(time.time() * 1000)
    if text == "now" and not words:
        return Moment(time_ms=now_ms)
    try:
        return parse_moment(text, now_ms, words=words)
    except BadMoment as error:
        raise UsageError(f"{name}: {error}") from None


async def _part(logs: Logs, params: RangeParams) -> HistoryRange:
    """Return the part of the logs; raises UsageError and CutOff."""
    check_filter(params.filter)
    start, end = _moment("from", params.from_, _BEGINNINGS), _moment("to", params.to)
    if start is not None and end is not None and ends_before(start, end):
        raise UsageError("from: is later than to")
    return await history_range(logs, start, end)


async def history(call: Call, params: HistoryParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the messages on matching topics, in the order in which they took effect."""
    newest = params.order == "newest"
    if params.follow and (params.to is not None or newest):
        raise UsageError("follow: cannot be combined with to, or with the newest first")
    async with open_sources(call, params.log) as logs:
        begun = call.start is not None and params.from_ == NEW  # what is new depends on the place
        part = await _part(logs, params.model_copy(update={"from_": ALL}) if begun else params)
        reader = MessageHistory(logs, params.filter)
        async for mark in _missing(logs, part, () if call.start is not None else part.cut):
            yield mark
        if newest:
            async for item in _newest(call, logs, reader, part, params.limit):
                yield item
            return
        start, lasts = call.start, None
        if params.from_ == LAST:
            lasts = _LastPlace.of(start) if start else _LastPlace("", _end_place(part))
        if lasts is not None:
            start = lasts.end
            for item in await _last_items(call, params, logs, part, lasts):
                yield item
        if start is not None:
            part, cut_logs = _after(logs, part, start)
            for log in cut_logs:
                yield gap(log, logs[log].begin)
        shown = _MessageItems(call, part)
        if lasts is None or params.follow:
            async with contextlib.aclosing(reader.between(part)) as views:
                async for view in views:
                    yield await shown.item(view)
        if params.follow:
            through = positions_text(_lasts(logs))
            yield StreamMark("live", {"through": through}, shown.place)
            later = later_items(reader.new, shown.item)
            async with contextlib.aclosing(later) as items:
                async for entry in items:
                    yield entry


async def _missing(
    logs: Logs, part: HistoryRange, cut: Sequence[str] = ()
) -> AsyncIterator[StreamMark]:
    """Yield what a part lacks: the beginning of logs that were cut, and records that were lost."""
    for log in cut:
        yield gap(log, logs[log].begin)
    for mark in unsure_mark(await lost_in(logs, part.starts, part.ends)):
        yield mark


class _LastPlace(NamedTuple):
    """Where a list of the last messages of topics continues."""

    topic: str
    """The topic of the last item; empty: none."""
    end: str
    """The positions as of which the messages are the last ones."""

    @classmethod
    def of(cls, place: str) -> "_LastPlace | None":
        """Return the place that a text names; None if it is one behind these messages."""
        word, _, remainder = place.partition(",")
        topic, _, end = remainder.partition(",")
        return cls(unquote(topic), end) if word == LAST else None

    def __str__(self) -> str:
        return f"{LAST},{quote(self.topic, safe='')},{self.end}"


async def _last_items(
    call: Call, params: HistoryParams, logs: Logs, part: HistoryRange, lasts: _LastPlace
) -> list[Item]:
    """Return the last message of each topic behind a place."""
    ends = {log: at + 1 for log, at in _positions(lasts.end, logs).items()}
    return [
        Item(
            publication_object(view, payload=call.payloads),
            str(lasts._replace(topic=view.topic)),
        )
        for view in await last_messages(logs, params.filter, part.before(ends))
        if not lasts.topic or view.topic > lasts.topic
    ]


def _positions(place: str, logs: Logs) -> dict[str, Position]:
    """Return the positions of a place; raises UsageError."""
    points = places_after(place, logs, _lasts(logs))
    return {log: position(point.sequence, point.index) - 1 for log, point in points.items()}


def _after(logs: Logs, part: HistoryRange, place: str) -> tuple[HistoryRange, list[str]]:
    """Return what comes after a place, and the logs that no longer have its beginning."""
    after = _positions(place, logs)
    cut_logs = [log for log, at in after.items() if max(1, sequence_of(at + 1)) < logs[log].begin]
    return part.after(after), cut_logs


def _lasts(logs: Logs) -> dict[str, int]:
    return {log: source.last for log, source in logs.items()}


def _end_place(part: HistoryRange) -> str:
    return place_text({log: position(end.sequence, end.index) for log, end in part.ends.items()})


async def _newest(
    call: Call, logs: Logs, reader: MessageHistory, part: HistoryRange, limit: int
) -> AsyncIterator[Item]:
    """Yield messages, the newest first; they are read some at a time."""
    count = min(limit, _NEWEST) + 1
    places: dict[str, Position] = {}
    if call.start is not None:
        # The place is that of the oldest message given of each log: what is before it is left.
        places = _positions(call.start, logs)
        part = part.before(places)
    else:
        places = {log: position(end.sequence, end.index) + 1 for log, end in part.ends.items()}
    while True:
        views = await reader.latest(count, part)
        for view in reversed(views):
            places[view.log] = view.position
            yield Item(publication_object(view, payload=call.payloads), place_text(places))
        if len(views) < count:
            return
        part = part.before(places)


class _MessageItems(Places):
    """Makes items of messages; the place of each is that of the last message of every log."""

    def __init__(self, call: Call, part: HistoryRange) -> None:
        super().__init__(part.starts)
        self._call = call

    async def item(self, view: PublicationView) -> Item:
        """Return a message as an item."""
        self.by_log[view.log] = view.position
        value = publication_object(view, payload=self._call.payloads)
        return Item(value, self.place)


class MessageParams(Params):
    """The parameters of ``message``."""

    position: Annotated[
        str,
        Field(
            pattern=r"^[0-9]{1,13}\.[0-9]{1,7}$",
            examples=["12.3"],
            description="Where the message took effect, at QoS 2 with its PUBREL.",
        ),
    ]


async def message(call: Call, params: MessageParams) -> dict[str, Any]:
    """Return the message that took effect at a position; raises NotFound if none did."""
    try:
        at = parse_position(params.position)
    except ValueError as error:
        raise UsageError(f"position: {error}") from None
    async with open_sources(call, params.log) as logs:
        if logs.several:
            raise UsageError(f"a position is one of a log: give log, one of {', '.join(logs)}")
        source = logs[""]
        if sequence_of(at) < source.begin:
            raise CutOff(f"position {params.position} was deleted: {source.beginning()}")
        place, lost = {"": LogPoint(sequence_of(at), index_of(at))}, []
        if sequence_of(at) <= source.last:
            reader = MessageHistory(logs, "#")
            async with contextlib.aclosing(reader.between(HistoryRange(place, place))) as views:
                async for view in views:
                    return publication_object(view, payload=call.payloads)
            lost = await lost_in(logs, place, place)
    raise NotFound("; ".join([f"no message took effect at position {params.position}", *lost]))


class LastParams(ListParams):
    """The parameters of ``last``."""

    filter: TopicFilter = "#"
    to: Ending | None = None


async def last(call: Call, params: LastParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the last message on each topic."""
    async with open_sources(call, params.log) as logs:
        check_filter(params.filter)
        part = await history_range(logs, None, _moment("to", params.to))
        async for mark in _missing(logs, part):
            yield mark
        views = await last_messages(logs, params.filter, part)
    rows = (publication_object(view, payload=call.payloads) for view in views)
    for item in numbered(call, rows):
        yield item


class TopicsParams(RangeParams):
    """The parameters of ``topics``."""

    levels: Annotated[
        int, Field(ge=0, le=64, description="Topic levels to group by; 0: each topic.")
    ] = 0


async def topics(call: Call, params: TopicsParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the topics of messages, with counts."""
    async with open_sources(call, params.log) as logs:
        part = await _part(logs, params)
        async for mark in _missing(logs, part):
            yield mark
        views = await topic_counts(logs, params.filter, part, params.levels)
    for item in numbered(call, map(topic_object, views)):
        yield item


async def _absences(
    call: Call,
    params: RangeParams,
    find: Callable[..., Awaitable[Sequence[_View]]],
    as_object: Callable[[_View], dict[str, Any]],
) -> AsyncIterator[Item | StreamMark]:
    async with open_sources(call, params.log) as logs:
        part, now_ms = await _part(logs, params), round(time.time() * 1000)
        async for mark in _missing(logs, part):
            yield mark
        views = await find(logs, params.filter, part, now_ms, _MOST_SILENCES)
    for item in numbered(call, map(as_object, views)):
        yield item


def silences(call: Call, params: RangeParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the clients that publish less often than they used to, the longest silence first."""
    return _absences(call, params, silent_clients, silence_object)


def holes(call: Call, params: RangeParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the holes in the messages of topics, with their causes."""
    return _absences(call, params, gaps, gap_object)
