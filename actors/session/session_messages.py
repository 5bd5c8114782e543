"""Messages among connections, sessions and subscriptions. MQTT messages are passed in batches.

The properties of MQTT 5 messages are the ``blocks`` of a batch: bytes that only ``protocol.mqtt``
reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from actors.access.credentials import Verdict
from actors.access.enhanced import Step
from actors.access.rules import TopicAcl
from actors.node.operator_commands import OperatorCommand
from actors.routing.subscriber import Subscriber
from eventstore.format.positions import Position
from eventstore.log.journal import Journal
from eventstore.log.message_store import Message, StoredMessages
from eventstore.log.pending_record import OutputSink
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.encoder import PublishEncoder
from protocol.mqtt.packets import (
    Connect,
    ConnectCode,
    ConnectProperties,
    Packet,
    PacketType,
    Publishes,
    cut_payloads,
)
from protocol.mqtt.publish_encoder_v5 import PacketVariant, prepare_publishes

T = TypeVar("T")

VARIANTS_V5: Final = tuple(PacketVariant(qos) for qos in range(3))
"""The variants that most MQTT 5 receivers share, by QoS."""
NEXT_TURN: Final = object()
"""Yielded by longer work: the next part is a separate turn, and others run in between. If a number
is yielded, the next part begins after that many seconds."""
SAME_TURN: Final = object()
"""Yielded by longer work: the next part belongs to the same turn, but the event loop may run
first. No other actor runs before it, so the work must not wait for one, ``TurnWork`` included."""


_AS_PUBLISHED: Final = 8
"""Marks the QoS of packets with RETAIN, for bridges."""
NOT_LOGGED: Final[tuple[int, int]] = (0, 0)
"""In place of the positions of messages that are not recorded."""


class Paused(Protocol):
    """A connection whose input is paused."""

    def resume(self, reason: int) -> None:
        """Remove a reason for the pause; resume reading if it was the last one."""


class AcknowledgementCount(OutputSink, Protocol):
    """The broker's Receive Maximum: ``actors.connection.receive_window.ReceiveWindow``."""

    def acknowledge(
        self,
        journal: Journal,
        kind: PacketType,
        packet_ids: Sequence[int],
        reasons: Sequence[int] = (),
    ) -> None:
        """Count acknowledgements handed to the gate."""


class ClientConnection(OutputSink, Paused, Protocol):
    """The connection of a client: ``actors.connection.connection.Connection`` describes it."""

    access: TopicAcl | None
    address: str
    caused: int
    client_id: str | None
    connected_ms: int
    counted_user: str | None
    ignores_input: bool
    deep_filter: str | None
    ended: bool
    id_assigned: bool
    given_id: str
    host: str
    identity: Verdict | None
    last_ack: float
    last_read: float
    max_packet: int
    messages_in: int
    messages_out: int
    pace: float
    packets_in: int
    paused: int
    properties: ConnectProperties | None
    session: Any
    starved: bool
    writable: bool

    @property
    def actor_urn(self) -> str:
        """The name of the connection's actor."""

    @property
    def authentication_data(self) -> bytes | None:
        """Authentication Data of the login's method for the CONNACK."""

    @property
    def receive_window(self) -> AcknowledgementCount | None:
        """Counts unacknowledged publications of the client; None: they are not limited."""

    @property
    def via(self) -> str:
        """Name of the node that the client is connected to; empty: this one."""

    @property
    def gone(self) -> bool:
        """True once the client has closed its socket, also while nothing is read from it."""

    @property
    def unhandled(self) -> bool:
        """Whether some input was read but not handled yet."""

    @property
    def unsent(self) -> int:
        """Bytes in transit to the client: at the gate, or not read by the client yet."""

    def attached(self, session: Any, keep_alive: int) -> None:
        """Begin to pass packets to a session, which has accepted the CONNECT."""

    def pause(self, reason: int) -> None:
        """Stop reading until every reason for the pause is removed."""

    def throttle_publisher(self, publisher: ClientConnection, count: int) -> None:
        """Pause a publisher until this client, which reads too slowly, has caught up."""

    def on_part_done(self, seconds: float) -> None:
        """Adapt the length of further parts of longer work to the duration of the last one."""

    def ignore_input(self) -> None:
        """Ignore further input of the client, whose connection is about to be closed."""

    def refuse(self, code: ConnectCode, reason: str) -> None:
        """Answer the CONNECT with a return code other than 0 and close [MQTT-3.2.2-5]."""

    def close(self, reason: str, code: int = 0) -> None:
        """Close the connection once the output waiting at the gate has been written.

        ``code`` is the reason code for an MQTT 5 client; 0: the one that belongs to ``reason``.
        """

    def close_soon(self, reason: str) -> None:
        """Close the connection after the messages already in its mailbox."""

    def close_when_written(self) -> None:
        """Close the transport after the output handed to the gate so far."""

    def abort(self, reason: str) -> None:
        """Close immediately, without waiting for output at the gate."""


