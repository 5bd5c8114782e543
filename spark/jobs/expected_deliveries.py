"""The messages that each session must get: joins of messages that took effect with subscriptions.

If a log has few subscriptions, as nearly all have, each task holds all of them in memory and joins
in Python, message by message: this takes a fraction of the processor time of Spark's joins, and few
rows are transferred. Otherwise the joins are native: Python sees each subscription once, and for
filters with wildcards each topic once.

A session subscribes to a filter from one position to another, and may do so a million times in the
life of a log, each time for a moment. To compare a message with few of them, the native join cuts
positions into *bins*, as wide as a subscription to the filter lasts on average: then a subscription
lies in about two of them, and a message in one. Turns are the unit: a subscription exists in the
whole of each.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.format.positions import INDEX_BITS
from projections.audit.subscription_spans import SubscriptionSpans
from protocol.mqtt.topic_trie import FilterTrie
from spark.jobs.event_codec import unpack_events
from spark.jobs.expected_packs import EFFECT_COLUMNS, REQUIRED, ExpectedPacks
from spark.jobs.fact_schema import CARRIED, EFFECT, RELEASED, SENT, SPANS
from spark.runtime.machine import reduce_collections
from spark.runtime.marked_errors import mark_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from eventstore.format.positions import Position
    from projections.audit.subscription_spans import SubscriptionSpan
    from spark.jobs.expected_packs import SpanRow
    from spark.jobs.fact_tables import FactTables
    from spark.jobs.log_summary import LogSummary

_SPANS = (
    "node string, session string, filter string, qos int, since bigint, until bigint, "
    "begins bigint, ends bigint, no_local boolean"
)
_SPANS_SCHEMA = pa.schema(
    [
        ("node", pa.string()),
        ("session", pa.string()),
        ("filter", pa.string()),
        ("qos", pa.int32()),
        ("since", pa.int64()),
        ("until", pa.int64()),
        ("begins", pa.int64()),
        ("ends", pa.int64()),
        ("no_local", pa.bool_()),
    ]
)
_PAIRS = "node string, topic string, filter string"
_PAIRS_SCHEMA = pa.schema([(name, pa.string()) for name in ("node", "topic", "filter")])
_ROWS = 8192
FEW_SPANS: Final = 50_000
"""Number of changes of subscriptions up to which each task has all of them in memory."""
_PACKS: Final = "node string, session string, at bigint, data binary"
_PACKS_SCHEMA: Final = pa.schema(
    [("node", pa.string()), ("session", pa.string()), ("at", pa.int64()), ("data", pa.binary())]
)
_PACKED: Final = 16_384
"""Number of expectations that are collected before they are packed."""


class PublishedMessages(NamedTuple):
    """Published messages."""

    effects: DataFrame
    """(node, at, turn, ref, time_ms, level, publisher, origin, topic, size, expires): a row for
    each time that a message took effect.

    ``turn`` is the position where that turn begins, ``level`` the QoS, 1 or 2, ``publisher`` a
    client identifier, ``origin`` a hash of it."""
    released: DataFrame | None
    """Those of them with a separate release, with ``number`` and ``digest``; None: there are
    none."""


def published_messages(facts: FactTables) -> PublishedMessages:
    """Return the positions where QoS 1 and 2 messages took effect."""
    here = _effects(facts.of(EFFECT), "topic", "size", "expires")
    if not facts.has(RELEASED):
        return PublishedMessages(here, None)
    # A repetition after a cut may contain less: the row with the payload determines the retained
    # message.
    told = F.max(F.struct("number", "digest", "topic", "size", "expires")).alias("told")
    waiting = (
        facts.of(SENT, CARRIED).groupBy("node", "ref").agg(told).select("node", "ref", "told.*")
    )
    released = _effects(facts.of(RELEASED)).join(waiting, ["node", "ref"])
    return PublishedMessages(here.unionByName(released.select(here.columns)), released)


def _effects(told: DataFrame, *more: str) -> DataFrame:
    part = F.shiftright("number", 2).cast("bigint")
    sequence = F.shiftright("at", INDEX_BITS)
    return told.select(
        "node",
        "at",
        F.shiftleft(sequence - part, INDEX_BITS).alias("turn"),
        "ref",
        "time_ms",
        F.col("number").bitwiseAND(3).alias("level"),
        F.col("session").alias("publisher"),
        F.xxhash64("session").alias("origin"),
        *more,
    )


def subscription_spans(
    facts: FactTables, logs: Mapping[str, LogSummary], partitions: int
) -> DataFrame:
    """Return the spans in which each filter of a session was subscribed to, at QoS 1 or 2."""
    told = (
        _span_events(facts, logs)
        .repartition(partitions, "node", "session")
        .sortWithinPartitions("node", "session", "at")
    )
    return told.mapInArrow(partial(_spans, _known(logs)), _SPANS)


def few_subscription_spans(
    facts: FactTables, logs: Mapping[str, LogSummary]
) -> list[SpanRow] | None:
    """Return what :func:`subscription_spans` does as a list; None if there are too many."""
    if facts.counts.get(SPANS, 0) > FEW_SPANS:
        return None
    return spans_of_facts((tuple(row) for row in _span_events(facts, logs).collect()), logs)


def spans_of_facts(
    facts: Iterable[tuple[str, str, Position, bytes]], logs: Mapping[str, LogSummary]
) -> list[SpanRow]:
    """Return the spans of the facts (node, session, at, data) of a small log."""
    events = ((node, session, bytes(data)) for node, session, _, data in sorted(facts))
    return [one for some in _spans_of(_known(logs), events) for one in some]


def _span_events(facts: FactTables, logs: Mapping[str, LogSummary]) -> DataFrame:
    counts = (F.col("number") == 0) | (F.col("at") < position_of("whole", logs))
    return facts.of(SPANS).where(counts).select("node", "session", "at", "data")


def _known(logs: Mapping[str, LogSummary]) -> dict[str, tuple[Position, Position]]:
    return {node: (log.whole, log.end) for node, log in logs.items()}


def position_of(what: str, logs: Mapping[str, LogSummary]) -> Column:
    """Return a field of ``LogSummary`` as a column, by the column ``node``; 0 for unknown nodes."""
    nodes: dict[int, list[str]] = {}
    for node, log in logs.items():
        nodes.setdefault(getattr(log, what), []).append(node)
    nothing = F.lit(0).cast("bigint")
    found: Column | None = None
    for value, some in nodes.items():
        there, told = F.col("node").isin(some), F.lit(value).cast("bigint")
        found = F.when(there, told) if found is None else found.when(there, told)
    return nothing if found is None else found.otherwise(nothing)


def _spans(
    known: Mapping[str, tuple[Position, Position]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    with mark_errors():
        for some in _spans_of(known, _rows(batches)):
            rows += some
            if len(rows) >= _ROWS:
                yield _batch(rows, _SPANS_SCHEMA)
                rows.clear()
        if rows:
            yield _batch(rows, _SPANS_SCHEMA)


def _spans_of(
    known: Mapping[str, tuple[Position, Position]], events: Iterable[tuple[str, str, bytes]]
) -> Iterator[Iterator[SpanRow]]:
    """Yield the spans of (node, session, packed events), which are in order."""
    for (node, session), some in groupby(events, key=itemgetter(0, 1)):
        whole, end = known[node]
        held = SubscriptionSpans(session, whole)
        for _, _, data in some:
            for at, time_ms, part, event in unpack_events(session, data):
                held.take(event, at, time_ms, part)
            yield _span_rows(node, session, held.ended(), end)
        yield _span_rows(node, session, held.finish(), end)


def _span_rows(
    node: str, session: str, spans: Iterable[SubscriptionSpan], end: Position
) -> Iterator[SpanRow]:
    """Yield the spans at QoS 1 or 2; open ones extend to the end of the log."""
    for topic_filter, qos, since, until, begins, ends, no_local in spans:
        if not qos:
            continue
        if until is None or ends is None:
            yield node, session, topic_filter, qos, since, end, begins, end, no_local
        else:
            yield node, session, topic_filter, qos, since, until, begins, ends, no_local


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, str, bytes]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("node", "session", "data"))
        yield from zip(*columns, strict=True)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---------------------------------------------------------------------------- topics to filters


def with_wildcard(name: str) -> Column:
    """Return whether a filter has a wildcard."""
    return F.col(name).contains("+") | F.col(name).contains("#")


def topics_to_filters(
    topics: DataFrame, filters: DataFrame, wild: Mapping[str, Collection[str]]
) -> DataFrame:
    """Return (node, topic, filter) for all distinct topics and filters that match.

    ``topics`` has the columns node and topic, ``filters`` node and filter, both without duplicates.
    ``wild`` are the filters with wildcards of each node, perhaps with some that are not in
    ``filters``; the driver holds them anyway, and so no job of Spark has to collect them.
    """
    exact = filters.where(~with_wildcard("filter")).select(
        "node", F.col("filter").alias("topic"), "filter"
    )
    if not wild:
        return exact
    shared = filters.sparkSession.sparkContext.broadcast(wild)

    def matched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _matched(shared.value, batches)

    return exact.unionByName(topics.select("node", "topic").mapInArrow(matched, _PAIRS))


def _matched(
    filters: Mapping[str, Collection[str]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    tries: dict[str, FilterTrie[str]] = {}
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("node", "topic"))
        for node, topic in zip(*columns, strict=True):
            trie = tries.get(node)
            if trie is None:
                trie = tries[node] = FilterTrie()
                for topic_filter in filters.get(node, ()):
                    trie.insert(topic_filter, None, topic_filter)
            rows += [(node, topic, topic_filter) for topic_filter in trie.match(topic)]
            if len(rows) >= _ROWS:
                yield _batch(rows, _PAIRS_SCHEMA)
                rows.clear()
    if rows:
        yield _batch(rows, _PAIRS_SCHEMA)


# -------------------------------------------------------------------------------- expectations


def expected_deliveries_of(
    effects: DataFrame, held: DataFrame, wild: Mapping[str, Collection[str]]
) -> DataFrame:
    """Return the possible deliveries.

    The rows are (node, session, at, ref, time_ms, topic, number, origin, size, expires): each
    message with each subscription that existed in the turn in which it took effect, once for every
    matching filter. With ``REQUIRED`` the subscription existed from before the message took effect
    until after the end of the turn: then the session had to get the message. ``held`` are spans; it
    is read more than once. ``wild`` are the filters with wildcards.
    """
    lasted = F.col("ends") - F.col("begins")
    widths = held.groupBy("node", "filter").agg(
        F.greatest(F.lit(1), F.ceil(F.avg(lasted))).cast("bigint").alias("width")
    )
    filters = held.select("node", "filter").distinct()
    topics = effects.select("node", "topic").distinct()
    pairs = topics_to_filters(topics, filters, wild).join(widths, ["node", "filter"])
    bins = F.explode(F.expr("sequence(begins div width, ends div width)"))
    binned = held.join(widths, ["node", "filter"]).select(
        "node", "filter", "session", "qos", "since", "begins", "ends", "no_local", bins.alias("bin")
    )
    local = F.col("no_local") & (F.xxhash64("session") == F.col("origin"))
    owed = (F.col("since") < F.col("at")) & (F.col("turn") < F.col("ends"))
    flag = F.when(owed, REQUIRED).otherwise(0)
    number = F.col("level").bitwiseOR(F.shiftleft("qos", 2)).bitwiseOR(flag)
    return (
        effects.join(pairs, ["node", "topic"])
        .withColumn("bin", F.expr("turn div width"))
        .join(binned, ["node", "filter", "bin"])
        .where((F.col("begins") <= F.col("turn")) & (F.col("turn") <= F.col("ends")) & ~local)
        .select(
            *("node", "session", "at", "ref", "time_ms", "topic", number.alias("number"), "origin"),
            *("size", "expires"),
        )
    )


def expected_of_few(effects: DataFrame, spans: Sequence[SpanRow]) -> DataFrame:
    """Return the possible deliveries as ``expected_deliveries_of``, packed by session.

    The rows are (node, session, at, data), see ``expected_packs.PackRow``.
    """
    return effects.select(*EFFECT_COLUMNS).mapInArrow(partial(_expected, spans), _PACKS)


def _expected(
    spans: Sequence[SpanRow], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with mark_errors(), reduce_collections():
        yield from packs_of(spans, batches)


def packs_of(
    spans: Sequence[SpanRow], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what :func:`expected_of_few` returns, in this process."""
    packs = ExpectedPacks(spans)
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in EFFECT_COLUMNS]
        packs.add(zip(*columns, strict=True))
        if packs.count >= _PACKED:
            yield _batch(packs.take(), _PACKS_SCHEMA)
    if packs.count:
        yield _batch(packs.take(), _PACKS_SCHEMA)
