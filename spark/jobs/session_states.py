"""The state of every session, by the fold of ``projections``: whole, and what is in it.

Each table is made of the folded state of one session at a time. ``begin`` is everywhere the result
of :func:`spark.jobs.state_start.state_starts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.format.positions import INDEX_BITS, Run
from projections.state.digests import digest
from projections.state.session import SubscriptionState
from projections.state.single_session import SessionFold
from projections.state.snapshot import encode_session
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from spark.jobs.folding import fold_sessions

if TYPE_CHECKING:
    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

_STRING, _BOOLEAN, _INT, _BIGINT = pa.string(), pa.bool_(), pa.int32(), pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")

_SUBSCRIPTION: Final = pa.struct(
    {
        "filter": _STRING,
        "qos": _INT,
        "active": _BOOLEAN,
        "options": _INT,
        "identifier": _INT,
        "outstanding": _INT,
        "queued": _BIGINT,
        "queued_bytes": _BIGINT,
    }
)
_SESSION: Final = pa.schema(
    {
        "node": _STRING,
        "session": _STRING,
        "connected": _BOOLEAN,
        "clean": _BOOLEAN,
        "generation": _BIGINT,
        "level": _INT,
        "user": _STRING,
        "closed": _TIME,
        "expiry": _BIGINT,
        "last_packet_id": _INT,
        "subscriptions": pa.list_(_SUBSCRIPTION),
        "inflight": _INT,
        "releasing": _INT,
        "inbound": _INT,
        "queued": _BIGINT,
        "queued_bytes": _BIGINT,
        "will": pa.struct(
            {
                "topic": _STRING,
                "qos": _INT,
                "retain": _BOOLEAN,
                "ref": _BIGINT,
                "delay": _BIGINT,
                "grace": _BIGINT,
            }
        ),
        "digest": _STRING,
        "state": _STRING,
    }
)
_RUN: Final = pa.struct(
    {"first": _BIGINT, "count": _BIGINT, "step": _BIGINT, "qos": _INT, "retain": _BOOLEAN}
)
_QUEUE: Final = pa.schema(
    {
        "node": _STRING,
        "session": _STRING,
        "filter": _STRING,
        "qos": _INT,
        "active": _BOOLEAN,
        "queued": _BIGINT,
        "queued_bytes": _BIGINT,
        "oldest": _BIGINT,
        "newest": _BIGINT,
        "messages": pa.list_(_RUN),
    }
)
_PENDING: Final = pa.schema(
    {
        "node": _STRING,
        "session": _STRING,
        "direction": _STRING,
        "packet_id": _INT,
        "state": _STRING,
        "qos": _INT,
        "ref": _BIGINT,
        "filter": _STRING,
        "sent": _TIME,
    }
)
_WILL: Final = pa.schema(
    {
        "node": _STRING,
        "session": _STRING,
        "topic": _STRING,
        "qos": _INT,
        "retain": _BOOLEAN,
        "ref": _BIGINT,
    }
)


def sessions(log: Log, begin: StateStarts) -> DataFrame:
    """Return the existing sessions at the end of the log.

    ``begin`` is the result of :func:`spark.jobs.state_start.state_starts`. Columns: node,
    session, connected, clean, generation, level, user, closed (end of the last connection in steady
    time, without the jumps of the clock; null before the first end), expiry (seconds),
    last_packet_id, subscriptions, inflight, releasing and inbound (packet identifiers in use),
    queued, queued_bytes, will, digest (as the broker computes it, see
    ``projections.state.digests``), state (JSON array of the parts of its snapshot, see
    ``projections.state.snapshot``).
    """
    return fold_sessions(log, begin, _session_rows, _SESSION)


def session_texts_of(folded: SessionFold) -> list[bytes] | None:
    """Return the JSON of a state's snapshot, one text for each part; None without a state."""
    return None if folded.state is None else list(map(orjson.dumps, encode_session(folded.state)))


def _session_rows(node: str, folded: SessionFold) -> Iterator[dict[str, Any]]:
    state, texts = folded.state, session_texts_of(folded)
    if state is None or texts is None:
        return
    will = state.will
    yield {
        "node": node,
        "session": state.session,
        "connected": state.connected,
        "clean": state.clean,
        "generation": state.generation,
        "level": state.level,
        "user": state.user,
        "closed": state.closed_ms * 1000 or None,
        "expiry": state.expiry,
        "last_packet_id": state.last_pid,
        "subscriptions": [_subscription(held) for held in state.subscriptions.values()],
        "inflight": len(state.inflight),
        "releasing": len(state.releasing),
        "inbound": len(state.inbound),
        "queued": state.queued,
        "queued_bytes": state.queued_bytes,
        "will": None if will is None else will._asdict(),
        "digest": digest(texts, folded.pending.values()),
        "state": f"[{b','.join(texts).decode()}]",
    }


