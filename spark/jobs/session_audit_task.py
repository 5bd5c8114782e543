"""The audit of sessions, one after the other: runs on the executors, over sorted Arrow batches.

For each session the rows contain, in order, its packed events, its expected messages (packed or
one by one, see ``expected_deliveries``), and the claims about it. Only one session and its state
are in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark.jobs.session_checker import Row, SessionChecker, SessionMark
from spark.jobs.session_result_rows import SessionResults
from spark.runtime.machine import reduce_collections
from spark.runtime.marked_errors import mark_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from projections.audit.home_rule import LogPlace
    from spark.jobs.log_summary import LogSummary

_INTEGERS: Final = ("rank", "at", "ref", "time_ms", "number", "origin", "size", "expires")
COLUMNS: Final = {
    "node": "string", "session": "string", "at": "bigint", "rank": "int", "ref": "bigint",
    "time_ms": "bigint", "topic": "string", "number": "int", "origin": "bigint",
    "size": "bigint", "expires": "bigint", "data": "binary", "payload": "binary",
}  # fmt: skip
"""Columns of the rows for the audit of sessions. ``topic`` of a claim is its source, ``data`` its
digest. For an owed retained message, ``topic`` is the filter. ``number`` and ``origin`` are as in
``expected_deliveries``."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Common parameters of all tasks."""

    logs: Mapping[str, LogSummary]
    marks: Mapping[str, Sequence[SessionMark]]
    connections: bool
    """Whether to report the connections of sessions."""
    places: Mapping[str, LogPlace] = field(default_factory=dict)
    """The places of logs among those of their brokers, by node."""


def audit_sessions(
    plan: SessionPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of rows sorted by node, session, position, rank.

    See ``session_result_rows``.
    """
    with mark_errors(), reduce_collections():
        yield from session_results(plan, batches)


def session_results(
    plan: SessionPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what :func:`audit_sessions` does, in this process."""
    results = SessionResults(connections=plan.connections)
    run: SessionChecker | None = None
    of: tuple[str, str] | None = None
    for batch in batches:
        for node, session, rows in _by_session(batch):
            if of != (node, session) or run is None:
                if run is not None:
                    run.finish()
                of = node, session
                run = SessionChecker(
                    *(plan.logs[node], plan.marks.get(node, ()), session, results),
                    plan.places.get(node),
                )
            run.take(rows)
        yield from results.full()
    if run is not None:
        run.finish()
    yield from results.rest()


def _by_session(batch: pa.RecordBatch) -> Iterator[tuple[str, str, Iterator[Row]]]:
    """Yield the rows of a batch for each session: node, session, rows."""
    count = batch.num_rows
    if not count:
        return
    (nodes, of_node), (sessions, of_session) = (
        _texts(batch.column(name)) for name in ("node", "session")
    )
    other = (of_node[1:] != of_node[:-1]) | (of_session[1:] != of_session[:-1])
    topics, of_topic = _texts(batch.column("topic"))
    columns: dict[str, list[Any]] = {name: _integers(batch.column(name)) for name in _INTEGERS}
    columns["topic"] = [topics[number] for number in of_topic.tolist()]
    for name in ("data", "payload"):
        columns[name] = batch.column(name).to_pylist()
    ordered = [
        columns[name]
        for name in (
            "rank", "at", "ref", "topic", "time_ms", "number", "origin", "size", "expires",
            "data", "payload",
        )
    ]  # fmt: skip
    for start, stop in pairwise([0, *(np.flatnonzero(other) + 1).tolist(), count]):
        rows = zip(*(column[start:stop] for column in ordered), strict=True)
        yield nodes[of_node[start]], sessions[of_session[start]], rows


def _texts(column: pa.Array) -> tuple[list[Any], Any]:
    """Return the distinct values of a column, and for each row the index of its value."""
    known = column.dictionary_encode()
    values = known.dictionary.to_pylist()
    index = known.indices
    if index.null_count:
        index = index.fill_null(len(values))
        values.append(None)
    return values, index.to_numpy(zero_copy_only=False)


def _integers(column: pa.Array) -> list[int]:
    """Return a column of integers, 0 for null."""
    if column.null_count:
        column = column.fill_null(0)
    found: list[int] = column.to_numpy(zero_copy_only=False).tolist()
    return found
