"""Checks the succession of leaders: epochs increase by one, time does not go backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format.node_events import BrokerStarted, CheckpointBegun, LeaderProved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventstore.format.event_parsing import Event
    from eventstore.format.records import Record


class EpochCheck:
    """Checks the records of a log, in order; records of a single node have no epochs."""

    def __init__(self, report: Callable[[int, str], None], begin: int) -> None:
        """Call ``report(sequence, what)`` for every problem; ``begin`` is the first record."""
        self._report = report
        self._epoch: int | None = 0 if begin == 1 else None
        """Epoch of the leader; None: not known."""
        self._time_ms = 0

    def take(self, record: Record, events: Iterable[tuple[int, Event]]) -> None:
        """Check the next record."""
        for index, event in events:
            if isinstance(event, BrokerStarted):
                self._started(record, index, event)
            elif isinstance(event, (CheckpointBegun, LeaderProved)):
                if self._epoch is not None and event.epoch != self._epoch:
                    what = f"has epoch {event.epoch}, but its leader has epoch {self._epoch}"
                    self._report(record.sequence, f"entry {index}: event {event.e}: {what}")
                self._epoch = event.epoch
        self._time_ms = record.steady_ms

    def lose_track(self) -> None:
        """Continue after records that are missing or cannot be read."""
        self._epoch, self._time_ms = None, 0

    def _started(self, record: Record, index: int, event: BrokerStarted) -> None:
        before = self._epoch
        entry = f"entry {index}: event BrokerStarted"
        if before is not None and event.epoch != (before + 1 if before or event.epoch else 0):
            self._report(record.sequence, f"{entry}: epoch {event.epoch} follows epoch {before}")
        if event.epoch and record.steady_ms < self._time_ms:
            ms = self._time_ms - record.steady_ms
            self._report(record.sequence, f"{entry}: is {ms} ms before the record before it")
        self._epoch = event.epoch
