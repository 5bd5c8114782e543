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
    """Marks of all kinds in the order of the log; neighbours are joined if there are too many."""

    def __init__(self, most: int) -> None:
        """Keep at most ``most`` marks of each kind."""
        self._most = most
        self._kinds: defaultdict[str, list[Mark]] = defaultdict(list)

    def add(self, kind: str, mark: Mark) -> None:
        """Add the mark of a later event, or of the same record."""
        kept = self._kinds[kind]
        kept.append(mark)
        if len(kept) > self._most:
            self._kinds[kind] = [
                Mark(one.time_ms, one.record, one.number + sum(other.number for other in rest))
                for one, *rest in (kept[at : at + 2] for at in range(0, len(kept), 2))
            ]

    def of(self, kind: str) -> list[Mark]:
        """Return the marks of one kind."""
        return self._kinds.get(kind, [])

    def kinds(self) -> Mapping[str, Iterable[Mark]]:
        """Return all marks by kind."""
        return self._kinds
