"""The packets of clients, as values.

Nearly all traffic is PUBLISH and its acknowledgements, and many packets arrive at a time. Hence
those two are batches, ``Publishes`` and ``Acks``: a run of consecutive packets of one kind, in
columns. All other packets are small dataclasses, one each.

Properties of MQTT 5 are typed where the broker obeys them (``ConnectProperties``, a subscription
identifier) and bytes where it passes them on. A *block* is the properties of a message in the form
of a packet, checked, without Topic Alias, Message Expiry Interval first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

UserProperties: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order of the packet; a name may occur more than once."""


class PacketType(IntEnum):
    """MQTT control packet types (section 2.2.1; AUTH in MQTT 5 alone)."""

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
    AUTH = 15


class ConnectCode(IntEnum):
    """CONNACK return codes (section 3.2.2.3)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


BATCH_MIN: Final = 24
"""The least that a batch of similar packets counts as, in packets."""


@dataclass(slots=True)
class Will:
    """The message to be published unless a DISCONNECT with reason 0x00 ends the connection."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay: int = 0
    """Seconds from the end of the connection, Will Delay Interval (MQTT 5, section 3.1.3.2.2)."""
    block: bytes = b""
    """Properties that are sent with it."""


@dataclass(slots=True)
class ConnectProperties:
    """Properties of a CONNECT; absent ones have their defaults (MQTT 5, section 3.1.2.11)."""

    session_expiry: int = 0
    """Seconds for which the session outlives its connection; 0xFFFFFFFF: it does not expire."""
    receive_maximum: int = 65_535
    maximum_packet_size: int = 0
    """Bytes; 0: no limit."""
    topic_alias_maximum: int = 0
    request_response_information: bool = False
    request_problem_information: bool = True
    user: UserProperties = ()
    authentication_method: str | None = None
    authentication_data: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class Connect:
    """A request for a session (section 3.1)."""

    version: int
    """Protocol level: 3 (MQTT 3.1), 4 (MQTT 3.1.1) or 5 (MQTT 5)."""
    client_id: str
    """Empty when the server has to assign one; before MQTT 5 ``clean`` is True in this case."""
    clean: bool
    """Clean Session; in MQTT 5 Clean Start, which does not concern the session's end."""
    keep_alive: int
    """Seconds; 0 turns the keep alive off."""
    will: Will | None = None
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: ConnectProperties | None = None
    """None before MQTT 5."""
    bridge: bool = False
    """Whether another broker connects as a bridge: protocol level 0x83 or 0x84."""


@dataclass(slots=True)
class Subscribe:
    """A request to subscribe (section 3.8)."""

    packet_id: int
    filters: list[tuple[str, int]]
    """(topic filter, requested QoS), in the order of the packet, at least one."""
    options: list[int] = field(default_factory=list)
    """Subscription options without the QoS bits, one byte for each filter; empty before MQTT 5."""
    identifier: int = 0
    """Subscription Identifier; 0: none."""
    user: UserProperties = ()


@dataclass(slots=True)
class Unsubscribe:
    """A request to unsubscribe (section 3.10)."""

    packet_id: int
    filters: list[str]
    """Topic filters, in the order of the packet, at least one."""
    user: UserProperties = ()


@dataclass(slots=True)
class Pingreq:
    """A keep-alive packet that requests an answer (section 3.12)."""


@dataclass(slots=True)
class Disconnect:
    """The client ends its connection (section 3.14), in MQTT 5 with a reason."""

    reason: int = 0
    """0x00: the will is discarded. Otherwise it is published: 0x04 requests that, 0x80 and above
    report an error."""
    session_expiry: int | None = None
    """Session expiry in seconds that replaces the one of the CONNECT."""
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(slots=True)
class Auth:
    """A step of enhanced authentication (MQTT 5, section 3.15)."""

    reason: int
    method: str
    data: bytes | None = field(default=None, repr=False)
    reason_string: str | None = None
    user: UserProperties = ()


