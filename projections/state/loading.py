"""Loads the projections: the state of a node as of their mark, or newer for some messages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from eventstore.format.positions import Position
from projections.state.client_history import decode_history
from projections.state.format import (
    GONE,
    HISTORY,
    KEY,
    MARK,
    RETAINED,
    SESSION,
    BadProjection,
    ProjectionMark,
    StoredEntry,
    decode_entry,
    mark_of,
    retained_of,
    version_tag,
)
from projections.state.node_state import NodeState
from projections.state.session import SessionState
from projections.state.session_table import frozen_from, is_freezable
from projections.state.snapshot import decode_session


@dataclass(slots=True)
class LoadedProjections:
    """The loaded projections."""

    mark: ProjectionMark
    digest: int
    last: int
    """Sequence of the last message in the stream."""
    parts: dict[str, int]
    """Number of messages of sessions that need several."""


class SessionVisitor(Protocol):
    """A callback for each loaded session."""

    def __call__(self, state: SessionState, *, frozen: bool) -> None:
        """Receive the state of a session."""


@dataclass(slots=True)
class ProjectionLoader:
    """Loads the messages of the projections, in the order in which they were stored."""

    node: NodeState
    visit: SessionVisitor
    """Called with the state of each session, for reading only."""
    limit: Position
    """Position after the end of the log: no message may be newer."""
    key: Callable[[int], bytes | None] | None = None
    """Returns the keys of sealed contents."""
    _digest: int = 0
    _tags: int = 0
    _mark: ProjectionMark | None = None
    _large: dict[str, dict[int, StoredEntry]] = field(default_factory=dict)

    def take(self, key: str, data: bytes) -> None:
        """Load the message stored under the next key. Raises BadProjection."""
        entry = decode_entry(data)
        self._digest = entry.digest
        if entry.kind == MARK:
            self._mark = mark_of(entry)
            return
        if entry.kind == GONE:
            return
        if entry.kind not in (SESSION, RETAINED, HISTORY, KEY):
            raise BadProjection("the projections were written by a later foldmq")
        if entry.version > self.limit:
            raise BadProjection("the projections reflect more than the log contains")
        self._tags ^= version_tag(key, entry.version)
        if entry.kind == RETAINED:
            self.node.retained.load(retained_of(entry, self.key))
        elif entry.kind == HISTORY:
            self._history(entry)
        elif entry.kind == KEY:
            self._keys(entry)
        elif entry.parts > 1:
            self._large.setdefault(entry.name, {})[entry.part] = entry
        else:
            self._session(entry)

    def finish(self, last: int) -> LoadedProjections:
        """Return the loaded projections; raise BadProjection when some are missing."""
        for name, entries in self._large.items():
            self._large_session(name, [entries[number] for number in sorted(entries)])
        if self._mark is None:
            raise BadProjection("the projections have no mark")
        if self._tags != self._digest:
            raise BadProjection("the projections are incomplete")
        parts = {name: len(entries) for name, entries in self._large.items()}
        return LoadedProjections(self._mark, self._digest, last, parts)

    def _keys(self, entry: StoredEntry) -> None:
        try:
            self.node.keys.load(entry.name, entry.body, entry.version)
        except (ValueError, TypeError):
            raise BadProjection("the keys of a topic cannot be read") from None

    def _history(self, entry: StoredEntry) -> None:
        clients = self.node.clients
        if clients is None:
            return
        try:
            history = decode_history(entry.body)
        except (ValueError, TypeError, AttributeError):
            raise BadProjection("the history of a client cannot be read") from None
        clients.load(entry.name, history, entry.version)

    def _session(self, entry: StoredEntry) -> None:
        state = _decoded(entry.name, [_json(entry)])
        if state.connected or not is_freezable(state):
            self._live(state, entry.version)
            return
        frozen = frozen_from(entry.version, entry.body)
        self.node.load_frozen(frozen, entry.version, state)
        self.visit(state, frozen=True)

    def _live(self, state: SessionState, version: Position) -> None:
        state.saved = version
        self.node.load(state, version)
        self.visit(state, frozen=False)

    def _large_session(self, name: str, entries: list[StoredEntry]) -> None:
        first = entries[0]
        if any(entry.version != first.version for entry in entries) or len(entries) != first.parts:
            raise BadProjection("the projections contain an incomplete session")
        self._live(_decoded(name, [_json(entry) for entry in entries]), first.version)


def _json(entry: StoredEntry) -> dict[str, Any]:
    try:
        part: dict[str, Any] = orjson.loads(entry.body)
    except ValueError:
        raise BadProjection("a session of the projections cannot be read") from None
    return part


def _decoded(name: str, parts: list[dict[str, Any]]) -> SessionState:
    try:
        return decode_session(name, parts)
    except (ValueError, KeyError, TypeError, IndexError):
        raise BadProjection("a session of the projections cannot be read") from None
