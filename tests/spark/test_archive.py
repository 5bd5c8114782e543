"""``foldmq spark archive`` as a function: new records reach the archive, whatever happens."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from archives import DAY_MS, publish, records
from harness.broker import environment
from harness.fixtures import fill, small_disk
from harness.logs import BEGIN_MS, LogBuilder
from harness.objectstore import BUCKET, ObjectStoreServer, object_store
from harness.waiting import until
from pyarrow import parquet

from eventstore.format.events import MessagePublished
from eventstore.format.node_events import BrokerStarted
from protocol.errors import FoldmqError
from spark.jobs import archive_job as job
from spark.jobs.archive_job import archive
from spark.runtime.errors import OutOfDisk, SparkError
from spark.runtime.marked_errors import OtherLog
from spark.tables.archive_directory import open_writer
from spark.tables.archive_log import archived_logs
from spark.tables.archive_writer import ArchiveBusy, ArchiveExtent
from spark.tables.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.nats import Nats
    from pyspark.sql import SparkSession

    New = Callable[..., LogBuilder]
    Opened = Callable[..., Log]

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)

__all__ = ["object_store", "small_disk"]  # fixtures


def stored(directory: Path | str, log: LogBuilder) -> list[tuple[int, bytes]]:
    """What an archive has of a log, as the source reads it."""
    for one in archived_logs(str(directory)):
        if one.stream == log.stream:
            return list(one.read(1, 1 << 40))
    return []


def test_each_run_continues_the_previous_one(tmp_path: Path, new_log: New, opened: Opened) -> None:
    log = new_log()
    directory = tmp_path / "of 100%25 [a], {b} \u00e9:1#?"
    publish(log, 60)
    (first,) = archive(opened(log), str(directory))
    assert (first.stream, first.through, first.records) == (log.stream, 60, 60)
    assert first.size == sum(map(len, log.records))
    assert first.where == str(directory / f"node={log.node}")
    assert stored(directory, log) == records(log)
    (again,) = archive(opened(log), str(directory))
    assert again == dataclasses.replace(first, records=0, size=0, files=0, file_bytes=0)
    publish(log, 15)
    (second,) = archive(opened(log), str(directory))
    assert (second.through, second.records) == (75, 15)
    assert stored(directory, log) == records(log)
    names = [path.name for path in Path(first.where).iterdir()]
    assert sorted(names) == ["_foldmq", "date=2023-11-14"]


def test_a_large_log_is_archived_in_complete_batches(
    tmp_path: Path, new_log: New, opened: Opened
) -> None:
    log = new_log()
    publish(log, 100, 1000)
    told: list[ArchiveExtent] = []

    def committed(archived: ArchiveExtent) -> None:
        told.append(archived)
        assert stored(tmp_path, log) == records(log, 1, archived.through)

    (outcome,) = archive(opened(log), str(tmp_path), committed, batch_bytes=40_000)
    assert told[-1] == outcome
    assert len(told) > 2
    assert [one.through for one in told] == sorted({one.through for one in told})
    assert [one.records for one in told] == [one.through for one in told]


def test_an_incomplete_turn_waits(tmp_path: Path, new_log: New, opened: Opened) -> None:
    log = new_log()
    publish(log, 10)
    event = BrokerStarted("x")
    log.record(event, part=0, last=False)
    log.record(event, part=1, last=False)
    (outcome,) = archive(opened(log), str(tmp_path))
    assert outcome.through == 10
    (outcome,) = archive(opened(log), str(tmp_path))
    assert (outcome.through, outcome.records) == (10, 0)
    # The turn never ends: another one begins. What is void is kept: it is a part of the chain.
    publish(log, 1)
    (outcome,) = archive(opened(log), str(tmp_path))
    assert (outcome.through, outcome.records) == (13, 3)
    assert stored(tmp_path, log) == records(log)


def test_a_log_that_was_cut(tmp_path: Path, nats: Nats, new_log: New, opened: Opened) -> None:
    log = new_log()
    publish(log, 30)
    log.store(nats).cut(nats, 11)
    (outcome,) = archive(opened(log), str(tmp_path))
    assert (outcome.through, outcome.records) == (30, 20)
    publish(log, 5)
    log.store(nats).cut(nats, 31)
    archive(opened(log), str(tmp_path))
    assert stored(tmp_path, log) == records(log, 11)


def test_several_logs_and_other_programs(
    tmp_path: Path, spark: SparkSession, new_log: New, opened: Opened
) -> None:
    """Readers of Parquet see records, their days and nodes."""
    midnight = (BEGIN_MS // DAY_MS + 1) * DAY_MS
    logs = [new_log(), new_log()]
    for log in logs:
        publish(log, 5, time_ms=midnight - 1)
        publish(log, 5, time_ms=midnight)
        publish(log, 5, time_ms=midnight - 2)
    outcomes = archive(opened(*logs), str(tmp_path))
    assert [(one.stream, one.through) for one in outcomes] == [(log.stream, 15) for log in logs]
    for log in logs:
        assert stored(tmp_path, log) == records(log)
    table = spark.read.parquet(str(tmp_path))
    assert dict(table.dtypes) == {
        "seq": "bigint",
        "time": "timestamp",
        "part": "int",
        "last": "boolean",
        "bytes": "bigint",
        "data": "binary",
        "date": "date",
        "node": "string",
    }
    found = table.selectExpr(
        "node", "string(date)", "seq", "unix_millis(time)", "part", "last", "bytes", "data"
    )
    rows = sorted(tuple(row) for row in found.collect())
    wanted = []
    for log in logs:
        for sequence, data in records(log):
            late = 5 < sequence <= 10
            time_ms = midnight - (1 if sequence <= 5 else 0 if late else 2)
            day = "2023-11-15" if late else "2023-11-14"
            row = (log.node, day, sequence, time_ms, 0, True, len(data), bytearray(data))
            wanted.append(row)
    assert rows == sorted(wanted)


def test_a_damaged_record_is_named_and_ends_only_its_log(
    tmp_path: Path, new_log: New, opened: Opened
) -> None:
    log, behind = new_log(), new_log()
    publish(log, 60, 1000)
    log.damage(30)
    publish(behind, 5)
    with pytest.raises(FoldmqError, match=f"^log {log.stream}: .* record 30 has a wrong") as failed:
        archive(opened(log, behind), str(tmp_path), batch_bytes=25_000)
    assert failed.value.exit_code == 65
    assert stored(tmp_path, behind) == records(behind)
    got = stored(tmp_path, log)
    assert 0 < len(got) < 30
    assert got == records(log, 1, len(got))


def test_records_of_some_megabytes(
    tmp_path: Path, nats: Nats, new_log: New, opened: Opened
) -> None:
    log = new_log()
    for _ in range(12):
        publish(log, 1, 3 << 20)
        log.store(nats)
    archive(opened(log), str(tmp_path))
    assert stored(tmp_path, log) == records(log)


def test_another_history_is_refused_before_anything_is_written(
    tmp_path: Path, nats: Nats, new_log: New, opened: Opened
) -> None:
    log = new_log()
    publish(log, 10)
    archive(opened(log), str(tmp_path))
    log.remove(nats)
    restored = LogBuilder(log.node)
    publish(restored, 20, 33)
    with pytest.raises(OtherLog, match="has another record 10 than the archive"):
        archive(opened(restored), str(tmp_path))
    assert stored(tmp_path, log) == records(log)


def test_two_runs_at_once_are_refused(tmp_path: Path, new_log: New, opened: Opened) -> None:
    log = new_log()
    publish(log, 10)
    with (
        open_writer(tmp_path, log.stream, f"node={log.node}"),
        pytest.raises(ArchiveBusy, match="is being written by process"),
    ):
        archive(opened(log), str(tmp_path))


def test_files_that_the_driver_does_not_see(
    tmp_path: Path, new_log: New, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors have a directory of that name of their own."""
    log = new_log()
    publish(log, 10)
    written = job._write

    def elsewhere(batch: object, after: int, staging: Path) -> int:
        last: int = written(batch, after, staging)  # type: ignore[arg-type]
        staging.rename(tmp_path / "elsewhere")
        return last

    monkeypatch.setattr(job, "_write", elsewhere)
    with pytest.raises(SparkError, match="needs a directory that all of them have mounted"):
        archive(opened(log), str(tmp_path / "a"))
    monkeypatch.undo()
    archive(opened(log), str(tmp_path / "a"))
    assert stored(tmp_path / "a", log) == records(log)


