"""Limits the memory of rows that repeat values of their event.

An event about 30 000 messages is short, but each of its rows repeats its session and its filter,
which may have 64 KiB. So the number of rows alone cannot limit a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark.tables.event_fields import SHAPES
from spark.tables.event_groups import MESSAGES
from spark.tables.turn_groups import TurnGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark.tables.batch_layout import PlacedEvents
    from spark.tables.event_groups import EventGroup
    from spark.tables.integer_columns import Integers

MAX_ROWS: Final = 1 << 15
"""Maximum rows of an Arrow batch."""
_BYTES: Final = 32 << 20
"""Maximum bytes of text repeated by the rows of a batch."""
_FEW: Final = _BYTES // 4
"""Bytes up to which the rows of a type need no limit."""


_TEXTS: Final = {
    kind: [name for name, field in shape.fields.items() if str in field.kinds]
    for kind, shape in SHAPES.items()
}
"""Event type -> its fields of text, which all of its rows repeat."""


def cut_rows(made: Sequence[PlacedEvents], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Split a range of rows into ranges of one batch each."""
    sums = _sums(made, stop)
    while start < stop:
        end = min(start + MAX_ROWS, stop)
        if sums is not None:
            within = int(np.searchsorted(sums, sums[start] + _BYTES, "right")) - 1
            end = max(start + 1, min(end, within))
        yield start, end
        start = end


def _sums(made: Sequence[PlacedEvents], stop: int) -> Integers | None:
    """Return for each row the bytes repeated by all rows before it; None: few in total."""
    widths = [
        (one.rows, width) for one in made if (width := _widths_of_rows(one.group)) is not None
    ]
    if sum(int(width.sum()) for _, width in widths) <= _BYTES:
        return None
    sums = np.zeros(max(stop, *(int(rows[-1]) + 1 for rows, _ in widths)) + 1, np.int64)
    for rows, width in widths:
        sums[rows + 1] = width
    return np.cumsum(sums)


def _widths_of_rows(group: EventGroup | TurnGroup) -> Integers | None:
    """Return the approximate bytes that each row of a group repeats; None: few in total."""
    if isinstance(group, TurnGroup):
        return group.widths() if group.longest() * group.total > _FEW else None
    return None if group.single else _widths(group)[group.event_of]


def _widths(group: EventGroup) -> Integers:
    """Return the approximate bytes that each row repeats of its event."""
    widths = np.zeros(len(group), np.int64)
    for name in _TEXTS[group.kind]:
        begins, ends, _ = group.string_span(name)
        widths += ends - begins
    if group.kind in MESSAGES:
        widths += group.longest("topics")
    return widths
