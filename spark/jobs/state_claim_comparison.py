"""Compares claims about sessions and retained messages with the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.format.positions import format_position
from projections.state.digests import digest
from spark.jobs.retained_messages import retained_digest_column as digest_column
from spark.jobs.retained_messages import retained_effects
from spark.jobs.session_states import session_texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from eventstore.format.positions import Position
    from projections.state.single_session import SessionFold
    from spark.tables.log import Log

_BEYOND = 1 << 62
"""A position after the end of every log."""


def retained_otherwise(log: Log, claimed: DataFrame, complete: DataFrame) -> DataFrame:
    """Return the differences between retained messages and claims about them.

    ``claimed`` has node, topic, bound (all before this position had happened) and said (a digest,
    null: nothing is retained), ``complete`` node and bound: all messages retained there are
    claimed. Columns: node, topic, bound, said, known (digests).
    """
    digests = retained_effects(log).select(
        "node",
        "topic",
        "effect",
        F.when(F.length("payload") > 0, digest_column()).alias("digest"),
    )
    here = F.col("effect") < F.col("bound")
    known = F.max_by("digest", F.when(here, F.col("effect")))
    wrong = (
        claimed.join(digests, ["node", "topic"], "left")
        .groupBy("node", "topic", "bound", "said")
        .agg(known.alias("known"))
        .where(~F.col("said").eqNullSafe(F.col("known")))
    )
    unclaimed = (
        digests.join(F.broadcast(complete), "node")
        .where(here)
        .groupBy("node", "topic", "bound")
        .agg(F.max_by("digest", "effect").alias("known"))
        .where(F.col("known").isNotNull())
        .join(claimed.select("node", "topic"), ["node", "topic"], "left_anti")
        .select("node", "topic", "bound", F.lit(None).cast("string").alias("said"), "known")
    )
    return wrong.unionByName(unclaimed)


class SessionClaims:
    """Compares the folded state of a session with the claims of its broker."""

    def __init__(self, fold: SessionFold, complete: Sequence[Position]) -> None:
        self.findings: list[tuple[Position, str]] = []
        self._fold = fold
        self._complete = sorted(complete, reverse=True)
        self._existed: Position | None = None
        self._compared = False

    def reach(self, at: Position) -> None:
        """Record whether the session existed where claims are complete, up to ``at``."""
        while self._complete and self._complete[-1] <= at:
            bound = self._complete.pop()
            if self._fold.state is not None and self._existed is None:
                self._existed = bound

    def compare(self, bound: Position, said: str | None) -> None:
        """Compare the current state with a digest; None: the session does not exist."""
        self._compared = True
        texts = session_texts_of(self._fold)
        known = None if texts is None else digest(texts, self._fold.pending.values())
        if known == said:
            return
        if said is None:
            what = "the broker does not have the session that is in the log"
        elif known is None:
            what = "the broker has a session that is not in the log"
        else:
            what = "the broker has another state of the session than the log has"
        self.findings.append((bound, f"{what}, as of {format_position(bound)}"))

    def finish(self) -> None:
        """Do the remaining checks at the end of the log."""
        self.reach(_BEYOND)
        if self._existed is not None and not self._compared:
            what = "the broker does not report the session that is in the log"
            self.findings.append((self._existed, f"{what}, as of {format_position(self._existed)}"))
