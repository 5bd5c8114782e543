"""The sessions of a node: active ones as objects, the others frozen.

A frozen session is its snapshot in bytes, a few dozen bytes longer than its names. Access by name
thaws it; ``peek`` and iteration leave it frozen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import orjson

from eventstore.format.positions import Position
from projections.state.session import SessionState
from projections.state.sharded_dict import ShardedDict
from projections.state.snapshot import decode_session, encode_session, oldest_reference

_BOUND = struct.Struct(">Q")
_LARGEST_FROZEN = 64 * 1024
"""Largest snapshot, in bytes, that is kept frozen: a larger one takes too long to thaw."""
_MAX_SUBSCRIPTIONS = 512
"""Maximum number of subscriptions of a frozen session: thawing restores all of them in one step."""


def is_freezable(state: SessionState) -> bool:
    """Return whether a session has so few subscriptions that it may be frozen."""
    return len(state.subscriptions) <= _MAX_SUBSCRIPTIONS


def freeze(state: SessionState, bound: Position) -> bytes | None:
    """Return a state as bytes, None when it is too large.

    ``bound`` is the position of the next event: the state includes everything before it.
    """
    if not is_freezable(state):
        return None
    parts = encode_session(state)
    if len(parts) > 1:
        return None
    text = orjson.dumps(parts[0])
    return _BOUND.pack(bound) + text if len(text) <= _LARGEST_FROZEN else None


def frozen_from(bound: Position, text: bytes) -> bytes:
    """Return a frozen session from the results of :func:`bound_of` and :func:`text_of`."""
    return _BOUND.pack(bound) + text


def bound_of(frozen: bytes) -> Position:
    """Return the position that a frozen session reflects: it includes everything before."""
    return int(_BOUND.unpack_from(frozen)[0])


def text_of(frozen: bytes) -> bytes:
    """Return the JSON of a frozen session's state."""
    return frozen[_BOUND.size :]


def thaw(session: str, frozen: bytes) -> SessionState:
    """Return the state that was passed to :func:`freeze`."""
    state = decode_session(session, (orjson.loads(text_of(frozen)),))
    state.saved = bound_of(frozen)
    return state


class OutstandingTotals:
    """Totals of the messages that sessions still have to send or to receive."""

    __slots__ = ("inbound", "inflight", "queued", "queued_bytes", "releasing")

    def __init__(self) -> None:
        self.inflight = 0
        """Deliveries that wait for PUBACK or PUBREC."""
        self.releasing = 0
        """Deliveries that wait for PUBCOMP."""
        self.inbound = 0
        """QoS 2 messages from clients that wait for PUBREL."""
        self.queued = 0
        self.queued_bytes = 0
        """Payload bytes of the queued messages."""

    def add(self, state: SessionState, sign: int = 1) -> None:
        """Add the counts of a session; with ``sign`` -1 subtract them."""
        self.inflight += sign * len(state.inflight)
        self.releasing += sign * len(state.releasing)
        self.inbound += sign * len(state.inbound)
        self.queued += sign * state.queued
        self.queued_bytes += sign * state.queued_bytes

    def plus(self, other: OutstandingTotals) -> None:
        """Add the totals of other sessions."""
        self.inflight += other.inflight
        self.releasing += other.releasing
        self.inbound += other.inbound
        self.queued += other.queued
        self.queued_bytes += other.queued_bytes


