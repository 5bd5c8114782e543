"""The other parts of a broker as sessions see them: interfaces, implemented elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from eventstore.log import OutputSink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from actors.authn import Verdict
    from actors.authz import TopicAcl
    from actors.kernel import LoopActor
    from actors.session.session import Session
    from actors.session.session_messages import Batch
    from eventstore.format import Position
    from eventstore.log import Journal, StoredMessages
    from projections.state import SessionState
    from protocol.mqtt import ConnectCode, ConnectProperties, PacketType, Publishes


class Paused(Protocol):
    """Something whose input waits."""

    def resume(self, reason: int) -> None:
        """Take back a reason to pause; read again if it was the last one."""


class AcknowledgementCount(OutputSink, Protocol):
    """The broker's Receive Maximum: ``actors.connection.receive_window.ReceiveWindow``."""

    def acknowledge(
        self,
        journal: Journal,
        kind: PacketType,
        packet_ids: Sequence[int],
        reasons: Sequence[int] = (),
    ) -> None:
        """Count answers that are handed to the gate."""


class ClientConnection(OutputSink, Paused, Protocol):
    """The connection of a client: ``actors.connection.connection.Connection``."""

    access: TopicAcl | None
    """What the client may publish and subscribe to; None: everything."""
    address: str
    caused: int
    """Deliveries of what it published."""
    client_id: str | None
    counted_user: str | None
    """User whose connections it is counted among."""
    ignores_input: bool
    """It is about to be closed: what it sent and is not handled yet does not count."""
    deep_filter: str | None
    """The one filter with more wildcards than others may have."""
    id_assigned: bool
    """The client has its identifier from the broker."""
    given_id: str
    """The client identifier that the client has for itself; others see ``client_id``."""
    host: str
    """Where the client is, without the port; empty while that is not known, or nowhere."""
    identity: Verdict | None
    last_read: float
    """When something was read behind the CONNECT, seconds of the node's clock."""
    max_packet: int
    """Bytes of the largest packet that the client may send."""
    messages_in: int
    messages_out: int
    pace: float
    """The part of the usual work that this client may cause in one turn while others wait."""
    packets_in: int
    properties: ConnectProperties | None
    """What the CONNECT of an MQTT 5 client said; None: it speaks MQTT 3.1 or 3.1.1."""
    session: Session | None
    starved: bool
    """Something was queued because too much waited at the gate already."""
    writable: bool

    @property
    def actor_urn(self) -> str:
        """The name of its actor."""

    @property
    def authentication_data(self) -> bytes | None:
        """What the method of the client's login has for the CONNACK."""

    @property
    def receive_window(self) -> AcknowledgementCount | None:
        """Counts what the client published and was not acknowledged; None: that has no bound."""

    @property
    def ended(self) -> bool:
        """True once the connection is closed or being closed."""

    @property
    def unsent(self) -> int:
        """Bytes on their way to the client: at the gate, and not taken by it yet."""

    def attached(self, session: Session, keep_alive: int) -> None:
        """Begin to pass packets on to a session; it accepted the CONNECT."""

    def pause(self, reason: int) -> None:
        """Read nothing more until every reason to pause is gone."""

    def throttle_publisher(self, publisher: ClientConnection, count: int) -> None:
        """Pause a publisher until this client, which reads too slowly, has caught up."""

    def on_part_done(self, seconds: float) -> None:
        """Make the next parts of longer work shorter, or longer, after one of this client's."""

    def ignore_input(self) -> None:
        """Ignore further input of the client, whose connection is about to be closed."""

    def refuse(self, code: ConnectCode, reason: str) -> None:
        """Answer the CONNECT with a return code other than 0 and close [MQTT-3.2.2-5]."""

    def close(self, reason: str, code: int = 0) -> None:
        """Close the connection once what waits at the gate for it has been written.

        ``code`` is the reason code for an MQTT 5 client; 0: the one that belongs to ``reason``.
        """

    def close_soon(self, reason: str) -> None:
        """Close the connection when what it was told before is done."""

    def close_when_written(self) -> None:
        """Close the transport behind what was handed to the gate until now."""

    def abort(self, reason: str) -> None:
        """Close at once, whatever waits at the gate."""


class SessionDirectory(Protocol):
    """The sessions of a node, and what becomes of them: the broker."""

    @property
    def attached(self) -> int:
        """The number of sessions that are connected."""

    def session(self, name: str) -> Session:
        """Return the actor of a session, activated if it was passive."""

    def find_session(self, name: str) -> Session | None:
        """Return the actor of a session; None: it is passive, or there is none."""

    def install(self, session: Session) -> None:
        """Make an actor the one that a session is reached by, from now on."""

    def redirect(self, name: str, messages: list[Any]) -> None:
        """Tell messages to the session that took the place of one that ended."""

    def came_online(self, session: Session) -> None:
        """Record that a session has a connection now."""

    def went_offline(self, session: Session) -> None:
        """Record that a session has no connection now."""

    def retire(self, session: Session, *, running: bool = True) -> None:
        """Stop the actor of a session that ended or is passive.

        ``running``: it is the running actor, and asks for it itself.
        """

    def passivate(self, name: str) -> None:
        """Keep of an offline session no more than it takes to have it back."""

    def take_passive(self, state: SessionState) -> None:
        """Add a session that is frozen already."""

    def watch_expiry(self, state: SessionState) -> None:
        """Look at an offline session again when it may have expired."""

    def on_session_failure(self, session: Session) -> None:
        """Put a successor in the place of a session that has just failed."""

    def stop_all(self, actors: Sequence[LoopActor]) -> None:
        """Stop actors that get no more messages; many of them little by little."""

    def load(self, session: Session, refs: Sequence[Position]) -> None:
        """Read messages from the log; the session gets ``Loaded``."""


class PublicationBridge(Protocol):
    """What exchanges messages with NATS: ``actors.bridge.host.BridgeSupervisor``."""

    def packets(self, client: str, packet: Publishes, publisher: ClientConnection | None) -> None:
        """Send QoS 0 messages that are not retained, as whole packets of ``publisher``."""

    def published(
        self,
        client: str,
        qos: int,
        content: StoredMessages,
        refs: Sequence[Position],
        took_effect: tuple[Position, Position],
        *,
        retain: bool,
        gated: bool,
    ) -> None:
        """Take messages that take effect in this turn, with the entries between two positions."""

    def permissions_changed(self) -> None:
        """Have the bridge look anew at what it may exchange."""


class SystemTopics(Protocol):
    """The topics ``$SYS/...``: ``actors.inspection.sys_topics.SysTopicTree``."""

    def retained(self, topic_filter: str, access: TopicAcl | None = None, /) -> Batch | None:
        """Return what a new subscription gets at once; None: nothing."""


class LogHold(Protocol):
    """What cuts the log: ``actors.maintenance.retention.Retention``."""

    def holding_still(self) -> AbstractContextManager[None]:
        """Cut nothing off while the log is read."""
