"""Runs one destination: batches, attempts, refusals, and the cursor."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from eventstore.errors import CorruptLog
from eventstore.format.positions import Position
from eventstore.format.stored_properties import expired_until
from eventstore.task_cancellation import end_tasks
from outbox.backoff import Backoff
from outbox.control import (
    BrokerControl,
    BrokerUnavailable,
    LostMessages,
    Progress,
    RecordedCursor,
    Refusal,
)
from outbox.log_reader import CursorLost, DueMessages, LogPortion
from outbox.sink import Destination, OutboxMessage, RefusedMessages, Sink, TryAgain

_log = structlog.get_logger("foldmq")

_REPORT_EVERY = 1.0
"""Seconds between two recorded cursors of a destination."""
_SHOW_EVERY = 5.0
"""Seconds after which the state of a destination is reported although nothing was stored."""
_IDLE_REPORT = 30.0
"""Seconds after which a cursor is recorded that passed over records with nothing due."""
_ASK_AGAIN = 1.0
_READ_AHEAD_BYTES = 4 * 1024 * 1024
"""Bytes of messages that are read while a batch is sent; one turn may exceed it."""
_TURN_BYTES = 256
"""Counted for a turn besides its messages."""
_MESSAGE_BYTES = 512
"""Counted for a message besides its topic, payload and properties: what its objects take."""
_NOT_QUOTED = "the answer is not recorded, because the content is sealed"
_MOST_REFUSED = _MOST_LOST = 1000
"""Numbers of refused messages, and of lost ones, that are recorded at once."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How messages are put into batches and sent again; sizes in bytes, times in seconds."""

    messages: int = 200
    size: int = 1024 * 1024
    wait: float = 0.05
    """Time for which a batch that is not full waits for more messages."""
    retry_base: float = 1.0
    retry_most: float = 300.0


class _Restart(Exception):  # noqa: N818 - it is an answer, not an error
    """The log has another cursor than this runner: continue from that one."""


class ReadAhead:
    """A bounded buffer between the reader of the log and the sender: read while a batch is sent."""

    def __init__(self, most: int) -> None:
        """``most`` is the number of bytes from which on the reader waits."""
        self._most = most
        self._size = 0
        self._portions: deque[tuple[LogPortion, int]] = deque()
        self._error: Exception | None = None
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def waiting_ms(self) -> int:
        """Time of the oldest message that was read and is not taken yet; 0: there is none."""
        turns = (portion.messages for portion, _ in self._portions)
        return next((messages[0].time_ms for messages in turns if messages), 0)

    async def fill(self, portions: AsyncIterator[LogPortion]) -> None:
        """Read until cancelled; an error is raised by :meth:`next`, behind what was read."""
        try:
            async for portion in portions:
                while self._size > self._most:
                    self._room.clear()
                    await self._room.wait()
                size = _TURN_BYTES
                size += sum(_MESSAGE_BYTES + message.size for message in portion.messages)
                self._portions.append((portion, size))
                self._size += size
                self._filled.set()
        except Exception as error:  # noqa: BLE001 - the sender raises it
            self._error = error
            self._filled.set()

    async def next(self, seconds: float) -> LogPortion | None:
        """Return the next turn; None if there is none in this time."""
        if not self._portions and self._error is None:
            self._filled.clear()
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._filled.wait()
            except TimeoutError:
                return None
        if not self._portions and self._error is not None:
            raise self._error
        portion, size = self._portions.popleft()
        self._size -= size
        self._room.set()
        return portion


