"""Reads messages from the log that a session needs and that are no longer in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from actors.session import Loaded
from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format import INDEX_BITS, format_position
from eventstore.log import MessageStore
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.session import NodeContext, Session
    from eventstore.format import Position, Record
    from eventstore.log import Message

_log = structlog.get_logger("foldmq")

_UNTIL_DURABLE = 0.01
"""Seconds between checks whether records that are needed are on disk."""
_RETRY = 0.5


async def load_messages(node: NodeContext, session: Session, refs: Sequence[Position]) -> None:
    """Read messages from the log; the session gets a ``Loaded`` message.

    The broker fails if the log does not hold one of them.
    """
    sequences = {ref >> INDEX_BITS for ref in refs}
    found: dict[Position, Message] = {}
    records: list[Record] = []
    while not session.stopped:
        begin = node.state.begin
        wanted = {at for sequence in sequences for at in node.state.carriers_of(sequence)}
        if max(wanted, default=0) > node.journal.durable:
            await asyncio.sleep(_UNTIL_DURABLE)
            continue
        try:
            records = await node.log.read_some(wanted)
            break
        except LogUnavailable as error:
            _log.warning(
                "messages cannot be read",
                client=session.name,
                position=format_position(refs[0]),
                error=str(error),
            )
            await asyncio.sleep(_RETRY)
        except FoldmqError as error:
            if node.state.begin == begin and not session.stopped:
                node.fail(error)
                return
            # The log was cut meanwhile: the records needed now are elsewhere.
    if session.stopped:
        # Its successor requests messages itself. Those of this one may have been cut off.
        return
    store = MessageStore(1 << 62)
    for record in records:
        store.add_record(record)
    for ref in refs:
        message = store.get(ref) or node.messages.get(ref)
        if message is None:
            node.fail(CorruptLog(ref >> INDEX_BITS, "does not hold a message it should"))
            return
        found[ref] = message
    for record in records:
        node.messages.add_record(record)
    node.tell_if_alive(session, Loaded(found))
