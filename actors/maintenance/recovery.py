"""Recovery of a broker, and of one session, from the log.

The projections are read first, if they are intact; then the log is folded from their mark on.
Without them it is folded from its beginning: its first record, or the checkpoint before which it
was cut.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import structlog

from actors.maintenance.limit_record import applied_limits
from actors.session import Detached
from actors.session.decisions import shared_in_flight
from eventstore.display import iso
from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format import (
    INDEX_BITS,
    BrokerStarted,
    BrokerStopped,
    ChainChecker,
    MessagePublished,
    MessagesCarried,
    SessionClosed,
    from_runs,
    position,
    upcast,
)
from eventstore.log import Journal, LostBeginning, messages_of
from projections.state import NodeState, RetainedMessage
from projections.storage import BadProjection, ProjectionLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors.maintenance.projector import Projector
    from actors.session import NodeContext
    from eventstore.format import Position, Record
    from eventstore.log import EventLog, LogTail
    from projections.state import SessionState
    from projections.storage import LoadedProjections, ProjectionMark

_log = structlog.get_logger("foldmq")

_POLL = 0.002
_BREATHE_EVERY = 64
"""Records folded between two returns to the event loop."""
_FREEZE_FROM = 50_000
"""Number of sessions in memory from which offline ones are frozen while the log is folded."""


async def recover(
    node: NodeContext,
    projector: Projector,
    reset: Callable[[], None],
    progress: Callable[[int, int], None],
) -> ProjectionMark | None:
    """Restore the broker's state, open the journal, record the end of connections.

    ``reset`` empties the state. Returns the mark of the projections if they were used: the log up
    to it was not read.
    """
    log = node.log
    tail = await log.tail()
    loaded: LoadedProjections | None = None
    try:
        loaded = await _load(node, projector, tail)
        await _fold(node, tail, loaded, progress)
    except BadProjection as error:
        _log.warning("the log is folded from its beginning", reason=str(error))
        loaded = None
        reset()
        await _fold(node, tail, None, progress)
    node_state = node.state
    node_state.finish_loading()
    _check_begin(log, node_state, tail)
    node_state.begin = log.first
    node.writer = log.writer(node.clock, node.fail)
    node.journal = Journal(
        node.writer,
        node.clock,
        node=node.options.node,
        sequence=tail.sequence,
        link=tail.link,
        max_record=node.options.max_record,
    )
    if log.watermark is not None:
        node.journal.on_durable = log.watermark.write
    await node.writer.start(node.journal)
    _restore(node, loaded)
    if loaded is None:
        projector.begin()
    crashed = await _ended_by_crash(node, tail)
    node.emit(BrokerStarted(software(), crashed=crashed))
    node.emit(applied_limits(node.options, node.permissions.permissions))
    _end_connections(node)
    for name in [name for name, state in node_state.sessions.live.items() if not state.connected]:
        node.directory.passivate(name)
    return loaded.mark if loaded is not None else None


async def _load(node: NodeContext, projector: Projector, tail: LogTail) -> LoadedProjections | None:
    """Read the projections into the broker's state; None if there are none.

    Raises BadProjection if they are not usable.
    """
    log = node.log
    inbound: dict[str, list[Position]] = {}

    def found(state: SessionState, *, frozen: bool) -> None:
        if frozen:
            node.directory.take_passive(state)
        if state.inbound:
            inbound[state.session] = list(state.inbound.values())

    loader = ProjectionLoader(node.state, found, position(tail.sequence + 1, 0))
    count = 0
    try:
        async for data in log.projections.read():
            loader.take(data)
            count += 1
            if count % 1024 == 0:
                await asyncio.sleep(0)
        if not count:
            return None
        loaded = loader.finish(await log.projections.last())
    except LogUnavailable as error:
        # If the log does not answer either, reading it reports that.
        raise BadProjection(f"the projections cannot be read: {error}") from None
    await _check_mark(log, loaded)
    node.state.begin = log.first
    await _fill_carried(node, loaded)
    await _recall(node, inbound)
    projector.go_on(loaded)
    node.state.sessions.on_thaw = node.router.restore
    return loaded


async def _ended_by_crash(node: NodeContext, tail: LogTail) -> bool:
    """Return whether the run before did not end as asked, and say so."""
    if not tail.sequence or tail.sequence < node.log.first:
        return False
    try:
        records = await node.log.read_some([tail.sequence])
    except CorruptLog:
        return False
    events = [event for record in records for _, event in record.events()]
    if not events or any(isinstance(event, BrokerStopped) for event in events):
        return False
    _log.warning(
        "the previous run crashed or was killed; everything acknowledged is in the log",
        last_record=tail.sequence,
        written=iso(records[-1].time_ms),
    )
    return True


async def _check_mark(log: EventLog, loaded: LoadedProjections) -> None:
    """Raise BadProjection unless the log continues at the projections' mark."""
    mark = loaded.mark
    if mark.sequence < log.first:
        if mark.sequence == log.first - 1 and mark.cut and mark.cut.link == mark.link:
            return
        raise BadProjection("the projections end before the log begins")
    try:
        records = await log.read_some([mark.sequence])
    except CorruptLog:
        records = []
    if not any(one.sequence == mark.sequence and one.link.hex() == mark.link for one in records):
        raise BadProjection("the projections are those of another log")


