"""Checks that a log took each message of other logs once, together with its position there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from eventstore.display import name as shown
from eventstore.format.events import (
    LOG_SESSION,
    Assigned,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
)
from eventstore.format.node_events import Followed
from eventstore.format.positions import Position, format_position, from_runs, position
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from eventstore.format.event_parsing import Event
    from eventstore.format.records import Record


_OUTCOMES: Final = (Assigned, Expired, MessageDropped, Queued)
_Checked: TypeAlias = "Followed | MessagePublished | Assigned | Expired | MessageDropped | Queued"


class ExchangeCheck:
    """Checks the records of a log, in order.

    A message of QoS 0 or 1 is between two recorded positions of its log, so that none is taken
    twice; one of QoS 2 is before the second of them, where it was released. A message that another
    log assigned to a shared subscription is assigned, queued or dropped by it once, in the same
    turn.
    """

    def __init__(self, report: Callable[[int, str], None]) -> None:
        """Call ``report(sequence, what)`` for every problem."""
        self._report = report
        self._through: dict[str, Position] = {}
        self._assigned: dict[tuple[str, Position], int] = {}
        """Shared subscription and message that another log assigned to it in this turn -> record;
        those that have no outcome yet."""
        self._taken: dict[str, tuple[int, Position]] = {}
        """Logs whose messages were taken in this turn: record, and last position of a message."""
        self._held: list[tuple[int, str, Position, _Checked]] = []
        """Events of the turn so far; its parts are void without the last one."""

    def take(self, record: Record, events: Iterable[tuple[int, Event]]) -> None:
        """Check the next record."""
        if record.part == 0:
            self._held = []
        base = position(record.sequence, 0)
        for index, event in events:
            if (
                isinstance(event, Followed)
                or (isinstance(event, MessagePublished) and event.origins)
                or (isinstance(event, _OUTCOMES) and event.session.startswith(SHARE))
            ):
                entry = f"entry {index}: event {event.e}"
                self._held.append((record.sequence, entry, base + index, event))
        if record.last:
            held, self._held = self._held, []
            for sequence, entry, at, event in held:
                if isinstance(event, Followed):
                    self._followed(sequence, entry, event)
                elif isinstance(event, MessagePublished):
                    self._published(sequence, entry, event)
                    if event.share:
                        shared = ((event.share, at + number) for number in range(event.count))
                        self._assigned.update(dict.fromkeys(shared, sequence))
                else:
                    for ref in from_runs(event.refs):
                        self._assigned.pop((event.session, ref), None)
            for (share, ref), sequence in self._assigned.items():
                what = f"message {format_position(ref)}, which was assigned to {shown(share)}"
                self._report(sequence, f"{what}: it has no outcome")
            self._assigned = {}
            for log, (sequence, _) in self._taken.items():
                self._report(sequence, f"takes messages of log {log} without their position")
            self._taken = {}

    def lose_track(self) -> None:
        """Continue after records that are missing or cannot be read."""
        self._through, self._taken, self._held, self._assigned = {}, {}, [], {}

    def _followed(self, sequence: int, entry: str, event: Followed) -> None:
        before = self._through.get(event.log)
        if before is not None and event.through < before:
            where = f"{format_position(event.through)} follows {format_position(before)}"
            self._report(sequence, f"{entry}: log {event.log}: position {where}")
        if max(from_runs([*event.expired, *event.erased]), default=0) > event.through:
            what = f"{entry}: log {event.log}: records a later message as expired or erased"
            self._report(sequence, what)
        newest = self._taken.pop(event.log, None)
        if newest is not None and newest[1] > event.through:
            where = format_position(newest[1])
            self._report(sequence, f"{entry}: log {event.log}: is before the message {where}")
        self._through[event.log] = event.through

    def _published(self, sequence: int, entry: str, event: MessagePublished) -> None:
        log = event.session.removeprefix(LOG_SESSION)
        origins = from_runs(list(event.origins))
        if log == event.session or len(origins) != event.count:
            self._report(sequence, f"{entry}: the origins of its messages are inconsistent")
            return
        before = self._through.get(log)
        if event.qos < 2 and not event.share and before is not None and min(origins) <= before:
            where = format_position(min(origins))
            self._report(sequence, f"{entry}: log {log}: the message {where} was taken before")
        self._taken[log] = sequence, max(origins, default=0)