def test_a_disk_that_is_full(small_disk: Path, nats: Nats, new_log: New, opened: Opened) -> None:
    """Nothing incomplete is in the archive, and with free space it continues."""
    log = new_log()
    publish(log, 10)
    found = opened(log)
    archive(found, str(small_disk / "a"))
    chance = random.Random(1)
    for _ in range(40):
        event = MessagePublished("c", 1, False, ["t"], [], [1], 1 << 20, 0, 1)
        log.record(event, payloads=[chance.randbytes(1 << 20)])
        log.store(nats)
    filler = fill(small_disk)
    with pytest.raises(OutOfDisk, match="no space left for the archive"):
        archive(found, str(small_disk / "a"))
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (12 << 20))
    with pytest.raises(OutOfDisk, match="no space left for the archive"):
        archive(found, str(small_disk / "a"))
    assert stored(small_disk / "a", log) == records(log, 1, 10)
    filler.unlink()
    archive(found, str(small_disk / "a"))
    assert stored(small_disk / "a", log) == records(log)


# --------------------------------------------------------------------------- in an object store


def test_an_archive_in_a_bucket(
    object_store: ObjectStoreServer, spark: SparkSession, new_log: New, opened: Opened
) -> None:
    """Spark's workers upload; other programs see the same table as in a directory."""
    uri, midnight = object_store.uri("several"), (BEGIN_MS // DAY_MS + 1) * DAY_MS
    logs = [new_log(), new_log()]
    for log in logs:
        publish(log, 5, time_ms=midnight - 1)
        publish(log, 100, 1000, time_ms=midnight)
        publish(log, 5, time_ms=midnight - 2)
    told: list[ArchiveExtent] = []
    outcomes = archive(opened(*logs), uri, told.append, batch_bytes=40_000)
    assert [(one.stream, one.through, one.records) for one in outcomes] == [
        (log.stream, 110, 110) for log in logs
    ]
    assert outcomes[0].where == f"s3://{BUCKET}/several/node={logs[0].node}"
    assert len(told) > 4
    for log in logs:
        assert stored(uri, log) == records(log)
        publish(log, 7, time_ms=midnight)
    outcomes = archive(opened(*logs), uri)
    assert [(one.through, one.records) for one in outcomes] == [(117, 7), (117, 7)]
    again = archive(opened(*logs), uri)
    assert [(one.through, one.records) for one in again] == [(117, 0), (117, 0)]
    for log in logs:
        assert stored(uri, log) == records(log)
    alone = Log(spark, {"archive": uri, "stream": "*"})
    assert alone.entries("position").count() == 2 * 117
    table = archived_table(object_store, "several")
    assert table.schema.names == ["seq", "time", "part", "last", "bytes", "data"]
    assert sorted(table.column("seq").to_pylist()) == sorted([*range(1, 118), *range(1, 118)])


def archived_table(object_store: ObjectStoreServer, path: str) -> pa.Table:
    """Return all files of records, which are all in the ledger."""
    files = [data for name, data in object_store.objects(path).items() if name.endswith(".parquet")]
    return pa.concat_tables(parquet.read_table(pa.BufferReader(data)) for data in files)


def test_an_archive_in_a_bucket_has_no_damaged_record(
    object_store: ObjectStoreServer, new_log: New, opened: Opened
) -> None:
    log, uri = new_log(), object_store.uri("damaged")
    publish(log, 60, 1000)
    log.damage(30)
    with pytest.raises(FoldmqError, match=f"^log {log.stream}: .* record 30 has a wrong") as failed:
        archive(opened(log), uri, batch_bytes=25_000)
    assert failed.value.exit_code == 65
    got = stored(uri, log)
    assert 0 < len(got) < 30
    assert got == records(log, 1, len(got))
    assert archived_table(object_store, "damaged").num_rows == len(got)


def test_credentials_that_end_while_files_are_uploaded(
    object_store: ObjectStoreServer, new_log: New, opened: Opened
) -> None:
    """The error of a worker of Spark is one line, and the next run continues."""
    log, uri = new_log(), object_store.uri("denied")
    publish(log, 60, 1000)
    found = opened(log)

    def revoke(_archived: ArchiveExtent) -> None:
        object_store.require_credentials(required=True)

    try:
        with pytest.raises(FoldmqError, match="cannot be written: access denied") as failed:
            archive(found, uri, revoke, batch_bytes=25_000)
    finally:
        object_store.require_credentials(required=False)
    assert failed.value.exit_code == 73
    got = stored(uri, log)
    assert got == records(log, 1, len(got))
    assert 0 < len(got) < 60
    archive(found, uri)
    assert stored(uri, log) == records(log)
    assert archived_table(object_store, "denied").num_rows == 60


def test_records_of_some_megabytes_in_a_bucket(
    object_store: ObjectStoreServer, nats: Nats, new_log: New, opened: Opened
) -> None:
    """Larger than the part of an upload, and incompressible."""
    log, chance = new_log(), random.Random(1)
    for _ in range(12):
        event = MessagePublished("c", 1, False, ["t"], [], [1], 3 << 20, 0, 1)
        log.record(event, payloads=[chance.randbytes(3 << 20)])
        log.store(nats)
    archive(opened(log), object_store.uri("large"))
    assert stored(object_store.uri("large"), log) == records(log)


# ----------------------------------------------------------------------------------- killed

RUN = """
import sys
from spark.jobs.archive_job import archive
from spark.tables.log import Log
from spark.runtime.session import running_session
from tests.harness.spark_plans import INTERPRETED

def committed(archived):
    print(archived.through, flush=True)

with running_session("local[1]", "700m", INTERPRETED) as spark:
    options = dict(one.split("=", 1) for one in sys.argv[2:])
    archive(Log(spark, options), sys.argv[1], committed, 150_000)
"""


@pytest.mark.long  # test_archive_writer.py kills it at every step
def test_killed_while_it_works(tmp_path: Path, nats: Nats, new_log: New, opened: Opened) -> None:
    """``kill -9`` of the driver, behind some batches and amid one: the JVM goes with it.

    Committed records are there, and the next run continues after them.
    """
    log = new_log()
    publish(log, 800, 1000)
    found = opened(log)
    options = [f"{name}={value}" for name, value in found.options.items()]
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "a"), *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        commits = [int(process.stdout.readline()) for _ in range(2)]
        until(
            lambda: list((tmp_path / "a").glob("node=*/_staging/*/batch*/date=*/*")),
            "a file of Spark's",
            240,
        )
        process.kill()
    got = stored(tmp_path / "a", log)
    assert got == records(log, 1, len(got))
    assert commits[-1] <= len(got) < 800
    told: list[ArchiveExtent] = []
    (outcome,) = archive(found, str(tmp_path / "a"), told.append)
    assert (outcome.through, outcome.records) == (800, 800 - len(got))
    assert stored(tmp_path / "a", log) == records(log)


