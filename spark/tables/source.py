"""The data source ``foldmq`` of Spark: the event log as a table, read in parallel.

    spark.read.format("foldmq").option("nats", "nats://127.0.0.1:4222").load()

Options are described in ``docs/spark.md``. Spark finds the source by itself through the module
``pyspark_foldmq``; :func:`register` registers it where that is not on the path.

Spark runs each step of planning in a process of its own, one after the other. So each step imports
what it needs itself: NATS, Arrow and pydantic take most of a second together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)

from spark.runtime.marked_errors import BadOption, mark_errors
from spark.tables.columns import Columns
from spark.tables.options import SourceOptions
from spark.tables.partitions import LogPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class FoldmqSource(DataSource):
    """The event logs of foldmq brokers."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "foldmq"

    def schema(self) -> str:
        """Return the columns requested by the options."""
        with mark_errors():
            return SourceOptions.read(self.options).columns.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the log as it is now."""
        with mark_errors():
            return LogReader(with_columns(SourceOptions.read(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of the log as it grows."""
        from spark.tables.streaming import LogStreamReader

        with mark_errors():
            return LogStreamReader(with_columns(SourceOptions.read(self.options), schema))


def register(session: SparkSession) -> None:
    """Register the source with a session."""
    session.dataSource.register(FoldmqSource)


class _Push:
    """``pushFilters`` of a reader.

    Spark rejects a reader that overrides the method while filter pushdown is disabled, as it is by
    default, and detects an override by its ``__func__``. Without filters the source reads
    everything and Spark filters: equally correct, only slower.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        with mark_errors():
            return self._reader.push(filters)


class LogReader(DataSourceReader):
    """Reads logs as a table, as they are at planning."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = options.pushed

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:  # noqa: N802
        """The function that takes filters and returns those left to Spark."""
        return _Push(self)

    def push(self, filters: list[Filter]) -> list[Filter]:
        """Apply filters; return those left to Spark."""
        if not self._options.pushdown:
            return filters
        from spark.tables.pushdown import push_filters

        self._pushed, unused = push_filters(self._pushed, filters)
        return unused

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read."""
        from spark.tables.discovery import find_logs
        from spark.tables.planning import group_ranges, plan_ranges, split_ranges

        options = self._options
        with mark_errors():
            ranges = plan_ranges(find_logs(options), options, self._pushed)
            parts = split_ranges(ranges, options.partitions)
            return list(map(LogPartition, group_ranges(parts, options.partitions)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return read_partition(self._options, self._pushed, partition)


def with_columns(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options with the columns of a schema; raises BadOption for unknown ones."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from spark.tables.arrow_types import schema_of

    columns = Columns.of(options.columns.rows, schema.fieldNames())
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    for field in schema_of(columns.rows, columns.names):
        if arrow_schema.field(field.name).type != field.type:
            raise BadOption(
                f"column {field.name} of the schema is {arrow_schema.field(field.name).type}, in "
                f"the log it is {field.type}"
            )
    return replace(options, columns=columns)
