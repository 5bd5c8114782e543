"""The order of retained messages of one topic in different logs.

All logs keep all retained messages. The last one of a topic is the one whose record has the latest
time; if the times are equal, the log with the highest number decides. So all logs end with the same
message, in whatever order they receive the messages.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX = 100_000
"""Maximum number of topics whose last change is remembered; forgotten changes count as old."""


class RetainedVersion(NamedTuple):
    """When a retained message took effect."""

    time_ms: int
    """Time of its record, Unix time in milliseconds."""
    number: int
    """Number of its log."""


class RetainedVersions:
    """The last changes of retained messages, by topic."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, RetainedVersion] = OrderedDict()

    def changed(self, topics: Sequence[bytes], version: RetainedVersion) -> None:
        """Record messages of this log: they are the last ones of their topics here."""
        for topic in topics:
            self._set(topic, version)

    def accepts(self, topic: bytes, version: RetainedVersion) -> bool:
        """Return whether a message of another log is the last one of its topic, and record that."""
        known = self._last.get(topic)
        if known is not None and version < known:
            return False
        self._set(topic, version)
        return True

    def _set(self, topic: bytes, version: RetainedVersion) -> None:
        self._last[topic] = version
        self._last.move_to_end(topic)
        if len(self._last) > _MAX:
            self._last.popitem(last=False)
