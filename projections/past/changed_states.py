"""The changes between two records of a log, found with its index.

Only the sessions that occur in records between the two are compared, and for each only the records
after its last saved state are read. Retained messages have no saved states: the records between the
two are read, which show what was set and removed, but not the messages before that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from eventstore.format.event_parsing import Event, parse_event
from eventstore.format.events import (
    MessagePublished,
    Released,
    RetainedExpired,
)
from eventstore.format.node_events import RetainedCleared, RetainedSnapshot
from eventstore.format.positions import INDEX_BITS, MAX_INDEX, Position, from_runs, position
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import retained_when_released
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.keys import SESSION
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.segment import BadIndex
from projections.past.indexed_sessions import IndexedSessions, count_entries
from projections.past.replay import Replay
from projections.past.topic_lookup import carriers_in
from projections.state.retained import RetainedIndex, RetainedMessage, repeated_messages
from projections.views.differences import ChangedSession, session_facts

_SESSIONS_AT_ONCE: Final = 10_000
"""Number of sessions whose states are in memory at the same time."""


class ChangedStates:
    """The changes between the states after two records of a log.

    Raises the errors of reading the log.
    """

    def __init__(
        self, source: LogSource, before: int, after: int, pause: Callable[[], Awaitable[None]]
    ) -> None:
        """``before`` is not greater than ``after``; ``pause`` is awaited from time to time."""
        self.done = 0
        """Number of sessions compared, or of records read, by the method that runs."""
        self._pause = pause
        self._source = source
        self._before = before
        self._after = after
        self._sessions = IndexedSessions(source)
        self._repeated: dict[Position, RetainedMessage] | None = None

    async def names(self) -> list[str]:
        """Return the sessions that may differ, sorted.

        Raises BadIndex if the index does not suffice, CutOff if the states are not known.
        """
        source, index = self._source, self._source.index
        names: set[str] = set()
        if not await self._sessions.covers(position(self._before, MAX_INDEX)):
            if index.empty:
                await Replay(source, self._before).to(LogPoint(self._before))
            raise BadIndex("the index does not cover the first moment")
        until = min(self._after, index.last)
        if self._before < until:
            for number, name in enumerate(index.names(SESSION, self._before + 1, until)):
                names.add(name)
                if number % _SESSIONS_AT_ONCE == 0:
                    await self._pause()
        if self._after > index.last:
            async for record in source.records(index.last + 1, self._after):
                names.update(raw["session"] for raw in record.raw_events if raw.get("session"))
                await self._pause()
        return sorted(names)

    async def sessions(self, names: Iterable[str]) -> AsyncIterator[ChangedSession]:
        """Yield the sessions that differ, in the order of ``names``; raises BadIndex."""
        sessions, remaining = self._sessions, iter(names)
        self.done = 0
        while chosen := list(islice(remaining, _SESSIONS_AT_ONCE)):
            old = await sessions.all_at(chosen, self._before, self._pause)
            facts = {
                name: None if state is None else session_facts(state) for name, state in old.items()
            }
            old.clear()
            new = await sessions.all_at(chosen, self._after, self._pause)
            for name, state in new.items():
                now = None if state is None else session_facts(state)
                if now != facts[name]:
                    yield ChangedSession(name, facts[name], now)
            self.done += len(chosen)

    async def retained(self) -> dict[str, int | None]:
        """Return the topics whose retained message was set or removed between the two.

        The value is the payload size of the current message, None if there is none.
        """
        source = self._source
        self.done = 0
        if self._before >= self._after:
            return {}
        first = self._before + 1
        # The turn of the first record takes effect with its last part.
        first = max(source.begin, first - (await source.some([first]))[0].part)
        carried = await carriers_in(source, last=self._after)
        changes, turns = _RetainedChanges(), TurnAssembler()
        async for record in source.records(first, self._after):
            for part in turns.take(record)[1]:
                for at, event in _retained_events(part):
                    if isinstance(event, Released):
                        await self._load_unreleased(changes, event, first, carried)
                    changes.take(part, event, position(part.sequence, at))
            self.done = record.sequence - first + 1
            await self._pause()
        return changes.sizes()

    async def _load_unreleased(
        self,
        changes: _RetainedChanges,
        event: Released,
        first: int,
        carried: dict[int, list[int]],
    ) -> None:
        """Read the retained messages that were sent before the first record and are released."""
        refs = {ref for ref in from_runs(event.refs) if ref < position(first, 0)}
        if not refs:
            return
        old = {ref >> INDEX_BITS for ref in refs}
        sequences = {at for sequence in old for at in carried.get(sequence, [sequence])}
        kept = {sequence for sequence in sequences if sequence >= self._source.begin}
        messages: dict[Position, RetainedMessage] = {}
        for record in await self._source.some(kept) if kept else ():
            messages.update(_retained_at_qos2(record))
        if len(kept) < len(sequences):
            messages = {**await self._repeated_before(first), **messages}
        changes.load_unreleased(event.session, [messages[ref] for ref in refs & messages.keys()])

    async def _repeated_before(self, first: int) -> dict[Position, RetainedMessage]:
        """Return the messages from before the beginning of the log that checkpoints repeat."""
        if self._repeated is None:
            self._repeated = {}
            begin = self._source.begin
            async for record in read_listed(
                self._source, lambda index: index.rare("RetainedSnapshot", begin), begin, first - 1
            ):
                self._repeated.update(_retained_at_qos2(record))
        return self._repeated


class _RetainedChanges(RetainedIndex):
    """The retained messages that were set or removed; what was retained before is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.dirty = {}

    def take(self, record: Record, event: Event, at: Position) -> None:
        """Apply an event."""
        if isinstance(event, MessagePublished):
            self.published(event, at, record.steady_ms, record.pieces(event))
        elif isinstance(event, (RetainedCleared, RetainedExpired)):
            for topic in event.topics:
                self.load(RetainedMessage(topic, b"", 0, 0))
        else:
            self.other(event)

    def sizes(self) -> dict[str, int | None]:
        """Return the payload size of each topic that changed; None: its message was removed."""
        return {
            topic: len(message.payload) if (message := self.get(topic)) is not None else None
            for topic in self.dirty or ()
        }


_KINDS: Final = frozenset(
    {
        "Released",
        "InboundReplaced",
        "RetainedCleared",
        "RetainedExpired",
        "SessionExpired",
        "SessionOpened",
    }
)


def _retained_events(record: Record) -> Iterator[tuple[int, Event]]:
    """Yield the events that concern retained messages; others are not parsed."""
    index = 0
    for raw in record.raw_events:
        kind = raw["e"]
        if kind in _KINDS or (kind == "MessagePublished" and raw.get("retain")):
            yield index, parse_event(raw)
        index += count_entries(raw)


def _retained_at_qos2(record: Record) -> Iterator[tuple[Position, RetainedMessage]]:
    """Yield the messages that are retained with their PUBREL, by their positions."""
    for raw in record.raw_events:
        event = parse_event(raw) if raw["e"] == "RetainedSnapshot" else None
        if isinstance(event, RetainedSnapshot) and event.session is not None:
            for repeated in repeated_messages(event, record.pieces(event)):
                yield repeated.ref, repeated
    for ref, message in retained_when_released(record):
        yield ref, RetainedMessage(message.topic.decode(), message.payload, 2, ref)
