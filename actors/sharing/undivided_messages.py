"""QoS 0 messages of a shared subscription that wait to be divided among its members."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.session.session_messages import Batch, Outgoing

_MAX_MESSAGES = 65_536
"""Approximate maximum number of messages."""


class UndividedMessages:
    """A bounded queue of batches."""

    __slots__ = ("_batches", "_bytes", "_count")

    def __init__(self) -> None:
        self._batches: deque[Outgoing] = deque()
        self._count = self._bytes = 0
        """Number of messages, and the bytes of their packets or payloads."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._batches)

    def has_room(self, most_bytes: int) -> bool:
        """Return whether more messages may be added."""
        return self._count < _MAX_MESSAGES and self._bytes < most_bytes

    def add(self, message: Outgoing) -> None:
        """Add a batch after all others."""
        self._batches.append(message)
        self._add_size(message.batch, 1)

    def add_first(self, message: Outgoing) -> None:
        """Add the rest of a batch before all others."""
        self._batches.appendleft(message)
        self._add_size(message.batch, 1)

    def take(self) -> Outgoing:
        """Remove and return the first batch."""
        message = self._batches.popleft()
        self._add_size(message.batch, -1)
        return message

    def _add_size(self, batch: Batch, sign: int) -> None:
        self._count += sign * len(batch)
        self._bytes += sign * sum(map(len, batch.packets or batch.payloads))