class Batch:
    """Messages for the subscribers that match all of them.

    The output is prepared once for each variant, however many receivers there are.
    """

    __slots__ = (
        "_blocks",
        "_payloads",
        "_prepared",
        "_publishers",
        "_topics",
        "_whole",
        "expired",
        "expires",
        "gated",
        "packets",
        "positions",
        "published_retain",
        "publisher",
        "qos",
        "retain",
        "size",
    )

    def __init__(
        self,
        qos: int,
        topics: Sequence[bytes],
        payloads: Sequence[bytes],
        refs: Sequence[Position],
        *,
        size: int = 0,
        retain: bool = False,
        packets: Sequence[bytes] = (),
        publisher: ClientConnection | None = None,
        gated: bool = False,
        blocks: Sequence[bytes] | None = None,
        published_retain: bool = False,
        expires: Sequence[int] = (),
        publishers: Sequence[ClientConnection] = (),
        expired: bool = False,
    ) -> None:
        self.qos = qos
        """QoS of the publication."""
        self._topics = topics
        self._whole: tuple[Batch, Sequence[int]] | None = None
        """The batch that this one is a part of, and the indices of its messages there; None once
        topics and properties of the part have been read."""
        self._payloads = payloads
        self._blocks = blocks
        self.positions = refs
        """Positions of the messages; empty at QoS 0."""
        self.size = size
        """Sum of the payload sizes in bytes (0 at QoS 0)."""
        self.retain = retain
        """Whether it is sent because of a new subscription, not a publication [MQTT-3.3.1-8]."""
        self.packets = packets
        """At QoS 0: the whole packets, which receivers at the same protocol level get unchanged."""
        self.expires = expires
        """Expiry of each message, Unix time in seconds, 0: never; empty: no message expires."""
        self.expired = expired
        """Whether all messages had expired when they took effect: they are not delivered."""
        self.published_retain = published_retain
        """Whether the publications had RETAIN 1, which subscriptions with Retain As Published
        get."""
        self.publisher = publisher
        """The publishing connection, which is slowed down for receivers that do not keep up; the
        last one if there are several."""
        self._publishers = publishers
        """The connection that published each message; empty: one connection published all."""
        self.gated = gated
        """Whether it waits for the disk even at QoS 0: a will, which would otherwise be published
        again after a crash."""
        self._prepared: dict[PacketVariant | int, PublishEncoder | bytes] = {}

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.packets) or len(self._topics)

    def __repr__(self) -> str:
        """Return a description without payloads."""
        return f"Batch({len(self)} messages, QoS {self.qos})"

    def by_publisher(self) -> Iterable[tuple[ClientConnection, int]]:
        """Return the number of messages of each publishing connection."""
        if self._publishers:
            return Counter(self._publishers).items()
        return ((self.publisher, len(self)),) if self.publisher is not None else ()

    @property
    def topics(self) -> Sequence[bytes]:
        """The topic of each message."""
        if self._whole is not None:
            self._cut(*self._whole)
        return self._topics

    @property
    def blocks(self) -> Sequence[bytes] | None:
        """Properties of each message; empty: none has any.

        None: ``packets`` are not MQTT 5 packets.
        """
        if self._whole is not None:
            self._cut(*self._whole)
        return self._blocks

    @blocks.setter
    def blocks(self, blocks: Sequence[bytes]) -> None:
        self._blocks = blocks

    def _cut(self, whole: Batch, chosen: Sequence[int]) -> None:
        """Copy topics and properties from the batch that this one is a part of."""
        self._whole = None
        topics, blocks = whole.topics, whole.blocks
        self._topics = [topics[at] for at in chosen]
        if blocks:
            self._blocks = [blocks[at] for at in chosen]

    @property
    def payloads(self) -> Sequence[bytes]:
        """The payloads; cut from the packets on first access."""
        if self.packets and not self._payloads:
            self._payloads = cut_payloads(self.packets, self.topics, self.blocks)
        return self._payloads

    def prepared(self, qos: int, *, as_published: bool = False) -> PublishEncoder:
        """Return the encoder of the messages at a granted QoS of 1 or 2, before MQTT 5.

        ``as_published``: with RETAIN, for a bridge.
        """
        key = qos | _AS_PUBLISHED if as_published else qos
        encoder = self._prepared.get(key)
        if encoder is None:
            retain = self.retain or as_published
            encoder = PublishEncoder(self.topics, self.payloads, qos, retain=retain)
            self._prepared[key] = encoder
        return encoder  # type: ignore[return-value]  # bytes stand under QoS 0 only

    def prepared5(
        self, variant: PacketVariant, numbers: Mapping[bytes, int] | None = None
    ) -> PublishEncoder:
        """Return the encoder of the messages for MQTT 5 receivers that share a variant.

        ``numbers`` are the topic aliases of this node, for a variant that uses them.
        """
        encoder = self._prepared.get(variant)
        if encoder is None:
            encoder = self._prepared[variant] = prepare_publishes(
                self.topics, self.payloads, self.blocks or (), variant, numbers
            )
        return encoder  # type: ignore[return-value]  # variants stand for these

    def at_qos0(self, *, as_published: bool = False) -> bytes:
        """Return the messages as QoS 0 packets, before MQTT 5; ``as_published``: see above."""
        key = _AS_PUBLISHED if as_published else 0
        data = self._prepared.get(key)
        if data is None:
            if self.packets and self._blocks is None:
                data = b"".join(self.packets)
            else:
                retain = self.retain or as_published
                data = PublishEncoder(self.topics, self.payloads, 0, retain=retain).render(())
            self._prepared[key] = data
        return data  # type: ignore[return-value]  # bytes stand under 0

    def at_qos0_v5(self, variant: PacketVariant) -> bytes:
        """Return the messages as QoS 0 packets of MQTT 5."""
        if self.packets and self._blocks is not None and variant is VARIANTS_V5[0]:
            data = self._prepared.get(MQTT_5)
            if data is None:
                data = self._prepared[MQTT_5] = b"".join(self.packets)
            return data  # type: ignore[return-value]  # bytes stand under MQTT_5
        return self.prepared5(variant).render()

    def select(self, keep: Sequence[int]) -> Batch:
        """Return some of the messages."""
        # Receivers of whole packets rarely need their topics and properties.
        is_run = isinstance(keep, range) and keep.step == 1
        whole = (self, keep) if self.packets and not self._payloads and not is_run else None
        payloads = _some(self._payloads, keep)
        blocks = self._blocks if whole is not None else self.blocks
        part = Batch(
            self.qos,
            () if whole else _some(self.topics, keep),
            payloads,
            _some(self.positions, keep),
            size=sum(map(len, payloads)) if self.qos else 0,
            retain=self.retain,
            packets=_some(self.packets, keep),
            publisher=self.publisher,
            gated=self.gated,
            blocks=_some(blocks, keep) if blocks and whole is None else blocks,
            published_retain=self.published_retain,
            expires=_some(self.expires, keep),
            publishers=_some(self._publishers, keep),
            expired=self.expired,
        )
        part._whole = whole
        return part

    def stored(self) -> StoredMessages:
        """Return the messages as they are kept in memory for a client."""
        publisher = self.publisher
        return StoredMessages(
            0,
            self.topics,
            self.payloads,
            self.size,
            self.blocks or (),
            self.expires,
            self.published_retain,
            () if publisher is None else (publisher.client_id or "",),
        )


