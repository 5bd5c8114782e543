"""Filters of a query that the source can apply."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import floor, isfinite
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from eventstore.format.positions import INDEX_BITS
from spark.tables.row_filter import PushedFilters

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def push_filters(
    pushed: PushedFilters, filters: Iterable[Filter]
) -> tuple[PushedFilters, list[Filter]]:
    """Return the pushed filters with more filters added, and those left to Spark.

    Filters on type and session are applied in full. Those on node, seq, position and time only
    narrow the ranges to read: Spark applies them to the result.
    """
    rest: list[Filter] = []
    for one in filters:
        found = _apply(pushed, one)
        if found is not None:
            pushed = found
        if found is None or one.attribute[0] not in _NAMES.keys() - {"node"}:  # type: ignore[attr-defined]
            rest.append(one)
    return pushed, rest


def _apply(pushed: PushedFilters, one: Filter) -> PushedFilters | None:
    """Return the pushed filters with one added; None if it cannot be used."""
    if isinstance(one, (EqualTo, EqualNullSafe)):
        (column, *inner), values = one.attribute, (one.value,)
    elif isinstance(one, In):
        (column, *inner), values = one.attribute, one.value
    elif isinstance(one, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        (column, *inner), values = one.attribute, (one.value,)
        if column in _NAMES:
            return None
    else:
        return None
    if inner or (isinstance(one, EqualNullSafe) and one.value is None):
        return None
    known = [value for value in values if value is not None]
    if column in _NAMES:
        return _named(pushed, column, known)
    measure = _MEASURES.get(column)
    if measure is None or not known:
        return None
    numbers = [number for value in known if (number := measure(value)) is not None]
    if len(numbers) < len(known):
        return None
    lowest = None if isinstance(one, (LessThan, LessThanOrEqual)) else min(numbers)
    highest = None if isinstance(one, (GreaterThan, GreaterThanOrEqual)) else max(numbers)
    bounds = ("since_ms", "until_ms")
    if column in ("seq", "position"):
        bounds = ("first_sequence", "last_sequence")
    return _between(pushed, bounds, lowest, highest)


def _named(pushed: PushedFilters, column: str, values: list[Any]) -> PushedFilters | None:
    """Add a filter by names."""
    if not all(type(value) is str for value in values):
        return None
    before: frozenset[str] | None = getattr(pushed, _NAMES[column])
    wanted = frozenset(values)
    named: Any = {_NAMES[column]: wanted if before is None else wanted & before}
    return replace(pushed, **named)


def _between(
    pushed: PushedFilters, bounds: tuple[str, str], lowest: int | None, highest: int | None
) -> PushedFilters:
    """Add bounds, of which there may be some; they may be wider than the filter's."""
    found: dict[str, Any] = {}
    for name, bound, narrower in zip(bounds, (lowest, highest), (max, min), strict=True):
        if bound is not None:
            before = getattr(pushed, name)
            found[name] = bound if before is None else narrower(before, bound)
    return replace(pushed, **found)


def _number(value: Any) -> int | None:
    """Return a whole number at or below a numeric value."""
    if type(value) is int:
        return value
    if isinstance(value, (float, Decimal)) and isfinite(value):
        return floor(value)
    return None


def _record(value: Any) -> int | None:
    """Return the sequence of a position."""
    number = _number(value)
    return None if number is None else number >> INDEX_BITS


def _milliseconds(value: Any) -> int | None:
    """Return a time in milliseconds; None for one without a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(milliseconds=1)


_NAMES: Final = {"node": "nodes", "type": "types", "session": "sessions"}
"""Columns of names, and the fields for them."""
_MEASURES: Final[Mapping[str, Callable[[Any], int | None]]] = {
    "seq": _number,
    "position": _record,
    "time_ms": _number,
    "time": _milliseconds,
}
