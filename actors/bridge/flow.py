"""What is on its way to NATS: messages that leave together, and the flow of one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from protocol.nats import MAX_CLIENT, constant_part, encode_value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from eventstore.format import Position

_LINE = 160
"""Bytes that a message takes as it is sent beside payload, subject, topic and client, about."""
_ENCODED = 3
"""Bytes that one byte takes in a header, at most."""


class Content(Protocol):
    """Messages in columns: a ``Publishes``, for one."""

    @property
    def topics(self) -> Sequence[bytes]:
        """Their topics."""

    @property
    def payloads(self) -> Sequence[bytes]:
        """Their payloads; asked for only when they are sent."""


_FEW = 8
"""Topics whose order is looked for one by one."""


class ByTopic:
    """Where in a batch of several topics the messages of each are, looked for once for all."""

    __slots__ = ("_found", "_topics", "distinct", "each", "share")

    def __init__(self, topics: Sequence[bytes], each: int) -> None:
        self._topics = topics
        self.each = each
        """Bytes that a message takes beside what is the same for its topic, on average."""
        self._found: dict[bytes, list[int]] | None = None
        distinct: Collection[bytes] = set(topics)  # the fastest way to see that there are few
        if len(distinct) <= _FEW:
            distinct = sorted(distinct, key=topics.index)
        else:
            distinct = dict.fromkeys(topics)
        self.distinct = distinct
        """The topics, in the order in which they come first."""
        self.share = -(-len(topics) // len(self.distinct))
        """Messages of a topic, on average."""

    def at(self, raw: bytes) -> Sequence[int]:
        """Return the indices of a topic's messages."""
        found = self._found
        if found is None:  # mostly nobody asks: what waits is dropped
            found = self._found = {topic: [] for topic in self.distinct}
            for index, topic in enumerate(self._topics):
                found[topic].append(index)
        return found[raw]


class OutgoingMessages(NamedTuple):
    """Messages that took effect together, published by one client."""

    client: str
    prefix: str
    """What their subjects begin with."""
    qos: int
    retain: bool
    content: Content
    size: int
    """Bytes of the payloads, about."""
    refs: Sequence[Position] = ()
    """Positions in the log; empty where they are in none."""
    since: Position = 0
    """Position of the first entry with which they took effect; 0: they are not in the log."""
    through: Position = 0
    """Position of the last one."""
    by_topic: ByTopic | None = None
    """Which messages are whose; None: all have the topic of the flow that they are sent on."""

    def split(self) -> tuple[OutgoingMessages, ByTopic]:
        """Return the same, to be sent on the flows of several topics."""
        topics = self.content.topics
        by_topic = ByTopic(topics, self.size // len(topics) + self.client_bytes)
        return self._replace(by_topic=by_topic), by_topic

    @property
    def client_bytes(self) -> int:
        """Bytes that the client identifier takes in each message, about."""
        size = len(self.client)
        return _ENCODED * size if size < MAX_CLIENT else _ENCODED * MAX_CLIENT


class Flow:
    """What is published on one topic, under one prefix."""

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
        """Monotonic time until which it is not asked again whether somebody wants it; 0: nobody
        is known to."""
        self.quiet_until = 0.0
        """Monotonic time until which what comes is gathered: nobody wanted it just now."""
        self.token = b""
        """Name of the last probe; answers to earlier ones say nothing of what it covers."""
        self.covered: list[OutgoingMessages] | None = None
        """What waits for the answer to the probe that is on its way: its first message of this
        topic is the probe. None: there is no probe."""
        self.covered_bytes = 0
        self.waiting: list[OutgoingMessages] = []
        """What came after the probe was sent, or is gathered."""
        self.waiting_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether something waits."""
        return self.covered is not None or bool(self.waiting)

    @property
    def held(self) -> tuple[OutgoingMessages, ...]:
        """What waits."""
        return (*(self.covered or ()), *self.waiting)

    def count(self, leaving: OutgoingMessages) -> int:
        """Return how many of the messages are this flow's."""
        by_topic = leaving.by_topic
        return len(leaving.content.topics) if by_topic is None else len(by_topic.at(self.raw))

    def wait(self, leaving: OutgoingMessages) -> int:
        """Keep messages; return how many bytes they take when they are sent, about."""
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
        """Have all that waits wait for the answer to the probe that is to be sent."""
        covered = self.covered = self.waiting
        self.covered_bytes = self.waiting_bytes
        self.waiting, self.waiting_bytes = [], 0
        return covered

    def uncover(self) -> int:
        """Forget what waits for the answer to the probe; return what it took."""
        size, self.covered_bytes = self.covered_bytes, 0
        self.covered = None
        return size

    def release(self) -> tuple[tuple[OutgoingMessages, ...], int]:
        """Let go all that waits; return it, and what it took."""
        held, size = self.held, self.covered_bytes + self.waiting_bytes
        self.covered, self.covered_bytes = None, 0
        self.waiting, self.waiting_bytes = [], 0
        return held, size

    def head(self, leaving: OutgoingMessages, node: str) -> bytes:
        """Return what the headers of a client's messages have in common."""
        about = leaving.client, leaving.qos, leaving.retain
        if self._about != about:
            self._about = about
            client, qos, retain = about
            self._head = constant_part(self.topic, qos, retain=retain, client=client, node=node)
        return self._head
