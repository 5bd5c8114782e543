"""Answers about the past, from the logs, as the commands that read them give them."""

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from cli.commands.diff import check_session, states_object
from cli.commands.log_events import Selection, entry_object, event_types, incomplete_logs
from cli.commands.replay import (
    retained_objects,
    session_at_object,
    session_view_at,
    state_objects,
    unsure_lines,
)
from cli.commands.why import find_messages, log_story_object, position_of_message
from cli.logs.point_resolution import cut_off, end_at, is_between, point_at, points_at, start_at
from cli.logs.topic_flags import check_filter, check_topic
from cli.web.api.live_answers import (
    RetainedParams,
    SessionParams,
    SubscriptionsParams,
    live_retained,
    live_session,
    live_subscriptions,
    numbered,
    with_unsure,
)
from cli.web.api.operation import (
    Call,
    Item,
    StreamMark,
    open_sources,
    positions_text,
    unsure_mark,
)
from cli.web.api.parameters import ListParams, Moment, Name, moment
from cli.web.api.problem_types import Forbidden
from eventstore.display import PAYLOAD_FIELDS
from eventstore.errors import UsageError, naming_log
from eventstore.format.event_parsing import entries as count_entries
from eventstore.format.positions import (
    Position,
    format_position,
    index_of,
    parse_position,
    position,
    sequence_of,
)
from eventstore.reading.log_points import LogPoint
from eventstore.reading.progress import silent
from projections.past.event_reader import EventFilter, refs_of
from projections.past.joined_state import JoinedState, changes_in_logs, fold_logs
from projections.past.log_stories import WantedMessages
from projections.past.lost_records import lost_in
from projections.past.merged_events import LogEntry, MergedReader
from projections.views.state_view import reader_object, readers_of

_POLL_SECONDS: Final = 0.2
"""Seconds between two looks at a log that is followed."""

_Entry = TypeVar("_Entry")


async def session(call: Call, params: SessionParams) -> dict[str, Any]:
    """Return a session now, or as of a moment."""
    if params.at is None:
        return await live_session(call, params)
    log = await call.link.log_of(params.id, params.log)
    async with open_sources(call, log) as logs:
        source = logs[""]
        point = await point_at(source, moment(params.at))
        return session_at_object(*await session_view_at(source, params.id, point, silent))


