"""Folds the events of a log session by session, with the fold of ``projections``.

Events are sorted by session and streamed through Python in Arrow batches, so that the same code as
in the broker folds them. One state is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import Event, UnreadableEvent, parse_event
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
    return sorted_by_session(session_events(log, begin)).mapInArrow(run, ddl(schema))


def session_events(log: Log, begin: StateStarts) -> DataFrame:
    """Return the events that sessions are folded from.

    Columns: node, session, position, steady_ms, time_ms, json, payload (only where it is needed).
    """
    kind = F.col("type")
    repeated = kind.isin("SessionSnapshot", "RetainedSnapshot")
    events = (
        log.only(types=TYPES)
        .events(*_COLUMNS, "type", "json", "payload")
        .where(F.col("session").isNotNull() & (~repeated | begin.repeated()))
    )
    payload = F.when(_looked_at(), F.col("payload")).alias("payload")
    return events.select(*_COLUMNS, "json", payload)


def _looked_at() -> Column:
    """Return a column: whether the payload of an event is needed (retained at QoS 2, or a will).

    JSON is not parsed for it: that of the log has no white space, and no text in it contains an
    unescaped quote.
    """
    kind, text = F.col("type"), F.col("json")
    retained = text.contains('"retain":true') & text.contains('"qos":2')
    published = (kind == "MessagePublished") & (retained | text.contains('"will":true'))
    return published | kind.isin("RetainedSnapshot", "WillArmed")


def fold_session(group: SessionGroup, whole: Position, *, clock: bool = False) -> SessionFold:
    """Fold the rows of one session. Raises CorruptLog, UnreadableEvent."""
    folded = SessionFold(group.session, whole)
    for node, _, at, steady_ms, time_ms, text, payload in group.rows:
        with report_contradictions(node, at):
            event = parse_event_json(text, node, at)
            folded.take(event, at, time_ms if clock else steady_ms, payload)
            if clock and isinstance(event, SessionSnapshot) and event.last:
                _shift(folded.state, time_ms - steady_ms)
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


@contextmanager
def report_contradictions(node: str, at: Position) -> Iterator[None]:
    """Raise CorruptLog if the fold fails on an event that contradicts the state."""
    try:
        yield
    except _CONTRADICTIONS as error:
        what = f"of node {node} holds an event that does not fit: {type(error).__name__}"
        raise CorruptLog(sequence_of(at), what) from error


def parse_event_json(text: str, node: str, at: Position) -> Event:
    """Return the event of a column ``json``. Raises UnreadableEvent, naming its place."""
    try:
        raw = orjson.loads(text)
        return parse_frequent(raw) or parse_event(raw)
    except UnreadableEvent as error:
        raise type(error)(f"node {node}, position {format_position(at)}: {error}") from None


def _folded(
    batches: Iterable[pa.RecordBatch],
    *,
    begin: StateStarts,
    rows_of: Callable[[str, SessionFold], Iterable[dict[str, Any]]],
    schema: pa.Schema,
    clock: bool,
) -> Iterator[pa.RecordBatch]:
    rows = (
        row
        for group in group_by_session(batches)
        for row in rows_of(group.node, fold_session(group, begin.of(group.node), clock=clock))
    )
    yield from marked_iterator(arrow_batches_of(rows, schema))


Row: TypeAlias = tuple[Any, ...]

_KEY = itemgetter(0, 1)


class SessionGroup(NamedTuple):
    """The rows of a session; iterate them before taking the next group."""

    node: str
    session: str
    rows: Iterator[Row]
    """All columns, including node and session."""


def sorted_by_session(rows: DataFrame, *then: str) -> DataFrame:
    """Sort rows by session, and within each session by position.

    The first columns are node and session; there is one named position. ``then`` are columns that
    order rows of the same position.
    """
    return rows.repartition("node", "session").sortWithinPartitions(
        F.xxhash64("node", "session"),  # one number distinguishes most sessions
        "node",
        "session",
        "position",
        *then,
    )


def group_by_session(batches: Iterable[pa.RecordBatch]) -> Iterator[SessionGroup]:
    """Yield the sessions in batches of rows sorted by session."""
    rows = chain.from_iterable(map(_rows, batches))
    for (node, session), session_rows in groupby(rows, _KEY):
        yield SessionGroup(node, session, session_rows)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
