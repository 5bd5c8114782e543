"""The audit of sessions, one after the other: runs on the executors, over sorted Arrow batches.

For each session the rows contain, in order, its packed events, its expected messages, and the
claims about it. Only one session and its state are in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark.audit.facts import collect_seldom
from spark.audit.session_checker import SessionChecker, SessionMark
from spark.audit.session_result_rows import SessionResults
from spark.runtime import mark_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark.audit.facts import LogSummary

CLAIMED, EXPECTED, HAPPENED, OWED = range(4)
"""Ranks of rows at the same position: their order of processing."""

COLUMNS: Final = (
    "node", "session", "at", "rank", "ref", "time_ms", "topic", "number", "origin", "size",
    "expires", "data", "payload",
)  # fmt: skip
"""``topic`` of a claim is its source, ``data`` its digest. For an owed retained message, ``topic``
is the filter. ``number`` and ``origin`` are as in ``expected_deliveries``."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Common parameters of all tasks."""

    logs: Mapping[str, LogSummary]
    marks: Mapping[str, Sequence[SessionMark]]
    connections: bool
    """Whether to report the connections of sessions."""


def audit_sessions(
    plan: SessionPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of rows sorted by node, session, position, rank.

    See ``session_result_rows``.
    """
    with mark_errors(), collect_seldom():
        yield from _audited(plan, batches)


def _audited(plan: SessionPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    results = SessionResults(connections=plan.connections)
    run: SessionChecker | None = None
    of: tuple[str, str] | None = None
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for row in zip(*columns, strict=True):
            node, session, at, rank, ref, time_ms, topic, *more, data, payload = row
            number, origin, size, expires = more
            if of != (node, session) or run is None:
                if run is not None:
                    run.finish()
                of = node, session
                run = SessionChecker(plan.logs[node], plan.marks.get(node, ()), session, results)
            if rank == HAPPENED:
                run.happened(data, payload)
            elif rank == EXPECTED:
                run.expected(at, ref, topic, time_ms, number, origin, size, expires)
            elif rank == OWED:
                run.owed(at, ref, topic)
            else:
                run.claimed(at, topic, None if data is None else data.decode())
        yield from results.full()
    if run is not None:
        run.finish()
    yield from results.rest()
