"""Interfaces of the other parts of a broker that sessions use; implemented elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from eventstore.log.pending_record import OutputSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from actors.access.credentials import Verdict
    from actors.access.rules import TopicAcl
    from actors.kernel.actor import LoopActor
    from actors.session.session import Session
    from actors.session.session_messages import Batch, Publication
    from eventstore.format.positions import Position
    from eventstore.log.journal import Journal
    from eventstore.log.message_store import Message
    from projections.state.session import SessionState
    from protocol.mqtt.packets import ConnectCode, ConnectProperties, PacketType


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
    """The connection of a client: ``actors.connection.connection.Connection``."""

    access: TopicAcl | None
    """Permissions to publish and subscribe; None: unrestricted."""
    address: str
    caused: int
    """Number of deliveries caused by the client's publications."""
    client_id: str | None
    counted_user: str | None
    """The user whose connections include this one; None: not counted."""
    ignores_input: bool
    """Whether the connection is about to be closed, so that unhandled input is ignored."""
    deep_filter: str | None
    """The one filter that may have more wildcards than usual."""
    id_assigned: bool
    """Whether the broker assigned the client identifier."""
    given_id: str
    """The client's own client identifier; others see ``client_id``."""
    host: str
    """Host of the client, without the port; empty if it is not known yet, or there is none."""
    identity: Verdict | None
    last_ack: float
    """``last_read`` when the client last acknowledged a delivery."""
    last_read: float
    """Time of the last read after the CONNECT, in seconds of the node's clock."""
    max_packet: int
    """Maximum size in bytes of packets from the client."""
    messages_in: int
    messages_out: int
    pace: float
    """Fraction of the usual work that the client may cause in one turn while others wait."""
    packets_in: int
    properties: ConnectProperties | None
    """Properties of the CONNECT of an MQTT 5 client; None: the client speaks MQTT 3.1 or 3.1.1."""
    session: Session | None
    starved: bool
    """Whether messages were queued because too many bytes waited at the gate."""
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
    def ended(self) -> bool:
        """True once the connection is closed or being closed."""

    @property
    def via(self) -> str:
        """Name of the node that the client is connected to; empty: this one."""

    @property
    def gone(self) -> bool:
        """True once the client has closed its socket, also while nothing is read from it."""

    @property
    def paused(self) -> int:
        """The reasons why reading is paused; 0: it is not."""

    @property
    def unhandled(self) -> bool:
        """Whether some input was read but not handled yet."""

    @property
    def unsent(self) -> int:
        """Bytes in transit to the client: at the gate, or not read by the client yet."""

    def attached(self, session: Session, keep_alive: int) -> None:
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


class SessionDirectory(Protocol):
    """The sessions of a node and their life cycle, a ``SessionRegistry``."""

    @property
    def attached(self) -> int:
        """The number of connected sessions."""

    def session(self, name: str) -> Session:
        """Return the actor of a session, activated if it was passive."""

    def find_session(self, name: str) -> Session | None:
        """Return the actor of a session; None: it is passive, or does not exist."""

    def install(self, session: Session) -> None:
        """Make an actor the receiver of its session's messages from now on."""

    def redirect(self, name: str, messages: list[Any]) -> None:
        """Forward messages to the successor of a session that ended."""

    def came_online(self, session: Session) -> None:
        """Record that a session is connected now."""

    def went_offline(self, session: Session) -> None:
        """Record that a session is disconnected now."""

    def retire(self, session: Session, *, running: bool = True) -> None:
        """Stop the actor of a session that ended or is passive.

        ``running``: the actor itself calls this while it runs.
        """

    def passivate(self, name: str) -> None:
        """Reduce an offline session to the minimum needed to restore it."""

    def take_passive(self, state: SessionState) -> None:
        """Add a session whose state is already frozen."""

    def watch_expiry(self, state: SessionState) -> None:
        """Check an offline session again when it may have expired."""

    def on_session_failure(self, session: Session) -> None:
        """Replace a session that has just failed."""

    def stop_all(self, actors: Sequence[LoopActor]) -> None:
        """Stop actors that get no more messages, gradually if there are many."""

    def load(self, session: Session, refs: Sequence[Position]) -> None:
        """Read messages from the log; the session gets ``Loaded``."""


