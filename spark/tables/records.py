"""Records as the rows of rows=records, with their stored bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark.tables.arrow_types import RECORDS, schema_of
from spark.tables.batch_layout import BatchLayout
from spark.tables.decoder import upcast_record
from spark.tables.integer_columns import UnusualEvent
from spark.tables.row_filter import RowFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format.records import Record
    from projections.audit.fact_scan import CheckedRecord

NEED_EVENTS: Final = frozenset({"events", "entries"})
"""Columns that need decoded events."""


def record_rows(
    node: str, found: Sequence[CheckedRecord], columns: Sequence[str]
) -> pa.RecordBatch:
    """Return a row for each found record; raises UnreadableEvent."""
    rows = [_row(node, one) for one in found]
    if NEED_EVENTS & set(columns):
        records = [one.record for one in found if one.record is not None]
        counts = {
            record.sequence: count for record, count in zip(records, _counts(records), strict=True)
        }
        for row, one in zip(rows, found, strict=True):
            row["events"], row["entries"] = counts.get(one.sequence, (None, None))
    arrays = [pa.array([row.get(name) for row in rows], RECORDS[name]) for name in columns]
    schema = schema_of("records", columns)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row(node: str, found: CheckedRecord) -> dict[str, Any]:
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
            "steady_ms": record.steady_ms,
            "link": record.link.hex(),
            "previous": record.previous.hex(),
            "part": record.part,
            "last": record.last,
            "void": found.void,
        }
    return row


def _counts(records: Sequence[Record]) -> Sequence[tuple[int, int]]:
    """Return the number of events and entries of each record."""
    try:
        layout = BatchLayout(records, RowFilter())
    except UnusualEvent:
        layout = BatchLayout([upcast_record(record) for record in records], RowFilter())
    events = np.bincount(layout.record_of, minlength=len(records))
    entries = np.bincount(layout.record_of, layout.counts, minlength=len(records))
    return list(zip(events.tolist(), entries.astype(np.int64).tolist(), strict=True))