async def _fill_carried(node: NodeContext, loaded: LoadedProjections) -> None:
    """Read from records which messages they repeat, and where the log was cut."""
    node_state, mark = node.state, loaded.mark
    node_state.take_marks(mark.checkpoints, mark.cut, mark.archived, mark.bridged)
    carriers = [sequence for sequence in mark.carriers if sequence >= node.log.first]
    for start in range(0, len(carriers), _BREATHE_EVERY):
        for record in await _read(node, carriers[start : start + _BREATHE_EVERY]):
            for index, event in record.events():
                if isinstance(event, MessagesCarried):
                    node_state.apply(event, position(record.sequence, index), record.time_ms)


async def _recall(node: NodeContext, wanted: dict[str, list[Position]]) -> None:
    """Find retained messages that sessions sent at QoS 2 and did not release.

    The projections hold their identifiers; the messages are in the log.
    """
    if not wanted:
        return
    node_state = node.state
    sequences = {
        at
        for refs in wanted.values()
        for ref in refs
        for at in node_state.carriers_of(ref >> INDEX_BITS)
    }
    found: dict[Position, RetainedMessage] = {}
    for record in await _read(node, sequences):
        found.update(_retained_at_qos2(record))
    for session, refs in wanted.items():
        messages = [found[ref] for ref in refs if ref in found]
        if messages:
            node_state.retained.recall(session, messages)


async def _read(node: NodeContext, sequences: Iterable[int]) -> list[Record]:
    """Return records that the projections refer to; raise BadProjection if one is missing.

    Projections that lost their end may refer to records deleted since.
    """
    try:
        return await node.log.read_some(sequences)
    except CorruptLog as error:
        raise BadProjection(f"what the projections refer to is not there: {error.what}") from None


def _retained_at_qos2(record: Record) -> Iterable[tuple[Position, RetainedMessage]]:
    """Yield the messages of a record that are retained with their PUBREL."""
    base = position(record.sequence, 0)
    waiting: set[Position] = set()
    for index, event in record.events():
        if isinstance(event, MessagePublished) and event.retain and event.qos == 2:
            waiting.update(range(base + index, base + index + event.count))
        elif isinstance(event, MessagesCarried):
            waiting.update(from_runs(event.waiting))
    if not waiting:
        return
    for stored in messages_of(record):
        for number in range(len(stored.payloads)):
            ref = stored.first + number
            if ref in waiting:
                one = stored.message(number)
                topic = one.topic.decode()
                yield ref, RetainedMessage(topic, one.payload, 2, ref, one.block, one.expires)


async def _fold(
    node: NodeContext,
    tail: LogTail,
    loaded: LoadedProjections | None,
    progress: Callable[[int, int], None],
) -> None:
    """Fold the records that the projections do not reflect."""
    log, node_state = node.log, node.state
    noted = log.watermark.read() if log.watermark is not None else None
    last = tail.sequence
    first = log.first
    checker = ChainChecker() if first == 1 else None
    if loaded is not None:
        first = loaded.mark.sequence + 1
        checker = ChainChecker(loaded.mark.sequence, bytes.fromhex(loaded.mark.link))
    else:
        node_state.starts_at(first)
    if last and first <= last:
        async for record in log.read(first, last):
            if checker is None:
                checker = ChainChecker(first - 1, record.previous)
            checker.check(record)
            if noted is not None and noted[0] == record.sequence and noted[1] != record.link:
                raise CorruptLog(record.sequence, "is not the one that was acknowledged")
            if loaded is not None:
                await _recall(node, _unknown_releases(node_state, record, position(first, 0)))
            node_state.apply_record(record)
            if record.sequence % _BREATHE_EVERY == 0:
                if loaded is None and len(node_state.sessions.live) > _FREEZE_FROM:
                    _freeze_offline(node_state, position(record.sequence + 1, 0))
                progress(record.sequence - first + 1, last - first + 1)
                await asyncio.sleep(0)
        if checker is None or checker.sequence != last:
            raise CorruptLog(first if checker is None else checker.sequence + 1, "is missing")
    node_state.applied = last
    progress(1, 1)


