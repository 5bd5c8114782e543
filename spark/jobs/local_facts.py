"""The facts of a log in the memory of the driver.

Such a log is audited without Spark, whose start and jobs would take more processor time than the
audit itself: see ``local_sessions``, ``local_retained`` and ``local_repetitions``.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark.jobs.chain_check import LogNote
from spark.jobs.fact_schema import CARRIED, EVENTS, NODE, RELEASED, SENT
from spark.jobs.log_summary import BEYOND_ALL
from spark.runtime.machine import available_memory, usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventstore.format.positions import Position
    from spark.jobs.log_summary import LogSummary

LOCAL_BYTES: Final = 128 << 20
"""Logs up to this size are audited in the memory of the driver, whatever its size."""
_ONE_CORE: Final = 2 << 30
"""Logs up to this size, divided by the number of cores, are audited by one core: with more cores
Spark is done earlier, though it takes more processor time."""
_EXPECTED: Final = 8
"""Bytes of memory for each byte of a log, if its entries are short: ``read_facts`` knows more."""


class LocalLimits(NamedTuple):
    """Limits for logs that are audited in the memory of the driver."""

    log_bytes: int = LOCAL_BYTES
    """Maximum size of the log."""
    memory: int | None = None
    """Bytes of memory that a log of more than ``LOCAL_BYTES`` may take; None: any number."""


SMALL: Final = LocalLimits()
"""Those of up to ``LOCAL_BYTES``."""
NOTHING: Final = LocalLimits(0)
"""All logs with records are audited with Spark."""


def limits_here() -> LocalLimits:
    """Return the limits for this machine: an audit may take half of the available memory."""
    available = available_memory()
    if available is None:
        return SMALL
    memory = available // 2
    most = min(memory // _EXPECTED, _ONE_CORE // usable_cores())
    return LocalLimits(max(LOCAL_BYTES, most), memory)


NameRange: TypeAlias = tuple[str | None, str | None]
"""The first name, and the one behind the last; None: no limit."""


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
    """The facts of a log."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._kinds: Any = table.column("kind").to_numpy()

    def notes(self) -> list[LogNote]:
        """Return the facts about logs as a whole."""
        return [LogNote.read(*row) for row in self.rows(NODE, "node", "at", "data")]

    def trusted(self, logs: Mapping[str, LogSummary]) -> LocalFacts:
        """Return the facts that are audited: those before a damaged record."""
        if all(log.trusted == BEYOND_ALL for log in logs.values()):
            return self
        ends = {node: log.trusted for node, log in logs.items()}
        places = zip(
            *(self._table.column(name).to_pylist() for name in ("node", "at")), strict=True
        )
        kept = [at < ends.get(node, 0) for node, at in places]
        return LocalFacts(self._table.filter(pa.array(kept, pa.bool_())))

    def table(self, kind: int, *columns: str) -> pa.Table:
        """Return the facts of a kind with some columns."""
        return self._table.select(columns).filter(pa.array(self._kinds == kind))

    def rows(self, kind: int, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the facts of a kind with some columns."""
        found = self.table(kind, *columns)
        return zip(*(found.column(name).to_pylist() for name in columns), strict=True)

    def sessions(self, most: int) -> Iterator[NameRange]:
        """Yield ranges of names of sessions, in order, that cover all names.

        The events of the sessions in each have about ``most`` bytes; a session is in one of them.
        """
        sizes = [pc.binary_length(self._table.column(name)) for name in ("data", "payload")]
        each = pa.table(
            {
                "session": self._table.column("session"),
                "size": pc.add(*(pc.fill_null(size, 0) for size in sizes)),
            }
        ).filter(pa.array(self._kinds == EVENTS))
        found = each.group_by("session").aggregate([("size", "sum")]).sort_by("session")
        first, size = None, 0
        for session, more in zip(*(column.to_pylist() for column in found.columns), strict=True):
            if size and size + more > most:
                yield first, session
                first, size = session, 0
            size += more
        yield first, None

    def events(self, sessions: NameRange) -> pa.Table:
        """Return the events of the sessions in a range of names."""
        columns = ("node", "session", "at", "data", "payload")
        chosen = pc.and_(pa.array(self._kinds == EVENTS), names_within(self._table, sessions))
        return self._table.select(columns).filter(chosen)

    @cached_property
    def released(self) -> list[ReleasedMessage]:
        """The messages whose release and publication the scan did not see together."""
        if not (self._kinds == RELEASED).any():
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


def names_within(table: pa.Table, sessions: NameRange) -> pa.ChunkedArray:
    """Return for each row whether its session is in a range of names."""
    names, (first, behind) = table.column("session"), sessions
    since = pc.is_valid(names) if first is None else pc.greater_equal(names, first)
    return since if behind is None else pc.and_(since, pc.less(names, behind))
