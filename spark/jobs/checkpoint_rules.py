"""Cuts of the log: messages that sessions still need must be repeated. Native SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from projections.audit.rule_table import Rule
from spark.jobs.checkpoint_lookup import cuts_behind, cuts_within, with_marks
from spark.jobs.expected_deliveries import position_of
from spark.jobs.fact_schema import CARRIED, EFFECT, RETAINED, SENT, WILL
from spark.jobs.retained_rules import position_text, violation_rows
from spark.jobs.session_result_rows import NEEDED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from spark.jobs.fact_tables import FactTables
    from spark.jobs.log_summary import LogSummary

_CUT: Final = ("cut", "first")


def find_unknown_repetitions(facts: FactTables, logs: Mapping[str, LogSummary]) -> DataFrame:
    """Return repeated messages that did not exist."""
    told = facts.of(CARRIED).where(
        (F.col("ref") >= position_of("complete", logs))
        & (F.col("at") < position_of("trusted", logs))
    )
    there = facts.of(EFFECT, SENT, WILL, RETAINED).select("node", "ref")
    lost = told.select("node", "at", "ref", "topic").join(there, ["node", "ref"], "left_anti")
    what = F.concat(F.lit("repeats message "), position_text("ref"), F.lit(", which did not exist"))
    return violation_rows(lost, Rule.CHECKPOINT, "at", what)


def find_changed_repetitions(facts: FactTables) -> DataFrame:
    """Return repeated messages that differ from their publication."""
    told = facts.of(CARRIED).select("node", "at", "ref", "topic", "check", "expires", "session")
    there = facts.of(EFFECT, SENT, WILL).select(
        "node",
        "ref",
        F.col("topic").alias("was_topic"),
        F.col("check").alias("was"),
        F.col("expires").alias("ended"),  # unknown for a will at this point
        F.col("session").alias("publisher"),
    )
    other = (
        told.join(there, ["node", "ref"])
        .where(
            (F.col("topic") != F.col("was_topic"))
            | (F.col("check") != F.col("was"))
            | (F.col("expires") != F.col("ended"))
            | ((F.col("session") != "") & (F.col("session") != F.col("publisher")))
        )
        .drop("session")
    )
    what = F.concat(
        F.lit("repeats message "), position_text("ref"), F.lit(" with different content")
    )
    return violation_rows(other.dropDuplicates(["node", "at"]), Rule.CHECKPOINT, "at", what)


def find_missing_repetitions(
    facts: FactTables, results: DataFrame, held: DataFrame | None, logs: Mapping[str, LogSummary]
) -> DataFrame | None:
    """Return messages that are needed behind a cut and were not repeated; None without cuts.

    ``results`` are those of the sessions, ``held`` the intervals of retained messages.
    """
    rows = [
        (node, cut.at, cut.first)
        for node, log in logs.items()
        for cut in log.cuts
        if log.whole <= cut.at < log.trusted
    ]
    if not rows:
        return None
    needed = results.where(F.col("kind") == NEEDED).select(
        "node", F.col("at").alias("cut"), "session", F.explode("refs").alias("ref")
    )
    if held is not None:
        there = held.where(F.col("digest") != "").select("node", "at", "until", "ref")
        retained = with_marks(there, rows, _CUT, cuts_within).where(
            (F.col("at") < F.col("cut"))
            & (F.col("until") > F.col("cut"))
            & (F.col("ref") < F.col("first"))
        )
        nobody = F.lit(None).cast("string").alias("session")
        needed = needed.unionByName(retained.select("node", "cut", nobody, "ref"))
    carriers = facts.of(CARRIED).select("node", "at", "ref")
    kept = (
        with_marks(carriers, rows, _CUT, cuts_behind)
        .where((F.col("at") >= F.col("first")) & (F.col("at") < F.col("cut")))
        .select("node", "cut", "ref")
    )
    lost = needed.join(kept, ["node", "cut", "ref"], "left_anti")
    what = F.concat(
        F.lit("cuts off message "), position_text("ref"), F.lit(", which is still needed")
    )
    return violation_rows(lost, Rule.CHECKPOINT, "cut", what)
