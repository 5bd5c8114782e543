"""The archive job: selects records to archive, and writes them to Parquet files."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.archiving.archive_job import archive, archive_one
    from spark.archiving.archive_plan import PendingArchive, archived_extent, plan_archive
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "archive_job": "archive archive_one",
            "archive_plan": "PendingArchive archived_extent plan_archive",
        },
    )

__all__ = ["PendingArchive", "archive", "archive_one", "archived_extent", "plan_archive"]
