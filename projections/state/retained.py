"""The retained index as a fold: the last retained message of every topic.

A retained message takes effect with its MessagePublished (QoS 0 and 1) or with the Released that
names it (QoS 2). An empty payload clears the topic [MQTT-3.3.1-10]. A checkpoint repeats the
messages: from then on they are known by the position of the repetition.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice, repeat, starmap
from sys import intern
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from eventstore.format.event_parsing import LogEvent
from eventstore.format.events import (
    InboundReplaced,
    MessagePublished,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.node_events import RetainedSnapshot
from eventstore.format.positions import Position, from_runs
from eventstore.format.stored_properties import expires_at, expiries_of, split_pieces, spread_blocks
from projections.state.sharded_dict import ShardedDict
from protocol.mqtt.topic_trie import TopicTrie

_SPARE = 1024
"""Minimum number of outdated times that are tolerated."""


class RetainedMessage(NamedTuple):
    """The retained message of one topic."""

    topic: str
    payload: bytes
    qos: int
    ref: Position
    """Position of the publication, or of its repetition in a checkpoint."""
    block: bytes = b""
    """Its properties (MQTT 5)."""
    expires: int = 0
    """Unix time in seconds at which it expires; 0: never."""
    publisher: str = ""
    """Client identifier of the client that published it, or whose will it is. Empty: not known, as
    only a checkpoint or a projection of an earlier version of foldmq has the message."""


class ExpiryQueue:
    """Names by the time at which they expire, Unix time in seconds."""

    __slots__ = ("_names", "_times")

    def __init__(self) -> None:
        self._names: dict[int, dict[str, None]] = {}
        """The names of each time; none is empty."""
        self._times: list[int] = []
        """These times, a heap; also outdated and duplicate ones, until they are due or too many."""

    def add(self, name: str, expires: int) -> None:
        """Add a name; it must not be in the queue."""
        names = self._names.get(expires)
        if names is not None:
            names[name] = None
            return
        self._names[expires] = {name: None}
        heappush(self._times, expires)
        if len(self._times) > 2 * len(self._names) + _SPARE:
            self._times = [*self._names]
            heapify(self._times)

    def remove(self, name: str, expires: int) -> None:
        """Remove a name."""
        names = self._names[expires]
        del names[name]
        if not names:
            del self._names[expires]

    def first(self) -> int:
        """Return the time of the first name; 0: there is none."""
        times = self._times
        while times and times[0] not in self._names:
            heappop(times)
        return times[0] if times else 0

    def due(self, now: int, most: int) -> list[str]:
        """Return up to ``most`` names that have expired, in order of expiry; they stay."""
        names: list[str] = []
        seen: list[int] = []
        while len(names) < most and 0 < self.first() <= now:
            time = heappop(self._times)
            if seen[-1:] != [time]:
                seen.append(time)
                names += islice(self._names[time], most - len(names))
        for time in seen:
            heappush(self._times, time)
        return names


@mypyc_attr(allow_interpreted_subclasses=True)
class RetainedIndex:
    """The retained messages, found by topic or by filter."""

    def __init__(self) -> None:
        self._topics: TopicTrie[str] = TopicTrie()
        self._messages: ShardedDict[RetainedMessage] = ShardedDict()
        self._pending: dict[str, dict[Position, RetainedMessage]] = {}
        self._count = self._size = 0
        self._expiring = ExpiryQueue()
        self.unrecorded: dict[str, RetainedMessage] = {}
        """Newer messages at QoS 0 that a running broker has not recorded yet; they are no part of
        the fold. A message that is recorded for their topic takes their place."""
        self.dirty: dict[str, Position] | None = None
        """Changed topics, with the position of their previous message, 0 for none; None while
        changes are not tracked."""

    def __len__(self) -> int:
        """Return the number of topics that have a retained message."""
        return self._count

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    @property
    def size(self) -> int:
        """Payload bytes of all retained messages."""
        return self._size

    def get(self, topic: str) -> RetainedMessage | None:
        """Return the retained message of a topic."""
        return self._messages.get(topic)

    def current(self, topic: str) -> RetainedMessage | None:
        """Return the message that a new subscriber of a topic gets."""
        return self.unrecorded.get(topic) or self._messages.get(topic)

    def topics(self) -> list[str]:
        """Return the topics that have a retained message."""
        return [*self._messages]

    def parts(self) -> Iterator[list[str]]:
        """Yield these topics, a part at a time; topics that change meanwhile may be missed."""
        return ([*part] for part in self._messages.parts)

    def all(self) -> list[RetainedMessage]:
        """Return all retained messages, oldest first."""
        return sorted(self._all(), key=_by_position)

    def match(self, topic_filter: str) -> list[RetainedMessage]:
        """Return the retained messages that a filter matches, oldest first."""
        return sorted(self.matching(topic_filter), key=_by_position)

    def matching(self, topic_filter: str) -> Iterator[RetainedMessage]:
        """Yield the retained messages that a filter matches, in no particular order.

        No message may become retained or be cleared during the iteration.
        """
        part = self._messages.of
        return (part(topic)[topic] for topic in self._topics.match(topic_filter))

    def newest(self, topic_filter: str) -> Iterator[RetainedMessage]:
        """Yield what a new subscriber gets; otherwise like :meth:`matching`."""
        messages = self.matching(topic_filter)
        if not self.unrecorded:
            return messages
        unrecorded = self.unrecorded
        return (unrecorded.get(message.topic) or message for message in messages)

    def before(self, position: Position) -> list[RetainedMessage]:
        """Return the retained messages before a position."""
        return [message for message in self._all() if message.ref < position]

    def _all(self) -> Iterator[RetainedMessage]:
        return chain.from_iterable(part.values() for part in self._messages.parts)

    def known(self, session: str, ref: Position) -> bool:
        """Return whether a message waits for the session's PUBREL to become retained."""
        return ref in self._pending.get(session, ())

    def pending(self, session: str) -> list[RetainedMessage]:
        """Return the retained messages that a session sent at QoS 2 and has not released."""
        return list(self._pending.get(session, {}).values())

    def expired(self, now: int, most: int = 1 << 62) -> list[str]:
        """Return up to ``most`` topics whose messages have expired at a Unix time in seconds."""
        return self._expiring.due(now, most)

    def expiry(self) -> int:
        """Return the time of the first expiry, Unix time in seconds; 0: no message expires."""
        return self._expiring.first()

    def published(
        self, event: MessagePublished, at: Position, time_ms: int, pieces: Sequence[bytes]
    ) -> None:
        """Apply retained publications.

        ``time_ms`` is the time of their record, ``pieces`` are their parts of its payload area.
        """
        later = event.qos == 2 and not event.will
        for message in messages_of(event, at, time_ms, pieces):
            if later:
                self._pending.setdefault(event.session, {})[message.ref] = message
            else:
                self._set(message)

    def other(self, event: LogEvent) -> None:
        """Apply an event that is not a publication but may complete or discard one."""
        if not self._pending:
            return
        if isinstance(event, (Released, InboundReplaced)):
            pending = self._pending.get(event.session)
            if pending is not None:
                for ref in from_runs(event.refs):
                    message = pending.pop(ref, None)
                    if message is not None and isinstance(event, Released):
                        self._set(message)
                if not pending:
                    del self._pending[event.session]
        elif isinstance(event, SessionExpired) or (
            isinstance(event, SessionOpened) and not event.resumed
        ):
            self._pending.pop(event.session, None)

    def publishers(self) -> list[str]:
        """Return the sessions with unreleased messages."""
        return [*self._pending]

    def keep_pending(self, session: str, refs: Iterable[Position]) -> None:
        """Discard all unreleased messages of a session but those at some positions."""
        pending, kept = self._pending.pop(session, {}), {*refs}
        if remaining := {ref: message for ref, message in pending.items() if ref in kept}:
            self._pending[session] = remaining

    def session_ended(self, event: SessionClosed) -> None:
        """Discard the unreleased messages of a clean session that ended."""
        self._pending.pop(event.session, None)

    def repeated(self, event: RetainedSnapshot, at: Position, pieces: Sequence[bytes]) -> None:
        """Apply the repetition of retained messages, or of messages that wait for a PUBREL."""
        for number, message in enumerate(repeated_messages(event, pieces), at):
            if event.session is None:
                newer = self.unrecorded.get(message.topic)
                self._set(message._replace(ref=number))
                if newer is not None:
                    self.unrecorded[message.topic] = newer
            else:
                self._pending.setdefault(event.session, {}).setdefault(message.ref, message)

    def cleared(self, topics: Iterable[str]) -> None:
        """Remove the retained messages of these topics, if they have any."""
        for topic in topics:
            before = self._messages.get(topic)
            if before is not None:
                self._set(before._replace(payload=b""))

    # Loading from the projections.

    def load(self, message: RetainedMessage) -> None:
        """Load a message from the projections.

        The message may be newer than the events folded next; each topic still ends with the message
        that was retained last.
        """
        self._set(message)

    def load_unreleased(self, session: str, messages: Iterable[RetainedMessage]) -> None:
        """Load retained messages that the session sent at QoS 2 and has not released."""
        pending = self._pending.setdefault(session, {})
        for message in messages:
            pending.setdefault(message.ref, message)

    def _set(self, message: RetainedMessage) -> None:
        topic = message.topic
        if self.unrecorded:
            self.unrecorded.pop(topic, None)
        part = self._messages.of(topic)
        before = part.get(topic)
        if before is not None:
            self._size -= len(before.payload)
            if before.expires:
                self._expiring.remove(topic, before.expires)
        if self.dirty is not None:
            self.dirty.setdefault(topic, before.ref if before is not None else 0)
        if message.payload:
            if before is None:
                self._topics.set(topic, topic)
                self._count += 1
            part[topic] = message
            self._size += len(message.payload)
            if message.expires:
                self._expiring.add(topic, message.expires)
        elif before is not None:
            self._topics.discard(topic)
            del part[topic]
            self._count -= 1