@pytest.mark.long  # test_archive_store.py kills it at every step
def test_killed_while_it_uploads(
    object_store: ObjectStoreServer, nats: Nats, new_log: New, opened: Opened
) -> None:
    """``kill -9`` of the driver: committed records are there, and the next run continues."""
    log, uri = new_log(), object_store.uri("killed")
    publish(log, 800, 1000)
    found = opened(log)
    options = [f"{name}={value}" for name, value in found.options.items()]
    with subprocess.Popen(
        [sys.executable, "-c", RUN, uri, *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        commits = [int(process.stdout.readline()) for _ in range(2)]
        before = object_store.names("killed")
        until(lambda: object_store.names("killed") - before, "a file of the next batch", 240)
        process.kill()
    got = stored(uri, log)
    assert got == records(log, 1, len(got))
    assert commits[-1] <= len(got) < 800
    (outcome,) = archive(found, uri)
    assert (outcome.through, outcome.records) == (800, 800 - len(got))
    assert stored(uri, log) == records(log)
    assert archived_table(object_store, "killed").num_rows == 800


def test_an_event_is_where_it_was(tmp_path: Path, new_log: New, opened: Opened) -> None:
    """The archive alone, and with the log behind it, are the same table."""
    log = new_log()
    publish(log, 20)
    archive(opened(log), str(tmp_path))
    publish(log, 7)
    log.record(MessagePublished("c", 1, False, ["t"], [], [9], 2, 0, 1), payloads=[b"hi"])
    both = opened(log, archive=str(tmp_path))
    alone = Log(both.spark, {"archive": str(tmp_path)})
    names = ("node", "position", "type", "topic", "payload")
    whole = [tuple(row) for row in opened(log).entries(*names).orderBy("position").collect()]
    assert [tuple(row) for row in both.entries(*names).orderBy("position").collect()] == whole
    assert [tuple(row) for row in alone.entries(*names).orderBy("position").collect()] == whole[:20]
