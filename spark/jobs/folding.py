"""Folds the events of a log session by session, with the fold of ``projections``.

Events are sorted by session and streamed through Python in Arrow batches, so that the same code as
in the broker folds them. One state is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import UnreadableEvent, parse_event
from eventstore.format.events import SessionExpired
from eventstore.format.fast_parse import parse_frequent
from eventstore.format.node_events import RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import Position, format_position, sequence_of
from projections.state.session import EVOLVE, SessionState
from projections.state.single_session import SessionFold
from spark.jobs.fact_schema import arrow_batches_of, ddl
from spark.runtime.marked_errors import marked_iterator

if TYPE_CHECKING:
    import pyarrow as pa

    from spark.jobs.state_start import StateStarts
    from spark.tables.log import Log

TYPES: Final = tuple(
    sorted(kind.__name__ for kind in (*EVOLVE, SessionExpired, SessionSnapshot, RetainedSnapshot))
)
"""The events that a session is folded from."""
_COLUMNS: Final = ("node", "session", "position", "steady_ms", "time_ms")
_CONTRADICTIONS: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError)


Row: TypeAlias = tuple[Any, ...]
"""Node, session, position, steady time, time, JSON and payload of an event."""


def fold_sessions(
    log: Log,
    begin: StateStarts,
    rows_of: Callable[[str, SessionFold], Iterable[dict[str, Any]]],
    schema: pa.Schema,
    *,
    clock: bool = False,
) -> DataFrame:
    """Fold every session and return the rows that ``rows_of`` makes of (node, its fold).

    ``begin`` is the result of :func:`spark.jobs.state_start.state_starts`. With ``clock``, the
    times in the states are those of the clock, with its jumps. The job fails with CorruptLog or
    UnreadableEvent if events contradict each other or cannot be read.
    """
    run = partial(_folded, begin=begin, rows_of=rows_of, schema=schema, clock=clock)
    by_session = (
        _session_events(log, begin)
        .repartition("node", "session")
        .sortWithinPartitions(
            F.xxhash64("node", "session"),  # one number distinguishes most sessions
            *("node", "session", "position"),
        )
    )
    return by_session.mapInArrow(run, ddl(schema))


def _session_events(log: Log, begin: StateStarts) -> DataFrame:
    """Return the events that sessions are folded from, as ``Row``.

    The payload is there only where it is needed.
    """
    kind = F.col("type")
    repeated = kind.isin("SessionSnapshot", "RetainedSnapshot")
    events = (
        log.only(types=TYPES)
        .events(*_COLUMNS, "type", "json", "payload")
        .where(F.col("session").isNotNull() & (~repeated | begin.repeated()))
    )
    payload = F.when(_is_retained_at_release(), F.col("payload")).alias("payload")
    return events.select(*_COLUMNS, "json", payload)


def _is_retained_at_release() -> Column:
    """Return a column: whether an event may be of messages that are retained with their PUBREL.

    JSON is not parsed for it: that of the log has no white space, and no text in it contains an
    unescaped quote.
    """
    kind, text = F.col("type"), F.col("json")
    published = text.contains('"retain":true') & text.contains('"qos":2')
    return (kind == "RetainedSnapshot") | ((kind == "MessagePublished") & published)


def fold_session(
    session: str, rows: Iterable[Row], whole: Position, *, clock: bool = False
) -> SessionFold:
    """Fold the events of one session. Raises CorruptLog, UnreadableEvent."""
    folded = SessionFold(session, whole)
    for node, _, at, steady_ms, time_ms, text, payload in rows:
        try:
            raw = orjson.loads(text)
            event = parse_frequent(raw) or parse_event(raw)
            folded.take(event, at, time_ms if clock else steady_ms, payload)
            if clock and isinstance(event, SessionSnapshot) and event.last:
                _shift(folded.state, time_ms - steady_ms)
        except UnreadableEvent as error:
            raise type(error)(f"node {node}, position {format_position(at)}: {error}") from None
        except _CONTRADICTIONS as error:
            what = f"of node {node} holds an event that does not fit: {type(error).__name__}"
            raise CorruptLog(sequence_of(at), what) from error
    return folded


def _shift(state: SessionState | None, jumped_ms: int) -> None:
    """Add the jumps of the clock to the times of a snapshot, which lack them."""
    if state is None or not jumped_ms:
        return
    for packets in (state.inflight, state.releasing):
        for packet_id, sent in packets.items():
            packets[packet_id] = sent._replace(sent_ms=sent.sent_ms + jumped_ms)
    for held in state.replays.values():
        if held.replay is not None:
            held.replay.reached_ms += jumped_ms


def _folded(
    batches: Iterable[pa.RecordBatch],
    *,
    begin: StateStarts,
    rows_of: Callable[[str, SessionFold], Iterable[dict[str, Any]]],
    schema: pa.Schema,
    clock: bool,
) -> Iterator[pa.RecordBatch]:
    events = chain.from_iterable(
        zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches
    )
    rows = (
        row
        for (node, session), group in groupby(events, itemgetter(0, 1))
        for row in rows_of(node, fold_session(session, group, begin.of(node), clock=clock))
    )
    yield from marked_iterator(arrow_batches_of(rows, schema))