class SessionTable:
    """Session states by client identifier.

    ``on_thaw`` is called with each state that is thawed.
    """

    def __init__(self) -> None:
        self.live: dict[str, SessionState] = {}
        """The sessions that are not frozen; callers look them up here first where speed matters."""
        self.on_thaw: Callable[[SessionState], object] | None = None
        self._frozen: ShardedDict[bytes] = ShardedDict()
        self._frozen_count = 0
        self._live_names: ShardedDict[None] = ShardedDict()
        """The names of the sessions that are not frozen, in parts that can be copied quickly."""
        self._holding: dict[str, Position] = {}
        """Frozen session that needs messages of the log -> position of the oldest one."""
        self._replaying: set[str] = set()
        """Frozen sessions with replays."""
        self.frozen_totals = OutstandingTotals()
        """Totals of the frozen sessions."""

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self.live) + self._frozen_count

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    def __contains__(self, name: object) -> bool:
        """Return whether a session exists."""
        return name in self.live or name in self._frozen

    def __iter__(self) -> Iterator[str]:
        """Yield the client identifiers."""
        yield from self.live
        yield from self._frozen

    def __getitem__(self, name: str) -> SessionState:
        """Return a session's state, thawed from now on."""
        state = self.live.get(name)
        if state is None:
            state = thaw(name, self._frozen.of(name)[name])
            self._forget_frozen(name, state)
            self._live_names.of(name)[name] = None
            self.live[name] = state
            if self.on_thaw is not None:
                self.on_thaw(state)
        return state

    def __setitem__(self, name: str, state: SessionState) -> None:
        """Store a state in place of the previous one."""
        self.live[name] = state
        self._live_names.of(name)[name] = None
        self._forget_frozen(name)

    def get(self, name: str) -> SessionState | None:
        """Return a session's state, thawed from now on; None when there is none."""
        if name in self.live or name in self._frozen:
            return self[name]
        return None

    def keys(self) -> set[str]:
        """Return the client identifiers."""
        return {*self.live, *self._frozen}

    def values(self) -> Iterator[SessionState]:
        """Yield the states, for reading only."""
        return (state for _, state in self.items())

    def items(self) -> Iterator[tuple[str, SessionState]]:
        """Yield names and states, for reading only."""
        yield from self.live.items()
        for part in self._frozen.parts:
            for name, frozen in part.items():
                yield name, thaw(name, frozen)

    def peek(self, name: str) -> SessionState | None:
        """Return a session's state for reading only; None when there is none."""
        state = self.live.get(name)
        if state is None:
            frozen = self._frozen.get(name)
            return None if frozen is None else thaw(name, frozen)
        return state

    def discard(self, name: str) -> None:
        """Remove a session, if it exists."""
        self._forget_live(name)
        self._forget_frozen(name)

    def _forget_live(self, name: str) -> None:
        self.live.pop(name, None)
        self._live_names.of(name).pop(name, None)

    def _forget_frozen(self, name: str, state: SessionState | None = None) -> None:
        frozen = self._frozen.of(name).pop(name, None)
        self._holding.pop(name, None)
        self._replaying.discard(name)
        if frozen is not None:
            self._frozen_count -= 1
            self.frozen_totals.add(state if state is not None else thaw(name, frozen), -1)

    def frozen(self, name: str) -> bytes | None:
        """Return the frozen form of a session, None when it is not frozen."""
        return self._frozen.get(name)

    def freeze(self, name: str, bound: Position) -> SessionState | None:
        """Freeze a session; return its state, None when it is too large and stays unfrozen."""
        state = self.live[name]
        data = freeze(state, bound)
        if data is None:
            return None
        self._forget_live(name)
        self.put(data, state)
        return state

    def put(self, frozen: bytes, state: SessionState) -> None:
        """Store a frozen session; ``state`` is the state that was frozen."""
        name = state.session
        self._forget_frozen(name)
        self._frozen.of(name)[name] = frozen
        self._frozen_count += 1
        oldest = oldest_reference(state)
        if oldest is not None:
            self._holding[name] = oldest
        if state.replays:
            self._replaying.add(name)
        self.frozen_totals.add(state)

    def names(self) -> list[str]:
        """Return all client identifiers."""
        return [*self.live, *self._frozen]

    def live_parts(self) -> Iterator[list[str]]:
        """Yield the names of the sessions that are not frozen, a part at a time.

        Sessions that begin or end meanwhile may be missed.
        """
        return ([*part] for part in self._live_names.parts)

    def parts(self) -> Iterator[list[str]]:
        """Yield all names, a part at a time: each once, also if it is frozen or thawed meanwhile.

        Sessions that begin or end meanwhile may be missed.
        """
        both = zip(self._live_names.parts, self._frozen.parts, strict=True)
        return ([*live, *frozen] for live, frozen in both)

    def parts_with_messages(self) -> Iterator[list[str]]:
        """Yield the names as :meth:`parts` does, without frozen sessions that need no messages.

        Those have no deliveries, publications or wills in progress, nothing queued, and no replays.
        """
        holding = self._holding.keys() | self._replaying
        both = zip(self._live_names.parts, self._frozen.parts, strict=True)
        return ([*live, *[name for name in frozen if name in holding]] for live, frozen in both)

    def holds(self, name: str, before: Position) -> bool:
        """Return whether a session needs messages before a position."""
        state = self.live.get(name)
        oldest = self._holding.get(name) if state is None else oldest_reference(state)
        return oldest is not None and oldest < before
