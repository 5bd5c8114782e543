"""Copies of logs in new data directories: what is left of a damaged log, and backups."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from eventstore.copies import damaged_log, fresh_log
    from eventstore.copies.damaged_log import Hole, SalvageResult, SessionNeeds, salvage
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "damaged_log": "Hole SalvageResult SessionNeeds damaged_log salvage",
            "fresh_log": "fresh_log",
        },
    )

__all__ = ["Hole", "SalvageResult", "SessionNeeds", "damaged_log", "fresh_log", "salvage"]
