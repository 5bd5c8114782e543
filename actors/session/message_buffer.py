"""The messages of a session in memory: in the store of the node, or held for its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.format.positions import INDEX_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventstore.format.positions import Position
    from eventstore.log.message_store import Message, MessageStore

_REACH: Final = 8
"""Number of records of the first read from the log."""
_REACH_GROWS: Final = 4
"""Factor by which this number grows with each read."""
_HELD_MESSAGES: Final = 65_536
"""Maximum number of messages held for a connected client whose window is full."""


class MessageBuffer:
    """Finds messages in memory, and holds those that will soon be sent to the client."""

    __slots__ = ("_held", "_held_bytes", "_reach", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._held: dict[Position, Message] = {}
        self._held_bytes = 0
        self._reach = _REACH
        """Maximum number of records of the next read from the log."""

    def find(self, refs: Sequence[Position]) -> dict[Position, Message] | None:
        """Return the messages at these positions, or None if some must be loaded."""
        messages = self.find_first(refs)
        return messages if len(messages) == len(set(refs)) else None

    def find_first(self, refs: Sequence[Position]) -> dict[Position, Message]:
        """Return the messages at these positions, up to the first one that must be loaded."""
        messages: dict[Position, Message] = {}
        buffered, store = self._held, self._store
        for ref in refs:
            message = buffered.get(ref) or store.get(ref)
            if message is None:
                break
            messages[ref] = message
        return messages

    def to_load(self, refs: Sequence[Position]) -> list[Position]:
        """Return the first of these positions to load now: few at first, then more.

        So a client that reconnects need not wait until all its missed messages have been read.
        """
        records: set[int] = set()
        for count, ref in enumerate(refs):
            records.add(ref >> INDEX_BITS)
            if len(records) > self._reach:
                self._reach *= _REACH_GROWS
                return list(refs[:count])
        return list(refs)

    def not_held(self, refs: Sequence[Position]) -> list[Position]:
        """Return the positions whose messages are not held here."""
        buffered = self._held
        return [ref for ref in refs if ref not in buffered]

    def has_room(self, size: int, limit: int) -> bool:
        """Return whether messages of ``size`` bytes may be held; ``limit`` bounds all of them."""
        return self._held_bytes + size <= limit and len(self._held) < _HELD_MESSAGES

    def hold(self, messages: dict[Position, Message]) -> None:
        """Hold messages until they are released."""
        self._held.update(messages)
        self._held_bytes += sum(len(message.payload) for message in messages.values())

    def release(self, refs: Iterable[Position]) -> None:
        """Drop sent messages from memory."""
        if self._held:
            for ref in refs:
                gone = self._held.pop(ref, None)
                if gone is not None:
                    self._held_bytes -= len(gone.payload)

    def restart_reading(self) -> None:
        """Begin with few messages again: the client has connected."""
        self._reach = _REACH
