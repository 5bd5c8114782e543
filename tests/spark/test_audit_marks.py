"""Checkpoints and cuts of a log."""

from collections.abc import Iterator
from typing import Any

from eventstore.format.positions import Position
from projections.audit.chain_check import (
    BEGUN,
    COMPLETED,
    CUT,
    PIECE,
    REPEATED,
    LogNote,
    LogPiece,
    RecordLink,
)
from projections.audit.log_summary import _completions, _cuts, summarize_logs
from projections.audit.rule_table import Rule

# --------------------------------------------------------------------- checkpoints of a log


class Watched(LogNote):
    """A note that counts how often it is compared."""

    looked = 0

    def __getattribute__(self, name: str) -> Any:
        Watched.looked += 1
        return super().__getattribute__(name)


def checkpointed(count: int) -> tuple[list[LogNote], dict[Position, LogNote], list[LogNote]]:
    """What is completed, begun, and repeated, of as many checkpoints."""
    begun = {
        100 * number: LogNote("n", 100 * number, BEGUN, {"checkpoint": number})
        for number in range(count)
    }
    completed = [
        Watched(
            "n",
            at + 50,
            COMPLETED,
            {"begun": at, "checkpoint": at // 100, "sessions": 3, "retained": 5},
        )
        for at in begun
    ]
    repeated = [
        Watched("n", at + place, REPEATED, {"sessions": sessions, "retained": 5 - sessions})
        for at in begun
        for place, sessions in ((10, 1), (50, 2), (51, 4))
    ]
    return completed, begun, repeated


def test_the_numbers_of_checkpoints_are_compared() -> None:
    completed, begun, repeated = checkpointed(40)
    wrong = _completions(completed, begun, repeated, 0)
    assert len(wrong) == 40
    assert wrong[7].what.endswith("has 3 sessions and 5 retained messages, but it has 3 and 7")
    assert not _completions(right(completed), begun, repeated, 0)


def right(completed: list[LogNote]) -> list[LogNote]:
    return [one._replace(values={**one.values, "retained": 7}) for one in completed]


def test_a_checkpoint_is_compared_only_with_its_repetitions() -> None:
    looked = []
    for count in (100, 400):
        completed, begun, repeated = checkpointed(count)
        Watched.looked = 0
        _completions(completed, begun, repeated, 0)
        looked.append(Watched.looked)
    assert looked[1] < 5 * looked[0]


class Places(set[int]):
    """Positions that count how often all of them are gone through."""

    gone_through = 0

    def __iter__(self) -> Iterator[int]:
        Places.gone_through += 1
        return super().__iter__()


def test_cuts_are_looked_up_among_checkpoints() -> None:
    begun = {
        number << 20: LogNote(
            "n", number << 20, BEGUN, {"previous": str(number), "time_ms": number}
        )
        for number in range(1, 60)
    }
    cuts = [
        LogNote(
            "n", (number + 1 << 20) + 7, CUT, {"first": number, "link": link, "begins_ms": number}
        )
        for number, link in ((5, "5"), (9, "other"), (59, "59"), (70, "70"))
    ]
    wrong = _cuts(cuts, begun, Places(begun), 0)
    assert Places.gone_through == 1
    assert [(one.at >> 20, one.what) for one in wrong] == [
        (10, "cuts the log before record 9, but describes another one"),
        (71, "cuts the log before record 70, where no whole checkpoint begins"),
    ]


def test_a_checkpoint_that_begins_after_its_end() -> None:
    first = RecordLink(1, "1", "0" * 64, 0, last=True, starts=True)
    notes = [
        LogNote("n", 1 << 20, PIECE, LogPiece(first, first, 0, 0).values()),
        LogNote("n", 900, BEGUN, {"checkpoint": 1, "previous": "", "time_ms": 0}),
        LogNote("n", 500, REPEATED, {"sessions": 1, "retained": 1, "first": 400}),
        LogNote("n", 300, COMPLETED, {"begun": 900, "checkpoint": 1, "sessions": 1, "retained": 1}),
    ]
    (_, wrong), (_, outside) = summarize_logs(notes).breaks
    assert (outside.rule, outside.at) == (Rule.CHECKPOINT, 400)
    assert wrong.rule == Rule.CHECKPOINT
    assert wrong.what.endswith("but it has 0 and 0")
