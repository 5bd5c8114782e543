"""Archives written without Spark, file by file, for tests of their readers and writers."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from harness.logs import LogBuilder
from pyarrow import parquet

from eventstore.format.events import MessagePublished
from eventstore.format.records import decode_record
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import NoArchive, Segment
from spark.tables.archive_log import archived_logs
from spark.tables.archive_writer import ArchiveWriter
from spark.tables.directories import Directory
from spark.tables.parquet_files import RecordRun, check_file

NODE = "node=n1"
DAY_MS = 86_400_000


def publish(log: LogBuilder, count: int, size: int = 20, time_ms: int | None = None) -> None:
    """Append records of one message each."""
    for _ in range(count):
        payload = bytes([log.last % 251]) * size
        event = MessagePublished("c", 1, False, ["t"], [], [1], size, 0, 1)
        log.record(event, payloads=[payload], time_ms=time_ms)


def built(count: int, size: int = 20) -> LogBuilder:
    """Return a log with records of one message each."""
    log = LogBuilder()
    publish(log, count, size)
    return log


def records(log: LogBuilder, first: int = 1, last: int | None = None) -> list[tuple[int, bytes]]:
    """Return the records of a log by their sequence."""
    return list(enumerate(log.records[first - 1 : last], first))


def all_of(archive: Path | str) -> list[tuple[int, bytes]]:
    """Return the records in an archive of one log, or of none."""
    try:
        (stored,) = archived_logs(str(archive))
    except NoArchive:
        return []
    return list(stored.read(1, 1 << 40))


def in_ledger(archive: Path | str) -> set[str]:
    """Return the files that the ledger of an archive names."""
    (stored,) = archived_logs(str(archive))
    return {file.name for segment in stored._ledger().segments for file in segment.files}


def stage(
    writer: ArchiveWriter, records: Iterable[tuple[int, bytes]], name: str = "f", group: int = 5
) -> list[RecordRun]:
    """Write records into the staging directory, a file for each day, as Spark's executors do."""
    days: dict[str, list[tuple[int, bytes]]] = {}
    for sequence, data in records:
        time_ms = decode_record(sequence, data).time_ms
        day = datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()
        days.setdefault(day, []).append((sequence, data))
    runs: list[RecordRun] = []
    for day, rows in days.items():
        path = Path(f"date={day}") / f"{name}.parquet"
        (writer.staging / path).parent.mkdir(exist_ok=True)
        table = pa.table(
            {"seq": [sequence for sequence, _ in rows], "data": [data for _, data in rows]}
        )
        parquet.write_table(
            table,
            writer.staging / path,
            row_group_size=group,
            compression="zstd",
            use_dictionary=False,
            write_batch_size=1,  # else a page is as large as its row group
            write_page_checksum=True,
        )
        runs += check_file(Directory(str(writer.staging)), str(path))
    return runs


def archived(
    directory: Path, log: LogBuilder, through: int | None = None, per_file: int = 10
) -> list[Segment]:
    """Archive what is new of a log, up to a record; return the segments that were added."""
    last = log.last if through is None else through
    with open_writer(directory, log.stream, NODE) as writer:
        runs: list[RecordRun] = []
        for start in range(writer.ledger.last + 1, last + 1, per_file):
            end = min(start + per_file - 1, last)
            rows = list(enumerate(log.records[start - 1 : end], start))
            runs += stage(writer, rows, f"f{start}")
        return writer.add(runs)
