"""Shared state of all actors of a node: journal, state, router, clock and timers.

The broker creates it and passes it to each actor; no actor refers to the broker. An actor reaches
other sessions through :class:`actors.session.interfaces.SessionDirectory`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pykka
import structlog

from actors.access.rules import BRIDGE
from actors.kernel.clock import LogClock, Timers
from actors.limits.address_networks import network_of
from actors.limits.rejection_log import RejectionLog
from actors.node.activation import Activation
from actors.node.counters import Counters
from actors.node.reload_outcome import ReloadOutcome
from actors.node.retained_pace import RetainedPace
from actors.routing.subscriber import is_shared
from actors.session.content_sealing import NO_KEYS, WITH_PAYLOADS
from actors.session.decisions.publish_admission import NOT_PERMITTED, refused_topic
from actors.session.decisions.queueing import dropped, dropped_unrecorded
from eventstore.display import duration, escaped
from eventstore.format.event_parsing import LogEvent, entries
from eventstore.format.positions import Position, format_position
from eventstore.format.stored_properties import expired_until
from eventstore.log.message_store import MessageStore
from projections.state.client_history import LONGEST_DENIED, ClientHistories
from projections.state.node_state import NodeState
from protocol.mqtt.publish_encoder_v5 import AliasNumbers
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.topics import is_reserved_filter, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from actors.access.credentials import Verdict
    from actors.access.rules import Permissions, TopicAcl
    from actors.kernel.actor import LoopActor
    from actors.kernel.clock import Clock
    from actors.kernel.kernel import Kernel
    from actors.kernel.turn_work import TurnWork
    from actors.limits.broker_options import BrokerOptions
    from actors.limits.client_limits import ClientLimits
    from actors.routing.router import Router
    from actors.session.content_sealing import ContentSealing
    from actors.session.decisions.publish_admission import PublishRules
    from actors.session.decisions.queueing import DeliveryLimits
    from actors.session.interfaces import (
        LogHold,
        MessageExchange,
        NatsBridge,
        PublishObserver,
        ReplayDirectory,
        SessionDirectory,
        SystemTopics,
        TopicObserver,
    )
    from actors.session.personal_names import PersonalNames
    from actors.session.session_messages import ClientConnection, Paused, Publication
    from eventstore.errors import CorruptLog
    from eventstore.format.node_events import ClockJumped
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.journal import Journal
    from eventstore.log.log_writer import LogWriter
    from eventstore.log.message_store import Message
    from projections.state.session import SessionState
    from protocol.errors import FoldmqError
    from protocol.mqtt.packets import Connect


NEVER_EXPIRES = 0xFFFF_FFFF
"""Session expiry that means: as long as the broker permits (MQTT 5, section 3.1.2.11.2)."""


T = TypeVar("T")
_log = structlog.get_logger("foldmq")


class HeldTime(NamedTuple):
    """Time off that a start did not count, because the clock might be wrong."""

    ms: int
    """Milliseconds, by the clock as it is now."""
    until_ms: int
    """Steady time of that start."""


class NodeContext:
    """Shared state of the actors of a node.

    ``failed`` is resolved with an error when the broker must stop immediately.
    """

    def __init__(
        self,
        options: BrokerOptions,
        log: EventLog,
        clock: Clock,
        root: LoopActor,
        software: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.options = options
        self.logs = frozenset({options.node})
        """The names of all logs of the broker."""
        self.log = log
        self.clock = LogClock(clock)
        """The time of the log."""
        self.last_jump: tuple[ClockJumped, Position, int] | None = None
        """The last jump of the clock since the start, its position and steady time."""
        self.held: HeldTime | None = None
        """The time off that the last start with a jump of the clock did not count, if any."""
        self.root = root
        """The actor that supervises connections and sessions."""
        self.directory: SessionDirectory[Any]
        """The sessions of the node."""
        self.activation = Activation(lambda name: self.directory.session(name), clock.stopwatch)
        """Activates the frozen sessions that get a message."""
        self.software = software
        """Version of the running foldmq."""
        self.certificates: list[dict[str, Any]] = []
        """Certificates and credentials with an end, as the status shows them."""
        self.after_turn: list[Callable[[], None]] = []
        """What is to be recorded once the turn is closed."""
        self.kernel: Kernel
        self.turn_work: TurnWork
        """Passes messages on to many receivers."""
        self.state = NodeState()
        """The fold of the log."""
        self.journal: Journal
        self.writer: LogWriter
        self.router: Router
        self.timers = Timers(
            clock.monotonic, lambda delay: self._loop.call_later(delay, self.timers.run_due)
        )
        self.counters = Counters(clock.time_ms())
        self.messages = MessageStore(options.message_cache)
        """Recently published messages."""
        self.alias_numbers = AliasNumbers(options.topic_aliases_out)
        """Topic aliases for packets to clients."""
        self.limits: ClientLimits[Any]
        """All limits on clients."""
        self.delivery_limits: DeliveryLimits
        self.permissions: Authorizer
        self.publish_rules: PublishRules
        """The settings that decide about PUBLISH packets."""
        self.bridge: NatsBridge | None = None
        """The bridge to NATS; None: there is none."""
        self.exchange: MessageExchange | None = None
        """The exchange with the other logs of the node; None: there are none."""
        self.replays: ReplayDirectory
        """The replays of connected clients."""
        self.system_topics: SystemTopics
        self.retention: LogHold
        self.observers: list[PublishObserver] = []
        """Notified of all messages before these are passed to their receivers."""
        self.topic_observers: list[TopicObserver] = []
        """Notified of the messages on some topics."""
        self.clients = ClientHistories()
        """History of each client; recovery replaces it by that from the log and the projections."""
        self.dropped: Counter[str] = Counter()
        """Number of dropped messages by reason, since the start."""
        self.dropped_lines: Callable[[], int] = int
        """Returns the number of lines of the broker's log that were lost."""
        self.memory: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the resident bytes of the process, and their peak."""
        self.paused: dict[Paused, None] = {}
        """Connections that are not read because too much output waits for the disk, in the order in
        which they were paused."""
        self.sealing: ContentSealing | None = None
        """Seals the contents of personal topics; None: there are none, and were none."""
        self.names: PersonalNames | None = None
        """Replaces names of persons; None: there are no patterns of them, and were none."""
        self.erase: Callable[[list[str], str, str, int], bool] | None = None
        """Records in this turn that contents of some topics are erased, which it takes off the
        list; returns whether none is left. Arguments: topics, operator, cause, and the time up to
        which periods ended, 0: all."""
        self.rebuilding: set[str] = set()
        """Failed sessions whose state is currently not in the fold."""
        self.retained_pace = RetainedPace(self)
        self.reload: ReloadOutcome | None = None
        """Outcome of the last reload of the settings; None: there was none since the start."""
        self.crashed_ms = 0
        """Time of the last record of the previous run, if that ended in a crash; otherwise 0."""
        self.damaged: CorruptLog | None = None
        """The first record of the log that was found damaged since the start."""
        self.off_ms = 0
        """Milliseconds between that record and the start."""
        self.recovered = False
        """Whether the state has been recovered from the log."""
        self.unsure = ""
        """Reason why the leader of a cluster accepts no clients; empty: it accepts them."""
        self.admitted_from = 0.0
        """Monotonic time since which clients can connect; infinity while they cannot."""
        self.handing_over = False
        """Whether it shuts down so that another node leads: clients are left to that one."""
        self.draining = False
        """Whether the broker is shutting down."""
        self.failed: asyncio.Future[FoldmqError] = self._loop.create_future()
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks outside turns; they are cancelled when the broker ends."""

    # Events and messages.

    def emit(self, event: LogEvent, payloads: Sequence[bytes] = (), size: int = 0) -> Position:
        """Append an event and fold it; return the position of its first entry."""
        journal, sealing, keys = self.journal, self.sealing, NO_KEYS
        if sealing is not None and type(event) in WITH_PAYLOADS:
            payloads, size, keys = sealing.prepare(event, payloads, size)
        at = journal.append(event, entries(event), payloads, size, keys)
        self.state.apply(event, at, journal.steady_ms, payloads)
        return at

    def record_jump(self, event: ClockJumped) -> None:
        """Record a jump of the clock, for which the journal has begun a record."""
        at, ms = self.emit(event), event.ms
        self.last_jump = event, at, self.clock.steady_ms()
        self.counters.clock_jumps += 1
        if event.seen == "start":
            self.held = HeldTime(ms, self.clock.steady_ms())
        elif self.held is not None:  # the clock was wrong at the start, or is wrong now
            self.held = self.held._replace(ms=self.held.ms + ms)
        if event.seen == "running":
            self.counters.started_ms += ms
            if self.reload is not None:
                self.reload = self.reload._replace(time_ms=self.reload.time_ms + ms)
            direction = "set forward" if ms > 0 else "set back"
            what = f"the clock was {direction}: nothing expires because of it"
        elif ms < 0:
            what = "the clock is behind the last record of the log: nothing expires because of it"
        else:
            what = (
                "the last record of the log is older than max_clock_gap: this time does not count, "
                "and nothing expires because of it; if the clock is right, foldmq confirm-clock "
                "removes the sessions that should have expired, and with max_clock_gap = 0 any "
                "time counts at later starts"
            )
        _log.warning(what, by=duration(abs(ms)), position=format_position(at))

    def count_dropped(self, reason: str, count: int, **whose: str | None) -> None:
        """Count dropped messages; log the first drop for each reason, with the fields ``whose``.

        ``position`` is that of their MessageDropped or Expired; None: they have none.
        """
        if not self.dropped[reason]:
            _log.warning("messages dropped", reason=reason, count=count, **whose)
        self.dropped[reason] += count
        client = whose.get("client")
        if client is not None:
            recorded = whose.get("position") is not None
            self.clients.dropped(client, reason, count, self.clock.time_ms(), recorded=recorded)

    def drop(
        self,
        session: str,
        reason: str,
        refs: Sequence[Position],
        topic_filter: str,
        queued: int = -1,
    ) -> None:
        """Record and count messages that a session does not get.

        ``queued`` are their payload bytes if they left the head of its queue.
        """
        for event in dropped(session, reason, refs, topic_filter, queued):
            where = format_position(self.emit(event))
            self.count_dropped(reason, event.count, client=session, position=where)

    def drop_unrecorded(
        self, session: str, reason: str, topics: Sequence[bytes], topic_filter: str = ""
    ) -> None:
        """Record and count dropped messages without a position, one for each of the topics."""
        at = self.emit(dropped_unrecorded(session, reason, topics, topic_filter))
        where = format_position(at)
        self.count_dropped(reason, len(topics), client=session, position=where)

    def is_erased(self, ref: Position, message: Message) -> bool:
        """Return whether the content of a message is erased."""
        return self.sealing is not None and self.sealing.is_erased(ref, message)

    def tell_session(self, session: Any, message: Any) -> None:
        """Send a message to a session, or to its successor."""
        try:
            self.kernel.tell(session, message)
        except pykka.ActorDeadError:
            self.directory.redirect(session.name, [message])

    def tell_if_alive(self, actor: LoopActor, message: Any) -> None:
        """Send a message to an actor, unless it has stopped."""
        if not actor.stopped:
            self.kernel.tell(actor, message)

    # Observers of messages.

    def add_observer(self, observer: PublishObserver) -> None:
        """Notify an observer of all messages, until it fails or is removed."""
        self.observers = [*self.observers, observer]

    def remove_observer(self, observer: PublishObserver) -> None:
        """Stop notifying an observer; unknown ones are ignored."""
        self.observers = [other for other in self.observers if other is not observer]

    def is_observed(self, topic: str) -> bool:
        """Return whether an observer of topics is notified of the messages on a topic."""
        for observer in self.topic_observers:  # noqa: SIM110 - a generator would take longer
            if observer.observes(topic):
                return True
        return False

    def is_recorded(self, topic: str) -> bool:
        """Return whether messages at QoS 0 on a topic are recorded."""
        return any(matches(topic_filter, topic) for topic_filter in self.options.record_qos0)

    @property
    def hides_names(self) -> bool:
        """Whether the log may not have the names that permissions are given to."""
        return self.names is not None or bool(self.options.pseudonym_key)

    def user_in_log(self, user: str | None) -> str | None:
        """Return the name of a user in the log and elsewhere, such as a token."""
        return user if self.names is None else self.names.user(user)

    def lacks_key(self, topic: bytes) -> bool:
        """Return whether the contents of a topic need a key for which there is no room."""
        return self.sealing is not None and self.sealing.refuses(topic)

    def is_refused(self, topic: bytes) -> bool:
        """Return whether no client may publish to a topic."""
        return bool(refused_topic(topic, self.publish_rules))

    def is_ready(self, topic: bytes) -> bool:
        """Return whether all observers are ready for a message on an observed topic."""
        return all(observer.is_ready(topic) for observer in self.topic_observers)

    def notify_observers(self, publication: Publication) -> None:
        """Notify the observers of all messages; one that fails is removed.

        The bridge is one for messages of QoS 0.
        """
        if self.bridge is not None and not publication.batch.qos:
            self.bridge.published(publication)
        for observer in self.observers:
            try:
                observer.published(publication)
            except Exception as error:  # noqa: BLE001 - the messages are to arrive all the same
                _log.error("observer of messages failed", exc_info=error)
                self.remove_observer(observer)

    # Readiness and failure of the node.

    def fail(self, error: FoldmqError) -> None:
        """Stop the broker: it can no longer keep its guarantees."""
        if not self.failed.done():
            self.failed.set_result(error)

    def not_ready_reasons(self) -> list[str]:
        """Return the reasons why the broker does not serve, or delays, clients; empty: none."""
        if self.failed.done():
            return ["failed"]
        if not self.recovered:
            return ["recovering"]
        reasons = ["stopping"] if self.draining else []
        if self.writer.outage is not None:
            reasons.append(f"the log cannot be written: {self.writer.outage}")
        if self.unsure:
            reasons.append(self.unsure)
        return reasons

    def expires_in(self, state: SessionState) -> float:
        """Return in how many seconds an offline session expires; infinity if it never does."""
        if is_shared(state.session):
            return float("inf")  # it ends with its last member
        limit = float(self.options.session_expiry)
        if state.expiry is not None and not (limit and limit < state.expiry):
            limit = float(state.expiry)
        if not limit or limit >= NEVER_EXPIRES:
            return float("inf")
        return limit - (self.log_ms - state.closed_ms) / 1000

    @property
    def log_ms(self) -> int:
        """The time that the log has for what is decided now, in steady Unix milliseconds."""
        return self.journal.event_ms() if self.recovered else self.clock.steady_ms()

    @property
    def expired_until(self) -> int:
        """The last expiry, in Unix seconds, that has passed by the time of the log."""
        return expired_until(self.log_ms)

    @property
    def will_grace(self) -> int:
        """Seconds for which wills wait after the end of the leader; 0: they do not wait."""
        return math.ceil(self.options.will_grace)

    def will_due_in(self, state: SessionState) -> float:
        """Return in how many seconds the will of an offline session is published; or infinity."""
        if state.will is None or state.connected:
            return float("inf")
        due = state.will.wait - (self.log_ms - state.closed_ms) / 1000
        if not state.will.grace:
            return due
        # The client gets this time from the moment when it can connect again.
        now = self.clock.monotonic()
        return max(due, state.will.grace + min(self.admitted_from, now) - now)

    def in_parts(self, items: Sequence[T], most: int, work: Callable[[T], object]) -> None:
        """Do work for each item: for ``most`` of them now, then in later iterations of the loop."""
        for item in items[:most]:
            work(item)
        if len(items) > most:
            self.spawn_task(self._do_rest(items, most, work))

    async def _do_rest(self, items: Sequence[T], most: int, work: Callable[[T], object]) -> None:
        for begin in range(most, len(items), most):
            await asyncio.sleep(0)
            for item in items[begin : begin + most]:
                work(item)

    def spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work outside turns; it is cancelled when the broker ends."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


