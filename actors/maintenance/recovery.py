"""Recovery of a broker, and of one session, from the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import structlog

from actors.maintenance.sealing_start import begin_sealing
from actors.maintenance.state_reader import StateReader
from actors.session.decisions.sharing import shared_in_flight
from actors.session.node_context import HeldTime
from actors.session.session_messages import ConnectionDetached
from eventstore.display import iso
from eventstore.errors import CorruptLog, Fenced, LogUnavailable
from eventstore.format.events import SessionClosed
from eventstore.format.node_events import (
    BrokerStarted,
    BrokerStopped,
    ClockJumped,
    LimitsApplied,
    LogCut,
)
from eventstore.format.positions import INDEX_BITS
from eventstore.format.records import ChainChecker
from eventstore.log.journal import Journal
from eventstore.reading.progress import few_collections
from projections.log_proof import REACHED, statement, unproven_end
from projections.state.node_state import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.access.rules import Permissions
    from actors.limits.broker_options import BrokerOptions
    from actors.maintenance.projector import Projector
    from actors.maintenance.state_reader import FollowedState
    from actors.session.node_context import NodeContext
    from eventstore.format.event_parsing import Event
    from eventstore.format.node_events import LogEndUnproven
    from eventstore.format.records import Record
    from eventstore.log.record_reader import LogTail
    from projections.state.format import ProjectionMark
    from projections.state.loading import LoadedProjections
    from projections.state.session import SessionState


def applied_limits(options: BrokerOptions, permissions: Permissions) -> LimitsApplied:
    """Return the event that records these options and permissions."""
    bounds = options.bounds
    return LimitsApplied(
        {
            "max_queued_messages": options.max_queued_messages,
            "max_queued_bytes": options.max_queued_bytes,
            "max_ack_pending": options.max_ack_pending,
            "max_outbound_bytes": options.max_outbound_bytes,
            "session_expiry": options.session_expiry,
            "slow_reader_time": bounds.slow_reader_time,
            "max_topic_levels": bounds.max_topic_levels,
            "check_payload_format": options.check_payload_format,
        },
        permissions=permissions.digest,
        users=options.users_digest,
        elsewhere=options.users_elsewhere,
    )


_log = structlog.get_logger("foldmq")

_POLL = 0.002
_FROZEN_AT_ONCE = 16
_FREEZE_PAUSE = 0.005
"""Number of sessions frozen together, about a millisecond of work, and seconds between batches."""
_JUMPS_READ = 100
"""Number of jumps of the clock among which a start looks for the last one seen at a start."""
_REPORTED_AT_ONCE = 256
_RESTORED_AT_ONCE = 64
"""Sessions whose subscriptions are restored in one iteration of the event loop."""
_ENDED_AT_ONCE = 256
"""Connections of the previous broker whose end is recorded in one iteration of the event loop."""


async def recover(
    node: NodeContext,
    projector: Projector,
    reset: Callable[[], NodeState],
    progress: Callable[[int, int], None],
) -> ProjectionMark | None:
    """Restore the broker's state, open the journal, record the end of some connections.

    ``reset`` empties the state and returns it. Returns the mark of the projections if they were
    used: the log up to it was not read. :func:`end_connections` must follow.
    """

    def on_loaded(loaded: LoadedProjections) -> None:
        _take_clients(node)
        projector.start_from(loaded)
        node.state.sessions.on_thaw = node.router.restore

    reader = StateReader(node.log, lambda state: node.directory.add_frozen(state), on_loaded)
    with few_collections():
        read = await reader.read(node.state, reset, progress)
    jumped = await _open_journal(node, read.tail)
    await _restore(node, read.loaded)
    _take_clients(node)
    if read.loaded is None:
        projector.begin()
    end = await _last_record(node, read.tail)
    last_ms = end.time_ms if end is not None else 0
    unproven = _unproven_end(node, read.tail, last_ms)
    await begin_sealing(node, continues=unproven is None)
    node.crashed_ms = _crash_time(end, proven=unproven is None)
    node.off_ms = node.counters.started_ms - node.crashed_ms
    node.emit(BrokerStarted(software(), crashed=node.crashed_ms > 0))
    if unproven is not None:
        node.emit(unproven)
    if jumped is not None:
        node.record_jump(jumped)
    for state in node.state.sessions.live.values():
        if not state.connected:
            node.directory.watch_expiry(state)
    await _record_start(node)
    await _freeze(node, _offline(node), 0)
    return read.loaded.mark if read.loaded is not None else None


async def adopt(node: NodeContext, projector: Projector, follower: FollowedState) -> None:
    """Take over the state of a follower, which has folded the log up to this BrokerStarted.

    The node already has its router. The expiry of offline sessions is not scheduled yet.
    :func:`end_connections` must follow.
    """
    node.state = follower.state
    if node.bridge is not None:
        for number, (_, state) in enumerate(node.state.sessions.items()):
            node.router.report(state)
            if number % _REPORTED_AT_ONCE == 0:
                await asyncio.sleep(0)
    jumped = await _open_journal(node, follower.tail)
    node.journal.record_format = 1  # other nodes may read no other, see cluster.leader
    if jumped is not None:
        node.record_jump(jumped)
    _take_clients(node)
    await begin_sealing(node, continues=False)
    projector.begin()
    await _record_start(node)
    # Clients wait for this broker, but need not wait for this work.
    node.spawn_task(_freeze(node, _offline(node), _FREEZE_PAUSE))


def _take_clients(node: NodeContext) -> None:
    """Continue with the histories of clients that were read with the state."""
    if node.state.clients is not None:
        node.clients = node.state.clients


def _offline(node: NodeContext) -> list[str]:
    """Return the sessions without a connection that are not frozen."""
    return [name for name, state in node.state.sessions.live.items() if not state.connected]


async def _freeze(node: NodeContext, names: list[str], pause: float) -> None:
    """Freeze sessions that are not in use, with pauses of ``pause`` seconds."""
    for number, name in enumerate(names):
        if number % _FROZEN_AT_ONCE == 0:
            await asyncio.sleep(pause)
        state = node.state.sessions.live.get(name)
        unused = node.directory.find_session(name) is None
        if state is not None and not state.connected and unused:
            node.directory.freeze(name)


async def _open_journal(node: NodeContext, tail: LogTail) -> ClockJumped | None:
    """Begin to write the log; return the jump of the clock since its last record, if any."""
    log, longest = node.log, node.options.max_clock_gap
    jumped = 0
    if tail.sequence:
        jumped = node.clock.resume(tail.steady_ms, tail.jumps.total_ms, round(longest * 1000))
    node.state.jumped_ms = node.clock.jumped_ms
    node.writer = log.writer(node.clock, node.fail)
    node.journal = Journal(
        node.writer,
        node.clock,
        node=node.options.node,
        sequence=tail.sequence,
        link=tail.link,
        max_record=node.options.max_record,
        since_ms=tail.steady_ms,
        jumps=tail.jumps,
    )
    node.journal.record_format = node.options.record_format
    if (mark := log.watermark) is not None:
        node.journal.on_durable = lambda record: mark.write(record.sequence, record.link)
    await node.writer.start(node.journal)
    node.held = await _held_time(node, tail.jumps.record)
    return node.journal.jump(jumped, "start") if jumped else None


async def _held_time(node: NodeContext, sequence: int) -> HeldTime | None:
    """Return the time that an earlier start did not count, unless an operator confirmed the clock.

    ``sequence`` is the record with the last jump of the clock; 0: there was none.
    """
    ms = 0
    for _ in range(_JUMPS_READ):
        if sequence < max(1, node.log.first):
            return None
        try:
            (record,) = await node.log.read_some([sequence])
        except CorruptLog:
            return None
        jumps = [event for _, event in record.events() if isinstance(event, ClockJumped)]
        if not jumps or jumps[0].seen == "confirmed":
            return None
        ms += jumps[0].ms
        if jumps[0].seen == "start":
            return HeldTime(ms, record.steady_ms)
        sequence = jumps[0].previous
    return None


async def _record_start(node: NodeContext) -> None:
    """Record the limits, and the end of the connections whose end has no other effect."""
    node.emit(applied_limits(node.options, node.permissions.permissions))
    grace = node.will_grace
    for number, (name, state) in enumerate(list(node.state.sessions.live.items())):
        if number % _ENDED_AT_ONCE == _ENDED_AT_ONCE - 1:
            await asyncio.sleep(0)
        if not state.connected or _publishes(state, grace):
            continue
        waits = grace if state.will is not None else 0
        node.emit(SessionClosed(name, "broker_restarted", state.generation, grace=waits))
        node.clients.closed(name, "broker_restarted", node.clock.time_ms())
        if state.clean:
            node.router.remove_session(name)
        if not state.clean or waits:
            node.directory.watch_expiry(state)


async def _last_record(node: NodeContext, tail: LogTail) -> Record | None:
    """Return the last record of the log; None if there is none, or it cannot be read."""
    if not tail.sequence or tail.sequence < node.log.first:
        return None
    try:
        return (await node.log.read_some([tail.sequence]))[-1]
    except CorruptLog:
        return None


def _unproven_end(node: NodeContext, tail: LogTail, last_ms: int) -> LogEndUnproven | None:
    """Return what has to be recorded if the end of the log cannot be proven; log it."""
    mark = node.log.watermark
    unproven = mark.unproven_end(tail.sequence, last_ms) if mark is not None else None
    if unproven is not None:
        unproven = replace(unproven, salvaged=node.state.proof.salvaged_after(tail.sequence))
        doubt = unproven_end(unproven, tail.sequence + 1, node.clock.time_ms())
        _log.warning(statement(doubt))
    return unproven


def _crash_time(end: Record | None, *, proven: bool) -> int:
    """Return when the previous run last wrote if it did not end cleanly, otherwise 0; log it.

    ``proven``: the log ends with the last record that was noted as acknowledged. Otherwise it may
    be a copy that was made while the broker ran.
    """
    events = [event for _, event in end.events()] if end is not None else []
    if end is None or not events or any(map(_ends_cleanly, events)):
        return 0
    _log.warning(
        f"the previous run crashed or was killed; {REACHED}"
        if proven
        else "the log does not end with the stop of a broker: it crashed or was killed, or wrote "
        "on after a copy was made",
        last_record=end.sequence,
        written=iso(end.time_ms),
    )
    return max(1, end.time_ms) if proven else 0


def _ends_cleanly(event: Event) -> bool:
    """Return whether nothing ran any more when an event was written: a stop, or an import."""
    return isinstance(event, BrokerStopped) or (
        isinstance(event, LogCut) and event.reason == "imported"
    )


async def _restore(node: NodeContext, loaded: LoadedProjections | None) -> None:
    """Update the subscription index from the state."""
    node_state = node.state
    for name in node.router.active_sessions():
        if name not in node_state.sessions:
            node.router.remove_session(name)
    for number, state in enumerate(list(node_state.sessions.live.values())):
        node.router.restore(state)
        if number % _RESTORED_AT_ONCE == _RESTORED_AT_ONCE - 1:
            await asyncio.sleep(0)
    if loaded is None:
        for number, (name, state) in enumerate(node_state.sessions.items()):
            if name not in node_state.sessions.live:
                node.directory.add_frozen(state)
            if number % _RESTORED_AT_ONCE == _RESTORED_AT_ONCE - 1:
                await asyncio.sleep(0)
    node_state.sessions.on_thaw = node.router.restore


def software() -> str:
    """Return the version of the running foldmq."""
    try:
        return version("foldmq")
    except PackageNotFoundError:
        return "unknown"


def _publishes(state: SessionState, grace: int) -> bool:
    """Return whether the end of a session's connection publishes or returns messages."""
    return (state.will is not None and not grace) or bool(shared_in_flight(state))


