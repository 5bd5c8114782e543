"""Search of a log for the histories of messages.

Of the indexed records, only those that concern them are read. The ``StoryBuilder`` gets every
record that concerns the messages that it follows:

- the records of their publications, and the records that refer to them;
- for a session to which a message was sent, all records until the delivery is complete; for a
  session for which a message waits, the records in which the session begins or ends;
- the limits that applied, and the expiry of retained messages;
- everything that is not indexed yet.

Without an index, the latest messages on topics are found and followed in one pass.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import Any

from eventstore.errors import CutOff, UsageError
from eventstore.format.event_parsing import entries
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import (
    INDEX_BITS,
    Position,
    format_position,
    from_runs,
    index_of,
    position,
    sequence_of,
)
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import asked_of, fetch_listed
from eventstore.reading.keys import LIFECYCLE, RETAINED_EXPIRED, SESSION
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress, silent
from eventstore.reading.segment import BadIndex
from projections.log_proof import cause
from projections.past.event_reader import refs_of
from projections.past.indexed_sessions import IndexedSessions
from projections.past.lost_records import is_salvage, lost_records
from projections.past.message_story import MessageStory, topic_of
from projections.past.receiver_past import add_receiver_past
from projections.past.story_builder import StoryBuilder
from projections.past.subscriber_state import describe_subscriber
from projections.past.topic_lookup import topic_matcher
from projections.past.topic_records import TopicRecords
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency

_UPDATE_EVERY = 16
_REPEATING = (b'"MessagesCarried"', b'"RetainedSnapshot"', b'"will":[')
"""Substrings of the records that repeat messages or contain wills."""


async def find_stories(
    source: LogSource,
    *,
    topic_filter: str | None = None,
    last: int = 1,
    ref: Position | None = None,
    client: str | None = None,
    until: Position | None = None,
    progress: Progress = silent,
) -> list[MessageStory]:
    """Return the histories of the last messages on topics that a filter matches, or of one message.

    With ``client`` each history shows this session's subscriptions at that time, its earlier
    session if it had none, and messages that were dropped because it did not read. Messages of
    which nothing is known are left out, and those published after ``until``. Raises CorruptLog,
    UnreadableEvent or CutMeanwhile.
    """

    async def ask(log: LogSource) -> list[MessageStory]:
        sessions = IndexedSessions(log)
        if ref is None and log.index.empty:
            latest = LatestMessages(topic_matcher(topic_filter or ""), last, until, log.begin)
            builder: StoryBuilder = await _read_behind(log, latest, progress)
        else:
            refs = [ref] if ref is not None else []
            if ref is None:
                refs = await _latest(log, topic_filter or "", last, until, progress)
            if not log.index.empty and not all([await sessions.covers(each) for each in refs]):
                raise BadIndex("the index does not cover a message")
            following = _Following(log, sessions, refs, progress)
            if refs:
                await following.run()
            builder = following.builder
        known = [story for story in builder.stories.values() if story.known]
        if client is not None:
            await _add_subscriber_state(log, sessions, known, client)
        return known

    stories = await asked_of(source, ask)
    if client is not None:
        await add_receiver_past(source, stories, client)
    return stories


async def _not_indexed(source: LogSource, progress: Progress) -> AsyncIterator[Record]:
    """Yield the records behind the index."""
    with progress("reading", source.last) as update:
        async for record in source.records(source.index.last + 1, source.last):
            yield record
            if record.sequence % _UPDATE_EVERY == 0:
                update(record.sequence)


async def _repeating(
    source: LogSource, words: Sequence[bytes], progress: Progress
) -> AsyncIterator[Record]:
    """Yield the records with one of some words that may be about messages from before the cut."""
    with progress("searching for messages from before the cut", source.last) as update:
        async for record in source.records_with(words, update):
            yield record


async def message_at(source: LogSource, place: Position) -> Position:
    """Return the position of the message at a position, or of the message that its event concerns.

    For a retained message that a checkpoint repeated, it is the earliest position in the log.
    Raises UsageError if there is none, CutOff if a salvage gave it up, CorruptLog or CutMeanwhile.
    """
    sequence = sequence_of(place)
    if not 1 <= sequence <= source.last:
        raise UsageError(
            f"position {format_position(place)} is beyond the log, whose last record is "
            f"{source.last}"
        )
    if sequence < source.first:
        return place
    record = next(part for part in await source.some([sequence]) if part.sequence == sequence)
    if is_salvage(record) or not record.raw_events:
        for doubt in await lost_records(source, sequence, sequence):
            if doubt.after < sequence <= doubt.until:
                raise CutOff(f"nothing is known of record {sequence}: {cause(doubt)}")
    for index, event in record.events():
        offset = index_of(place) - index
        if not 0 <= offset < entries(event):
            continue
        if isinstance(event, MessagePublished):
            return place
        refs = refs_of(event)
        if isinstance(event, (MessagesCarried, RetainedSnapshot)):
            refs = from_runs(event.refs)
        if offset < len(refs) and refs[offset] < place:
            return await message_at(source, refs[offset])
        raise UsageError(
            f"position {format_position(place)} is not a message but {event.e}: foldmq log --from "
            f"{format_position(place)} -n 1 shows it"
        )
    raise UsageError(
        f"there is no position {format_position(place)}: record {sequence} ends before"
    )


_AT_ONCE = 16
_FIRST_LOOK = 8
"""Records to read first for the latest messages on a topic; each further attempt reads 4 times as
many."""


async def _add_subscriber_state(
    source: LogSource, sessions: IndexedSessions, stories: Iterable[MessageStory], client: str
) -> None:
    """Add a session's subscriptions to the histories, where they are known."""
    for story in stories:
        if not story.effective_at or story.topic is None:
            continue
        state, denied = await sessions.before(client, story.effective_at)
        if state is None and not await sessions.covers(story.effective_at):
            continue
        begin = position(source.begin, 0)
        filters = [each for each in denied.filters() if each.at >= begin]
        own = story.session == client
        story.subscriber = describe_subscriber(state, story.topic, filters, own=own)


