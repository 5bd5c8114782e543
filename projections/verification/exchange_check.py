"""Checks what a log took from other logs: each message once, together with the position taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format import (
    LOG_SESSION,
    Followed,
    MessagePublished,
    format_position,
    from_runs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventstore.format import Event, Position, Record


class ExchangeCheck:
    """Checks the records of a log, in order.

    A message of QoS 0 or 1 lies between two positions taken from its log, so that none is taken
    twice; one of QoS 2 lies before the second of them, where it was released.
    """

    def __init__(self, report: Callable[[int, str], None]) -> None:
        """Call ``report(sequence, what)`` for every problem."""
        self._report = report
        self._through: dict[str, Position] = {}
        self._taken: dict[str, tuple[int, Position]] = {}
        """Logs whose messages were taken in this turn: record, and last position of a message."""
        self._held: list[tuple[int, str, Followed | MessagePublished]] = []
        """Events of the turn so far; its parts are void without the last one."""

    def take(self, record: Record, events: Iterable[tuple[int, Event]]) -> None:
        """Check the next record."""
        if record.part == 0:
            self._held = []
        for index, event in events:
            if isinstance(event, Followed) or (
                isinstance(event, MessagePublished) and event.origins
            ):
                self._held.append((record.sequence, f"entry {index}: event {event.e}", event))
        if record.last:
            held, self._held = self._held, []
            for sequence, entry, event in held:
                if isinstance(event, Followed):
                    self._followed(sequence, entry, event)
                else:
                    self._published(sequence, entry, event)
            for log, (sequence, _) in self._taken.items():
                self._report(sequence, f"takes messages of log {log} without their position")
            self._taken = {}

    def lose_track(self) -> None:
        """Continue behind records that are missing or cannot be read."""
        self._through, self._taken, self._held = {}, {}, []

    def _followed(self, sequence: int, entry: str, event: Followed) -> None:
        before = self._through.get(event.log)
        if before is not None and event.through < before:
            where = f"{format_position(event.through)} follows {format_position(before)}"
            self._report(sequence, f"{entry}: log {event.log}: position {where}")
        taken = self._taken.pop(event.log, None)
        if taken is not None and taken[1] > event.through:
            where = format_position(taken[1])
            self._report(sequence, f"{entry}: log {event.log}: is before the message {where}")
        self._through[event.log] = event.through

    def _published(self, sequence: int, entry: str, event: MessagePublished) -> None:
        log = event.session.removeprefix(LOG_SESSION)
        origins = from_runs(list(event.origins))
        if log == event.session or len(origins) != event.count:
            self._report(sequence, f"{entry}: the origins of its messages do not fit to it")
            return
        before = self._through.get(log)
        if event.qos < 2 and before is not None and min(origins) <= before:
            where = format_position(min(origins))
            self._report(sequence, f"{entry}: log {log}: the message {where} was taken before")
        self._taken[log] = sequence, max(origins, default=0)
