"""Reads the log for the replays of a broker, and shares what it has read among them.

What replays need of a record are the messages that take effect in it. The newest records come from
the journal, without a request to JetStream; others are read some at a time, for one replay after
the other. Replays that ask for the same part of the log get the same decoded records. Where there
is an index, only the records are read that it names.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import structlog

from actors.replay.named_records import RecordIndex
from actors.replay.selection import LastMessages, LogRecord
from actors.session.node_context import NodeContext
from eventstore.errors import (
    CorruptLog,
    EventStoreError,
    Fenced,
    LogUnavailable,
    LostLog,
    UnknownLogFormat,
)
from eventstore.format.positions import INDEX_BITS, Position, position
from eventstore.format.records import Record, decode_record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.jetstream_log import EventLog
from eventstore.log.message_store import Message, MessageStore, StoredMessages, messages_of
from eventstore.log.pending_record import PendingRecord
from eventstore.reading.publications import Publications, Releases, known_content, publications_in
from eventstore.reading.segment import BadIndex
from projections.log_proof import Doubt
from projections.past.lost_records import is_salvage
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from actors.replay.log_cursor import LogCursor

_log = structlog.get_logger("foldmq")

_RECORDS, _BYTES = 64, 1024 * 1024
"""Records read for a replay at a time, and approximate bytes after which no further one is."""
_AHEAD = 64 * 1024 * 1024
"""Approximate bytes of records that all replays together have ahead, but for one record of each."""
_NAMED = 16
"""Records that the index names which are requested at a time."""
_CACHED = 16 * 1024 * 1024
_TAIL = 4 * 1024 * 1024
"""Maximum bytes of decoded records, and of new records that are not decoded yet."""
_UNRELEASED = 8 * 1024 * 1024
"""Bytes of QoS 2 messages kept until they are released; others are read from the log again."""
_RETRY, _UNTIL_STORED = 0.5, 0.01
_PAUSE, _SHARE = 0.001, 9
"""Seconds of decoding after which others run, and length of the pause, relative to that, while
nothing of what is read is sent and others have work. Otherwise the pause is as long as that."""
_MESSAGE, _RECORD = 100, 200
"""Approximate memory of a message without its payload, and of a record, in bytes."""
_OPEN_MS: Final = 1500
"""Age at which no record that could still get events is open."""


class LogReader:
    """Reads a log for the replays of a node; ``log`` None: the log of the node."""

    def __init__(self, node: NodeContext, log: EventLog | None = None) -> None:
        self._node = node
        self._log = node.log if log is None else log
        self.index = RecordIndex(node.clock, self._log)
        self._records: OrderedDict[int, LogRecord] = OrderedDict()
        """Decoded records of complete turns, by sequence."""
        self._size = 0
        self._tail: OrderedDict[int, bytes] = OrderedDict()
        """The newest records as they were stored."""
        self._tail_size = 0
        self._unreleased = MessageStore(_UNRELEASED)
        self._waiting: dict[LogCursor, None] = {}
        self._task: asyncio.Task[None] | None = None
        self.held_before = 0
        """Sequence before which no message is sent, as the log is being cut there; 0: it is not."""
        self._cuts = 0
        """Number of times that such a cut began or ended."""
        self.replays = 1
        """Number of the replays that read."""
        self.records_read = 0
        """Number of records decoded since the start."""
        self._logged_problem = ""

    # Records in memory.

    def stored(self, record: PendingRecord) -> None:
        """Keep a record that is on disk."""
        self._tail[record.sequence] = record.data
        self._tail_size += record.size
        while self._tail_size > _TAIL and self._tail:
            self._tail_size -= len(self._tail.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop everything from memory: there are no replays."""
        self._records.clear()
        self._tail.clear()
        self._size = self._tail_size = 0
        self._unreleased = MessageStore(_UNRELEASED)
        self.index.close()

    @property
    def _most(self) -> int:
        """Approximate bytes of records that are read for a replay at a time."""
        return min(_BYTES, _AHEAD // self.replays)

    def take(self, sequence: int) -> list[LogRecord]:
        """Return consecutive records from memory, beginning with ``sequence``; empty: none."""
        records: list[LogRecord] = []
        size = 0
        while size < self._most and len(records) < _RECORDS:
            record = self._records.get(sequence)
            if record is None:
                break
            self._records.move_to_end(sequence)
            records.append(record)
            size += record.size
            sequence += 1
        return records

    def _keep(self, record: LogRecord) -> None:
        before = self._records.pop(record.sequence, None)
        self._size += record.size - (before.size if before is not None else 0)
        self._records[record.sequence] = record
        while self._size > _CACHED and len(self._records) > 1:
            self._size -= self._records.popitem(last=False)[1].size

    def hold(self, first: int) -> None:
        """Begin, or with 0 end, a cut before a record.

        Records in memory may have messages of which the content will be gone.
        """
        self.held_before = first
        self._cuts += 1
        if first:
            self._records.clear()
            self._size = 0
            self._unreleased = MessageStore(_UNRELEASED)

    # LogCursor.

    @property
    def last(self) -> int:
        """Sequence of the last record that replays may read."""
        return self._node.journal.last_complete_turn

    @property
    def first(self) -> int:
        """Sequence at which the log begins."""
        return max(1, self._log.first, self._node.state.begin)

    @property
    def given_up(self) -> Sequence[Doubt]:
        """The parts of the log that salvages gave up, from the state of the node."""
        return self._node.state.proof.given_up

    def is_settled(self, time_ms: int) -> bool:
        """Return whether no record of a time up to this one will follow those that may be read."""
        journal = self._node.journal
        return self._node.clock.time_ms() > time_ms + _OPEN_MS and journal.durable >= journal.end

    async def _look_again(self) -> None:
        """Determine where the log begins, after records of it could not be read."""

    def _on_damage(self, error: FoldmqError) -> None:
        """Note that the log is damaged."""
        if isinstance(error, CorruptLog):
            self._node.damaged = self._node.damaged or error

    async def _carriers(self, removed: set[int]) -> set[int]:
        """Return the records that repeat messages of records that were cut off."""
        carried = self._node.state.carried
        return {carrier for sequence in removed for carrier in carried.get(sequence, ())}

    def _recent(self, ref: Position) -> Message | None:
        """Return a message that the node has in memory."""
        return self._node.messages.get(ref)

    def request(self, replay: LogCursor) -> None:
        """Read further records for a replay, or determine where it begins."""
        self._waiting.setdefault(replay)
        if self._task is None:
            self._task = self._node.spawn_task(self._run())

    def withdraw(self, replay: LogCursor) -> None:
        """End a request, if there is one."""
        self._waiting.pop(replay, None)

    async def _run(self) -> None:
        try:
            while self._waiting and not self._node.failed.done():
                replay = next(iter(self._waiting))
                try:
                    try:
                        await self._serve(replay)
                    except (CorruptLog, LostLog):
                        await self._look_again()
                        raise
                except LogUnavailable as error:
                    self._log_problem(str(error))
                    await asyncio.sleep(_RETRY)
                except Fenced as error:
                    self._node.fail(error)
                except (EventStoreError, FoldmqError) as error:
                    self._on_error(replay, error)
                except Exception as error:  # noqa: BLE001 - the other replays go on
                    _log.error("a replay failed", exc_info=error)
                    self.withdraw(replay)
                    replay.on_damage(FoldmqError(f"a bug: {error!r}; please report it"))
                else:
                    self._logged_problem = ""
        finally:
            self._task = None

    def _on_error(self, replay: LogCursor, error: FoldmqError) -> None:
        if replay not in self._waiting:
            return
        self.withdraw(replay)
        if replay.last is not None and not replay.last.complete:
            sequence = next_record(replay.last.through)
            if sequence < self.first:
                self.request(replay)  # the log was cut meanwhile: it goes on at its beginning
                return
        if not replay.ahead:
            replay.ahead.extend(self.take(replay.next_ahead))
        if replay.ahead:  # it sends these first, then asks again
            replay.wake()
            return
        sequence = next_record(replay.cursor) if replay.cursor is not None else self.first
        if sequence < self.first:
            replay.on_cut(self.first)
        elif replay.cursor is None and not isinstance(error, UnknownLogFormat | CorruptLog):
            self.request(replay)  # the log was cut while its beginning was looked for
        else:
            self._on_damage(error)
            replay.on_damage(error)

    async def _serve(self, replay: LogCursor) -> None:
        """Read some records for a replay, and for others that wait for the same ones."""
        if replay.cursor is None:
            replay.cursor = self._before_hole(
                await self._beginning(replay.start_ms), replay.start_ms
            )
            if self._waiting.pop(replay, 0) is None:
                replay.wake()
            return
        if replay.last is not None and not replay.last.complete:
            await self._search(replay, replay.last)
            return
        sequence = replay.next_ahead
        if sequence < self.first:
            self.withdraw(replay)
            if not replay.ahead:
                replay.on_cut(self.first)
            return
        if sequence not in self._records and sequence <= self.last:
            indexed = await self._read_named(replay, sequence, fruitless=replay.fruitless)
            if indexed is not None:
                self._pass_on(replay, sequence, *indexed)
                return
            await self._read_from(sequence, fruitless=replay.fruitless)
            if sequence not in self._records:  # the turn is not complete yet
                await asyncio.sleep(_UNTIL_STORED)
        for other in [*self._waiting]:
            if other.cursor is None or (other.last is not None and not other.last.complete):
                continue
            records = self.take(other.next_ahead)
            if records or other is replay:
                self.withdraw(other)
                other.ahead.extend(records)
                other.wake()

    def _pass_on(
        self, replay: LogCursor, sequence: int, records: Sequence[LogRecord], through: int
    ) -> None:
        """Pass records that the index named, from ``sequence`` on, to a replay, which continues."""
        if replay not in self._waiting:
            return
        self.withdraw(replay)
        # It may have got others from memory meanwhile.
        if replay.next_ahead == sequence:
            if not replay.ahead:
                replay.skip_to(records[0].sequence if records else through + 1)
            replay.ahead.extend(records)
        replay.wake()

    async def _search(self, replay: LogCursor, messages: LastMessages) -> None:
        """Search some records for the last messages of topics; others follow in turn."""
        messages.skip_to(position(self.first, 0) - 1)
        sequence = next_record(messages.through)
        indexed = None
        if not messages.complete and sequence not in self._records and sequence <= self.last:
            indexed = await self._read_named(replay, sequence, fruitless=True)
            if indexed is None:
                await self._read_from(sequence, fruitless=True)
        for record in self.take(sequence) if indexed is None else indexed[0]:
            messages.add(record, replay.matches)
        if indexed is not None and not indexed[0]:
            messages.skip_to(position(indexed[1] + 1, 0) - 1)
        if sequence > self.last:  # what was appended when it began is not on disk yet
            await asyncio.sleep(_UNTIL_STORED)
        if self._waiting.pop(replay, 0) is None:
            if messages.complete or messages.too_many:
                replay.wake()
            else:
                self._waiting[replay] = None

    async def _beginning(self, start_ms: int) -> Position:
        """Return the end of the last record before the log reaches a time."""
        low, high = self.first - 1, self.last
        if start_ms and high > low:
            low = await self._last_before(low, high, start_ms)
        return position(low + 1, 0) - 1

    def _before_hole(self, cursor: Position, start_ms: int) -> Position:
        """Return a beginning; if its time is in a part that was given up, the end before that."""
        for hole in self.given_up if start_ms else ():
            if hole.from_ms <= start_ms and not 0 < hole.to_ms < start_ms:
                return min(cursor, position(hole.after + 1, 0) - 1)
        return cursor

    async def _last_before(self, low: int, high: int, time_ms: int) -> int:
        """Return the last record after ``low`` before the time of the log reaches a time.

        Times run backwards only where the clock was set back: between the jumps of the clock they
        can be searched, from the first part that reaches the time.
        """
        end = high
        spans: list[tuple[int, int, int]] = []
        while end > low:
            record = await self._one(end)
            begins = max(low + 1, record.jumps.record)
            spans.append((begins, end, record.time_ms))
            end = begins - 1
        for begins, end, ends_ms in reversed(spans):
            if ends_ms < time_ms:
                continue
            below, above = begins - 1, end
            while below < above:
                middle = (below + above + 1) // 2
                if (await self._one(middle)).time_ms < time_ms:
                    below = middle
                else:
                    above = middle - 1
            return below
        return high

    async def _one(self, sequence: int) -> Record:
        (record,) = await self._log.read_some([sequence])
        return record

    async def _read_from(self, first: int, *, fruitless: bool) -> None:
        """Decode the records of complete turns from one on."""
        turns, stop = TurnAssembler(anywhere=True), first + _RECORDS - 1
        async with aclosing(self._records_from(first, self.last)) as records:
            await self._read(records, turns, stop, fruitless=fruitless)

    async def _read_named(
        self, replay: LogCursor, sequence: int, *, fruitless: bool
    ) -> tuple[Sequence[LogRecord], int] | None:
        """Return the next decoded records that the index names for a replay from ``sequence`` on.

        If there are none, nothing matches up to the second result. None: the index does not show
        it.
        """
        if replay.start_ms or self.last - sequence < _RECORDS:
            return None
        cuts, turns = self._cuts, TurnAssembler(anywhere=True)
        try:
            named = replay.named
            if named is None or not self.index.covers(named, sequence):
                topic_filter = replay.matches.topic_filter
                named = await self.index.named(topic_filter, sequence, self.last, self.first)
                replay.named = named
            if named is None:
                return None
            through = await self._through(replay, sequence, named.through)
            if through < sequence:
                return None
            chosen = named.between(sequence, through, _RECORDS)
            if not chosen:
                return (), through
            source = self._named_records(chosen, turns)
            async with aclosing(source) as records:
                decoded = await self._read(records, turns, self.last, fruitless=fruitless)
        except BadIndex as error:
            self.index.reject(error)
            return None
        # Of a log that was cut meanwhile they are read again.
        return (decoded, through) if decoded and cuts == self._cuts else ((), sequence - 1)

    async def _through(self, replay: LogCursor, sequence: int, through: int) -> int:
        """Return up to which record, at most ``through``, a replay does not end."""
        if replay.until is not None:
            through = min(through, (replay.until >> INDEX_BITS) - 1)
        if replay.until_ms and through >= sequence:
            searched, end = replay.until_found
            if through > searched == end:
                end = await self._last_before(sequence - 1, through, replay.until_ms + 1)
                replay.until_found = through, end
            through = min(through, end)
        return through

    async def _named_records(
        self, chosen: Sequence[int], turns: TurnAssembler
    ) -> AsyncGenerator[Record, None]:
        """Yield these records, and those that show whether a turn is complete."""
        records: dict[int, Record] = {}
        for number, sequence in enumerate(chosen):
            if sequence not in records:
                batch = chosen[number : number + _NAMED]
                records = {record.sequence: record for record in await self._log.read_some(batch)}
            self.index.check(records[sequence])
            yield records[sequence]
            following = chosen[number + 1] if number + 1 < len(chosen) else 0
            while turns.rest() and sequence + 1 != following and sequence < self.last:
                sequence += 1
                yield await self._one(sequence)

    async def _read(
        self,
        records: AsyncGenerator[Record, None],
        turns: TurnAssembler,
        stop: int,
        *,
        fruitless: bool,
    ) -> list[LogRecord]:
        """Decode records of complete turns, up to one and not much more than bytes at a time."""
        node, results = self._node, list[LogRecord]()
        now = node.clock.stopwatch
        size, begun = 0, now()
        async for record in records:
            void, complete = turns.take(record)
            for part in void:
                results.append(LogRecord(part.sequence, part.time_ms, (), _RECORD))
                self._keep(results[-1])
            for part in complete:
                cuts = self._cuts
                decoded = await self._decoded(part)
                while self._cuts != cuts:
                    cuts = self._cuts
                    decoded = await self._decoded(part)
                self._keep(decoded)
                results.append(decoded)
                size += decoded.size
            self.records_read += 1
            took = now() - begun
            if took > _PAUSE:
                share = _SHARE if fruitless else 1
                await asyncio.sleep(took * share if node.kernel.shared else 0.0)
                begun = now()
            if not turns.rest() and (size >= self._most or record.sequence >= stop):
                break
        return results

    async def _records_from(self, first: int, end: int) -> AsyncGenerator[Record, None]:
        """Yield records in order: those that were stored just now from memory."""
        sequence = first
        while sequence <= end:
            data = self._tail.pop(sequence, None)
            if data is not None:
                self._tail_size -= len(data)
                yield self._log.opened(decode_record(sequence, data))
                sequence += 1
                continue
            stop = sequence
            while stop < end and stop - sequence < _RECORDS - 1 and stop + 1 not in self._tail:
                stop += 1
            async for record in self._log.read(sequence, stop):
                if record.sequence != sequence:
                    break
                yield record
                sequence += 1
            if sequence <= stop:
                raise CorruptLog(sequence, "is missing or cannot be read")

    async def _decoded(self, record: Record) -> LogRecord:
        """Return the messages that take effect in a record."""
        publications: list[Publications] = []
        size = _RECORD
        for item in publications_in(record):
            if isinstance(item, StoredMessages):
                self._unreleased.add(item)
            elif isinstance(item, Releases):
                publications += await self._released(item, record)
            else:
                publications.append(item)
        for batch in publications:
            size += sum(map(len, batch.payloads)) + sum(map(len, batch.blocks))
            size += _MESSAGE * len(batch)
        lost = record.raw_events[0]["first"] if is_salvage(record) else 0
        return LogRecord(record.sequence, record.time_ms, publications, size, lost)

    async def _released(self, releases: Releases, record: Record) -> list[Publications]:
        """Return messages at QoS 2 that are released in a record; unknown ones are read again.

        Those that a cut has removed since are left out: no session referred to them any more.
        """
        kept, recent = self._unreleased, self._recent
        begins = max(self.first, self.held_before)
        held: dict[Position, Message] = {}
        missing: set[int] = set()
        gone_records: set[int] = set()
        for ref in releases.refs:
            sequence = ref >> INDEX_BITS
            if sequence < begins:
                gone_records.add(sequence)
            elif (message := kept.get(ref) or recent(ref)) is None:
                missing.add(sequence)
            else:
                held[ref] = message  # it may leave the memory while others are read
        if gone_records:
            missing |= await self._carriers(gone_records)
        store = MessageStore(1 << 62)
        for other in await self._log.read_some(missing) if missing else ():
            for stored in messages_of(other):
                store.add(stored)

        def find(ref: Position) -> Message | None:
            message = store.get(ref)
            if message is None and ref >> INDEX_BITS >= begins:
                message = held.get(ref)
                if message is None:
                    what = f"releases a message of record {ref >> INDEX_BITS}, which is gone"
                    raise CorruptLog(record.sequence, what)
            return message

        publications, removed = known_content(releases, find)
        if removed:
            _log.warning(
                "messages were cut off before they could be replayed",
                released_in=record.sequence,
                count=len(removed),
            )
        return publications

    def _log_problem(self, reason: str) -> None:
        if reason != self._logged_problem:
            self._logged_problem = reason
            _log.warning("the log cannot be read for replays", reason=reason)


def next_record(cursor: Position) -> int:
    """Return the sequence of the record in which the entry after a position is."""
    return (cursor + 1) >> INDEX_BITS
