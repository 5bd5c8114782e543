"""From MQTT to NATS: passes messages of clients to the flows of their topics.

QoS 0 messages are sent immediately. QoS 1 and 2 messages are sent when their record is on disk, and
QoS 0 messages of a leader in doubt when it knows that it leads: until the gate releases them, they
wait in :class:`GatedMessages`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, Protocol

from actors.bridge.bridge_properties import header_room
from actors.limits.bridge_options import REPLIES, BridgeOptions
from eventstore.format.events import NATS_SESSION
from eventstore.format.positions import Position
from eventstore.log.message_store import StoredMessages
from eventstore.log.pending_record import GatedOutput
from protocol.nats.headers import MAX_CLIENT, constant_part, encode_value
from protocol.nats.mapping import MAX_SUBJECT

if TYPE_CHECKING:
    from actors.bridge.subscriber_probes import SubscriberProbes

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
    """Messages that took effect together, published by clients with the same prefix."""

    publishers: Sequence[str]
    """The client identifiers."""
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
    publisher_of: Sequence[int] = ()
    """For each message the index of its publisher, as in ``StoredMessages``."""
    selected: Sequence[Position] = ()
    """Position at which each took effect; empty: each entry from ``since`` on."""

    @property
    def places(self) -> Sequence[Position]:
        """The position at which each recorded message took effect."""
        return self.selected or range(self.since, self.since + len(self.refs))

    def at(self, raw: bytes) -> Sequence[int]:
        """Return the indices of a topic's messages, on the flow of the topic."""
        by_topic = self.by_topic
        return range(len(self.content.topics)) if by_topic is None else by_topic.at(raw)

    def publisher(self, number: int) -> str:
        """Return the client that published one of the messages."""
        publishers = self.publishers
        if self.publisher_of:
            return publishers[self.publisher_of[number]]
        return publishers[number if len(publishers) > 1 else 0]

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
            publishers=[self.publisher(at) for at in keep],
            publisher_of=(),
            selected=[self.places[at] for at in keep] if refs else (),
        )

    @property
    def client_bytes(self) -> int:
        """Approximate bytes of the longest client identifier in a message."""
        size = max(map(len, self.publishers))
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
        "refused",
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
        self.refused = 0
        """Number of probes that found no subscriber since one was known."""
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
        return len(leaving.at(self.raw))

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

    def head(self, leaving: OutgoingMessages, number: int, node: str) -> bytes:
        """Return the common headers of the messages of the client that published one of them."""
        about = leaving.publisher(number), leaving.qos, leaving.retain
        if self._about != about:
            self._about = about
            client, qos, retain = about
            self._head = constant_part(self.topic, qos, retain=retain, client=client, node=node)
        return self._head


_MAX_FLOWS = 65_536
_MAX_FLOW_BYTES = 16 * 1024 * 1024
_REPLIES = REPLIES.encode()
_OWN = f"{NATS_SESSION}/".encode()
_HEADERS = 512
"""Maximum bytes of the headers of a message beside topic and client identifier."""


class GatedMessages:
    """Messages that wait at the gate; it is an output sink, which gets one byte for each of them.

    ``release`` is called with messages that the gate releases.
    """

    __slots__ = ("_queue", "_release", "gated", "size", "waits_for")

    def __init__(self, release: Callable[[OutgoingMessages], None]) -> None:
        self._queue: deque[OutgoingMessages] = deque()
        self._release = release
        self.size = 0
        """Approximate bytes of the payloads that wait."""
        self.waits_for: GatedOutput | None = None
        self.gated = 0

    def hold_back(self, leaving: OutgoingMessages) -> None:
        """Keep messages until the gate releases them (:meth:`write`)."""
        self._queue.append(leaving)
        self.size += leaving.size

    def write(self, data: bytes) -> None:
        """Release as many publications as there are bytes.

        All of them are removed from the queue even after a failure; otherwise later ones would be
        released in their place. Raises the first exception.
        """
        queue, failed = self._queue, None
        for leaving in [queue.popleft() for _ in data]:
            self.size -= leaving.size
            try:
                self._release(leaving)
            except Exception as error:  # noqa: BLE001 - raised below
                failed = failed or error
        if failed is not None:
            raise failed


