"""Copies logs into an archive: Parquet files that keep every record as it was written.

A structured stream reads new records in batches. Spark writes each batch into a staging directory
(:mod:`spark.tables.archive_directory`), or its tasks upload it to a bucket
(:mod:`spark.jobs.archive_upload`); it is read again, checked record by record, and only then taken
into the archive, where it is durable and in the ledger. Only the ledger determines the
contents of an archive, and the stream of each run begins behind them. Spark's checkpoint of a run
is deleted with the run: it is not synced, and does not cover the fate of the files.
"""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from protocol.errors import FoldmqError
from spark.jobs.archive_plan import (
    PendingArchive,
    check_same_log,
    open_archive,
    plan_archive,
)
from spark.jobs.archive_upload import upload
from spark.runtime.errors import SparkError
from spark.runtime.marked_errors import marked_iterator
from spark.runtime.session import translate_errors
from spark.runtime.sync_calls import run_sync
from spark.tables.archive_directory import DirectoryWriter, no_room
from spark.tables.archive_store import StoreWriter
from spark.tables.archive_writer import ArchiveExtent, ArchiveWriter
from spark.tables.directories import Directory
from spark.tables.log import Log
from spark.tables.parquet_files import RecordRun, check_file
from spark.tables.source import register

BATCH_BYTES: Final = 1 << 30
"""Maximum bytes of records taken into an archive together."""
_FILE_BYTES: Final = 128 << 20
"""Approximate bytes of records in a file; fewer if there are more cores to write files."""
_ROW_GROUP: Final = 32 << 20
_COLUMNS: Final = "seq,time_ms,part,last,data"
_DAY_MS: Final = 86_400_000
_RUNS: Final = pa.schema(
    [
        ("file", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("previous", pa.string()),
        ("link", pa.string()),
        ("begins_ms", pa.int64()),
        ("ends_ms", pa.int64()),
        ("size", pa.int64()),
    ]
)
_RUNS_DDL: Final = (
    "file string, first long, last long, previous string, link string, "
    "begins_ms long, ends_ms long, size long"
)
_FORMAT: Final = {
    "compression": "zstd",
    "parquet.block.size": str(_ROW_GROUP),
    # A record may have 8 MiB: check the size of a page and a row group after each one.
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
    # The contents of records are unique.
    "parquet.enable.dictionary": "false",
    "parquet.page.write-checksum.enabled": "true",
}
_FULL: Final = re.compile("[Nn]o space left on device|Disk quota exceeded")
_LITTLE: Final = 64 << 20
"""Free bytes below which a disk counts as full."""


def archive(
    log: Log,
    directory: str,
    committed: Callable[[ArchiveExtent], None] | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> list[ArchiveExtent]:
    """Add the new records of one or several logs to an archive; return its extent.

    ``committed`` is called whenever more is in the archive, which survives any later failure. A log
    that cannot be archived does not affect the others: the first error is raised at the end.

    Raises the errors of :func:`spark.jobs.archive_plan.plan_archive`, OtherLog, CutBefore,
    ArchiveBusy, OutOfDisk, NotWritable, and those of reading a log or a ledger.
    """
    logs = run_sync(plan_archive(log.options, directory))
    archived: list[ArchiveExtent] = []
    problems: list[FoldmqError] = []
    for log_plan in logs:
        try:
            archived.append(archive_one(log.spark, log_plan, committed, batch_bytes))
        except FoldmqError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    return archived


def archive_one(
    spark: SparkSession,
    log_plan: PendingArchive,
    committed: Callable[[ArchiveExtent], None] | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> ArchiveExtent:
    """Add the new records of one log to an archive; as :func:`archive`.

    An error of Spark is raised as the foldmq error that explains it, if Spark still works.
    """
    if log_plan.problem is not None:
        raise log_plan.problem
    with translate_errors(), open_archive(log_plan) as writer:
        log = check_same_log(log_plan.access, log_plan.stream, writer)
        if log.last > writer.ledger.last:
            job = _Job(spark, writer, committed, batch_bytes)
            try:
                job.run(log_plan, max(writer.ledger.last, log.first - 1))
            finally:
                job.end()
        return writer.outcome


class _Job:
    """A stream from a log into an archive, and its result."""

    def __init__(
        self,
        spark: SparkSession,
        writer: ArchiveWriter,
        committed: Callable[[ArchiveExtent], None] | None,
        batch_bytes: int,
    ) -> None:
        self._spark = spark
        self._writer = writer
        self._committed = committed
        self._batch_bytes = batch_bytes
        self._failure: BaseException | None = None
        self._working = threading.Lock()
        self._ended = False

    def run(self, log_plan: PendingArchive, behind: int) -> None:
        """Archive all current records of the log behind a record, batch by batch."""
        register(self._spark)
        stream = (
            self._spark.readStream.format("foldmq")
            .options(**log_plan.access.options)
            .options(stream=log_plan.stream, rows="records", columns=_COLUMNS)
            .options(startingOffsets=json.dumps({log_plan.stream: behind + 1}))
            .options(maxBytesPerTrigger=self._batch_bytes)
            .load()
        )
        with _no_room_named(self._writer):
            query = (
                stream.writeStream.foreachBatch(self._take)
                .option("checkpointLocation", _uri(self._writer.staging / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
            except (PySparkException, Py4JError):
                if self._failure is not None:
                    raise self._failure from None
                raise
            finally:
                query.stop()

    def end(self) -> None:
        """Wait for a batch in progress and start no other: then another process may write."""
        with self._working:
            self._ended = True

    def _take(self, batch: DataFrame, number: int) -> None:
        """Take a batch into the archive; called by Spark, in a thread of its own."""
        with self._working:
            if self._ended:
                return
            try:
                self._add(batch, number)
            except BaseException as error:
                self._failure = error
                raise

    def _add(self, batch: DataFrame, number: int) -> None:
        cores = self._spark.sparkContext.defaultParallelism
        batch = batch.coalesce(max(cores, self._batch_bytes // _FILE_BYTES))
        writer = self._writer
        if isinstance(writer, StoreWriter):
            writer.begin()
            names = upload(batch, writer.ledger.last, writer.folder, writer.run)
            runs = _look_through(batch.sparkSession, writer.folder, names)
        else:
            runs = self._staged(batch, writer.staging / f"batch{number}")
        if not runs:
            return
        writer.add(runs)
        shutil.rmtree(writer.staging / f"batch{number}", ignore_errors=True)
        if self._committed is not None:
            self._committed(writer.outcome)

    def _staged(self, batch: DataFrame, staging: Path) -> list[RecordRun]:
        """Write a batch into a directory of the archive's staging directory; return its runs."""
        last = _write(batch, self._writer.ledger.last, staging)
        files = staging.glob("*/*.parquet")
        names = sorted(str(path.relative_to(self._writer.staging)) for path in files)
        staged = Directory(str(self._writer.staging))
        runs = _look_through(batch.sparkSession, staged, names)
        if max((run.last for run in runs), default=0) != last:
            raise SparkError(
                f"the files that the executors wrote are not in {Directory(str(staging))} as the "
                "driver sees it: an archive needs a directory that all of them have mounted"
            )
        return runs


def _write(batch: DataFrame, after: int, staging: Path) -> int:
    """Write the records behind ``after`` with Spark; return the sequence of the last one."""
    written = Observation()
    session = batch.sparkSession
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows = batch.where(F.col("seq") > after).select(
        "seq",
        F.timestamp_millis("time_ms").alias("time"),
        "part",
        "last",
        F.octet_length("data").cast("long").alias("bytes"),
        "data",
        F.date_from_unix_date((F.col("time_ms") / _DAY_MS).cast("int")).alias("date"),
    )
    (
        rows.observe(written, F.max("seq").alias("last"))
        .sortWithinPartitions("date", "seq")
        .write.partitionBy("date")
        .options(**_FORMAT)
        .parquet(_uri(staging))
    )
    return int(written.get["last"] or 0)


def _look_through(spark: SparkSession, folder: Directory, names: list[str]) -> list[RecordRun]:
    """Check the files record by record, several of them in Spark's workers."""
    if len(names) <= 1:
        return [run for name in names for run in check_file(folder, name)]
    partitions = min(len(names), spark.sparkContext.defaultParallelism)
    files = spark.createDataFrame([(name,) for name in names], "name string").repartition(
        partitions
    )
    check = partial(_runs, folder)
    return [RecordRun(*row) for row in files.mapInArrow(check, _RUNS_DDL).collect()]


def _runs(folder: Directory, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in batch.column("name").to_pylist():
            runs = list(marked_iterator(check_file(folder, name)))
            columns = [pa.array(values) for values in zip(*runs, strict=True)]
            if columns:
                yield pa.RecordBatch.from_arrays(columns, schema=_RUNS)


def _uri(path: Path) -> str:
    """Return the name of a directory for Spark.

    Spark's default file system may be another one, and Spark decodes no URIs.
    """
    return f"file://{path}"


@contextmanager
def _no_room_named(writer: ArchiveWriter) -> Iterator[None]:
    """Report errors of Spark about a full disk as errors of the archive's disk, if it is full."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        disk = writer.path if isinstance(writer, DirectoryWriter) else None
        if disk and _FULL.search(str(error)) and shutil.disk_usage(disk).free < _LITTLE:
            raise no_room(disk) from None
        raise
