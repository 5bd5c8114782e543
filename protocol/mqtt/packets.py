"""What clients send, as values.

Nearly all traffic is PUBLISH and its acknowledgements, and it comes many packets at a time.
Hence those two are batches, ``Publishes`` and ``Acks``: a run of consecutive packets of one kind,
in columns. All other packets are small dataclasses, one each.

``properties`` is where MQTT 5 puts its properties; it is None in MQTT 3.1 and 3.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Properties: TypeAlias = Mapping[int, object]
"""Property identifier -> value (MQTT 5, section 2.2.2)."""


class PacketType(IntEnum):
    """MQTT control packet types (section 2.2.1)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class ConnectCode(IntEnum):
    """CONNACK return codes (section 3.2.2.3)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


@dataclass(slots=True)
class Will:
    """The message to be published when the connection ends without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None = None


@dataclass(slots=True)
class Connect:
    """A request for a session (section 3.1)."""

    version: int
    """Protocol level: 3 (MQTT 3.1) or 4 (MQTT 3.1.1)."""
    client_id: str
    """Empty when the server is to make one up; ``clean`` is True then."""
    clean: bool
    keep_alive: int
    """Seconds; 0 turns the keep alive off."""
    will: Will | None = None
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties | None = None


@dataclass(slots=True)
class Subscribe:
    """A request to subscribe (section 3.8)."""

    packet_id: int
    filters: list[tuple[str, int]]
    """(topic filter, requested QoS), in the order of the packet, at least one."""
    properties: Properties | None = None


@dataclass(slots=True)
class Unsubscribe:
    """A request to unsubscribe (section 3.10)."""

    packet_id: int
    filters: list[str]
    """Topic filters, in the order of the packet, at least one."""
    properties: Properties | None = None


@dataclass(slots=True)
class Pingreq:
    """A sign of life that wants an answer (section 3.12)."""


@dataclass(slots=True)
class Disconnect:
    """The client leaves in good order (section 3.14)."""

    properties: Properties | None = None


class Publish(NamedTuple):
    """One message out of a ``Publishes``."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    """0 at QoS 0."""


class Publishes:
    """A run of consecutive PUBLISH packets with the same first byte, in columns (section 3.3).

    ``topics`` are raw UTF-8, already validated. ``packet_ids`` is empty at QoS 0.

    At QoS 0 without retain ``packets`` holds the whole packets: exactly the bytes that every
    QoS 0 subscriber is sent, so that nothing has to be encoded. The decoder does not cut the
    payloads out then; ``payloads`` does so when it is first asked for. Otherwise ``packets`` is
    empty.

    Iteration gives one ``Publish`` per message: for tests and paths that are not hot.
    """

    __slots__ = (
        "_payloads",
        "dup",
        "packet_ids",
        "packets",
        "properties",
        "qos",
        "retain",
        "size",
        "topics",
    )
    __hash__ = None  # type: ignore[assignment]  # mutable, as the dataclasses above

    def __init__(self, qos: int, *, retain: bool = False, dup: bool = False) -> None:
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.size = 0
        """Bytes of the packets, where they were decoded."""
        self.topics: list[bytes] = []
        self.packet_ids: list[int] = []
        self.packets: list[bytes] = []
        self.properties: list[Properties | None] | None = None
        self._payloads: list[bytes] = []

    @property
    def payloads(self) -> list[bytes]:
        """The application messages, one per topic."""
        payloads = self._payloads
        if len(payloads) < len(self.packets):
            # A packet's length alone tells how long its Remaining Length field is: the decoder
            # keeps only packets that encode it in as few bytes as possible.
            payloads += [
                packet[4 + len(topic) + (size > 129) + (size > 16386) + (size > 2097155) :]
                for topic, packet in zip(self.topics, self.packets, strict=True)
                for size in (len(packet),)
            ]
        return payloads

    def __len__(self) -> int:
        return len(self.topics)

    def __iter__(self) -> Iterator[Publish]:
        ids = self.packet_ids or [0] * len(self.topics)
        for topic, payload, packet_id in zip(self.topics, self.payloads, ids, strict=True):
            yield Publish(topic, payload, self.qos, self.retain, self.dup, packet_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Publishes):
            return NotImplemented
        return list(self) == list(other)

    def __repr__(self) -> str:
        return f"Publishes({list(self)!r})"


@dataclass(slots=True)
class Acks:
    """A run of consecutive PUBACK, PUBREC, PUBREL or PUBCOMP packets, all of one type."""

    kind: PacketType
    packet_ids: list[int] = field(default_factory=list)
    properties: list[Properties | None] | None = None

    def __len__(self) -> int:
        return len(self.packet_ids)


Packet: TypeAlias = Connect | Publishes | Acks | Subscribe | Unsubscribe | Pingreq | Disconnect