class ToNats:
    """Sends messages of clients to NATS.

    ``answer`` gets the token, the payload and the properties of answers to requests, and the
    prefix of the client.
    """

    def __init__(
        self,
        flows: SubscriberProbes,
        options: BridgeOptions,
        answer: Callable[[str, bytes, bytes, str], None],
        may_publish: Callable[[bytes], bool],
    ) -> None:
        self._flows = flows
        self._options = options
        self._answer = answer
        self._may_publish = may_publish
        self._topics: dict[str, dict[bytes, TopicFlow | None]] = defaultdict(dict)
        self._count = 0
        self._size = 0
        self._most = _MAX_FLOWS
        self._most_bytes = _MAX_FLOW_BYTES

    def send(self, leaving: OutgoingMessages, most: int) -> int:
        """Send messages, each on the flow of its topic; return how many were too large.

        Too large means more than ``most`` bytes with headers.
        """
        left_out = 0
        longest = _ENCODED * MAX_SUBJECT + _ENCODED * MAX_CLIENT
        if leaving.content.blocks:
            longest += max(map(header_room, leaving.content.blocks))
        if leaving.size + _HEADERS + longest > most // 2:
            leaving, left_out = _fitting(leaving, most)
        if leaving.content.topics:
            self._send_all(leaving)
        return left_out

    def _send_all(self, leaving: OutgoingMessages) -> None:
        topics = leaving.content.topics
        first = topics[0]
        if first == topics[-1] and topics.count(first) == len(topics):
            self._send(first, leaving)
            return
        leaving, by_topic = leaving.split()
        for raw in by_topic.distinct:
            self._send(raw, leaving)

    def _send(self, raw: bytes, leaving: OutgoingMessages) -> None:
        """Send the messages of one topic."""
        flow = self._flow(leaving.prefix, raw)
        if flow is not None:
            self._flows.send(flow, leaving)
        elif raw.startswith(_REPLIES):
            token = raw[len(_REPLIES) :].decode()
            payloads, blocks = leaving.content.payloads, leaving.content.blocks
            for at in leaving.at(raw):
                self._answer(token, payloads[at], blocks[at] if blocks else b"", leaving.prefix)

    def _flow(self, prefix: str, raw: bytes) -> TopicFlow | None:
        """Return the flow of a topic; None if it is not bridged."""
        flows = self._topics[prefix]
        try:
            return flows[raw]
        except KeyError:
            pass
        if raw.startswith(_OWN):
            return None
        if self._count >= self._most or self._size >= self._most_bytes:
            self._forget()
            flows = self._topics[prefix]
        topic = raw.decode()
        subject = self._options.rules.subject(topic, prefix) if self._may_publish(raw) else None
        flow = TopicFlow(topic, raw, subject.encode()) if subject is not None else None
        flows[raw] = flow
        self._count += 1
        self._size += len(raw)
        return flow

    def reset_denied(self) -> None:
        """Determine again which topics are bridged; pending messages are sent."""
        self._forget()
        for flows in self._topics.values():
            for raw in [raw for raw in flows if not self._may_publish(raw)]:
                flows[raw] = None

    def _forget(self) -> None:
        """Drop idle flows.

        If fewer than half can be dropped, because NATS does not answer, the limit is raised before
        the next attempt: each attempt takes time for every flow that is kept.
        """
        self._count = self._size = 0
        for prefix, flows in self._topics.items():
            busy: dict[bytes, TopicFlow | None] = {
                raw: flow for raw, flow in flows.items() if flow is not None and flow.busy
            }
            self._topics[prefix] = busy
            self._count += len(busy)
            self._size += sum(map(len, busy))
        self._most = max(_MAX_FLOWS, 2 * self._count)
        self._most_bytes = max(_MAX_FLOW_BYTES, 2 * self._size)


def _fitting(leaving: OutgoingMessages, most: int) -> tuple[OutgoingMessages, int]:
    """Return the messages that NATS accepts, and the number of others."""
    topics, payloads = leaving.content.topics, leaving.content.payloads
    longest = max(len(client.encode(errors="replace")) for client in leaving.publishers)
    room = most - _HEADERS - _ENCODED * min(longest, MAX_CLIENT)
    blocks = leaving.content.blocks or ()
    columns = zip_longest(topics, payloads, blocks, fillvalue=b"")
    keep = [
        at
        for at, (raw, payload, block) in enumerate(columns)
        if len(payload) + _ENCODED * len(raw) + header_room(block) <= room
    ]
    return leaving if len(keep) == len(topics) else leaving.select(keep), len(topics) - len(keep)
