"""Reads another log as it grows, and passes on the messages that take effect there."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from actors.exchange.skipped_records import Skipped, decode_push
from actors.exchange.taken_messages import (
    Acknowledged,
    Taken,
    TakenErasure,
    TakenReferences,
    assigned,
    effects_in,
    taken_messages,
)
from eventstore.errors import CorruptLog, LogUnavailable, LostLog
from eventstore.format.erasure_events import KeysSnapshot, TopicsKeyed
from eventstore.format.positions import INDEX_BITS, from_runs, position
from eventstore.format.records import ChainChecker, decode_record
from eventstore.format.sealing import SealedBytes
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import MessageStore, StoredMessages, messages_of
from eventstore.reading.publications import Releases, with_content

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from actors.session.node_context import NodeContext
    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from eventstore.log.jetstream_log import EventLog
    from eventstore.log.message_store import Message

_log = structlog.get_logger("foldmq")

_RECORDS_AT_ONCE = 64
_QUIET = 5.0
"""Seconds without an announcement of the other broker, even a repeated one, after which the end of
its log is queried."""
_RETRY = 0.5
_POLL = 0.01
_TAKEN_AT_ONCE = 512
"""Number of messages after which what was read is recorded, before more turns are looked at."""
_LOOKED_AT_ONCE = 256 * 1024
"""Bytes of records after which other work of the event loop comes first."""
_PUSHED = 1024 * 1024
"""Bytes of records kept that the other broker has sent; later ones are read from the log."""
_SKIPPED = 512
"""Bytes for which skipped records count beside the topics of their messages."""
_UNRELEASED = 16 * 1024 * 1024
"""Bytes of QoS 2 messages kept until they are released; others are read from the log again."""

_OF_KEYS = frozenset({"TopicsKeyed", "KeysSnapshot"})


class TurnReached(Protocol):
    """A callback for a position up to which everything was taken."""

    def __call__(self, through: Position, link: str, *, more: bool) -> None:
        """Record position and link; ``more``: the turns have more than positions of other logs."""


@dataclass(eq=False, repr=False)
class LogFollower:
    """Follows the log of another broker.

    ``take`` is called with turns that contain something to take, and returns when it is recorded;
    ``reached`` with position and link after these turns or others, and whether they have more than
    positions. ``acknowledged`` is called with the positions up to which the other log has recorded
    that it took other logs. ``find_topics`` completes an erasure with the topics of this log.
    ``may_skip`` returns whether skipped records concern no subscription of this log.
    """

    _node: NodeContext
    name: str
    _log: EventLog
    _take: Callable[[Taken], Awaitable[None]]
    _reached: TurnReached
    _acknowledged: Callable[[str, Position], None]
    _find_topics: Callable[[TakenErasure], Awaitable[None]]
    _may_skip: Callable[[Skipped], bool]

    def __post_init__(self) -> None:
        self._new_records = asyncio.Event()
        self._announced = 0
        """Sequence of the last record that the other broker reported as stored."""
        self._announced_at = -math.inf
        """Monotonic time of its last report."""
        self._asked = 0
        """The record that the log was asked for last: once, as it may have been cut, too."""
        self._pushed: deque[tuple[int, int, bytes | Skipped]] = deque()
        """Consecutive records that the other broker has sent, or lets this one skip, each with the
        sequence of the first and the last."""
        self._pushed_bytes = 0
        self._unreleased = MessageStore(_UNRELEASED)
        self._logged_problem = ""
        self.end = 0
        """Sequence of the last record of the other log when this one began to follow it."""
        self.caught_up = asyncio.Event()
        """Set when everything up to that record was taken."""

    @property
    def announced(self) -> int:
        """Stream sequence of the last record that the other broker is known to have stored."""
        return self._announced

    def heard(self, sequence: int, record: bytes = b"") -> None:
        """Record that the other log is stored up to a record, and what this is, if known."""
        self._announced_at = self._node.clock.monotonic()
        if record:
            self._keep(sequence, sequence, record)
        self._reported(sequence)

    def heard_push(self, data: bytes) -> None:
        """Record what the other broker has sent to this one alone."""
        self._announced_at = self._node.clock.monotonic()
        try:
            skipped, sequence, record = decode_push(data)
        except ValueError as error:
            _log.warning("a message of another broker cannot be read", reason=str(error))
            return
        if skipped is not None:
            self._keep(skipped.first, skipped.last, skipped)
        if record:
            self._keep(sequence, sequence, record)
        self._reported(sequence)

    def _keep(self, first: int, end: int, pushed: bytes | Skipped) -> None:
        """Keep a record, or several that may be skipped, until they are taken."""
        kept = self._pushed
        if (kept and first != kept[-1][1] + 1) or self._pushed_bytes > _PUSHED:
            kept.clear()
            self._pushed_bytes = 0
        kept.append((first, end, pushed))
        self._pushed_bytes += _size(pushed)

    def _reported(self, sequence: int) -> None:
        if sequence > self._announced:
            self._announced = sequence
            self._new_records.set()

    async def run(self, through: Position, link: str) -> None:
        """Follow the log after a position until cancelled.

        Raises CorruptLog when the log is damaged, or is not the one that was followed before.
        """
        sequence, checker = await self._begin(through >> INDEX_BITS, link)
        if self.end <= through >> INDEX_BITS:
            self.caught_up.set()
        turns = TurnAssembler(anywhere=True)
        while True:
            await self._end(sequence)
            skipped = None if turns.rest() else self._take_skipped(sequence, checker.link)
            if skipped is not None and await self._skip(skipped):
                sequence, checker = skipped.last + 1, ChainChecker(skipped.last, skipped.link)
                continue
            end = min(self._announced, sequence + _RECORDS_AT_ONCE - 1)
            records = self._take_pushed(sequence, checker.link)
            try:
                if not records:
                    records = [record async for record in self._log.read(sequence, end)]
            except LogUnavailable as error:
                self._log_problem(str(error))
                await asyncio.sleep(_RETRY)
                continue
            if not records:
                await asyncio.sleep(_POLL)
            effects, size = Taken(), 0
            for record in records:
                checker.check(record)
                complete = turns.take(record)[1]
                if complete:
                    await self._add_turn(effects, complete, through)
                    if effects.messages >= _TAKEN_AT_ONCE:
                        await self._pass_on(effects)
                        effects = Taken()
                sequence = record.sequence + 1
                size += len(record.header) + len(record.payload)
                if size >= _LOOKED_AT_ONCE:
                    size = 0
                    await asyncio.sleep(0)
            if effects.links:
                await self._pass_on(effects)
            if sequence > self.end:
                self.caught_up.set()
            self._logged_problem = ""
            if self._pushed:  # those need no wait for the log
                await asyncio.sleep(0)

    def _take_skipped(self, sequence: int, link: bytes) -> Skipped | None:
        """Return the records from one sequence on, behind a link, if they may be skipped."""
        kept = self._pushed
        while kept and (kept[0][1] < sequence or isinstance(kept[0][2], Skipped)):
            first, _, pushed = kept.popleft()
            self._pushed_bytes -= _size(pushed)
            if isinstance(pushed, Skipped) and first == sequence and pushed.previous == link:
                return pushed
        return None

    async def _skip(self, skipped: Skipped) -> bool:
        """Note the position after records, unless there is something to take in them."""
        journal = self._node.journal
        while not journal.between_turns:  # noqa: ASYNC110 - a subscription may just begin
            await asyncio.sleep(0)
        if not self._may_skip(skipped):
            return False
        if skipped.followed:
            self._acknowledged(self._node.options.node, skipped.followed)
        through = position(skipped.last + 1, 0) - 1
        self._reached(through, skipped.link.hex(), more=skipped.more)
        if skipped.last >= self.end:
            self.caught_up.set()
        return True

    def _take_pushed(self, sequence: int, link: bytes) -> list[Record]:
        """Return records that the other broker has sent, from one sequence on, behind a link.

        They may be lost, or not be what the log has: it decides about everything else.
        """
        pushed, size = self._pushed, 0
        records: list[Record] = []
        while pushed and pushed[0][0] <= sequence and size < _LOOKED_AT_ONCE:
            if len(records) == _RECORDS_AT_ONCE:
                break
            place, _, data = pushed[0]
            if isinstance(data, Skipped):
                break
            pushed.popleft()
            self._pushed_bytes -= len(data)
            if place < sequence:
                continue
            try:
                record = self._log.opened(decode_record(place, data))
            except CorruptLog:
                break
            if record.previous != link:
                break
            records.append(record)
            sequence, link = sequence + 1, record.link
            size += len(record.header) + len(record.payload)
        return records

    async def _begin(self, last_taken: int, link: str) -> tuple[int, ChainChecker]:
        """Return the record to begin with, and a checker of the chain before it.

        That is the last record that was taken, perhaps in part, or the next one if it was cut off.
        """
        while True:
            try:
                self.end = (await self._log.tail()).sequence
                first = self._log.first
                if not last_taken:
                    if first > 1:
                        raise CorruptLog(1, f"of log {self.name} is gone, and was not taken")
                    return 1, ChainChecker()
                if first > last_taken + 1:
                    raise CorruptLog(
                        last_taken + 1, f"of log {self.name} is gone, and was not taken"
                    )
                if first == last_taken + 1:
                    return first, ChainChecker(last_taken, bytes.fromhex(link))
                (record,) = await self._log.read_some([last_taken])
            except (LogUnavailable, LostLog) as error:
                if last_taken or isinstance(
                    error, LogUnavailable
                ):  # otherwise it may not exist yet
                    self._log_problem(str(error))
                await asyncio.sleep(_RETRY)
                continue
            if record.link.hex() != link:
                raise CorruptLog(last_taken, f"of log {self.name} is not the one that was taken")
            return last_taken, ChainChecker.before(record)

    async def _end(self, sequence: int) -> None:
        """Wait until the other log is known to have a record ``sequence``."""
        clock = self._node.clock.monotonic
        while self._announced < sequence:
            self._new_records.clear()
            began = clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_QUIET):
                    await self._new_records.wait()
                continue
            if self._asked == sequence and self._announced_at >= began:
                continue  # it has nothing new, and says so
            self._asked = sequence
            try:
                self.heard((await self._log.tail()).sequence)
            except (LogUnavailable, LostLog) as error:  # it may not exist yet
                self._log_problem(str(error))

    async def _add_turn(self, effects: Taken, parts: list[Record], through: Position) -> None:
        """Add the messages that take effect in a complete turn, after a position."""
        effects.through = position(parts[-1].sequence + 1, 0) - 1
        effects.links.update((record.sequence, record.link.hex()) for record in parts)
        effects.more = effects.more or any(
            raw["e"] != "Followed" for record in parts for raw in record.raw_events
        )
        own, here = self._node.options.node, MessageStore(1 << 62)
        for record in parts:
            for effect in effects_in(record, through, own):
                if isinstance(effect, StoredMessages):
                    self._unreleased.add(effect)
                elif isinstance(effect, Releases):
                    messages = await self._find(effect.refs, here)
                    effects.effects += map(taken_messages, with_content(effect, messages))
                elif isinstance(effect, TakenReferences):
                    if not here:  # most were published in the same turn
                        for part in parts:
                            here.put(part.sequence, _dated(part, _ends_of_keys(parts)))
                    effects.effects.append(assigned(effect, await self._find(effect.refs, here)))
                elif isinstance(effect, TakenErasure):
                    await self._find_topics(effect)
                    effects.effects.append(effect)
                elif isinstance(effect, Acknowledged):
                    self._acknowledged(effect.log, effect.through)
                else:
                    effects.effects.append(effect)

    async def _pass_on(self, turns: Taken) -> None:
        """Wait until the effects of turns are recorded, and note the position after them."""
        journal = self._node.journal
        while turns.effects and journal.congested:  # noqa: ASYNC110 - the disk sets the pace
            await asyncio.sleep(_POLL)
        if turns.effects:
            await self._take(turns)
        self._reached(turns.through, turns.links[turns.through >> INDEX_BITS], more=turns.more)

    async def _find(self, refs: Sequence[Position], here: MessageStore) -> list[Message]:
        """Return messages of the other log; those not in memory are read again.

        ``here`` are messages of the turn that refers to them.
        """
        missing = {
            ref >> INDEX_BITS
            for ref in refs
            if here.get(ref) is None and self._unreleased.get(ref) is None
        }
        store = MessageStore(1 << 62)
        while missing:
            try:
                await self._read(missing, refs, store)
                break
            except LogUnavailable as error:
                self._log_problem(str(error))
                await asyncio.sleep(_RETRY)
        messages = []
        for ref in refs:
            message = here.get(ref) or self._unreleased.get(ref) or store.get(ref)
            if message is None:
                what = f"of log {self.name} lacks a message it should contain"
                raise CorruptLog(ref >> INDEX_BITS, what)
            messages.append(message)
        return messages

    async def _read(
        self, sequences: set[int], refs: Sequence[Position], store: MessageStore
    ) -> None:
        """Read messages of records of the other log, or where it repeats them since it was cut."""
        tail = await self._log.tail()
        if min(sequences) >= self._log.first:
            try:
                records = await self._log.read_some(sequences)
            except CorruptLog:
                tail = await self._log.tail()
                if min(sequences) >= self._log.first:  # otherwise it was cut meanwhile
                    raise
            else:
                ends = _ends_of_keys(records)
                for record in records:
                    if record.part and record.sealed:  # the part before may name its keys
                        before = await self._log.read_some([record.sequence - 1])
                        ends |= _ends_of_keys(before)
                for record in records:
                    store.put(record.sequence, _dated(record, ends))
                return
        periods: dict[int, int] = {}
        async for record in self._log.read(self._log.first, tail.sequence):
            periods |= _ends_of_keys([record])
            for stored in _dated(record, periods):
                store.add(stored)
                self._unreleased.add(stored)  # adjacent messages will be needed next
            if all(store.get(ref) is not None for ref in refs if ref >> INDEX_BITS in sequences):
                return

    def _log_problem(self, reason: str) -> None:
        if reason != self._logged_problem:
            self._logged_problem = reason
            _log.warning("another log cannot be followed", log=self.name, reason=reason)


def _ends_of_keys(records: Iterable[Record]) -> dict[int, int]:
    """Return the keys that records name, and the ends of their periods in steady time; 0: never."""
    ends: dict[int, int] = {}
    for record in records:
        if not any(raw["e"] in _OF_KEYS for raw in record.raw_events):
            continue
        for _, event in record.events():
            if isinstance(event, TopicsKeyed):
                ends.update((key, event.ends_ms) for key in from_runs(event.keys))
            elif isinstance(event, KeysSnapshot) and event.ends_ms:
                keys = from_runs(event.keys)
                ends.update(zip(keys, from_runs(event.ends_ms), strict=True))
    return ends


def _dated(record: Record, periods: Mapping[int, int]) -> list[StoredMessages]:
    """Return the messages of a record; those sealed under keys of earlier periods are as old.

    These are repeated, or copies of messages of another log.
    """
    messages = messages_of(record)
    for stored in messages if record.sealed and periods else ():
        for part in (*stored.payloads, *stored.blocks):
            if isinstance(part, SealedBytes) and periods.get(part.key):
                part.time_ms = min(part.time_ms, periods[part.key] - 1 + record.jumps.total_ms)
    return messages


def _size(pushed: bytes | Skipped) -> int:
    """Return the bytes for which something that was sent counts while it is kept."""
    return _SKIPPED + sum(map(len, pushed.topics)) if isinstance(pushed, Skipped) else len(pushed)