async def end_connections(node: NodeContext) -> None:
    """Record the end of the other connections of the previous run of the broker.

    Wills are published as for any connection that ended without a DISCONNECT, or wait for their
    clients, and unacknowledged messages of shared subscriptions are returned to them. Some sessions
    do this in each turn; no client may connect before all are done.
    """
    grace = node.will_grace
    number = 0
    for name, state in list(node.state.sessions.live.items()):
        if state.connected and _publishes(state, grace):
            node.kernel.tell(
                node.directory.session(name), ConnectionDetached(None, "broker_restarted", False)
            )
            number += 1
            if number % _ENDED_AT_ONCE == 0:
                await asyncio.sleep(0)


async def rebuild_session(node: NodeContext, name: str) -> tuple[int, SessionState | None]:
    """Return the sequence of the last folded record, and a session's state from the log.

    The state is None if there is no such session. Waits until all events appended so far are on
    disk. No event of this session may be appended meanwhile.
    """
    with node.retention.cuts_suspended():
        return await _rebuild(node, name)


async def _rebuild(node: NodeContext, name: str) -> tuple[int, SessionState | None]:
    journal = node.journal
    checkpoints = node.state.checkpoints
    first = checkpoints[-1].begun >> INDEX_BITS if checkpoints else node.log.first
    node_state = NodeState(first)
    checker: ChainChecker | None = None
    folded = first - 1
    end = journal.end
    whole = False
    while not whole:
        await until_durable(node, end)
        async for record in node.log.read(folded + 1, end):
            if checker is None:
                checker = ChainChecker(first - 1, record.previous)
            checker.check(record)
            folded = record.sequence
            node_state.apply_record(record, only=name)
            whole = record.last
            await asyncio.sleep(0)
        if node.failed.done():
            break
        # A turn that continues in the next record counts completely or not at all.
        end += not whole
    return end, node_state.sessions.get(name)


