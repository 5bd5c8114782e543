"""The records that concern the topics of a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import UnreadableEvent, entries
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import INDEX_BITS, MAX_INDEX, Position, from_runs
from eventstore.format.records import Record
from eventstore.reading.indexed_reading import fetch_listed
from eventstore.reading.keys import DROPPED, TOPIC
from eventstore.reading.log_index import LogIndex
from eventstore.reading.segment import BadIndex
from projections.past.message_story import topic_of

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

_AT_ONCE = 64


def fixed_prefix(topic_filter: str) -> str:
    """Return the prefix that is common to all topics that a filter with wildcards matches."""
    levels: list[str] = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            # "a/#" also matches "a", without the slash.
            return "/".join(levels) + ("/" if levels and level == "+" else "")
        levels.append(level)
    return topic_filter


def worth_reading(named: int, others: int) -> bool:
    """Return whether it pays to read the records that name a topic, to find the other ones."""
    return others > named


class TopicRecords:
    """The records of one topic filter, looked up in one index."""

    def __init__(self, index: LogIndex, topic_filter: str, matches: Callable[[str], bool]) -> None:
        """Look up the records of a filter; ``matches`` is its matcher. Raises BadIndex."""
        self._index = index
        self._topic_filter = topic_filter
        self._matches = matches
        self.named = self._naming(TOPIC)
        """Records that name a matching topic."""
        self._named = frozenset(self.named)
        self._dropped: list[int] | None = None
        self._exact: tuple[int, set[int]] | None = None
        self._concerning: set[int] | None = None

    def _naming(self, kind: str) -> list[int]:
        topic_filter = self._topic_filter
        if "+" in topic_filter or "#" in topic_filter:
            return self._index.topics(fixed_prefix(topic_filter), self._matches, kind=kind)
        return self._index.sequences(kind + topic_filter)

    def _unindexed(self, last: int) -> set[int]:
        """Return the records up to ``last`` that may concern messages in no indexed record.

        They name topics of messages that were dropped, or refer to messages from before the index.
        """
        if self._dropped is None:
            self._dropped = self._naming(DROPPED)
        records = {sequence for sequence in self._dropped if sequence <= last}
        return records | self._index.referring_before(last)

    def concerning(self, last: int) -> set[int]:
        """Return the records up to ``last`` that may contain an event about a matching message.

        Raises BadIndex.
        """
        if self._exact is not None and self._exact[0] == last:
            return self._exact[1]
        if self._concerning is None:
            end = self._index.last
            named = {*self.named}
            self._concerning = named | self._index.referring(named, end) | self._unindexed(end)
        return {sequence for sequence in self._concerning if sequence <= last}

    async def narrow(
        self, source: LogSource, first: int, last: int, most: int | None = None
    ) -> None:
        """Read the named records, at most ``most``, if that reduces the records to read in a range.

        A record that refers to a named one may refer to messages of other topics only: the
        positions of the matching messages distinguish these records.
        """
        named = [number for number in self.named if number <= last]
        if most is not None and len(named) > most:
            self._exact = None
            return
        try:
            others = self.concerning(last).difference(named)
            if not worth_reading(len(named), sum(first <= number for number in others)):
                return
            messages: dict[int, set[int]] = {}
            for start in range(0, len(named), _AT_ONCE):
                for record in await fetch_listed(source, named[start : start + _AT_ONCE]):
                    for at in self._matching(record):
                        messages.setdefault(at >> INDEX_BITS, set()).add(at & MAX_INDEX)
            entries = {sequence: frozenset(records) for sequence, records in messages.items()}
            records = {*named, *self._index.referring_to(entries, last)}
            self._exact = last, records | self._unindexed(last)
        except (BadIndex, CorruptLog, UnreadableEvent):
            self._exact = None  # reading the records reports the problem instead

    def _matching(self, record: Record) -> Iterator[Position]:
        """Yield the positions of the matching messages of a record."""
        at = record.sequence << INDEX_BITS
        for index, event in record.events():
            if not isinstance(event, (MessagePublished, MessagesCarried, RetainedSnapshot)):
                continue
            places: Iterable[Position] = range(at + index, at + index + entries(event))
            if isinstance(event, MessagesCarried):
                places = from_runs(event.refs)
            for number, place in enumerate(places):
                if self._matches(topic_of(event, number)):
                    yield place

    def may_name(self, sequence: int) -> bool:
        """Return whether a record may contain the publication of a matching message."""
        index = self._index
        return not index.first <= sequence <= index.last or sequence in self._named
