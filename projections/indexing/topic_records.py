"""The records that concern the topics of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.index import LogIndex


def fixed_prefix(topic_filter: str) -> str:
    """Return the prefix that is common to all topics that a filter with wildcards matches."""
    found: list[str] = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            # "a/#" also matches "a", without the slash.
            return "/".join(found) + ("/" if found and level == "+" else "")
        found.append(level)
    return topic_filter


class TopicRecords:
    """The records of one topic filter, looked up in one index."""

    def __init__(self, index: LogIndex, topic_filter: str, matches: Callable[[str], bool]) -> None:
        """Raise BadIndex."""
        self._index = index
        if "+" in topic_filter or "#" in topic_filter:
            named = index.topics(fixed_prefix(topic_filter), matches)
        else:
            named = index.topic(topic_filter)
        self.named = named
        """Records that name a matching topic."""
        self._named = frozenset(named)

    def concerning(self, last: int) -> set[int]:
        """Return the records, up to one, that may contain an event about a matching message.

        Raises BadIndex.
        """
        found = {one for one in self.named if one <= last}
        found |= self._index.referring(found, last)
        return found | self._index.referring_before(last)

    def may_name(self, sequence: int) -> bool:
        """Return whether a record may contain the publication of a matching message."""
        index = self._index
        return not index.first <= sequence <= index.last or sequence in self._named
