"""Exceptions for events that contradict the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.errors import CorruptLog

if TYPE_CHECKING:
    from eventstore.format.records import Record

INCONSISTENCIES: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""The exceptions raised for events and snapshots that are inconsistent."""


def inconsistency(record: Record, error: Exception) -> CorruptLog:
    """Return the error for a record whose events contradict the state before it."""
    what = f"contains an inconsistent event: {type(error).__name__}"
    return CorruptLog(record.sequence, what)
