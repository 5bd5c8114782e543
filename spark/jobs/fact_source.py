"""The facts of logs as a table, made by the tasks that read the records.

So Spark transfers facts, not records, and records are checked and decoded once.

Spark creates the source and plans the read in separate processes. Most modules are imported where
they are used, so that each process imports only what it needs, which saves a second of processor
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark.jobs.fact_reading import FactRange, facts_in, plan_facts
from spark.runtime.marked_errors import mark_errors, marked_iterator
from spark.tables.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


FORMAT: Final = "foldmq_facts"


class FactsSource(DataSource):
    """The facts of the logs named by the options of format ``foldmq``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of facts."""
        from spark.jobs.fact_schema import DDL

        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return a reader of the logs as of now."""
        from spark.tables.options import SourceOptions

        with mark_errors():
            return FactsReader(SourceOptions.read(self.options))


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
            return list(map(FactsPartition, plan_facts(self._options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the facts of ranges; none for Spark's empty partition."""
        from spark.jobs.fact_schema import fact_batch

        parts = partition.parts if isinstance(partition, FactsPartition) else ()
        return marked_iterator(fact_batch(facts) for part in parts for facts in facts_in(part))