class PublishObserver(Protocol):
    """Notified of messages, such as the bridge to NATS: see ``NodeContext.observers``."""

    def published(self, publication: Publication) -> None:
        """Handle messages that take effect in this turn."""


class TopicObserver(PublishObserver, Protocol):
    """Notified of the messages on some topics, after these were passed to their receivers.

    It is notified of whole batches, some messages of which may have other topics.
    """

    def observes(self, topic: str) -> bool:
        """Return whether to notify it of messages on a topic; asked when the topic is looked up."""

    def is_ready(self, topic: bytes) -> bool:
        """Return whether a message on an observed topic may be published in this turn."""


class NatsBridge(Protocol):
    """The bridge to NATS: ``actors.bridge.bridge_supervisor.BridgeSupervisor``."""

    def await_proof(self) -> None:
        """Hold messages without a record until the events of this turn are on disk."""

    def permissions_changed(self) -> None:
        """Update the bridge to changed permissions."""

    def announce(self, filters: Sequence[str]) -> None:
        """Count filters before a client subscribes to them; each call counts them once more."""

    def withdraw(self, filters: Sequence[str]) -> None:
        """End what one call announced: the client has subscribed, or will not."""

    @property
    def filter_changes(self) -> int:
        """The number of changes of filters that the bridges of other logs must know."""

    def is_known(self, changes: int) -> bool:
        """Return whether the bridges of other logs have subscribed for this number of changes."""

    def reported(self, log: str, report: bytes) -> None:
        """Process a report of the bridge of another log."""


class MessageExchange(Protocol):
    """The exchange with the other logs of a node: ``actors.exchange.exchange.LogExchange``."""

    def published(self, batch: Batch) -> None:
        """Note messages that take effect in this turn; pass on those of QoS 0."""

    def pass_on(
        self,
        topics: Sequence[bytes],
        payloads: Sequence[bytes],
        blocks: Sequence[bytes] | None,
        *,
        retain: bool = False,
    ) -> None:
        """Send messages of QoS 0 to the other brokers."""

    def await_proof(self) -> None:
        """Hold messages without a record until the events of this turn are on disk."""

    def settle(self) -> None:
        """Record how far the other logs were taken; called in the turn of a new subscription."""

    def home_of(self, name: str) -> str:
        """Return the log that is the home of a shared subscription; empty: this one."""

    def part_began(self, name: str, at: Position) -> None:
        """Record where the part of a shared subscription in this log began."""

    def part_ended(self, name: str) -> None:
        """Record that a part has ended."""

    def is_known(self, name: str) -> bool:
        """Return whether the home of a shared subscription knows that this log has members."""

    def give_back(self, name: str, returned: dict[Position, Message]) -> None:
        """Return a client's unacknowledged messages to the home: this log has no more members."""

    def offer(self, name: str, measure: Callable[[], tuple[int, int]]) -> None:
        """Report the number of connected members, and their room, to a shared subscription's home.

        ``measure`` returns both. It is called soon, and again from time to time.
        """

    def pass_shared(self, log: str, name: str, batch: Batch) -> None:
        """Send messages of QoS 0 to the part of a shared subscription in another log."""

    @property
    def sessions(self) -> int:
        """The number of sessions that represent other logs."""

    @property
    def catching_up(self) -> bool:
        """Whether this log still takes messages that the others had when the broker started."""

    @property
    def last_to_take(self) -> Position:
        """The last position that other logs must take; after it there are only positions."""

    def is_taken(self, through: Position) -> bool:
        """Return whether all other logs have recorded that they took this one up to a position."""


class SystemTopics(Protocol):
    """The topics ``$SYS/...``: ``actors.inspection.sys_topics.SysTopicTree``."""

    def retained(self, topic_filter: str, access: TopicAcl | None = None, /) -> Batch | None:
        """Return the messages that a new subscription gets immediately; None: there are none."""


class LogHold(Protocol):
    """The component that cuts the log: ``actors.maintenance.retention.Retention``."""

    def cuts_suspended(self) -> AbstractContextManager[None]:
        """Suspend cuts while the log is read."""
