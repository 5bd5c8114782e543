"""Lookup of topics: by a filter, and for messages that events name by position."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import INDEX_BITS, Position, from_runs, position
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.log_index import LogIndex
from eventstore.reading.progress import Progress, silent
from projections.past.message_story import topic_of
from projections.views.session_view import Published
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import validate_topic_filter

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

_KNOWN_TOPICS = 100_000
_KNOWN_MESSAGES = 1_000_000
_LOAD = 256


def topic_matcher(topic_filter: str) -> Callable[[str], bool]:
    """Return a function that returns whether a filter matches a topic.

    Raises TopicError for an invalid filter.
    """
    validate_topic_filter(topic_filter)
    trie: FilterTrie[bool] = FilterTrie()
    trie.insert(topic_filter, "", True)
    answers: dict[str, bool] = {}

    def matches(topic: str) -> bool:
        matching = answers.get(topic)
        if matching is None:
            if len(answers) >= _KNOWN_TOPICS:
                answers.clear()
            matching = answers[topic] = bool(trie.match(topic))
        return matching

    return matches


class _Held(NamedTuple):
    """Messages of one event, adjacent in the log."""

    first: Position
    """Position of the first message."""
    messages: int
    event: MessagePublished | MessagesCarried | RetainedSnapshot
    start: int
    """Index of the first message in the event."""
    time_ms: int | None
    copied_ms: int | None = None


class MessageTopics:
    """The topics of messages by position: a bounded number in memory, the rest read from the log.

    Messages from before the beginning of a cut log are known if the log repeats them. ``carriers``
    maps records that were cut off to the records that repeat their messages. Without it only
    messages passed to :meth:`note` are known; with ``thorough`` the log is searched for them when
    they are needed.
    """

    def __init__(
        self,
        source: LogSource,
        carriers: Mapping[int, list[int]] | None = None,
        *,
        thorough: bool = False,
        progress: Progress = silent,
    ) -> None:
        self._source = source
        if carriers is None and not thorough:
            carriers = {}
        self._carriers = Carriers(source, progress, carriers)
        self._records: OrderedDict[int, list[_Held]] = OrderedDict()
        self._count = 0

    def note(
        self, base: Position, events: Iterable[tuple[int, Event]], time_ms: int | None = None
    ) -> None:
        """Remember the messages that a record published.

        ``base`` is its position, ``events`` are all its events, ``time_ms`` is the time of the
        record.
        """
        sequence = base >> INDEX_BITS
        if sequence in self._records:
            return
        messages: list[_Held] = []
        for at, event in events:
            if isinstance(event, MessagePublished):
                messages.append(_Held(base + at, event.count, event, 0, time_ms))
            elif isinstance(event, RetainedSnapshot) and event.session is None:
                messages.append(_Held(base + at, event.count, event, 0, None, time_ms))
            elif isinstance(event, MessagesCarried):
                for start, ref in enumerate(from_runs(event.refs)):
                    self._note_carried(_Held(ref, 1, event, start, None))
        self._records[sequence] = messages
        self._count += _weight(messages)
        while self._count > _KNOWN_MESSAGES and len(self._records) > 1:
            _, oldest = self._records.popitem(last=False)
            self._count -= _weight(oldest)

    def _note_carried(self, carried: _Held) -> None:
        sequence = carried.first >> INDEX_BITS
        if sequence not in self._records:
            self._records[sequence] = []
            self._count += 1
        held = self._records[sequence]
        at = bisect_left(held, carried.first, key=_first)
        if at == len(held) or held[at].first != carried.first:
            held.insert(at, carried)
            self._count += 1

    async def load(self, refs: Iterable[Position]) -> None:
        """Load the messages with these positions. Raises CorruptLog or CutMeanwhile."""
        unknown = {ref >> INDEX_BITS for ref in refs if self.get(ref) is None}
        records = await self._carriers.of(unknown)
        # One by one: a set difference with the keys would iterate over all held records.
        missing = sorted(sequence for sequence in records if sequence not in self._records)
        for start in range(0, len(missing), _LOAD):
            for record in await self._source.some(missing[start : start + _LOAD]):
                self.note(position(record.sequence, 0), record.events(), record.time_ms)

    def get(self, ref: Position) -> Published | None:
        """Return the known facts of a message; None if it is not loaded."""
        held = self._records.get(ref >> INDEX_BITS)
        if not held:
            return None
        first, messages, event, start, time_ms, copied_ms = held[
            bisect_right(held, ref, key=_first) - 1
        ]
        if not 0 <= ref - first < messages:
            return None
        offset = ref - first + start
        size = event.sizes if isinstance(event.sizes, int) else event.sizes[offset]
        client = event.session if isinstance(event, MessagePublished) else None
        return Published(topic_of(event, offset), size, time_ms, client, copied_ms)


class Carriers:
    """Where messages are: in their own records, or in those that repeat them after a cut."""

    def __init__(
        self,
        source: LogSource,
        progress: Progress = silent,
        carriers: Mapping[int, list[int]] | None = None,
    ) -> None:
        """``carriers``: see :class:`MessageTopics`; None: the log is searched for them."""
        self._source = source
        self._progress = progress
        self._carriers = carriers

    async def of(self, sequences: set[int]) -> set[int]:
        """Return the records that have the messages of some records; raises as ``carriers_in``."""
        first = self._source.first
        deleted = {sequence for sequence in sequences if sequence < first}
        if deleted and self._carriers is None:
            self._carriers = await carriers_in(self._source, self._progress)
        carriers = self._carriers or {}
        repeated = (at for sequence in deleted for at in carriers.get(sequence, ()))
        return (sequences - deleted) | {at for at in repeated if at >= first}


async def carriers_in(
    source: LogSource, progress: Progress = silent, last: int | None = None
) -> dict[int, list[int]]:
    """Return the records, up to ``last``, that repeat messages, by the messages' own records.

    Raises CorruptLog or CutMeanwhile.
    """
    carriers_of: dict[int, list[int]] = {}
    if source.begin <= 1:
        return carriers_of
    doing = "searching for messages from before the cut"
    with progress(doing, source.last) as update:
        found_in = source.records_with([b'"MessagesCarried"'], update)
        if not source.index.empty:
            until = source.cut_at if last is None else last
            found_in = read_listed(source, _carriers, source.begin, until)
        async for record in found_in:
            for _, event in record.events():
                if isinstance(event, MessagesCarried):
                    for old in {ref >> INDEX_BITS for ref in from_runs(event.refs)}:
                        carriers = carriers_of.setdefault(old, [])
                        if record.sequence not in carriers:
                            carriers.append(record.sequence)
    return carriers_of


def _carriers(index: LogIndex) -> Sequence[int]:
    return index.rare("MessagesCarried")


def _first(held: _Held) -> Position:
    return held.first


def _weight(held: list[_Held]) -> int:
    return sum(messages.messages for messages in held) + 1
