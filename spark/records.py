"""Records as the rows of rows=records, with their bytes as they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark.columns import RECORDS
from spark.decoding import as_today
from spark.layout import Layout
from spark.runs import Misfit
from spark.wanted import Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.records import Record
    from spark.checking import Checked

NEED_EVENTS: Final = frozenset({"events", "entries"})
"""Columns for which the events must be read."""


def record_rows(node: str, found: Sequence[Checked], columns: Sequence[str]) -> pa.RecordBatch:
    """Return a row for each record that was found; raises UnreadableEvent."""
    rows = [_row(node, one) for one in found]
    if "entries" in columns:
        counts = _entries([one.record for one in found if one.record is not None])
        for row, one in zip(rows, found, strict=True):
            row["entries"] = counts.get(one.sequence)
    arrays = [pa.array([row.get(name) for row in rows], RECORDS[name]) for name in columns]
    schema = pa.schema([(name, RECORDS[name]) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row(node: str, found: Checked) -> dict[str, Any]:
    row: dict[str, Any] = {
        "node": node,
        "seq": found.sequence,
        "data": found.data,
        "damage": found.damage,
    }
    if found.data is not None:
        row["bytes"] = len(found.data)
    record = found.record
    if record is not None:
        row |= {
            "node": record.node,
            "time": record.time_ms * 1000,
            "time_ms": record.time_ms,
            "link": record.link.hex(),
            "previous": record.previous.hex(),
            "part": record.part,
            "last": record.last,
            "void": found.void,
            "events": len(record.raw_events),
        }
    return row


def _entries(records: Sequence[Record]) -> dict[int, int]:
    """Return how many entries each record has, by its sequence."""
    try:
        layout = Layout(records, Wanted())
    except Misfit:
        layout = Layout([as_today(record) for record in records], Wanted())
    counts = np.bincount(layout.record_of, layout.counts, minlength=len(records))
    sequences = [record.sequence for record in records]
    return dict(zip(sequences, counts.astype(np.int64).tolist(), strict=True))
