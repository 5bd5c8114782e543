"""Copies of logs: what is left of a damaged one, and backups."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from eventstore.copies import damaged_log, fresh_log
    from eventstore.copies.backup_files import BackupDirectory, Manifest
    from eventstore.copies.damaged_log import Hole, SalvageResult, SessionNeeds, salvage
    from eventstore.copies.log_backup import (
        RESTORED,
        BackupResult,
        RestoreResult,
        back_up,
        restore,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "backup_files": "BackupDirectory Manifest",
            "damaged_log": "Hole SalvageResult SessionNeeds damaged_log salvage",
            "fresh_log": "fresh_log",
            "log_backup": "BackupResult RESTORED RestoreResult back_up restore",
        },
    )

__all__ = [
    "RESTORED",
    "BackupDirectory",
    "BackupResult",
    "Hole",
    "Manifest",
    "RestoreResult",
    "SalvageResult",
    "SessionNeeds",
    "back_up",
    "damaged_log",
    "fresh_log",
    "restore",
    "salvage",
]
