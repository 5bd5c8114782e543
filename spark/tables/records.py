"""Records as the rows of rows=records, with their stored bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark.tables.columns import Columns
from spark.tables.decoder import Decoder, sparse_rows
from spark.tables.row_filter import RowFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from projections.audit.fact_scan import CheckedRecord

NEED_EVENTS: Final = frozenset({"events", "entries"})
"""Columns that need the events of records."""


def record_rows(
    node: str, found: Sequence[CheckedRecord], columns: Sequence[str]
) -> pa.RecordBatch:
    """Return a row for each found record; raises UnreadableEvent."""
    rows = [_row(node, one) for one in found]
    if NEED_EVENTS & set(columns):
        decoder = Decoder(Columns.of("entries"), RowFilter())
        for row, one in zip(rows, found, strict=True):
            if one.record is not None:
                parsed = decoder.parse(one.record)
                row["events"], row["entries"] = len(parsed.events), parsed.rows
    return sparse_rows(Columns.of("records", columns), rows)


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
