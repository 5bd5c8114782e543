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

from actors.kernel.clock import LogClock, Timers
from actors.node.activation import Activation
from actors.node.counters import Counters
from actors.node.reload_outcome import ReloadOutcome
from actors.node.retained_pace import RetainedPace
from actors.routing.subscriber import is_shared
from actors.session.decisions.publish_admission import refused_topic
from actors.session.decisions.queueing import dropped
from eventstore.display import duration
from eventstore.format.event_parsing import LogEvent, entries
from eventstore.format.positions import Position, format_position
from eventstore.format.stored_properties import expired_until
from eventstore.log.message_store import MessageStore
from projections.state.client_history import ClientHistories
from projections.state.node_state import NodeState
from protocol.mqtt.publish_encoder_v5 import AliasNumbers

NEVER_EXPIRES = 0xFFFF_FFFF
"""Session expiry that means: as long as the broker permits (MQTT 5, section 3.1.2.11.2)."""

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from actors.kernel.actor import LoopActor
    from actors.kernel.clock import Clock
    from actors.kernel.kernel import Kernel
    from actors.kernel.turn_work import TurnWork
    from actors.limits.broker_options import BrokerOptions
    from actors.limits.client_limits import ClientLimits
    from actors.routing.router import Router
    from actors.session.authorization import Authorizer
    from actors.session.decisions.publish_admission import PublishRules
    from actors.session.decisions.queueing import DeliveryLimits
    from actors.session.interfaces import (
        LogHold,
        MessageExchange,
        NatsBridge,
        Paused,
        PublishObserver,
        SessionDirectory,
        SystemTopics,
        TopicObserver,
    )
    from actors.session.session import Session
    from actors.session.session_messages import Publication
    from eventstore.format.node_events import ClockJumped
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.journal import Journal
    from eventstore.log.log_writer import LogWriter
    from projections.state.session import SessionState
    from protocol.errors import FoldmqError

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

    __slots__ = (
        "_loop",
        "activation",
        "admitted_from",
        "alias_numbers",
        "bridge",
        "certificates",
        "clients",
        "clock",
        "counters",
        "crashed_ms",
        "delivery_limits",
        "directory",
        "draining",
        "dropped",
        "dropped_lines",
        "exchange",
        "failed",
        "handing_over",
        "held",
        "journal",
        "kernel",
        "last_jump",
        "limits",
        "log",
        "memory",
        "messages",
        "observers",
        "off_ms",
        "options",
        "paused",
        "permissions",
        "publish_rules",
        "rebuilding",
        "recovered",
        "reload",
        "retained_pace",
        "retention",
        "root",
        "router",
        "software",
        "state",
        "system_topics",
        "tasks",
        "timers",
        "topic_observers",
        "turn_work",
        "unsure",
        "writer",
    )

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
        self.log = log
        self.clock = LogClock(clock)
        """The time of the log."""
        self.last_jump: tuple[ClockJumped, Position, int] | None = None
        """The last jump of the clock since the start, its position and steady time."""
        self.held: HeldTime | None = None
        """The time off that the last start with a jump of the clock did not count, if any."""
        self.root = root
        """The actor that supervises connections and sessions."""
        self.directory: SessionDirectory
        """The sessions of the node."""
        self.activation = Activation(self._activate, clock.stopwatch)
        """Activates the passive sessions that get a message."""
        self.software = software
        self.certificates: list[dict[str, Any]] = []
        """Certificates and credentials with an end, as the status shows them."""
        """Version of the running foldmq."""
        self.kernel: Kernel
        self.turn_work: TurnWork
        """Passes messages on to many receivers."""
        self.state = NodeState()
        """The fold of the log."""
        self.journal: Journal
        self.writer: LogWriter
        self.router: Router
        self.timers = Timers(clock.monotonic, self._arm_timers)
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
        self.rebuilding: set[str] = set()
        """Failed sessions whose state is currently not in the fold."""
        self.retained_pace = RetainedPace(self)
        self.reload: ReloadOutcome | None = None
        """Outcome of the last reload of the settings; None: there was none since the start."""
        self.crashed_ms = 0
        """Time of the last record of the previous run, if that ended in a crash; otherwise 0."""
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

    def _arm_timers(self, delay: float) -> None:
        self._loop.call_later(delay, self.timers.run_due)

    def _activate(self, name: str) -> None:
        self.directory.session(name)

    # Events and messages.

    def emit(self, event: LogEvent, payloads: Sequence[bytes] = (), size: int = 0) -> Position:
        """Append an event and fold it; return the position of its first entry."""
        journal = self.journal
        at = journal.append(event, entries(event), payloads, size)
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
        """Count dropped messages; log the first drop for each reason, with the fields ``whose``."""
        if not self.dropped[reason]:
            _log.warning("messages dropped", reason=reason, count=count, **whose)
        self.dropped[reason] += count
        client = whose.get("client")
        if client is not None:
            self.clients.dropped(client, reason, count, self.clock.time_ms())

    def drop_denied(
        self, session: str, refs: Sequence[Position], topic_filter: str, queued: int = -1
    ) -> None:
        """Record that a session does not get messages that it is not permitted to read.

        ``queued`` are their payload bytes if they left the head of its queue.
        """
        for event in dropped(session, "not_permitted", refs, topic_filter, queued):
            where = format_position(self.emit(event))
            self.count_dropped("not_permitted", event.count, client=session, position=where)

    def tell_session(self, session: Session, message: Any) -> None:
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

    def is_refused(self, topic: bytes) -> bool:
        """Return whether no client may publish to a topic."""
        return bool(refused_topic(topic, self.publish_rules))

    def is_ready(self, topic: bytes) -> bool:
        """Return whether all observers are ready for a message on an observed topic."""
        return all(observer.is_ready(topic) for observer in self.topic_observers)

    def notify_observers(self, publication: Publication) -> None:
        """Notify the observers of all messages; one that fails is removed."""
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
        found = ["stopping"] if self.draining else []
        if self.writer.outage is not None:
            found.append(f"the log cannot be written: {self.writer.outage}")
        if self.unsure:
            found.append(self.unsure)
        return found

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
