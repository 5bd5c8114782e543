"""The audit of sessions, one after the other: runs on the executors, over sorted Arrow batches.

Of each session come in order its packed events, the messages that it had to get, and what is
claimed of it. One session is in memory at a time, and of it what its state holds.
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
"""Ranks of rows at the same position: the order in which they are taken."""

COLUMNS: Final = (
    "node", "session", "at", "rank", "ref", "time_ms", "topic", "number", "origin", "size",
    "expires", "data", "payload",
)  # fmt: skip
"""``topic`` of a claim is its source, ``data`` its digest. Of a retained message that is owed,
``topic`` is the filter. ``number`` and ``origin`` are as in ``expected_deliveries``."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What every task needs to know."""

    logs: Mapping[str, LogSummary]
    marks: Mapping[str, Sequence[SessionMark]]
    connections: bool
    """To tell when sessions had connections."""


def audit_sessions(
    plan: SessionPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what is found, see ``results``; rows come sorted by node, session, position, rank."""
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
