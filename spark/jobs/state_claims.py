"""Turns the states that a broker or its projections report (claims) into a table."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from spark.jobs.audit_outcome import ALL_CLAIM, RETAINED_CLAIM, SESSION_CLAIM, ClaimsCompared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from eventstore.format.positions import Position
    from spark.jobs.audit_outcome import StateClaim

COLUMNS: Final = ("where", "node", "kind", "name", "bound", "digest")
_DDL: Final = "where string, node string, kind string, name string, bound bigint, digest string"
_AT_ONCE: Final = 10_000


def claim_table_of(spark: SparkSession, claims: Iterable[StateClaim]) -> DataFrame:
    """Return claims as a table."""
    return spark.createDataFrame([astuple(claim) for claim in claims], _DDL)


def claims_in_memory(
    claims: Iterable[StateClaim] | DataFrame | None,
) -> list[StateClaim] | None:
    """Return claims that are no table as a list; None if there are none."""
    if claims is None or isinstance(claims, DataFrame):
        return None
    return list(claims) or None


def claims_in_table(claims: Iterable[StateClaim] | DataFrame | None) -> DataFrame | None:
    """Return claims that are a table; None if they are none."""
    return claims.select(*COLUMNS) if isinstance(claims, DataFrame) else None


def compared_claims(claims: Iterable[StateClaim]) -> tuple[ClaimsCompared, ...]:
    """Return the number of claims by source and node, and their last position."""
    found: dict[tuple[str, str], list[int]] = {}
    for one in claims:
        counts = found.setdefault((one.where, one.node), [0, 0, 0])
        known = one.digest is not None
        counts[0] += known and one.kind == SESSION_CLAIM
        counts[1] += known and one.kind == RETAINED_CLAIM
        counts[2] = max(counts[2], one.bound)
    return tuple(ClaimsCompared(*key, *counts) for key, counts in sorted(found.items()))


def complete_claims(claims: Iterable[StateClaim]) -> dict[str, list[tuple[Position, str]]]:
    """Return the positions where the claims of each node are complete: (bound, source)."""
    found: dict[str, list[tuple[Position, str]]] = {}
    for node, bound, where in sorted(
        {(one.node, one.bound, one.where) for one in claims if one.kind == ALL_CLAIM}
    ):
        found.setdefault(node, []).append((bound, where))
    return found


def compared_in_table(claims: DataFrame) -> tuple[ClaimsCompared, ...]:
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


def complete_in_table(claims: DataFrame) -> dict[str, list[tuple[Position, str]]]:
    """Return the positions where the claims of each node are complete: (bound, source)."""
    found: dict[str, list[tuple[Position, str]]] = {}
    for row in claims.where(F.col("kind") == ALL_CLAIM).distinct().collect():
        found.setdefault(row["node"], []).append((row["bound"], row["where"]))
    return found
