"""Reads events column by column, many records at a time: JSON to numpy and Arrow."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.columnar.arrays import (
        Part,
        indices,
        join_arrays,
        joined_texts,
        nulled,
        number_texts,
        of_flags,
        of_lists,
        of_numbers,
        of_texts,
    )
    from spark.columnar.event_fields import SHAPES, TURN_SHAPES
    from spark.columnar.event_groups import COUNTED_BY, MESSAGES, EventGroup
    from spark.columnar.integer_columns import Integers, UnusualEvent, integers, sums_before
    from spark.columnar.integer_text import Flags
    from spark.columnar.json_scan import JsonScan
    from spark.columnar.payloads import PayloadAreas
    from spark.columnar.row_filter import PushedFilters, RowFilter
    from spark.columnar.turn_groups import PropertyBlocks, TurnGroup, groups_of_turns
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "arrays": "Part indices join_arrays joined_texts nulled number_texts of_flags of_lists "
            "of_numbers of_texts",
            "event_fields": "SHAPES TURN_SHAPES",
            "event_groups": "COUNTED_BY EventGroup MESSAGES",
            "integer_columns": "Integers UnusualEvent integers sums_before",
            "integer_text": "Flags",
            "json_scan": "JsonScan",
            "payloads": "PayloadAreas",
            "row_filter": "PushedFilters RowFilter",
            "turn_groups": "PropertyBlocks TurnGroup groups_of_turns",
        },
    )

__all__ = [
    "COUNTED_BY",
    "MESSAGES",
    "SHAPES",
    "TURN_SHAPES",
    "EventGroup",
    "Flags",
    "Integers",
    "JsonScan",
    "Part",
    "PayloadAreas",
    "PropertyBlocks",
    "PushedFilters",
    "RowFilter",
    "TurnGroup",
    "UnusualEvent",
    "groups_of_turns",
    "indices",
    "integers",
    "join_arrays",
    "joined_texts",
    "nulled",
    "number_texts",
    "of_flags",
    "of_lists",
    "of_numbers",
    "of_texts",
    "sums_before",
]
