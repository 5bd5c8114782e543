"""Positions in the log, and the compact form of the many integers in events.

A *position* names one entry of the log: the stream sequence of its record and the index of the
entry within that record. It is packed into one integer (``sequence << 20 | index``), so that
positions can be sorted, hashed and stored as plain integers; they are displayed as
``sequence.index``.

An event that concerns many messages occupies one index for each of them: each message has its own
position although the messages are stored together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INDEX_BITS: Final[int] = 20
MAX_INDEX: Final[int] = (1 << INDEX_BITS) - 1

Position: TypeAlias = int
"""A packed position: ``sequence << 20 | index``."""

Run: TypeAlias = int | list[int]
"""One integer, or ``[first, count, step]`` for that many integers."""


def position(sequence: int, index: int) -> Position:
    """Pack a stream sequence (from 1) and an index (from 0) into a position."""
    return sequence << INDEX_BITS | index


def sequence_of(packed: Position) -> int:
    """Return the stream sequence of a position."""
    return packed >> INDEX_BITS


def index_of(packed: Position) -> int:
    """Return the index within its record of a position."""
    return packed & MAX_INDEX


def format_position(packed: Position) -> str:
    """Return a position for display: ``sequence.index``."""
    return f"{packed >> INDEX_BITS}.{packed & MAX_INDEX}"


def parse_position(text: str) -> Position:
    """Return the position written as ``sequence`` or ``sequence.index``.

    Raises ValueError when the text is neither.
    """
    sequence, _, index = text.partition(".")
    packed = position(int(sequence), int(index or 0))
    if packed < 0 or int(index or 0) > MAX_INDEX:
        raise ValueError(f"not a position: {text!r}")
    return packed


def to_runs(values: Sequence[int]) -> list[Run]:
    """Return the integers, in order, as runs of constant step.

    A sequence that is one arithmetic progression (by far the most frequent case: neighbours in
    one record, packet identifiers assigned together) is recognized by one comparison in C.
    """
    count = len(values)
    if count < 3:
        return list(values)
    first = values[0]
    step = values[1] - first
    if step and list(values) == list(range(first, first + step * count, step)):
        return [[first, count, step]]
    return _split_runs(values)


def _split_runs(values: Sequence[int]) -> list[Run]:
    runs: list[Run] = []
    start, count = 0, len(values)
    while start < count:
        stop = start + 1
        if stop < count:
            step = values[stop] - values[start]
            while step and stop + 1 < count and values[stop + 1] - values[stop] == step:
                stop += 1
            if stop - start >= 3:
                runs.append([values[start], stop - start + 1, step])
                start = stop + 1
                continue
        runs.append(values[start])
        start += 1
    return runs


def from_runs(runs: Iterable[Run]) -> list[int]:
    """Return the integers that were passed to :func:`to_runs`."""
    values: list[int] = []
    for run in runs:
        if isinstance(run, int):
            values.append(run)
        else:
            first, count, step = run
            values.extend(range(first, first + count * step, step))
    return values


def count_runs(runs: Iterable[Run]) -> int:
    """Return the number of integers in the runs."""
    count = 0
    for run in runs:
        count += 1 if isinstance(run, int) else run[1]
    return count
