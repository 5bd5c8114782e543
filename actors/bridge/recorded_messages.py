"""QoS 1 and 2 messages for NATS: from memory as soon as they are on disk, otherwise from the log.

The log is the queue, and the cursor of the destination ``nats`` says up to where NATS has its
messages. New messages stay in memory until the gate releases them. If NATS does not keep up, or is
unavailable, or a bound is reached, they are dropped from memory, and read from the log later. So a
publication reaches NATS at least once, with the same ``Nats-Msg-Id``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from actors.bridge.to_nats import OutgoingMessages
from eventstore.errors import LogUnavailable
from eventstore.format.destination_events import NATS_DESTINATION
from eventstore.format.events import NATS_SESSION, SessionExpired, SessionOpened
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import INDEX_BITS, Position, position, sequence_of
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import MessageStore, StoredMessages
from eventstore.reading.publications import (
    Publications,
    known_content,
    publications_in,
    publications_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from actors.bridge.subscriber_probes import SubscriberProbes
    from actors.limits.bridge_options import BridgeOptions
    from actors.session.node_context import NodeContext
    from eventstore.format.event_parsing import Event
    from eventstore.format.records import Record
    from eventstore.log.message_store import Message
    from eventstore.log.pending_record import GatedOutput
    from eventstore.reading.publications import PublicationItem, Releases
    from projections.state.destinations import DestinationState

_RECORDS_AT_ONCE = 64
_PAUSE = 0.05
"""Seconds between two checks for new records, or for room."""
_RETRY = 0.5
_SLICE = 0.005
"""Seconds of work after which other work runs."""
_MOST_WAITING, _MOST_WAITING_BYTES = 10_000, 16 * 1024 * 1024
"""Maximum number and bytes of publications in memory."""
_UNRELEASED = 8 * 1024 * 1024
"""Bytes of QoS 2 messages kept until they are released; others are read from the log again."""


@dataclass(eq=False, repr=False)
class RecordedMessages:
    """Sends QoS 1 and 2 messages of the log to NATS; it is the output that waits at the gate.

    ``room`` returns whether NATS accepts more now. ``prefix_of`` returns the prefix of a client's
    subjects now.
    """

    _node: NodeContext
    _options: BridgeOptions
    _flows: SubscriberProbes
    _send: Callable[[OutgoingMessages], None]
    _room: Callable[[], bool]
    _prefix_of: Callable[[str], str]
    _failed: Callable[[BaseException], None]

    def __post_init__(self) -> None:
        self._users: dict[str, str | None] = {}
        """Users of sessions at the current record, if users have prefixes."""
        self._unreleased = MessageStore(_UNRELEASED)
        self._waiting: deque[tuple[int, OutgoingMessages]] = deque()
        """Publications in memory, each with its number."""
        self._waiting_bytes = 0
        self._numbered = self._released = 0
        """Numbers of publications that waited for the gate, and that it released."""
        self._memory_from: Position = 0
        """Position behind which all publications are in memory or sent."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = True
        self._not_before = 0.0
        self._owed_until: Position = 0
        """Unsent messages at the time of a reconnect; they wait until ``_not_before``."""
        self.last: Position = 0
        """The last position passed to the flows."""
        self.reads_ms = 0
        """Time of the record that is being read, Unix time in milliseconds; 0: none is."""
        self.waits_for: GatedOutput | None = None
        self.gated = 0

    @property
    def cursor(self) -> DestinationState | None:
        """The destination in the log; None before the start has recorded it."""
        return self._node.state.destinations.get(NATS_DESTINATION)

    @property
    def through(self) -> Position:
        """The position up to which NATS is recorded to have the messages."""
        cursor = self.cursor
        return cursor.through if cursor is not None else 0

    @property
    def behind(self) -> bool:
        """Whether messages wait that are on disk."""
        return self._stopped or self._task is not None

    @property
    def waiting_ms(self) -> int:
        """Time of the oldest message that waits while NATS is connected, 0: none.

        Of what was sent just now and is not confirmed, that is now.
        """
        unconfirmed = bool(self._waiting) or self.settled() < self.last
        return self.reads_ms or (self._node.clock.time_ms() if unconfirmed else 0)

    @property
    def idle(self) -> bool:
        """Whether NATS is recorded to have all messages that are on disk."""
        return not (self.behind or self._waiting) and self.through >= self.settled() >= self.last

    def add(
        self, qos: int, content: StoredMessages, refs: Sequence[Position], since: Position
    ) -> None:
        """Send messages that take effect from a position on as soon as they are on disk."""
        if content.publishers[0] == NATS_SESSION:
            return
        through = since + len(refs) - 1
        if self._stopped or len(self._waiting) >= _MOST_WAITING or self._too_large(content.size):
            self._forget(through)
            return
        blocks = sum(map(len, content.blocks)) if content.blocks else 0
        leaving = OutgoingMessages(
            *(content.publishers, "", qos, content.retain, content, content.size + blocks, refs),
            *(since, through),
            expires=content.expires,
            publisher_of=content.publisher_of,
        )
        for part in self._by_prefix(leaving, self._prefix_of):
            self._numbered += 1
            self._waiting.append((self._numbered, part))
            self._waiting_bytes += part.size
            self._node.journal.send_when_durable(self, b".")

    def write(self, data: bytes) -> None:
        """Send as many publications as there are bytes: the gate releases them."""
        self._released += len(data)
        if self._stopped or self._task is not None:
            return
        try:
            if not self._send_released():
                self.reads_ms = self._node.clock.time_ms()
                self._begin()
        except Exception as error:  # noqa: BLE001 - the gate goes on; the log has it
            self._failed(error)

    def start(self, grace: float = 0.0) -> None:
        """Send what NATS does not have yet, then continue with new messages.

        It waits for ``grace`` seconds: subscribers, including streams, may not have reconnected.
        """
        self.stop()
        self._stopped = False
        self.last = self.through
        self._not_before = self._node.clock.monotonic() + grace
        self._owed_until = self._node.journal.last
        self._begin()

    def stop(self) -> None:
        """Send nothing more and keep nothing in memory: unsent messages are in the log."""
        self._stopped = True
        self._forget(self._node.journal.last)
        self.reads_ms = 0
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def settled(self) -> Position:
        """Return the position up to which everything was sent to NATS."""
        oldest = self._flows.oldest()
        return self.last if oldest is None else min(self.last, oldest - 1)

    def _too_large(self, size: int) -> bool:
        return bool(self._waiting) and self._waiting_bytes + size > _MOST_WAITING_BYTES

    def _forget(self, through: Position) -> None:
        """Keep nothing in memory: all up to a position is read from the log."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._memory_from = through

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._catch_up(), name="bridge")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _send_released(self) -> bool:
        """Send what the gate released; return False if it must be continued by the task."""
        waiting, until = self._waiting, self._node.clock.stopwatch() + _SLICE
        possible = self._memory_from <= self.last
        while possible and waiting and waiting[0][0] <= self._released:
            leaving = waiting[0][1]
            if leaving.since > self.last:
                possible = self._can_send and self._node.clock.stopwatch() < until
                if not possible:
                    break
                self._send(leaving)
                self.last = max(self.last, leaving.through)
            waiting.popleft()
            self._waiting_bytes -= leaving.size
        self._flows.flush()
        return possible

    @property
    def _can_send(self) -> bool:
        cursor = self.cursor
        return self._room() and (cursor is None or not cursor.paused)

    def _by_prefix(
        self, leaving: OutgoingMessages, prefix_of: Callable[[str], str]
    ) -> list[OutgoingMessages]:
        """Return messages in parts that have the same prefix each."""
        if not self._options.prefixes:
            return [leaving]
        chosen: dict[str, list[int]] = {}
        for number in range(len(leaving.content.topics)):
            chosen.setdefault(prefix_of(leaving.publisher(number)), []).append(number)
        if len(chosen) == 1:
            return [leaving._replace(prefix=next(iter(chosen)))]
        parts = [leaving.select(numbers)._replace(prefix=each) for each, numbers in chosen.items()]
        # They count as sent only when the last part is sent.
        return [*(part._replace(through=part.since - 1) for part in parts[:-1]), parts[-1]]

    # Reading the log.

    async def _catch_up(self) -> None:
        """Send what is missing, first from the log; return when nothing that is on disk waits."""
        sequence, through = self._read_from(self.last), self.last
        turns = TurnAssembler(anywhere=True)
        while True:
            await self._until_possible()
            if self.through > self.last:  # the log was cut, or an operator skipped messages
                self.last = through = self.through
                sequence = max(sequence, sequence_of(through + 1))
                turns = TurnAssembler(anywhere=True)
            if self._memory_from <= self.last:
                if self._send_released():
                    self._task, self.reads_ms = None, 0
                    return
                await asyncio.sleep(0)
                continue
            begin = self._node.state.begin
            if sequence < begin:
                sequence, turns = begin, TurnAssembler(anywhere=True)
            records = await self._records(sequence)
            for record in records:
                self.reads_ms = record.time_ms
                for part in turns.take(record)[1]:
                    await self._send_record(part, through)
                sequence = record.sequence + 1
            if not records:
                await asyncio.sleep(_PAUSE)

    async def _records(self, sequence: int) -> list[Record]:
        """Return some records on disk from one on; empty if there are none, or they were cut."""
        node = self._node
        end = min(node.journal.last_complete_turn, sequence + _RECORDS_AT_ONCE - 1)
        if sequence > end:
            return []
        return await self._unless_unavailable(lambda: _all(node.log.read(sequence, end)), sequence)

    async def _unless_unavailable(
        self, read: Callable[[], Awaitable[list[Record]]], first: int
    ) -> list[Record]:
        """Return records as soon as the log can be read; none if ``first`` was cut off."""
        while True:
            try:
                with self._node.retention.cuts_suspended():
                    records = await read() if first >= self._node.state.begin else []
            except LogUnavailable:
                await asyncio.sleep(_RETRY)
                continue
            # nats-py can lose a cancellation that arrives together with an answer.
            if asyncio.current_task() is not self._task:
                raise asyncio.CancelledError
            return records

    async def _send_record(self, record: Record, through: Position) -> None:
        """Send messages that take effect with the events of a record, after a position."""
        begun = self._node.clock.monotonic()
        for item in self._items(record):
            if self._node.clock.monotonic() - begun > _SLICE:
                await asyncio.sleep(0)
                begun = self._node.clock.monotonic()
            if isinstance(item, StoredMessages):
                self._unreleased.add(item)
            elif item.session != NATS_SESSION and (due := item.after(through)) is not None:
                batches = [due] if isinstance(due, Publications) else await self._content(due)
                for publications in batches:
                    if publications.qos:
                        await self._send_publications(publications)
        self.last = max(self.last, position(record.sequence + 1, 0) - 1)

    def _items(self, record: Record) -> Iterator[PublicationItem]:
        if not self._options.prefixes:
            yield from publications_in(record)
            return
        base = position(record.sequence, 0)
        for index, event in record.events():
            self._learn_user(event)
            yield from publications_of(record, event, base + index)

    async def _send_publications(self, publications: Publications) -> None:
        session, prefix = publications.session, ""
        if self._options.prefixes:
            if session not in self._users:
                self._node.count_dropped("bridge_unknown_user", len(publications), client=session)
                return
            prefix = self._options.prefix(self._users[session])
        content = publications.content
        leaving = OutgoingMessages(
            *((session,), prefix, publications.qos, publications.retain, content),
            content.size + sum(map(len, content.blocks)),
            *(publications.refs, publications.positions[0], publications.positions[-1]),
            expires=publications.expires,
        )
        wait = self._not_before - self._node.clock.monotonic()
        if leaving.since <= self._owed_until and wait > 0:
            await asyncio.sleep(wait)
        await self._until_possible()
        self._send(leaving)
        self.last = leaving.through
        self._flows.flush()

    async def _content(self, releases: Releases) -> list[Publications]:
        """Return released messages, which were published earlier."""
        node_state, recent, store = self._node.state, self._node.messages, MessageStore(1 << 62)

        def find(ref: Position) -> Message | None:
            return self._unreleased.get(ref) or recent.get(ref) or store.get(ref)

        carriers = {
            at
            for ref in releases.refs
            if find(ref) is None
            for at in node_state.carriers_of(ref >> INDEX_BITS)
            if at >= node_state.begin
        }
        if carriers:
            read = partial(self._node.log.read_some, carriers)
            for record in await self._unless_unavailable(read, min(carriers)):
                store.add_record(record)
        publications, missing = known_content(releases, find)
        if missing:
            self._node.count_dropped("bridge_cut", len(missing), client=releases.session)
        return publications

    async def _until_possible(self) -> None:
        while not self._can_send:  # noqa: ASYNC110 - the server sets the pace
            await asyncio.sleep(_PAUSE)

    # Users of sessions.

    def _read_from(self, through: Position) -> int:
        """Return the record to start with, at which the users of all sessions are known."""
        self._users = {}
        sequence = sequence_of(through + 1)
        if not self._options.prefixes:
            return sequence
        node_state = self._node.state
        before = [
            checkpoint.begun for checkpoint in node_state.checkpoints if checkpoint.begun <= through
        ]
        return max(before, default=0) >> INDEX_BITS or node_state.begin

    def _learn_user(self, event: Event) -> None:
        if isinstance(event, SessionOpened):
            self._users[event.session] = event.user
        elif isinstance(event, SessionSnapshot) and event.part == 0:
            self._users[event.session] = event.state.get("user")
        elif isinstance(event, SessionExpired):
            self._users.pop(event.session, None)


async def _all(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]
