"""The state of every session, by the fold of ``projections``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from projections.state.digests import digest
from projections.state.snapshot import encode_session
from spark.jobs.folding import fold_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from projections.state.session import SubscriptionState
    from projections.state.single_session import SessionFold
    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

_STRING, _BOOLEAN, _INT, _BIGINT = pa.string(), pa.bool_(), pa.int32(), pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        pa.field("node", _STRING),
        pa.field("session", _STRING),
        pa.field("connected", _BOOLEAN),
        pa.field("clean", _BOOLEAN),
        pa.field("generation", _BIGINT),
        pa.field("level", _INT),
        pa.field("user", _STRING),
        pa.field("closed", _TIME),
        pa.field("expiry", _BIGINT),
        pa.field("last_packet_id", _INT),
        pa.field(
            "subscriptions",
            pa.list_(
                pa.struct(
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
            ),
        ),
        pa.field("inflight", _INT),
        pa.field("releasing", _INT),
        pa.field("inbound", _INT),
        pa.field("queued", _BIGINT),
        pa.field("queued_bytes", _BIGINT),
        pa.field(
            "will",
            pa.struct(
                {
                    "topic": _STRING,
                    "qos": _INT,
                    "retain": _BOOLEAN,
                    "ref": _BIGINT,
                    "delay": _BIGINT,
                    "grace": _BIGINT,
                }
            ),
        ),
        pa.field("digest", _STRING),
        pa.field("state", _STRING),
    ]
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
    return fold_sessions(log, begin, _rows, SCHEMA)


def session_texts_of(folded: SessionFold) -> list[bytes] | None:
    """Return the JSON of a state's snapshot, one text for each part; None without a state."""
    return None if folded.state is None else list(map(orjson.dumps, encode_session(folded.state)))


def _rows(node: str, folded: SessionFold) -> Iterator[dict[str, Any]]:
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
