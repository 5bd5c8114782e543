"""The messages that a session must or may get, until its events record their outcome."""

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Final

from eventstore.format.events import NATS_SESSION
from eventstore.format.positions import Position, format_position
from projections.audit.rule_table import Rule, Violation
from protocol.mqtt.topics import matches

is_match: Final = lru_cache(16_384)(matches)
"""Whether a filter matches a topic; the latest results are cached."""
_SIZE: Final = 0xFFFF_FFFF
_PROPERTIES: Final = 32
_FROM_NATS: Final = 1 << 60


def packed_size(payload: int, properties: int, publisher: str) -> int:
    """Return the sizes of payload and properties, and whether NATS published it, in one number.

    For a message of a client without properties, it is the size of the payload in bytes.
    """
    size = payload | properties << _PROPERTIES
    return size | _FROM_NATS if publisher == NATS_SESSION else size


class ExpectedMessage:
    """A message of QoS 1 or 2 that took effect."""

    __slots__ = (
        "allowed", "at", "expires", "least", "packed", "qos", "stream", "time_ms", "topic"
    )  # fmt: skip

    def __init__(self, at: Position, topic: str, time_ms: int, origin: Hashable, qos: int) -> None:
        self.at = at
        """The position at which it took effect."""
        self.topic = topic
        self.time_ms = time_ms
        self.stream = topic, origin
        """Key of its stream: messages of one stream are delivered in order."""
        self.qos = qos
        self.allowed = 0
        """The QoS levels at which it may be delivered, as bits: each is the lower of its QoS and a
        granted QoS."""
        self.least = 0
        """Lowest QoS at which it must be delivered; 0: it need not be delivered."""
        self.packed = 0
        """Its ``packed_size``."""
        self.expires: int | None = None
        """Unix time in seconds at which it expires; 0: never, None: not known."""

    @property
    def size(self) -> int:
        """Size of its payload in bytes."""
        return self.packed & _SIZE

    @property
    def properties(self) -> int:
        """Size of its properties in bytes (MQTT 5)."""
        return (self.packed & ~_FROM_NATS) >> _PROPERTIES

    @property
    def is_from_nats(self) -> bool:
        """Whether it was published to NATS, and came over the bridge."""
        return bool(self.packed & _FROM_NATS)

    def may_be_at(self, qos: int) -> bool:
        """Return whether it may be delivered at this QoS."""
        return bool(self.allowed >> qos & 1) and qos >= self.least


class ExpectedMessages:
    """Messages whose outcome is not known yet, by the position of their publication."""

    __slots__ = ("_messages", "_unsure")

    def __init__(self) -> None:
        self._messages: dict[Position, ExpectedMessage] = {}
        self._unsure: list[Position] = []
        """Messages that need not be delivered: they are forgotten when their turn ends."""

    def expect(
        self,
        at: Position,
        ref: Position,
        topic: str,
        time_ms: int,
        origin: Hashable,
        qos: int,
        granted: int,
        *,
        owed: bool,
        size: int = 0,
        expires: int | None = None,
    ) -> bool:
        """Add a message and one of the subscriptions that it matches.

        Return whether the message must be delivered now and did not have to be before.
        """
        message = self._messages.get(ref)
        if message is None or message.at != at:
            message = self._messages[ref] = ExpectedMessage(at, topic, time_ms, origin, qos)
            message.packed, message.expires = size, expires
        level = min(qos, granted)
        message.allowed |= 1 << level
        if owed:
            before, message.least = message.least, max(level, message.least)
            return not before
        if not message.least:
            self._unsure.append(ref)
        return False

    def pop(self, ref: Position, default: None = None) -> ExpectedMessage | None:
        """Remove and return the message at a position; None when there is none."""
        return self._messages.pop(ref, default)

    def get(self, ref: Position) -> ExpectedMessage | None:
        """Return the message at a position; None when there is none."""
        return self._messages.get(ref)

    def granted(self, filters: Mapping[str, int], turn: Position) -> None:
        """Apply filters that were subscribed to, or granted another QoS, in a turn.

        A message that waits for its delivery belongs to the matching subscription with the highest
        QoS. If that has one of these filters, the message is delivered at the newly granted QoS.
        """
        for ref, message in self._messages.items():
            if message.at < turn:
                continue
            for topic_filter, qos in filters.items():
                if is_match(topic_filter, message.topic):
                    level = min(qos, message.qos)
                    message.allowed |= 1 << level
                    message.least = min(level, message.least)
                    if not message.least:
                        self._unsure.append(ref)

    def begin_turn(self, turn: Position) -> None:
        """Forget messages that could, but need not, be delivered in the turns before this one."""
        if not self._unsure:
            return
        messages, later = self._messages, []
        for ref in self._unsure:
            message = messages.get(ref)
            if message is None or message.least:
                continue
            if message.at >= turn:
                later.append(ref)
            else:
                del messages[ref]
        self._unsure = later

    def overdue(self, before: Position) -> list[Violation]:
        """Return a violation for each message that took effect before a position and is missing."""
        violations: list[Violation] = []
        for ref, message in self._messages.items():
            if message.least and message.at < before:
                what = f"message {format_position(ref)} was neither delivered nor queued nor "
                violations.append(Violation(Rule.UNDELIVERED, message.at, f"{what}dropped"))
        return violations

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self._messages.clear()
        self._unsure.clear()
