"""Logs whose destinations are sound, and forged ones: the audit finds each at its position."""

from dataclasses import asdict

import pytest

from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
)
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import LogCut
from eventstore.format.positions import position
from projections.audit.chain_check import CUT, LogNote
from projections.audit.destination_check import DestinationNotes, destination_breaks


def at(record: int) -> int:
    """The position of the only event of a record."""
    return position(record, 0)


OPENED = DestinationOpened("erp", "http", at(1), ["a/#"], "d", "first", "settings")


def done(record: int, **more: int) -> Forwarded:
    """A cursor at the end of a record."""
    return Forwarded("erp", position(record + 1, 0) - 1, **more)


def lost(after: int, until: int) -> ForwardLost:
    return ForwardLost("erp", position(after + 1, 0) - 1, position(until + 1, 0) - 1, "max_behind")


CUT_AT_5 = LogCut(5, "ab", 0, "keep")


def breaks(*events: Event, pieces: int = 1) -> list[tuple[int, str]]:
    """What the audit finds; the first event is in record 2, and each piece of the log is scanned
    by itself."""
    notes: list[LogNote] = []

    def note(place: int, about: str, values: dict[str, object]) -> None:
        notes.append(LogNote("n", place, about, values))

    placed = [*enumerate(events, 2)]
    size = -(-len(placed) // pieces)
    for begin in range(0, len(placed), size):
        made = DestinationNotes(note)
        for record, event in placed[begin : begin + size]:
            if isinstance(event, Forwarded):
                made.forwarded(event, at(record))
            elif isinstance(event, LogCut):
                made.finish()
                note(at(record), CUT, asdict(event))
            else:
                made.other(event, at(record))  # type: ignore[arg-type]
        made.finish()
    found = destination_breaks(sorted(notes, key=lambda each: each.at))
    return [(one.at >> 20, one.what) for one in found]


SOUND: list[list[Event]] = [
    [OPENED, done(1), done(2, number=3), done(3, number=3), done(3, number=3)],
    [OPENED, done(1), done(2, received=at(3)), done(2, received=at(4)), done(4)],
    [OPENED, done(1), done(2, received=at(3)), done(2, received=position(3, 0) - 1)],
    [OPENED, done(2), ForwardRefused("erp", [at(2)], "no"), done(3)],
    [OPENED, done(2), lost(2, 3), LogCut(4, "ab", 0, "keep"), done(5)],
    [OPENED, done(2), done(2), done(4), CUT_AT_5],
    [OPENED, DestinationClosed("erp", "removed"), CUT_AT_5, OPENED],
    [OPENED, done(2), DestinationOpened(*list(asdict(OPENED).values())[:7], run=at(2)), done(3)],
]


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("events", SOUND)
def test_a_sound_log_has_no_findings(events: list[Event], pieces: int) -> None:
    assert breaks(*events, pieces=pieces) == []


FORGED: list[tuple[list[Event], int, str]] = [
    ([OPENED, done(2), done(1)], 4, "a cursor that went back"),
    ([OPENED, done(2), done(1), done(3)], 4, "a cursor that went back"),
    ([OPENED, done(1, number=3), done(2, number=2)], 4, "a cursor that went back"),
    ([OPENED, done(1), done(2, received=at(3) + 1), done(2)], 5, "a cursor that went back"),
    ([OPENED, done(3)], 3, "published later"),
    ([OPENED, done(1), done(2, received=at(2))], 4, "received less than it has stored"),
    ([OPENED, done(1), done(2), CUT_AT_5], 5, "the log was cut, but destination erp"),
    ([OPENED, done(1), lost(1, 2), CUT_AT_5], 5, "the log was cut, but destination erp"),
    ([OPENED, ForwardRefused("erp", [at(3)], "no")], 3, "refused messages that were published"),
    ([OPENED, done(2), lost(1, 2)], 4, "lost a range that does not begin at its cursor"),
    ([done(1)], 2, "is not open"),
    ([OPENED, DestinationClosed("erp", "removed"), done(2)], 4, "is not open"),
    ([OPENED, done(2), OPENED], 4, "opened again elsewhere than at its cursor"),
]


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize(("events", "record", "what"), FORGED)
def test_a_forged_log_is_found_at_its_position(
    events: list[Event], record: int, what: str, pieces: int
) -> None:
    assert next(each for each in breaks(*events, pieces=pieces) if what in each[1])[0] == record