@dataclass(eq=False, repr=False)
class DestinationRunner:
    """Sends the due messages of a destination to its sink, in order, for ever."""

    name: str
    _log: str
    _sink: Sink
    _due: Callable[[], DueMessages]
    """Returns a new reader."""
    _control: BrokerControl
    _limits: BatchLimits
    _now: Callable[[], float] = time.time
    """Returns the time in Unix seconds."""
    is_erased: Callable[[int], bool] = lambda _: False
    """Returns whether a key of sealed contents was destroyed."""

    def __post_init__(self) -> None:
        self._backoff = Backoff(self._limits.retry_base, self._limits.retry_most)
        self._run: Position = 0
        self._done = Progress()
        """What is stored by the destination and not recorded yet."""
        self._refusals: dict[Position, Refusal] = {}
        """Refused messages by their positions, until a cursor behind them is recorded with them: a
        crash before that repeats both."""
        self._retry: tuple[Position, ...] = ()
        self._missing: list[LostMessages] = []
        """Messages that cannot be sent, in the batches that are being sent."""
        self._through_recorded: Position = 0
        self._shown: dict[str, Any] = {}
        self._state, self._error = "starting", ""
        self._since = self._now()
        self._sent = self._retries = self._expired = self._denied = self._erased = 0
        self._time_ms = 0
        """Time of the last record that the destination is through with."""
        self._waiting_ms = 0
        """Time of the oldest message that waits to be stored; 0: none does."""
        self._ahead = ReadAhead(_READ_AHEAD_BYTES)
        self._watching: tuple[Position, asyncio.Task[None]] | None = None
        """Cursor from which the oldest waiting message is looked for while nothing is sent."""
        self._last_batch = 0.0
        self._reported = self._idle_since = -_SHOW_EVERY
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                cursor = await self._cursor()
                with contextlib.suppress(_Restart):
                    try:
                        await self._run_from(cursor)
                    except CursorLost:
                        await asyncio.sleep(_ASK_AGAIN)
                    except TryAgain as answer:  # of opening the sink
                        await self._watch_from(cursor)
                        await self._pause_after(answer)
        finally:
            await self._end_watch()
            with contextlib.suppress(BrokerUnavailable, _Restart, TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN):
                    await self._record()
            await self._sink.close()

    async def _cursor(self) -> RecordedCursor:
        """Return the cursor in the log, once the broker has it and it is not paused."""
        while True:
            try:
                cursor = (await self._control.cursors()).get(self.name)
            except BrokerUnavailable:
                cursor = None
            if cursor is not None:
                self._adopt(cursor)
                if not cursor.paused:
                    return cursor
                self._show("paused")
                await self._watch_from(cursor)
                with contextlib.suppress(BrokerUnavailable, _Restart):
                    await self._record_if_due()
            await asyncio.sleep(_ASK_AGAIN)

    def _adopt(self, cursor: RecordedCursor) -> None:
        if cursor.through > self._done.through:  # an operator or a cut moved it
            self._waiting_ms = 0
        self._ahead = ReadAhead(_READ_AHEAD_BYTES)
        self._retry = cursor.retry
        self._run = cursor.run
        self._through_recorded = cursor.through
        self._done = Progress(cursor.through, cursor.received, cursor.number)
        self._refusals.clear()

    async def _watch_from(self, cursor: RecordedCursor) -> None:
        """Look for the oldest message that waits, until something is sent."""
        if self._watching is None or self._watching[0] != cursor.through:
            await self._end_watch()
            watch = asyncio.create_task(self._find_oldest(cursor))
            self._watching = cursor.through, watch

    async def _end_watch(self) -> None:
        if self._watching is not None:
            await end_tasks([self._watching[1]])
            self._watching = None

    async def _find_oldest(self, cursor: RecordedCursor) -> None:
        with contextlib.suppress(CorruptLog, CursorLost):
            async for portion in self._due().after(cursor.through, cursor.number):
                if portion.messages:
                    self._waiting_ms = portion.messages[0].time_ms
                    return

    async def _run_from(self, cursor: RecordedCursor) -> None:
        about = Destination(
            *(self.name, self._log, cursor.run, cursor.through, cursor.received, cursor.number),
            self._record_received,
        )
        await self._sink.open(about)
        await self._end_watch()
        self._show("sending")
        self._missing.clear()
        ahead, due = ReadAhead(_READ_AHEAD_BYTES), self._due()
        self._ahead = ahead
        reading = asyncio.create_task(ahead.fill(due.after(cursor.through, cursor.number)))
        try:
            while True:
                await self._send_next(ahead)
                if self._retry:
                    await self._send_again(due)
        finally:
            await end_tasks([reading])

    async def _send_next(self, ahead: ReadAhead) -> None:
        """Send what waits, at most a batch; wait for it at most until the next report."""
        batch: list[OutboxMessage] = []
        size, until = 0, self._clock() + _REPORT_EVERY
        portion: LogPortion | None = None
        while True:
            following = await ahead.next(until - self._clock())
            if following is None:
                break
            portion = following
            self._denied += portion.skipped
            self._missing += [
                LostMessages(at - 1, at, count, "cut") for at, count in portion.missing
            ]
            if portion.messages:
                if not batch:
                    until = self._clock() + self._limits.wait
                    self._waiting_ms = portion.messages[0].time_ms
                for message in portion.messages:
                    if len(batch) == self._limits.messages or size >= self._limits.size:
                        await self._send(batch, batch[-1].at)
                        batch, size = [], 0
                    batch.append(message)
                    size += message.size
            if len(batch) >= self._limits.messages or size >= self._limits.size:
                break
            if not batch and self._clock() >= until:
                break
        if portion is not None:
            await self._send(batch, portion.through)
            self._time_ms = portion.time_ms
            if not portion.only_cursors and self._idle_since < 0:
                self._idle_since = self._clock()
        await self._record_if_due()

    async def _send_again(self, due: DueMessages) -> None:
        """Send refused messages for which an operator asked, each by itself."""
        refs, self._retry = self._retry, ()
        settled = dict.fromkeys(refs)  # those that are gone need nothing more, either
        for message in await due.messages_at(refs):
            await self._store([message])
            if message.position in self._refusals:
                settled.pop(message.position, None)  # a message may have several spans
        self._done.retried += settled
        self._waiting_ms = 0
        with contextlib.suppress(BrokerUnavailable):
            await self._record()

    async def _send(self, batch: list[OutboxMessage], through: Position) -> None:
        """Send a batch until it is stored or refused; ``through``: the cursor afterwards."""
        if batch:
            await self._store(batch)
        missing = sorted(each for each in self._missing if each.until <= through)
        self._missing = [each for each in self._missing if each.until > through]
        for each in missing:
            lost = self._done.lost
            if lost and lost[-1].precedes(each):
                before = lost.pop()
                each = each._replace(after=before.after, messages=before.messages + each.messages)
            elif len(lost) >= _MOST_LOST:
                self._done.through = lost[-1].until
                self._done.number = max(self._done.number, lost[-1].number)
                await self._record_surely()
            self._done.lost.append(each)
        if batch:
            self._done.number = batch[-1].number
        self._done.through = max(through, self._done.through)
        self._waiting_ms = 0
        # The broker takes a bounded number at once, and a turn may have any number of messages.
        while len(self._refusals) >= _MOST_REFUSED <= len(self._settled()):
            await self._record_surely()

    async def _store(self, batch: list[OutboxMessage]) -> None:
        while batch := self._unexpired(self._unerased(batch)):
            begun, self._waiting_ms = self._clock(), batch[0].time_ms
            try:
                await self._sink.send(batch)
            except TryAgain as answer:
                self._retries += 1
                await self._pause_after(answer)
            except RefusedMessages as answer:
                refused = [message for message in batch if message.at in answer.at]
                if not refused and len(batch) > 1:
                    half = len(batch) // 2
                    await self._store(batch[:half])
                    await self._store(batch[half:])
                    return
                self._refuse(refused or batch, answer)
                batch = [each for each in batch if refused and each.at not in answer.at]
            else:
                self._last_batch = self._clock() - begun
                self._done.count += len(batch)
                self._sent += len(batch)
                self._backoff.reset()
                self._show("sending")
                return

    def _unexpired(self, batch: list[OutboxMessage]) -> list[OutboxMessage]:
        if not any(message.expires for message in batch):
            return batch
        ended = expired_until(int(self._now() * 1000))
        valid = [message for message in batch if not 0 < message.expires <= ended]
        self._expired += len(batch) - len(valid)
        return valid

    def _unerased(self, batch: list[OutboxMessage]) -> list[OutboxMessage]:
        """Return the messages whose content is not erased; the others are given up."""
        keys = {message.key for message in batch if message.key}
        erased = {key for key in keys if self.is_erased(key)}
        if not erased:
            return batch
        lost = [message for message in batch if message.key in erased]
        self._erased += len(lost)
        self._missing += [
            LostMessages(message.at - 1, message.at, 1, "erased", message.number)
            for message in lost
            if message.number  # those that are sent again are behind the cursor
        ]
        return [message for message in batch if message.key not in erased]

    def _refuse(self, refused: list[OutboxMessage], answer: RefusedMessages) -> None:
        refused = self._unerased(refused)
        if not refused:
            return
        if any(message.key for message in refused):  # it may quote the content
            answer = RefusedMessages(_NOT_QUOTED, answer.code)
        _log.warning(
            "messages refused by a destination",
            to=self.name,
            count=len(refused),
            code=answer.code,
            reason=answer.reason,
        )
        for message in refused:
            settled = max(message.at, message.position)
            self._refusals.setdefault(
                message.position,
                Refusal(message.position, settled, message.number, answer.reason, answer.code),
            )

    def _settled(self) -> list[Refusal]:
        """Return the refusals that may be recorded: the cursor is behind their messages."""
        until = max(self._done.through, self._done.received)
        return [each for each in self._refusals.values() if each.settled <= until]

    async def _pause_after(self, answer: TryAgain) -> None:
        """Wait before the next attempt; an operator may meanwhile pause or skip."""
        state = "misconfigured" if answer.misconfigured else "retrying"
        if (state, answer.reason) != (self._state, self._error):
            _log.warning("a destination does not take messages", to=self.name, reason=answer.reason)
        self._show(state, answer.reason)
        pause = answer.after
        if pause is None:
            pause = self._backoff.next(longest=answer.misconfigured)
        ends = self._clock() + min(pause, self._limits.retry_most)
        while (remaining := ends - self._clock()) > 0:
            await self._record_if_due()
            await asyncio.sleep(min(remaining, _REPORT_EVERY))

    # The cursor.

    async def _record_received(self, received: Position) -> None:
        """Record how far a receiver at QoS 2 has the messages; returns when that is on disk."""
        self._done.reset = self._done.reset or received < self._done.received
        self._done.received = received
        await self._record_surely()

    async def _record_surely(self) -> None:
        """Record what is done so far as soon as the broker answers."""
        while True:
            with contextlib.suppress(BrokerUnavailable):
                await self._record()
                return
            await asyncio.sleep(_ASK_AGAIN)

    async def _record_if_due(self) -> None:
        now, progress = self._clock(), self._done
        waits = now - self._reported
        passed = progress.through > self._through_recorded and self._idle_since >= 0
        if (
            (waits >= _REPORT_EVERY and (progress.count or progress.lost or self._settled()))
            or (waits >= _REPORT_EVERY and self._shown_now() != self._shown)
            or waits >= _SHOW_EVERY
            or (passed and now - self._idle_since >= _IDLE_REPORT)
        ):
            with contextlib.suppress(BrokerUnavailable):
                await self._record()

    async def _record(self) -> None:
        """Record what is done so far. Raises BrokerUnavailable, and _Restart if the log differs."""
        if not self._run:
            return
        progress, refusals = self._done, self._settled()
        news = progress.count or progress.lost or progress.retried or refusals
        moved = bool(news) or progress.received > progress.through
        passed = 0 <= self._idle_since <= self._clock() - _IDLE_REPORT
        more = len(refusals) > _MOST_REFUSED and not (progress.received or progress.lost)
        if more:  # the others follow, with the cursor behind them
            refusals = sorted(refusals, key=lambda each: each.settled)[:_MOST_REFUSED]
        request = progress.request(self.name, self._run, shown := self._shown_now(), refusals)
        if more:
            request |= {"through": refusals[-1].settled, "number": refusals[-1].number}
        elif not (moved or passed):
            request |= {"through": self._through_recorded, "number": progress.number}
        self._done = Progress(progress.through, progress.received, progress.number)
        try:
            cursor = await self._control.record(request)
        except BaseException:
            self._done.count += progress.count
            self._done.reset = self._done.reset or progress.reset
            self._done.lost[:0] = progress.lost
            self._done.retried[:0] = progress.retried
            raise
        for each in refusals:
            self._refusals.pop(each.ref, None)
        self._reported, self._shown = self._clock(), shown
        self._through_recorded, self._retry = cursor.through, cursor.retry
        if moved or passed:
            self._idle_since = -1.0
        if cursor.run != self._run or cursor.paused or cursor.through > self._done.through:
            raise _Restart

    # What operators see.

    def _show(self, state: str, error: str = "") -> None:
        if state != self._state:
            self._since = self._now()
        self._state, self._error = state, error

    def _shown_now(self) -> dict[str, Any]:
        return {
            "state": self._state,
            "error": self._error,
            "since_ms": int(self._since * 1000),
            "sent": self._sent,
            "retries": self._retries,
            "expired": self._expired,
            "denied": self._denied,
            "erased": self._erased,
            "time_ms": self._time_ms,
            "waiting_ms": self._waiting_ms or self._ahead.waiting_ms,
            "batch_seconds": round(self._last_batch, 6),
        }
