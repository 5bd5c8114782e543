"""Uploads records to a bucket from Spark's tasks, as Parquet files like those of Spark itself."""

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import compute, parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark.runtime.errors import disk_failed
from spark.runtime.marked_errors import marked_iterator
from spark.tables.archive_store import file_name
from spark.tables.directories import Directory
from spark.tables.object_store import ObjectStore

_ROW_GROUP: Final = 32 << 20
"""Bytes of records in a row group."""
_BATCH_RECORDS: Final = 64
"""Records that Spark passes to Python at once: each may have 8 MiB."""
_DAY_MS: Final = 86_400_000
_RECORDS: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("part", pa.int32()),
        ("last", pa.bool_()),
        ("bytes", pa.int64()),
        ("data", pa.binary()),
    ]
)


def upload(batch: DataFrame, after: int, folder: Directory, run: str) -> list[str]:
    """Upload the records behind ``after``; return the files, each of one day.

    Raises NotWritable, StoreUnavailable, or OutOfDisk for the disk of temporary files.
    """
    batch.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _BATCH_RECORDS)
    rows = batch.where(F.col("seq") > after).select(
        F.date_from_unix_date((F.col("time_ms") / _DAY_MS).cast("int"))
        .cast("string")
        .alias("date"),
        "seq",
        "time_ms",
        "part",
        "last",
        "data",
    )
    files = rows.sortWithinPartitions("date", "seq").mapInArrow(
        partial(_uploaded, folder, run), "file string"
    )
    return sorted(row.file for row in files.collect())


def _uploaded(
    folder: Directory, run: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    for name in marked_iterator(upload_records(folder, run, attempt, batches)):
        yield pa.RecordBatch.from_pydict({"file": [name]})


def upload_records(
    folder: Directory, run: str, attempt: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[str]:
    """Upload records, in order of their day and sequence; yield the name of each file.

    Raises NotWritable, StoreUnavailable, or OutOfDisk for the disk of temporary files.
    """
    store: ObjectStore | None = None
    try:
        with tempfile.TemporaryDirectory(prefix="foldmq-archive-") as scratch:
            path = Path(scratch) / "records.parquet"
            for date, groups in _days(batches):
                first, last = _write_file(path, groups)
                name = file_name(date, first, last, run, attempt)
                store = store or ObjectStore.open(folder)
                store.put(name, path)
                yield name
    except OSError as error:
        raise disk_failed(error) from None


def _days(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """Yield each day with its records, in tables of about the size of a row group."""
    pieces = _pieces(batches)
    piece = next(pieces, None)
    while piece is not None:
        date = piece[0]

        def groups(first: pa.RecordBatch = piece[1], date: str = date) -> Iterator[pa.Table]:
            nonlocal piece
            kept, size = [first], first.nbytes
            while (piece := next(pieces, None)) is not None and piece[0] == date:
                if size >= _ROW_GROUP:
                    yield pa.Table.from_batches(kept)
                    kept, size = [], 0
                kept.append(piece[1])
                size += piece[1].nbytes
            yield pa.Table.from_batches(kept)

        yield date, groups()


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each batch by their day."""
    for batch in batches:
        dates = batch.column("date")
        for date in sorted(set(dates.to_pylist())):
            rows = batch.filter(compute.equal(dates, date))
            data = rows.column("data")
            columns = [
                rows.column("seq"),
                rows.column("time_ms").cast(pa.timestamp("ms", "UTC")).cast(_RECORDS.types[1]),
                rows.column("part"),
                rows.column("last"),
                compute.binary_length(data).cast(pa.int64()),
                data,
            ]
            yield (
                date,
                pa.RecordBatch.from_arrays(
                    [
                        column.cast(kind)
                        for column, kind in zip(columns, _RECORDS.types, strict=True)
                    ],
                    schema=_RECORDS,
                ),
            )


def _write_file(path: Path, groups: Iterator[pa.Table]) -> tuple[int, int]:
    """Write tables as row groups of a file; return its first and last sequence."""
    first = last = 0
    with parquet.ParquetWriter(
        path,
        _RECORDS,
        compression="zstd",
        use_dictionary=False,  # the contents of records are unique
        write_batch_size=1,  # a record may have 8 MiB: check the size of a page after each one
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            sequences = group.column("seq")
            first = first or sequences[0].as_py()
            last = sequences[-1].as_py()
            writer.write_table(group, row_group_size=group.num_rows)
    return first, last
