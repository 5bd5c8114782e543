"""The facts of a small log in the memory of the driver.

Such a log is audited without Spark, whose start and jobs would take far more processor time than
there is work: see ``local_sessions``, ``local_retained`` and ``local_repetitions``.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark.audit.facts import BEYOND_ALL, CARRIED, NODE, RELEASED, SENT, LogNote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventstore.format import Position
    from spark.audit.facts import LogSummary

LOCAL_BYTES: Final = 128 << 20
"""Logs up to this size are audited in the memory of the driver."""


class ReleasedMessage(NamedTuple):
    """A message that took effect at ``at`` by its release, as a fact of kind EFFECT."""

    node: str
    session: str
    at: Position
    ref: Position
    time_ms: int
    number: int
    topic: str
    size: int
    expires: int
    digest: str | None
    """That of the retained message that it becomes; None: it does not."""


class LocalFacts:
    """The facts of a small log."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._kinds: Any = table.column("kind").to_numpy()

    def notes(self) -> list[LogNote]:
        """Return the facts about logs as a whole."""
        return [LogNote.read(*row) for row in self.rows(NODE, "node", "at", "data")]

    def trusted(self, logs: Mapping[str, LogSummary]) -> LocalFacts:
        """Return the facts that are judged: those before a damaged record."""
        if all(log.trusted == BEYOND_ALL for log in logs.values()):
            return self
        ends = {node: log.trusted for node, log in logs.items()}
        places = zip(
            *(self._table.column(name).to_pylist() for name in ("node", "at")), strict=True
        )
        kept = [at < ends.get(node, 0) for node, at in places]
        return LocalFacts(self._table.filter(pa.array(kept, pa.bool_())))

    def table(self, *kinds: int) -> pa.Table:
        """Return the facts of some kinds."""
        return self._table.filter(pa.array(np.isin(self._kinds, kinds)))

    def rows(self, kind: int, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the facts of a kind with some columns."""
        found = self.table(kind)
        return zip(*(found.column(name).to_pylist() for name in columns), strict=True)

    @cached_property
    def released(self) -> list[ReleasedMessage]:
        """The messages whose release and publication the scan did not see together."""
        if not len(self.table(RELEASED)):
            return []
        told: dict[tuple[str, Position], tuple[Any, ...]] = {}
        columns = ("node", "ref", "number", "digest", "topic", "size", "expires")
        for node, ref, *more in chain(self.rows(SENT, *columns), self.rows(CARRIED, *columns)):
            # A repetition after a cut may contain less.
            told[node, ref] = max(told.get((node, ref), ()), tuple(more))
        found = []
        for node, session, at, ref, time_ms, number in self.rows(
            RELEASED, "node", "session", "at", "ref", "time_ms", "number"
        ):
            if (node, ref) in told:
                retained, digest, topic, size, expires = told[node, ref]
                found.append(
                    ReleasedMessage(
                        *(node, session, at, ref, time_ms, number, topic, size, expires),
                        digest if retained == 1 else None,
                    )
                )
        return found
