"""The history of retained messages, compared with checkpoints, deliveries and claims. Native SQL.

All functions return rows of violations with the columns of :data:`VIOLATION`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from projections.audit.rule_table import Rule
from protocol.mqtt.subscription_options import NO_LOCAL
from protocol.mqtt.topics import matches
from spark.jobs.audit_outcome import BROKER, PROJECTIONS, RETAINED_CLAIM
from spark.jobs.checkpoint_lookup import next_checkpoint, with_marks
from spark.jobs.expected_deliveries import position_of, topics_to_filters
from spark.jobs.fact_schema import (
    CLEARED,
    EXPIRED_SO,
    GRANT,
    REPEATED_SO,
    REPLAY,
    RETAINED,
    SET,
)
from spark.jobs.log_summary import BEYOND_ALL
from spark.runtime.marked_errors import mark_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from eventstore.format.positions import Position
    from spark.jobs.fact_tables import FactTables
    from spark.jobs.log_summary import LogSummary

VIOLATION: Final = ("rule", "node", "session", "at", "ref", "topic", "what")
"""``ref`` and ``topic`` identify the message; they are null if there is none."""


def position_text(column: str) -> Column:
    """Return a position in its text form."""
    index = F.col(column).bitwiseAND((1 << 20) - 1)
    return F.format_string("%d.%d", F.shiftright(F.col(column), 20), index)


def violation_rows(found: DataFrame, rule: str, at: str, what: Column) -> DataFrame:
    """Return rows as violations of a rule, at a column; missing columns are null."""
    null = {"session": "string", "topic": "string", "ref": "bigint"}
    columns = [
        F.col(name) if name in found.columns else F.lit(None).cast(kind).alias(name)
        for name, kind in null.items()
    ]
    row = found.select(
        F.lit(rule).alias("rule"), "node", F.col(at).alias("at"), what.alias("what"), *columns
    )
    return row.select(*VIOLATION)


def retained_intervals(
    facts: FactTables, released: DataFrame | None, logs: Mapping[str, LogSummary]
) -> DataFrame:
    """Return the history of retained messages, a row for each change.

    Behind lost records only: nothing is audited until a checkpoint behind them has repeated what
    is retained.

    The rows are (node, topic, at, until, ref, digest, how, qos, old, before, expires, origin,
    previous, last, ended). The message of ``ref`` was retained from ``at`` to before ``until``;
    none if its digest is empty. ``how`` is the kind of change, see ``facts``; ``old`` and
    ``before`` are the position and digest that a repetition names, ``origin`` is a hash of the
    publisher's client identifier, null if it is not known; ``previous`` and ``last`` are position
    and digest of the preceding row, and ``ended`` is the expiry of that message.
    """
    told = facts.of(RETAINED).select(
        "node",
        "topic",
        "at",
        "ref",
        F.col("number").bitwiseAND(3).alias("how"),
        F.shiftright("number", 2).alias("qos"),
        F.col("check").alias("old"),
        "digest",
        "before",
        "expires",
        F.when(F.col("session") != "", F.xxhash64("session")).alias("origin"),
    )
    if released is not None:
        later = released.where(F.col("number") == 1).select(
            "node",
            "topic",
            "at",
            "ref",
            F.lit(SET).alias("how"),
            F.lit(2).alias("qos"),
            F.lit(None).cast("bigint").alias("old"),
            "digest",
            F.lit(None).cast("string").alias("before"),
            "expires",
            "origin",
        )
        told = told.unionByName(later)
    told = told.where(F.col("at") >= position_of("complete", logs))
    history = Window.partitionBy("node", "topic").orderBy("at")
    return told.select(
        "*",
        F.coalesce(F.lead("at").over(history), F.lit(BEYOND_ALL)).alias("until"),
        F.lag("ref").over(history).alias("previous"),
        F.lag("digest").over(history).alias("last"),
        F.lag("expires").over(history).alias("ended"),
    )


def repeated(held: DataFrame, logs: Mapping[str, LogSummary]) -> DataFrame:
    """Return repetitions by checkpoints that differ from the last retained message."""
    same = F.col("previous").eqNullSafe(F.col("old")) & F.col("last").eqNullSafe(F.col("before"))
    wrong = held.where(
        (F.col("how") == REPEATED_SO) & (F.col("at") >= position_of("whole", logs)) & ~same
    )
    nothing = F.coalesce(F.col("last"), F.lit("")) == ""
    what = F.when(
        nothing,
        F.concat(
            F.lit("repeats message "),
            position_text("old"),
            F.lit(", but nothing is retained on its topic"),
        ),
    ).otherwise(
        F.concat(
            F.lit("repeats message "),
            position_text("old"),
            F.lit(", but retained last on its topic was another one, "),
            position_text("previous"),
        )
    )
    return violation_rows(wrong.withColumn("ref", F.col("old")), Rule.RETAINED, "at", what)


def expired_early(held: DataFrame, logs: Mapping[str, LogSummary]) -> DataFrame:
    """Return ends of retained messages that did not exist, or that expired too early."""
    nothing = F.coalesce(F.col("last"), F.lit("")) == ""
    # The time of a record is that of its first event, which may be a second before the others.
    due = (F.col("ended") > 0) & (F.col("ended") <= F.col("expires"))
    wrong = held.where(
        F.col("how").isin(CLEARED, EXPIRED_SO)
        & (F.col("at") >= position_of("whole", logs))
        & (nothing | ((F.col("how") == EXPIRED_SO) & ~due))
    )
    what = F.when(nothing, F.lit("a retained message ended, but there was none")).otherwise(
        F.concat(F.lit("retained message "), position_text("previous"), F.lit(" expired too early"))
    )
    return violation_rows(wrong.withColumn("ref", F.col("previous")), Rule.EXPIRY, "at", what)


def not_repeated(held: DataFrame, logs: Mapping[str, LogSummary]) -> DataFrame | None:
    """Return retained messages that a checkpoint left out; None without checkpoints.

    Each is reported once: at the first checkpoint that does not repeat it.
    """
    rows = [
        (node, one.begun, one.completed)
        for node, log in logs.items()
        for one in log.checkpoints
        if one.begun >= log.whole
    ]
    if not rows:
        return None
    there = held.where(F.col("digest") != "").select("node", "topic", "ref", "at", "until")
    left = with_marks(there, rows, ("begun", "completed"), next_checkpoint).where(
        F.col("until") > F.col("completed")
    )
    what = F.concat(
        F.lit("the checkpoint does not repeat the retained message "), position_text("ref")
    )
    return violation_rows(left, Rule.CHECKPOINT, "completed", what)


# ------------------------------------------------------------------------------------ replays


def replays(facts: FactTables, held: DataFrame, logs: Mapping[str, LogSummary]) -> DataFrame:
    """Return deliveries of retained messages that were not retained, had expired or do not match.

    A message retained when the turn began may be removed in the turn before it is delivered.
    """
    told = (
        facts.of(REPLAY)
        .where(F.col("at") >= position_of("whole", logs))
        .select(
            "node",
            "session",
            "ref",
            F.col("at").alias("place"),
            F.col("time_ms").alias("turn"),
            (F.col("number") == 1).alias("sent"),
            F.col("topic").alias("filter"),
            F.col("expires").alias("second"),
        )
    )
    known = held.where(F.col("digest") != "").select(
        "node", "topic", "ref", "at", "until", "expires"
    )
    both = told.join(known, ["node", "ref"], "left").where(
        F.col("at").isNull() | ((F.col("at") < F.col("place")) & (F.col("until") > F.col("turn")))
    )
    matched = both.where(F.col("at").isNotNull())
    lost = told.join(matched, ["node", "session", "ref", "place"], "left_anti")
    what = F.concat(
        F.lit("message "), position_text("ref"), F.lit(" was sent as retained, but is not")
    )
    wrong = violation_rows(lost, Rule.RETAINED, "place", what)
    # The broker may have read the clock a second before the record began.
    late = matched.where((F.col("expires") > 0) & (F.col("expires") < F.col("second") - 1))
    what = F.concat(
        F.lit("retained message "),
        position_text("ref"),
        F.lit(" was sent "),
        (F.col("second") - F.col("expires")).cast("string"),
        F.lit(" s after it expired"),
    )
    wrong = wrong.unionByName(violation_rows(late, Rule.EXPIRY, "place", what))
    # A queued message may wait in the queue of another filter, which it must not overtake.
    sent = matched.where("sent")
    pairs = sent.select("filter", "topic").distinct().mapInArrow(_unlike, _PAIRS)
    strange = sent.join(F.broadcast(pairs), ["filter", "topic"], "left_semi")
    what = F.concat(
        F.lit("retained message "),
        position_text("ref"),
        F.lit(" does not match the filter it was sent for"),
    )
    return wrong.unionByName(violation_rows(strange, Rule.NO_SUBSCRIPTION, "place", what))


_PAIRS: Final = "filter string, topic string"


def _unlike(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield pairs of filter and topic that do not match."""
    with mark_errors():
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("filter", "topic")]
            unlike = [not matches(*pair) for pair in zip(*columns, strict=True)]
            yield batch.filter(pa.array(unlike, pa.bool_()))