_APPLIED_AT_ONCE = 64
"""Number of clients that get changed permissions in one iteration of the event loop."""


class Authorizer:
    """Decides which actions clients may perform; counts and logs refusals."""

    def __init__(self, node: NodeContext, permissions: Permissions) -> None:
        self.permissions: Permissions
        self.refused = RejectionLog("not permitted")
        """Counts and logs refusals by kind: publish, subscribe, history, will, bridge."""
        self.bridge: TopicAcl | None = None
        """The topics that may be exchanged with NATS; None: all."""
        self._node = node
        self.change(permissions)

    def change(self, permissions: Permissions) -> None:
        """Replace the permissions; connected clients get them with :meth:`apply`."""
        self.permissions = permissions
        bridge = permissions.access(BRIDGE, (), BRIDGE)
        self.bridge = None if bridge.open else bridge

    def apply(self, connections: Sequence[ClientConnection]) -> None:
        """Apply the current permissions to the clients of these connections, some at a time."""
        self._node.in_parts(connections, _APPLIED_AT_ONCE, self.apply_to)
        if self._node.bridge is not None:
            self._node.bridge.permissions_changed()

    def apply_to(self, connection: ClientConnection) -> None:
        """Apply the current permissions to the client of a connection."""
        self.grant(connection)
        session = connection.session
        if session is not None and session.connection is connection:
            self._node.router.set_acl(session.name, connection.access)

    def grant(self, connection: ClientConnection) -> None:
        """Set the permissions of a connection whose client has just been authenticated."""
        verdict = connection.identity
        if verdict is not None:
            access = self.access_of(connection, verdict)
            connection.access = None if access.open else access

    def access_of(self, connection: ClientConnection, verdict: Verdict) -> TopicAcl:
        """Return the present permissions of an authenticated client."""
        user = None if verdict.claimed else verdict.user
        return self.permissions.access(user, verdict.groups, connection.given_id, verdict.rules)

    def without_denied_will(self, connection: ClientConnection, connect: Connect) -> str | None:
        """Remove a will without permission from a CONNECT; return its topic, None if none was."""
        will, access = connect.will, connection.access
        if will is None or access is None or access.may_publish(will.topic):
            return None
        self.log_denied("will", connect.client_id, will.topic, connection)
        connect.will = None
        return will.topic

    def deny_publish(
        self, session: str, connection: ClientConnection, topics: Sequence[bytes], *, recorded: bool
    ) -> None:
        """Count messages that a client may not publish; record that if they would have been."""
        node, count = self._node, len(topics)
        self.log_denied("publish", session, topics[0].decode(), connection, count)
        if recorded:
            node.emit(dropped_unrecorded(session, NOT_PERMITTED, topics))
        node.dropped[NOT_PERMITTED] += count
        now_ms = node.clock.time_ms()
        node.clients.dropped(session, NOT_PERMITTED, count, now_ms, recorded=recorded)

    def refuses(self, connection: ClientConnection, topic_filter: str) -> int:
        """Return the reason code with which a subscription is refused; 0: it is permitted.

        The number of subscriptions is not checked.
        """
        if is_reserved_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        reason = self._node.limits.refuses_filter(topic_filter)
        if reason == "wildcards" and connection.deep_filter in (None, topic_filter):
            reason = None  # the standard has no such limit, and here it is not needed
            connection.deep_filter = topic_filter
        if reason is not None:
            now = self._node.clock.monotonic()
            self._node.limits.refused.add(reason, now, client=connection.client_id)
            return ReasonCode.QUOTA_EXCEEDED
        access = connection.access
        if access is not None and not access.may_subscribe(topic_filter):
            self.log_denied("subscribe", connection.client_id, topic_filter, connection)
            return ReasonCode.NOT_AUTHORIZED
        return 0

    def refuses_replay(self, connection: ClientConnection, topic_filter: str) -> int:
        """Return the reason code with which a replay of a filter is refused; 0: it is permitted."""
        code = self.refuses(connection, topic_filter)
        access = connection.access
        if not code and access is not None and not access.may_replay(topic_filter):
            self.log_denied("history", connection.client_id, topic_filter, connection)
            return ReasonCode.NOT_AUTHORIZED
        return code

    def allows_pattern(
        self, session: str, connection: ClientConnection, topic_filter: str, fresh: set[int]
    ) -> bool:
        """Return whether a session may add a filter with this wildcard pattern.

        ``fresh`` are patterns granted to the session that are not in the index yet.
        """
        bounds = self._node.options.bounds
        return self._node.router.patterns.allows(
            session,
            owner_of(connection),
            topic_filter,
            fresh,
            bounds.max_wildcard_patterns,
            bounds.max_wildcard_patterns_total,
        )

    def to_nats(self, topic: bytes) -> bool:
        """Return whether messages on a topic may be sent to NATS."""
        return self.bridge is None or self.bridge.read[topic]

    def from_nats(self, topic: bytes) -> bool:
        """Return whether a message received from NATS may be published."""
        if self.bridge is None or self.bridge.publish[topic]:
            return True
        self.log_denied("bridge", BRIDGE, topic.decode(), None)
        return False

    def log_denied(
        self,
        what: str,
        client: str | None,
        topic: str,
        connection: ClientConnection | None,
        count: int = 1,
    ) -> None:
        """Count and log a refusal of an action of a kind."""
        about: dict[str, str | None] = {}
        if connection is not None:
            about["address"] = connection.address
            identity = connection.identity
            about["user"] = self._node.user_in_log(identity.user) if identity is not None else None
        topic = escaped(topic, LONGEST_DENIED)
        if client is not None:
            now_ms, user = self._node.clock.time_ms(), self._denied_as(connection)
            self._node.clients.denied(client, what, topic, count, now_ms, user)
        now = self._node.clock.monotonic()
        self.refused.add(what, now, count, client=client, topic=topic, **about)

    def _denied_as(
        self, connection: ClientConnection | None
    ) -> tuple[str | None, tuple[str, ...]] | None:
        """Return the user and groups for which the permission file denied an action.

        None: other rules denied it, or the names that they apply to are hidden.
        """
        verdict = connection.identity if connection is not None else None
        if verdict is None or verdict.rules is not None or self._node.hides_names:
            return None
        return None if verdict.claimed else verdict.user, verdict.groups


def owner_of(connection: ClientConnection) -> str:
    """Return the user or network to which a client's share of limits for all sessions counts."""
    verdict = connection.identity
    if verdict is not None and verdict.user is not None and not verdict.claimed:
        return f"user {verdict.user}"
    return network_of(connection.host)
