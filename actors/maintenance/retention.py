"""Retention: repeats the state in the log from time to time, and deletes older records.

A log can begin wherever a *checkpoint*, a repetition of the whole state, begins. Before the log is
cut, messages that sessions still refer to are also repeated, the projections have caught up, and
the cut is recorded, so that a reader of the log knows which records were removed intentionally.

With ``keep_until_archived`` nothing is deleted before it is archived. Near ``keep_bytes`` this work
takes precedence, and at the limit input waits (:mod:`actors.maintenance.log_quota`).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

import structlog

from actors.maintenance.checkpoints import (
    BYTES_AT_ONCE,
    MESSAGES_AT_ONCE,
    StateEvent,
    repeat_messages,
    repeat_retained,
    repeat_session,
)
from actors.maintenance.destination_holds import DestinationHolds
from actors.maintenance.log_quota import ArchiveHold, LogQuota
from actors.maintenance.projector import Projector
from actors.maintenance.recovery import applied_limits
from actors.session.node_context import NodeContext
from eventstore.errors import CorruptLog, EventTooLarge, Fenced, LogUnavailable
from eventstore.format.erasure_events import KeysSnapshot
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    Followed,
    LogCut,
    RetainedSnapshot,
)
from eventstore.format.positions import INDEX_BITS, Position, position
from eventstore.log.message_store import Message, MessageStore
from projections.state.node_state import Checkpoint
from projections.state.snapshot import expand_runs, reference_runs

_log = structlog.get_logger("foldmq")

_LOOK_EVERY = 0.5
_RETRY = 5.0
_POLL = 0.02
_PARTS = 8
"""Number of checkpoints within the retention time; more of them mean less excess in the log."""
_QUARTERS = 4
_SOON = 0.9
"""Part of a limit from which a cut is near."""
_SMALL = 32
"""Growth, as a fraction of the limit, from which a checkpoint near the limit is worthwhile."""
_MOST_LOST = 16
"""Maximum number of lost parts that a cut repeats of the removed records."""
_MIN = 1024 * 1024
"""Growth in bytes from which a checkpoint is worthwhile."""
_SLICE = 0.002
_SLICE_SHARE = 6
_PRESSED = 4
"""Factor by which slices are longer near the limit; pauses are then no longer than slices."""
_MAX_PAUSES = 5
"""Maximum number of times that a slice near the limit waits for the disk."""
_TIMEOUT = 15.0
"""Maximum seconds for which input waits for a delayed cut."""
_REPLAYS_PASS = 2.0
"""Maximum seconds for which a cut waits for replays that have nearly reached it."""
_REPLAYS_STAND = 0.3
"""Seconds for which they may stand still meanwhile."""
_HOLDERS = 3
"""Number of sessions named in a warning."""
_WARN_EVERY = 3600.0
_RECORDS_AT_ONCE = 16


class Retention:
    """Keeps the log of a broker within ``keep`` seconds and ``keep_bytes``."""

    def __init__(self, node: NodeContext, projector: Projector) -> None:
        self._node = node
        self._now = node.clock.monotonic
        self._projector = projector
        self._room = LogQuota(node)
        self._begins_ms = 0
        self._begun_at: dict[int, int] = {}
        """Bytes appended when a checkpoint began, by its number."""
        self._took: Counter[str] = Counter()
        self._keys: Iterator[KeysSnapshot] = iter(())
        """The rest of the keys that a checkpoint repeats."""
        """Approximate bytes of the last checkpoint and of repeated messages, which do not count as
        growth: of sessions, retained messages, and waiting messages."""
        self._queues: dict[str, int] = {}
        """Bytes held in the log by messages waiting for sessions."""
        self._readers = 0
        self._held_up: tuple[str, float, object] = "", 0.0, None
        """The last obstacle to a cut, the time at which it began, and its progress at that time."""
        self._warned: tuple[str, float] | None = None
        self._guard = ArchiveHold(node)
        self._destinations = DestinationHolds(node)
        projector.pressed = lambda: self._room.pressed

    @contextlib.contextmanager
    def cuts_suspended(self) -> Iterator[None]:
        """Do not cut the log while it is being read."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    async def run(self) -> None:
        """Maintain the log until cancelled."""
        try:
            await self._learn_in_time()
            await self._look_periodically()
        except Fenced as error:
            self._node.fail(error)
        except CorruptLog as error:
            self._give_up(error)
        except EventTooLarge as error:
            # It was appended while NATS accepted larger records. A checkpoint needs all messages.
            _log.error(
                "a message in the log cannot be repeated: the log is not cut", reason=str(error)
            )
        self._node.journal.limit_appends(None)

    async def _learn_in_time(self) -> None:
        while True:
            try:
                await self._learn()
            except LogUnavailable:
                await asyncio.sleep(_RETRY)
            else:
                return

    async def _look_periodically(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            self._room.look(self._repeated)
            try:
                await self.look()
            except LogUnavailable as error:
                _log.warning("log cannot be cut now", reason=str(error))
                self._room.stop_waiting(str(error))
                await asyncio.sleep(_RETRY)

    def _give_up(self, damage: CorruptLog) -> None:
        """Stop cutting: a damaged log may be the only copy."""
        self._node.damaged = self._node.damaged or damage
        what = f"record {damage.sequence} {damage.what}"
        _log.error("the log is damaged and will not be cut", reason=what)

    async def look(self) -> None:
        """Finish the current work, write a checkpoint if it is due, cut the log if that is due."""
        node_state, log = self._node.state, self._node.log
        if node_state.cuts and node_state.cuts[-1].first > log.first:
            await self._purge(node_state.cuts[-1].first)
        if self._room.pressed:  # with an existing checkpoint, if there is one
            await self._cut_if_wanted()
        if self._checkpoint_due():
            await self.checkpoint()
        await self._cut_if_wanted()
        if self._room.full and not self._destinations.wait:  # nothing more can be done
            self._room.settle()

    async def _cut_if_wanted(self) -> None:
        cut, exchange = self._wanted(), self._node.exchange
        if cut is not None and exchange is not None and not exchange.is_taken(cut[0].begun):
            self._room.stop_waiting("another log has not taken its messages yet")
            return
        cut = self._destinations.allowed(cut, self._behind)
        allowed = self._guard.allowed(cut, self._room.size, self._begins_ms)
        if allowed is not None:
            await self.cut(*allowed)

    # Timing.

    async def _learn(self) -> None:
        """Determine the size and age of the log after a start."""
        log, cuts = self._node.log, self._node.state.cuts
        if cuts and cuts[-1].first > log.first:
            # The writer before this one recorded the cut, and may be removing the records now.
            await self._purge(cuts[-1].first)
        self._room.measured(await log.size())
        self._room.look(0)
        records = await log.read_some([log.first])
        self._begins_ms = records[0].steady_ms
        first, end = log.first, self._node.journal.durable
        for checkpoint in self._node.state.checkpoints:
            share = (end - (checkpoint.begun >> INDEX_BITS) + 1) / max(1, end - first + 1)
            self._begun_at[checkpoint.number] = round(-share * self._room.size)

    @property
    def _repeated(self) -> int:
        return self._took.total()

    def _behind(self, checkpoint: Checkpoint) -> int:
        """Return the bytes of the log from the beginning of a checkpoint on."""
        appended = self._room.appended
        return appended - self._begun_at.get(checkpoint.number, appended)

    def _checkpoint_due(self) -> bool:
        options, node_state = self._node.options, self._node.state
        newest = node_state.checkpoints[-1] if node_state.checkpoints else None
        if node_state.salvaged and (
            newest is None or newest.begun >> INDEX_BITS <= node_state.salvaged
        ):
            return True  # from here on nothing depends on what was lost
        grown = (self._room.size if newest is None else self._behind(newest)) - self._repeated
        little = min(_MIN, options.keep_bytes // _SMALL)
        if self._room.pressed and grown >= max(little, self._repeated // 2):
            # With the existing checkpoint too few records can be deleted.
            return True
        if grown < max(_MIN, 2 * self._repeated):
            return False
        if options.keep_bytes and grown >= options.keep_bytes // _QUARTERS:
            return True
        since_ms = self._begins_ms if newest is None else newest.time_ms
        age = (self._node.clock.steady_ms() - since_ms) / 1000
        # Logs of earlier versions may have times that run backwards: then the age is not known.
        return bool(options.keep) and (age >= options.keep / _PARTS or age < 0)

    @property
    def next_cut(self) -> Position:
        """Position before which the log will be cut soon; 0: that is not known."""
        cut = self._wanted(_SOON)
        return cut[0].begun if cut is not None else 0

    def _wanted(self, share: float = 1.0) -> tuple[Checkpoint, str] | None:
        """Return the checkpoint before which to cut the log to keep its limits, and the reason.

        With ``share``, to keep this part of its limits.
        """
        options, first = self._node.options, self._node.log.first
        usable = [
            checkpoint
            for checkpoint in self._node.state.checkpoints
            if checkpoint.begun >> INDEX_BITS > first
        ]
        chosen: tuple[Checkpoint, str] | None = None
        if options.keep:
            before = self._node.clock.steady_ms() - int(options.keep * 1000 * share)
            old = [checkpoint for checkpoint in usable if checkpoint.time_ms <= before]
            if old:
                chosen = old[-1], "keep"
        bound = options.keep_bytes
        most = int((bound - bound // _QUARTERS) * share)
        if bound and usable and self._room.size > most:
            checkpoint = next((each for each in usable if self._behind(each) <= most), usable[-1])
            if chosen is None or checkpoint.begun > chosen[0].begun:
                chosen = checkpoint, "keep_bytes"
        return chosen

    # A checkpoint.

    async def checkpoint(self) -> None:
        """Repeat the whole state in the log."""
        node_state, journal = self._node.state, self._node.journal
        before = self._room.appended
        number, begun = await self._begin()
        self._begun_at[number] = before
        self._took.clear()
        for keys in self._keys:
            started = self._now()
            self._node.emit(keys)
            await self._yield_time(started)
        sessions = retained = 0
        names = node_state.sessions.names()
        names.reverse()
        while names:
            started = self._now()
            while names and self._now() - started < self._slice:
                name = names.pop()
                if name in self._node.rebuilding:
                    # Events recorded for it since its failure are not in its state.
                    names.insert(0, name)
                    await self._wait("a session is being rebuilt", len(names))
                    break
                sessions += self._append(repeat_session(node_state, name), "sessions")
            await self._yield_time(started)
        topics = node_state.retained.topics()
        topics.reverse()
        while topics:
            started = self._now()
            events = list(repeat_retained(node_state, self._some(topics)))
            self._append(events, "retained")
            retained += sum(
                event.event.count for event in events if isinstance(event.event, RetainedSnapshot)
            )
            await self._yield_time(started)
        self._node.emit(CheckpointCompleted(number, begun, sessions, retained))
        self._node.kernel.wake()
        await self._until_whole(journal.next_position >> INDEX_BITS)
        _log.info("checkpoint written", number=number, sessions=sessions, retained=retained)

    def _some(self, topics: list[str]) -> list[str]:
        """Remove topics from the end of a list, as many as may be repeated at once."""
        chosen: list[str] = []
        size = 0
        while topics and len(chosen) < MESSAGES_AT_ONCE and size < BYTES_AT_ONCE:
            topic = topics.pop()
            message = self._node.state.retained.get(topic)
            if message is not None:
                chosen.append(topic)
                size += len(message.payload)
        return chosen

    async def _begin(self) -> tuple[int, Position]:
        """Begin a checkpoint in a record that begins a turn: a log can begin only there."""
        node_state, journal = self._node.state, self._node.journal
        while True:
            while journal.last_closed is None:  # noqa: ASYNC110 - a turn goes on: rare
                await asyncio.sleep(_POLL)
            number = node_state.checkpoint + 1
            begun = self._node.emit(CheckpointBegun(number, epoch=node_state.epoch))
            self._node.emit(applied_limits(self._node.options, self._node.permissions.permissions))
            for name, place in node_state.followed.items():
                self._node.emit(Followed(name, *place))
            for event in node_state.destinations.repeated():
                self._node.emit(event)
            self._keys = node_state.keys.snapshot()
            for keys in islice(self._keys, 1):  # the others follow in turns of their own
                self._node.emit(keys)
            self._node.kernel.wake()
            if journal.last_closed is not None:
                return number, begun

    @property
    def _slice(self) -> float:
        return _SLICE * _PRESSED if self._room.pressed else _SLICE

    async def _yield_time(self, started: float) -> None:
        """Pause for the broker's work, and for the disk."""
        room, journal = self._room, self._node.journal
        self._node.kernel.wake()
        room.look()
        await asyncio.sleep((self._now() - started) * (1 if room.pressed else _SLICE_SHARE))
        pauses = 0
        # The disk sets the pace, but clients could keep it busy until the log is full.
        while journal.lagging and (pauses < _MAX_PAUSES or room.full or not room.pressed):
            await asyncio.sleep(_POLL)
            pauses += 1

    async def _wait(self, why: str, progress: object) -> None:
        """Wait briefly for other work; if it makes no progress, resume input."""
        reason, since, before = self._held_up
        if (reason, before) != (why, progress):
            self._held_up = why, self._now(), progress
        elif self._now() - since > _TIMEOUT:
            self._room.stop_waiting(why)
        await asyncio.sleep(_POLL)

    def _append(self, events: Iterable[StateEvent], what: str) -> bool:
        """Append events with sessions, retained or waiting messages; return whether any exist."""
        appended = False
        for event in events:
            self._node.emit(event.event, event.payloads, event.size)
            self._took[what] += event.bytes
            appended = True
        return appended

    # A cut.

    async def cut(self, checkpoint: Checkpoint, reason: str) -> None:
        """Delete the records before a checkpoint."""
        await self._until_replays_passed(checkpoint.begun >> INDEX_BITS)
        # What is repeated before the cut is what sessions refer to: replays must not add to it.
        with self._node.replays.held_before(checkpoint.begun >> INDEX_BITS):
            await self._cut_before(checkpoint, reason)

    async def _until_replays_passed(self, first: int) -> None:
        """Wait until replays with few records left have read up to a record."""
        replays = self._node.replays
        remaining, since = replays.left_before(first), self._now()
        until = since + _REPLAYS_PASS
        while remaining and self._now() < min(until, since + _REPLAYS_STAND):
            await asyncio.sleep(_POLL)
            if (now_left := replays.left_before(first)) != remaining:
                remaining, since = now_left, self._now()

    async def _cut_before(self, checkpoint: Checkpoint, reason: str) -> None:
        node = self._node
        first = checkpoint.begun >> INDEX_BITS
        await self._carry(position(first, 0))
        needed = (node.journal.next_position - 1) >> INDEX_BITS
        # The records that a recovery folds must not refer to deleted messages that were not
        # repeated.
        while self._projector.marked < needed:
            await self._wait("the projections have not caught up", self._projector.progress)
        # Messages that were released meanwhile are not repeated, but other logs need them until
        # they have taken the release.
        end = node.exchange.last_to_take if node.exchange is not None else 0
        while node.exchange is not None and not node.exchange.is_taken(end):
            await self._wait("another log has not taken its messages yet", end)
        (record,) = await node.log.read_some([first])
        if not self._guard.may_delete_before(first):
            return  # the sessions that hold messages have changed meanwhile
        node.replays.record_cursors()
        cuts = node.state.cuts
        lost = [*(cuts[-1].lost if cuts else ()), *node.state.proof.lost_before(first)]
        link = record.previous.hex()
        event = LogCut(first, link, record.time_ms, reason, lost=lost[-_MOST_LOST:])
        for loss in self._destinations.losses(first, reason):
            node.emit(loss)
            _log.warning("messages are not sent to a destination", to=loss.to, reason=loss.reason)
        at = node.emit(event)
        node.kernel.wake()
        await self._until_whole(at >> INDEX_BITS)
        await self._purge(first)
        self._begins_ms = record.steady_ms
        _log.info("log cut", first=first, reason=reason, bytes=self._room.size)
        self._warn_if_large()

    def _warn_if_large(self) -> None:
        """Log periodically why the log is larger than configured."""
        size, bound, took = self._room.size, self._node.options.keep_bytes, self._took
        if not bound or size <= bound:
            self._warned = None
            return
        # There are two checkpoints until the log is cut.
        queued = sum(self._queues.values())
        needed = 2 * (took["sessions"] + took["retained"]) + queued > bound
        why = (
            "sessions and retained messages need more than that"
            if needed
            else "clients write faster than it is cut"
        )
        if self._warned is not None:
            reason, at = self._warned
            if reason == why and self._now() - at < _WARN_EVERY:
                return
        self._warned = why, self._now()
        largest = heapq.nlargest(_HOLDERS, self._queues.items(), key=itemgetter(1))
        _log.warning(
            f"the log takes more than keep_bytes: {why}",
            bytes=size,
            keep_bytes=bound,
            retained=took["retained"],
            sessions=took["sessions"],
            queued=queued,
            since_checkpoint=max(0, size - took.total()),
            holders=[f"{name}: {waits}" for name, waits in largest],
        )

    async def _purge(self, first: int) -> None:
        node = self._node
        while self._readers:
            await self._wait("the log is being read", None)
        node.state.forget_before(first)
        await node.log.cut(first)
        numbers = {checkpoint.number for checkpoint in node.state.checkpoints}
        self._begun_at = {key: at for key, at in self._begun_at.items() if key in numbers}
        self._room.measured(await node.log.size())
        self._room.settle()

    async def _carry(self, before: Position) -> None:
        """Repeat the messages before a position that sessions, or retained ones, refer to.

        A message that was sent before the checkpoint and released after it is retained under a
        position that the checkpoint did not repeat.
        """
        node_state = self._node.state
        self._queues.clear()
        needed: dict[int, set[Position]] = {}
        # A message moves from its publisher, via retained messages, to its receivers. Sources are
        # checked before destinations, so that none is missed.
        waiting = await self._look_for(before, needed)
        for retained in node_state.retained.before(before):
            if self._must_carry(retained.ref, before):
                needed.setdefault(retained.ref >> INDEX_BITS, set()).add(retained.ref)
        waiting |= await self._look_for(before, needed)
        sequences = sorted(needed, reverse=True)
        while sequences:
            started = self._now()
            batch = [sequences.pop() for _ in range(min(_RECORDS_AT_ONCE, len(sequences)))]
            store = MessageStore(1 << 62)
            carriers = {at for sequence in batch for at in node_state.carriers_of(sequence)}
            await self._until_whole(max(carriers))
            for record in await self._node.log.read_some(carriers):
                store.add_record(record)
            messages: list[tuple[Position, Message]] = []
            for ref in (ref for at in batch for ref in sorted(needed[at])):
                message = store.get(ref)
                if message is None:
                    raise CorruptLog(ref >> INDEX_BITS, "lacks a message it should contain")
                messages.append((ref, message))
            self._append(repeat_messages(messages, waiting), "waiting")
            await self._yield_time(started)

    async def _look_for(self, before: Position, needed: dict[int, set[Position]]) -> set[Position]:
        """Add to ``needed``, by record, messages before a position that sessions refer to.

        Returns those that become retained with their PUBREL.
        """
        node_state = self._node.state
        waiting: set[Position] = set()
        started = self._now()
        for name in node_state.sessions.names():
            while name in self._node.rebuilding:
                # The failure may have damaged its state.
                await self._wait("a session is being rebuilt", name)
                started = self._now()
            if not node_state.sessions.holds(name, before):
                continue
            # The current state: messages that arrive later are after the checkpoint.
            state = node_state.sessions.peek(name)
            runs = list(reference_runs(state)) if state is not None else []
            if state is not None and state.queued_bytes:
                self._queues[name] = state.queued_bytes
            for ref in expand_runs(runs, before):
                if self._must_carry(ref, before):
                    needed.setdefault(ref >> INDEX_BITS, set()).add(ref)
                    if node_state.retained.known(name, ref):
                        waiting.add(ref)
                if self._now() - started > self._slice:
                    await self._yield_time(started)
                    started = self._now()
        return waiting

    def _must_carry(self, ref: Position, before: Position) -> bool:
        """Return whether a message is not yet repeated after a position."""
        carriers = self._node.state.carried.get(ref >> INDEX_BITS, ())
        return not any(at >= before >> INDEX_BITS for at in carriers)

    async def _until_whole(self, sequence: int) -> None:
        journal = self._node.journal
        journal.flush()
        while journal.last_complete_turn < sequence and not journal.idle:  # noqa: ASYNC110 - the disk's pace
            await asyncio.sleep(_POLL)