def expected_retained(
    facts: FactTables, held: DataFrame, logs: Mapping[str, LogSummary]
) -> DataFrame:
    """Return (node, session, at, ref, topic): QoS 1 and 2 messages to be sent for a filter.

    ``at`` is the position where the filter, in column ``topic``, was granted: messages retained
    then on matching topics must be sent, once for each filter; with No Local not those that the
    client published itself.
    """
    grants = (
        facts.of(GRANT)
        .where(F.col("at") >= position_of("whole", logs))
        .select("node", "session", "at", "time_ms", F.col("topic").alias("filter"), _no_local())
    )
    asked = _asked(grants, _periods(held), facts.wild).withColumn(
        "is", F.lit(None).cast("struct<ref:bigint,origin:bigint,expires:bigint,there:boolean>")
    )
    known = held.select(
        "node",
        "topic",
        "at",
        *(F.lit(None).cast("string").alias(name) for name in ("session", "filter")),
        F.lit(None).cast("boolean").alias("no_local"),
        F.lit(None).cast("bigint").alias("time_ms"),
        F.struct("ref", "origin", "expires", _there().alias("there")).alias("is"),
    )
    before = (
        Window.partitionBy("node", "topic").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    )
    then = F.last("is", ignorenulls=True).over(before)
    # It may have expired before the log records it: see ``checks`` for the additional second.
    second = F.floor(F.col("time_ms") / 1000) + 1
    expires = F.coalesce(F.col("then.expires"), F.lit(0))
    gone = (expires > 0) & (expires <= F.coalesce(second, F.lit(0)))
    own = F.col("no_local") & F.col("then.origin").eqNullSafe(F.xxhash64("session"))
    return (
        asked.unionByName(known)
        .withColumn("then", then)
        .where(F.col("session").isNotNull() & F.col("then.there") & ~own & ~gone)
        .select(
            "node", "session", "at", F.col("then.ref").alias("ref"), F.col("filter").alias("topic")
        )
    )