def messages_of(
    event: MessagePublished, at: Position, time_ms: int, pieces: Sequence[bytes]
) -> Iterator[RetainedMessage]:
    """Yield the messages of a publication; the first one is at ``at``.

    ``time_ms`` is the time of its record, ``pieces`` are its parts of the payload area.
    """
    distinct, payloads = split_pieces(event, pieces)
    publisher = intern(event.session)
    topics: Iterable[str] = (
        map(event.topics.__getitem__, event.which)
        if event.which
        else (event.topics[0] for _ in payloads)
    )
    if not distinct:
        for ref, (topic, payload) in enumerate(zip(topics, payloads, strict=True), at):
            yield RetainedMessage(topic, payload, event.qos, ref, b"", 0, publisher)
        return
    columns = zip(topics, payloads, spread_blocks(event, distinct), strict=True)
    for ref, (topic, payload, block) in enumerate(columns, at):
        expires = expires_at(block, time_ms)
        yield RetainedMessage(topic, payload, event.qos, ref, block, expires, publisher)


def repeated_messages(
    event: RetainedSnapshot, pieces: Sequence[bytes]
) -> Iterator[RetainedMessage]:
    """Yield the messages that a checkpoint repeats, with their previous positions."""
    distinct, payloads = split_pieces(event, pieces)
    blocks = spread_blocks(event, distinct) or repeat(b"", event.count)
    expires = expiries_of(event.expires, event.count) or repeat(0, event.count)
    refs, publishers = from_runs(event.refs), _publishers(event)
    columns = zip(event.topics, payloads, event.qos, refs, blocks, expires, publishers, strict=True)
    return starmap(RetainedMessage, columns)


def _publishers(event: RetainedSnapshot) -> Iterable[str]:
    """Return the publisher of each message that a checkpoint repeats; "" if it is not known."""
    if event.session is not None:
        return repeat(event.session, event.count)
    names = [intern(name) for name in event.publishers]
    if not event.publisher_of:
        return repeat(names[0] if names else "", event.count)
    return map(names.__getitem__, event.publisher_of)


def _by_position(message: RetainedMessage) -> Position:
    return message.ref
