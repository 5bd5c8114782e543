"""Rows sorted by session, processed one session at a time.

Spark's own grouping passes a whole group to Python at once; a session can have more events than fit
into memory. Here rows are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    import pyarrow as pa

Row: TypeAlias = tuple[Any, ...]

_KEY = itemgetter(0, 1)


class SessionGroup(NamedTuple):
    """The rows of a session; iterate them before taking the next group."""

    node: str
    session: str
    rows: Iterator[Row]
    """All columns, including node and session."""


def sorted_by_session(rows: DataFrame, *then: str) -> DataFrame:
    """Sort rows by session, and within each session by position.

    The first columns are node and session; there is one named position. ``then`` are columns that
    order rows of the same position.
    """
    return rows.repartition("node", "session").sortWithinPartitions(
        F.xxhash64("node", "session"),  # one number distinguishes most sessions
        "node",
        "session",
        "position",
        *then,
    )


def group_by_session(batches: Iterable[pa.RecordBatch]) -> Iterator[SessionGroup]:
    """Yield the sessions in batches of rows sorted by session."""
    rows = chain.from_iterable(map(_rows, batches))
    for (node, session), some in groupby(rows, _KEY):
        yield SessionGroup(node, session, some)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
