"""The facts of an audit as Spark tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from spark.jobs.fact_schema import MANY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class FactTables:
    """Two persisted tables of facts."""

    all: DataFrame
    few: DataFrame
    """All facts except the kinds ``fact_schema.MANY``."""
    counts: Mapping[int, int]
    """Number of facts of each kind."""
    wild: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The filters with wildcards in each node's log; the driver holds all of them."""

    def has(self, kind: int) -> bool:
        """Return whether there are facts of a kind."""
        return self.counts.get(kind, 0) > 0

    def of(self, *kinds: int) -> DataFrame:
        """Return the facts of some kinds."""
        groups = [
            (table, chosen)
            for table, chosen in (
                (self.all, [kind for kind in kinds if kind in MANY]),
                (self.few, [kind for kind in kinds if kind not in MANY]),
            )
            if chosen
        ]
        tables = [table.where(F.col("kind").isin(*chosen)) for table, chosen in groups]
        return reduce(lambda one, other: one.unionByName(other), tables)
