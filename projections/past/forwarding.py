"""What the destinations of the outbox got of a message, and which log a bridge brought it from."""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from eventstore import display
from eventstore.format.destination_events import (
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position, format_position, from_runs, position, sequence_of
from eventstore.format.turn_parts import TurnAssembler
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.keys import SESSION
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import stamp
from projections.past.message_story import MessageStory
from projections.past.stored_projections import ProjectionReader
from projections.state.destinations import ERASED, Destinations, DestinationState
from projections.views.replay_view import place_text
from protocol.mqtt.topics import matches

_READ: Final = 2048
"""Records behind the message that are searched for the event of a destination."""
_AT_ONCE: Final = 64
_MQTT: Final = "mqtt"
_KINDS: Final = frozenset({"Forwarded", "ForwardRefused", "ForwardLost"})


class ForwardOutcome(NamedTuple):
    """What became of a message that was due to a destination."""

    to: str
    outcome: Literal["waiting", "sent", "refused", "lost", "erased", "passed"]
    """``passed``: its cursor is behind the message, but the event is further on in the log."""
    at: Position = 0
    """Position of the event; of ``waiting`` and ``passed`` the cursor."""
    time_ms: int = 0
    detail: str = ""
    kind: str = ""
    """The kind of the destination, such as ``mqtt`` for another broker."""
    there: str = ""
    """The command that goes on at the other broker, as a line; empty: it does not know the
    message, because messages at QoS 2 are sent without their origin."""

    def text(self) -> str:
        """Return the outcome as a line."""
        to = display.name(self.to)
        if self.outcome == "waiting":
            return f"waiting for {to}, whose cursor is {place_text(self.at)}"
        if self.outcome == "passed":
            return f"{to} is past it, with its cursor at {place_text(self.at)}"
        when = stamp(self.at, self.time_ms)
        if self.outcome == "sent":
            before = f", {display.escaped(self.detail)}" if self.detail else ""
            target = f"{to}, and acknowledged" if self.kind == _MQTT else to
            return f"{when}  sent to {target} by then{before}"
        if self.outcome == "erased":
            return f"{when}  erased before it was sent to {to}"
        return f"{when}  {self.outcome} by {to}: {display.escaped(self.detail)}"

    def as_object(self) -> dict[str, object]:
        """Return the outcome as a JSON object."""
        fields: dict[str, object] = {"to": self.to, "outcome": self.outcome}
        fields["position"] = format_position(self.at)
        if self.time_ms:
            fields["time"] = display.iso(self.time_ms)
        if self.detail:
            fields["reason"] = self.detail
        return fields


class MessageOrigin(NamedTuple):
    """The place of a message in the log of the foldmq that a bridge brought it from."""

    log: str
    position: Position
    client: str
    """The bridge."""

    def text(self) -> str:
        """Return the place as a line, with the command that goes on there."""
        place = format_position(self.position)
        return (
            f"from log {display.name(self.log)}, brought by {display.name(self.client)}; there: "
            f"foldmq why --position {place} --node {display.name(self.log)}"
        )

    def as_object(self) -> dict[str, object]:
        """Return the place as a JSON object."""
        place = format_position(self.position)
        return {"log": self.log, "position": place, "client": self.client}


async def find_origin(source: LogSource, ref: Position) -> MessageOrigin | None:
    """Return where a message came from; None: no foldmq sent it, or that was cut off.

    Raises as ``LogSource.records``.
    """
    first, turns = sequence_of(ref), TurnAssembler(anywhere=True)
    if first < source.begin:
        return None
    async for record in source.records(first, min(source.last, first + _AT_ONCE)):
        if any(raw["e"] == "OriginTaken" for raw in record.raw_events):
            for _, event in record.events():
                if isinstance(event, OriginTaken):
                    pairs = zip(from_runs(event.refs), from_runs(event.origins), strict=False)
                    for own, place in pairs:
                        if own == ref:
                            return MessageOrigin(event.log, place, event.client)
        if turns.take(record)[1]:
            break
    return None


async def find_copies(source: LogSource, log: str, place: Position) -> list[Position]:
    """Return the positions in this log of a message that a bridge brought from another log.

    ``place`` is its position there. There are several if two bridges brought it. Raises as
    ``LogSource.records``.
    """
    destinations = await _destinations(source)
    clients = {client for client, origin in destinations.taken.items() if origin.log == log}
    copies: list[Position] = []
    if not clients:
        return copies

    def choose(index: LogIndex) -> list[int]:
        return sorted({each for name in clients for each in index.sequences(SESSION + name)})

    async for record in read_listed(source, choose, source.begin, source.last):
        if not any(raw["e"] == "OriginTaken" and raw["log"] == log for raw in record.raw_events):
            continue
        for _, event in record.events():
            if isinstance(event, OriginTaken) and event.log == log:
                pairs = zip(from_runs(event.refs), from_runs(event.origins), strict=False)
                copies += [own for own, far in pairs if far == place]
    return copies


def _with_next(
    source: LogSource, story: MessageStory, outcome: ForwardOutcome, kind: str
) -> ForwardOutcome:
    """Return an outcome with the kind of its destination, and what goes on there."""
    if kind != _MQTT or outcome.outcome != "sent" or story.qos != 1:
        return outcome._replace(kind=kind)
    log = display.name(source.stream.removeprefix(LOG_STREAM_PREFIX))
    place = format_position(story.ref)
    there = f"there, if it is a foldmq: foldmq why --position {place} --origin {log}"
    return outcome._replace(kind=kind, there=there)


async def _destinations(source: LogSource) -> Destinations:
    """Return the destinations of the stored projections."""
    reader = ProjectionReader(source, source.stream.removeprefix(LOG_STREAM_PREFIX))
    mark, destinations = await reader.mark(), Destinations()
    if mark is not None:
        destinations.load(mark.destinations)
    return destinations


async def find_forwards(source: LogSource, story: MessageStory) -> list[ForwardOutcome]:
    """Return what became of a message at each destination that it was due to.

    Destinations are those of the stored projections. Raises as ``LogSource.records``.
    """
    at, topic = story.effective_at, story.topic
    if not at or topic is None or not story.qos:
        return []
    destinations = await _destinations(source)
    due = {
        name: state
        for name, state in destinations.items()
        if state.after < at and any(matches(each, topic) for each in state.filters)
    }
    outcomes: dict[str, ForwardOutcome] = {}
    sequence, until_record = sequence_of(at), min(source.last, sequence_of(at) + _READ)
    while sequence <= until_record and outcomes.keys() < due.keys():
        until = min(until_record, sequence + _AT_ONCE - 1)
        async for record in source.records(sequence, until):
            if any(raw["e"] in _KINDS for raw in record.raw_events):
                base = position(record.sequence, 0)
                events = [(base + index, event) for index, event in record.events()]
                _take(events, record.time_ms, story.ref, at, due, outcomes)
        sequence = until + 1
    await _follow_refused(source, story.ref, due, outcomes)
    final = [outcomes.get(name) or _by_cursor(name, state, at) for name, state in due.items()]
    return [_with_next(source, story, outcome, due[outcome.to].kind) for outcome in final]


def _take(
    events: Iterable[tuple[Position, Event]],
    time_ms: int,
    ref: Position,
    at: Position,
    due: dict[str, DestinationState],
    outcomes: dict[str, ForwardOutcome],
) -> None:
    """Note what the events of a record say of a message."""
    for place, event in events:
        if not isinstance(event, Forwarded | ForwardRefused | ForwardLost):
            continue
        if event.to not in due or event.to in outcomes:
            continue
        if isinstance(event, ForwardRefused):
            if ref in from_runs(event.refs):
                outcomes[event.to] = _refusal(event, place, time_ms)
        elif isinstance(event, ForwardLost):
            if event.after < at <= event.until:
                what: Literal["erased", "lost"] = "erased" if event.reason == ERASED else "lost"
                outcomes[event.to] = ForwardOutcome(event.to, what, place, time_ms, event.reason)
        elif event.through >= at:
            outcomes[event.to] = ForwardOutcome(event.to, "sent", place, time_ms)


async def _follow_refused(
    source: LogSource,
    ref: Position,
    due: dict[str, DestinationState],
    outcomes: dict[str, ForwardOutcome],
) -> None:
    """Replace refusals of a message by what became of it since: an operator may have retried it."""
    refused = {name: each for name, each in outcomes.items() if each.outcome == "refused"}
    if not refused:
        return
    first = sequence_of(min(each.at for each in refused.values()))
    async for record in read_listed(
        source,
        lambda index: sorted(index.referring({sequence_of(ref)}, source.last)),
        *(first, source.last),
    ):
        if not any(raw["e"] in _KINDS for raw in record.raw_events):
            continue
        for index, event in record.events():
            if not isinstance(event, Forwarded | ForwardRefused) or event.to not in refused:
                continue
            place = position(record.sequence, index)
            if place <= refused[event.to].at or ref not in from_runs(event.refs):
                continue
            if isinstance(event, ForwardRefused):
                outcomes[event.to] = _refusal(event, place, record.time_ms)
            else:
                before = f"after it was refused: {outcomes[event.to].detail}"
                outcomes[event.to] = ForwardOutcome(event.to, "sent", place, record.time_ms, before)
    for name, outcome in outcomes.items():
        if outcome.outcome == "refused" and ref in due[name].retry:
            detail = f"{outcome.detail}; an operator wants it to be sent again"
            outcomes[name] = outcome._replace(detail=detail)


def _refusal(event: ForwardRefused, place: Position, time_ms: int) -> ForwardOutcome:
    reason = f"{event.code} {event.reason}" if event.code else event.reason
    return ForwardOutcome(event.to, "refused", place, time_ms, reason)


def _by_cursor(name: str, state: DestinationState, at: Position) -> ForwardOutcome:
    outcome: Literal["waiting", "passed"] = "passed" if state.through >= at else "waiting"
    return ForwardOutcome(name, outcome, state.through)
