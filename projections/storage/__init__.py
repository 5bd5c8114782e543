"""The stored form of the projections, and the loader that reads it."""

from projections.storage.format import (
    GONE,
    HISTORY,
    MARK,
    MARK_KEY,
    RETAINED,
    SESSION,
    BadProjection,
    OtherVersion,
    ProjectionMark,
    StoredEntry,
    decode_entry,
    key_of,
    mark_of,
    retained_body,
    retained_of,
    version_tag,
)
from projections.storage.loading import LoadedProjections, ProjectionLoader, SessionVisitor

__all__ = [
    "GONE",
    "HISTORY",
    "MARK",
    "MARK_KEY",
    "RETAINED",
    "SESSION",
    "BadProjection",
    "LoadedProjections",
    "OtherVersion",
    "ProjectionLoader",
    "ProjectionMark",
    "SessionVisitor",
    "StoredEntry",
    "decode_entry",
    "key_of",
    "mark_of",
    "retained_body",
    "retained_of",
    "version_tag",
]
