"""The facts of logs in the memory of this process, and the folds of an audit over them.

Logs that fit are audited without Spark, whose start and jobs would take more processor time than
the audit itself. ``fact_tables.FactTables`` does the same in Spark.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from projections.audit.audit_results import RESULT_COLUMNS
from projections.audit.chain_check import LogNote
from projections.audit.facts import NODE
from projections.audit.log_summary import BEYOND_ALL
from spark.jobs.fact_scan import reduce_collections
from spark.jobs.fact_schema import SCHEMA, fact_batch, fact_rows, fold_batches, memory_of
from spark.runtime.machine import available_memory, usable_cores

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from projections.audit.log_summary import LogSummary
    from spark.jobs.fact_schema import Fold

LOCAL_BYTES: Final = 128 << 20
"""Logs up to this size are audited in the memory of the driver, whatever its size."""
_ONE_CORE: Final = 2 << 30
"""Logs up to this size, divided by the number of cores, are audited by one core: with more cores
Spark is done earlier, though it takes more processor time."""
_EXPECTED: Final = 8
"""Bytes of memory for each byte of a log, if its entries are short: ``read`` knows more."""
_COPIES: Final = 4
"""Memory that an audit needs for the messages due to sessions, relative to their size."""
_SORTED: Final = 32 << 20
"""Bytes of facts that are sorted at once; those of a session are sorted together."""
_ROWS: Final = 8192

_LARGE: Final = pa.schema(
    [
        pa.field(one.name, pa.large_binary() if one.type == pa.binary() else one.type)
        for one in SCHEMA
    ]
)
"""The schema of facts that are sorted together, which may have more than 2 GiB."""


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


class TooManyFacts(Exception):  # noqa: N818 - its handler goes on with Spark
    """The facts of a log need more memory than an audit in this process may take."""


_NameRange: TypeAlias = tuple[str | None, str | None]
"""The first name, and the one behind the last; None: no limit."""


class LocalFacts:
    """Facts in memory.

    Raises TooManyFacts if they, or the messages due to sessions, may need more than ``memory``
    bytes.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], memory: int | None = None) -> None:
        self._memory = memory
        self._by_kind: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        needed = 0
        for batch in batches:  # each has one kind
            needed += memory_of(batch)
            if memory is not None and needed > memory:
                raise TooManyFacts
            self._by_kind[batch.column("kind")[0].as_py()].append(batch)

    def notes(self) -> list[LogNote]:
        """Return the facts about logs as a whole."""
        return [LogNote.read(*row) for row in self.rows([self.of(NODE)], "node", "at", "data")]

    def trust(self, logs: Mapping[str, LogSummary]) -> None:
        """Forget the facts that are not audited: those behind a damaged record."""
        if all(log.trusted == BEYOND_ALL for log in logs.values()):
            return
        ends = {node: log.trusted for node, log in logs.items()}
        for batches in self._by_kind.values():
            for number, batch in enumerate(batches):
                kept = [at < ends.get(node, 0) for node, at in fact_rows([batch], "node", "at")]
                batches[number] = batch.filter(pa.array(kept, pa.bool_()))

    def of(self, *kinds: int) -> pa.Table:
        """Return the facts of some kinds."""
        return pa.Table.from_batches(
            [batch for kind in kinds for batch in self._by_kind.get(kind, ())], SCHEMA
        )

    def made(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Return rows as facts."""
        return pa.Table.from_batches([fact_batch(columns, rows)])

    def chosen(self, facts: pa.Table, *kinds: int) -> pa.Table:
        """Return those of some kinds among facts."""
        return facts.filter(pc.is_in(facts.column("kind"), pa.array(kinds, pa.int8())))

    def of_messages(self, facts: pa.Table, others: pa.Table) -> pa.Table:
        """Return the facts about messages that others are about, too."""
        keys = ["node", "ref"]
        return facts.join(others.select(keys), keys, join_type="left semi").select(SCHEMA.names)

    def parts(self, facts: pa.Table, _count: int, *columns: str) -> Iterator[Iterable[Any]]:
        """Yield rows of facts about sessions in parts, each with all facts of its sessions."""
        yield self.rows([facts], *columns)

    def each(
        self, facts: pa.Table, fold: Fold, columns: Sequence[str], results: Sequence[str]
    ) -> pa.Table:
        """Return the results of a fold of facts in any order."""
        made, size = [], 0
        with reduce_collections():
            for batch in fold_batches(fold, columns, results, facts.to_batches(_ROWS)):
                made.append(batch)
                size += batch.nbytes
                if self._memory is not None and _COPIES * size > self._memory:
                    raise TooManyFacts
        return pa.Table.from_batches(made, SCHEMA)

    def by_key(
        self,
        tables: Sequence[pa.Table],
        key: Sequence[str],
        order: Sequence[str],
        fold: Fold,
        columns: Sequence[str],
        results: Sequence[str] = RESULT_COLUMNS,
    ) -> pa.Table:
        """Return the results of a fold of facts that are sorted by a key and an order."""
        batches = _in_order(pa.concat_tables(tables), key, [*key, *order])
        with reduce_collections():
            return pa.Table.from_batches(fold_batches(fold, columns, results, batches), SCHEMA)

    def rows(self, tables: Sequence[pa.Table], *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of facts."""
        return fact_rows((batch for table in tables for batch in table.to_batches(_ROWS)), *columns)

    def results(self, tables: Sequence[pa.Table]) -> Iterator[tuple[Any, ...]]:
        """Yield results that the audit as a whole needs, see ``RESULT_COLUMNS``."""
        return self.rows(tables, *RESULT_COLUMNS)


def _in_order(
    table: pa.Table, key: Collection[str], order: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield facts in order; many facts about sessions are sorted part by part, copying few."""
    by = [(name, "ascending") for name in order]
    names = _ranges(table) if "session" in key and table.nbytes > _SORTED else [(None, None)]
    for first, behind in names:
        part = table
        if first is not None:
            part = part.filter(pc.greater_equal(part.column("session"), first))
        if behind is not None:
            part = part.filter(pc.less(part.column("session"), behind))
        yield from part.cast(_LARGE).sort_by(by).combine_chunks().to_batches(_ROWS)


def _ranges(table: pa.Table) -> Iterator[_NameRange]:
    """Yield ranges of names of sessions, in order, that cover all names.

    The facts of the sessions in each have about ``_SORTED`` bytes; a session is in one of them.
    """
    sizes = [pc.binary_length(table.column(name)) for name in ("data", "payload")]
    each = pa.table(
        {
            "session": table.column("session"),
            "size": pc.add(*(pc.fill_null(size, 0) for size in sizes)),
        }
    )
    sums = each.group_by("session").aggregate([("size", "sum")]).sort_by("session")
    first, size = None, 0
    for session, more in zip(*(column.to_pylist() for column in sums.columns), strict=True):
        if size and size + more > _SORTED:
            yield first, session
            first, size = session, 0
        size += more
    yield first, None
