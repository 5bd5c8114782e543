"""Marks on a time axis: connects, takeovers, lost connections, drops, wills and restarts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

MARK_LABELS: Final = {
    "connect": "Connects",
    "takeover": "Takeovers",
    "lost": "Lost connections",
    "drop": "Drops",
    "will": "Wills",
    "restart": "Restarts",
}
"""The kinds of marks in the order of their lanes, and the labels of the lanes."""
_SIMPLE: Final = {
    "SessionOpened": "connect",
    "SessionTakenOver": "takeover",
    "MessageDropped": "drop",
    "WillFired": "will",
    "BrokerStarted": "restart",
}
_ENDS: Final = {
    "disconnect": None,
    "taken_over": None,
    "shared": None,
    "broker_stopped": "restart",
    "broker_restarted": "restart",
}
"""Close reasons of connections that were not lost."""


class Mark(NamedTuple):
    """An event, or several equal neighbours."""

    time_ms: int
    record: int
    """Sequence of the record."""
    number: int
    """Number of events."""


def mark_kind(event: str, reason: str) -> str | None:
    """Return the kind of the mark for an event, by its type and its reason; None: no mark.

    A connection that ends together with the broker's run is a restart.
    """
    if event == "SessionClosed":
        return _ENDS.get(reason, "lost")
    return _SIMPLE.get(event)


class Marks:
    """Marks of all kinds in the order of the log; close ones are joined if there are too many."""

    def __init__(self, most: int) -> None:
        """Keep at most ``most`` marks of each kind."""
        self._most = most
        self._kinds: defaultdict[str, list[Mark]] = defaultdict(list)
        self._width_ms: dict[str, int] = {}
        """The time in which the marks of a kind are joined: the same from the first to the last."""

    def add(self, kind: str, mark: Mark) -> None:
        """Add the mark of a later event, or of the same record."""
        kept, width_ms = self._kinds[kind], self._width_ms.get(kind, 1)
        _join(kept, mark, width_ms)
        while len(kept) > self._most:
            wider: list[Mark] = []
            width_ms *= 2
            for earlier in kept:
                _join(wider, earlier, width_ms)
            kept = wider
        self._kinds[kind], self._width_ms[kind] = kept, width_ms

    def of(self, kind: str) -> list[Mark]:
        """Return the marks of one kind."""
        return self._kinds.get(kind, [])

    def kinds(self) -> Mapping[str, Iterable[Mark]]:
        """Return all marks by kind."""
        return self._kinds


def _join(marks: list[Mark], mark: Mark, width_ms: int) -> None:
    """Append a mark, or add it to the last one if both are in one interval of this width."""
    newest = marks[-1] if marks else None
    if newest is not None and newest.time_ms // width_ms == mark.time_ms // width_ms:
        marks[-1] = newest._replace(number=newest.number + mark.number)
    else:
        marks.append(mark)
