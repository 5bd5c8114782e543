"""``foldmq spark archive``: its messages and exit codes."""

import json
from typing import Any

import pytest

from cli.logs.broker_client import NoAnswer, NoLiveBroker, Refused
from cli.logs.source_flags import SourceFlags
from cli.spark import archive as archiving
from cli.spark.archive import Brokers, Report, run_archive
from cli.spark.log_location import Found
from cli.spark.spark_flags import SparkFlags
from protocol.errors import FoldmqError
from spark.tables.archive_writer import ArchiveExtent

LOG = "FOLDMQ_LOG_a"
NEW = ArchiveExtent(LOG, "/a/node=a", 1234, "ab" * 32, 1_700_000_000_000, 1234, 5 << 20, 2, 1 << 19)
OLD = ArchiveExtent(LOG, "/a/node=a", 7, "ab" * 32, 1_700_000_000_000)
NOTHING = ArchiveExtent(LOG, "/a/node=a", 0, "00" * 32, 0)


class Run:
    """Replaces Spark and the broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
        self.told: list[int] = []
        self.answer: FoldmqError | None = None
        self.live = True
        monkeypatch.setattr(archiving, "run_job", self.run)
        monkeypatch.setattr(Brokers, "_notify_now", self.notify)
        self.report = report

    def run(self, _flags: Any, _at: Any, look: Any, _work: Any, _idle: Any) -> Report:
        found = Found({"nats": "nats://n"}, [], "NATS at n")
        with pytest.raises(StopIteration):  # there is nothing to examine
            look(found).send(None)
        return self.report

    async def notify(self, _node: str, archived: ArchiveExtent) -> None:
        self.told.append(archived.through)
        if self.answer is not None:
            raise self.answer


@pytest.fixture(autouse=True)
def _no_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_due(_options: Any, _directory: str) -> list[Any]:
        return []

    monkeypatch.setattr(archiving, "plan_archive", nothing_due)
    monkeypatch.setattr(Found, "live", True)


def archive(*, as_json: bool = False) -> None:
    run_archive(SparkFlags(SourceFlags()), "/a", as_json=as_json)


def test_the_archived_range_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(monkeypatch, Report([NEW, OLD, NOTHING]))
    archive()
    out, err = capsys.readouterr()
    new, old, nothing = out.splitlines()
    assert new.startswith(
        "FOLDMQ_LOG_a: archived 1,234 records (5.0 MiB, 512.0 KiB in 2 files), "
        "up to record 1234 of 20"
    )
    assert old.startswith("FOLDMQ_LOG_a: nothing new, archived up to record 7 of 20")
    assert nothing == "FOLDMQ_LOG_a has no records yet"
    assert err == ""
    assert run.told == [1234, 7]


def test_the_same_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(monkeypatch, Report([NEW, NOTHING]))
    archive(as_json=True)
    new, nothing = map(json.loads, capsys.readouterr().out.splitlines())
    assert new == {
        "stream": LOG,
        "where": "/a/node=a",
        "through": 1234,
        "link": "ab" * 32,
        "records": 1234,
        "size": 5 << 20,
        "files": 2,
        "file_bytes": 1 << 19,
        "time": "2023-11-14T22:13:20.000Z",
        "told": True,
    }
    assert (nothing["through"], nothing["time"], nothing["told"]) == (0, None, False)


def test_a_stopped_broker_is_notified_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(monkeypatch, Report([NEW]))
    run.answer = NoLiveBroker("no broker of node a answers")
    archive(as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["told"] is False
    assert (
        err == "foldmq: the broker will be notified at the next run: no broker of node a answers\n"
    )


@pytest.mark.parametrize("answer", [Refused("another record"), NoAnswer("time-out")])
def test_a_broker_that_refuses_or_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: FoldmqError
) -> None:
    run = Run(monkeypatch, Report([NEW, OLD]))
    run.answer = answer
    with pytest.raises(type(answer)) as raised:
        archive()
    assert raised.value.exit_code == answer.exit_code
    # All results are printed, and the other brokers are notified.
    out, err = capsys.readouterr()
    assert [line.split(",")[0] for line in out.splitlines()] == [
        "FOLDMQ_LOG_a: archived 1",
        "FOLDMQ_LOG_a: nothing new",
    ]
    assert run.told == [1234, 7]
    assert err == f"foldmq: {answer}\n"


def test_one_log_that_cannot_be_archived_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(monkeypatch, Report([NEW], [FoldmqError("first"), FoldmqError("second")]))
    with pytest.raises(FoldmqError, match="first"):
        archive()
    out, err = capsys.readouterr()
    assert "archived 1,234 records" in out
    assert err == "foldmq: second\n"
    assert run.told == [1234]