async def _latest(
    source: LogSource, topic_filter: str, count: int, until: Position | None, progress: Progress
) -> list[Position]:
    """Return the positions of the latest messages on topics, searched from the end of an index.

    Raises BadIndex if some may not be indexed.
    """
    index, matches = source.index, topic_matcher(topic_filter)
    named = TopicRecords(index, topic_filter, matches).named
    refs: list[Position] = []
    if until is None or sequence_of(until) > index.last:
        behind = await _read_behind(source, LatestMessages(matches, count, until), progress)
        refs = [*behind.stories]
    end = index.last if until is None else sequence_of(until)
    before = [number for number in named if number <= end]
    look = _FIRST_LOOK
    while len(refs) < count:
        start = max(0, len(before) - look)
        indexed = LatestMessages(matches, count - len(refs), until)
        for record in await _turns_of(source, named, start, len(before)):
            indexed.take_turn(record)
        if len(indexed.refs()) == count - len(refs) or not start:
            refs = [*indexed.refs(), *refs]
            break
        look *= 4
    if len(refs) < count and max(source.begin, index.first) > 1:
        raise BadIndex("older messages may not be indexed")
    return refs


async def _turns_of(source: LogSource, named: Sequence[int], start: int, stop: int) -> list[Record]:
    """Return some of the named records, with all parts of their turns."""
    records = await fetch_listed(source, named[start:stop])
    while records and records[0].part and start:
        start -= 1
        records = [*await fetch_listed(source, [named[start]]), *records]
    while records and not records[-1].last and stop < len(named):
        records += await fetch_listed(source, [named[stop]])
        stop += 1
    return records


async def _read_behind(
    source: LogSource, latest: "LatestMessages", progress: Progress
) -> "LatestMessages":
    """Find the latest messages behind the index, and follow them to the end of the log."""
    if source.index.empty and source.begin > 1:
        async for record in _repeating(source, _REPEATING, progress):
            latest.look_ahead(record)
        latest.refs()
    async for record in _not_indexed(source, progress):
        latest.take_turn(record)
    latest.refs()
    return latest


