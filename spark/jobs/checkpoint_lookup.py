"""Assigns the marks of a log, its checkpoints and cuts, to the rows that they concern.

There may be thousands of marks and millions of rows, and hardly any row concerns a mark: a join by
the node alone would compare them all. Marks are sorted instead, and looked up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from spark.runtime.marked_errors import mark_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from eventstore.format.positions import Position

Numbers: TypeAlias = "NDArray[Any]"
Choice: TypeAlias = "Callable[[Mapping[str, Numbers], Numbers, Numbers], tuple[Numbers, Numbers]]"
"""Takes columns of positions and the marks of a node as two arrays, sorted by the first one;
returns the range of marks that may concern each row."""


def with_marks(
    table: DataFrame,
    marks: Iterable[tuple[str, Position, Position]],
    names: tuple[str, str],
    choose: Choice,
) -> DataFrame:
    """Return the rows of a table, each with every mark chosen for it.

    ``marks`` are (node, position, position); the last two become columns with these ``names``. The
    table has a column node; ``choose`` gets its columns of type bigint.
    """
    by_node: dict[str, list[tuple[Position, Position]]] = {}
    for node, first, second in marks:
        by_node.setdefault(node, []).append((first, second))
    known = {node: np.array(sorted(some), np.int64).T for node, some in by_node.items()}
    schema = StructType([*table.schema.fields, *(StructField(name, LongType()) for name in names)])
    return table.mapInArrow(partial(_marked, known, names, choose), schema)


def _marked(
    marks: Mapping[str, Numbers],
    names: tuple[str, str],
    choose: Choice,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with mark_errors():
        for batch in batches:
            numbers = {
                field.name: batch.column(field.name).to_numpy(zero_copy_only=False)
                for field in batch.schema
                if field.type == pa.int64()
            }
            nodes = batch.column("node").dictionary_encode()
            of_row = nodes.indices.to_numpy(zero_copy_only=False)
            for number, node in enumerate(nodes.dictionary.to_pylist()):
                if node in marks:
                    rows = np.flatnonzero(of_row == number)
                    firsts, seconds = marks[node]
                    some = {name: column[rows] for name, column in numbers.items()}
                    chosen, index = _each(*choose(some, firsts, seconds))
                    columns = batch.take(pa.array(rows[chosen])).columns
                    there = [pa.array(firsts[index]), pa.array(seconds[index])]
                    yield pa.RecordBatch.from_arrays(
                        [*columns, *there], names=[*batch.schema.names, *names]
                    )


def _each(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """Return (row, mark) for each mark in the range of each row; the end is exclusive."""
    counts = np.maximum(high - low, 0)
    rows: Numbers = np.repeat(np.arange(len(counts)), counts)
    before: Numbers = np.repeat(np.cumsum(counts) - counts, counts)
    return rows, np.repeat(low, counts) + np.arange(len(rows)) - before


def next_checkpoint(
    columns: Mapping[str, Numbers], begun: Numbers, _completed: Numbers
) -> tuple[Numbers, Numbers]:
    """Choose the first checkpoint that begins behind ``at``."""
    low = np.searchsorted(begun, columns["at"], side="right")
    return low, np.minimum(low + 1, len(begun))


def cuts_within(
    columns: Mapping[str, Numbers], cuts: Numbers, firsts: Numbers
) -> tuple[Numbers, Numbers]:
    """Choose cuts between ``at`` and ``until`` that may cut off ``ref``."""
    # Each cut removes more than the one before; if a log violates that, more are chosen.
    reached = np.maximum.accumulate(firsts)
    behind = np.searchsorted(cuts, columns["at"], side="right")
    low = np.maximum(behind, np.searchsorted(reached, columns["ref"], side="right"))
    return low, np.searchsorted(cuts, columns["until"], side="left")


def cuts_behind(
    columns: Mapping[str, Numbers], cuts: Numbers, firsts: Numbers
) -> tuple[Numbers, Numbers]:
    """Choose cuts behind ``at`` that may keep that position."""
    leaving = np.minimum.accumulate(firsts[::-1])[::-1]
    low = np.searchsorted(cuts, columns["at"], side="right")
    return low, np.searchsorted(leaving, columns["at"], side="right")
