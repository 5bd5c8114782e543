"""Audits shared subscriptions: the steps of each, from the audits of all its members, in order."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import orjson
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from projections.audit.shared_subscription_audit import SharedAudit
from projections.audit.shared_subscription_steps import SharedStep
from spark.jobs.session_result_rows import OF_RESULTS, SHARED, SessionResults
from spark.runtime.marked_errors import mark_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from projections.audit.rule_table import Violation
    from spark.jobs.log_summary import LogSummary

_COLUMNS: Final = ("node", "session", "data")


def audit_shared(results: DataFrame, logs: Mapping[str, LogSummary], partitions: int) -> DataFrame:
    """Audit the shared subscriptions; input and output are results of session audits."""
    return (
        results.where(F.col("kind") == SHARED)
        .select("node", "session", "at", "data")
        .repartition(partitions, "node", "session")
        .sortWithinPartitions("node", "session", "at")
        .mapInArrow(partial(_audited, dict(logs)), OF_RESULTS)
    )


def _audited(
    logs: Mapping[str, LogSummary], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with mark_errors():
        yield from shared_results(logs, batches)


def shared_results(
    logs: Mapping[str, LogSummary], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of steps sorted by node, shared subscription and position."""
    results = SessionResults()
    for (node, group), rows in groupby(_rows(batches), key=itemgetter(0, 1)):
        log = logs[node]

        def tell(one: Violation, node: str = node, group: str = group) -> None:
            results.violation(one.rule, node, group, one.at, one.what)

        audit = SharedAudit(group, log.whole, log.unsure, tell)
        for _, _, data in rows:
            audit.take(_step(group, data))
        audit.finish()
        yield from results.full()
    yield from results.rest()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, str, bytes]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)


def _step(group: str, data: bytes) -> SharedStep:
    """Return the step with this serialized content."""
    *rest, streams = orjson.loads(data)
    return SharedStep._make((group, *rest, [tuple(one) for one in streams]))
