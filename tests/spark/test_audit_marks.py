"""The join of checkpoints and cuts with their events equals a comparison of all with all."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from projections.audit.rule_table import Rule
from spark.jobs.chain_check import (
    BEGUN,
    COMPLETED,
    CUT,
    PIECE,
    REPEATED,
    LogNote,
    LogPiece,
    RecordLink,
)
from spark.jobs.checkpoint_lookup import _marked, cuts_behind, cuts_within, next_checkpoint
from spark.jobs.log_summary import _completions, _cuts, summarize_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.format.positions import Position

SEEDS = range(20)
Row = tuple[Any, ...]


def marked(
    rows: list[Row], marks: list[tuple[str, int, int]], choose: Callable[..., Any]
) -> list[Row]:
    """The rows in two batches, each with the marks that are chosen for it."""
    known = {
        node: np.array(sorted(mark[1:] for mark in marks if mark[0] == node), np.int64).T
        for node in {mark[0] for mark in marks}
    }
    names = ("node", "at", "until", "ref")
    types = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    half = len(rows) // 2
    batches = [
        pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, kind in zip(zip(*some, strict=True), types, strict=True)
            ],
            names=names,
        )
        for some in (rows[:half], rows[half:])
    ]
    found = _marked(known, ("first", "second"), choose, iter(batches))
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def some_rows(chance: random.Random) -> list[Row]:
    rows = []
    for _ in range(40):
        at = chance.randrange(100)
        row = (chance.choice("abc"), at, at + chance.randrange(1, 60), chance.randrange(at + 1))
        rows.append(row)
    return rows


def some_marks(chance: random.Random, *, in_order: bool) -> list[tuple[str, int, int]]:
    """Marks of two of three nodes; both positions of each are behind those of the one before."""
    marks = []
    for node in "ab":
        places = sorted(chance.sample(range(200), 2 * chance.randrange(1, 8)))
        if not in_order:
            chance.shuffle(places)
        marks += [(node, *sorted(places[at : at + 2])) for at in range(0, len(places), 2)]
    chance.shuffle(marks)
    return marks


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_checkpoint(seed: int) -> None:
    chance = random.Random(seed)
    rows, marks = some_rows(chance), some_marks(chance, in_order=True)
    found = [row for row in marked(rows, marks, next_checkpoint) if row[2] > row[5]]
    expected = []
    for node, at, until, ref in rows:
        behind = [mark[1:] for mark in marks if mark[0] == node and mark[1] > at]
        if behind and until > min(behind)[1]:
            expected.append((node, at, until, ref, *min(behind)))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_within_intervals(seed: int, *, in_order: bool) -> None:
    chance = random.Random(seed)
    # a cut says that the log begins with what stands before it
    cuts = [(node, cut, first) for node, first, cut in some_marks(chance, in_order=in_order)]
    rows = some_rows(chance)
    found = {row for row in marked(rows, cuts, cuts_within) if row[3] < row[5]}
    assert found == {
        (*row, cut, first)
        for row, (node, cut, first) in product(rows, cuts)
        if row[0] == node and row[1] < cut < row[2] and row[3] < first
    }


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_that_leave_something(seed: int, *, in_order: bool) -> None:
    chance = random.Random(seed)
    cuts = [(node, cut, first) for node, first, cut in some_marks(chance, in_order=in_order)]
    rows = some_rows(chance)
    found = {row for row in marked(rows, cuts, cuts_behind) if row[5] <= row[1]}
    assert found == {
        (*row, cut, first)
        for row, (node, cut, first) in product(rows, cuts)
        if row[0] == node and first <= row[1] < cut
    }


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
    random.Random(1).shuffle(repeated)
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
