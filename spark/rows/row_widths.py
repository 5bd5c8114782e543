"""Limits the memory of rows that repeat values of their event.

An event about 30 000 messages is short, but each of its rows repeats its session and its filter,
which may have 64 KiB. So the number of rows alone cannot limit a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark.columnar import MESSAGES, SHAPES, TurnGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark.columnar import EventGroup, Integers
    from spark.rows.batch_layout import PlacedEvents

MOST_ROWS: Final = 1 << 15
"""Maximum rows of an Arrow batch."""
_BYTES: Final = 32 << 20
"""Maximum bytes of text repeated by the rows of a batch."""


_TEXTS: Final = {
    kind: [name for name, field in shape.fields.items() if str in field.kinds]
    for kind, shape in SHAPES.items()
}
"""Event type -> its fields of text, which all of its rows repeat."""


def cut_rows(made: Sequence[PlacedEvents], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Split a range of rows into ranges of one batch each."""
    sums = _sums(made, stop)
    while start < stop:
        end = min(start + MOST_ROWS, stop)
        if sums is not None:
            within = int(np.searchsorted(sums, sums[start] + _BYTES, "right")) - 1
            end = max(start + 1, min(end, within))
        yield start, end
        start = end


def _sums(made: Sequence[PlacedEvents], stop: int) -> Integers | None:
    """Return for each row the bytes repeated by all rows before it; None: few in total."""
    widths = [(one, _widths(one.group)) for one in made if not one.group.single]
    if sum(int(width @ one.group.counts) for one, width in widths) <= _BYTES:
        return None
    sums = np.zeros(max(stop, *(int(one.rows[-1]) + 1 for one, _ in widths)) + 1, np.int64)
    for one, width in widths:
        sums[one.rows + 1] = width[one.group.event_of]
    return np.cumsum(sums)


def _widths(group: EventGroup) -> Integers:
    """Return the approximate bytes that each row repeats of its event."""
    widths = np.zeros(len(group), np.int64)
    for name in _TEXTS[group.kind]:
        begins, ends, _ = group.string_span(name)
        widths += ends - begins
    if group.kind in MESSAGES:
        widths += group.longest("topics")
    return widths