def _no_local() -> Column:
    return (F.col("number").bitwiseAND(NO_LOCAL) != 0).alias("no_local")


def _there() -> Column:
    return (F.col("digest") != "") & (F.col("qos") > 0)


def _periods(held: DataFrame) -> DataFrame:
    """Return (node, topic, begins, ends): the periods with a message to be sent on a topic."""
    history = Window.partitionBy("node", "topic").orderBy("at")
    changes = (
        held.select("node", "topic", "at", _there().alias("there"))
        .withColumn("was", F.coalesce(F.lag("there").over(history), F.lit(False)))
        .where(F.col("there") != F.col("was"))
    )
    return (
        changes.withColumn("ends", F.coalesce(F.lead("at").over(history), F.lit(BEYOND_ALL)))
        .where("there")
        .select("node", "topic", F.col("at").alias("begins"), "ends")
    )


def _asked(grants: DataFrame, periods: DataFrame, wild: Mapping[str, Collection[str]]) -> DataFrame:
    """Return the columns of the grants and the topic, for each topic with a message at a grant.

    The grants of each filter are numbered. The grants within a period are found by going through
    both in order, so that no grant is compared with messages not retained then.
    """
    by_filter = ["node", "filter"]
    filters = grants.select(*by_filter).distinct()
    topics = periods.select("node", "topic").distinct()
    matching = periods.join(topics_to_filters(topics, filters, wild), ["node", "topic"])
    nothing = F.lit(None).cast("string").alias("topic")
    ends = F.explode(F.array("begins", "ends")).alias("at")
    steps = matching.select(*by_filter, "topic", "begins", ends).unionByName(
        grants.select(*by_filter, nothing, F.lit(None).cast("bigint").alias("begins"), "at")
    )
    in_order = Window.partitionBy(*by_filter).orderBy("at")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    between = (
        steps.withColumn("number", F.count_if(F.col("topic").isNull()).over(so_far))
        .where(F.col("topic").isNotNull())
        .groupBy(*by_filter, "topic", "begins")
        .agg(F.min("number").alias("low"), F.max("number").alias("high"))
        .where(F.col("low") < F.col("high"))
        .select(*by_filter, "topic", F.explode(F.expr("sequence(low + 1, high)")).alias("number"))
    )
    numbered = grants.withColumn("number", F.row_number().over(in_order).cast("bigint"))
    return numbered.join(between, [*by_filter, "number"]).drop("number")


