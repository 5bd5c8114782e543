"""Columns of events as numpy arrays, their types checked, and runs expanded many at a time."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.int64]"

MAX: Final = 1 << 24
"""Maximum integers in the runs of one batch: no event may demand more memory."""
_INTEGER: Final = frozenset({int})
_LOWEST, _BEYOND = -(1 << 63), 1 << 63


class UnusualEvent(Exception):  # noqa: N818 - a condition, handled where batches are made
    """Events are invalid, or not written as this version of foldmq writes them."""


def integers(values: Sequence[Any]) -> Integers:
    """Return integers as an array; raise UnusualEvent for other values, and for too large ones."""
    if not _INTEGER.issuperset(map(type, values)):
        raise UnusualEvent("not integers")
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise UnusualEvent("an integer beyond 64 bits") from None


def as_integers(values: Sequence[int]) -> Integers:
    """Return values known to be integers as an array; raise UnusualEvent for too large ones."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        raise UnusualEvent("an integer beyond 64 bits") from None


def sums_before(counts: Integers) -> Integers:
    """Return the sum of all earlier counts for each count."""
    sums = np.cumsum(counts)
    return sums - counts


def numbers_within(counts: Integers) -> Integers:
    """Return 0, 1, 2 ... for each count, one after the other."""
    return np.arange(int(counts.sum())) - np.repeat(sums_before(counts), counts)


def expand(columns: Sequence[Any]) -> tuple[Integers, Integers]:
    """Return the number of integers of each column of runs, and all integers in order.

    The columns are lists of integers and lists. Raises UnusualEvent for an invalid run.
    """
    runs = list(chain.from_iterable(columns))
    lengths = np.fromiter(map(len, columns), np.int64, len(columns))
    try:
        return lengths, as_integers(runs)
    except TypeError:  # lists among them
        pass
    firsts, counts, steps = (integers(part) for part in _split(runs))
    sums = np.concatenate(([0], np.cumsum(counts)))
    ends = np.cumsum(lengths)
    values = np.repeat(firsts, counts) + np.repeat(steps, counts) * numbers_within(counts)
    return sums[ends] - sums[ends - lengths], values


def _split(runs: list[Any]) -> tuple[list[int], list[int], list[int]]:
    firsts: list[int] = []
    counts: list[int] = []
    steps: list[int] = []
    total = 0
    for run in runs:
        first, count, step = (run, 1, 0) if type(run) is int else _three(run)
        total += count
        last = first + (count - 1) * step
        if count < 0 or total > MAX or not (_LOWEST <= last < _BEYOND):
            raise UnusualEvent("a run that is too long")
        firsts.append(first)
        counts.append(count)
        steps.append(step)
    return firsts, counts, steps


def _three(run: Any) -> list[int]:
    if (
        type(run) is not list
        or len(run) != 3
        or not _INTEGER.issuperset(map(type, run))
        or not run[2]
    ):
        raise UnusualEvent("a run that is none")
    return run
