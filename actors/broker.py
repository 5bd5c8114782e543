"""The root actor: accepts connections, attaches them to sessions, supervises, drains.

The broker owns the shared state of all sessions of the node (journal, fold, router, messages,
timers) and is the parent of every connection and session. When a session fails, its connection is
closed and its state is rebuilt from its events; messages that arrived meanwhile go to its
successor.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from actors.authz import Permissions
from actors.bridge import BridgeSupervisor
from actors.connection import Admission, PreviousConnection, TakeoverThrottle
from actors.exchange import LogExchange
from actors.fast_path import FastPath, fail_turn
from actors.inspection import BrokerInspection, Inspector, SysTopicTree
from actors.kernel import ActorFailed, Kernel, LoopActor, TurnWork
from actors.maintenance import (
    Expiries,
    Projector,
    Retention,
    adopt,
    applied_limits,
    end_connections,
    recover,
    software,
    verify_in_background,
)
from actors.node import ReadPause
from actors.routing import Router, routed
from actors.session import (
    Authorizer,
    ConnectionAttached,
    ConnectRequest,
    Expire,
    Kick,
    Loaded,
    NodeContext,
    Outgoing,
    Passivate,
    Remove,
    Session,
)
from actors.session.decisions import DeliveryLimits, by_text
from actors.sharing import SharedSubscriptions, make_session
from actors.supervision import inherit, replace, start_successor
from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format import (
    INDEX_BITS,
    LOG_SESSION,
    NATS_SESSION,
    Bridged,
    BrokerStopped,
    Position,
    RetainedExpired,
    expired_until,
    format_position,
)
from eventstore.log import EventLog, Message, MessageStore
from eventstore.partitions import partition_of
from projections.state import NodeState
from protocol.errors import FoldmqError
from protocol.mqtt import Connect, ConnectCode
from protocol.mqtt5 import SHARE, is_payload_format_broken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from actors.authn import Authenticator
    from actors.configuration import BridgeOptions, BrokerOptions
    from actors.connection import ListenerOptions
    from actors.exchange import ExchangeLink, OtherLog
    from actors.kernel import Clock
    from actors.maintenance import FollowedState
    from actors.session import ClientConnection
    from eventstore.format import Record
    from projections.state import SessionState
    from projections.storage import ProjectionMark

_log = structlog.get_logger("foldmq")

_IDLE_SWEEP = 1.0
"""Seconds between checks for offline sessions to passivate, and for a stuck log."""
_DEFER = 0.01
"""Maximum seconds that events without a waiting output stay in memory."""
_RETRY_LOAD = 0.5
_LONGEST_TIMER = 3600.0
_TOLD_AT_ONCE = 256
"""Maximum sessions or connections that are notified in one iteration of the event loop."""
_CLOSED_AT_ONCE = 32
"""Connections closed in one iteration of the event loop."""
_RETAINED_AT_ONCE, _RETAINED_PAUSE = 512, 0.005
"""Retained messages that expire at a time, and the seconds between two times."""
_WATCH_AT_ONCE, _WATCH_PAUSE = 500, 0.02
"""Offline sessions checked at a time, and the seconds between two times."""
_SWEEP_INDEX = object()
"""Message of the broker to itself while ended subscriptions are in the index, or their actors still
run."""
_STOPPING_AT_MOST = 20_000
"""Maximum number of such actors that wait; beyond it they are stopped at once."""
_STOPPED_AT_ONCE = 256
"""Such actors stopped in one turn."""


class Broker(LoopActor):
    """One node's broker.

    Use: construct, ``await recover(...)``, ``await listen(...)``; end with ``await drain()``.
    ``failed`` is resolved with an error when the broker must stop at once.
    """

    def __init__(
        self,
        options: BrokerOptions,
        log: EventLog,
        authenticator: Authenticator,
        clock: Clock,
        bridge: BridgeOptions | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        super().__init__()
        self.node = NodeContext(options, log, clock, self, self, software())
        """The shared state of all actors."""
        node = self.node
        self.bridge = BridgeSupervisor(node, bridge) if bridge is not None else None
        """The bridge to NATS; None: there is none."""
        node.bridge = self.bridge
        self.admission = Admission(node, authenticator)
        node.limits = self.admission.limits
        node.delivery_limits = _delivery_limits(options)
        node.permissions = Authorizer(node, permissions or Permissions())
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        self._offline: set[Session] = set()
        self._takeovers = TakeoverThrottle()
        self._expiries = Expiries(clock.monotonic, node.timers.after, self._expiry_due)
        self._reset()
        self.projector = Projector(node, log.projections)
        node.retention = self.retention = Retention(node, self.projector)
        self._systree = SysTopicTree(node)
        node.system_topics = self._systree
        self._background: list[asyncio.Task[None]] = []
        self._given_up = False
        self._expiring_retained = False
        """More retained messages that have expired are about to be recorded."""
        self._stopping: deque[LoopActor] = deque()
        """Actors that get no more messages and are to be stopped."""
        Kernel(self._loop.call_soon, clock.stopwatch, self._loop.call_later, clock.processor).spawn(
            self
        )
        node.kernel = self.kernel
        node.turn_work = TurnWork(partial(fail_turn, node))
        self.kernel.spawn(node.turn_work, self)
        self.fast_path = FastPath(node)
        self.inspection = BrokerInspection(node, self.admission, self.projector, self.bridge)
        self.inspection.start()
        self.exchange: LogExchange | None = None
        """The exchange with the other logs of the node; None: there are none."""
        self._partition = 0, 1

    # Start and end.

    def join(
        self, names: Sequence[str], others: Sequence[OtherLog], link: ExchangeLink
    ) -> LogExchange:
        """Exchange messages with other logs; ``names`` are those of all. Call before recovery."""
        exchange = LogExchange(self.node, names, others, link)
        self.exchange = self.node.exchange = exchange
        self._partition = names.index(self.node.options.node), len(names)
        self.kernel.spawn(exchange, self)
        return exchange

    async def recover(self, progress: Callable[[int, int], None]) -> None:
        """Fold the log and begin to write it; ``progress(done, total)`` counts records.

        Raises CorruptLog when a record is damaged or missing, LogUnavailable when JetStream
        does not answer.
        """
        await self._begin(await recover(self.node, self.projector, self._reset, progress))

    async def adopt(self, found: FollowedState, since_ms: int) -> None:
        """Continue with the state of a follower; ``since_ms`` is the time of the last record."""
        self._use(found.router)
        await adopt(self.node, self.projector, found, since_ms)
        await self._begin(None)
        self.node.spawn_task(self._watch_all())

    async def _begin(self, mark: ProjectionMark | None) -> None:
        """Serve from the state; ``mark`` is that of the projections that were used for it."""
        SharedSubscriptions(self.node).begin()
        self.node.recovered = True
        self.kernel.turn_ended = self._end_turn
        self.kernel.take_gathered = self.fast_path.take
        self.kernel.turn_split = self.node.journal.split_turn
        self.node.journal.call_soon = self._loop.call_soon
        self.node.journal.on_relief = self._on_relief
        self.node.journal.on_deferred = self._on_deferred
        await end_connections(self.node)
        self.kernel.wake()
        await self.wait_durable()
        self.node.timers.after(_IDLE_SWEEP, self._sweep)
        if self.exchange is not None:
            self.exchange.begin()
        self._systree.begin()
        self._background = [
            self._loop.create_task(work, name=name)
            for name, work in (
                ("projections", self.projector.run()),
                ("retention", self.retention.run()),
            )
        ]
        if self.bridge is None and self.node.state.bridged is not None:
            self.node.emit(Bridged(0))
            self.kernel.wake()
        if mark is not None:
            work = verify_in_background(self.node, mark.sequence, bytes.fromhex(mark.link))
            self._background.append(self._loop.create_task(work, name="verify_in_background"))
        for task in self._background:
            task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work failed", work=task.get_name(), exc_info=error)
            self.node.fail(
                FoldmqError(f"the work on {task.get_name()} failed: {error}; please report")
            )

    async def drain(
        self, to: str = "", handed_over: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Shut down gracefully: refuse new clients, commit received input, close the clients.

        ``to`` is the node of the cluster that is to lead then. ``handed_over`` is called when the
        log is complete, if another node may lead from then on: it writes the projections.
        """
        self.node.draining = True
        self.admission.close()
        for connection in self.admission.connections:
            connection.pause(ReadPause.DRAIN)
            connection.take_all()
        await self.wait_durable()
        for connection in list(self.admission.connections):
            connection.close("broker_stopped")
        self.kernel.wake()
        await asyncio.sleep(0)
        await self.wait_durable()
        if self.bridge is not None:
            await self.bridge.stop()
        if self.exchange is not None:
            self.exchange.end()
        if self.node.dropped:
            _log.warning("dropped since the start", **self.node.dropped)
        self.node.emit(BrokerStopped(to=to))
        self.kernel.wake()
        await self.wait_durable()
        for task in (*self._background, *self.node.tasks):
            task.cancel()
        if handed_over is not None and not self.node.failed.done():
            await handed_over()
        elif not self.node.failed.done():
            await self.projector.finish()
        await self.node.writer.stop()
        self.admission.authenticator.close()

    async def wait_durable(self) -> None:
        """Wait until every event is on disk (or the broker failed)."""
        while not self.node.failed.done() and (  # noqa: ASYNC110 - at start and end only
            self.kernel.busy or not self.node.journal.idle
        ):
            await asyncio.sleep(0.002)

    def reload(
        self,
        options: BrokerOptions,
        authenticator: Authenticator,
        permissions: Permissions | None = None,
        listeners: Sequence[ListenerOptions] = (),
    ) -> None:
        """Apply new limits and users, and permissions if given.

        Connected clients stay, except those whose password was changed or removed.
        """
        old_permissions = self.node.permissions.permissions
        self.admission.reload(options, listeners)
        if permissions is not None:
            self.node.permissions.change(permissions)
            self.node.permissions.apply(list(self.admission.connections))
        expiry_changed = options.session_expiry != self.node.options.session_expiry
        before = applied_limits(self.node.options, old_permissions)
        self.node.options = options
        self.node.delivery_limits = _delivery_limits(options)
        applied = applied_limits(options, self.node.permissions.permissions)
        if applied != before:
            self.node.emit(applied)
            self.kernel.wake()
        if expiry_changed:
            self.node.spawn_task(self._watch_all())
        self._systree.begin()
        admission = self.admission
        old, admission.authenticator = admission.authenticator, authenticator
        if old is not authenticator:
            old.close()
            admission.end_revoked()

    # Properties and sessions.

    @property
    def attached(self) -> int:
        """The number of connected sessions."""
        return len(self._sessions) - len(self._offline)

    # Sessions: the interface actors.session.interfaces.SessionDirectory.

    def session(self, name: str) -> Session:
        """Return the actor of a session, activated if it was passive."""
        session = self._sessions.get(name)
        if session is None:
            session = make_session(self.node, name, self.node.state.sessions.get(name))
            self._sessions[name] = session
            self._offline.add(session)
            self.kernel.spawn(session, self)
        return session

    def find_session(self, name: str) -> Session | None:
        """Return the actor of a session; None if it is passive or does not exist."""
        return self._sessions.get(name)

    def install(self, session: Session) -> None:
        """Make an actor the current one of its session."""
        before = self._sessions.get(session.name)
        if before is not None:
            self._offline.discard(before)
        self._sessions[session.name] = session

    def on_session_failure(self, session: Session) -> None:
        """Replace a session that has just failed."""
        start_successor(self.node, session)

    def redirect(self, name: str, messages: list[Any]) -> None:
        """Pass messages to the successor of a session that ended."""
        if name in self._sessions or name in self.node.state.sessions:
            session = self.session(name)
            for message in messages:
                if isinstance(message, Outgoing):
                    self.node.router.remember(message.subscriber)
                self.kernel.tell(session, message)
            return
        for message in messages:
            if isinstance(message, ConnectionAttached):
                self.kernel.tell(self, ConnectRequest(message.connection, message.connect))
            elif isinstance(message, (Kick, Remove)):
                message.command.refuse("ended meanwhile")

    def came_online(self, session: Session) -> None:
        """Record that a session has a connection."""
        self._offline.discard(session)

    def went_offline(self, session: Session) -> None:
        """Record that a session has no connection."""
        self._offline.add(session)
        self.watch_expiry(session.state)

    def retire(self, session: Session, *, running: bool = True) -> None:
        """Stop the actor of a session that ended or is passive.

        ``running``: the actor itself calls this while it runs.
        """
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        self._offline.discard(session)
        if running:
            self.kernel.stop_now(session)
        else:
            self.kernel.stop_other(session)
        unfinished = session.drain_stash()
        if unfinished:
            self.redirect(session.name, unfinished)
        state = self.node.state.sessions.live.get(session.name)
        if session.name not in self.node.state.sessions:
            self._expiries.forget(session.name)
        elif state is session.state and not state.connected and session.name not in self._sessions:
            self.passivate(session.name)
        session.release()

    def passivate(self, name: str) -> None:
        """Freeze an offline session: keep only what is needed to restore it."""
        node = self.node.state
        if node.dirty is not None:
            # This snapshot differs from the one in the projections.
            node.dirty.setdefault(name, node.sessions.live[name].saved)
        state = node.sessions.freeze(name, self.node.journal.next_position)
        if state is not None:
            self.node.router.passivate(name, [held.filter for held in routed(state)])

    def take_passive(self, state: SessionState) -> None:
        """Add a session that is already frozen."""
        self.node.router.passivate(state.session, [held.filter for held in routed(state)])
        self.watch_expiry(state)

    def _reset(self) -> NodeState:
        """Begin with an empty state, and return it."""
        node = self.node
        node.state = NodeState()
        if self.bridge is not None:
            self.bridge.interest.clear()
        self._use(Router())
        return node.state

    def _use(self, router: Router) -> None:
        """Route with an index of the present state."""
        node = self.node
        node.router = router
        router.too_deep = node.permissions.too_deep
        router.on_gone = self._sweep_later
        router.attach(self.session, self.bridge, node.clock.stopwatch)

    def watch_expiry(self, state: SessionState) -> None:
        """Check an offline session when it may have expired, or its will is due."""
        delay = min(self.node.expires_in(state), self.node.will_due_in(state))
        if delay < float("inf"):
            self._expiries.watch(state.session, min(max(0.0, delay), _LONGEST_TIMER))

    def load(self, session: Session, refs: Sequence[Position]) -> None:
        """Read messages from the log; the session gets a ``Loaded`` message."""
        self.node.spawn_task(self._load(session, refs))

    # Messages to the broker itself.

    def on_receive(self, message: Any) -> None:
        """Handle a connection that requests its session, or the failure of an actor."""
        if isinstance(message, ConnectRequest):
            self._on_connect(message)
        elif isinstance(message, ActorFailed):
            self._on_failed(message)
        elif message is _SWEEP_INDEX and self._clear_away():
            self._sweep_later()

    def _end_turn(self) -> None:
        self.node.router.deliveries = 0
        self.node.journal.end_turn()

    def _clear_away(self) -> bool:
        """Remove some remains of ended sessions; return whether there are more."""
        for _ in range(min(_STOPPED_AT_ONCE, len(self._stopping))):
            actor = self._stopping.popleft()
            if not actor.stopped:
                actor.stop()
        return self.node.router.sweep() or bool(self._stopping)

    def stop_all(self, actors: Sequence[LoopActor]) -> None:
        """Stop actors that get no more messages; many of them gradually."""
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
        """Stop the broker: nothing is supervised without its root."""
        self.node.fail(
            FoldmqError(f"the broker failed: {exc_info[1]}; this is a bug, please report it")
        )

    def _on_connect(self, request: ConnectRequest) -> None:
        connection, connect = request
        if connection.ended:
            return
        if self._given_up or self.node.draining or self.node.unsure:
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "unavailable")
            return
        if not connect.client_id:
            connection.given_id = self._assigned_id()
            connect.client_id = self.admission.known_as(connection.given_id)
            connection.client_id = connect.client_id
            connection.id_assigned = True
        name = connect.client_id
        given = connection.given_id
        if _is_reserved(name) or _is_reserved(given):
            connection.refuse(ConnectCode.IDENTIFIER_REJECTED, "reserved_client_id")
            return
        if not self._owns(given):
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "other_partition")
            return
        if self.admission.refuses_stranger(connection, name):
            return
        session = self._sessions.get(name)
        old = session.connection if session is not None else None
        if old is not None and self._fought(name, connection, old):
            _log.info(
                "two clients keep taking over the same client identifier",
                client=name,
                address=connection.address,
            )
            self.node.timers.after(self.node.options.takeover_delay, lambda: self._release(request))
            return
        if (
            name not in self.node.state.sessions
            and len(self.node.state.sessions) >= self.node.options.max_sessions
        ):
            now = self.node.clock.monotonic()
            self.admission.limits.refused.add(
                "sessions", now, client=name, address=connection.address
            )
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "too_many_sessions")
            return
        self._attach(request)

    def _assigned_id(self) -> str:
        """Return a new client identifier, of a session that belongs to this log."""
        while not self._owns(found := f"auto-{secrets.token_hex(10)}"):
            pass
        return found

    def _owns(self, client_id: str) -> bool:
        """Return whether the session of a client identifier belongs to this log."""
        number, count = self._partition
        return count == 1 or partition_of(client_id, count) == number

    def _fought(self, name: str, new: ClientConnection, old: ClientConnection) -> bool:
        """Return whether clients keep taking over this session, so that the new one must wait."""
        now = self.node.clock.monotonic()
        holder = PreviousConnection(old.host, now - old.last_read)
        return self._takeovers.must_wait(
            name, new.host, holder, now, self.node.options.takeover_delay
        )

    def _release(self, request: ConnectRequest) -> None:
        if not request.connection.ended:
            self._attach(request)

    def _attach(self, request: ConnectRequest) -> None:
        connection, connect = request
        if self.admission.refuses_stranger(
            connection, connect.client_id
        ):  # perhaps again, after a wait
            return
        self.node.permissions.grant(connection)
        if not self.node.permissions.authorize_will(connection, connect):
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "will_not_permitted")
            return
        if self._is_will_above_maximum_qos(connect):
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "will_qos")
            return
        if self._has_will_of_wrong_format(connect):
            self.node.limits.refused.add(
                "payload_format",
                self.node.clock.monotonic(),
                client=connect.client_id,
                address=connection.address,
            )
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "payload_format")
            return
        session = self.session(request.connect.client_id)
        self.kernel.tell(session, ConnectionAttached(request.connection, request.connect))

    def _is_will_above_maximum_qos(self, connect: Connect) -> bool:
        """Return whether an MQTT 5 client has a will above the Maximum QoS [MQTT-3.2.2-12]."""
        if connect.will is None or connect.properties is None:
            return False
        return connect.will.qos == 2 and self.node.options.reject_qos2_publish

    def _has_will_of_wrong_format(self, connect: Connect) -> bool:
        """Return whether a will declared as UTF-8 has another payload, if that is checked."""
        will = connect.will
        if will is None or not will.block or not self.node.options.check_payload_format:
            return False
        return is_payload_format_broken(will.block, will.payload)

    def _on_failed(self, failed: ActorFailed) -> None:
        actor = failed.actor
        if isinstance(actor, Session):
            others = inherit(self.node, actor, failed)
            self.node.spawn_task(
                replace(self.node, self.session(actor.name), failed.message, others)
            )
        elif isinstance(actor, Inspector):
            self.inspection.start()
        elif isinstance(actor, LogExchange):
            self.node.fail(
                FoldmqError(f"the exchange failed: {failed.error}; this is a bug, please report it")
            )

    # Work outside turns.

    async def _watch_all(self) -> None:
        """Check every offline session: the expiry setting changed."""
        for number, name in enumerate(self.node.state.sessions.names()):
            state = self.node.state.sessions.peek(name)
            if state is not None and not state.connected:
                self.watch_expiry(state)
            if number % _WATCH_AT_ONCE == 0:
                await asyncio.sleep(_WATCH_PAUSE)

    async def _load(self, session: Session, refs: Sequence[Position]) -> None:
        sequences = {ref >> INDEX_BITS for ref in refs}
        found: dict[Position, Message] = {}
        records: list[Record] = []
        while not session.stopped:
            begin = self.node.state.begin
            wanted = {at for sequence in sequences for at in self.node.state.carriers_of(sequence)}
            if max(wanted, default=0) > self.node.journal.durable:
                await asyncio.sleep(_DEFER)
                continue
            try:
                records = await self.node.log.read_some(wanted)
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
                if self.node.state.begin == begin and not session.stopped:
                    self.node.fail(error)
                    return
                # The log was cut meanwhile: the records needed now are elsewhere.
        if session.stopped:
            # Its successor requests messages itself. Those of this one may have been cut off.
            return
        store = MessageStore(1 << 62)
        for record in records:
            store.add_record(record)
        for ref in refs:
            message = store.get(ref) or self.node.messages.get(ref)
            if message is None:
                self.node.fail(CorruptLog(ref >> INDEX_BITS, "does not hold a message it should"))
                return
            found[ref] = message
        for record in records:
            self.node.messages.add_record(record)
        self.node.tell_if_alive(session, Loaded(found))

    def _expiry_due(self, name: str) -> int:
        """Tell a session if it has expired; return how many subscriptions it has then."""
        state = self.node.state.sessions.peek(name)
        if not self.node.recovered:
            self._expiries.watch(name, _IDLE_SWEEP)
        elif state is not None and not state.connected:
            if self.node.expires_in(state) <= 0 or self.node.will_due_in(state) <= 0:
                self.kernel.tell(self.session(name), Expire())
                return len(state.subscriptions)
            self.watch_expiry(state)
        return 0

    def _on_deferred(self) -> None:
        self.node.timers.after(_DEFER, self.node.journal.flush)

    def _on_relief(self) -> None:
        paused, self.node.paused = self.node.paused, set()
        self.node.in_parts(
            list(paused), _TOLD_AT_ONCE, lambda connection: connection.resume(ReadPause.LOG)
        )

    def _sweep(self) -> None:
        self.node.timers.after(_IDLE_SWEEP, self._sweep)
        idle_since = self.node.clock.monotonic() - _IDLE_SWEEP
        if not self.node.router.is_matching():  # else all receivers of a topic must become active
            idle = [
                session
                for session in self._offline
                if session.connection is None and session.last_active < idle_since
            ]
            self.node.in_parts(
                idle,
                _TOLD_AT_ONCE,
                lambda session: self.node.tell_if_alive(session, Passivate()),
            )
        if self.node.paused and not self.node.journal.congested:
            self._on_relief()
        if not self._expiring_retained:
            self._expire_retained()
        self.admission.sweep()
        self._look_after_log()

    def _expire_retained(self) -> None:
        """Record which retained messages have expired, some at a time."""
        self._expiring_retained = False
        if not self.node.recovered or self.node.draining:
            return
        passed = expired_until(self.node.clock.time_ms())
        topics = self.node.state.retained.expired(passed, _RETAINED_AT_ONCE)
        for part in by_text(topics, str):
            self.node.emit(RetainedExpired(part))
        if topics:
            self.kernel.wake()
        if len(topics) == _RETAINED_AT_ONCE:
            self._expiring_retained = True
            self.node.timers.after(_RETAINED_PAUSE, self._expire_retained)

    def _look_after_log(self) -> None:
        """Close the clients if the log could not be written for too long."""
        writer = self.node.writer
        stuck = writer.outage is not None and (
            self.node.clock.monotonic() - writer.outage_since > self.node.options.commit_timeout
        )
        if stuck and not self._given_up:
            _log.error(
                "log cannot be written: clients are closed until it can",
                reason=writer.outage,
                seconds=self.node.options.commit_timeout,
                connections=len(self.admission.connections),
            )
            self.node.in_parts(
                list(self.admission.connections),
                _CLOSED_AT_ONCE,
                lambda connection: connection.abort("log_unavailable"),
            )
        self._given_up = stuck


def _is_reserved(client_id: str) -> bool:
    """Return whether no client may have an identifier: the broker uses it."""
    return client_id == NATS_SESSION or client_id.startswith((SHARE, LOG_SESSION))


def _delivery_limits(options: BrokerOptions) -> DeliveryLimits:
    return DeliveryLimits(
        options.max_ack_pending,
        options.max_queued_messages,
        options.max_queued_bytes,
        options.max_outbound_bytes,
    )