class Publish(NamedTuple):
    """One message of a ``Publishes``."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    """0 at QoS 0."""
    block: bytes = b""
    """Properties (MQTT 5)."""


def cut_payloads(
    packets: Sequence[bytes], topics: Sequence[bytes], blocks: Sequence[bytes] | None
) -> list[bytes]:
    """Return the payloads of whole PUBLISH packets at QoS 0.

    ``blocks`` is None before MQTT 5, and empty where no packet has properties. A packet's length
    determines the length of its Remaining Length field: the decoder keeps only packets that encode
    it in as few bytes as possible. The same holds for blocks and Property Lengths.
    """
    head = 4 if blocks is None else 5
    places = (
        repeat(0)
        if not blocks
        else [size + (size > 127) + (size > 16383) for size in map(len, blocks)]
    )
    return [
        packet[head + place + len(topic) + (size > 129) + (size > 16386) + (size > 2097155) :]
        for topic, packet, place in zip(topics, packets, places, strict=False)
        for size in (len(packet),)
    ]


class Publishes:
    """A run of consecutive PUBLISH packets with the same first byte, in columns (section 3.3).

    ``topics`` are raw UTF-8, already validated. ``packet_ids`` is empty at QoS 0.

    At QoS 0 without retain ``packets`` contains the whole packets: exactly the bytes for every
    QoS 0 subscriber at the same level, so that nothing has to be encoded. In this case the decoder
    does not cut out the payloads; ``payloads`` does so at its first use. Otherwise ``packets`` is
    empty, as it is in MQTT 5 where a topic alias was used.

    ``blocks`` is None before MQTT 5. In MQTT 5 it has a block for each message, or is empty if no
    message has properties.

    Iteration yields one ``Publish`` per message: for tests and code that is not time-critical.
    """

    __slots__ = (
        "_payloads",
        "blocks",
        "dup",
        "packet_ids",
        "packets",
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
        """Size of the packets in bytes, where they were decoded."""
        self.topics: list[bytes] = []
        self.packet_ids: list[int] = []
        self.packets: list[bytes] = []
        self.blocks: list[bytes] | None = None
        self._payloads: list[bytes] = []

    @property
    def payloads(self) -> list[bytes]:
        """The application messages, one per topic."""
        payloads = self._payloads
        if len(payloads) < len(self.packets):
            payloads += cut_payloads(self.packets, self.topics, self.blocks)
        return payloads

    def select(self, keep: Sequence[int]) -> Publishes:
        """Return some of the messages; a range is the cheapest selection."""
        part = Publishes(self.qos, retain=self.retain, dup=self.dup)
        if isinstance(keep, range):
            run = slice(keep.start, keep.stop)
            part.topics += self.topics[run]
            part.blocks = self.blocks and self.blocks[run]
            if self.packets:
                part.packets += self.packets[run]
            else:
                part._payloads += self.payloads[run]
            part.packet_ids += self.packet_ids[run]
            return part
        part.topics += [self.topics[at] for at in keep]
        if self.blocks is not None:
            part.blocks = [self.blocks[at] for at in keep] if self.blocks else []
        if self.packets:
            part.packets += [self.packets[at] for at in keep]
        else:
            payloads = self.payloads
            part._payloads += [payloads[at] for at in keep]
        if self.qos:
            part.packet_ids += [self.packet_ids[at] for at in keep]
        return part

    def __len__(self) -> int:
        return len(self.topics)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    def __iter__(self) -> Iterator[Publish]:
        ids = self.packet_ids or [0] * len(self.topics)
        blocks = self.blocks or [b""] * len(self.topics)
        columns = zip(self.topics, self.payloads, ids, blocks, strict=True)
        for topic, payload, packet_id, block in columns:
            yield Publish(topic, payload, self.qos, self.retain, self.dup, packet_id, block)

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
    reasons: Sequence[int] = ()
    """Reason codes, one for each packet; empty if all are 0."""

    def __len__(self) -> int:
        return len(self.packet_ids)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0


Packet: TypeAlias = (
    Connect | Publishes | Acks | Subscribe | Unsubscribe | Pingreq | Disconnect | Auth
)
