"""Interfaces of the other parts of a broker that sessions use; implemented elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from actors.access.rules import TopicAcl
    from actors.kernel.actor import LoopActor
    from actors.session.session_messages import Batch, ClientConnection, Publication
    from eventstore.format.events import ReplayOpened
    from eventstore.format.positions import Position
    from eventstore.log.message_store import Message, StoredMessages
    from projections.state.session import SessionState


S = TypeVar("S")


class SessionDirectory(Protocol[S]):
    """The sessions of a node and their life cycle, a ``SessionRegistry``."""

    @property
    def attached(self) -> int:
        """The number of connected sessions."""

    def session(self, name: str) -> S:
        """Return the actor of a session, activated if it was frozen."""

    def find_session(self, name: str) -> S | None:
        """Return the actor of a session; None: it is frozen, or does not exist."""

    def install(self, session: S) -> None:
        """Make an actor the receiver of its session's messages from now on."""

    def redirect(self, name: str, messages: list[Any]) -> None:
        """Forward messages to the successor of a session that ended."""

    def came_online(self, session: S) -> None:
        """Record that a session is connected now."""

    def went_offline(self, session: S) -> None:
        """Record that a session is disconnected now."""

    def retire(self, session: S, *, running: bool = True) -> None:
        """Stop the actor of a session that ended or is frozen.

        ``running``: the actor itself calls this while it runs.
        """

    def freeze(self, name: str) -> None:
        """Reduce an offline session to the minimum needed to restore it."""

    def add_frozen(self, state: SessionState) -> None:
        """Add a session whose state is already frozen."""

    def watch_expiry(self, state: SessionState) -> None:
        """Check an offline session again when it may have expired."""

    def on_session_failure(self, session: S) -> None:
        """Replace a session that has just failed."""

    def stop_all(self, actors: Sequence[LoopActor]) -> None:
        """Stop actors that get no more messages, gradually if there are many."""

    def load(self, session: S, refs: Sequence[Position]) -> None:
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

    def recorded(
        self, qos: int, content: StoredMessages, refs: Sequence[Position], since: Position
    ) -> None:
        """Send recorded messages of QoS 1 or 2 that take effect in this turn.

        ``refs`` are their positions; they take effect from the position ``since`` on.
        """

    def published(self, publication: Publication) -> None:
        """Send messages of QoS 0 that take effect in this turn."""

    def settle(self) -> None:
        """Record that NATS has everything on disk, if that is so; before a cut of the log."""

    def skipped(self) -> None:
        """Record that NATS does not get what waits now."""

    def report(self) -> dict[str, Any]:
        """Return what operators see of the destination, as the process of the outbox reports it."""

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

    @property
    def taken(self) -> dict[str, Position]:
        """The position up to which each other log was taken."""

    @property
    def partition(self) -> tuple[int, int]:
        """The number of this log among those of the node, and their total number."""

    @property
    def lags(self) -> list[dict[str, Any]]:
        """The logs that are not taken whole: number of records left, and since when, in ms."""

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

    def last_known(self, name: str) -> int:
        """Return the last record that another log is known to have; 0: that is not known yet."""

    def settle(self, filters: Iterable[str]) -> None:
        """Record how far the other logs were taken; called in the turn of new subscriptions."""

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


class AttachedReplay(Protocol):
    """A replay of a connected client: ``actors.replay.replay.Replay``."""

    filter: str

    @property
    def cursor(self) -> Position | None:
        """The last position of the own log that was read; None: it is to be determined."""

    def wake(self) -> None:
        """Look whether a step is possible: the client may have room."""

    def record_cursor(self) -> None:
        """Record how far it has read, if that has changed."""


class ReplayDirectory(Protocol):
    """The replays of a node: ``actors.replay.replays.Replays``."""

    def refuses(
        self,
        session: SessionState,
        connection: ClientConnection,
        topic_filter: str,
        offset: str,
        opened: int,
    ) -> int | ReplayOpened:
        """Return the reason code with which a replay is refused, or the event that opens it."""

    def begin(self, session: Any, topic_filter: str) -> None:
        """Begin or continue a replay that was granted."""

    def end(self, session: Any, topic_filter: str) -> None:
        """End a replay before its subscription ends."""

    def attach(self, session: Any) -> None:
        """Continue the replays of a session whose client has connected."""

    def detach(self, session: Any) -> None:
        """Record the cursors of a session whose connection is about to end."""

    def record_cursors(self) -> None:
        """Record the cursors of all replays: the log is about to be cut."""

    def left_before(self, first: int) -> int:
        """Return how many positions of the node's log replays have to read before a record."""

    def held_before(self, first: int) -> AbstractContextManager[None]:
        """Send no message of the records before one: the log is about to be cut there."""

    def states(self) -> dict[str, int]:
        """Return the number of replays of connected clients by state."""

    @property
    def records_read(self) -> int:
        """The number of records read since the start."""

    @property
    def lag(self) -> int:
        """The largest number of records that a replay has not read yet."""


class LogHold(Protocol):
    """The component that cuts the log: ``actors.maintenance.retention.Retention``."""

    def cuts_suspended(self) -> AbstractContextManager[None]:
        """Suspend cuts while the log is read."""

    @property
    def next_cut(self) -> Position:
        """Position before which the log will be cut soon; 0: that is not known."""
