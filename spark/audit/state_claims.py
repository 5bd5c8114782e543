"""Turns the states that a broker or its projections report (claims) into a table."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from spark.audit.facts import ALL_CLAIM, RETAINED_CLAIM, SESSION_CLAIM, ClaimsCompared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from eventstore.format import Position
    from spark.audit.facts import StateClaim

COLUMNS: Final = ("where", "node", "kind", "name", "bound", "digest")
_DDL: Final = "where string, node string, kind string, name string, bound bigint, digest string"
_AT_ONCE: Final = 10_000


def claim_table_of(
    spark: SparkSession, claims: Iterable[StateClaim] | DataFrame | None
) -> DataFrame | None:
    """Return claims as a table; None if there are none."""
    if claims is None or isinstance(claims, DataFrame):
        return None if claims is None else claims.select(*COLUMNS)
    rows = [astuple(claim) for claim in claims]
    return spark.createDataFrame(rows, _DDL) if rows else None


def claims_compared(claims: DataFrame) -> tuple[ClaimsCompared, ...]:
    """Return the number of claims by source and node, and their last position."""
    found = (
        claims.groupBy("where", "node")
        .agg(
            F.count_if((F.col("kind") == SESSION_CLAIM) & F.col("digest").isNotNull()).alias("s"),
            F.count_if((F.col("kind") == RETAINED_CLAIM) & F.col("digest").isNotNull()).alias("r"),
            F.max("bound").alias("bound"),
        )
        .orderBy("where", "node")
        .collect()
    )
    return tuple(ClaimsCompared(*row) for row in found)


def complete_claims(claims: DataFrame) -> dict[str, list[tuple[Position, str]]]:
    """Return the positions where the claims of each node are complete: (bound, source)."""
    found: dict[str, list[tuple[Position, str]]] = {}
    for row in claims.where(F.col("kind") == ALL_CLAIM).distinct().collect():
        found.setdefault(row["node"], []).append((row["bound"], row["where"]))
    return found
