"""The facts about sessions for the native jobs, the same for whole and for cut logs.

A *fact* is an entry of the log. A log that was cut begins with a checkpoint: its snapshots become
facts too, as if everything in them had happened at that position. So the jobs need not distinguish
beginnings of logs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from projections.state.snapshot import decode_session
from projections.state.waiting_queue import QOS_MASK, RETAIN_FLAG
from spark.jobs.arrow_batches import arrow_batches_of, ddl
from spark.jobs.session_groups import group_by_session, sorted_by_session
from spark.runtime.marked_errors import marked_iterator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from projections.state.session import InFlight, SessionState
    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

_STRING, _BOOLEAN, _INT, _BIGINT = pa.string(), pa.bool_(), pa.int32(), pa.int64()
_FACTS: Final = pa.schema(
    {
        "node": _STRING,
        "session": _STRING,
        "type": _STRING,
        "position": _BIGINT,
        "time_ms": _BIGINT,
        "resumed": _BOOLEAN,
        "clean": _BOOLEAN,
        "expiry": _BIGINT,
        "topic": _STRING,
        "filter": _STRING,
        "qos": _INT,
        "retain": _BOOLEAN,
        "packet_id": _INT,
        "ref": _BIGINT,
        "will": _BOOLEAN,
    }
)
_SNAPSHOT: Final = ("node", "session", "position", "time_ms", "steady_ms", "state", "last")


def session_facts_of(log: Log, begin: StateStarts, types: Sequence[str]) -> DataFrame:
    """Return the facts of some types.

    ``begin`` is the result of :func:`spark.jobs.state_start.state_starts`. Columns: node,
    session, type, position, time_ms, resumed, clean, expiry, topic, filter, qos, retain, packet_id,
    ref, will, as in the entries of the log.
    """
    told = log.only(types=types).entries(*_FACTS.names)
    partial = begin.partial(log)
    if partial is None:
        return told
    snapshots = partial.only(types=["SessionSnapshot"]).entries(*_SNAPSHOT)
    repeated = sorted_by_session(snapshots.where(begin.repeated())).mapInArrow(
        _snapshot_facts, ddl(_FACTS)
    )
    return told.unionByName(repeated.where(F.col("type").isin(*types)))


def _snapshot_facts(found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from marked_iterator(arrow_batches_of(_facts_of(found), _FACTS))


def _facts_of(found: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for group in group_by_session(found):
        parts: list[Any] = []
        for _, _, position, time_ms, steady_ms, text, last in group.rows:
            parts.append(orjson.loads(text))
            if last:
                state, parts = decode_session(group.session, parts), []
                common = {"node": group.node, "session": group.session, "position": position}
                facts = _facts_in(state, time_ms - steady_ms)
                yield from ({**common, "time_ms": time_ms, **fact} for fact in facts)


def _facts_in(state: SessionState, jumped_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the facts that lead to this state.

    ``jumped_ms`` is the sum of the jumps of the clock, which times in the state lack.
    """
    yield {"type": "SessionOpened", "resumed": False, "clean": state.clean}
    if (will := state.will) is not None:
        about = {"topic": will.topic, "qos": will.qos, "retain": will.retain, "ref": will.ref}
        yield {"type": "WillArmed", **about}
    for pid, sent in itertools.chain(state.inflight.items(), state.releasing.items()):
        yield _sent("Delivered", pid, sent, jumped_ms)
    for pid, sent in state.releasing.items():
        yield _sent("Received", pid, sent, jumped_ms)
    for pid, ref in state.inbound.items():
        about = {"packet_id": pid, "ref": ref, "qos": 2, "will": False}
        yield {"type": "MessagePublished", **about}


def _sent(kind: str, pid: int, sent: InFlight, jumped_ms: int) -> dict[str, Any]:
    return {
        "type": kind,
        "time_ms": sent.sent_ms + jumped_ms,
        "packet_id": pid,
        "ref": sent.ref,
        "qos": sent.flags & QOS_MASK,
        "retain": bool(sent.flags & RETAIN_FLAG),
        "filter": sent.subscription.filter,
    }