def _subscription(held: SubscriptionState) -> dict[str, Any]:
    return {
        "filter": held.filter,
        "qos": held.qos,
        "active": held.active,
        "options": held.options,
        "identifier": held.identifier,
        "outstanding": held.outstanding,
        "queued": len(held.queue or ()),
        "queued_bytes": held.queued_bytes,
    }


def pending(log: Log, begin: StateStarts) -> DataFrame:
    """Return the packet identifiers in use at the end of the log.

    Columns: node, session, direction (``out``: to the client), packet_id, state (``inflight``:
    PUBACK or PUBREC is awaited, ``releasing``: PUBCOMP, ``inbound``: PUBREL), qos, ref (position of
    the message), filter (of the subscription; null for inbound messages), since (when it was last
    sent, or received; if that record was cut off, when the checkpoint repeated it).
    """
    packets = fold_sessions(log, begin, _pending_rows, _PENDING, clock=True)
    timed, key = _with_time_of(log, packets, "ref"), ["node", "session"]
    if begin.whole:
        snapshots = log.only(types=["SessionSnapshot"]).entries(*key, "position", "time")
        newest = (
            snapshots.where(begin.repeated()).groupBy(*key).agg(F.max("time").alias("repeated"))
        )
        timed = timed.join(newest, key, "left")
    times = ("sent", "since", "repeated") if begin.whole else ("sent", "since")
    return timed.select(*_PENDING.names[:-1], F.coalesce(*times).alias("since"))


def queues(log: Log, begin: StateStarts) -> DataFrame:
    """Return the queues that are not empty at the end of the log, one row for a subscription.

    Columns: node, session, filter, qos, active (still subscribed), queued, queued_bytes, oldest and
    newest (positions of the first and the last message), since (when the first one was published;
    null if that record was cut off), messages (positions, in order, as runs: ``count`` from
    ``first`` on, ``step`` apart).
    """
    folded = fold_sessions(log, begin, _queue_rows, _QUEUE)
    return _with_time_of(log, folded, "oldest").select(*_QUEUE.names[:-1], "since", "messages")


def wills(log: Log, begin: StateStarts) -> DataFrame:
    """Return the wills that are armed at the end of the log, with their payloads.

    Columns: node, session, topic, qos, retain, ref (position of the WillArmed), delay (seconds;
    null if that record was cut off), size, payload (both null if the log no longer has it).
    """
    folded = fold_sessions(log, begin, _will_rows, _WILL)
    # Payloads of records that are cut off are carried over: just before the cut, which may be later
    # than the moment for which the wills are wanted.
    columns = ("node", "position", "ref", "delay", "payload")
    there = log.only(types=["WillArmed"]).entries(*columns)
    if begin.whole:
        carried = log.to_its_end().only(types=["MessagesCarried"]).entries(*columns)
        there = there.unionByName(carried)
    payloads = (
        there.groupBy("node", F.coalesce("ref", "position").alias("ref"))
        # Payloads carried over several cuts are equal.
        .agg(F.max("delay").alias("delay"), F.first("payload").alias("payload"))
    )
    return folded.join(payloads, ["node", "ref"], "left").select(
        *_WILL.names, "delay", F.length("payload").alias("size"), "payload"
    )


def _with_time_of(log: Log, rows: DataFrame, column: str) -> DataFrame:
    """Add the time of the record at a position, as ``since``; null if it was cut off."""
    published = log.records("node", "seq", "time").withColumnRenamed("time", "since")
    numbered = rows.withColumn("seq", F.shiftright(column, INDEX_BITS))
    return numbered.join(published, ["node", "seq"], "left")


def _pending_rows(node: str, folded: SessionFold) -> Iterator[dict[str, Any]]:
    state = folded.state
    if state is None:
        return
    for name, packets in (("inflight", state.inflight), ("releasing", state.releasing)):
        for packet_id, sent in packets.items():
            yield {
                "node": node,
                "session": folded.session,
                "direction": "out",
                "packet_id": packet_id,
                "state": name,
                "qos": sent.flags & QOS_MASK,
                "ref": sent.ref,
                "filter": sent.subscription.filter,
                "sent": sent.sent_ms * 1000,
            }
    for packet_id, ref in state.inbound.items():
        yield {
            "node": node,
            "session": folded.session,
            "direction": "in",
            "packet_id": packet_id,
            "state": "inbound",
            "qos": 2,
            "ref": ref,
        }


def _will_rows(node: str, folded: SessionFold) -> Iterator[dict[str, Any]]:
    if folded.state is not None and (will := folded.state.will) is not None:
        yield {"node": node, "session": folded.session, **will._asdict()}


def _queue_rows(node: str, folded: SessionFold) -> Iterator[dict[str, Any]]:
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
