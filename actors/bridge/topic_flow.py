"""Messages to NATS: groups that are sent together, and the flow of one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from eventstore.log.message_store import StoredMessages
from protocol.nats.headers import MAX_CLIENT, constant_part, encode_value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from eventstore.format.positions import Position

_LINE = 160
"""Approximate bytes of a sent message beside payload, subject, topic and client."""
_ENCODED = 3
"""Maximum encoded bytes of one byte in a header."""


class Content(Protocol):
    """Messages in columns, such as ``Publishes``."""

    @property
    def topics(self) -> Sequence[bytes]:
        """The topic of each message."""

    @property
    def payloads(self) -> Sequence[bytes]:
        """The payload of each message; read only when it is sent."""

    @property
    def blocks(self) -> Sequence[bytes] | None:
        """The properties of each message (MQTT 5); empty or None if none has any."""


_FEW = 8
"""Maximum topics whose order is determined one by one."""


class ByTopic:
    """The indices of each topic's messages in a batch, determined once."""

    __slots__ = ("_found", "_topics", "distinct", "each", "share")

    def __init__(self, topics: Sequence[bytes], each: int) -> None:
        self._topics = topics
        self.each = each
        """Average bytes of a message beside those common to its topic."""
        self._found: dict[bytes, list[int]] | None = None
        distinct: Collection[bytes] = set(topics)  # the fastest way to detect few topics
        if len(distinct) <= _FEW:
            distinct = sorted(distinct, key=topics.index)
        else:
            distinct = dict.fromkeys(topics)
        self.distinct = distinct
        """The topics, in the order of their first messages."""
        self.share = -(-len(topics) // len(self.distinct))
        """Average number of messages of a topic."""

    def at(self, raw: bytes) -> Sequence[int]:
        """Return the indices of a topic's messages."""
        indices = self._found
        if indices is None:  # usually not needed: waiting messages are dropped
            indices = self._found = {topic: [] for topic in self.distinct}
            for index, topic in enumerate(self._topics):
                indices[topic].append(index)
        return indices[raw]


class OutgoingMessages(NamedTuple):
    """Messages that took effect together, published by one client."""

    client: str
    prefix: str
    """Prefix of their subjects."""
    qos: int
    retain: bool
    content: Content
    size: int
    """Approximate bytes of the payloads."""
    refs: Sequence[Position] = ()
    """Positions in the log; empty if they are not recorded."""
    since: Position = 0
    """Position of the first entry with which they took effect; 0: they are not recorded."""
    through: Position = 0
    """Position of the last one."""
    by_topic: ByTopic | None = None
    """The messages of each topic; None: all have the topic of the flow on which they are sent."""
    expires: Sequence[int] = ()
    """Expiry of each message, Unix time in seconds, 0: never; empty: no message expires."""

    def split(self) -> tuple[OutgoingMessages, ByTopic]:
        """Return the messages prepared for the flows of several topics."""
        topics = self.content.topics
        by_topic = ByTopic(topics, self.size // len(topics) + self.client_bytes)
        return self._replace(by_topic=by_topic), by_topic

    def select(self, keep: Sequence[int]) -> OutgoingMessages:
        """Return a selection of the messages; call it before they are prepared for flows."""
        content, refs, expires = self.content, self.refs, self.expires
        payloads = [content.payloads[at] for at in keep]
        blocks = [content.blocks[at] for at in keep] if content.blocks else ()
        size = sum(map(len, payloads)) + sum(map(len, blocks))
        topics = [content.topics[at] for at in keep]
        return self._replace(
            content=StoredMessages(0, topics, payloads, size, blocks),
            size=size,
            refs=[refs[at] for at in keep] if refs else (),
            expires=[expires[at] for at in keep] if expires else (),
        )

    @property
    def client_bytes(self) -> int:
        """Approximate bytes of the client identifier in each message."""
        size = len(self.client)
        return _ENCODED * size if size < MAX_CLIENT else _ENCODED * MAX_CLIENT


class TopicFlow:
    """Messages of one topic under one prefix."""

    __slots__ = (
        "_about",
        "_head",
        "_line",
        "covered",
        "covered_bytes",
        "open_until",
        "quiet_until",
        "raw",
        "subject",
        "token",
        "topic",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, topic: str, raw: bytes, subject: bytes) -> None:
        self.topic = topic
        self.raw = raw
        self.subject = subject
        self._about: tuple[str, int, bool] | None = None
        self._head = b""
        self._line = _LINE + len(subject) + len(encode_value(topic))
        self.open_until = 0.0
        """Monotonic time until which no probe is sent; 0: no subscriber is known."""
        self.quiet_until = 0.0
        """Monotonic time until which messages are collected, since there was no subscriber."""
        self.token = b""
        """Name of the last probe; answers to earlier ones do not apply to the covered messages."""
        self.covered: list[OutgoingMessages] | None = None
        """Messages that wait for the answer to the current probe, which is the first one. None:
        there is no probe."""
        self.covered_bytes = 0
        self.waiting: list[OutgoingMessages] = []
        """Messages that arrived after the probe was sent, or that are collected."""
        self.waiting_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether messages are waiting."""
        return self.covered is not None or bool(self.waiting)

    @property
    def held(self) -> tuple[OutgoingMessages, ...]:
        """The waiting messages."""
        return (*(self.covered or ()), *self.waiting)

    def count(self, leaving: OutgoingMessages) -> int:
        """Return how many of the messages belong to this flow."""
        by_topic = leaving.by_topic
        return len(leaving.content.topics) if by_topic is None else len(by_topic.at(self.raw))

    def wait(self, leaving: OutgoingMessages) -> int:
        """Keep messages; return their approximate bytes when sent."""
        self.waiting.append(leaving)
        by_topic = leaving.by_topic
        if by_topic is None:
            each = self._line + leaving.client_bytes
            size = leaving.size + len(leaving.content.topics) * each
        else:
            size = by_topic.share * (self._line + by_topic.each)
        self.waiting_bytes += size
        return size

    def cover(self) -> list[OutgoingMessages]:
        """Make all waiting messages wait for the answer to the next probe."""
        covered = self.covered = self.waiting
        self.covered_bytes = self.waiting_bytes
        self.waiting, self.waiting_bytes = [], 0
        return covered

    def uncover(self) -> int:
        """Drop the messages that wait for the answer to the probe; return their bytes."""
        size, self.covered_bytes = self.covered_bytes, 0
        self.covered = None
        return size

    def release(self) -> tuple[tuple[OutgoingMessages, ...], int]:
        """Remove all waiting messages; return them, and their bytes."""
        held, size = self.held, self.covered_bytes + self.waiting_bytes
        self.covered, self.covered_bytes = None, 0
        self.waiting, self.waiting_bytes = [], 0
        return held, size

    def head(self, leaving: OutgoingMessages, node: str) -> bytes:
        """Return the common headers of a client's messages."""
        about = leaving.client, leaving.qos, leaving.retain
        if self._about != about:
            self._about = about
            client, qos, retain = about
            self._head = constant_part(self.topic, qos, retain=retain, client=client, node=node)
        return self._head
