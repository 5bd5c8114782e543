"""Search of a log for the histories of messages.

With the index, only records that concern them are read. The ``StoryBuilder`` is the same as for
whole logs. It gets every record that concerns the messages that it follows:

- the records of their publications, and the records that refer to them;
- for a session to which a message was sent, all records until the delivery is complete; for a
  session for which a message waits, the records in which the session begins or ends;
- the limits that applied, and the expiry of retained messages;
- everything that is not indexed yet.
"""

from __future__ import annotations

from heapq import heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Any

from eventstore.errors import UsageError
from eventstore.format.event_parsing import entries
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import (
    INDEX_BITS,
    Position,
    format_position,
    from_runs,
    index_of,
    position,
    sequence_of,
)
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import fetch_listed
from eventstore.reading.keys import LIFECYCLE, RETAINED_EXPIRED, SESSION
from eventstore.reading.progress import Progress, silent
from eventstore.reading.segment import BadIndex
from projections.past.event_reader import refs_of
from projections.past.indexed_sessions import IndexedSessions
from projections.past.receiver_past import add_receiver_past
from projections.past.story_builder import StoryBuilder
from projections.past.subscriber_state import DeniedFilter, describe_subscriber
from projections.past.topic_records import TopicRecords
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from eventstore.format.records import Record
    from eventstore.reading.log_index import LogIndex
    from eventstore.reading.log_source import LogSource
    from projections.past.message_story import MessageStory

_UPDATE_EVERY = 16
_REPEATING = (b'"MessagesCarried"', b'"will":[')
"""Substrings of the records that repeat messages or contain wills."""


async def find_stories(
    source: LogSource,
    *,
    matches: Callable[[str], bool] | None = None,
    last: int = 1,
    topic_filter: str | None = None,
    ref: Position | None = None,
    client: str | None = None,
    until: Position | None = None,
    progress: Progress = silent,
) -> list[MessageStory]:
    """Return the histories of the last messages whose topic ``matches``, or of the one at ``ref``.

    With ``topic_filter``, which must be the filter of ``matches``, the index of the log is used.

    With ``client`` each history shows this session's subscriptions at that time, its earlier
    session if it had none, and messages that were dropped because it did not read. Messages of
    which nothing is known are left out, and those published after ``until``. Raises CorruptLog,
    UnreadableEvent or CutMeanwhile.
    """
    found = await find_indexed_stories(
        source,
        topic_filter=topic_filter,
        matches=matches,
        last=last,
        ref=ref,
        client=client,
        until=until,
    )
    if found is None:
        found = await _read_stories(source, matches, last, ref, client, until, progress)
    if client is not None:
        await add_receiver_past(source, found, client)
    return found


async def _read_stories(
    source: LogSource,
    matches: Callable[[str], bool] | None,
    last: int,
    ref: Position | None,
    client: str | None,
    until: Position | None,
    progress: Progress,
) -> list[MessageStory]:
    """Return the histories of messages from all records of the log."""
    explainer = StoryBuilder(
        wanted=matches, last=last, ref=ref, client=client, begin=source.begin, until=until
    )
    if source.begin > 1:
        with progress("searching for messages from before the cut", source.last) as update:
            async for record in source.records_with(_REPEATING, update):
                explainer.look_ahead(record)
    turns = TurnAssembler()
    with progress("reading", source.last) as update:
        async for record in source.records(source.begin, source.last):
            for part in turns.take(record)[1]:
                _take(explainer, part)
            if record.sequence % _UPDATE_EVERY == 0:
                update(record.sequence)
    return [story for story in explainer.stories.values() if story.known]


def _take(explainer: StoryBuilder, record: Record) -> None:
    try:
        explainer.take(record)
    except INCONSISTENCIES as error:
        raise inconsistency(record, error) from error


async def message_at(source: LogSource, place: Position) -> Position:
    """Return the position of the message at a position, or of the message that its event concerns.

    For a retained message that a checkpoint repeated, it is the earliest position in the log.
    Raises UsageError if there is none, CorruptLog or CutMeanwhile.
    """
    sequence = sequence_of(place)
    if not 1 <= sequence <= source.last:
        raise UsageError(
            f"position {format_position(place)} is beyond the log, whose last record is "
            f"{source.last}"
        )
    if sequence < source.first:
        return place
    record = next(one for one in await source.some([sequence]) if one.sequence == sequence)
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


async def find_indexed_stories(
    source: LogSource,
    *,
    topic_filter: str | None = None,
    matches: Callable[[str], bool] | None = None,
    last: int = 1,
    ref: Position | None = None,
    client: str | None = None,
    until: Position | None = None,
) -> list[MessageStory] | None:
    """Return the histories of messages, as ``projections.past.message_search.find_stories`` does.

    ``matches`` must be the matcher of ``topic_filter``. None: the index does not suffice. Raises
    CorruptLog, UnreadableEvent or CutMeanwhile.
    """
    index = source.index
    if index is None:
        return None
    try:
        sessions = IndexedSessions(source, index)
        refs: list[Position] | None = [ref] if ref is not None else []
        if topic_filter is not None and matches is not None:
            topics = TopicRecords(index, topic_filter, matches)
            refs = await _Latest(source, index, matches, last, until).find(topics.named)
        if refs is None or not all([await sessions.covers(one) for one in refs]):
            return None
        following = _Following(source, index, sessions, refs)
        if refs:
            await following.run()
        stories = [story for story in following.builder.stories.values() if story.known]
        if client is not None and not await _add_subscriber_state(
            source, sessions, stories, client
        ):
            return None
    except BadIndex:
        return None
    return stories


