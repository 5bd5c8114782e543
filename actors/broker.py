"""The root of the actors: accepts connections, gives them their sessions, supervises, drains.

The broker owns what all sessions of the node share (journal, fold, router, messages, timers) and
is the parent of every connection and session. When a session fails, its connection is closed and
its state is rebuilt from its events; what it had been told meanwhile is told to its successor.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pykka
import structlog

from actors.authz.rules import Permissions
from actors.bridge.host import BridgeHost
from actors.connection.admission import Door
from actors.connection.takeovers import Old, Takeovers
from actors.inspection.busiest_topics import BusiestTopics
from actors.inspection.inspector import Inspector
from actors.inspection.log_storage import Storage
from actors.inspection.operations import Operations
from actors.inspection.queries import Queries
from actors.inspection.sys_topics import SysTree
from actors.kernel.clock import Timers
from actors.kernel.kernel import Failed, Kernel, LoopActor, about
from actors.maintenance.background_verify import scrub
from actors.maintenance.expiry import Expiries
from actors.maintenance.projector import Projector
from actors.maintenance.recovery import recover, software
from actors.maintenance.retention import Retention
from actors.node.counters import Meters
from actors.node.read_pause import Pause
from actors.session.authorization import Permits
from actors.session.decisions import Limits, dropped
from actors.session.messages import (
    Attach,
    ConnectRequest,
    Expire,
    Kick,
    Loaded,
    Outgoing,
    Remove,
    Retire,
)
from actors.session.router import Router
from actors.session.session import Session
from actors.supervision import inherit, replace, succeed
from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format import (
    INDEX_BITS,
    NATS_SESSION,
    Bridged,
    BrokerStopped,
    Event,
    Position,
    entries,
    format_position,
)
from eventstore.log import Message, MessageStore
from projections.state import NodeState
from protocol.errors import FoldmqError
from protocol.mqtt import ConnectCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.authn.credentials import Authenticator
    from actors.bridge.bridge import Bridge
    from actors.connection.connection import Connection
    from actors.connection.listener import ListenerOptions
    from actors.inspection.inspector import Handler
    from actors.kernel.clock import Clock
    from actors.options.bridge_options import BridgeOptions
    from actors.options.broker_options import Options
    from actors.session.messages import Publication
    from eventstore.format import Record
    from eventstore.log import EventLog, Journal, LogWriter
    from projections.state import SessionState
    from protocol.mqtt import Packet

_log = structlog.get_logger("foldmq")

_IDLE_SWEEP = 1.0
"""Seconds between looks for offline sessions to passivate, and for a stuck log."""
_DEFER = 0.01
"""Seconds for which events that nobody waits for stay in memory, at most."""
_RETRY_LOAD = 0.5
_LONGEST_TIMER = 3600.0
_WATCH_AT_ONCE = 500
"""Offline sessions looked at in one go."""
_SWEEP_INDEX = object()
"""Told to itself by the broker while subscriptions that ended stand in the index, or their actors
are to be stopped."""
_STOPPING_AT_MOST = 20_000
"""Such actors that may wait; beyond that others are stopped at once."""
_STOPPED_AT_ONCE = 256
"""Such actors that are stopped in one turn."""


class Broker(LoopActor):
    """One node's broker.

    Use: construct, ``await recover(...)``, ``await listen(...)``; end with ``await drain()``.
    ``failed`` is resolved with an error when the broker must stop at once.
    """

    def __init__(
        self,
        options: Options,
        log: EventLog,
        authenticator: Authenticator,
        clock: Clock,
        bridge: BridgeOptions | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.options = options
        self.limits = _limits(options)
        self.log = log
        self.software = software()
        self.meters = Meters(clock.time_ms())
        self.authenticator = authenticator
        self.clock = clock
        self.bridge = BridgeHost(self, bridge) if bridge is not None else None
        """What exchanges messages with NATS; None: nothing does."""
        self.node: NodeState
        self.router: Router
        self.door = Door(self)
        self.guard = self.door.guard
        """All bounds on what clients take."""
        self.begin_anew()
        self.permissions = Permits(self, permissions or Permissions())
        self.messages = MessageStore(options.message_cache)
        self.timers = Timers(clock.monotonic, self._arm_timers)
        self.connections: set[Connection] = set()
        self.paused: set[Connection | Bridge] = set()
        self.dropped: Counter[str] = Counter()
        """Messages dropped, by reason, since the start."""
        self.watch: Callable[[Publication], None] | None = None
        """Told of all messages as they are routed, while somebody watches."""
        self._watchers: list[Callable[[Publication], None]] = []
        self.on_connect: Callable[[Connection, list[Packet]], None] | None = None
        """Told of each CONNECT, while somebody wants to know."""
        self.failed: asyncio.Future[FoldmqError] = loop.create_future()
        self.journal: Journal
        self.writer: LogWriter
        self._loop = loop
        self._sessions: dict[str, Session] = {}
        self._offline: set[Session] = set()
        self._takeovers = Takeovers()
        self._tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        """The broker ends."""
        self._expiries = Expiries(clock.monotonic, self.timers.after, self._expiry_due)
        self.projector = Projector(self, log.projections)
        self.retention = Retention(self, self.projector)
        self.systree = SysTree(self)
        self._background: list[asyncio.Task[None]] = []
        self._recovered = False
        self.rebuilding: set[str] = set()
        """Sessions whose state is not in the fold at present: they failed."""
        self._given_up = False
        self._stopping: deque[LoopActor] = deque()
        """Actors that are told nothing any more, and are to be stopped."""
        self.storage = Storage(self)
        self.busiest = BusiestTopics(self)
        self.operations = Operations(self)
        self.questions: dict[str, Handler] = {
            **Queries(self).handlers(),
            "change": self.operations.change,
        }
        """What the inspector answers, by endpoint."""
        Kernel(loop.call_soon, clock.stopwatch, loop.call_later).spawn(self)
        self.inspector = self._inspect()

    # Start and end.

    async def recover(self, progress: Callable[[int, int], None]) -> None:
        """Fold the log and begin to write it; ``progress(done, total)`` counts records.

        Raises CorruptLog when a record is damaged or missing, LogUnavailable when JetStream
        does not answer.
        """
        mark = await recover(self, progress)
        self._recovered = True
        self.kernel.turn_ended = self._end_turn
        self.kernel.turn_cut = self.journal.cut_turn
        self.journal.call_soon = self._loop.call_soon
        self.kernel.on_overflow = self._on_overflow
        self.journal.on_relief = self._on_relief
        self.journal.on_deferred = self._on_deferred
        self.kernel.wake()
        await self.settled()
        self.timers.after(_IDLE_SWEEP, self._sweep)
        self.systree.begin()
        self._background = [
            self._loop.create_task(work, name=name)
            for name, work in (
                ("projections", self.projector.run()),
                ("retention", self.retention.run()),
            )
        ]
        if self.bridge is None and self.node.bridged is not None:
            self.emit(Bridged(0))
            self.kernel.wake()
        if mark is not None:
            work = scrub(self, mark.sequence, bytes.fromhex(mark.link))
            self._background.append(self._loop.create_task(work, name="scrub"))
        for task in self._background:
            task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work failed", work=task.get_name(), exc_info=error)
            self.fail(FoldmqError(f"the work on {task.get_name()} failed: {error}; please report"))

    async def drain(self) -> None:
        """End in good order: no new clients, what was received is committed, clients closed."""
        self.draining = True
        self.door.close()
        for connection in self.connections:
            connection.pause(Pause.DRAIN)
            connection.take_all()
        await self.settled()
        for connection in list(self.connections):
            connection.close("broker_stopped")
        self.kernel.wake()
        await asyncio.sleep(0)
        await self.settled()
        if self.bridge is not None:
            await self.bridge.stop()
        if self.dropped:
            _log.warning("dropped since the start", **self.dropped)
        self.emit(BrokerStopped())
        self.kernel.wake()
        await self.settled()
        for task in (*self._background, *self._tasks):
            task.cancel()
        if not self.failed.done():
            await self.projector.finish()
        await self.writer.stop()
        self.authenticator.close()

    async def settled(self) -> None:
        """Wait until every event is on disk (or the broker failed)."""
        while not self.failed.done() and (  # noqa: ASYNC110 - at start and end only
            self.kernel.busy or not self.journal.idle
        ):
            await asyncio.sleep(0.002)

    def reload(
        self,
        options: Options,
        authenticator: Authenticator,
        permissions: Permissions | None = None,
        listeners: Sequence[ListenerOptions] = (),
    ) -> None:
        """Take new limits and users, and permissions if some are given.

        Connected clients stay, but for those who came in by a password that is good no longer.
        """
        self.door.reload(options, listeners)
        if permissions is not None:
            self.permissions.change(permissions)
            self.permissions.apply()
        expiry_changed = options.session_expiry != self.options.session_expiry
        self.options = options
        self.limits = _limits(options)
        if expiry_changed:
            self.work(self._watch_all())
        self.systree.begin()
        old, self.authenticator = self.authenticator, authenticator
        if old is not authenticator:
            old.close()
            self.door.end_revoked()

    def fail(self, error: FoldmqError) -> None:
        """Stop the broker: it can no longer keep its promise."""
        if not self.failed.done():
            self.failed.set_result(error)

    # What it is about.

    @property
    def recovered(self) -> bool:
        """True once the state is that of the log."""
        return self._recovered

    @property
    def attached(self) -> int:
        """The number of sessions that are connected."""
        return len(self._sessions) - len(self._offline)

    def trouble(self) -> list[str]:
        """Return why the broker does not serve, or keeps its clients waiting; empty: it serves."""
        if self.failed.done():
            return ["failed"]
        if not self._recovered:
            return ["recovering"]
        found = ["stopping"] if self.draining else []
        if self.writer.outage is not None:
            found.append(f"the log cannot be written: {self.writer.outage}")
        return found

    # Services to the actors.

    def emit(self, event: Event, payloads: Sequence[bytes] = (), size: int = 0) -> Position:
        """Append an event and fold it; return the position of its first entry."""
        journal = self.journal
        at = journal.append(event, entries(event), payloads, size)
        self.node.apply(event, at, journal.time_ms, payloads)
        return at

    def count_dropped(self, reason: str, count: int, **whose: str | None) -> None:
        """Count messages that were dropped; ``whose`` goes into the log, the first time."""
        if not self.dropped[reason]:
            _log.warning("messages dropped", reason=reason, count=count, **whose)
        self.dropped[reason] += count

    def drop_denied(
        self, session: str, refs: Sequence[Position], topic_filter: str, queued: int = -1
    ) -> None:
        """Record that a session does not get messages that it may not have.

        ``queued`` are their payload bytes if they left the head of its queue.
        """
        for event in dropped(session, "not_permitted", refs, topic_filter, queued):
            where = format_position(self.emit(event))
            self.count_dropped("not_permitted", event.count, client=session, position=where)

    def add_watcher(self, watcher: Callable[[Publication], None]) -> None:
        """Have somebody told of all messages as they are routed; one who fails is told no more."""
        self._watchers.append(watcher)
        self.watch = self._tell_watchers

    def remove_watcher(self, watcher: Callable[[Publication], None]) -> None:
        """Tell somebody no more; it need not have been told before."""
        self._watchers = [other for other in self._watchers if other != watcher]
        if not self._watchers:
            self.watch = None

    def _tell_watchers(self, publication: Publication) -> None:
        for watcher in self._watchers:
            try:
                watcher(publication)
            except Exception as error:  # noqa: BLE001 - the messages are to arrive all the same
                _log.error("watching messages failed", exc_info=error)
                self.remove_watcher(watcher)

    def session(self, name: str) -> Session:
        """Return the actor of a session, activated if it was passive."""
        session = self._sessions.get(name)
        if session is None:
            session = Session(self, name, self.node.sessions.get(name))
            self._sessions[name] = session
            self._offline.add(session)
            self.kernel.spawn(session, self)
        return session

    def find_session(self, name: str) -> Session | None:
        """Return the actor of a session, None when it has none: it is passive, or there is none."""
        return self._sessions.get(name)

    def install(self, session: Session) -> None:
        """Make an actor the one that a session is reached by, from now on."""
        before = self._sessions.get(session.name)
        if before is not None:
            self._offline.discard(before)
        self._sessions[session.name] = session

    def on_session_failure(self, session: Session) -> None:
        """Put a successor in the place of a session that has just failed."""
        succeed(self, session)

    def tell_session(self, session: Session, message: Any) -> None:
        """Tell a session, or the one that took its place."""
        try:
            self.kernel.tell(session, message)
        except pykka.ActorDeadError:
            self.redirect(session.name, [message])

    def redirect(self, name: str, messages: list[Any]) -> None:
        """Give messages to the session that took the place of one that ended."""
        if name in self._sessions or name in self.node.sessions:
            session = self.session(name)
            for message in messages:
                if isinstance(message, Outgoing):
                    self.router.remember(message.subscriber)
                self.kernel.tell(session, message)
            return
        for message in messages:
            if isinstance(message, Attach):
                self.kernel.tell(self, ConnectRequest(message.connection, message.connect))
            elif isinstance(message, (Kick, Remove)):
                message.order.refuse("ended meanwhile")

    def came_online(self, session: Session) -> None:
        """Take note that a session has a connection now."""
        self._offline.discard(session)

    def went_offline(self, session: Session) -> None:
        """Take note that a session has no connection now."""
        self._offline.add(session)
        self.watch_expiry(session.state)

    def retire(self, session: Session) -> None:
        """Stop the actor of a session that ended or is passive."""
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        self._offline.discard(session)
        self.kernel.halt(session)
        unfinished = session.unfinished()
        if unfinished:
            self.redirect(session.name, unfinished)
        state = self.node.sessions.live.get(session.name)
        if session.name not in self.node.sessions:
            self._expiries.forget(session.name)
        elif state is session.state and not state.connected and session.name not in self._sessions:
            self.passivate(session.name)
        session.dispose()

    def passivate(self, name: str) -> None:
        """Keep of an offline session no more than it takes to have it back."""
        node = self.node
        if node.dirty is not None:
            # The snapshot that is made now is another one than the projections hold.
            node.dirty.setdefault(name, node.sessions.live[name].saved)
        state = node.sessions.freeze(name, self.journal.next_position)
        if state is not None:
            self.router.passivate(name, [held.filter for held in state.active()])

    def take_passive(self, state: SessionState) -> None:
        """Take note of a session that is frozen."""
        self.router.passivate(state.session, [held.filter for held in state.active()])
        self.watch_expiry(state)

    def begin_anew(self) -> None:
        """Begin with an empty state."""
        self.node = NodeState()
        if self.bridge is not None:
            self.bridge.interest.clear()
        self.router = Router(self.session, self.bridge, self.clock.stopwatch)
        self.router.too_deep = self.door.too_deep
        self.router.on_gone = self._sweep_later

    def expires_in(self, state: SessionState) -> float:
        """Return in how many seconds an offline session expires; infinity if it never does."""
        limit = self.options.session_expiry if state.expiry is None else state.expiry
        if not limit:
            return float("inf")
        return limit - (self.clock.time_ms() - state.closed_ms) / 1000

    def watch_expiry(self, state: SessionState) -> None:
        """Look at an offline session again when it may have expired."""
        delay = self.expires_in(state)
        if delay < float("inf"):
            self._expiries.watch(state.session, min(max(0.0, delay), _LONGEST_TIMER))

    def load(self, session: Session, refs: Sequence[Position]) -> None:
        """Read messages from the log; the session is told ``Loaded``."""
        self.work(self._load(session, refs))

    def prefix_of(self, session: str) -> str:
        """Return what the subjects of a session's user begin with, for the bridge."""
        if self.bridge is None or not self.bridge.options.prefixes:
            return ""
        state = self.node.sessions.peek(session)
        return self.bridge.options.prefix(state.user if state is not None else None)

    def bridge_failed(self, error: BaseException) -> None:
        """Have the bridge go on without the actor or work that failed."""
        if self.bridge is not None:
            self.bridge.failed(error)

    # What the broker itself is told.

    def on_receive(self, message: Any) -> None:
        """Handle a connection that wants its session, or the failure of an actor."""
        if isinstance(message, ConnectRequest):
            self._on_connect(message)
        elif isinstance(message, Failed):
            self._on_failed(message)
        elif message is _SWEEP_INDEX and self._clear_away():
            self._sweep_later()

    def _end_turn(self) -> None:
        self.router.deliveries = 0
        self.journal.end_turn()

    def _clear_away(self) -> bool:
        """Remove some of what ended sessions left; return whether more is left."""
        for _ in range(min(_STOPPED_AT_ONCE, len(self._stopping))):
            actor = self._stopping.popleft()
            if not actor.stopped:
                actor.stop()
        return self.router.sweep() or bool(self._stopping)

    def stop_all(self, actors: Sequence[LoopActor]) -> None:
        """Stop actors that are told nothing any more; many of them little by little."""
        if len(actors) <= _STOPPED_AT_ONCE or len(self._stopping) > _STOPPING_AT_MOST:
            for actor in actors:
                actor.stop()
            return
        if not self._stopping:
            self._sweep_later()
        self._stopping += actors

    def _sweep_later(self) -> None:
        self.kernel.later(self, _SWEEP_INDEX)

    def on_failure(self, *exc_info: object) -> None:
        """Stop: without its root nothing is supervised."""
        self.fail(FoldmqError(f"the broker failed: {exc_info[1]}; this is a bug, please report it"))

    def _on_connect(self, request: ConnectRequest) -> None:
        connection, connect = request
        if connection.ended:
            return
        if self._given_up or self.draining:
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "unavailable")
            return
        if not connect.client_id:
            connect.client_id = f"auto-{secrets.token_hex(10)}"
            connection.client_id = connection.given_id = connect.client_id
        name = connect.client_id
        if NATS_SESSION in (name, connection.given_id):
            connection.refuse(ConnectCode.IDENTIFIER_REJECTED, "reserved_client_id")
            return
        if self.door.refuses_stranger(connection, name):
            return
        session = self._sessions.get(name)
        old = session.connection if session is not None else None
        if old is not None and self._fought(name, connection, old):
            _log.info("client identifier is fought over", client=name, address=connection.address)
            self.timers.after(self.options.jail_time, lambda: self._release(request))
            return
        if name not in self.node.sessions and len(self.node.sessions) >= self.options.max_sessions:
            now = self.clock.monotonic()
            self.guard.refused.add("sessions", now, client=name, address=connection.address)
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "too_many_sessions")
            return
        self._attach(request)

    def _fought(self, name: str, new: Connection, old: Connection) -> bool:
        """Return whether two clients fight over this session: then the new one is to wait."""
        now = self.clock.monotonic()
        holder = Old(old.host, now - old.last_read)
        return self._takeovers.fought(name, new.host, holder, now, self.options.jail_time)

    def _release(self, request: ConnectRequest) -> None:
        if not request.connection.ended:
            self._attach(request)

    def _attach(self, request: ConnectRequest) -> None:
        connection, connect = request
        if self.door.refuses_stranger(
            connection, connect.client_id
        ):  # perhaps again: it may have waited
            return
        self.permissions.grant(connection)
        if not self.permissions.takes_will(connection, connect):
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "will_not_permitted")
            return
        session = self.session(request.connect.client_id)
        self.kernel.tell(session, Attach(request.connection, request.connect))

    def _on_failed(self, failed: Failed) -> None:
        actor = failed.actor
        if isinstance(actor, Session):
            others = inherit(self, actor, failed)
            self.work(replace(self, self.session(actor.name), failed.message, others))
        elif isinstance(actor, Inspector):
            self.inspector = self._inspect()

    def _inspect(self) -> Inspector:
        inspector = Inspector(self, self.questions)
        self.kernel.spawn(inspector, self)
        return inspector

    # Work beside the turn.

    def work(self, work: Any) -> asyncio.Task[None]:
        """Do work beside the turn; it is cancelled when the broker ends."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watch_all(self) -> None:
        """Look at every offline session again: their time to expire changed."""
        for number, name in enumerate(self.node.sessions.names()):
            state = self.node.sessions.peek(name)
            if state is not None and not state.connected:
                self.watch_expiry(state)
            if number % _WATCH_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _load(self, session: Session, refs: Sequence[Position]) -> None:
        sequences = {ref >> INDEX_BITS for ref in refs}
        found: dict[Position, Message] = {}
        records: list[Record] = []
        while not session.stopped:
            begin = self.node.begin
            wanted = {at for sequence in sequences for at in self.node.carriers_of(sequence)}
            if max(wanted, default=0) > self.journal.durable:
                await asyncio.sleep(_DEFER)
                continue
            try:
                records = await self.log.read_some(wanted)
                break
            except LogUnavailable as error:
                _log.warning(
                    "messages cannot be read",
                    client=session.name,
                    position=format_position(refs[0]),
                    error=str(error),
                )
                await asyncio.sleep(_RETRY_LOAD)
            except FoldmqError as error:
                if self.node.begin == begin and not session.stopped:
                    self.fail(error)
                    return
                # The log was cut meanwhile: what is needed of it stands elsewhere now.
        if session.stopped:
            # Its successor asks for itself. What this one needed may rightly have been cut off.
            return
        store = MessageStore(1 << 62)
        for record in records:
            store.add_record(record)
        for ref in refs:
            message = store.get(ref) or self.messages.get(ref)
            if message is None:
                self.fail(CorruptLog(ref >> INDEX_BITS, "does not hold a message it should"))
                return
            found[ref] = message
        for record in records:
            self.messages.add_record(record)
        self.tell_if_alive(session, Loaded(found))

    def tell_if_alive(self, actor: LoopActor, message: Any) -> None:
        """Tell an actor, unless it has stopped."""
        if not actor.stopped:
            self.kernel.tell(actor, message)

    def _arm_timers(self, delay: float) -> None:
        self._loop.call_later(delay, self.timers.run_due)

    def _expiry_due(self, name: str) -> None:
        state = self.node.sessions.peek(name)
        if not self._recovered:
            self._expiries.watch(name, _IDLE_SWEEP)
        elif state is not None and not state.connected:
            if self.expires_in(state) <= 0:
                self.kernel.tell(self.session(name), Expire())
            else:
                self.watch_expiry(state)

    def _on_deferred(self) -> None:
        self.timers.after(_DEFER, self.journal.flush)

    def _on_relief(self) -> None:
        paused, self.paused = self.paused, set()
        for connection in paused:
            connection.resume(Pause.LOG)

    def _on_overflow(self, actor: LoopActor) -> None:
        """Read nothing more while somebody cannot keep up; the sweep lets go again."""
        if not self.paused:
            _log.warning("mailbox full: input is paused", **about(actor))
            for connection in self.connections:
                connection.pause(Pause.LOG)
                self.paused.add(connection)

    def _sweep(self) -> None:
        self.timers.after(_IDLE_SWEEP, self._sweep)
        idle_since = self.clock.monotonic() - _IDLE_SWEEP
        for session in list(self._offline):
            if session.connection is None and session.last_active < idle_since:
                self.tell_if_alive(session, Retire())
        if self.paused and not self.journal.congested:
            self._on_relief()
        self.door.sweep()
        self._look_after_log()

    def _look_after_log(self) -> None:
        """Close the clients when the log could not be written for too long."""
        writer = self.writer
        stuck = writer.outage is not None and (
            self.clock.monotonic() - writer.outage_since > self.options.commit_timeout
        )
        if stuck and not self._given_up:
            _log.error(
                "log cannot be written: clients are closed until it can",
                reason=writer.outage,
                seconds=self.options.commit_timeout,
                connections=len(self.connections),
            )
            for connection in list(self.connections):
                connection.abort("log_unavailable")
        self._given_up = stuck


def _limits(options: Options) -> Limits:
    return Limits(
        options.max_ack_pending,
        options.max_queued_messages,
        options.max_queued_bytes,
        options.max_outbound_bytes,
    )
