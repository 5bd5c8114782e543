"""Topics: which are meant, and those of messages that events name by position only."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cli.source import Source
from cli.sourceflags import UsageError
from cli.text import escaped
from eventstore.events import Event, MessagePublished
from eventstore.positions import INDEX_BITS, Position, position
from projections.explain import topic_of
from protocol.topics import TopicError, validate_topic_filter
from protocol.trie import FilterTrie

_KNOWN_TOPICS = 100_000
_KNOWN_MESSAGES = 1_000_000
_LOAD = 256


class Published(NamedTuple):
    """What is known of a published message without reading its payload."""

    topic: str
    size: int
    """Payload bytes."""


def topic_matcher(topic_filter: str) -> Callable[[str], bool]:
    """Return what tells whether a filter matches a topic; raises UsageError for a bad filter."""
    try:
        validate_topic_filter(topic_filter)
    except TopicError as error:
        raise UsageError(f'topic "{escaped(topic_filter)}": {error}') from None
    trie: FilterTrie[bool] = FilterTrie()
    trie.insert(topic_filter, "", True)
    known: dict[str, bool] = {}

    def matches(topic: str) -> bool:
        found = known.get(topic)
        if found is None:
            if len(known) >= _KNOWN_TOPICS:
                known.clear()
            found = known[topic] = bool(trie.match(topic))
        return found

    return matches


class TopicBook:
    """The topics of messages by position: a bounded part at hand, the rest read from the log."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._records: OrderedDict[int, list[tuple[Position, MessagePublished]]] = OrderedDict()
        self._count = 0

    def note(self, base: Position, events: Iterable[tuple[int, Event]]) -> None:
        """Have what a record published at hand; ``base`` is its position, ``events`` are all."""
        sequence = base >> INDEX_BITS
        if sequence in self._records:
            return
        found = [(base + at, one) for at, one in events if isinstance(one, MessagePublished)]
        self._records[sequence] = found
        self._count += sum(event.count for _, event in found) + 1
        while self._count > _KNOWN_MESSAGES and len(self._records) > 1:
            _, gone = self._records.popitem(last=False)
            self._count -= sum(event.count for _, event in gone) + 1

    async def load(self, refs: Iterable[Position]) -> None:
        """Have the messages with these positions at hand; raises CorruptLog."""
        missing = sorted({ref >> INDEX_BITS for ref in refs} - self._records.keys())
        for start in range(0, len(missing), _LOAD):
            for record in await self._source.some(missing[start : start + _LOAD]):
                self.note(position(record.sequence, 0), record.events())

    def get(self, ref: Position) -> Published | None:
        """Return what is known of a message, None when it is not at hand."""
        held = self._records.get(ref >> INDEX_BITS)
        if not held:
            return None
        at, event = held[bisect_right(held, ref, key=lambda one: one[0]) - 1]
        offset = ref - at
        if not 0 <= offset < event.count:
            return None
        size = event.sizes if isinstance(event.sizes, int) else event.sizes[offset]
        return Published(topic_of(event, offset), size)
