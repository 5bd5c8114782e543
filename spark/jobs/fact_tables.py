"""The facts of logs as tables of Spark, which distributes the folds of an audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from projections.audit.audit_outcome import MAX_VIOLATIONS
from projections.audit.audit_results import RESULT_COLUMNS
from projections.audit.chain_check import LogNote
from projections.audit.fact_buffer import Fold, folded
from projections.audit.facts import FEW, MANY, NODE, TOTALS, VIOLATION
from projections.audit.local_facts import reduce_collections
from projections.audit.log_summary import BEYOND_ALL, LogSummary
from spark.jobs.fact_reading import fact_options, facts_in, plan_facts
from spark.jobs.fact_schema import DDL, fact_batch, fold_batches
from spark.runtime.marked_errors import mark_errors, marked_iterator
from spark.tables.log import Log
from spark.tables.options import SourceOptions
from spark.tables.partitions import LogPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_FEW_TASKS: Final = 4
"""Maximum tasks of which the driver takes all violations that they keep."""
MANY_SPANS: Final = 50_000
"""Number of facts about sessions that each task has in memory."""


def facts_of(log: Log, *, strict: bool = False) -> DataFrame:
    """Return the facts of a log, see ``projections.audit.facts``, as of the moment it is computed.

    They cover the whole log up to ``until``: options that exclude earlier records are ignored.
    ``strict``: damage is an error.
    """
    log.spark.dataSource.register(FactsSource)
    options = fact_options(log.options, strict=strict)
    return log.spark.read.format(FORMAT).options(**options).load()


class FactTables:
    """Facts in Spark, in as many tasks as given; derived tables are on its disks until the end.

    The methods are those of ``projections.audit.local_facts.LocalFacts``.
    """

    def __init__(self, facts: DataFrame, tasks: int, kept: ExitStack) -> None:
        self._tasks = tasks
        self._kept = kept
        self._all = self._keep(facts)
        # Both are made as soon as rows of the smaller one are requested.
        self._few = self._keep(facts.where(F.col("kind").isin(*FEW)))

    def _keep(self, table: DataFrame) -> DataFrame:
        table.persist(StorageLevel.DISK_ONLY)
        self._kept.callback(table.unpersist)
        return table

    def notes(self) -> list[LogNote]:
        """Return the facts about logs as a whole."""
        return [LogNote.read(*row) for row in self.rows([self.of(NODE)], "node", "at", "data")]

    def trust(self, logs: Mapping[str, LogSummary]) -> None:
        """Forget the facts that are not audited: those behind a damaged record."""
        damaged = [log for log in logs.values() if log.trusted < BEYOND_ALL]
        for log in damaged:
            trusted = (F.col("node") != log.node) | (F.col("at") < log.trusted)
            self._all, self._few = self._all.where(trusted), self._few.where(trusted)

    def of(self, *kinds: int) -> DataFrame:
        """Return the facts of some kinds."""
        tables = [
            self.chosen(table, *chosen)
            for table, chosen in (
                (self._all, [kind for kind in kinds if kind in MANY]),
                (self._few, [kind for kind in kinds if kind not in MANY]),
            )
            if chosen
        ]
        return _union(tables)

    def made(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> DataFrame:
        """Return rows as facts."""
        batches = map(fact_batch, folded(iter, rows, columns))
        return self._all.sparkSession.createDataFrame(pa.Table.from_batches(batches), DDL)

    def chosen(self, facts: DataFrame, *kinds: int) -> DataFrame:
        """Return those of some kinds among facts."""
        return facts.where(F.col("kind").isin(*kinds))

    def of_messages(self, facts: DataFrame, others: DataFrame) -> DataFrame:
        """Return the facts about messages that others are about, too."""
        keys = ["node", "ref"]
        return facts.join(others.select(*keys).distinct(), keys, "left_semi")

    def parts(self, facts: DataFrame, count: int, *columns: str) -> Iterator[Iterable[Any]]:
        """Yield rows of ``count`` facts in parts that a task can hold, by session."""
        parts = -(-count // MANY_SPANS)
        for part in range(parts):
            here = F.pmod(F.xxhash64("session"), F.lit(parts)) == part
            yield self.rows([facts.where(here)], *columns)

    def each(
        self, facts: DataFrame, fold: Fold, columns: Sequence[str], results: Sequence[str]
    ) -> DataFrame:
        """Return the results of a fold of facts in any order."""
        return facts.select(*columns).mapInArrow(partial(_folded, fold, columns, results), DDL)

    def by_key(
        self,
        tables: Sequence[DataFrame],
        key: Sequence[str],
        order: Sequence[str],
        fold: Fold,
        columns: Sequence[str],
        results: Sequence[str] = RESULT_COLUMNS,
    ) -> DataFrame:
        """Return the results of a fold of facts that are sorted by a key and an order."""
        facts = _union([table.select(*columns) for table in tables])
        ordered = facts.repartition(self._tasks, *key).sortWithinPartitions(*key, *order)
        return self._keep(self.each(ordered, fold, columns, results))

    def rows(self, tables: Sequence[DataFrame], *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of facts."""
        return map(tuple, _union(tables).select(*columns).collect())

    def results(self, tables: Sequence[DataFrame]) -> Iterator[tuple[Any, ...]]:
        """Yield results that the driver needs: totals, and the first violations of each rule.

        Each task keeps that many; those of many tasks are too many for one machine.
        """
        results = self.chosen(_union(tables), VIOLATION, TOTALS)
        if self._tasks > _FEW_TASKS:
            ordered = Window.partitionBy("kind", "topic").orderBy("node", "at")
            results = results.withColumn("place", F.row_number().over(ordered)).where(
                (F.col("kind") == TOTALS) | (F.col("place") <= MAX_VIOLATIONS)
            )
        return self.rows([results], *RESULT_COLUMNS)


def _union(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, tables)


def _folded(
    fold: Fold,
    columns: Sequence[str],
    results: Sequence[str],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with mark_errors(), reduce_collections():
        yield from fold_batches(fold, columns, results, batches)


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


class FactsReader(DataSourceReader):
    """Reads logs as facts."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: large logs in parts, small ones together."""
        with mark_errors():
            return list(map(LogPartition, plan_facts(self._options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the facts of ranges; none for Spark's empty partition."""
        from spark.jobs.fact_schema import fact_batch

        parts = partition.parts if isinstance(partition, LogPartition) else ()
        return marked_iterator(fact_batch(facts) for part in parts for facts in facts_in(part))
