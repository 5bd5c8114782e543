"""Detects sessions that were on two nodes at the same time. Native SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.format.events import NATS_SESSION
from projections.audit.rule_table import Rule
from spark.jobs.retained_rules import position_text, violation_rows
from spark.jobs.session_result_rows import CONNECTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SKEW_MS: Final = 1000
"""Maximum difference between the clocks of two nodes in milliseconds."""


def find_double_owners(results: DataFrame) -> DataFrame:
    """Return connections of a session to a node while it was connected to another one."""
    # Every node has a session for messages published by NATS clients.
    clients = F.col("session") != NATS_SESSION
    told = results.where((F.col("kind") == CONNECTED) & clients).select(
        "node", "session", "at", F.col("refs")[0].alias("begins"), F.col("refs")[1].alias("ends")
    )
    # Connections to one node do not overlap: only the earlier one that ends last counts.
    before = (
        Window.partitionBy("session")
        .orderBy("begins", "node", "at")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    other = F.max(F.struct("ends", "node", F.col("at").alias("ref"))).over(before)
    twice = told.withColumn("other", other).where(
        (F.col("other.node") != F.col("node")) & (F.col("other.ends") > F.col("begins") + SKEW_MS)
    )
    what = F.concat(
        F.lit("connected while it had a connection to node "),
        F.col("other.node"),
        F.lit(", since "),
        position_text("other.ref"),
    )
    found = twice.withColumn("ref", F.lit(None).cast("bigint"))
    return violation_rows(found, Rule.OWNERSHIP, "at", what)