def _unknown_releases(
    node_state: NodeState, record: Record, before: Position
) -> dict[str, list[Position]]:
    """Return unknown messages from before a position that a record releases."""
    found: dict[str, list[Position]] = {}
    for raw in record.raw_events:
        if raw.get("e") != "Released":
            continue
        event = upcast(raw)
        for ref in from_runs(event["refs"]):
            if ref < before and not node_state.retained.known(event["session"], ref):
                found.setdefault(event["session"], []).append(ref)
    return found


def _freeze_offline(node_state: NodeState, bound: Position) -> None:
    for name in [name for name, state in node_state.sessions.live.items() if not state.connected]:
        node_state.sessions.freeze(name, bound)


def _check_begin(log: EventLog, node_state: NodeState, tail: LogTail) -> None:
    """Raise CorruptLog unless the beginning of the log is valid and nothing is missing after it."""
    if log.first == 1 or not tail.sequence:
        return
    if not any(cut.first >= log.first for cut in node_state.cuts):
        raise LostBeginning(log.first, node_state.cuts[-1] if node_state.cuts else None)
    if node_state.partial:
        raise CorruptLog(log.first - 1, "is gone, and no whole checkpoint follows it")


def _restore(node: NodeContext, loaded: LoadedProjections | None) -> None:
    """Update the subscription index from the state."""
    node_state = node.state
    for name in node.router.active_sessions():
        if name not in node_state.sessions:
            node.router.remove_session(name)
    for state in list(node_state.sessions.live.values()):
        node.router.restore(state)
    if loaded is None:
        for name, state in node_state.sessions.items():
            if name not in node_state.sessions.live:
                node.directory.take_passive(state)
    node_state.sessions.on_thaw = node.router.restore


def software() -> str:
    """Return the version of foldmq that runs."""
    try:
        return version("foldmq")
    except PackageNotFoundError:
        return "unknown"


def _end_connections(node: NodeContext) -> None:
    """Record the end of the connections of the previous run of the broker.

    Wills are published as for any connection that ended without a DISCONNECT, and what the clients
    did not acknowledge goes back to shared subscriptions.
    """
    for name, state in list(node.state.sessions.live.items()):
        if not state.connected:
            node.directory.watch_expiry(state)
        elif state.will is not None or shared_in_flight(state):
            node.kernel.tell(
                node.directory.session(name), Detached(None, "broker_restarted", False)
            )
        else:
            node.emit(SessionClosed(name, "broker_restarted", state.generation))
            node.clients.closed(name, "broker_restarted", node.clock.time_ms())
            if state.clean:
                node.router.remove_session(name)
            else:
                node.directory.watch_expiry(state)


async def rebuild_session(node: NodeContext, name: str) -> tuple[int, SessionState | None]:
    """Return a session's state from the log, None if there is no such session.

    The second value is the stream sequence of the last folded record.

    Waits until all events appended so far are on disk. Nothing may append for this session
    meanwhile.
    """
    with node.retention.holding_still():
        return await _rebuild(node, name)


async def _rebuild(node: NodeContext, name: str) -> tuple[int, SessionState | None]:
    journal = node.journal
    checkpoints = node.state.checkpoints
    first = checkpoints[-1].begun >> INDEX_BITS if checkpoints else node.log.first
    node_state = NodeState(first)
    checker: ChainChecker | None = None
    done = first - 1
    last = journal.end
    whole = False
    while not whole:
        await _until_durable(node, last)
        async for record in node.log.read(done + 1, last):
            if checker is None:
                checker = ChainChecker(first - 1, record.previous)
            checker.check(record)
            done = record.sequence
            node_state.apply_record(record, only=name)
            whole = record.last
            await asyncio.sleep(0)
        if node.failed.done():
            break
        # A turn that continues in the next record counts as a whole or not at all.
        last += not whole
    return last, node_state.sessions.get(name)


async def _until_durable(node: NodeContext, last: int) -> None:
    journal = node.journal
    node.kernel.wake()
    while journal.durable < last and not node.failed.done():
        await asyncio.sleep(_POLL)
        journal.flush()
