"""The root actor: puts the parts of a node together, starts, supervises and drains them.

The broker owns the shared state of all sessions of the node (journal, fold, router, messages,
timers) and is the parent of every connection and session. When a session fails, its connection is
closed and its state is rebuilt from its events; messages that arrived meanwhile go to its
successor. Once a second the broker checks for periodic work that is due.
"""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from actors.access.rules import Permissions
from actors.bridge.bridge_supervisor import BridgeSupervisor
from actors.broker.session_admission import SessionAdmission
from actors.broker.session_registry import SWEEP_INDEX, SessionRegistry
from actors.broker.supervision import inherit, replace
from actors.connection.admission import Admission
from actors.connection.connection import Connection
from actors.exchange.exchange import LogExchange
from actors.fast_path.fast_delivery import fail_turn
from actors.fast_path.fast_path import FastPath
from actors.inspection.broker_inspection import BrokerInspection
from actors.inspection.inspector import Inspector
from actors.inspection.operations import clear_denied
from actors.inspection.sys_topics import SysTopicTree
from actors.kernel.actor import LoopActor
from actors.kernel.kernel import Kernel
from actors.kernel.references import ActorFailed
from actors.kernel.turn_work import TurnWork
from actors.maintenance.destination_holds import open_destinations
from actors.maintenance.projector import Projector
from actors.maintenance.recovery import (
    adopt,
    applied_limits,
    end_connections,
    recover,
    software,
    verify_in_background,
)
from actors.maintenance.retention import Retention
from actors.node.read_pause import ReadPause
from actors.replay.replays import Replays, ReplayWork
from actors.routing.router import Router
from actors.session.decisions.publish_admission import PublishRules
from actors.session.decisions.queueing import DeliveryLimits
from actors.session.decisions.subscribing import by_text
from actors.session.node_context import Authorizer, NodeContext
from actors.session.outside_publisher import BirthCertificates
from actors.session.session import Session
from actors.session.session_messages import ConnectRequest
from actors.sharing.shared_subscriptions import SharedSubscriptions
from eventstore.format.events import RetainedExpired
from eventstore.format.node_events import BrokerStopped
from eventstore.task_cancellation import end_tasks
from projections.state.node_state import NodeState
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from actors.access.credentials import Authenticator
    from actors.connection.listener import ListenerOptions
    from actors.exchange.exchange import ExchangeLink, OtherLog
    from actors.kernel.clock import Clock, Timer
    from actors.limits.bridge_options import BridgeOptions
    from actors.limits.broker_options import BrokerOptions
    from actors.maintenance.state_reader import FollowedState
    from eventstore.log.jetstream_log import EventLog
    from projections.state.format import ProjectionMark

_log = structlog.get_logger("foldmq")

_IDLE_SWEEP = 1.0
"""Seconds between checks for offline sessions to freeze, and for a stuck log."""
_NOTIFIED_AT_ONCE = 256
"""Maximum connections that are notified in one iteration of the event loop."""
_CLOSED_AT_ONCE = 32
"""Connections closed in one iteration of the event loop."""
_DETACHING = 5.0
"""Maximum seconds that a stop waits until the messages needed to end sessions are loaded."""
_RETAINED_AT_ONCE, _RETAINED_PAUSE = 512, 0.005
"""Number of retained messages whose expiry is recorded together, and seconds between two
batches."""