def _some(column: Sequence[T], keep: Sequence[int]) -> Sequence[T]:
    """Return some values of a column; an empty one has none."""
    if not column:
        return ()
    if isinstance(keep, range) and keep.step == 1:
        return column[keep.start : keep.stop]
    return [column[at] for at in keep]


class Outgoing(NamedTuple):
    """Messages to be delivered, sent by a subscription to its session."""

    subscriber: Subscriber
    batch: Batch
    qos: int
    """The lower of the publication's and the granted QoS [MQTT-3.8.4-6]."""


class DeniedMessages(NamedTuple):
    """Messages that the client of a subscription may not read; the subscription records them."""

    refs: Sequence[Position]


class Publication(NamedTuple):
    """Messages that take effect now, for observers."""

    session: str
    """The publishing session."""
    batch: Batch
    """The messages for all receivers; it also keeps the packets encoded for them."""
    content: Publishes | StoredMessages
    """The same messages alone: for observers that keep them."""
    took_effect: tuple[Position, Position] = NOT_LOGGED
    """Positions of the first and the last entry with which they take effect; 0: they are not
    recorded."""
    taken: bool = False
    """Whether they come from another broker."""
    restricted: bool = False
    """Whether they are only for the clients of some users."""


class ConnectRequest(NamedTuple):
    """An authenticated connection requests its session."""

    connection: ClientConnection
    connect: Connect