async def retained(call: Call, params: RetainedParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the retained messages on matching topics, now or as of a moment."""
    if params.at is None:
        async for item in live_retained(call, params):
            yield item
        return
    check_filter(params.filter)
    joined = await _state_at(call, params.log, params.at)
    rows = retained_objects(joined, params.filter)
    for mark in unsure_mark(unsure_lines(joined)):
        yield mark
    for item in numbered(call, rows if call.payloads else map(_without_payload, rows)):
        yield item


async def subscriptions(call: Call, params: SubscriptionsParams) -> dict[str, Any]:
    """Return what would happen to a message on a topic, or which subscriptions matched it once."""
    if params.at is None:
        return await live_subscriptions(call, params)
    if params.size is not None:
        raise UsageError("size: cannot be combined with at")
    check_topic(params.topic)
    joined = await _state_at(call, params.log, params.at)
    retained = next(map(_without_payload, retained_objects(joined, params.topic)), None)
    rows = _readers(joined, params.topic)
    about = {"topic": params.topic, "qos": params.qos}
    receivers = {**about, "retained": retained, "subscriptions": rows}
    return with_unsure(receivers, list(unsure_lines(joined)))


async def readers_at(
    call: Call, log: str | None, topic: str, at: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the subscriptions that matched a topic at a moment, and what is not certain of it."""
    check_topic(topic)
    joined = await _state_at(call, log, at)
    return _readers(joined, topic), list(unsure_lines(joined))


def _readers(joined: JoinedState, topic: str) -> list[dict[str, Any]]:
    readers = readers_of(joined.sessions(), topic)
    ordered = sorted(readers, key=lambda reader: (reader.log, reader.client))
    return [reader_object(reader) for reader in ordered]


class StateParams(ListParams):
    """The parameters of ``state``."""

    at: Annotated[Moment, Field(description="The moment.")] = "now"


async def state(call: Call, params: StateParams) -> AsyncIterator[Item]:
    """Yield the totals of the state, its sessions and its retained messages."""
    joined = await _state_at(call, params.log, params.at)
    rows = state_objects(joined, moment(params.at))
    for item in numbered(call, rows if call.payloads else map(_without_payload, rows)):
        yield item


def _without_payload(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in PAYLOAD_FIELDS}


async def _state_at(call: Call, log: str | None, at: str) -> JoinedState:
    when = moment(at)
    async with open_sources(call, log) as logs:
        logs.check_comparable(when)
        return await fold_logs(logs, await points_at(logs, when), silent)


class DiffParams(ListParams):
    """The parameters of ``diff``."""

    from_: Annotated[Moment, Field(alias="from", description="The earlier moment.")]
    to: Annotated[Moment, Field(description="The later moment.")] = "now"
    session: Annotated[Name | None, Field(description="Only the session of this client.")] = None


async def diff(call: Call, params: DiffParams) -> AsyncIterator[Item]:
    """Yield the differences between two moments, of each log."""
    first, second = moment(params.from_), moment(params.to)
    log = params.log
    if params.session is not None:
        log = await call.link.log_of(params.session, log)
    async with open_sources(call, log) as logs:
        logs.check_comparable(first, second)
        starts, ends = await points_at(logs, first), await points_at(logs, second)
        if any(_place(starts[log]) > _place(ends[log]) for log in logs):
            raise UsageError(f"from: {params.from_} is later than {params.to}")
        rows = []
        async for name, states in changes_in_logs(logs, starts, ends, params.session, silent):
            check_session(params.session, states)
            rows.append(states_object(name, states))
    for item in numbered(call, rows):
        yield item


def _place(point: LogPoint) -> tuple[int, int]:
    return point.sequence, point.index


class StoryParams(ListParams):
    """The parameters of ``story``."""

    position: Annotated[
        str,
        Field(
            pattern=r"^[0-9]{1,13}(\.[0-9]{1,7})?$",
            examples=["12.3"],
            description="The position of the message, or of any event about it.",
        ),
    ]
    client: Annotated[Name | None, Field(description="The receiver to explain.")] = None


def story(call: Call, params: StoryParams) -> AsyncIterator[Item]:
    """Yield the history of a message, in each log that has it."""
    place = position_of_message(params.position)
    return _stories(call, params.log, WantedMessages(None, params.client, 1, place))


class WhyParams(ListParams):
    """The parameters of ``why``."""

    topic: Annotated[Name, Field(description="A topic, or a topic filter.")]
    client: Annotated[Name | None, Field(description="The receiver to explain.")] = None
    at: Annotated[
        Moment | None, Field(description="The last messages up to this moment; without it: now.")
    ] = None
    last: Annotated[int, Field(ge=1, le=10, description="How many messages to explain.")] = 1


def why(call: Call, params: WhyParams) -> AsyncIterator[Item]:
    """Yield the histories of the last messages on a topic."""
    check_filter(params.topic)
    when = moment(params.at) if params.at is not None else None
    selection = WantedMessages(params.topic, params.client, params.last, moment=when)
    return _stories(call, params.log, selection)


async def _stories(
    call: Call, chosen_log: str | None, selection: WantedMessages
) -> AsyncIterator[Item]:
    link = call.link
    log = await link.check_log(chosen_log)
    if selection.client is not None:
        log = await link.log_of(selection.client, log or None)
    elif selection.ref is not None and not log and link.names:
        raise UsageError("a position is one of a log: give log, or the receiver as client")
    async with open_sources(call) as logs:
        for name, source in logs.items():
            with naming_log(name):
                source.require_whole()
        stories = await find_messages(logs, log if log in logs else None, selection, silent)
    for item in numbered(
        call, [log_story_object(story, log, selection.client) for story in stories]
    ):
        yield item


# ------------------------------------------------------------------------------- events


class EventsParams(ListParams):
    """The parameters of ``events``."""

    session: Annotated[Name | None, Field(description="Only events of this session.")] = None
    topic: Annotated[Name | None, Field(description="Only events about this topic filter.")] = None
    type: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...],
        Field(max_length=64, description="Only events of these types; may be repeated."),
    ] = ()
    from_: Annotated[
        Moment | None,
        Field(
            alias="from",
            description="Begin here; of a position such as 12.3 with that event. Without it: at "
            "the beginning of the log, with follow at its end.",
        ),
    ] = None
    to: Annotated[Moment | None, Field(description="End here; without it: at the end.")] = None
    payload: Annotated[
        bool, Field(description="Add payloads; needs a token that may see them.")
    ] = False
    follow: Annotated[
        bool, Field(description="Go on with what happens later; in streams only.")
    ] = False