# ------------------------------------------------------------------------------------- claims


def claims(
    said: DataFrame,
    held: DataFrame,
    logs: Mapping[str, LogSummary],
    complete: Mapping[str, Sequence[tuple[Position, str]]],
) -> DataFrame:
    """Return wrong claims about retained messages, and retained messages that are not claimed.

    Projections contain the position of publication, not that of the effect, and may be newer than
    their mark: for them it suffices that the claim is true later.
    """
    named = said.where(F.col("kind") == RETAINED_CLAIM).select(
        "where", "node", F.col("name").alias("topic"), "bound", F.col("digest").alias("said")
    )
    judged = named.where(
        (F.col("bound") >= position_of("whole", logs))
        & (F.col("bound") <= F.least(position_of("end", logs), position_of("trusted", logs)))
    )
    known = held.where(F.col("digest") != "").select(
        "node", "topic", "at", "until", F.col("digest").alias("known"), "ref"
    )
    by_topic = ["node", "topic"]
    then = (F.col("at") < F.col("bound")) & (F.col("bound") <= F.col("until"))
    both = judged.join(known, by_topic).where(then)
    keys = ["where", "node", "topic", "bound"]
    wrong = judged.join(both.select(*keys, "known", "ref"), keys, "left").where(
        ~F.col("said").eqNullSafe(F.col("known"))
    )
    later = (
        wrong.where(F.col("where") == PROJECTIONS)
        .drop("known", "ref")
        .join(known, by_topic)
        .where((F.col("at") >= F.col("bound")) & (F.col("known") == F.col("said")))
    )
    wrong = wrong.join(later.select(keys), keys, "left_anti")
    as_of = F.concat(F.lit(", as of "), position_text("bound"))
    what = (
        F.when(
            F.col("said").isNull(), F.lit(" does not have a retained message that is in the log")
        )
        .when(F.col("known").isNull(), F.lit(" has a retained message that is not in the log"))
        .otherwise(F.lit(" has another retained message than the log has"))
    )
    told = F.concat(F.lit("the "), F.col("where"), what, as_of)
    different = violation_rows(wrong, Rule.STATE, "bound", told)
    missing = _unclaimed(named, known, logs, complete)
    return different if missing is None else different.unionByName(missing)


def _unclaimed(
    named: DataFrame,
    known: DataFrame,
    logs: Mapping[str, LogSummary],
    complete: Mapping[str, Sequence[tuple[Position, str]]],
) -> DataFrame | None:
    """Return retained messages that are missing in a complete list of claims."""
    rows = [
        (node, bound, where)
        for node, some in complete.items()
        for bound, where in some
        if node in logs and logs[node].whole <= bound <= min(logs[node].end, logs[node].trusted)
    ]
    if not rows:
        return None
    marks = named.sparkSession.createDataFrame(rows, "node string, bound bigint, where string")
    there = known.join(F.broadcast(marks), "node").where(
        (F.col("at") < F.col("bound"))
        & (F.col("bound") <= F.col("until"))
        # Messages removed later may have been removed before the projections were read.
        & ((F.col("where") == BROKER) | (F.col("until") == BEYOND_ALL))
    )
    keys = ["where", "node", "topic"]
    left = there.join(named.select(keys).distinct(), keys, "left_anti")
    what = F.concat(
        F.lit("the "),
        F.col("where"),
        F.lit(" does not have a retained message that is in the log, as of "),
        position_text("bound"),
    )
    return violation_rows(left, Rule.STATE, "bound", what)