class ConnectionAttached(NamedTuple):
    """The broker attaches a new connection to a session."""

    connection: ClientConnection
    connect: Connect
    denied_will: str | None = None
    """Topic of the will that was removed from CONNECT because it is not permitted."""


class Packets(NamedTuple):
    """The packets of one read from the client."""

    connection: ClientConnection
    packets: list[Packet]

    def __repr__(self) -> str:
        """Return the kinds of the packets, without payloads."""
        return f"Packets({', '.join(type(packet).__name__ for packet in self.packets)})"


class ConnectionDetached(NamedTuple):
    """The connection ended. ``orderly``: with a DISCONNECT, so the will is discarded."""

    connection: ClientConnection | None
    reason: str
    orderly: bool
    code: int = 0
    """Reason code of the client's DISCONNECT (MQTT 5)."""
    expiry: int | None = None
    """Session expiry in seconds that replaces that of the CONNECT; None: it stays."""


class Retry(NamedTuple):
    """The end of a connection, sent again to a session that failed while handling it."""

    message: ConnectionDetached
    attempts: int
    """Number of attempts so far."""


class ChangeQos(NamedTuple):
    """A subscription was renewed with another QoS, which applies to messages from here on."""

    qos: int


class Writable(NamedTuple):
    """The connection accepts more bytes again."""

    connection: ClientConnection


class Loaded(NamedTuple):
    """Requested messages were read from the log."""

    messages: dict[Position, Message]


class ContinueSending(NamedTuple):
    """A session continues to send queued messages."""


class AckCheck(NamedTuple):
    """Time to check for deliveries that were not acknowledged within ``ack_wait``."""


class Freeze(NamedTuple):
    """An offline session that was idle for a while may be frozen."""


class Kick(NamedTuple):
    """An operator closes the client's connection."""

    command: OperatorCommand


class Remove(NamedTuple):
    """An operator removes the session."""

    command: OperatorCommand
    offline_before_ms: int
    """Remove only if offline since this Unix time in milliseconds or earlier; 0: always."""


class Expire(NamedTuple):
    """Time to check whether an offline session has expired."""


class Authenticated(NamedTuple):
    """User name and password of a CONNECT were checked."""

    connect: Connect
    verdict: Verdict


class AuthenticationStep(NamedTuple):
    """A step of enhanced authentication was decided."""

    login: LoginInSteps
    step: Step


class LoginInSteps(Protocol):
    """An exchange of AUTH packets: ``actors.connection.enhanced_login.EnhancedLogin``."""

    def decided(self, message: AuthenticationStep) -> None:
        """Continue with the answer of the method."""


class Close(NamedTuple):
    """Close a connection."""

    reason: str
