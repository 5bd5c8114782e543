"""The messages in a log that other logs of the broker have to take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from eventstore.format.events import LOG_SESSION, Assigned, MessagePublished, Released
from eventstore.format.node_events import MessagesCarried, RetainedCleared
from eventstore.format.positions import Position, from_runs, position
from eventstore.format.stored_properties import expiries_of
from eventstore.log.message_store import Message, StoredMessages, messages_of, properties_of
from projections.past.message_story import topic_of

if TYPE_CHECKING:
    from eventstore.format.records import Record

UNKNOWN = 1
"""Expiry of a message that was published before the log begins."""


class RequiredReplay(NamedTuple):
    """A message that took effect in a log, or was assigned to another one."""

    at: Position
    """Where it took effect, or was assigned."""
    ref: Position
    """Where it was published; at QoS 1 the same position."""
    time_ms: int
    """Time of the record in which it took effect, Unix time in milliseconds."""
    topic: str = ""
    expires: int = UNKNOWN
    """Unix time in seconds at which it expires; 0: never."""
    qos: int = 0
    retain: bool = False
    live: bool = True
    """Whether subscribers get it from the log; at QoS 0 they get it without a record."""
    share: str = ""
    """The shared subscription that assigned it; empty: it is for all subscriptions that match."""
    batch: MessageBatch | None = None
    """The messages that were published together with it; None: not in this record."""

    @property
    def content(self) -> Message | None:
        """The message; None: it was published in an earlier record."""
        return None if self.batch is None else self.batch.message(self.ref)


class ClearedTopics(NamedTuple):
    """Retained messages that an operator removed."""

    at: Position
    time_ms: int
    topics: list[str]


class MessageBatch:
    """The messages of an event, decoded when they are needed."""

    def __init__(self, record: Record, event: MessagePublished, at: Position) -> None:
        self._record = record
        self._event = event
        self._at = at
        self._stored: StoredMessages | None = None

    @property
    def stored(self) -> StoredMessages:
        """The messages, with topics, payloads and properties."""
        if self._stored is None:
            record, event = self._record, self._event
            names = [topic.encode() for topic in event.topics]
            topics = [names[which] for which in event.which] if event.which else names * event.count
            payloads = record.payloads(event)
            self._stored = StoredMessages(
                self._at,
                topics,
                payloads,
                sum(map(len, payloads)),
                *properties_of(record, event),
                retain=event.retain,
                publishers=(event.session,),
            )
        return self._stored

    @property
    def expires(self) -> list[int]:
        """The expiry of each message, 0: never."""
        if not self._event.blocks:
            return [0] * self._event.count
        return list(properties_of(self._record, self._event)[1]) or [0] * self._event.count

    def message(self, ref: Position) -> Message:
        """Return the message at a position."""
        return self.stored.message(ref - self._at)


class OwedMessages:
    """Finds what other logs have to take in the parts of complete turns of a log, in order.

    ``taker`` is the name of the log whose assigned messages are included; empty: none.
    """

    def __init__(self, taker: str = "") -> None:
        self._member = LOG_SESSION + taker
        self._unreleased: dict[Position, tuple[str, int, bool]] = {}
        """Topic, expiry, and whether it becomes retained."""
        self._begin: Position | None = None
        self.kept: list[StoredMessages] = []
        """Messages of the last part that may take effect later: those at QoS 2, and repeated ones
        of before the log begins."""

    def of(self, part: Record) -> Iterator[RequiredReplay | ClearedTopics]:
        """Yield what takes effect in a part of a turn."""
        base, time_ms = position(part.sequence, 0), part.steady_ms
        begin = self._begin = base if self._begin is None else self._begin
        self.kept = []
        for index, event in part.events():
            if isinstance(event, MessagePublished):
                yield from self._published(part, event, base + index)
            elif isinstance(event, Assigned) and event.member == self._member:
                for number, ref in enumerate(from_runs(event.refs)):
                    at = base + index + number
                    yield RequiredReplay(at, ref, time_ms, qos=event.qos, share=event.session)
            elif isinstance(event, MessagesCarried):
                self._carried(event, begin)
                self.kept += [stored for stored in messages_of(part) if stored.first < begin]
            elif isinstance(event, Released) and not event.session.startswith(LOG_SESSION):
                for number, ref in enumerate(from_runs(event.refs)):
                    topic, expires, retain = self._unreleased.pop(ref, ("", UNKNOWN, False))
                    at = base + index + number
                    yield RequiredReplay(at, ref, time_ms, topic, expires, 2, retain)
            elif isinstance(event, RetainedCleared):
                yield ClearedTopics(base + index, time_ms, event.topics)

    def _published(
        self, part: Record, event: MessagePublished, at: Position
    ) -> Iterator[RequiredReplay]:
        live = bool(event.qos or event.will)
        if event.session.startswith(LOG_SESSION) or not (live or event.retain):
            return
        batch = MessageBatch(part, event, at)
        if event.qos == 2 and not event.will:
            self.kept.append(batch.stored)
            for number, until in enumerate(batch.expires):
                self._unreleased[at + number] = topic_of(event, number), until, event.retain
            return
        for number, until in enumerate(batch.expires):
            yield RequiredReplay(
                *(at + number, at + number, part.steady_ms, topic_of(event, number), until),
                *(event.qos, event.retain, live, "", batch),
            )

    def _carried(self, event: MessagesCarried, begin: Position) -> None:
        """Note messages at QoS 2 that were published before the log begins."""
        waiting = frozenset(from_runs(event.waiting))
        expires = expiries_of(event.expires, event.count) or [0] * event.count
        for number, ref in enumerate(from_runs(event.refs)):
            if ref < begin:
                content = topic_of(event, number), expires[number], ref in waiting
                self._unreleased[ref] = content
