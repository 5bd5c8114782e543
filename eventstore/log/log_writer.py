"""Appends to the log in JetStream: one stream for each node, one writer.

Every append names the sequence that must be the stream's last one, so a second writer is fenced off
and a repeated append is harmless. After anything unexpected (an error, no answer, a lost
connection) the writer requests the end of the stream, counts the records that are stored as
committed, and sends the rest again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import structlog

from eventstore.errors import (
    CorruptLog,
    EventStoreError,
    Fenced,
    LogUnavailable,
    NatsUnavailable,
    RecordTooLarge,
)
from eventstore.format.record_size import HEADERS, MIN_RECORD, RECORD_OVERHEAD, largest_record
from eventstore.format.records import message_id, previous_of
from eventstore.log.record_reader import read_tail
from eventstore.nats.connection import describe_error
from eventstore.nats.jetstream import NOT_STORED, OVER_STREAM_LIMIT, REQUEST_SECONDS, read_info
from eventstore.nats.replication import check_replication
from eventstore.task_cancellation import end_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.log.journal import Clock, Journal
    from eventstore.log.pending_record import PendingRecord
    from eventstore.nats.direct_client import DirectClient
    from eventstore.server.disk_recovery import DiskRecovery

_log = structlog.get_logger("foldmq")

_WATCH_EVERY = 0.5
_RETRY_FIRST = 0.05
_ALIGN_TIMEOUT = 2.0
"""Time limit in seconds of a check of the stream."""
_RETRY_UNCONNECTED = 0.05
"""Seconds between two looks whether there is a connection again."""
_INSPECT_EVERY = 10.0
"""Seconds between checks that the stream still holds the records that were stored in it."""
VERDICTS = 3
"""Number of checks that must find damage before a stream with replicas counts as damaged."""
VERDICT_EVERY = 1.0
"""Seconds between two such checks."""
_TOO_LARGE = "too large"
_OVER_SERVER = "maximum payload violation"
"""Error with which a server closes a connection that exceeded its max_payload."""


@dataclass(slots=True)
class WaitTimes:
    """The wait times of a writer for JetStream, in seconds."""

    ack: float = 5.0
    """For an acknowledgement, before the stream is checked."""
    look: float = _ALIGN_TIMEOUT
    """For the first answer about the stream after a failure; later ones may take longer."""
    look_most: float = REQUEST_SECONDS
    """For later answers."""
    retry_most: float = 1.0
    """Longest wait between two checks after a failed one."""
    room: float = 1.0
    """Longest wait before the next append after a failure of JetStream."""
    server: float | None = None
    """Before the writer tries another server; None: there is only one."""


def wait_times(replicas: int) -> WaitTimes:
    """Return the wait times: shorter ones where another server can take over.

    The election of a leader takes up to 10 s, which leaves little for everything else.
    """
    if replicas == 1:
        return WaitTimes()
    return WaitTimes(ack=3.0, look=1.0, look_most=1.0, retry_most=0.25, room=0.1, server=2.5)


class LogWriter:
    """Appends records to the stream, in order, also across failures.

    ``on_fatal`` is called once when this process can never write the log again: another writer
    appended, the stream lost records, or the connection was closed permanently.
    """

    def __init__(
        self,
        nc: DirectClient,
        stream: str,
        subject: str,
        clock: Clock,
        on_fatal: Callable[[EventStoreError], None],
        recovery: DiskRecovery | None = None,
        max_msg_size: int = -1,
        refused: int = 0,
        replicas: int = 1,
    ) -> None:
        self._nc = nc
        self._stream = stream
        self._subject = subject
        self._clock = clock
        self._replicas = replicas
        self.waits = wait_times(replicas)
        self._changed_server = float("-inf")
        self._on_fatal = on_fatal
        self._recovery = recovery
        self._journal: Journal | None = None
        self._attempt = 0
        self._inbox = ""
        self._recovering: asyncio.Task[None] | None = None
        self._refused_by_server = False
        """Whether JetStream failed in the present outage."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False
        self._lost = False
        self._logged: set[str] = set()
        self._stream_most = max_msg_size
        """The stream's max_msg_size when it was last requested."""
        self._refused = refused
        self._least = MIN_RECORD
        self._max_record = 0
        self.outage: str | None = None
        """The reason why nothing can currently be appended; None if appends work."""
        self.outage_since = 0.0
        """Monotonic time at which the outage began."""
        self.first = 1
        """Latest stream sequence at which the log may begin."""
        self.keep_mark: Callable[[], bool] = bool
        """Writes the watermark again if it is gone, and returns whether so; called every half
        second while the log can be written."""

    @property
    def damage(self) -> str | None:
        """What happened to the stored records; None: nothing that is known."""
        return self._recovery.damage if self._recovery is not None else None

    async def start(self, journal: Journal) -> None:
        """Begin to append the records of a journal."""
        self._journal = journal
        self._max_record = journal.max_record
        largest = self._largest()
        self._least = min(largest, MIN_RECORD)
        journal.max_event = largest - RECORD_OVERHEAD
        journal.max_record = min(self._max_record, largest // 2)
        self._look_at_replicas(journal, self._replicas)
        self._inbox = self._nc.new_inbox()
        await self._nc.listen(f"{self._inbox}.*.*", self._on_reply)
        self._tasks = [asyncio.create_task(self._watch(), name="log watch")]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _largest(self) -> int:
        """Return the size in bytes of the largest message that the stream accepts."""
        return largest_record(self._nc.max_payload, self._subject, self._stream_most, self._refused)

    def _look_at_bounds(self, journal: Journal) -> None:
        """Limit new records to the size that NATS accepts now.

        The limit never falls below the least that the log needs: a record that is too large for
        NATS then fails when it is stored.
        """
        largest = max(self._largest(), self._least)
        if largest - RECORD_OVERHEAD != journal.max_event:
            _log.warning("largest record changed: NATS now accepts another size", bytes=largest)
            journal.max_event = largest - RECORD_OVERHEAD
            journal.max_record = min(self._max_record, largest // 2)

    @staticmethod
    def _look_at_replicas(journal: Journal, replicas: int) -> None:
        """Send one record at a time to a stream with replicas.

        A second record on its way would have to name the first one, see :meth:`_fence`. When
        another writer has taken the place of the first one, a replicated stream of NATS 2.15 fails
        to apply the second one on every server, and never stores anything again.
        """
        if replicas > 1:
            journal.max_inflight = 1

    async def stop(self) -> None:
        """Stop; uncommitted records stay with the journal."""
        self._stopped = True
        await end_tasks([*self._tasks, *([self._recovering] if self._recovering else [])])

    def send(self, record: PendingRecord) -> None:
        """Append a record. During an outage it is kept, and sent again afterwards."""
        record.sent_at = self._clock.monotonic()
        if self._recovering is None and not self._lost:
            if record.size + HEADERS > self._nc.max_payload and self._nc.is_connected:
                what = f"NATS accepts at most {self._nc.max_payload} bytes"
                self._fail(RecordTooLarge(self._stream, record.size, what))
                return
            sent = self._nc.send_now(
                self._subject,
                record.pieces,
                reply=f"{self._inbox}.{self._attempt}.{record.sequence}",
                headers=self._fence(record),
            )
            if not sent:
                self.recover("NATS accepts no data", by_server=False)

    def recover(self, reason: str, *, by_server: bool = True) -> None:
        """Start recovery after a failed append or a lost connection.

        ``by_server`` says whether JetStream failed, and not only the connection.
        """
        self._refused_by_server |= by_server
        if self.outage is None:
            self.outage = reason
            self.outage_since = self._clock.monotonic()
        if self._recovering is None and not self._stopped and not self._lost:
            self._recovering = asyncio.create_task(self._recover(), name="log recovery")
            self._recovering.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail the log when a task of the writer failed, which would otherwise go unnoticed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("log writer failed", part=task.get_name(), exc_info=error)
            self._on_fatal(EventStoreError(f"the {task.get_name()} failed: {error}"))

    def _fence(self, record: PendingRecord) -> dict[str, str]:
        """Return the headers with which JetStream stores a record only at its place, and only once.

        A record that follows one in flight also names that one: if another writer's record is
        stored in its place, the sequence alone would match. A stream with replicas
        gets one record at a time, and so never such a name.
        """
        headers = {
            "Nats-Expected-Last-Sequence": str(record.sequence - 1),
            "Nats-Msg-Id": message_id(record.link),
        }
        if self._journal is not None and record.sequence > self._journal.durable + 1:
            before = message_id(previous_of(record.pieces[0]))
            headers["Nats-Expected-Last-Msg-Id"] = before
        return headers

    def _on_reply(self, subject: str, data: bytes) -> None:
        if self._lost:
            return
        _, attempt, sequence = subject.rsplit(".", 2)
        if not data:
            failure = "JetStream does not respond"
        else:
            answer = orjson.loads(data)
            error = answer.get("error")
            if error is None:
                self._stored(int(sequence), answer.get("seq"))
                return
            what, code = error.get("description", ""), error.get("err_code")
            failure = f"JetStream: {what} ({code})"
            if code == OVER_STREAM_LIMIT or (code == NOT_STORED and _TOO_LARGE in what):
                self._too_large(int(sequence), what)
        if int(attempt) == self._attempt:
            self.recover(failure)

    def _stored(self, sequence: int, place: object) -> None:
        """Commit a record that JetStream reports as stored, if it is stored at its place."""
        if place == sequence:
            self._committed(sequence)
        else:
            end = place if isinstance(place, int) else None
            self._fail(Fenced(self._stream, sequence - 1, end))

    def _too_large(self, sequence: int, what: str) -> None:
        """Fail when a pending record can never be stored."""
        for record in self._journal.pending if self._journal is not None else ():
            if record.sequence == sequence:
                self._fail(RecordTooLarge(self._stream, record.size, what))

    def _committed(self, sequence: int) -> None:
        if self._recovering is None and self.outage is not None:
            _log.info("log is written again", outage_s=round(self._outage_seconds(), 1))
            self.outage = None
            self._logged.clear()
        if self._journal is not None:
            self._journal.committed(sequence)

    def _outage_seconds(self) -> float:
        return self._clock.monotonic() - self.outage_since

    async def _watch(self) -> None:
        """Watch for appends that are not answered, and for their causes."""
        inspected = self._clock.monotonic()
        while not self._lost:
            await asyncio.sleep(_WATCH_EVERY)
            if self._nc.is_closed:
                self._fail(self._why_closed())
                return
            if self._journal is None or self._recovering is not None:
                continue
            if self._clock.monotonic() - inspected > _INSPECT_EVERY:
                await self._inspect(self._journal)
                inspected = self._clock.monotonic()
                continue
            if self.keep_mark():
                _log.warning("log.mark was removed or replaced: it is written again")
            if self._recovery is not None:
                idle = not self._journal.pending
                complaint = self._recovery.problem(self._journal.durable, self.first, idle=idle)
                if complaint is not None:
                    self.recover(complaint)
                    continue
            pending = self._journal.pending
            if pending and pending[0].sent_at:
                age = self._clock.monotonic() - pending[0].sent_at
                if age > self.waits.ack:
                    waited = f"{self.waits.ack:g} s"
                    self.recover(f"no answer from JetStream for more than {waited}")

    def _why_closed(self) -> EventStoreError:
        """Return the error for a connection that was closed permanently."""
        error = self._nc.last_error
        if _OVER_SERVER not in str(error or "").lower():
            why = describe_error(error) if error else "see its log"
            return NatsUnavailable(f"NATS closed the connection permanently: {why}")
        pending = self._journal.pending if self._journal is not None else []
        # The server does not name the message; its size did not exceed the previous limit of NATS.
        size = max((record.size for record in pending), default=0) or self._nc.max_payload
        return RecordTooLarge(self._stream, size, f"NATS closed the connection: {_OVER_SERVER}")

    async def _inspect(self, journal: Journal) -> None:
        """Check that no records were removed from the stream: appends would not notice.

        One answer proves nothing: a replaced leader still answers for a moment.
        """
        damage = await self._look(journal)
        for _ in range(1, VERDICTS):
            if damage is None:
                return
            await asyncio.sleep(VERDICT_EVERY)
            damage = await self._look(journal)
        if damage is not None and self._recovering is None:  # which finds out more
            self._fail(damage)

    async def _look(self, journal: Journal) -> EventStoreError | None:
        """Return the stream's damage; None when there is none or the stream cannot be asked."""
        durable = journal.durable
        try:
            info = await read_info(self._nc, self._stream, _ALIGN_TIMEOUT)
        except LogUnavailable:  # an append will report it
            return None
        except EventStoreError as error:
            return error
        self._stream_most = info["config"].get("max_msg_size", -1)
        self._look_at_bounds(journal)
        self._look_at_replicas(journal, info["config"].get("num_replicas", 1))
        first, end = info["state"]["first_seq"], info["state"]["last_seq"]
        if durable and first > self.first:
            try:
                await self.check_fence(_ALIGN_TIMEOUT)
            except LogUnavailable:
                return None
            except EventStoreError as error:
                return error
            what = f"is gone from stream {self._stream}, which now begins later"
            return CorruptLog(self.first, what)
        if end < durable:
            return CorruptLog(end + 1, self._gone())
        return None

    def _gone(self) -> str:
        return f"is gone from stream {self._stream}, which ends before; it had been stored"

    def _fail(self, error: EventStoreError) -> None:
        """Stop permanently: nothing more is sent, and so nothing more is acknowledged."""
        if not self._lost:
            self._lost = True
            self._on_fatal(error)

    async def _recover(self) -> None:
        """Reconcile the stream with the journal's pending records; retry until it works."""
        self._log_outage()
        delay = _RETRY_FIRST
        timeout = self.waits.look
        verdicts = 0
        while True:
            try:
                if self._recovery is not None and self._journal is not None:
                    await self._recovery.restart(self._journal.durable, self.first)
                await self._align(timeout)
            except NatsUnavailable as error:
                self._note(str(error))
                await self._change_server()
                if not self._nc.is_connected:
                    await asyncio.sleep(_RETRY_UNCONNECTED)
                    continue
                await asyncio.sleep(delay)
                delay = min(delay * 2, self.waits.retry_most)
                timeout = min(timeout * 2, self.waits.look_most)
                continue
            except EventStoreError as error:
                verdicts += 1
                if self._replicas == 1 or verdicts == VERDICTS:
                    self._fail(error)
                    return
                await asyncio.sleep(VERDICT_EVERY)
                continue
            break
        # The next failure is a new one; pause before it, since a full disk fails immediately.
        age = self._outage_seconds()
        if self._refused_by_server and age > _RETRY_FIRST:
            await asyncio.sleep(min(age / 4, self.waits.room))
        self._refused_by_server = False
        self._recovering = None
        self._attempt += 1
        if self._journal is not None:
            self._look_at_bounds(self._journal)
            if not self._journal.pending:
                self._committed(self._journal.durable)
            self._journal.resend()

    async def _change_server(self) -> None:
        """Try another server when this one has not stored anything for a while.

        It may be disconnected from the others, or suspended, without a sign on the connection.
        """
        pending = self._journal.pending if self._journal is not None else []
        since = min([self.outage_since, *(record.sent_at for record in pending if record.sent_at)])
        since, now = max(since, self._changed_server), self._clock.monotonic()
        if self.waits.server is not None and now - since > self.waits.server:
            self._changed_server = now
            await self._nc.change_server()

    def _note(self, reason: str) -> None:
        """Record the latest reason; log it when it has changed."""
        if self._nc.is_connected:
            self.outage = reason
            self._log_outage()

    def _log_outage(self) -> None:
        if self.outage is not None and self.outage not in self._logged:
            self._logged.add(self.outage)
            _log.warning("log cannot be written", reason=self.outage)

    async def _align(self, seconds: float) -> None:
        journal = self._journal
        if journal is None:
            return
        if not self._nc.is_connected:
            raise LogUnavailable("no connection to NATS")
        durable = journal.durable
        if self._replicas > 1:
            check_replication(self._nc, self._replicas)
        stored = await self.check_fence(seconds)
        if stored > durable:
            if self._recovery is not None:  # the record was written, but may not be synced
                await self._recovery.sync()
            journal.committed(stored)

    async def check_fence(self, seconds: float | None) -> int:
        """Return the sequence of the last record of the stream, which is this writer's.

        Raises Fenced when another writer has appended, CorruptLog when the stream lost records that
        were stored, LogUnavailable when JetStream does not answer in time.
        """
        journal = self._journal
        if journal is None:
            return 0
        # Answers in transit may still advance the journal while the stream is queried.
        durable, durable_link = journal.durable, journal.durable_link
        pending = {record.sequence: record.link for record in journal.pending}
        tail = await read_tail(self._nc, self._stream, self._subject, seconds)
        if tail.sequence < durable:
            raise CorruptLog(tail.sequence + 1, self._gone())
        if tail.sequence == durable and tail.link != durable_link:
            raise CorruptLog(tail.sequence, "is not the one that was stored")
        if tail.sequence > max(durable, journal.durable):
            # A record may have been stored meanwhile, and its answer may be in transit.
            pending.update({record.sequence: record.link for record in journal.pending})
            if pending.get(tail.sequence) != tail.link:
                raise Fenced(self._stream, durable, tail.sequence)
        return tail.sequence