async def until_durable(node: NodeContext, sequence: int) -> None:
    """Wait until the records up to one are on disk."""
    journal = node.journal
    node.kernel.wake()
    while journal.durable < sequence and not node.failed.done():
        await asyncio.sleep(_POLL)
        journal.flush()


# Verifies in the background the part of the log that a restart did not read.
#
# A restart folds only the end of the log. The rest is checked afterwards, gradually: it must be
# complete, intact and in order. Damage there does not change the broker's state; the status names
# it, one line of the log does, and a session that needs a lost message fails when it reads it.


_AT_ONCE = 16
"""Records read between two pauses."""
_SHARE = 9
"""Length of a pause, relative to the work before it."""
_RETRY = 5.0


async def verify_in_background(node: NodeContext, end: int, link: bytes) -> None:
    """Check the records of the log up to ``end``, which must have this link."""
    log, now = node.log, node.clock.monotonic
    verified = log.first - 1
    checker: ChainChecker | None = None
    while verified < end:
        started = now()
        until = min(verified + _AT_ONCE, end)
        damage: CorruptLog | None = None
        try:
            async for record in log.read(verified + 1, until):
                if checker is None:
                    checker = ChainChecker(verified, record.previous)
                checker.check(record)
                verified = record.sequence
            if verified < until:
                damage = CorruptLog(verified + 1, "is missing or cannot be read")
        except LogUnavailable:
            await asyncio.sleep(_RETRY)
            continue
        except CorruptLog as error:
            damage = error
        except Fenced as error:
            node.fail(error)
            return
        if verified + 1 < node.state.begin:  # the log was cut meanwhile
            verified, checker = node.state.begin - 1, None
        elif damage is not None:
            _note_damage(node, damage)
            return
        await asyncio.sleep((now() - started) * _SHARE)
    if checker is not None and checker.link != link:
        _note_damage(node, CorruptLog(end, "is not the one that the projections reflect"))


def _note_damage(node: NodeContext, damage: CorruptLog) -> None:
    node.damaged = damage
    _log.error(
        "the log is damaged: the broker's state is intact, but older records are damaged",
        reason=f"record {damage.sequence} {damage.what}",
        advice="foldmq log verify",
    )
