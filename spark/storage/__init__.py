"""The stored logs that Spark reads: in NATS, or in an archive of Parquet files."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.storage.archive_directory import ArchiveExtent, ArchiveWriter, no_room, open_writer
    from spark.storage.archive_ledger import LEDGER_FILE, Ledger
    from spark.storage.archive_log import NODE_DIRECTORY, ArchivedLog, archived_logs, ledger_of
    from spark.storage.directories import Directory, directory_text
    from spark.storage.nats_access import NatsAccess
    from spark.storage.nats_log import NatsLog, look_up
    from spark.storage.node_names import check_claimed_nodes, nodes_of
    from spark.storage.parquet_files import RecordRun, check_file
    from spark.storage.record_checks import CheckedRecord, RecordChecker
    from spark.storage.record_frames import frame_of, mentioning, record_opener
    from spark.storage.stored_log import RecordRange, StoredLog, open_records
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "archive_directory": "ArchiveExtent ArchiveWriter no_room open_writer",
            "archive_log": "ArchivedLog NODE_DIRECTORY archived_logs ledger_of",
            "directories": "Directory directory_text",
            "archive_ledger": "LEDGER_FILE Ledger",
            "nats_access": "NatsAccess",
            "nats_log": "NatsLog look_up",
            "node_names": "check_claimed_nodes nodes_of",
            "parquet_files": "RecordRun check_file",
            "record_checks": "CheckedRecord RecordChecker",
            "record_frames": "frame_of mentioning record_opener",
            "stored_log": "RecordRange StoredLog open_records",
        },
    )

__all__ = [
    "LEDGER_FILE",
    "NODE_DIRECTORY",
    "ArchiveExtent",
    "ArchiveWriter",
    "ArchivedLog",
    "CheckedRecord",
    "Directory",
    "Ledger",
    "NatsAccess",
    "NatsLog",
    "RecordChecker",
    "RecordRange",
    "RecordRun",
    "StoredLog",
    "archived_logs",
    "check_claimed_nodes",
    "check_file",
    "directory_text",
    "frame_of",
    "ledger_of",
    "look_up",
    "mentioning",
    "no_room",
    "nodes_of",
    "open_records",
    "open_writer",
    "record_opener",
]
