"""The search for expired messages in the queues of a session."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.session.message_buffer import MessageBuffer
    from eventstore.format.positions import Position
    from projections.state.session import SessionState

_EXPIRED_AT_ONCE: Final = 1024
"""Expired messages that are dropped at once."""
_EXPIRED_WITHIN: Final = 1024
"""Runs of a queue that are searched."""
_QUEUES_AT_ONCE: Final = 16
"""Queues of a session searched in one turn: a session may have thousands."""


class QueueExpiry:
    """Finds expired messages, in some queues at a time.

    The first messages of each queue are searched: messages that expire last are mostly behind them.
    """

    __slots__ = ("_next", "_searched")

    def __init__(self) -> None:
        self._next = 0
        """Number of the queue at which the search continues."""
        self._searched = 0
        """The last second in which no queue contained expired messages."""

    def search(
        self,
        state: SessionState,
        now: int,
        buffer: MessageBuffer,
        expire: Callable[[str, list[Position], int], None],
    ) -> list[Position]:
        """Pass expired messages to ``expire``: their filter, positions and payload bytes.

        Returns messages that have to be read from the log first, as their sizes must be known.
        """
        if self._searched >= now:
            return []
        left, begin = _EXPIRED_AT_ONCE, self._next
        some = [*islice(state.waiting.values(), begin, begin + _QUEUES_AT_ONCE)]
        for held in some:
            queue = held.queue
            gone = queue.expired(now, left, _EXPIRED_WITHIN) if queue is not None else []
            if not gone:
                continue
            found = buffer.find_first(gone)
            if not found:
                return buffer.to_load(gone)
            refs = [ref for ref in gone if ref in found]
            expire(held.filter, refs, sum(len(found[ref].payload) for ref in refs))
            left -= len(refs)
            if left <= 0:
                return []
        self._next = begin + _QUEUES_AT_ONCE
        if len(some) < _QUEUES_AT_ONCE:
            self._next = 0
            if left == _EXPIRED_AT_ONCE:
                self._searched = now
        return []
