"""The Parquet files of an archive: records in order, read in bounded memory, and checked.

A row is a record: ``seq`` is its stream sequence, ``data`` its bytes in the log. The columns
``time``, ``part``, ``last`` and ``bytes`` are for readers other than foldmq.
"""

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from eventstore.display import escaped
from eventstore.errors import CorruptLog
from spark.tables.archive_ledger import ArchiveDamaged
from spark.tables.directories import Directory, store_error, without_secrets
from spark.tables.record_frames import frame_of

_AT_ONCE: Final = 4 * 1024 * 1024
"""Approximate bytes of records decoded at once."""
_BUFFER: Final = 1024 * 1024
"""Bytes read from a file at once."""
_SENTENCE: Final = 200
_UNREADABLE: Final = (OSError, pa.ArrowException, LookupError, ValueError, TypeError, OverflowError)
"""Errors of reading a damaged file, whose footer may contain anything."""


class RecordRun(NamedTuple):
    """Consecutive records of a file, checked; each continues the one before."""

    file: str
    first: int
    last: int
    previous: str
    """Link of the record before the first, in hexadecimal."""
    link: str
    begins_ms: int
    ends_ms: int
    size: int
    """Bytes of the records."""


def read_file(
    folder: Directory, name: str, first: int, last: int, size: int | None = None
) -> Generator[tuple[int, bytes]]:
    """Yield (sequence, bytes) of the records of a file between two sequences, in order.

    Row groups outside that range, by the statistics of the file, are not read. ``size`` is the
    expected size of the file in bytes. Raises ArchiveDamaged, which names the file and the first
    unreadable record, StoreUnavailable or NoDirectory.
    """
    behind = first - 1
    try:
        with folder.open(name) as source:
            if size is not None and source.size() != size:
                raise ValueError(f"it has {source.size()} bytes in place of {size}")
            for sequence, data in _rows(source, first, last):
                yield sequence, data
                behind = sequence
    except FileNotFoundError:
        raise ArchiveDamaged(f"file {file_text(folder, name)} of the archive is missing") from None
    except _UNREADABLE as error:
        unavailable = store_error(error, folder)
        if unavailable is not None:
            raise unavailable from None
        why = without_secrets(str(error), folder.where)
        raise ArchiveDamaged(
            f"file {file_text(folder, name)} of the archive is damaged: it cannot be read from "
            f"record {behind + 1} on: {escaped(' '.join(why.split()), _SENTENCE)}"
        ) from None


def file_text(folder: Directory, name: str) -> str:
    """Return the name of a file for a message."""
    return f"{folder}/{escaped(name)}"


def _rows(source: pa.NativeFile, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    with parquet.ParquetFile(
        source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
    ) as file:
        for group in _groups(file, first, last):
            batches = file.iter_batches(_rows_at_once(file, group), [group], ["seq", "data"])
            for batch in batches:
                records = batch.column("data")
                for at, sequence in enumerate(batch.column("seq").to_pylist()):
                    if first <= sequence <= last:
                        yield sequence, records[at].as_py()


def _groups(file: parquet.ParquetFile, first: int, last: int) -> Iterator[int]:
    """Yield the row groups that may have records between two sequences."""
    column = file.schema_arrow.get_field_index("seq")
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(column).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or (statistics.max >= first and statistics.min <= last)
        ):
            yield group


def _rows_at_once(file: parquet.ParquetFile, group: int) -> int:
    about = file.metadata.row_group(group)
    return max(1, int(about.num_rows * _AT_ONCE / max(1, about.total_byte_size)))


def check_file(folder: Directory, name: str) -> Iterator[RecordRun]:
    """Check every record of a file and yield its runs.

    Raises ArchiveDamaged, or CorruptLog for an altered record.
    """
    run: RecordRun | None = None
    for sequence, data in read_file(folder, name, 1, 1 << 62):
        record = frame_of(sequence, data)
        previous, link = record.previous.hex(), record.link.hex()
        if run is not None and sequence == run.last + 1:
            if previous != run.link:
                raise CorruptLog(sequence, f"does not continue record {run.last}")
            run = run._replace(
                last=sequence,
                link=link,
                begins_ms=min(run.begins_ms, record.time_ms),
                ends_ms=max(run.ends_ms, record.time_ms),
                size=run.size + len(data),
            )
            continue
        if run is not None:
            yield run
        run = RecordRun(
            name, sequence, sequence, previous, link, record.time_ms, record.time_ms, len(data)
        )
    if run is not None:
        yield run
