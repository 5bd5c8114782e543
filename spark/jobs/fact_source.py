"""The facts of logs as a table, made by the tasks that read the records.

So Spark transfers facts, not records, and records are checked and decoded once.

Spark creates the source and plans the read in separate processes. Most modules are imported where
they are used, so that each process imports only what it needs, which saves a second of processor
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark.runtime.marked_errors import mark_errors, marked_iterator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spark.tables.log import Log
    from spark.tables.options import SourceOptions
    from spark.tables.stored_log import RecordRange

_FORMAT: Final = "foldmq_facts"
_NOT_OURS: Final = frozenset({"rows", "columns", "from", "types", "sessions", "mode", "pushdown"})


def facts_of(log: Log) -> DataFrame:
    """Return the facts of a log, see ``fact_schema``, as of the moment of the computation.

    They cover the whole log up to ``until``: options that exclude earlier records are ignored.
    """
    log.spark.dataSource.register(FactsSource)
    return log.spark.read.format(_FORMAT).options(**whole_options(log.options)).load()


def read_facts(log: Log, memory: int | None = None) -> pa.Table | None:
    """Return the facts of a log as ``facts_of`` does, but read in this process, without Spark.

    None if an audit of them in this process may need more than ``memory`` bytes. Raises the errors
    of reading a log.
    """
    import pyarrow as pa

    from spark.jobs.fact_schema import SCHEMA, memory_of
    from spark.tables.options import SourceOptions

    options = SourceOptions.read({**whole_options(log.options), "partitions": "1"})
    parts = chain.from_iterable(_plan(options))
    found: list[pa.RecordBatch] = []
    needed = 0
    for batch in chain.from_iterable(map(_facts, parts)):
        found.append(batch)
        needed += memory_of(batch)
        if memory is not None and needed > memory:
            return None
    return pa.Table.from_batches(found, SCHEMA)


def whole_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a log without those that leave out a part of it before its end."""
    return {name: value for name, value in options.items() if name.lower() not in _NOT_OURS}


class FactsSource(DataSource):
    """The facts of the logs named by the options of format ``foldmq``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return _FORMAT

    def schema(self) -> str:
        """Return the columns of facts."""
        from spark.jobs.fact_schema import DDL

        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return a reader of the logs as of now."""
        from spark.tables.options import SourceOptions

        with mark_errors():
            return FactsReader(SourceOptions.read(self.options))


@dataclass(frozen=True, slots=True)
class FactRange:
    """A range of a log, and the values common to all ranges of that log."""

    range: RecordRange
    node: str
    """The node that wrote the log."""
    interval_ms: int
    """Minimum length of the intervals in which events are counted."""


class FactsPartition(InputPartition):
    """Parts of logs read by one task."""

    def __init__(self, parts: Sequence[FactRange]) -> None:
        super().__init__(tuple(parts))

    @property
    def parts(self) -> Sequence[FactRange]:
        """The parts; those of one log are in order."""
        return cast("Sequence[FactRange]", self.value)


class FactsReader(DataSourceReader):
    """Reads logs as facts."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: large logs in parts, small ones together."""
        with mark_errors():
            return list(map(FactsPartition, _plan(self._options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the facts of ranges; none for Spark's empty partition."""
        parts = partition.parts if isinstance(partition, FactsPartition) else ()
        return marked_iterator(batch for part in parts for batch in _facts(part))


def _plan(options: SourceOptions) -> list[list[FactRange]]:
    """Return the ranges that each task reads: large logs in parts, small ones together."""
    from spark.jobs.histogram import MIN_MS
    from spark.tables.discovery import find_logs
    from spark.tables.node_names import nodes_of
    from spark.tables.planning import group_ranges, plan_ranges, split_ranges
    from spark.tables.row_filter import PushedFilters

    found = plan_ranges(find_logs(options), options, PushedFilters())
    nodes = nodes_of(one.stored for one in found)
    pieces = split_ranges(found, options.partitions)
    large = {one.stored.stream for one in pieces if one.first > one.stored.first}
    lengths = {one.stored.stream: _interval_ms(one) for one in found if one.stored.stream in large}
    return [
        [
            FactRange(one, nodes[one.stored.stream], lengths.get(one.stored.stream, MIN_MS))
            for one in some
        ]
        for some in group_ranges(pieces, options.partitions)
    ]


def _interval_ms(found: RecordRange) -> int:
    """Return the interval length for a log that is read in parts.

    It keeps the number of intervals of all parts together small.
    """
    from eventstore.errors import CorruptLog
    from spark.jobs.histogram import MIN_MS, interval_ms
    from spark.tables.planning import RecordTimes

    times = RecordTimes(found.stored)
    try:
        return interval_ms(times.of(found.first), times.of(found.last))
    except CorruptLog:  # reported by the task that reads it
        return MIN_MS


def _facts(part: FactRange) -> Iterator[pa.RecordBatch]:
    from eventstore.format.records import decode_record
    from spark.jobs.fact_scan import FactScan
    from spark.runtime.machine import reduce_collections
    from spark.runtime.marked_errors import name_log_in_errors
    from spark.tables.record_checks import RecordChecker

    stored = part.range.stored
    with name_log_in_errors(stored.stream), reduce_collections():
        scan = FactScan(part.node, part.range.until, part.interval_ms)
        for found in RecordChecker(part.range, decode_record, strict=False).records():
            scan.take(found)
            yield from scan.facts.full()
        yield from scan.finish()
