"""The index of a log: built from its records, and used to answer queries without a full scan."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from projections.indexing.indexed_sessions import (
        IndexedSessions,
        SessionAt,
        count_entries,
        session_at,
    )
    from projections.indexing.indexed_stories import find_indexed_stories
    from projections.indexing.segment_builder import SegmentBuilder
    from projections.indexing.topic_records import TopicRecords, fixed_prefix
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "indexed_sessions": "IndexedSessions SessionAt count_entries session_at",
            "indexed_stories": "find_indexed_stories",
            "segment_builder": "SegmentBuilder",
            "topic_records": "TopicRecords fixed_prefix",
        },
    )

__all__ = [
    "IndexedSessions",
    "SegmentBuilder",
    "SessionAt",
    "TopicRecords",
    "count_entries",
    "find_indexed_stories",
    "fixed_prefix",
    "session_at",
]
