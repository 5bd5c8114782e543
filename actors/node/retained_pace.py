"""Large retained messages at QoS 0 that replace each other quickly, such as pictures of a camera.

Each goes to its subscribers, and to those who subscribe later, at once. But the log gets only the
newest of a topic, at most :data:`_RATE` bytes a second: those between would stay there for ``keep``
although nothing needs them. After a crash the message of the topic is as old as the last one that
was recorded, which QoS 0 permits [MQTT-3.3.1-7]; the end of the publisher's connection, also that
of the broker in good order, records the newest one.

Small messages, those with properties, and those of a broker with several logs, of which the others
read the log, are all recorded.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from actors.kernel.clock import LogClock, Timers
from actors.kernel.kernel import Kernel
from projections.state.node_state import NodeState
from protocol.mqtt.packets import Publishes

LARGE: Final = 16 * 1024
"""Payload in bytes from which a message may be left out."""
_RATE: Final = 16 * 1024
"""Bytes a second of a topic that are recorded."""
_LOOK_EVERY: Final = 1.0
_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes recorded in one turn."""
_KNOWN: Final = 65_536
"""Topics whose last record is known; of others the next message is recorded."""


class PacedNode(Protocol):
    """What is needed of the node."""

    clock: LogClock
    timers: Timers
    kernel: Kernel
    state: NodeState
    rebuilding: set[str]

    @property
    def exchange(self) -> object | None:
        """The exchange with the other logs, if there are any."""


class PacedPublisher(Protocol):
    """A publisher whose messages may be recorded later."""

    @property
    def name(self) -> str:
        """The client identifier."""

    def route_unrecorded(self, packet: Publishes, *, taken: bool = True) -> None:
        """Route QoS 0 messages, which are not recorded; ``taken`` are those of another broker."""

    def record(self, packet: Publishes) -> object:
        """Record messages without routing them."""


class RetainedPace:
    """The messages of a node that are not recorded yet."""

    def __init__(self, node: PacedNode) -> None:
        self._node = node
        self._due: dict[str, float] = {}
        """The earliest time of the next record of a topic."""
        self._waiting: dict[str, dict[str, tuple[PacedPublisher, Publishes]]] = {}
        """Messages to record, by publisher and topic."""
        self._armed = False

    def recorded_now(
        self, publisher: PacedPublisher, packets: Iterable[Publishes]
    ) -> Iterator[Publishes]:
        """Yield the retained messages at QoS 0 that are to be recorded and routed now.

        The others are routed here, so that all are routed in their order.
        """
        for packet in packets:
            alone = self._node.exchange is None
            if not alone or max(map(len, packet.payloads), default=0) < LARGE:
                yield packet
                continue
            for at in range(len(packet)):
                single = packet.select([at])
                if not self._waits(publisher, single):
                    yield single
                    continue
                publisher.route_unrecorded(single, taken=False)

    def _waits(self, publisher: PacedPublisher, single: Publishes) -> bool:
        """Return whether a message is recorded later; note it if so."""
        topic, payload = single.topics[0].decode(), single.payloads[0]
        if len(payload) < LARGE or any(single.blocks or ()):
            return False
        index, now = self._node.state.retained, self._node.clock.monotonic()
        retained = index.get(topic)
        if retained is None or now >= self._due.get(topic, 0.0):
            self._note(topic, len(payload), now)
            return False
        index.unrecorded[topic] = retained._replace(
            payload=payload, qos=0, block=b"", expires=0, publisher=publisher.name
        )
        self._waiting.setdefault(publisher.name, {})[topic] = publisher, single
        self._arm()
        return True

    def _note(self, topic: str, size: int, now: float) -> None:
        if len(self._due) >= _KNOWN:
            self._due = {topic: due for topic, due in self._due.items() if due > now}
        self._due[topic] = now + size / _RATE

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._node.timers.after(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        """Record what is due."""
        self._armed = False
        now, room = self._node.clock.monotonic(), _AT_ONCE
        for session, messages in list(self._waiting.items()):
            if session in self._node.rebuilding:
                continue
            for topic in [topic for topic in messages if self._due.get(topic, 0.0) <= now]:
                if room > 0:
                    room -= self._record(session, topic, now)
        if self._waiting:
            self._arm()
        self._node.kernel.wake()

    def flush(self, session: str) -> None:
        """Record the messages of a publisher whose connection ends."""
        for topic in list(self._waiting.get(session, ())):
            self._record(session, topic, self._node.clock.monotonic())

    def _record(self, session: str, topic: str, now: float) -> int:
        """Record a message if it is still the newest of its topic; return its size."""
        messages = self._waiting[session]
        publisher, single = messages.pop(topic)
        if not messages:
            del self._waiting[session]
        index, size = self._node.state.retained, len(single.payloads[0])
        newest = index.unrecorded.get(topic)
        if newest is None or newest.payload is not single.payloads[0]:
            return 0  # another one took its place
        state = self._node.state.sessions.live.get(session)
        if state is None or not state.connected:  # its end failed
            del index.unrecorded[topic]
            return 0
        self._note(topic, size, now)
        publisher.record(single)
        return size
