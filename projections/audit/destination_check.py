"""The audit of destinations: cursors grow, and no message is given up without an event.

A scan notes the events of destinations; of cursors that follow each other only the first and the
last of a piece of the log. The notes of all pieces are checked together.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from eventstore.display import name as shown
from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
)
from eventstore.format.positions import Position, format_position, from_runs, position
from projections.audit.chain_check import CUT, DESTINATION, ChainBreak, LogNote
from projections.audit.rule_table import Rule


class DestinationNotes:
    """Notes the events of destinations in a piece of a log."""

    def __init__(self, note: Callable[[Position, str, dict[str, Any]], None]) -> None:
        self._note = note
        self._last: dict[str, tuple[Position, dict[str, Any]]] = {}
        """The last cursor of each destination, if it is not noted yet."""
        self._known: dict[str, dict[str, Any]] = {}

    def forwarded(self, event: Forwarded, at: Position) -> None:
        """Note a cursor, or replace one that it follows."""
        values = asdict(event)
        del values["refs"]
        before = self._known.get(event.to)
        self._known[event.to] = values
        if before is not None and not list(_forwarded_breaks(before, values, at)):
            self._last[event.to] = at, values
            return
        self._give(event.to)
        self._note(at, DESTINATION, values)

    def other(
        self,
        event: DestinationOpened | ForwardRefused | ForwardLost | DestinationClosed,
        at: Position,
    ) -> None:
        """Note another event."""
        self.finish()
        self._known.pop(event.to, None)
        values = asdict(event)
        refs = from_runs(values.pop("refs", ()))
        if isinstance(event, ForwardRefused):
            values["refs"] = [min(refs), max(refs)]
        self._note(at, DESTINATION, values)

    def finish(self) -> None:
        """Note what is left; a cut of the log or the end of the piece follows."""
        for name in list(self._last):
            self._give(name)

    def _give(self, name: str) -> None:
        held_back = self._last.pop(name, None)
        if held_back is not None:
            self._note(held_back[0], DESTINATION, held_back[1])


def _forwarded_breaks(
    before: dict[str, Any] | None, values: dict[str, Any], at: Position
) -> Iterator[str]:
    """Yield what is wrong with a cursor; ``before`` is the one before it, if it is known.

    A receiver that lost its session at QoS 2 has received no more than it has stored.
    """
    through, received = values["through"], values["received"]
    if through >= at or received >= at:
        yield "is reported to have messages that were published later"
    if 0 < received < through:
        yield "is reported to have received less than it has stored"
    if before is not None and (
        through < before["through"]
        or (max(through, received) < before["received"] and received != through)
        or values["number"] < before["number"]
    ):
        yield "has a cursor that went back"


_START: Final[dict[str, Any]] = {"received": 0, "number": 0}


def destination_breaks(notes: Iterable[LogNote]) -> list[ChainBreak]:
    """Return what is wrong with destinations; ``notes`` are about them and about cuts, by position.

    The first notes of a log that was cut repeat its destinations.
    """
    breaks: list[ChainBreak] = []
    cursors: dict[str, dict[str, Any]] = {}
    for note in notes:
        values, at = note.values, note.at
        if note.about == CUT:
            breaks += [
                ChainBreak(
                    Rule.EVENT,
                    at,
                    f"the log was cut, but destination {shown(name)} has its messages up to "
                    f"{format_position(cursor['through'])} only",
                )
                for name, cursor in cursors.items()
                if cursor["through"] + 1 < position(values["first"], 0)
            ]
            continue
        name, kind = values["to"], values["e"]
        breaks += [
            ChainBreak(Rule.EVENT, at, f"destination {shown(name)} {what}")
            for what in _breaks(kind, cursors.get(name), values, at)
        ]
        _follow(kind, cursors, values)
    return breaks


def _breaks(
    kind: str, cursor: dict[str, Any] | None, values: dict[str, Any], at: Position
) -> Iterator[str]:
    if kind == "DestinationOpened":
        if values["run"]:
            return
        if values["after"] >= at:
            yield "was opened for messages of a later time only"
        if cursor is not None and values["after"] != cursor["through"]:
            yield "was opened again elsewhere than at its cursor"
    elif cursor is None:
        yield "is not open"
    elif kind == "Forwarded":
        yield from _forwarded_breaks(cursor, values, at)
    elif kind == "ForwardRefused" and values["refs"][1] >= at:
        yield "refused messages that were published later"
    elif kind == "ForwardLost" and not (
        cursor["through"] <= values["after"] < values["until"] < at
    ):
        yield "lost a range that does not begin at its cursor"


def _follow(kind: str, cursors: dict[str, dict[str, Any]], values: dict[str, Any]) -> None:
    """Apply an event to the cursors."""
    name = values["to"]
    if kind == "DestinationOpened":
        if not values["run"] or name not in cursors:
            cursors[name] = {**_START, "through": values["after"]}
    elif name not in cursors:
        return
    elif kind == "DestinationClosed":
        del cursors[name]
    elif kind == "Forwarded":
        cursors[name] = values
    elif kind == "ForwardLost":
        cursors[name] = {**cursors[name], "through": max(cursors[name]["through"], values["until"])}
