"""The facts of logs as a table: the records are taken apart where they are read.

So they travel through Spark as facts, not as records; and they are checked and opened once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from eventstore.errors import CorruptLog
from eventstore.format import decode_record
from spark.audit.facts.fact_scan import Scan, few_collections
from spark.audit.facts.fact_schema import DDL
from spark.audit.facts.histogram import LEAST_MS, interval_ms
from spark.columnar.row_filter import Pushed
from spark.datasource.discovery import find
from spark.datasource.options import Options
from spark.datasource.planning import Times, ranges, split
from spark.runtime.marked_errors import marked, marked_iterator, of_log
from spark.storage.node_names import nodes_of
from spark.storage.record_checks import Checker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spark.datasource.log import Log
    from spark.storage.stored_log import Range

_FORMAT: Final = "foldmq_facts"
_NOT_OURS: Final = frozenset({"rows", "columns", "from", "types", "sessions", "mode", "pushdown"})
_TOGETHER: Final = 8
"""Tasks that many small logs are spread over."""


def facts_of(log: Log) -> DataFrame:
    """Return the facts of a log, see ``fact_schema``, as the log is when this is computed.

    All of it up to ``until``: options that leave out what came before do not count.
    """
    log.spark.dataSource.register(FactsSource)
    options = {name: value for name, value in log.options.items() if name.lower() not in _NOT_OURS}
    return log.spark.read.format(_FORMAT).options(**options).load()


class FactsSource(DataSource):
    """The facts of the logs that the options of format ``foldmq`` name."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return _FORMAT

    def schema(self) -> str:
        """Return the columns of facts."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return what reads the logs as they are now."""
        with marked():
            return FactsReader(Options.read(self.options))


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a log, and what must be alike for all ranges of that log."""

    range: Range
    node: str
    """Whose log it is."""
    interval_ms: int
    """In intervals of at least this length it is counted what happened."""


class FactsPartition(InputPartition):
    """Parts of logs that one task reads."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(tuple(parts))

    @property
    def parts(self) -> Sequence[Part]:
        """The parts, those of one log in order."""
        return cast("Sequence[Part]", self.value)


class FactsReader(DataSourceReader):
    """Reads logs as facts."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return what is to be read, large logs in parts, small ones together."""
        options = self._options
        with marked():
            found = ranges(find(options), options, Pushed())
            nodes = nodes_of(one.stored for one in found)
            pieces = split(found, options.partitions)
            large = {one.stored.stream for one in pieces if one.first > one.stored.first}
            lengths = {
                one.stored.stream: _interval_ms(one) for one in found if one.stored.stream in large
            }
        streams = [one.stored.stream for one in pieces]
        parts = [
            Part(one, nodes[stream], lengths.get(stream, LEAST_MS))
            for one, stream in zip(pieces, streams, strict=True)
        ]
        if len(nodes) <= _TOGETHER:
            return [FactsPartition([part]) for part in parts]
        each = -(-len(parts) // _TOGETHER)
        small = [part for part, stream in zip(parts, streams, strict=True) if stream not in large]
        return [
            *(
                FactsPartition([part])
                for part, stream in zip(parts, streams, strict=True)
                if stream in large
            ),
            *(FactsPartition(small[at : at + each]) for at in range(0, len(small), each)),
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the facts of ranges; none for the partition that Spark makes without any."""
        parts = partition.parts if isinstance(partition, FactsPartition) else ()
        return marked_iterator(batch for part in parts for batch in _facts(part))


def _interval_ms(found: Range) -> int:
    """Return how long the intervals of a log are that is read in parts.

    So those of all parts together are few.
    """
    times = Times(found.stored)
    try:
        return interval_ms(times.of(found.first), times.of(found.last))
    except CorruptLog:  # told by who reads it
        return LEAST_MS


def _facts(part: Part) -> Iterator[pa.RecordBatch]:
    stored = part.range.stored
    with of_log(stored.stream), few_collections():
        scan = Scan(part.node, part.range.until, part.interval_ms)
        for found in Checker(part.range, decode_record, strict=False).records():
            scan.take(found)
            yield from scan.facts.full()
        yield from scan.finish()
