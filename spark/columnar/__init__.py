"""Reads events column by column, many records at a time: JSON to numpy and Arrow."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.columnar.arrays import (
        indices,
        join_arrays,
        of_flags,
        of_lists,
        of_numbers,
        of_texts,
    )
    from spark.columnar.batch_layout import KIND_NAMES, KIND_VERSIONS, BatchLayout, PlacedEvents
    from spark.columnar.event_fields import SHAPES
    from spark.columnar.event_groups import COUNTED_BY, MESSAGES, EventGroup
    from spark.columnar.integer_columns import Integers, UnusualEvent, integers, sums_before
    from spark.columnar.integer_text import Flags
    from spark.columnar.json_scan import JsonScan
    from spark.columnar.payloads import PayloadAreas
    from spark.columnar.row_filter import PushedFilters, RowFilter
    from spark.columnar.row_widths import MOST_ROWS, cut_rows
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "arrays": "indices join_arrays of_flags of_lists of_numbers of_texts",
            "batch_layout": "BatchLayout KIND_NAMES KIND_VERSIONS PlacedEvents",
            "event_fields": "SHAPES",
            "event_groups": "COUNTED_BY EventGroup MESSAGES",
            "integer_columns": "Integers UnusualEvent integers sums_before",
            "integer_text": "Flags",
            "json_scan": "JsonScan",
            "payloads": "PayloadAreas",
            "row_filter": "PushedFilters RowFilter",
            "row_widths": "MOST_ROWS cut_rows",
        },
    )

__all__ = [
    "COUNTED_BY",
    "KIND_NAMES",
    "KIND_VERSIONS",
    "MESSAGES",
    "MOST_ROWS",
    "SHAPES",
    "BatchLayout",
    "EventGroup",
    "Flags",
    "Integers",
    "JsonScan",
    "PayloadAreas",
    "PlacedEvents",
    "PushedFilters",
    "RowFilter",
    "UnusualEvent",
    "cut_rows",
    "indices",
    "integers",
    "join_arrays",
    "of_flags",
    "of_lists",
    "of_numbers",
    "of_texts",
    "sums_before",
]
