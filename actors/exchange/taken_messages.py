"""The messages and changes that take effect in the records of another log, as columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from eventstore.format.erasure_events import FOLLOWED, REQUEST, ErasureRequested
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    LOG_SESSION,
    Assigned,
    MessagePublished,
    Released,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.node_events import Followed, RetainedCleared
from eventstore.format.positions import Position, from_runs, position
from eventstore.format.records import Record
from eventstore.log.message_store import Message, StoredMessages
from eventstore.reading.publications import Publications, Releases, publications_of
from protocol.mqtt.shared_filters import SHARE


@dataclass(slots=True)
class TakenMessages:
    """Messages that take effect at consecutive positions of another log; all retained or none."""

    first: Position
    """Where the first one takes effect; the others follow it."""
    qos: int
    retain: bool
    topics: Sequence[bytes]
    payloads: Sequence[bytes]
    origins: Sequence[Position]
    """Positions of the messages in that log."""
    time_ms: int
    """Time of the record in which they take effect."""
    blocks: Sequence[bytes] = ()
    expires: Sequence[int] = ()
    live: bool = True
    """Whether subscribers get them; otherwise they are only retained, and were passed on before."""
    share: str = ""
    """The only shared subscription that gets them; empty: all matching ones do."""
    refused: Sequence[str] = ()
    """The logs whose members may not receive or do not accept them."""

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.topics)


@dataclass(slots=True)
class TakenReferences:
    """Messages that a shared subscription assigned to this log, and which must be read first."""

    first: Position
    refs: list[Position]
    time_ms: int
    qos: int
    share: str
    refused: Sequence[str]


@dataclass(slots=True)
class TakenPart:
    """A part of a shared subscription began or ended in the other log."""

    first: Position
    share: str
    begun: bool


@dataclass(slots=True)
class TakenClearing:
    """Retained messages that an operator removed."""

    first: Position
    topics: list[str]
    time_ms: int


@dataclass(slots=True)
class TakenErasure:
    """Contents were erased in the other log."""

    first: Position
    topics: list[str]
    """The topics whose contents are still to be erased here."""
    filter: str
    by: str
    requested: bool
    """Whether that log was the first one; otherwise it followed another."""
    before_ms: int = 0
    """Only contents of periods that ended up to then, Unix time in milliseconds; 0: all."""


@dataclass(slots=True)
class Acknowledged:
    """The position up to which the other log has taken a log."""

    log: str
    through: Position


TakenEffect: TypeAlias = TakenMessages | TakenClearing | TakenPart | TakenErasure
_Found: TypeAlias = (
    TakenMessages
    | TakenReferences
    | Releases
    | TakenClearing
    | TakenPart
    | TakenErasure
    | Acknowledged
    | StoredMessages
)

_MESSAGE = 1024
"""Bytes for which a message counts beside its payload."""
_RELEVANT = frozenset(
    {"MessagePublished", "Released", "RetainedCleared", "Followed", "Assigned", "ErasureRequested"}
)
_OF_SESSIONS = frozenset({"SessionOpened", "SessionExpired"})
"""Events that are relevant only if a shared subscription has them."""


@dataclass(slots=True)
class Taken:
    """The effects that a broker must take from consecutive complete turns of another log."""

    through: Position = 0
    """The last position of the turns."""
    links: dict[int, str] = field(default_factory=dict)
    """Links of their records, in hexadecimal, by sequence."""
    effects: list[TakenEffect] = field(default_factory=list)
    more: bool = False
    """Whether they have more than positions of other logs."""

    @property
    def messages(self) -> int:
        """The number of messages to take."""
        return sum(len(effect) for effect in self.effects if isinstance(effect, TakenMessages))

    @property
    def size(self) -> int:
        """The approximate number of bytes of these messages."""
        return sum(
            _MESSAGE + len(payload)
            for effect in self.effects
            if isinstance(effect, TakenMessages)
            for payload in effect.payloads
        )


def _is_relevant(raw: dict[str, Any]) -> bool:
    kind = raw["e"]
    return kind in _RELEVANT or (kind in _OF_SESSIONS and raw["session"].startswith(SHARE))


def effects_in(record: Record, through: Position, own: str) -> Iterator[_Found]:
    """Yield the effects in a record after a position, and QoS 2 messages to be released.

    ``own`` is the name of the log that takes it.
    """
    if not any(map(_is_relevant, record.raw_events)):
        return
    member = LOG_SESSION + own
    base = position(record.sequence, 0)
    for index, event in record.events():
        at = base + index
        if isinstance(event, (MessagePublished, Released)):
            for item in publications_of(record, event, at):
                effect = item if isinstance(item, StoredMessages) else item.after(through)
                if effect is not None:
                    yield taken_messages(effect) if isinstance(effect, Publications) else effect
        elif at + entries(event) - 1 <= through:
            continue
        elif isinstance(event, Assigned):
            if event.member == member:
                refs = from_runs(event.refs)
                passed = max(0, through + 1 - at)
                yield TakenReferences(
                    at + passed,
                    refs[passed:],
                    record.steady_ms,
                    event.qos,
                    event.session,
                    event.refused,
                )
        elif isinstance(event, (SessionOpened, SessionExpired)):
            if event.session.startswith(SHARE):
                yield TakenPart(at, event.session, isinstance(event, SessionOpened))
        else:
            yield from _of_node(event, at, record)


def _of_node(event: Event, at: Position, record: Record) -> Iterator[_Found]:
    """Yield the effect of an event that concerns no session."""
    if isinstance(event, RetainedCleared):
        yield TakenClearing(at, event.topics, record.steady_ms)
    elif isinstance(event, ErasureRequested):
        if event.cause in (REQUEST, FOLLOWED):
            topics = [*dict.fromkeys(event.topics)]  # each is there once for each of its keys
            before_ms = event.before_ms and event.before_ms + record.time_ms - record.steady_ms
            yield TakenErasure(
                at, topics, event.filter, event.by, event.cause == REQUEST, before_ms
            )
    elif isinstance(event, Followed):
        yield Acknowledged(event.log, event.through)


def taken_messages(messages: Publications) -> TakenMessages:
    """Return publications of another log as messages to be taken."""
    return TakenMessages(
        messages.positions[0],
        messages.qos,
        messages.retain,
        messages.topics,
        messages.payloads,
        messages.refs,
        messages.steady_ms,
        messages.blocks,
        messages.expires,
        live=messages.qos > 0 or messages.will,
    )


def assigned(references: TakenReferences, messages: Sequence[Message]) -> TakenMessages:
    """Return the messages that a shared subscription assigned to this log, with their content."""
    blocked = any(message.block for message in messages)
    return TakenMessages(
        references.first,
        references.qos,
        False,
        [message.topic for message in messages],
        [message.payload for message in messages],
        references.refs,
        references.time_ms,
        [message.block for message in messages] if blocked else (),
        [message.expires for message in messages] if blocked else (),
        share=references.share,
        refused=references.refused,
    )
