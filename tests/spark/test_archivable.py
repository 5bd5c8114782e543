"""The records that are due for the archive, and the refusal of another history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from archives import publish, stage
from harness.logs import LogBuilder
from harness.nats import access

from eventstore.errors import CorruptLog, NatsUnavailable, NoLog
from spark.jobs.archive_plan import (
    CutBefore,
    PendingArchive,
    archive_place,
    archived_extent,
    node_folder,
    plan_archive,
)
from spark.runtime.marked_errors import BadOption, OtherLog, find_error
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import LEDGER_FILE, ArchiveDamaged
from spark.tables.archive_writer import ArchiveBusy
from spark.tables.directories import Directory, NoDirectory
from spark.tables.discovery import _ask, find_in_archive, join_with_archive
from spark.tables.options import SourceOptions
from spark.tables.source import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.nats import Nats

    New = Callable[..., LogBuilder]


def looked_up(nats: Nats, log: LogBuilder, directory: Path) -> PendingArchive:
    (one,) = asyncio.run(plan_archive({**access(nats), "stream": log.stream}, str(directory)))
    return one


def archived(directory: Path, log: LogBuilder, first: int, last: int) -> None:
    with open_writer(directory, log.stream, node_folder(log.stream)) as writer:
        writer.add(stage(writer, enumerate(log.records[first - 1 : last], first)))


def another(log: LogBuilder, count: int) -> LogBuilder:
    """A log of the same node with another history."""
    made = LogBuilder(log.node)
    publish(made, count, 31)
    return made


def test_new_records_are_pending(tmp_path: Path, nats: Nats, new_log: New) -> None:
    log = new_log()
    publish(log, 20)
    log.store(nats)
    one = looked_up(nats, log, tmp_path)
    assert (one.archived, one.last, one.records, one.problem) == (0, 20, 20, None)
    assert one.folder.where == str(tmp_path / f"node={log.node}")
    assert not any(tmp_path.iterdir())
    archived(tmp_path, log, 1, 12)
    assert looked_up(nats, log, tmp_path).records == 8
    archived(tmp_path, log, 13, 20)
    one = looked_up(nats, log, tmp_path)
    assert (one.records, one.problem) == (0, None)
    outcome = archived_extent(one)
    assert (outcome.through, outcome.records, outcome.where) == (20, 0, one.folder.where)
    with open_writer(tmp_path, log.stream, one.node), pytest.raises(ArchiveBusy):
        archived_extent(one)


def test_a_log_that_was_cut_is_archived_from_where_it_begins(
    tmp_path: Path, nats: Nats, new_log: New
) -> None:
    log = new_log()
    publish(log, 20)
    log.store(nats)
    log.cut(nats, 6)
    one = looked_up(nats, log, tmp_path)
    assert (one.records, one.problem) == (15, None)
    archived(tmp_path, log, 6, 10)
    for first in (7, 10, 11):
        log.cut(nats, first)
        one = looked_up(nats, log, tmp_path)
        assert (one.records, one.problem) == (10, None)
    log.cut(nats, 12)
    one = looked_up(nats, log, tmp_path)
    assert isinstance(one.problem, CutBefore)
    assert f"records 11 to 11 of log {log.stream} were cut off before" in str(one.problem)
    with pytest.raises(CutBefore):
        archived_extent(one)


@pytest.mark.parametrize(
    ("records", "cut", "why"),
    [
        (20, 0, "has another record 12 than the archive"),
        (12, 0, "has another record 12 than the archive"),
        (30, 13, "has another record 12 than the archive"),
        (11, 0, "reaches record 12, but log .* ends with 11"),
        (0, 0, "reaches record 12, but log .* ends with 0"),
    ],
)
def test_another_history_is_refused(
    tmp_path: Path, nats: Nats, new_log: New, records: int, cut: int, why: str
) -> None:
    log = new_log()
    publish(log, 12)
    archived(tmp_path, log, 1, 12)
    other = another(log, records).store(nats)
    if cut:
        other.cut(nats, cut)
    one = looked_up(nats, log, tmp_path)
    assert isinstance(one.problem, OtherLog)
    assert one.problem.exit_code == 65
    with pytest.raises(OtherLog, match=why):
        raise one.problem
    assert "archive it into another directory" in str(one.problem)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (20, "record 13 does not continue record 12"),
        (12, "has another record 12 than the archive"),
        (11, "reaches record 12, but log .* ends with 11"),
        (0, "reaches record 12, but log .* ends with 0"),
    ],
)
def test_beside_an_archive_another_history_is_refused(
    tmp_path: Path, nats: Nats, new_log: New, records: int, why: str
) -> None:
    log = new_log()
    publish(log, 12)
    archived(tmp_path, log, 1, 12)
    another(log, records).store(nats)
    options = {**access(nats), "stream": log.stream, "archive": str(tmp_path), "columns": "seq"}
    reader = LogReader(SourceOptions.read(options))
    with pytest.raises(Exception, match=why) as refused:
        [list(reader.read(part)) for part in reader.partitions()]
    error = find_error(refused.value)
    assert error is not None
    assert error.exit_code == 65


def test_an_archive_that_has_all_of_a_log_is_read_beside_it(
    tmp_path: Path, nats: Nats, new_log: New
) -> None:
    log = new_log()
    publish(log, 12)
    archived(tmp_path, log, 1, 12)
    log.store(nats)
    options = {**access(nats), "stream": log.stream, "archive": str(tmp_path), "columns": "seq"}
    reader = LogReader(SourceOptions.read(options))
    for first in (1, 12):
        if first > 1:
            log.cut(nats, first)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert [seq for one in batches for seq in one.column("seq").to_pylist()] == [*range(1, 13)]


def test_a_log_that_is_archived_and_cut_while_it_is_looked_up(
    tmp_path: Path, nats: Nats, new_log: New
) -> None:
    log = new_log()
    publish(log, 30)
    archived(tmp_path, log, 1, 12)
    log.store(nats)
    given = {**access(nats), "stream": log.stream, "archive": str(tmp_path)}
    options = SourceOptions.read(given)
    assert options.access is not None
    asked_before = find_in_archive(options)
    archived(tmp_path, log, 13, 20)
    log.cut(nats, 16)
    (one,) = join_with_archive(
        options, asyncio.run(_ask(options.access, [log.stream])), asked_before
    )
    assert [sequence for sequence, _ in one.read(1, 30)] == [*range(1, 31)]


def test_another_log_in_the_place_of_a_node_is_refused(
    tmp_path: Path, nats: Nats, new_log: New
) -> None:
    log, other = new_log(), new_log()
    publish(log, 5)
    log.store(nats)
    publish(other, 5)
    archived(tmp_path, other, 1, 5)
    (tmp_path / f"node={other.node}").rename(tmp_path / f"node={log.node}")
    one = looked_up(nats, log, tmp_path)
    assert isinstance(one.problem, OtherLog)
    assert f"has log {other.stream}, not {log.stream}" in str(one.problem)


def test_one_bad_log_is_reported_beside_the_others(
    tmp_path: Path, nats: Nats, new_log: New
) -> None:
    logs = [new_log() for _ in range(3)]
    for log in logs:
        publish(log, 5)
        log.store(nats)
        archived(tmp_path, log, 1, 5)
    (tmp_path / f"node={logs[1].node}" / LEDGER_FILE).write_bytes(b"{}\n")
    streams = ",".join(log.stream for log in logs)
    found = asyncio.run(plan_archive({**access(nats), "stream": streams}, str(tmp_path)))
    assert [one.stream for one in found] == [log.stream for log in logs]
    assert [type(one.problem) for one in found] == [
        type(None),
        found[1].problem.__class__,
        type(None),
    ]
    assert found[1].problem is not None


def test_a_damaged_record_or_ledger_is_named(tmp_path: Path, nats: Nats, new_log: New) -> None:
    log = new_log()
    publish(log, 5)
    archived(tmp_path, log, 1, 5)
    log.damage(5)
    log.store(nats)
    problem = looked_up(nats, log, tmp_path).problem
    assert isinstance(problem, CorruptLog)
    assert "record 5 has a wrong checksum" in str(problem)
    ledger = tmp_path / f"node={log.node}" / LEDGER_FILE
    ledger.write_bytes(ledger.read_bytes() + b"x\n")
    problem = looked_up(nats, log, tmp_path).problem
    assert isinstance(problem, ArchiveDamaged)
    assert str(ledger) in str(problem)


def test_a_missing_log_or_server(tmp_path: Path, nats: Nats, new_log: New) -> None:
    with pytest.raises(NoLog):
        looked_up(nats, new_log(), tmp_path)
    with pytest.raises(NatsUnavailable):
        asyncio.run(plan_archive({"nats": "nats://127.0.0.1:1"}, str(tmp_path)))
    with pytest.raises(BadOption, match="give option nats"):
        asyncio.run(plan_archive({"archive": str(tmp_path)}, str(tmp_path)))


def test_an_archive_is_written_to_a_directory(tmp_path: Path) -> None:
    assert archive_place(str(tmp_path)) == archive_place(f"file://{tmp_path}") == tmp_path
    assert archive_place("a/b") == Path.cwd() / "a" / "b"
    assert archive_place("~/a") == Path.home() / "a"
    with pytest.raises(BadOption, match="not to gs://bucket/a: write it to"):
        archive_place("gs://bucket/a")
    for wrong in ("s3:/bucket/a", "s3:bucket/a", "S3://bucket/a", "file:/a"):  # no directory here
        with pytest.raises(BadOption, match=f"not to {wrong}: write it to"):
            archive_place(wrong)
    for wrong in ("a%FFb", "a/../b", "%2e%2e/b", "./b", "a//b", "/a", "a%0Ab"):
        with pytest.raises(BadOption, match="names in a bucket must be UTF-8"):
            archive_place(f"s3://bucket/{wrong}?region=r")
    with pytest.raises(NoDirectory, match="s3://bucket/a%FFb cannot be read: "):
        Directory("s3://bucket/a%FFb?region=r").read("x")
    log = LogBuilder()
    publish(log, 5)
    archived(tmp_path, log, 1, 5)
    with pytest.raises(BadOption, match="of one node: give the directory above it"):
        archive_place(str(tmp_path / "node=n1"))
    assert node_folder("FOLDMQ_LOG_a-b_1") == "node=a-b_1"
    assert node_folder("other=x%") == "node=other%3Dx%25"
