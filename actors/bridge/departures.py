"""From MQTT to NATS: what clients publish goes to the flows of its topics.

What is published at QoS 0 leaves at once. QoS 1 and 2 leave when their record is on disk: a
publication waits in a queue here, and the gate says when it may go.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from actors.bridge.flows import Flow
from actors.bridge.options import REPLIES
from eventstore.events import NATS_SESSION
from eventstore.messages import Stored
from protocol.mapping import MAX_SUBJECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.bridge.flows import Flows, Leaving
    from actors.bridge.options import BridgeOptions
    from eventstore.journal import Effects

_MOST_FLOWS = 65_536
_MOST_FLOW_BYTES = 16 * 1024 * 1024
_REPLIES = REPLIES.encode()
_OWN = f"{NATS_SESSION}/".encode()
_HEADERS = 512
"""Bytes that the headers of a message take beside topic and client identifier, at most."""
_ENCODED = 3
"""Bytes that one byte takes in a header, at most."""
_NAMES = 4 * _ENCODED
"""Bytes that one character takes in a header, at most."""


class Departures:
    """Sends what clients publish to NATS. A sink of the gate.

    ``answer`` is given the token and the payload of what is published as an answer to a request.
    """

    __slots__ = (
        "_answer",
        "_flows",
        "_options",
        "_queue",
        "_size",
        "_topics",
        "gated",
        "hold",
        "let_go",
    )

    def __init__(
        self, flows: Flows, options: BridgeOptions, answer: Callable[[str, bytes], None]
    ) -> None:
        self._flows = flows
        self._options = options
        self._answer = answer
        self._topics: dict[str, dict[bytes, Flow | None]] = defaultdict(dict)
        self._size = 0
        self._queue: deque[Leaving] = deque()
        self.hold: Effects | None = None
        self.gated = 0
        self.let_go: Callable[[Leaving], None] = _nothing
        """Called with what the gate lets pass."""

    def put_off(self, leaving: Leaving) -> None:
        """Keep what may leave when the gate says so (:meth:`write`)."""
        self._queue.append(leaving)

    def write(self, data: bytes) -> None:
        """Let go as many publications as there are bytes."""
        for _ in data:
            self.let_go(self._queue.popleft())

    def send(self, leaving: Leaving, most: int) -> int:
        """Send messages, each on the flow of its topic; return how many were left out.

        Those are the ones that take more than ``most`` bytes with their headers.
        """
        left_out = 0
        longest = _ENCODED * MAX_SUBJECT + _NAMES * len(leaving.client)
        if leaving.size + _HEADERS + longest > most // 2:
            leaving, left_out = _fitting(leaving, most)
        if leaving.content.topics:
            self._send_all(leaving)
        return left_out

    def _send_all(self, leaving: Leaving) -> None:
        topics = leaving.content.topics
        first = topics[0]
        if topics.count(first) == len(topics):
            self._send(first, leaving)
            return
        distinct = set(topics)
        leaving = leaving._replace(size=leaving.size // len(distinct))
        for raw in distinct:
            self._send(raw, leaving)

    def _send(self, raw: bytes, leaving: Leaving) -> None:
        """Send the messages of one topic."""
        flow = self._flow(leaving.prefix, raw)
        if flow is not None:
            self._flows.send(flow, leaving)
        elif raw.startswith(_REPLIES):
            token = raw[len(_REPLIES) :].decode()
            content = leaving.content
            for topic, payload in zip(content.topics, content.payloads, strict=True):
                if topic == raw:
                    self._answer(token, payload)

    def _flow(self, prefix: str, raw: bytes) -> Flow | None:
        """Return the flow of a topic, None if it is not bridged."""
        known = self._topics[prefix]
        try:
            return known[raw]
        except KeyError:
            pass
        if raw.startswith(_OWN):
            return None
        if sum(map(len, self._topics.values())) >= _MOST_FLOWS or self._size >= _MOST_FLOW_BYTES:
            self._forget()
            known = self._topics[prefix]
        topic = raw.decode()
        subject = self._options.rules.subject(topic, prefix)
        flow = Flow(topic, raw, subject.encode()) if subject is not None else None
        known[raw] = flow
        self._size += len(raw)
        return flow

    def _forget(self) -> None:
        """Forget the flows on which nothing waits."""
        self._size = 0
        for prefix, known in self._topics.items():
            busy: dict[bytes, Flow | None] = {
                raw: flow for raw, flow in known.items() if flow is not None and flow.busy
            }
            self._topics[prefix] = busy
            self._size += sum(map(len, busy))


def _fitting(leaving: Leaving, most: int) -> tuple[Leaving, int]:
    """Return the messages that NATS takes, and how many there are beside them."""
    topics, payloads, refs = leaving.content.topics, leaving.content.payloads, leaving.refs
    room = most - _HEADERS - _ENCODED * len(leaving.client.encode())
    keep = [
        at
        for at, (raw, payload) in enumerate(zip(topics, payloads, strict=True))
        if len(payload) + _ENCODED * len(raw) <= room
    ]
    if len(keep) == len(topics):
        return leaving, 0
    some = [payloads[at] for at in keep]
    size = sum(map(len, some))
    content = Stored(0, [topics[at] for at in keep], some, size)
    which = [refs[at] for at in keep] if refs else ()
    return leaving._replace(content=content, size=size, refs=which), len(topics) - len(keep)


def _nothing(_leaving: Leaving) -> None:
    """Do nothing."""
