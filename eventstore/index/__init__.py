"""The index of a log: the records that concern each session, topic or message.

It is kept in files beside the log and built from the log alone. A reader uses only the parts of it
that the links of the log's records confirm.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from eventstore.index.index_files import IndexFiles
    from eventstore.index.keys import (
        CHECKS,
        DROPPED,
        GROUP_BITS,
        LIFECYCLE,
        RARE,
        REFERRED,
        RETAINED_EXPIRED,
        SESSION,
        STATES,
        TOPIC,
        group_key,
        pack_sequences,
        states_due,
        unpack_sequences,
    )
    from eventstore.index.log_index import LogIndex, SavedState
    from eventstore.index.segment import BadIndex, Segment, SegmentHead, write_segment
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "index_files": "IndexFiles",
            "keys": "CHECKS DROPPED GROUP_BITS LIFECYCLE RARE REFERRED RETAINED_EXPIRED SESSION "
            "STATES TOPIC group_key pack_sequences states_due unpack_sequences",
            "log_index": "LogIndex SavedState",
            "segment": "BadIndex Segment SegmentHead write_segment",
        },
    )

__all__ = [
    "CHECKS",
    "DROPPED",
    "GROUP_BITS",
    "LIFECYCLE",
    "RARE",
    "REFERRED",
    "RETAINED_EXPIRED",
    "SESSION",
    "STATES",
    "TOPIC",
    "BadIndex",
    "IndexFiles",
    "LogIndex",
    "SavedState",
    "Segment",
    "SegmentHead",
    "group_key",
    "pack_sequences",
    "states_due",
    "unpack_sequences",
    "write_segment",
]
