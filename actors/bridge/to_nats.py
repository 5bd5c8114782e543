"""From MQTT to NATS: passes messages of clients to the flows of their topics.

QoS 0 messages are sent immediately. QoS 1 and 2 messages are sent when their record is on disk, and
QoS 0 messages of a leader in doubt when it knows that it leads: until the gate releases them, they
wait in :class:`GatedMessages`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import zip_longest
from typing import TYPE_CHECKING

from actors.bridge.bridge_properties import header_room
from actors.bridge.topic_flow import TopicFlow
from actors.limits.bridge_options import REPLIES
from eventstore.format.events import NATS_SESSION
from protocol.nats.headers import MAX_CLIENT
from protocol.nats.mapping import MAX_SUBJECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.bridge.subscriber_probes import SubscriberProbes
    from actors.bridge.topic_flow import OutgoingMessages
    from actors.limits.bridge_options import BridgeOptions
    from eventstore.log.pending_record import GatedOutput

_MAX_FLOWS = 65_536
_MAX_FLOW_BYTES = 16 * 1024 * 1024
_REPLIES = REPLIES.encode()
_OWN = f"{NATS_SESSION}/".encode()
_HEADERS = 512
"""Maximum bytes of the headers of a message beside topic and client identifier."""
_ENCODED = 3
"""Maximum encoded bytes of one byte in a header."""


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

    __slots__ = (
        "_answer",
        "_count",
        "_flows",
        "_may_publish",
        "_most",
        "_most_bytes",
        "_options",
        "_size",
        "_topics",
    )

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
            payloads, by_topic = leaving.content.payloads, leaving.by_topic
            blocks = leaving.content.blocks
            for at in range(len(payloads)) if by_topic is None else by_topic.at(raw):
                self._answer(token, payloads[at], blocks[at] if blocks else b"", leaving.prefix)

    def _flow(self, prefix: str, raw: bytes) -> TopicFlow | None:
        """Return the flow of a topic; None if it is not bridged."""
        known = self._topics[prefix]
        try:
            return known[raw]
        except KeyError:
            pass
        if raw.startswith(_OWN):
            return None
        if self._count >= self._most or self._size >= self._most_bytes:
            self._forget()
            known = self._topics[prefix]
        topic = raw.decode()
        subject = self._options.rules.subject(topic, prefix) if self._may_publish(raw) else None
        flow = TopicFlow(topic, raw, subject.encode()) if subject is not None else None
        known[raw] = flow
        self._count += 1
        self._size += len(raw)
        return flow

    def reset_denied(self) -> None:
        """Determine again which topics are bridged; pending messages are sent."""
        self._forget()
        for known in self._topics.values():
            for raw in [raw for raw in known if not self._may_publish(raw)]:
                known[raw] = None

    def _forget(self) -> None:
        """Drop idle flows.

        If fewer than half can be dropped, because NATS does not answer, the limit is raised before
        the next attempt: each attempt takes time for every flow that is kept.
        """
        self._count = self._size = 0
        for prefix, known in self._topics.items():
            busy: dict[bytes, TopicFlow | None] = {
                raw: flow for raw, flow in known.items() if flow is not None and flow.busy
            }
            self._topics[prefix] = busy
            self._count += len(busy)
            self._size += sum(map(len, busy))
        self._most = max(_MAX_FLOWS, 2 * self._count)
        self._most_bytes = max(_MAX_FLOW_BYTES, 2 * self._size)


def _fitting(leaving: OutgoingMessages, most: int) -> tuple[OutgoingMessages, int]:
    """Return the messages that NATS accepts, and the number of others."""
    topics, payloads = leaving.content.topics, leaving.content.payloads
    client = min(len(leaving.client.encode(errors="replace")), MAX_CLIENT)
    room = most - _HEADERS - _ENCODED * client
    blocks = leaving.content.blocks or ()
    columns = zip_longest(topics, payloads, blocks, fillvalue=b"")
    keep = [
        at
        for at, (raw, payload, block) in enumerate(columns)
        if len(payload) + _ENCODED * len(raw) + header_room(block) <= room
    ]
    return leaving if len(keep) == len(topics) else leaving.select(keep), len(topics) - len(keep)
