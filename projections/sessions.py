"""The sessions of a node: those that something happens to as objects, the others frozen.

A frozen session is its snapshot in bytes, some tens of bytes more than its names take. Whoever
asks for a session gets it thawed; whoever only looks (``peek``, iteration) leaves it frozen.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import orjson

from projections.snapshot import decode, encode, oldest_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.positions import Position
    from projections.session import SessionState

_BOUND = struct.Struct(">Q")
_LARGEST_FROZEN = 64 * 1024
"""Bytes of a snapshot that is kept frozen at most: a large one takes too long to thaw."""


def freeze(state: SessionState, bound: Position) -> bytes | None:
    """Return a state as bytes, None when it is a large one.

    ``bound`` is the position of the next event: all before it are in the state.
    """
    parts = encode(state)
    if len(parts) > 1:
        return None
    text = orjson.dumps(parts[0])
    return _BOUND.pack(bound) + text if len(text) <= _LARGEST_FROZEN else None


def frozen_from(bound: Position, text: bytes) -> bytes:
    """Return a frozen session made of what :func:`bound_of` and :func:`text_of` gave."""
    return _BOUND.pack(bound) + text


def bound_of(frozen: bytes) -> Position:
    """Return the position that a frozen session reflects: all before it."""
    return int(_BOUND.unpack_from(frozen)[0])


def text_of(frozen: bytes) -> bytes:
    """Return the JSON of a frozen session's state."""
    return frozen[_BOUND.size :]


def thaw(session: str, frozen: bytes) -> SessionState:
    """Return the state that :func:`freeze` was given."""
    state = decode(session, (orjson.loads(text_of(frozen)),))
    state.saved = bound_of(frozen)
    return state


class SessionTable:
    """Session states by client identifier.

    ``on_thaw`` is called with each state that stops being frozen.
    """

    __slots__ = ("_frozen", "_holding", "live", "on_thaw")

    def __init__(self) -> None:
        self.live: dict[str, SessionState] = {}
        """Those that are not frozen: to be looked into first where it matters."""
        self.on_thaw: Callable[[SessionState], object] | None = None
        self._frozen: dict[str, bytes] = {}
        self._holding: dict[str, Position] = {}
        """Frozen sessions that need messages of the log, with the oldest one's position."""

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self.live) + len(self._frozen)

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a session."""
        return name in self.live or name in self._frozen

    def __iter__(self) -> Iterator[str]:
        """Yield the client identifiers."""
        yield from self.live
        yield from self._frozen

    def __getitem__(self, name: str) -> SessionState:
        """Return a session's state, thawed for good."""
        state = self.live.get(name)
        if state is None:
            state = self.live[name] = thaw(name, self._frozen.pop(name))
            self._holding.pop(name, None)
            if self.on_thaw is not None:
                self.on_thaw(state)
        return state

    def __setitem__(self, name: str, state: SessionState) -> None:
        """Put a state in the place of what there was."""
        self.live[name] = state
        self._frozen.pop(name, None)
        self._holding.pop(name, None)

    def get(self, name: str) -> SessionState | None:
        """Return a session's state, thawed for good; None when there is none."""
        if name in self.live or name in self._frozen:
            return self[name]
        return None

    def keys(self) -> set[str]:
        """Return the client identifiers."""
        return self.live.keys() | self._frozen.keys()

    def values(self) -> Iterator[SessionState]:
        """Yield the states, to be looked at, not changed."""
        return (state for _, state in self.items())

    def items(self) -> Iterator[tuple[str, SessionState]]:
        """Yield names and states, to be looked at, not changed."""
        yield from self.live.items()
        for name, frozen in self._frozen.items():
            yield name, thaw(name, frozen)

    def peek(self, name: str) -> SessionState | None:
        """Return a session's state to be looked at, not changed; None when there is none."""
        state = self.live.get(name)
        if state is None:
            frozen = self._frozen.get(name)
            return None if frozen is None else thaw(name, frozen)
        return state

    def discard(self, name: str) -> None:
        """Remove a session, if there is such a one."""
        self.live.pop(name, None)
        self._frozen.pop(name, None)
        self._holding.pop(name, None)

    def frozen(self, name: str) -> bytes | None:
        """Return a session as it is frozen, None when it is not."""
        return self._frozen.get(name)

    def freeze(self, name: str, bound: Position) -> SessionState | None:
        """Freeze a session; return its state, None when it stays as it is: it is a large one."""
        state = self.live[name]
        data = freeze(state, bound)
        if data is None:
            return None
        oldest = oldest_reference(state)
        del self.live[name]
        self.put(name, data, oldest)
        return state

    def put(self, name: str, frozen: bytes, oldest: Position | None) -> None:
        """Take a frozen session; ``oldest`` is the first message that it needs."""
        self._frozen[name] = frozen
        if oldest is not None:
            self._holding[name] = oldest

    def names(self) -> list[str]:
        """Return all client identifiers as of now."""
        return [*self.live, *self._frozen]

    def holds(self, name: str, before: Position) -> bool:
        """Return whether a session needs messages that stand before a position."""
        state = self.live.get(name)
        oldest = self._holding.get(name) if state is None else oldest_reference(state)
        return oldest is not None and oldest < before
