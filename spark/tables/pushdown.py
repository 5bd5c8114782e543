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
    unused: list[Filter] = []
    for condition in filters:
        narrowed = _apply(pushed, condition)
        if narrowed is not None:
            pushed = narrowed
        if narrowed is None or condition.attribute[0] not in _NAMES.keys() - {"node"}:  # type: ignore[attr-defined]
            unused.append(condition)
    return pushed, unused


def _apply(pushed: PushedFilters, condition: Filter) -> PushedFilters | None:
    """Return the pushed filters with one added; None if it cannot be used."""
    if isinstance(condition, (EqualTo, EqualNullSafe)):
        (column, *inner), values = condition.attribute, (condition.value,)
    elif isinstance(condition, In):
        (column, *inner), values = condition.attribute, condition.value
    elif isinstance(condition, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        (column, *inner), values = condition.attribute, (condition.value,)
        if column in _NAMES:
            return None
    else:
        return None
    if inner or (isinstance(condition, EqualNullSafe) and condition.value is None):
        return None
    constants = [value for value in values if value is not None]
    if column in _NAMES:
        return _named(pushed, column, constants)
    measure = _MEASURES.get(column)
    if measure is None or not constants:
        return None
    numbers = [number for value in constants if (number := measure(value)) is not None]
    if len(numbers) < len(constants):
        return None
    lowest = None if isinstance(condition, (LessThan, LessThanOrEqual)) else min(numbers)
    highest = None if isinstance(condition, (GreaterThan, GreaterThanOrEqual)) else max(numbers)
    bounds = ("since_ms", "until_ms")
    if column in ("seq", "position"):
        bounds = ("first_sequence", "last_sequence")
    return _between(pushed, bounds, lowest, highest)


def _named(pushed: PushedFilters, column: str, values: list[Any]) -> PushedFilters | None:
    """Add a filter by names."""
    if not all(type(value) is str for value in values):
        return None
    before: frozenset[str] | None = getattr(pushed, _NAMES[column])
    names = frozenset(values)
    named: Any = {_NAMES[column]: names if before is None else names & before}
    return replace(pushed, **named)


def _between(
    pushed: PushedFilters, bounds: tuple[str, str], lowest: int | None, highest: int | None
) -> PushedFilters:
    """Add bounds, of which there may be some; they may be wider than the filter's."""
    fields: dict[str, Any] = {}
    for name, bound, narrower in zip(bounds, (lowest, highest), (max, min), strict=True):
        if bound is not None:
            before = getattr(pushed, name)
            fields[name] = bound if before is None else narrower(before, bound)
    return replace(pushed, **fields)


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
