"""The states of sessions while an index is built: in memory as long as they change.

States that have not changed since the last segment are in the index, and are loaded from it when
they change. So memory is needed for the sessions of one segment, not for the whole log.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.events import Subscribed, SubscriptionDenied
from eventstore.format.positions import Position, from_runs
from eventstore.format.records import Record
from eventstore.reading.keys import states_due
from eventstore.reading.log_index import LogIndex, SavedState
from projections.state.single_session import SessionFold
from projections.state.snapshot import decode_session, encode_session

MAX_DENIED: Final = 1000
"""Number of a session's denied filters that are kept with its state, the latest ones."""
_HELD: Final = 2_000
"""Number of unchanged sessions that stay in memory."""
_NEVER: Final = 1 << 62
"""A position after every event."""


class DeniedFilters:
    """The filters that a session was denied and not granted since."""

    def __init__(self, saved: Sequence[list[Any]] = ()) -> None:
        """Begin with ``saved``, a result of :meth:`rows`."""
        self._denied = {one[0]: one for one in saved}

    def take(self, event: Event, at: Position, time_ms: int) -> None:
        """Process an event of the session."""
        if isinstance(event, SubscriptionDenied):
            for name, code in zip(event.filters, from_runs(event.reasons), strict=True):
                self._denied.pop(name, None)
                self._denied[name] = [name, code, at, time_ms]
            while len(self._denied) > MAX_DENIED:
                del self._denied[next(iter(self._denied))]
        elif isinstance(event, Subscribed):
            for name, _ in event.filters:
                self._denied.pop(name, None)

    def rows(self) -> list[list[Any]]:
        """Return filter, reason code, position and time of each."""
        return list(self._denied.values())


class _CachedState:
    """The state of one session."""

    __slots__ = ("denied", "fold", "records", "rows", "size")

    def __init__(self, name: str, whole: Position, saved: SavedState | None) -> None:
        self.fold = SessionFold(name, whole)
        if saved is not None and saved.parts is not None:
            self.fold.state = decode_session(name, saved.parts)
        self.denied = DeniedFilters(saved.denied if saved is not None else ())
        self.records = 0
        """Number of records with the session since its state was last saved."""
        self.size = 0
        """Size of these records in bytes."""
        self.rows: list[list[Any]] = []
        """States saved since the last segment."""


class StateCache:
    """Sessions by name; ``whole`` is -1 until the state of a log that was cut is known."""

    def __init__(self, index: LogIndex, whole: Position) -> None:
        self._index = index
        self._whole = whole
        self._held: dict[str, _CachedState] = {}
        self._changed: dict[str, _CachedState] = {}

    @property
    def changed(self) -> int:
        """Number of sessions that changed since the last segment."""
        return len(self._changed)

    def complete(self) -> None:
        """Ignore snapshots of sessions from now on: all states are known."""
        self._whole = 0
        for one in self._held.values():
            one.fold.whole = 0

    def take(self, name: str, event: Event, at: Position, record: Record) -> None:
        """Fold an event of a session, from a record."""
        one = self._changed.get(name)
        if one is None:
            one = self._held.pop(name, None) or self._load(name)
            self._held[name] = self._changed[name] = one
        one.fold.take(event, at, record.steady_ms)
        if isinstance(event, (SubscriptionDenied, Subscribed)):
            one.denied.take(event, at, record.time_ms)

    def _load(self, name: str) -> _CachedState:
        saved = self._index.state_before(name, _NEVER)
        return _CachedState(name, _NEVER if self._whole < 0 else 0, saved)

    def passed(self, names: Iterable[str], records: int) -> None:
        """Count the records of a turn for the sessions that occur in them."""
        for name in names:
            one = self._changed.get(name)
            if one is not None:
                one.records += records

    def save_due(self, names: Iterable[str], bound: Position) -> None:
        """Save the states of the sessions with a saved state that is too old."""
        for name in names:
            one = self._changed.get(name)
            if one is not None and one.records >= states_due(one.size):
                _save(one, bound)

    def saved(self, bound: Position) -> dict[str, list[list[Any]]]:
        """Return the states for a segment that ends before a position."""
        found = {}
        for name, one in self._changed.items():
            if not one.rows or one.records:
                _save(one, bound)
            found[name], one.rows = one.rows, []
        self._changed = {}
        return found

    def forget(self, index: LogIndex) -> None:
        """Load states from this index from now on; keep those with the latest changes."""
        self._index = index
        if self._whole >= 0:
            for name in list(self._held)[:-_HELD]:
                if name not in self._changed:
                    del self._held[name]


def _save(one: _CachedState, bound: Position) -> None:
    state = one.fold.state
    parts = None if state is None else encode_session(state)
    one.size = len(orjson.dumps(parts))
    one.rows.append([bound, parts, one.denied.rows(), one.records, one.size])
    one.records = 0
