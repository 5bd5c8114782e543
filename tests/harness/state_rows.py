"""The state of the broker's own fold, as the rows that Spark must rebuild from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eventstore.format.events import WillArmed
from eventstore.format.node_events import MessagesCarried
from eventstore.format.positions import Position, from_runs, position
from eventstore.format.records import Record, payload_bounds
from projections.state.digests import retained_digest, session_digest, session_texts
from projections.state.node_state import NodeState
from projections.state.session import InFlight, SessionState
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from spark.jobs.jobs import rebuild
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = tuple[Any, ...]


def state_rows(
    node: str, state: NodeState, payloads: Mapping[Position, bytes]
) -> dict[str, list[Row]]:
    """For each job of `rebuild`, its rows; `payloads` are those of wills, by position."""
    return {
        "sessions": list(_sessions(node, state)),
        "retained": list(_retained(node, state)),
        "pending": [
            row for name, one in state.sessions.items() for row in _pending(node, name, one)
        ],
        "queues": list(_queues(node, state)),
        "wills": list(_wills(node, state, payloads)),
    }


def rebuilt_rows(log: Log, job: str) -> list[Row]:
    """What Spark rebuilds, as `state_rows` has it."""
    table = rebuild(log, job)
    if job != "pending":
        found = _rows(table, *_COLUMNS[job])
        return found if job != "queues" else [(*row[:-1], _spread(row[-1])) for row in found]
    columns = _COLUMNS[job]
    found = _rows(
        table.selectExpr(*columns, "unix_millis(since) as since_ms"), *columns, "since_ms"
    )
    # Of what came in the fold does not know when.
    return [row[:-1] if row[columns.index("direction")] == "in" else row for row in found]


def assert_same(found: Iterable[Row], wanted: Iterable[Row]) -> None:
    """Row by row, as often as they are there."""
    found, wanted = Counter(found), Counter(wanted)
    assert not found - wanted
    assert not wanted - found


_COLUMNS = {
    "sessions": (
        "node", "session", "connected", "clean", "generation", "user", "last_packet_id",
        "inflight", "releasing", "inbound", "queued", "queued_bytes", "will", "digest", "state",
    ),
    "retained": ("node", "topic", "qos", "ref", "size", "payload", "digest"),
    "pending": ("node", "session", "direction", "packet_id", "state", "qos", "ref", "filter"),
    "queues": (
        "node", "session", "filter", "qos", "active", "queued", "queued_bytes", "oldest", "newest",
        "messages",
    ),
    "wills": ("node", "session", "topic", "qos", "retain", "ref", "size", "payload"),
}  # fmt: skip


def _rows(table: DataFrame, *columns: str) -> list[Row]:
    return [tuple(map(_plain, row)) for row in table.select(*columns).collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value


def _spread(runs: Iterable[Row]) -> Row:
    return tuple(
        (first + number * step, qos, retain)
        for first, count, step, qos, retain in runs
        for number in range(count)
    )


def _sessions(node: str, state: NodeState) -> Iterator[Row]:
    for name, one in state.sessions.items():
        texts = session_texts(state, name) or []
        yield (
            node,
            name,
            one.connected,
            one.clean,
            one.generation,
            one.user,
            one.last_pid,
            len(one.inflight),
            len(one.releasing),
            len(one.inbound),
            one.queued,
            one.queued_bytes,
            tuple(one.will) if one.will is not None else None,
            session_digest(state, name),
            f"[{','.join(text.decode() for text in texts)}]",
        )


def _retained(node: str, state: NodeState) -> Iterator[Row]:
    for one in state.retained.all():
        size, digest = len(one.payload), retained_digest(one)
        yield (node, one.topic, one.qos, one.ref, size, one.payload, digest)


def _pending(node: str, name: str, state: SessionState) -> Iterator[Row]:
    def sent(pid: int, one: InFlight, what: str) -> Row:
        held = one.subscription.filter
        return (node, name, "out", pid, what, one.flags & QOS_MASK, one.ref, held, one.sent_ms)

    for pid, one in state.inflight.items():
        yield sent(pid, one, "inflight")
    for pid, one in state.releasing.items():
        yield sent(pid, one, "releasing")
    for pid, ref in state.inbound.items():
        yield (node, name, "in", pid, "inbound", 2, ref, None)


def _queues(node: str, state: NodeState) -> Iterator[Row]:
    for name, one in state.sessions.items():
        for held in one.subscriptions.values():
            if held.queue:
                messages = [
                    (packed >> FLAG_BITS, packed & QOS_MASK, bool(packed & RETAIN_FLAG))
                    for packed in held.queue
                ]
                yield (
                    node,
                    name,
                    held.filter,
                    held.qos,
                    held.active,
                    len(messages),
                    held.queued_bytes,
                    messages[0][0],
                    messages[-1][0],
                    tuple(messages),
                )


def _wills(node: str, state: NodeState, payloads: Mapping[Position, bytes]) -> Iterator[Row]:
    for name, one in state.sessions.items():
        if one.will is not None:
            payload = payloads.get(one.will.ref)
            size = None if payload is None else len(payload)
            yield (node, name, *one.will[:4], size, payload)


def will_payloads(record: Record) -> Iterator[tuple[Position, bytes]]:
    """The payloads that a record holds of wills, or carries over a cut of the log."""
    area = record.payload
    for index, event in record.events():
        if isinstance(event, WillArmed):
            at = position(record.sequence, index)
            yield at, bytes(area[event.at : event.at + event.size])
        elif isinstance(event, MessagesCarried):
            bounds = payload_bounds(event)
            for number, ref in enumerate(from_runs(event.refs)):
                yield ref, bytes(area[bounds[number] : bounds[number + 1]])