class Broker(LoopActor):
    """One node's broker.

    Use: construct, ``await recover(...)``, ``admission.listen(...)``; end with ``await drain()``.
    ``failed`` is resolved with an error when the broker must stop immediately.
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
        self.node = NodeContext(options, log, clock, self, software())
        """The shared state of all actors."""
        node = self.node
        node.directory = self.sessions = SessionRegistry(node)
        self.bridge = BridgeSupervisor(node, bridge) if bridge is not None else None
        """The bridge to NATS; None: there is none."""
        node.bridge = self.bridge
        node.options = self._with_bridge(options)
        node.topic_observers.append(BirthCertificates(node))
        self.admission = Admission(node, authenticator, Connection)
        self.session_admission = SessionAdmission(node, self.admission)
        node.limits = self.admission.limits
        node.delivery_limits = _delivery_limits(options)
        node.publish_rules = _publish_rules(options, node)
        node.permissions = Authorizer(node, permissions or Permissions())
        self._loop = asyncio.get_running_loop()
        self._reset()
        self.projector = Projector(node, log.projections)
        node.retention = self.retention = Retention(node, self.projector)
        self._systree = SysTopicTree(node)
        node.system_topics = self._systree
        self.replays = Replays(node)
        """The replays of connected clients."""
        node.replays = self.replays
        self._flush_timer: Timer | None = None
        """Writes events that no output waits for."""
        self._background: list[asyncio.Task[None]] = []
        self._expiring_retained = False
        """Whether the expiry of more retained messages will be recorded soon."""
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

    # Start and end.

    def join(
        self, names: Sequence[str], others: Sequence[OtherLog], link: ExchangeLink
    ) -> LogExchange:
        """Exchange messages with other logs; ``names`` are those of all. Call before recovery."""
        exchange = LogExchange(self.node, names, others, link)
        self.exchange = self.node.exchange = exchange
        self.node.logs = frozenset(names)
        self.replays.join(names, others, exchange)
        self.session_admission.partition = names.index(self.node.options.node), len(names)
        if self.bridge is not None:
            self.bridge.join(names, link.report_filters)
        self.kernel.spawn(exchange, self)
        return exchange

    async def recover(self, progress: Callable[[int, int], None]) -> None:
        """Fold the log and begin to write it; ``progress(done, total)`` counts records.

        Raises CorruptLog when a record is damaged or missing, LogUnavailable when JetStream
        does not answer.
        """
        await self._begin(await recover(self.node, self.projector, self._reset, progress))

    async def adopt(self, state: FollowedState) -> None:
        """Continue with the state of a follower."""
        self._use(state.router)
        await adopt(self.node, self.projector, state)
        await self._begin(None)
        self.sessions.watch_all()

    async def _begin(self, mark: ProjectionMark | None) -> None:
        """Serve from the state; ``mark`` is the mark of the projections used for it."""
        SharedSubscriptions(self.node).begin()
        self.node.recovered = True
        self.kernel.turn_ended = self._end_turn
        self.kernel.handle_gathered = self.fast_path.handle
        self.kernel.turn_split = self.node.journal.split_turn
        self.node.journal.call_soon = self._loop.call_soon
        self.node.journal.on_input_resumed = self._on_input_resumed
        self.node.journal.on_deferred = self._on_deferred
        self.node.journal.ack_delay = self.node.options.ack_delay
        self.kernel.gathering.delay = self.node.options.commit_delay
        self.kernel.may_wait = self._may_wait
        await self.inspection.erasure.finish()
        await end_connections(self.node)
        self.kernel.wake()
        await self.wait_durable()
        await self.inspection.erasure.end_nameless()
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
        if self.node.options.personal_keep:
            work = self.inspection.erasure.keep(self.node.options.personal_keep)
            self._background.append(self._loop.create_task(work, name="personal_keep"))
        if self.node.names is not None and self.exchange is not None:
            work = self.inspection.erasure.watch_requests()
            self._background.append(self._loop.create_task(work, name="requested_names"))
        if self.node.options.destinations or self.node.state.destinations:
            open_destinations(self.node)
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

        ``to`` is the node of the cluster that should lead next. ``handed_over`` is called when the
        log is complete, if another node may lead from then on: it writes the projections.
        """
        self.node.draining = True
        self.node.handing_over = handed_over is not None
        self.admission.close()
        for connection in self.admission.connections:
            connection.pause(ReadPause.DRAIN)
            connection.feed_all()
        await self.wait_durable()
        for connection in list(self.admission.connections):
            connection.close("broker_stopped")
        self.kernel.wake()
        await asyncio.sleep(0)
        await self._wait_detached()
        await self.wait_durable()
        if self.bridge is not None:
            await self.bridge.stop()
        if self.exchange is not None:
            self.exchange.end()
        self.inspection.operations.publishing.end()
        if self.node.dropped:
            _log.warning("dropped since the start", **self.node.dropped)
        self.node.emit(BrokerStopped(to=to))
        self.kernel.wake()
        await self.wait_durable()
        for task in self.node.tasks:
            task.cancel()
        # A round of the projections that is cancelled keeps its unwritten changes until it ends.
        await end_tasks(self._background)
        if handed_over is not None and not self.node.failed.done():
            await handed_over()
        elif not self.node.failed.done():
            await self.projector.finish()
        await self.node.writer.stop()
        self.admission.authenticator.close()

    async def _wait_detached(self) -> None:
        """Wait until all ends of sessions are recorded, some of which need messages of the log."""
        now = self.node.clock.monotonic
        waits_until = now() + _DETACHING
        while (  # noqa: ASYNC110 - at the end only
            self.sessions.any_attached() and not self.node.failed.done() and now() < waits_until
        ):
            await asyncio.sleep(0.002)

    async def wait_durable(self) -> None:
        """Wait until every event is on disk (or the broker failed)."""
        while not self.node.failed.done() and (self.kernel.busy or not self.node.journal.idle):
            self.node.journal.flush()
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
        levels = self.node.publish_rules.max_levels
        recorded = self.node.options.record_qos0
        before = applied_limits(self.node.options, old_permissions)
        self.node.options = self._with_bridge(options)
        self.node.journal.ack_delay = options.ack_delay
        self.kernel.gathering.delay = options.commit_delay
        self.node.delivery_limits = _delivery_limits(options)
        self.node.publish_rules = _publish_rules(options, self.node)
        if self.node.publish_rules.max_levels != levels or options.record_qos0 != recorded:
            self.node.router.routes.forget()
        if permissions is not None and options.clear_denied_retained:
            self.node.spawn_task(clear_denied(self.node))
        applied = applied_limits(options, self.node.permissions.permissions)
        if applied != before:
            self.node.emit(applied)
            self.kernel.wake()
        if expiry_changed:
            self.sessions.watch_all()
        self._systree.begin()
        self.replays.fill_places()
        admission = self.admission
        old, admission.authenticator = admission.authenticator, authenticator
        if old is not authenticator:
            old.close()
            admission.end_revoked()

    def _with_bridge(self, options: BrokerOptions) -> BrokerOptions:
        """Return the options with the destination of the bridge."""
        if self.bridge is None:
            return options
        return dataclasses.replace(
            options, destinations=(*options.destinations, self.bridge.destination)
        )

    def _reset(self) -> NodeState:
        """Begin with an empty state, and return it."""
        node = self.node
        node.state = NodeState()
        if self.bridge is not None:
            self.bridge.interest.clear()
        self._use(Router())
        return node.state

    def _use(self, router: Router) -> None:
        """Route with an index of the current state."""
        node = self.node
        node.router = router
        router.refuses = node.is_refused
        router.observes = node.is_observed
        router.records = node.is_recorded
        router.on_gone = self.sessions.sweep_later
        router.attach(self.bridge, node.clock.stopwatch)

    # Messages to the broker itself.

    def on_receive(self, message: Any) -> None:
        """Handle a connection that requests its session, or the failure of an actor."""
        if isinstance(message, ConnectRequest):
            self.session_admission.handle(message)
        elif isinstance(message, ActorFailed):
            self._on_failed(message)
        elif message is SWEEP_INDEX:
            self.sessions.sweep()

    def _end_turn(self) -> None:
        node = self.node
        node.router.deliveries = 0
        node.journal.end_turn()
        if node.after_turn:
            work, node.after_turn = node.after_turn, []
            for record in work:
                record()
            self.kernel.wake()

    def _may_wait(self) -> bool:
        """Return whether reads of clients may wait for others."""
        journal = self.node.journal
        return not (self.node.draining or journal.congested or journal.observer is not None)

    def on_failure(self, *exc_info: object) -> None:
        """Stop the broker: nothing is supervised without its root."""
        self.node.fail(
            FoldmqError(f"the broker failed: {exc_info[1]}; this is a bug, please report it")
        )

    def _on_failed(self, failed: ActorFailed) -> None:
        actor = failed.actor
        if isinstance(actor, Session):
            others = inherit(self.node, actor, failed)
            self.node.spawn_task(
                replace(self.node, self.sessions.session(actor.name), failed.message, others)
            )
        elif isinstance(actor, Inspector):
            self.inspection.start()
        elif isinstance(actor, ReplayWork):
            self.replays.restart()
        elif isinstance(actor, LogExchange):
            self.node.fail(
                FoldmqError(f"the exchange failed: {failed.error}; this is a bug, please report it")
            )

    # Periodic work.

    def _on_deferred(self, seconds: float) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._flush_timer = self.node.timers.after(seconds, self.node.journal.flush_deferred)

    def _on_input_resumed(self) -> None:
        paused, self.node.paused = self.node.paused, {}
        self.node.in_parts(
            list(paused), _NOTIFIED_AT_ONCE, lambda connection: connection.resume(ReadPause.LOG)
        )

    def _sweep(self) -> None:
        self.node.timers.after(_IDLE_SWEEP, self._sweep)
        self._check_clock()
        self.sessions.freeze_idle(_IDLE_SWEEP)
        if self.node.paused and not self.node.journal.congested:
            self._on_input_resumed()
        if not self._expiring_retained:
            self._expire_retained()
        self.admission.sweep()
        self._check_log()

    def _check_clock(self) -> None:
        """Record a jump of the clock; times that are compared with its time follow it."""
        node = self.node
        jumped = node.clock.check()
        if not jumped:
            return
        if node.journal.between_turns:
            node.record_jump(node.journal.jump(jumped, "running"))
        else:  # the timer runs between two parts of a long turn
            node.after_turn.append(lambda: node.record_jump(node.journal.jump(jumped, "running")))
        self.kernel.wake()
        node.in_parts(
            list(self.admission.connections),
            _NOTIFIED_AT_ONCE,
            lambda connection: connection.clock_jumped(jumped),
        )

    def _expire_retained(self) -> None:
        """Record which retained messages have expired, in batches."""
        self._expiring_retained = False
        if not self.node.recovered or self.node.draining:
            return
        passed = self.node.expired_until
        topics = self.node.state.retained.expired(passed, _RETAINED_AT_ONCE)
        for part in by_text(topics, str):
            self.node.emit(RetainedExpired(part))
        if topics:
            self.kernel.wake()
        if len(topics) == _RETAINED_AT_ONCE:
            self._expiring_retained = True
            self.node.timers.after(_RETAINED_PAUSE, self._expire_retained)

    def outage_seconds(self) -> float:
        """Return for how many seconds the log cannot be written; 0 if it can."""
        writer = self.node.writer
        return 0.0 if writer.outage is None else self.node.clock.monotonic() - writer.outage_since

    def _check_log(self) -> None:
        """Close the clients if the log could not be written for too long."""
        writer = self.node.writer
        stuck = self.outage_seconds() > self.node.options.commit_timeout
        if stuck and not self.session_admission.suspended:
            _log.error(
                "log cannot be written: clients are disconnected until it can",
                reason=writer.outage,
                seconds=self.node.options.commit_timeout,
                connections=len(self.admission.connections),
            )
            self.node.in_parts(
                list(self.admission.connections),
                _CLOSED_AT_ONCE,
                lambda connection: connection.abort("log_unavailable"),
            )
        if stuck != self.session_admission.suspended and not self.node.unsure:
            self.node.admitted_from = float("inf") if stuck else self.node.clock.monotonic()
        self.session_admission.suspended = stuck


def _publish_rules(options: BrokerOptions, node: NodeContext) -> PublishRules:
    return PublishRules(
        reject_qos2=options.reject_qos2_publish,
        close_denied=options.close_denied,
        check_payload_format=options.check_payload_format,
        max_levels=options.bounds.max_topic_levels,
        lacks_key=node.lacks_key if options.personal_topics else None,
    )


def _delivery_limits(options: BrokerOptions) -> DeliveryLimits:
    return DeliveryLimits(
        options.max_ack_pending,
        options.max_queued_messages,
        options.max_queued_bytes,
        options.max_outbound_bytes,
    )
