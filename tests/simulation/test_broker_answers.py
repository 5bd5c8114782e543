"""What is said of the broker and its log is true at random moments, whatever happens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors.inspection import broker_status
from actors.maintenance import recovery
from cli.commands import broker_advice
from eventstore.errors import CorruptLog
from eventstore.stored_files import StoredFiles
from projections.log_proof import LogProof
from simulation.broker_answers import WrongAnswerError, run_broker
from simulation.mutants import sets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors.session.node_context import NodeContext

    Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.plain

SEEDS = (3, 4, 12)
LATER = (
    *(1, 2, 5, 6, 7, 8, 9, 11, 13, 14, *range(15, 20), *range(21, 30), 32, 47),
    *(*range(53, 80), 94, 95, 102, 117, 126, 134, 147, 149, 157, 173),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_about_the_broker_and_its_log_are_true(seed: int, tmp_path: Path) -> None:
    run_broker(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", LATER)
def test_answers_are_true_in_more_runs(seed: int, tmp_path: Path) -> None:
    run_broker(seed, tmp_path)


def _names_another_damaged_record(patch: Patch) -> None:
    def note(node: NodeContext, damage: CorruptLog) -> None:
        node.damaged = CorruptLog(damage.sequence + 1, "is damaged")

    patch.setattr(recovery, "_note_damage", note)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "sees_no_damage": sets(StoredFiles, "damage", lambda *_: None),
    "forgets_what_is_not_proven": sets(LogProof, "take", lambda *_: None),
    "takes_a_start_for_the_end_of_no_doubt": sets(LogProof, "started", lambda *_: None),
    "is_silent_about_the_clock": sets(broker_advice, "_HOUR_MS", 0),
    "names_no_damaged_record": sets(broker_status, "_record_damage", lambda *_: None),
    "names_another_damaged_record": _names_another_damaged_record,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_false_answer_is_found(mutant: str, monkeypatch: Patch, tmp_path: Path) -> None:
    MUTANTS[mutant](monkeypatch)
    for seed in SEEDS:
        try:
            run_broker(seed, tmp_path / str(seed))
        except WrongAnswerError:
            return
    pytest.fail(f"{mutant} passes the seeds {SEEDS}")
