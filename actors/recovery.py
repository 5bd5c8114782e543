"""From the log to a running broker, and from the log to one session."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import structlog

from actors.messages import Detached
from eventstore.errors import CorruptLog
from eventstore.events import BrokerStarted, SessionClosed
from eventstore.journal import Journal
from eventstore.records import ChainChecker
from projections.node import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.broker import Broker
    from projections.session import SessionState

_log = structlog.get_logger("foldmq")

_POLL = 0.002
_BREATHE_EVERY = 64
"""Records folded between two looks at the event loop."""


async def recover(broker: Broker, progress: Callable[[int, int], None]) -> None:
    """Fold the log into the broker's state, open the journal, end what was connected."""
    log, node = broker.log, broker.node
    tail = await log.tail()
    last = tail.sequence
    mark = log.watermark.read() if log.watermark is not None else None
    checker = ChainChecker()
    if last:
        async for record in log.read(1, last):
            checker.check(record)
            if mark is not None and mark[0] == record.sequence and mark[1] != record.link:
                raise CorruptLog(record.sequence, "is not the one that was acknowledged")
            node.apply_record(record)
            if record.sequence % _BREATHE_EVERY == 0:
                progress(record.sequence, last)
                await asyncio.sleep(0)
        if checker.sequence != last:
            raise CorruptLog(checker.sequence + 1, "is missing")
    progress(last, last)
    broker.writer = log.writer(broker.clock, broker.fail)
    broker.journal = Journal(
        broker.writer,
        broker.clock,
        node=broker.options.node,
        sequence=tail.sequence,
        link=tail.link,
        max_record=broker.options.max_record,
    )
    await broker.writer.start(broker.journal)
    broker.emit(BrokerStarted(_software()))
    for state in list(node.sessions.values()):
        broker.router.restore(state)
    _end_connections(broker)


def _software() -> str:
    try:
        return version("foldmq")
    except PackageNotFoundError:
        return "unknown"


def _end_connections(broker: Broker) -> None:
    """Record the end of the connections that ended with the broker's predecessor.

    Wills are published as for any connection that ended without a DISCONNECT.
    """
    node = broker.node
    for name, state in list(node.sessions.items()):
        if not state.connected:
            broker.watch_expiry(state)
        elif state.will is not None:
            broker.kernel.tell(broker.session(name), Detached(None, "broker_restarted", False))
        else:
            broker.emit(SessionClosed(name, "broker_restarted", state.generation))
            if state.clean:
                broker.router.remove_session(name)
            else:
                broker.watch_expiry(state)


async def rebuild_session(broker: Broker, name: str) -> tuple[int, SessionState | None]:
    """Return a session's state as the log has it, None when there is no such session.

    With it comes the stream sequence of the last record that was folded.

    Waits until all that was appended until now is on disk. Nothing may append for this session
    meanwhile.
    """
    journal = broker.journal
    node = NodeState()
    checker = ChainChecker()
    last = journal.end
    whole = False
    while not whole:
        await _until_durable(broker, last)
        async for record in broker.log.read(checker.sequence + 1, last):
            checker.check(record)
            node.apply_record(record, only=name)
            whole = record.last
            await asyncio.sleep(0)
        if broker.failed.done():
            break
        # A turn that went on in the next record counts as a whole or not at all.
        last += not whole
    return last, node.sessions.get(name)


async def _until_durable(broker: Broker, last: int) -> None:
    journal = broker.journal
    broker.kernel.wake()
    while journal.durable < last and not broker.failed.done():
        await asyncio.sleep(_POLL)
        journal.flush()