async def events(call: Call, params: EventsParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the selected events of the log, in its order."""
    start = moment(params.from_) if params.from_ is not None else None
    end = moment(params.to) if params.to is not None else None
    if params.follow and end is not None:
        raise UsageError("follow: cannot be combined with to")
    if params.payload and not call.payloads:
        raise Forbidden("payload: needs a token with the role view-all or operate")
    if params.topic is not None:
        check_filter(params.topic)
    kinds = event_types(params.type)
    log = params.log
    if params.session is not None and call.link.names and not params.session.startswith("$"):
        log = await call.link.log_of(params.session, log)
    async with open_sources(call, log) as logs:
        await incomplete_logs(logs, Selection(params.session, params.topic, kinds, start, end))
        reader = MergedReader(
            logs, lambda: EventFilter(kinds, params.session, params.topic), silent
        )
        if call.start is not None:
            starts = places_after(call.start, logs, {log: logs[log].last for log in logs})
        elif params.follow and start is None:
            starts = {log: LogPoint(source.last + 1, 0) for log, source in logs.items()}
        else:
            starts = await points_at(logs, start, start_at)
        for name, source in logs.items():
            missing = max(1, starts[name].sequence) < source.begin
            if missing if call.start is not None else await cut_off(source, start):
                yield gap(name, source.begin)
            begin = LogPoint(source.begin if call.start is not None else 0, 0)
            starts[name] = max(starts[name], begin, key=_place)
        shown = _Shown(reader, starts, payload=params.payload)
        points = await points_at(logs, end, end_at)
        for mark in unsure_mark(await lost_in(logs, starts, points)):
            yield mark  # the event about it may not be selected
        entries = reader.entries(starts, points, ended=not params.follow)
        async with contextlib.aclosing(entries) as read_entries:
            async for entry in read_entries:
                if is_between(entry.entry.time_ms, start, end):
                    yield await shown.item(entry)
        if not params.follow:
            return
        lasts = {name: source.last for name, source in logs.items()}
        yield StreamMark("live", {"through": positions_text(lasts)}, shown.place)
        later = later_items(reader.new_entries, shown.item, several=len(logs) > 1)
        async with contextlib.aclosing(later) as items:
            async for item in items:
                yield item


async def later_items(
    new: Callable[[Callable[[str, int], object]], AsyncIterator[_Entry]],
    item: Callable[[_Entry], Awaitable[Item]],
    *,
    several: bool = False,
) -> AsyncGenerator[Item | StreamMark, None]:
    """Yield what is added to the logs, without end; ``new`` is told what to call for a gap.

    ``several``: entries of other logs may arrive later, so there is a pause after each call.
    """
    gaps: list[StreamMark] = []
    while True:
        idle = True
        async for entry in new(lambda log, first: gaps.append(gap(log, first))):
            while gaps:
                yield gaps.pop(0)
            yield await item(entry)
            idle = False
        while gaps:
            yield gaps.pop(0)
        if idle or several:
            await asyncio.sleep(_POLL_SECONDS)


def gap(log: str, first: int) -> StreamMark:
    """Return that records before the first one were deleted before they could be read."""
    return StreamMark("gap", {**({"log": log} if log else {}), "first": f"{first}.0"})


def place_text(places: Mapping[str, Position]) -> str:
    """Return a position, or one of each of several logs, as text."""
    return ",".join(
        f"{log}:{format_position(at)}" if log else format_position(at) for log, at in places.items()
    )


def places_after(
    text: str, logs: Iterable[str], lasts: Mapping[str, int] | None = None
) -> dict[str, LogPoint]:
    """Return the points just behind positions, see :func:`place_text`; raises UsageError.

    ``lasts`` are the last records of the logs: a place beyond them is of another log.
    """
    places = dict[str, LogPoint]()
    for part in text.split(","):
        log, _, where = part.rpartition(":")
        try:
            following = parse_position(where) + 1
        except ValueError:
            break
        places[log] = LogPoint(sequence_of(following), index_of(following))
    if places.keys() != set(logs):
        raise UsageError("the place where the list continues is not one of this log")
    if lasts and any(point.sequence > lasts[log] + 1 for log, point in places.items()):
        raise UsageError("the place where the list continues is beyond the end of the log")
    return places


class Places:
    """The last place of each log in a list; it begins with the points ``starts``."""

    def __init__(self, starts: Mapping[str, LogPoint]) -> None:
        self.by_log = {
            log: position(point.sequence, point.index) - 1 for log, point in starts.items()
        }

    @property
    def place(self) -> str:
        """Where the list continues."""
        return place_text(self.by_log)


class _Shown(Places):
    """Makes items of events; the place of each is that of the last event of every log."""

    def __init__(
        self, reader: MergedReader, starts: Mapping[str, LogPoint], *, payload: bool
    ) -> None:
        super().__init__(starts)
        self._reader = reader
        self._payload = payload

    async def item(self, log_entry: LogEntry) -> Item:
        """Return an event as an item; may read its log for the topics of its messages."""
        log, entry = log_entry
        topics = self._reader.readers[log].topics
        with naming_log(log):
            await topics.load(refs_of(entry.event))
        self.by_log[log] = entry.at + count_entries(entry.event) - 1
        value = entry_object(entry, topics, log, payload=self._payload)
        return Item(value, self.place)