class LatestMessages(StoryBuilder):
    """Finds the latest matching messages of some records, and follows them in the same pass.

    Also those from before the log that the records repeat. ``begin`` is the sequence of the log's
    first record. Up to twice ``count`` messages are followed until :meth:`refs` is called.
    """

    def __init__(
        self, matches: Callable[[str], bool], count: int, until: Position | None, begin: int = 1
    ) -> None:
        super().__init__((), begin)
        self._matches, self._count, self._until = matches, count, until
        self._turns = TurnAssembler()
        self._wills: set[Position] = set()
        """Wills from before the beginning, which are no messages yet."""

    def refs(self) -> list[Position]:
        """Return the positions of these messages in the order of the log, and keep no others."""
        self.keep(sorted(self.stories.keys() - self._wills)[-self._count :])
        return [*self.stories]

    def look_ahead(self, record: Record) -> None:
        """Process a record that repeats messages or has wills; call it for all of these first."""
        for _, event in record.events():
            if isinstance(event, SessionSnapshot) and event.state.get("will") is not None:
                self._wills.add(event.state["will"][3])
            elif isinstance(event, (MessagesCarried, RetainedSnapshot)):
                self._choose(event, from_runs(event.refs))
        super().look_ahead(record)

    def take_turn(self, record: Record) -> None:
        """Process the next record, with the others of its turn as soon as that is complete."""
        for part in self._turns.take(record)[1]:
            try:
                self.take(part)
            except INCONSISTENCIES as error:
                raise inconsistency(part, error) from error

    def _published(self, event: MessagePublished, at: Position, ms: int) -> None:
        if self._until is None or at <= self._until:
            self._choose(event, range(at, at + event.count))
        super()._published(event, at, ms)

    def _repeated(self, event: RetainedSnapshot, at: Position, ms: int) -> None:
        followed = len(self.stories)
        self._choose(event, from_runs(event.refs))
        if len(self.stories) > followed:
            self.refs()  # in the order of the log again
        super()._repeated(event, at, ms)

    def _choose(
        self, event: MessagePublished | MessagesCarried | RetainedSnapshot, refs: Iterable[Position]
    ) -> None:
        """Follow the latest matching messages of an event."""
        if not any(map(self._matches, event.topics)):
            return
        if len(self.stories) > 2 * self._count:
            self.refs()
        matching = [
            ref
            for offset, ref in enumerate(refs)
            if (isinstance(event, MessagePublished) or self._old(ref))
            and self._matches(topic_of(event, offset))
        ]
        self.follow(sorted(matching)[-self._count :])


