"""How much memory rows take that repeat what their event says once.

An event about 30 000 messages is short, and its rows each have its session and its filter, which
may have 64 KiB. So what a batch is bounded by cannot be rows alone.
"""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import TYPE_CHECKING, Final, get_args, get_type_hints

import numpy as np

from eventstore.events import Event
from spark.groups import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark.groups import Group
    from spark.layout import Made
    from spark.runs import Integers

ROWS: Final = 1 << 15
"""Rows of an Arrow batch at most."""
_BYTES: Final = 32 << 20
"""Characters that the rows of a batch may repeat."""


def _is_text(hint: object) -> bool:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return str in kinds


_TEXTS: Final = {
    kind.__name__: [
        field.name
        for field in fields(kind)
        if field.name != "e" and _is_text(get_type_hints(kind)[field.name])
    ]
    for kind in get_args(Event)
}
"""Event type -> its fields of text, which all of its rows have."""


def cut(made: Sequence[Made], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut the rows from one to before another into ranges, each for one batch."""
    sums = _sums(made, stop)
    while start < stop:
        end = min(start + ROWS, stop)
        if sums is not None:
            within = int(np.searchsorted(sums, sums[start] + _BYTES, "right")) - 1
            end = max(start + 1, min(end, within))
        yield start, end
        start = end


def _sums(made: Sequence[Made], stop: int) -> Integers | None:
    """Return for each row what all before it repeat; None: together they do not repeat much."""
    widths = [(one, _widths(one.group)) for one in made if not one.group.single]
    if sum(int(width @ one.group.counts) for one, width in widths) <= _BYTES:
        return None
    sums = np.zeros(max(stop, *(int(one.rows[-1]) + 1 for one, _ in widths)) + 1, np.int64)
    for one, width in widths:
        sums[one.rows + 1] = width[one.group.event_of]
    return np.cumsum(sums)


def _widths(group: Group) -> Integers:
    """Return the characters that each row of an event has of it, about."""
    widths = np.zeros(len(group.events), np.int64)
    for name in _TEXTS[group.kind]:
        widths += [len(text or "") for text in group.field(name)]
    if group.kind in MESSAGES:
        widths += [max(map(len, topics), default=0) for topics in group.field("topics")]
    return widths
