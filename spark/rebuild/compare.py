"""Two tables compared, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def compare(
    ours: DataFrame, theirs: DataFrame, keys: Sequence[str], at: str | None = None
) -> DataFrame:
    """Return what one of two tables has and the other has not: no rows when they are the same.

    Rows count as often as they are there, their order does not; ``theirs`` has the columns of
    ``ours``, none of them a map. Columns: the ``keys``; at, the lowest value of the column ``at``
    in rows that differ: the first position; ours and theirs, arrays of the rows that only this
    side has.
    """
    columns = ours.columns
    place = F.col(at) if at is not None else F.lit(None).cast("bigint")
    sides = ours.withColumn("_times", F.lit(1)).unionByName(
        theirs.select(*columns).withColumn("_times", F.lit(-1))
    )
    unequal = (
        sides.groupBy(*columns).agg(F.sum("_times").alias("_times")).where(F.col("_times") != 0)
    )
    row = F.struct(*columns)
    more, fewer = F.col("_times") > 0, F.col("_times") < 0
    return unequal.groupBy(*keys).agg(
        F.min(place).alias("at"),
        F.collect_list(F.when(more, row)).alias("ours"),
        F.collect_list(F.when(fewer, row)).alias("theirs"),
    )