class _Following:
    """Reads the records that concern some messages, in the order of the log."""

    def __init__(
        self,
        source: LogSource,
        sessions: IndexedSessions,
        refs: Sequence[Position],
        progress: Progress,
    ) -> None:
        self._source = source
        self._index = source.index
        self._progress = progress
        self._sessions = sessions
        self._refs = frozenset(refs)
        self._records = frozenset(ref >> INDEX_BITS for ref in refs)
        self.builder = StoryBuilder(refs, source.begin)
        self._left: list[int] = []
        self._planned: set[int] = set()
        self._doubtful: set[int] = set()
        """Records that may refer only to other messages of the same records."""
        self._held: dict[int, Record] = {}
        self._next: dict[str, int | None] = {}
        self._known: set[str] = set()
        """Sessions for which it is known whether they end with their connection."""
        self._seen = 0
        """Number of the followed messages for which the expiry of retained ones was planned."""
        self._unclear: list[MessageStory] = []
        """Of these, those from before the log of which it is not known that they are retained."""

    async def run(self) -> None:
        """Follow the messages to the end of the log."""
        source, index = self._source, self._index
        if min(self._refs) < position(source.begin, 0):
            async for record in _repeating(source, _REPEATING[:1], self._progress):
                self.builder.look_ahead(record)
        await self._plan_messages()
        turns = TurnAssembler()
        while self._left:
            record = await self._read(heappop(self._left))
            complete = turns.take(record)[1]
            if complete:
                await self._turn(complete)
                self._plan_sessions(complete[-1].sequence)
            elif not record.last and record.sequence < index.last:
                self._plan([record.sequence + 1])  # where the turn continues
        async for record in _not_indexed(source, self._progress):
            complete = turns.take(record)[1]
            if complete:
                await self._turn(complete)
                self._known.update(_decided(complete))

    async def _plan_messages(self) -> None:
        """Plan to read the messages, the records that refer to them, and the applicable limits."""
        index = self._index
        records = sorted(self._records)
        for sequence in records:
            if index.first <= sequence <= index.last:
                await self._plan_turn(sequence)
        # These records assign new positions to messages, also in the turn of the message.
        repeating = set(index.rare("RetainedSnapshot", records[0]))
        new = {*records, *repeating.intersection(self._planned)}
        seen = set(new)
        while new:
            referring = index.referring(new, index.last)
            doubtful = referring - self._planned
            self._plan(doubtful)
            self._doubtful |= doubtful
            new = (referring & repeating) - seen
            seen |= new
        latest = index.latest_rare("LimitsApplied", records[0])
        if latest is not None and latest >= self._source.begin:
            self._plan([latest])
        self._plan(index.rare("LimitsApplied", records[0]))

    async def _plan_turn(self, sequence: int) -> None:
        """Plan to read a record and the other parts of its turn."""
        self._plan([sequence])
        (record,) = await fetch_listed(self._source, [sequence])
        first = record
        while first.part and first.sequence > self._index.first:
            (first,) = await fetch_listed(self._source, [first.sequence - 1])
            self._plan([first.sequence])
        while not record.last and record.sequence < self._index.last:
            (record,) = await fetch_listed(self._source, [record.sequence + 1])
            if not record.part:
                return  # the turn was never complete
            self._plan([record.sequence])

    def _plan(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._doubtful.discard(sequence)
            if sequence not in self._planned:
                self._planned.add(sequence)
                heappush(self._left, sequence)

    def _plan_sessions(self, after: int) -> None:
        """Plan to read the next record of each session to which a message is in flight."""
        awaited = dict[str, None]()
        for kind, session in self.builder.awaited():
            awaited[session] = None
            key = (SESSION if kind == "sent" else LIFECYCLE) + session
            following = self._next.get(key, 0)
            if following is not None and following <= after:
                following = self._next[key] = self._index.next_after(key, after)
                if following is not None:
                    self._plan([following])
        self._known &= awaited.keys()
        stories = self.builder.stories
        candidates = [
            *self._unclear,
            *islice(reversed(stories.values()), len(stories) - self._seen),
        ]
        self._seen, self._unclear = len(stories), []
        for story in candidates:
            if story.retain and story.topic is not None:
                self._plan(self._index.sequences(RETAINED_EXPIRED + story.topic, after + 1))
            elif story.before:
                self._unclear.append(story)

    async def _read(self, sequence: int) -> Record:
        """Return a record, and fetch some that follow."""
        record = self._held.pop(sequence, None)
        if record is None:
            sequences = [sequence, *nsmallest(_AT_ONCE, self._left)]
            missing = [other for other in sequences if other not in self._held]
            for other in await fetch_listed(self._source, missing):
                self._held[other.sequence] = other
            record = self._held.pop(sequence)
        return record

    async def _turn(self, parts: Sequence[Record]) -> None:
        doubtful = all(part.sequence in self._doubtful for part in parts)
        for part in parts:
            for raw in part.raw_events:
                refs = raw.get("refs")
                own = part.sequence in self._records and raw["e"] == "MessagePublished"
                if own or (refs and self._concerned(refs)):
                    doubtful = False
                    await self._learn(raw, part.sequence - part.part)
        for part in () if doubtful else parts:
            try:
                self.builder.take(part)
            except INCONSISTENCIES as error:
                raise inconsistency(part, error) from error

    def _concerned(self, runs: list[Any]) -> bool:
        refs = from_runs(runs)
        return not self._refs.isdisjoint(refs) or self.builder.follows(refs)

    async def _learn(self, raw: dict[str, Any], sequence: int) -> None:
        """Determine whether the receiving session of a message ends with its connection."""
        session = raw.get("session")
        if session is None or session in self._known:
            return
        self._known.add(session)
        clean = await self._sessions.is_clean(session, sequence)
        self.builder.note_clean(session, clean=clean)


def _decided(parts: Iterable[Record]) -> Iterator[str]:
    """Yield the sessions for which these records show whether they end with their connection."""
    for part in parts:
        for raw in part.raw_events:
            kind = raw["e"]
            if kind in ("SessionOpened", "SessionExpired", "SessionSnapshot") or (
                kind == "SessionClosed" and raw.get("expiry") is not None
            ):
                yield raw["session"]
