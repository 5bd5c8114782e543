"""Exceptions for events that contradict the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.errors import CorruptLog

if TYPE_CHECKING:
    from eventstore.format import Record

INCONSISTENCIES: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""What is raised for events and snapshots that do not fit together."""


def inconsistency(record: Record, error: Exception) -> CorruptLog:
    """Return the error for a record whose events do not fit to what was before."""
    what = f"holds an event that does not fit: {type(error).__name__}"
    return CorruptLog(record.sequence, what)
