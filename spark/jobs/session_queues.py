"""The messages queued for sessions that are offline or have a full in-flight window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.format.positions import INDEX_BITS
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from spark.jobs.folding import fold_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from eventstore.format.positions import Run
    from projections.state.single_session import SessionFold
    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

_STRING, _BOOLEAN, _INT, _BIGINT = pa.string(), pa.bool_(), pa.int32(), pa.int64()
_RUN: Final = pa.struct(
    {"first": _BIGINT, "count": _BIGINT, "step": _BIGINT, "qos": _INT, "retain": _BOOLEAN}
)
SCHEMA: Final = pa.schema(
    [
        pa.field("node", _STRING),
        pa.field("session", _STRING),
        pa.field("filter", _STRING),
        pa.field("qos", _INT),
        pa.field("active", _BOOLEAN),
        pa.field("queued", _BIGINT),
        pa.field("queued_bytes", _BIGINT),
        pa.field("oldest", _BIGINT),
        pa.field("newest", _BIGINT),
        pa.field("messages", pa.list_(_RUN)),
    ]
)


def queues(log: Log, begin: StateStarts) -> DataFrame:
    """Return the queues that are not empty at the end of the log, one row for a subscription.

    ``begin`` is the result of :func:`spark.jobs.state_start.state_starts`. Columns: node,
    session, filter, qos, active (still subscribed), queued, queued_bytes, oldest and newest
    (positions of the first and the last message), since (when the first one was published; null if
    that record was cut off), messages (positions, in order, as runs: ``count`` from ``first`` on,
    ``step`` apart).
    """
    found = fold_sessions(log, begin, _rows, SCHEMA)
    published = log.records("node", "seq", "time").withColumnRenamed("time", "since")
    seq = F.shiftright("oldest", INDEX_BITS)
    return (
        found.withColumn("seq", seq).join(published, ["node", "seq"], "left").drop("seq")
    ).select(*(name for name in SCHEMA.names if name != "messages"), "since", "messages")


def _rows(node: str, folded: SessionFold) -> Iterator[dict[str, Any]]:
    if folded.state is None:
        return
    for held in folded.state.waiting.values():
        if (queue := held.queue) is None or (ends := queue.ends()) is None:
            continue
        yield {
            "node": node,
            "session": folded.session,
            "filter": held.filter,
            "qos": held.qos,
            "active": held.active,
            "queued": len(queue),
            "queued_bytes": held.queued_bytes,
            "oldest": ends[0] >> FLAG_BITS,
            "newest": ends[1] >> FLAG_BITS,
            "messages": list(map(_run, queue.runs())),
        }


def _run(run: Run) -> dict[str, Any]:
    first, count, step = (run, 1, 0) if isinstance(run, int) else run[:3]
    return {
        "first": first >> FLAG_BITS,
        "count": count,
        "step": step >> FLAG_BITS,
        "qos": first & QOS_MASK,
        "retain": bool(first & RETAIN_FLAG),
    }
