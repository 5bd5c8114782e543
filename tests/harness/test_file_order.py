"""Long test files go first, and few workers start a Spark."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from harness.file_order import LONG, LongFirst, needs_spark

ROOT = Path(__file__).resolve().parents[2]
SHORT = "tests/protocol/mqtt/test_topic_trie.py"
LONGER = "tests/e2e/test_power_cut.py"
LONGEST = "tests/e2e/test_spark_jobs.py"
SPARK, LONG_SPARK = "tests/spark/test_audit_claims.py", "tests/spark/test_archive.py"


class Worker:
    """What the scheduler asks of a worker."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.ended = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.ended = True


def scheduled(waiting: list[str], *assigned: list[str]) -> tuple[Any, Worker]:
    """A scheduler with workers that each have some files already, and the first of them."""
    scheduler: Any = LongFirst.__new__(LongFirst)
    scheduler.workqueue = OrderedDict((file, {f"{file}::test": False}) for file in waiting)
    workers = [Worker() for _ in assigned]
    scheduler.assigned_work = {
        worker: {file: {} for file in files}
        for worker, files in zip(workers, assigned, strict=True)
    }
    tests = [f"{file}::test" for file in waiting]
    scheduler.registered_collections = dict.fromkeys(workers, tests)
    return scheduler, workers[0]


def chosen(waiting: list[str], *assigned: list[str]) -> str | None:
    """The file that the first of these workers is given; None: it is sent home."""
    scheduler, worker = scheduled(waiting, *assigned)
    scheduler._assign_work_unit(worker)
    assert worker.ended == (not worker.given)
    return waiting[worker.given[0]] if worker.given else None


def test_every_long_file_is_there() -> None:
    assert [name for name in LONG if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("assigned", "file"),
    [
        (([], [], []), LONG_SPARK),
        (([], [SPARK], []), LONGEST),
        (([SPARK], [], []), LONG_SPARK),
        (([SPARK], [SPARK], []), LONG_SPARK),
        (([],), LONG_SPARK),
        (([], [SPARK], *[[]] * 6), LONG_SPARK),
        (([], [SPARK], [SPARK], *[[]] * 5), LONGEST),
    ],
)
def test_one_of_some_workers_has_a_spark(assigned: tuple[list[str], ...], file: str) -> None:
    waiting = [SHORT, LONGER, LONGEST, SPARK, LONG_SPARK]
    assert chosen(waiting, *assigned) == file


def test_remaining_files_go_to_any_worker() -> None:
    assert chosen([SHORT, LONGEST], [SPARK], []) == LONGEST
    assert chosen([SPARK, LONG_SPARK], [], [SPARK]) == LONG_SPARK
    assert chosen([SPARK, LONG_SPARK], [], [SPARK], [SPARK]) is None
    assert chosen([SHORT, SPARK], [], [LONG_SPARK]) == SHORT
    assert chosen([SHORT], []) == SHORT


def test_no_worker_starts_a_spark_for_little() -> None:
    """Workers that have a Spark do the rest; if there is none left, another worker does."""
    assert chosen([SPARK], [], [LONG_SPARK]) is None
    assert chosen([SPARK], [LONG_SPARK], []) == SPARK
    assert chosen([SPARK], [], []) == SPARK


def test_which_files_start_a_spark() -> None:
    assert needs_spark(SPARK)
    assert needs_spark("tests/e2e/test_archive_command.py")
    assert needs_spark("tests/e2e/test_crash_drills.py")
    assert not needs_spark(LONGEST)
    assert not needs_spark("tests/spark/test_nodes.py")
