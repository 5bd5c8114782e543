"""The log in JetStream, and the data that is kept beside it.

``Journal`` commits in groups and releases the output that waits for the disk. ``EventLog`` is the
stream of one node, ``MessageStore`` the published messages by position, ``KeyedStore`` the stream
of the projections, ``Watermark`` a note of the last record of the log. ``salvage`` copies the
intact part of a damaged log. The modules are loaded lazily: a tool that reads the log needs few.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.log.conditional_append import Appended, append_behind
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.journal import ENTRY_BYTES, Clock, Journal
    from eventstore.log.journal_stats import Histogram, JournalStats
    from eventstore.log.keyed_store import KeyedStore
    from eventstore.log.log_start import (
        LostBeginning,
        RecordedCut,
        check_beginning,
        check_first,
        find_cut,
    )
    from eventstore.log.log_writer import LogWriter, StoreRecovery
    from eventstore.log.message_store import (
        Message,
        MessageStore,
        StoredMessages,
        messages_of,
        properties_of,
        retained_when_released,
    )
    from eventstore.log.pending_record import (
        LARGE_PAYLOAD,
        GatedOutput,
        OutputSink,
        PendingRecord,
        RecordStore,
    )
    from eventstore.log.record_reader import (
        LogTail,
        read_records,
        read_some,
        read_stored,
        read_tail,
    )
    from eventstore.log.watermark import Watermark

__all__ = [
    "ENTRY_BYTES",
    "LARGE_PAYLOAD",
    "Appended",
    "Clock",
    "EventLog",
    "GatedOutput",
    "Histogram",
    "Journal",
    "JournalStats",
    "KeyedStore",
    "LogTail",
    "LogWriter",
    "LostBeginning",
    "Message",
    "MessageStore",
    "OutputSink",
    "PendingRecord",
    "RecordStore",
    "RecordedCut",
    "StoreRecovery",
    "StoredMessages",
    "Watermark",
    "append_behind",
    "check_beginning",
    "check_first",
    "find_cut",
    "messages_of",
    "properties_of",
    "read_records",
    "read_some",
    "read_stored",
    "read_tail",
    "retained_when_released",
]

_MODULE_OF = {
    "EventLog": "jetstream_log",
    "LogTail": "record_reader",
    "LogWriter": "log_writer",
    "StoreRecovery": "log_writer",
    "read_records": "record_reader",
    "read_some": "record_reader",
    "read_stored": "record_reader",
    "read_tail": "record_reader",
    "ENTRY_BYTES": "journal",
    "LARGE_PAYLOAD": "pending_record",
    "Clock": "journal",
    "GatedOutput": "pending_record",
    "Journal": "journal",
    "OutputSink": "pending_record",
    "PendingRecord": "pending_record",
    "RecordStore": "pending_record",
    "Histogram": "journal_stats",
    "JournalStats": "journal_stats",
    "KeyedStore": "keyed_store",
    "LostBeginning": "log_start",
    "RecordedCut": "log_start",
    "check_beginning": "log_start",
    "check_first": "log_start",
    "find_cut": "log_start",
    "Message": "message_store",
    "MessageStore": "message_store",
    "StoredMessages": "message_store",
    "messages_of": "message_store",
    "properties_of": "message_store",
    "retained_when_released": "message_store",
    "Appended": "conditional_append",
    "append_behind": "conditional_append",
    "Watermark": "watermark",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the module of a public name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
