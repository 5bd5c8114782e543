"""Which records concern topics that a filter matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.index import LogIndex


def fixed_prefix(topic_filter: str) -> str:
    """Return with what all topics begin that a filter with wildcards matches."""
    found: list[str] = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            # What "a/#" matches need not have the slash.
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
        """Records that name a topic that matches."""
        self._named = frozenset(named)

    def concerning(self, last: int) -> set[int]:
        """Return the records up to one that may have an event about a message on such a topic.

        Raises BadIndex.
        """
        found = {one for one in self.named if one <= last}
        found |= self._index.referring(found, last)
        return found | self._index.referring_before(last)

    def may_name(self, sequence: int) -> bool:
        """Return whether a message on such a topic may have been published in a record."""
        index = self._index
        return not index.first <= sequence <= index.last or sequence in self._named
