"""Checks that a client gets no more messages than its Receive Maximum permits (MQTT 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.format import from_runs
from projections.audit.rules import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eventstore.format import Position, Run

_ANY: Final = 65_535
"""The Receive Maximum of a client that names none: the number of packet identifiers."""


class UnfinishedDeliveries:
    """The QoS 1 and 2 deliveries that were sent on a connection and are not finished."""

    __slots__ = ("_pids",)

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def sent(self, most: int, pids: Sequence[int], at: Position) -> Iterator[Violation]:
        """Record that PUBLISH packets were sent; yield a violation when they are too many.

        ``most`` is the Receive Maximum of the client [MQTT-3.3.4-9].
        """
        if most >= _ANY:
            return
        self._pids.update(pids)
        if len(self._pids) > most:
            what = f"{len(self._pids)} deliveries were unfinished, Receive Maximum is {most}"
            yield Violation(Rule.RECEIVE_MAXIMUM, at, what)

    def ended(self, pids: Iterable[Run]) -> None:
        """Record that deliveries are finished."""
        if self._pids:
            self._pids.difference_update(from_runs(pids))

    def clear(self) -> None:
        """Begin a new connection: only deliveries that are sent again count."""
        self._pids.clear()
