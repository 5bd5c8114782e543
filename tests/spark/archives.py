"""Archives written without Spark, file by file, for tests of their readers and writers."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from harness.logs import LogBuilder
from harness.nats import PASSWORD, USER, Nats
from pyarrow import parquet

from eventstore.format.events import MessagePublished
from eventstore.format.records import decode_record
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import Segment
from spark.tables.archive_writer import ArchiveWriter
from spark.tables.directories import Directory
from spark.tables.parquet_files import RecordRun, check_file

NODE = "node=n1"
DAY_MS = 86_400_000


def access(server: Nats) -> dict[str, str]:
    """The options of the source that let it in."""
    return {"nats": server.url, "user": USER, "password": PASSWORD}


def publish(log: LogBuilder, count: int, size: int = 20, time_ms: int | None = None) -> None:
    """Append records of one message each."""
    for _ in range(count):
        payload = bytes([log.last % 251]) * size
        event = MessagePublished("c", 1, False, ["t"], [], [1], size, 0, 1)
        log.record(event, payloads=[payload], time_ms=time_ms)


def built(count: int) -> LogBuilder:
    """Return a log with records of one message each."""
    log = LogBuilder()
    publish(log, count)
    return log


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