async def _add_subscriber_state(
    source: LogSource, sessions: IndexedSessions, stories: Iterable[MessageStory], client: str
) -> bool:
    """Add a session's subscriptions to the histories; return whether they could be determined."""
    for story in stories:
        if not story.effective or story.topic is None:
            continue
        state, found = await sessions.before(client, story.effective_at)
        rows = found.rows()
        if rows is None:
            return False
        begin = position(source.begin, 0)
        denied = [DeniedFilter(*row) for row in rows if row[2] >= begin]
        own = story.session == client
        story.subscriber = describe_subscriber(state, story.topic, denied, own=own)
    return True


class _Latest:
    """Finds the latest messages on topics, from the end of the log."""

    def __init__(
        self,
        source: LogSource,
        index: LogIndex,
        matches: Callable[[str], bool],
        last: int,
        until: Position | None,
    ) -> None:
        self._source = source
        self._index = index
        self._matches = matches
        self._last = last
        self._until = until

    async def find(self, named: Sequence[int]) -> list[Position] | None:
        """Return the positions of the messages; None: some may not be indexed.

        ``named`` are the indexed records that name such topics.
        """
        source, index = self._source, self._index
        refs: list[Position] = []
        if self._until is None or self._until >> INDEX_BITS > index.last:
            behind = _MatchingMessages(self._matches, self._last, self._until)
            async for record in source.records(index.last + 1, source.last):
                behind.take(record)
            refs = behind.refs
        look = _FIRST_LOOK
        before = named if self._until is None else _up_to(named, self._until >> INDEX_BITS)
        while len(refs) < self._last:
            left = self._last - len(refs)
            start = max(0, len(before) - look)
            found = _MatchingMessages(self._matches, left, self._until)
            for record in await self._read(named, start, len(before)):
                found.take(record)
            if len(found.refs) == left or not start:
                refs = [*found.refs, *refs]
                break
            look *= 4
        whole = source.begin <= 1 and index.first == 1
        return refs if len(refs) == self._last or whole else None

    async def _read(self, named: Sequence[int], start: int, stop: int) -> list[Record]:
        """Return some of the named records, with all parts of their turns."""
        records = await fetch_listed(self._source, named[start:stop])
        while records and records[0].part and start:
            start -= 1
            records = [*await fetch_listed(self._source, [named[start]]), *records]
        while records and not records[-1].last and stop < len(named):
            records += await fetch_listed(self._source, [named[stop]])
            stop += 1
        return records


class _MatchingMessages:
    """The latest messages of some records."""

    def __init__(self, matches: Callable[[str], bool], last: int, until: Position | None) -> None:
        self._builder = StoryBuilder(wanted=matches, last=last, until=until)
        self._turns = TurnAssembler()

    @property
    def refs(self) -> list[Position]:
        """The positions of these messages."""
        return list(self._builder.stories)

    def take(self, record: Record) -> None:
        """Process the next record."""
        for part in self._turns.take(record)[1]:
            _take(self._builder, part)


class _Following:
    """Reads the records that concern some messages, in the order of the log."""

    def __init__(
        self,
        source: LogSource,
        index: LogIndex,
        sessions: IndexedSessions,
        refs: Sequence[Position],
    ) -> None:
        self._source = source
        self._index = index
        self._sessions = sessions
        self._refs = frozenset(refs)
        self._records = frozenset(ref >> INDEX_BITS for ref in refs)
        self.builder = StoryBuilder(refs=refs, last=len(refs), begin=source.begin)
        self._left: list[int] = []
        self._planned: set[int] = set()
        self._doubtful: set[int] = set()
        """Records that may refer only to other messages of the same records."""
        self._held: dict[int, Record] = {}
        self._next: dict[str, int | None] = {}
        self._known: set[str] = set()
        """Sessions for which it is known whether they end with their connection."""
        self._retained: set[Position] = set()

    async def run(self) -> None:
        """Follow the messages to the end of the log."""
        source, index = self._source, self._index
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
        async for record in source.records(index.last + 1, source.last):
            complete = turns.take(record)[1]
            if complete:
                await self._turn(complete)
                self._known.update(_decided(complete))

    async def _plan_messages(self) -> None:
        """Plan to read the messages, the records that refer to them, and the applicable limits."""
        index = self._index
        records = sorted(self._records)
        for sequence in records:
            if sequence <= index.last:
                await self._plan_turn(sequence)
        # These records assign new positions to messages, also in the turn of the message.
        repeating = set(index.rare("RetainedSnapshot", records[0]))
        new = {*records, *repeating.intersection(self._planned)}
        known = set(new)
        while new:
            found = index.referring(new, index.last)
            doubtful = found - self._planned
            self._plan(doubtful)
            self._doubtful |= doubtful
            new = (found & repeating) - known
            known |= new
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
        for story in self.builder.stories.values():
            if story.retain and story.topic is not None and story.ref not in self._retained:
                self._retained.add(story.ref)
                self._plan(self._index.sequences(RETAINED_EXPIRED + story.topic, after + 1))

    async def _read(self, sequence: int) -> Record:
        """Return a record, and fetch some that follow."""
        found = self._held.pop(sequence, None)
        if found is None:
            some = [sequence, *nsmallest(_AT_ONCE, self._left)]
            missing = [one for one in some if one not in self._held]
            for one in await fetch_listed(self._source, missing):
                self._held[one.sequence] = one
            found = self._held.pop(sequence)
        return found

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
            _take(self.builder, part)

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
            if kind in ("SessionOpened", "SessionExpired") or (
                kind == "SessionClosed" and raw.get("expiry") is not None
            ):
                yield raw["session"]


def _up_to(sequences: Sequence[int], last: int) -> list[int]:
    return [one for one in sequences if one <= last]
