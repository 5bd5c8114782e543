"""The facts of logs in the memory of this process, and the folds of an audit over them.

Spark does the same with more facts than that: ``spark.jobs.fact_tables.FactTables``.
"""

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from projections.audit.audit_results import RESULT_COLUMNS
from projections.audit.chain_check import LogNote
from projections.audit.fact_buffer import FactChunk, Fold, folded
from projections.audit.facts import DUE, EFFECT, NODE
from projections.audit.log_summary import BEYOND_ALL, LogSummary

_FACT_BYTES: Final = 1024
"""Bytes of memory that an audit takes for a fact, besides its packed events."""
_EFFECT_BYTES: Final = 512
"""The same for a message that took effect."""
_DUE_COPIES: Final = 4
"""Memory that an audit needs for the messages due to sessions, relative to their size."""
_YOUNG: Final = 50_000
"""Number of objects that triggers a garbage collection: nothing here forms cycles."""

Table = list[FactChunk]


class TooManyFacts(Exception):  # noqa: N818 - its handler goes on with Spark
    """The facts of a log need more memory than an audit in this process may take."""


@contextmanager
def reduce_collections() -> Iterator[None]:
    """Make garbage collections rare."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class LocalFacts:
    """Facts in memory.

    Raises TooManyFacts if they, or the messages due to sessions, may need more than ``memory``
    bytes.
    """

    def __init__(self, chunks: Iterable[FactChunk], memory: int | None = None) -> None:
        self._memory = memory
        self._taken = 0
        self._by_kind: dict[int, Table] = defaultdict(list)
        with reduce_collections():
            for chunk in chunks:  # each has one kind
                kind = chunk.columns["kind"][0]
                self._by_kind[kind].append(chunk)
                self._take((_EFFECT_BYTES if kind == EFFECT else _FACT_BYTES) * len(chunk))
                self._take(_packed_size(chunk))

    def _take(self, size: int) -> None:
        self._taken += size
        if self._memory is not None and self._taken > self._memory:
            raise TooManyFacts

    def notes(self) -> list[LogNote]:
        """Return the facts about logs as a whole."""
        return [LogNote.read(*row) for row in self.rows([self.of(NODE)], "node", "at", "data")]

    def trust(self, logs: Mapping[str, LogSummary]) -> None:
        """Forget the facts that are not audited: those behind a damaged record."""
        if all(log.trusted == BEYOND_ALL for log in logs.values()):
            return
        ends = {node: log.trusted for node, log in logs.items()}
        for chunks in self._by_kind.values():
            chunks[:] = [
                chunk.kept([at < ends.get(node, 0) for node, at in chunk.rows(("node", "at"))])
                for chunk in chunks
            ]

    def of(self, *kinds: int) -> Table:
        """Return the facts of some kinds."""
        return [chunk for kind in kinds for chunk in self._by_kind.get(kind, ())]

    def made(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Table:
        """Return rows as facts."""
        return list(folded(iter, rows, columns))

    def chosen(self, facts: Table, *kinds: int) -> Table:
        """Return those of some kinds among facts."""
        return [chunk.kept([kind in kinds for kind in chunk.columns["kind"]]) for chunk in facts]

    def of_messages(self, facts: Table, others: Table) -> Table:
        """Return the facts about messages that others are about, too."""
        messages = set(self.rows([others], "node", "ref"))
        return [
            chunk.kept([message in messages for message in chunk.rows(("node", "ref"))])
            for chunk in facts
        ]

    def parts(self, facts: Table, _count: int, *columns: str) -> Iterator[Iterable[Any]]:
        """Yield rows of facts about sessions in parts, each with all facts of its sessions."""
        yield self.rows([facts], *columns)

    def each(
        self, facts: Table, fold: Fold, columns: Sequence[str], results: Sequence[str]
    ) -> Table:
        """Return the results of a fold of facts in any order."""
        return self._folded(fold, self.rows([facts], *columns), results)

    def by_key(
        self,
        tables: Sequence[Table],
        key: Sequence[str],
        order: Sequence[str],
        fold: Fold,
        columns: Sequence[str],
        results: Sequence[str] = RESULT_COLUMNS,
    ) -> Table:
        """Return the results of a fold of facts that are sorted by a key and an order."""
        places = map(columns.index, (*key, *order))
        rows = sorted(self.rows(tables, *columns), key=itemgetter(*places))
        return self._folded(fold, rows, results)

    def _folded(self, fold: Fold, rows: Iterable[tuple[Any, ...]], results: Sequence[str]) -> Table:
        made = []
        with reduce_collections():
            for chunk in folded(fold, rows, results):
                if chunk.columns["kind"][0] == DUE:
                    self._take(_DUE_COPIES * _packed_size(chunk))
                made.append(chunk)
        return made

    def rows(self, tables: Sequence[Table], *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of facts."""
        return chain.from_iterable(chunk.rows(columns) for table in tables for chunk in table)

    def results(self, tables: Sequence[Table]) -> Iterator[tuple[Any, ...]]:
        """Yield results that the audit as a whole needs, see ``RESULT_COLUMNS``."""
        return self.rows(tables, *RESULT_COLUMNS)


def _packed_size(chunk: FactChunk) -> int:
    """Return the bytes of packed events and payloads."""
    columns = (chunk.columns.get(name) or () for name in ("data", "payload"))
    return sum(len(value) for column in columns for value in column if value is not None)
