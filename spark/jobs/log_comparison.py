"""Compares the logs of a broker with each other: what one owes to another, and what that took."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.errors import CorruptLog
from eventstore.format.records import Record, decode_record
from projections.audit.broker_logs import ComparedLog
from projections.audit.exchange_audit import FollowedEnd, audit_exchange
from projections.audit.local_facts import reduce_collections
from projections.audit.rule_table import Violation
from spark.jobs.fact_reading import whole_options
from spark.runtime.marked_errors import mark_errors, name_log_in_errors
from spark.runtime.sync_calls import run_sync
from spark.tables.log import Log
from spark.tables.node_names import nodes_of
from spark.tables.stored_log import StoredLog, open_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_COLUMNS: Final = ("data",)
_DDL: Final = "data string"


class ReadLog(NamedTuple):
    """A log to compare. It travels to executors."""

    stored: StoredLog
    last: int
    """Sequence of the last record to read."""
    ends: int
    """Sequence of the last record that the log had later: no other log can have taken more."""

    @property
    def begin(self) -> int:
        """Sequence of its first record."""
        return self.stored.first

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        """Yield the records between two sequences, in order.

        Raises CutMeanwhile for a record that was cut off meanwhile, CorruptLog for another one that
        is missing.
        """
        following = first
        with (
            name_log_in_errors(self.stored.stream),
            open_records(self.stored, first, last) as records,
        ):
            for sequence, data in records:
                self._require(sequence, following)
                yield decode_record(sequence, data)
                following += 1
            self._require(last + 1, following)

    def _require(self, received: int, sequence: int) -> None:
        if received != sequence:
            raise self.stored.explain(sequence) or CorruptLog(sequence, "is missing")


def readable(log: Log) -> dict[str, ReadLog]:
    """Return the logs to compare, by node, from their beginning to their current end."""
    whole = Log(log.session, whole_options(log.options))
    ranges = whole.ranges()
    # What was taken until then was there before, so it is within the ends that are read now.
    ends = {part.stored.stream: part.stored.last for part in whole.ranges()}
    nodes = nodes_of(part.stored for part in ranges)
    return {
        nodes[part.stored.stream]: ReadLog(part.stored, part.last, ends[part.stored.stream])
        for part in ranges
    }


def compare_logs(log: str, logs: Mapping[str, ReadLog]) -> ComparedLog:
    """Compare a log with the others of its broker; ``logs`` are all, in their order.

    The logs are read side by side, with bounded memory. Raises the errors of reading a log.
    """
    result = ComparedLog(log)
    ends = {name: read_log.ends for name, read_log in logs.items()}
    with reduce_collections():
        audited = run_sync(audit_exchange(log, logs, result.add, ends=ends))
    result.due, result.compared, result.ends = audited.due, audited.compared, list(audited.ends)
    return result


def compare_in_spark(
    spark: SparkSession, brokers: Sequence[Mapping[str, ReadLog]]
) -> Iterator[ComparedLog]:
    """Yield the results for all logs of brokers, each compared by a task of Spark."""
    pairs = [(number, log) for number, logs in enumerate(brokers) for log in logs]
    rows_to_compare = [(place, *pair) for place, pair in enumerate(pairs)]
    rows = (
        spark.createDataFrame(rows_to_compare, "place int, broker int, log string")
        .repartitionByRange(len(rows_to_compare), "place")
        .mapInArrow(partial(_compare, brokers), _DDL)
        .collect()
    )
    for row in rows:
        yield _read(json.loads(row["data"]))


def _compare(
    brokers: Sequence[Mapping[str, ReadLog]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    with mark_errors():
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("broker", "log"))
            compared = [
                compare_logs(log, brokers[number]) for number, log in zip(*columns, strict=True)
            ]
            data = [json.dumps(_values(result)) for result in compared]
            yield pa.RecordBatch.from_arrays([pa.array(data, pa.string())], list(_COLUMNS))


def _values(log: ComparedLog) -> list[Any]:
    return [log.log, log.due, log.compared, log.ends, log.violations, log.counts]


def _read(values: list[Any]) -> ComparedLog:
    log, due, compared, ends, violations, counts = values
    return ComparedLog(
        *(log, due, compared, [FollowedEnd(*followed) for followed in ends]),
        *([Violation(*violation) for violation in violations], Counter(counts)),
    )
