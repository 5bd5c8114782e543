"""Which messages each session had to get: joins of messages that took effect with subscriptions.

They are native. Python sees each subscription once, and for filters with wildcards each topic once.

A session subscribes to a filter from one position to another, and may do so a million times in the
life of a log, each time for a moment. So that a message is compared with few of those, positions
are cut into *bins*, as wide as a subscription to the filter lasts on average: then a subscription
lies in about two of them, and a message in one.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from projections.spans import SubscriptionSpans
from protocol.trie import FilterTrie
from spark.audit.facts import CARRIED, EFFECT, RELEASED, SENT, SPANS
from spark.audit.packing import unpack
from spark.failures import marked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column, DataFrame

    from spark.audit.tables import Facts
    from spark.audit.whole import Whole

_SPANS = "node string, session string, filter string, qos int, since bigint, until bigint"
_SPANS_SCHEMA = pa.schema(
    [
        ("node", pa.string()),
        ("session", pa.string()),
        ("filter", pa.string()),
        ("qos", pa.int32()),
        ("since", pa.int64()),
        ("until", pa.int64()),
    ]
)
_PAIRS = "node string, topic string, filter string"
_PAIRS_SCHEMA = pa.schema([(name, pa.string()) for name in ("node", "topic", "filter")])
_ROWS = 8192


class Sent(NamedTuple):
    """What is known of messages."""

    effects: DataFrame
    """(node, at, ref, time_ms, topic): each time that one took effect at QoS 1 or 2."""
    released: DataFrame | None
    """Those of them that were released apart, with ``number`` and ``digest``; None: none was."""


def sent(facts: Facts) -> Sent:
    """Return where QoS 1 and 2 messages took effect."""
    here = facts.of(EFFECT).select("node", "at", "ref", "time_ms", "topic")
    if not facts.has(RELEASED):
        return Sent(here, None)
    waiting = (
        facts.of(SENT, CARRIED)
        .select("node", "ref", "topic", "number", "digest")
        # Said again after a cut: what was said is compared elsewhere.
        .dropDuplicates(["node", "ref"])
    )
    released = (
        facts.of(RELEASED).select("node", "at", "ref", "time_ms").join(waiting, ["node", "ref"])
    )
    return Sent(here.unionByName(released.select(here.columns)), released)


def spans(facts: Facts, logs: Mapping[str, Whole], partitions: int) -> DataFrame:
    """Return from where to where each filter of a session was subscribed to, at QoS 1 or 2."""
    counts = (F.col("number") == 0) | (F.col("at") < position_of("whole", logs))
    told = (
        facts.of(SPANS)
        .where(counts)
        .select("node", "session", "at", "data")
        .repartition(partitions, "node", "session")
        .sortWithinPartitions("node", "session", "at")
    )
    known = {node: (log.whole, log.end) for node, log in logs.items()}
    return told.mapInArrow(partial(_spans, known), _SPANS)


def position_of(what: str, logs: Mapping[str, Whole]) -> Column:
    """Return a field of ``Whole`` as a column, by the column ``node``; 0 for unknown nodes."""
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
    known: Mapping[str, tuple[int, int]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    with marked():
        for (node, session), some in groupby(_rows(batches), key=itemgetter(0, 1)):
            whole, end = known[node]
            held = SubscriptionSpans(session, whole)
            for _, _, data in some:
                for at, time_ms, _, event in unpack(session, data):
                    held.take(event, at, time_ms)
            for span in held.finish():
                if span.qos:
                    until = end if span.until is None else span.until
                    rows.append((node, session, span.filter, span.qos, span.since, until))
            if len(rows) >= _ROWS:
                yield _batch(rows, _SPANS_SCHEMA)
                rows.clear()
        if rows:
            yield _batch(rows, _SPANS_SCHEMA)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, str, bytes]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("node", "session", "data"))
        yield from zip(*columns, strict=True)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---------------------------------------------------------------------------- topics to filters


def with_wildcard(name: str) -> Column:
    """Return whether a filter has a wildcard: a legal one has these letters nowhere else."""
    return F.col(name).contains("+") | F.col(name).contains("#")


def topics_to_filters(topics: DataFrame, filters: DataFrame) -> DataFrame:
    """Return (node, topic, filter) for all distinct topics and filters that match.

    ``topics`` has the columns node and topic, ``filters`` node and filter, no row twice.
    """
    exact = filters.where(~with_wildcard("filter")).select(
        "node", F.col("filter").alias("topic"), "filter"
    )
    wild: dict[str, list[str]] = {}
    for row in filters.where(with_wildcard("filter")).collect():
        wild.setdefault(row["node"], []).append(row["filter"])
    if not wild:
        return exact
    shared = filters.sparkSession.sparkContext.broadcast(wild)

    def matched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _matched(shared.value, batches)

    return exact.unionByName(topics.select("node", "topic").mapInArrow(matched, _PAIRS))


def _matched(
    filters: Mapping[str, list[str]], batches: Iterator[pa.RecordBatch]
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


def expectations(effects: DataFrame, held: DataFrame) -> DataFrame:
    """Return (node, session, at, ref, time_ms, topic) for each message that a session had to get.

    A message that several filters of a session match comes several times. ``held`` are spans; it
    is read more than once.
    """
    lasted = F.col("until") - F.col("since")
    widths = held.groupBy("node", "filter").agg(
        F.greatest(F.lit(1), F.ceil(F.avg(lasted))).cast("bigint").alias("width")
    )
    filters = held.select("node", "filter").distinct()
    topics = effects.select("node", "topic").distinct()
    pairs = topics_to_filters(topics, filters).join(widths, ["node", "filter"])
    bins = F.explode(F.expr("sequence(since div width, until div width)"))
    binned = held.join(widths, ["node", "filter"]).select(
        "node", "filter", "session", "since", "until", bins.alias("bin")
    )
    return (
        effects.join(pairs, ["node", "topic"])
        .withColumn("bin", F.expr("at div width"))
        .join(binned, ["node", "filter", "bin"])
        .where((F.col("since") < F.col("at")) & (F.col("at") < F.col("until")))
        .select("node", "session", "at", "ref", "time_ms", "topic")
    )
