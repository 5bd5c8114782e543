"""Output of a job: a table or JSON lines on stdout, or a directory of files."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from pyspark import StorageLevel
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cli.common import text
from cli.common.tables import Column, Table
from cli.spark.job_runner import Job, write_result
from cli.spark.log_location import absolute
from eventstore.errors import UsageError
from eventstore.format.positions import (
    INDEX_BITS,
    MAX_INDEX,
    Position,
    format_position,
    index_of,
    parse_position,
    sequence_of,
)
from spark.runtime.errors import NotWritable
from spark.tables.directories import directory_text
from spark.tables.log import Log

Format: TypeAlias = Literal["table", "json", "parquet"]

_POSITIONS = frozenset({"at", "first", "newest", "oldest", "position", "ref", "step"})
"""Columns that contain positions."""
_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Destination and format."""

    format: Format
    directory: str | None = None
    """None: stdout."""
    limit: int | None = None


def output_target(output: str | None, format_: str | None, limit: int | None) -> OutputTarget:
    """Return the destination; raises UsageError for a contradiction, or NotWritable."""
    chosen = format_ or ("table" if output is None else "parquet")
    if chosen not in get_args(Format):
        raise UsageError(f"unknown format {chosen!r}: must be one of {', '.join(get_args(Format))}")
    if output is None:
        if chosen == "parquet":
            raise UsageError("--format parquet also needs --output DIR")
        return OutputTarget("json" if chosen == "json" else "table", None, limit)
    if chosen == "table":
        raise UsageError("--format table and --output cannot be combined")
    directory = absolute(output)
    if "://" not in directory and Path(directory).exists():
        raise NotWritable(
            f"--output {directory_text(output)}: already exists, give another directory"
        )
    return OutputTarget("json" if chosen == "json" else "parquet", directory, limit)


def as_of(log: Log) -> str:
    """Return the end of a pinned log as text."""
    ends = json.loads(log.options.get("until", "{}"))
    if not isinstance(ends, dict):
        return "before the first record"
    places = [
        _place(parse_position(end)) + (f" of {stream}" if len(ends) > 1 else "")
        for stream, end in ends.items()
    ]
    return f"as of {', '.join(places)}" if places else "before the first record"


def _place(end: Position) -> str:
    if index_of(end) == MAX_INDEX:
        return f"record {sequence_of(end)}"
    return f"position {format_position(end)}"


def write_rows(
    job: Job,
    frame: DataFrame,
    to: OutputTarget,
    order: Sequence[str],
    columns: Sequence[Column[Row]],
    noun: str,
    when: str,
) -> None:
    """Write rows of a ``noun``; to stdout in ``order``, as a table with ``columns``."""
    if to.limit is not None:
        frame = frame.orderBy(*order).limit(to.limit)
    if to.directory is not None:
        with job.busy("rebuilding and writing"):
            rows = save(frame, to)
        write_result(f"{text.count_of(rows, noun)} {when} in {directory_text(to.directory)}")
        return
    ordered = frame.orderBy(*order)
    if to.format == "json":
        with _made(job, as_text_columns(ordered)) as made:
            for row in made.toLocalIterator():
                write_result(text.json_line(_object(row)))
        return
    with _made(job, _in_milliseconds(ordered)) as made:
        table = Table(columns)
        for row in made.toLocalIterator():
            table.add(row)
        table.close()
    write_result(f"{text.count_of(table.rows, noun)} {when}")


def _in_milliseconds(frame: DataFrame) -> DataFrame:
    """Return rows with times as Unix times, independent of time zones."""
    times = [column.name for column in frame.schema if isinstance(column.dataType, TimestampType)]
    return frame.withColumns({name: F.unix_millis(name) for name in times})


def as_text_columns(frame: DataFrame) -> DataFrame:
    """Return rows in text form: positions as 5.0, times and payloads as text.

    A payload that is not UTF-8 is in base64, in a column of its own.
    """
    columns: list[SparkColumn] = []
    for field in frame.schema:
        column = F.col(f"`{field.name}`")
        if isinstance(field.dataType, BinaryType):
            readable = F.try_validate_utf8(column.cast("string"))
            base64 = F.when(readable.isNull(), F.base64(column))
            columns += [readable.alias(field.name), base64.alias(f"{field.name}_base64")]
        else:
            columns.append(_as_text(column, field.dataType, field.name).alias(field.name))
    return frame.select(*columns)


def _as_text(column: SparkColumn, kind: DataType, name: str) -> SparkColumn:
    if isinstance(kind, StructType):
        inner = [
            _as_text(column[part.name], part.dataType, part.name).alias(part.name) for part in kind
        ]
        return F.when(column.isNotNull(), F.struct(*inner))
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        element = kind.elementType
        return F.transform(column, lambda part: _as_text(part, element, name))
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.date_format(column, _ISO)
    if isinstance(kind, LongType) and name in _POSITIONS:
        index = column.bitwiseAND(F.lit(MAX_INDEX))
        return F.concat(F.shiftright(column, INDEX_BITS), F.lit("."), index)
    return column


def _object(row: Row) -> dict[str, Any]:
    """Return a row as a JSON object, with the payload either as text or in base64."""
    fields = row.asDict(recursive=True)
    for name in [key for key in fields if key.endswith("_base64")]:
        plain = name.removesuffix("_base64")
        fields.pop(name if fields[name] is None else plain)
    return fields


@contextlib.contextmanager
def _made(job: Job, frame: DataFrame) -> Iterator[DataFrame]:
    """Yield rows that are complete before the first is written."""
    kept = frame.persist(StorageLevel.DISK_ONLY)
    try:
        with job.busy("rebuilding"):
            kept.count()
        yield kept
    finally:
        kept.unpersist()


def save(frame: DataFrame, to: OutputTarget) -> int:
    """Write rows to the directory; return their number."""
    counted = Observation("rows")
    seen = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
    directory = to.directory or ""
    if to.format == "json":
        as_text_columns(seen).write.json(directory)
    else:
        seen.write.parquet(directory)
    return int(counted.get["rows"])
