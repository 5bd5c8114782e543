"""The journal: group commit, and the gate.

All events decided in one turn of the event loop go into one record. While a bounded number of
records is on its way to JetStream, the next turns' events gather in the open record: the busier the
broker, the larger its records, and the fewer syncs per event.

Output that depends on events is passed to :meth:`Journal.send_when_durable` as an *effect*: bytes
for a sink (a connection). The gate releases a turn's effects when the last record of that turn is
on disk, in the order in which they were passed. Acknowledgements are sent in no other way.

A sink that waits for such an effect (its CONNACK, its SUBACK) can be held: output that would pass
the gate without waiting (QoS 0) is then ordered after that effect, see
:meth:`Journal.send_unlogged`.

The journal does no I/O: a :class:`RecordStore` appends records and calls back. A retried append is
safe, since each names the sequence it must be stored under. When an append fails in any way, the
store reconciles the pending records with the stream (``resend``).
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, Protocol, cast

import orjson

from eventstore.errors import EventTooLarge
from eventstore.format.event_json import TEXT_LENGTHS, json_size
from eventstore.format.event_parsing import Event, LogEvent
from eventstore.format.events import Acked, Completed, MessagePublished, WillArmed
from eventstore.format.node_events import ClockJumped, MessagesCarried, RetainedSnapshot
from eventstore.format.positions import INDEX_BITS, MAX_INDEX, Position
from eventstore.format.record_size import ESCAPED
from eventstore.format.records import FORMAT, NO_JUMPS, ClockJumps, record_pieces
from eventstore.format.sealing import (
    AreaSeal,
    CipherOf,
    SealedPart,
    first_sealed,
    is_closed,
    new_salt,
)
from eventstore.format.turn_events import TurnAcked, TurnPublished
from eventstore.log.pending_record import (
    GatedOutput,
    OutputGate,
    PendingRecord,
    RecordStore,
)

_STALE_MS = 1000
"""Age of an open record from which further events begin another one, with a newer time."""
_EVENT_BYTES = 320
"""Largest size of an event's JSON without its columns and strings."""
_MAX_EVENTS = 1024
"""Maximum number of events in a record: encoding that many takes about 10 ms."""
_DEFER = 0.01
"""Maximum seconds that events without a waiting output, other than acknowledgements of clients,
stay in memory."""
_SEALED_BYTES = 32
"""Largest size of what a record says of a sealed part."""
ENTRY_BYTES: Final[int] = 48
"""Largest size of one entry in an event's columns: position, packet identifier, size."""


class Clock(Protocol):
    """A source of time."""

    def steady_ms(self) -> int:
        """Return Unix time in milliseconds without the jumps of the clock."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""


class Journal(OutputGate):
    """Appends events and releases effects.

    ``sequence`` and ``link`` are those of the last record in the log. ``max_record`` bounds a
    record in bytes, ``max_inflight`` the records on their way. A record of less than
    ``parallel_from`` bytes waits until the one before it is on disk: events that arrive until then
    join it, which saves a sync. ``max_pending`` bounds the bytes that may wait for the disk before
    :attr:`congested` asks for less input. ``jumps`` are those of the clock up to the last record,
    and no record gets a steady time before ``since_ms``, that of the last one.
    """

    def __init__(
        self,
        store: RecordStore,
        clock: Clock,
        *,
        node: str,
        sequence: int,
        link: bytes,
        max_record: int,
        max_inflight: int = 2,
        parallel_from: int = 16 * 1024,
        max_pending: int = 32 * 1024 * 1024,
        since_ms: int = 0,
        jumps: ClockJumps = NO_JUMPS,
    ) -> None:
        super().__init__()
        self.node = node
        self.max_record = max_record
        self.max_event = 1 << 62
        """Largest event with its payloads, in bytes, that the store accepts; set by the store."""
        self.record_format = FORMAT
        """The format of new records; set by the cluster."""
        self.cipher: CipherOf | None = None
        """Returns the ciphers of sealed contents; None: nothing is sealed."""
        self.on_input_resumed: Callable[[], None] = _nothing
        """Called when the congestion is over."""
        self.on_durable: Callable[[PendingRecord], None] = _nothing
        """Called with the last record on disk, before the output that waited for it is
        released."""
        self.on_stored: Callable[[PendingRecord], None] | None = None
        """Called with each record that is on disk; None: nobody reads the log as it grows."""
        self.on_deferred: Callable[[float], None] = _nothing
        """Called when events stay in the open record because no output waits for them: the caller
        has to call :meth:`flush_deferred` in so many seconds; no longer at an earlier request."""
        self.ack_delay = _DEFER
        """Maximum seconds that acknowledgements of clients stay in memory; set by the broker."""
        self._store = store
        self._clock = clock
        self.max_inflight = max_inflight
        """Maximum number of records on their way; the store may lower it."""
        self._parallel_from = parallel_from
        self._max_pending = max_pending
        self._since_ms = since_ms
        self._link = link
        self.released_at = -inf
        """Monotonic time at which output was last released because records were on disk."""
        self.durable = sequence
        """Stream sequence of the last record that is on disk."""
        self.durable_link = link
        """Link of the last record that is on disk."""
        self.last_complete_turn = sequence
        """Stream sequence of the last record on disk that ends a turn."""
        self._next = sequence + 1
        self.last: Position = sequence << INDEX_BITS
        """Position of the last appended entry; before there is one, of the last record of the
        log."""
        self._finished: deque[PendingRecord] = deque()
        self._inflight: deque[PendingRecord] = deque()
        self._pending_bytes = 0
        self._was_congested = False
        self._append_limit: int | None = None
        self._deferred = 0.0
        """Seconds for which the last call of ``on_deferred`` asked; 0: none is outstanding."""
        self._deferred_since = 0.0
        """Monotonic time of the first event of the open record."""
        self._only_acks = True
        """Whether the open record is a turn's first and contains nothing but acknowledgements that
        complete deliveries. Its time is still open: that of its first other event, or of the last
        acknowledgement."""
        self._flush = False
        self._in_turn = False
        self._split = False
        """Whether the turn continues across turns of the event loop: no record may end here."""
        self._events: list[LogEvent] = []
        self._payloads: list[bytes] = []
        self._payload_bytes = 0
        self._salt = b""
        """The salt of the open record; empty: nothing in it is sealed."""
        self._seal: AreaSeal | None = None
        self._sealed: list[SealedPart] = []
        self._size = 0
        self._index = 0
        self._part = 0
        self._begun = 0.0
        self._effects: list[GatedOutput] = []
        self._jumps = jumps
        """The jumps of the clock up to the open record."""
        self.steady_ms = 0
        """Time of the record with the last event, without the jumps of the clock."""

    @property
    def end(self) -> int:
        """Stream sequence of the last record that contains an event."""
        return self._next if self._events else self._next - 1

    @property
    def next_position(self) -> Position:
        """The position of the next event, unless the open record is closed first."""
        return self._next << INDEX_BITS | self._index

    @property
    def between_turns(self) -> bool:
        """Whether no turn is open: its events would be parted from those appended now."""
        return not (self._in_turn or self._split)

    @property
    def last_closed(self) -> tuple[int, bytes] | None:
        """Stream sequence and link of the last closed record; None while its turn continues."""
        return None if self._part or self._split else (self._next - 1, self._link)

    @property
    def pending(self) -> list[PendingRecord]:
        """The closed records that are not known to be on disk, in order."""
        return [*self._inflight, *self._finished]

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not known to be on disk, including the open record."""
        return self._pending_bytes + self._size

    @property
    def oldest(self) -> float | None:
        """Monotonic time of the start of the oldest record that is not on disk; None: all are."""
        for waiting in (self._inflight, self._finished):
            if waiting:
                return waiting[0].begun
        return None

    @property
    def idle(self) -> bool:
        """True when everything appended is on disk and every effect released."""
        waiting = self._inflight or self._finished or self._events
        return not (waiting or self._turn or self._releasing)

    @property
    def congested(self) -> bool:
        """True when too many bytes wait for the disk or are in the log: input should pause."""
        if self.lagging or self.full:
            self._was_congested = True
            return True
        return False

    @property
    def lagging(self) -> bool:
        """True when more bytes wait for the disk than permitted."""
        return self._pending_bytes + self._size + self.gated > self._max_pending

    @property
    def full(self) -> bool:
        """True when the log has no room for more events: input waits until the log is cut."""
        return (
            self._append_limit is not None
            and self.stats.bytes + self.pending_bytes > self._append_limit
        )

    def limit_appends(self, appended: int | None) -> None:
        """Set how many bytes may be appended since the start before input has to wait.

        None: there is no such bound.
        """
        self._append_limit = appended
        self._resume_input()

    def _resume_input(self) -> None:
        """Resume input when there is room for it."""
        waiting = self._pending_bytes + self._size + self.gated
        if self._was_congested and waiting < self._max_pending // 2 and not self.full:
            self._was_congested = False
            self.on_input_resumed()

    def append(
        self,
        event: LogEvent,
        count: int = 1,
        payloads: Sequence[bytes] = (),
        size: int = 0,
        keys: Sequence[int] = (),
    ) -> Position:
        """Append an event of ``count`` entries to the open record; return its first position.

        ``payloads`` (``size`` bytes in all) go into the payload area of the same record. The
        event's distinct blocks of properties, if it has any, come first; its ``at`` is set to the
        offset of its first message's payload. ``keys`` are the numbers of the keys under which
        ``payloads`` are sealed, 0 for none; empty: none is.

        Raises EventTooLarge, and records nothing, when the event does not fit into any record.
        """
        text, stored = TEXT_LENGTHS.get(type(event)), size
        if keys:
            stored += _SEALED_BYTES * len(keys)
        if text is not None:
            need = stored + _EVENT_BYTES + ENTRY_BYTES * count + ESCAPED * text(event)
        else:
            need = stored + json_size(event)
        if need > self.max_event:
            need = stored + json_size(event)
            if need > self.max_event:
                raise EventTooLarge(event.e, need, self.max_event)
        if self._events and not self._in_turn and not self._only_acks and self._stale():
            self._finish_record(last=True)
        self._in_turn = True
        if self._events and (
            self._size + need > self.max_record
            or self._index + count > MAX_INDEX
            or len(self._events) >= _MAX_EVENTS
        ):
            self._finish_record(last=False)
        if self._only_acks or not self._events:
            self._begin_record()
            self._only_acks = self._only_acks and _completes(event)
        if size or isinstance(event, _WITH_PAYLOADS):
            blocks: Sequence[int] = event.blocks  # type: ignore[union-attr]  # only these have payloads
            at = self._payload_bytes + sum(blocks) if blocks else self._payload_bytes
            event.at = at  # type: ignore[union-attr]  # likewise
            self._payloads += self._sealed_pieces(event, payloads, keys) if keys else payloads
            self._payload_bytes += size
        at = self._next << INDEX_BITS | self._index
        self.last = at + count - 1
        self._events.append(event)
        self._index += count
        self._size += need
        if self.observer is not None:
            # With an observer, events of several sessions are not decided together.
            own = payloads[len(event.blocks) :] if isinstance(event, _WITH_PAYLOADS) else payloads
            self.observer.appended(cast("Event", event), at, own)
        return at

    def _sealed_pieces(
        self, event: Any, pieces: Sequence[bytes], keys: Sequence[int]
    ) -> list[bytes]:
        """Return parts of the payload area as the open record has them.

        What could not be opened stays as it is: nobody can read it there either.
        """
        seal = self._seal
        if seal is None:
            self._salt = new_salt()
            seal = self._seal = AreaSeal(self._salt, cast("Any", self.cipher))
        offset, blocks = self._payload_bytes, len(event.blocks)
        stored: list[bytes] = []
        for key, piece in zip(keys, pieces, strict=True):
            size = len(piece)
            begin = first_sealed(piece) if len(stored) < blocks else 0
            if key and size > begin:
                self._sealed.append((offset + begin, size - begin, key))
                if type(piece) is not bytes and is_closed(piece):
                    stored.append(piece)
                elif begin:
                    sealed = seal.turned(key, offset + begin, piece[begin:])
                    stored.append(piece[:begin] + sealed)
                else:
                    stored.append(seal.turned(key, offset, piece))
            else:
                stored.append(piece)
            offset += size
        return stored

    def has_room(self, size: int, *texts: str) -> bool:
        """Return whether a message of ``size`` bytes with these texts fits into a record."""
        need = size + _EVENT_BYTES + ENTRY_BYTES
        if self.cipher is not None:
            need += 2 * _SEALED_BYTES  # its properties and its payload
        if need + ESCAPED * sum(map(len, texts)) <= self.max_event:
            return True
        return need + sum(len(orjson.dumps(text)) for text in texts) <= self.max_event

    def event_ms(self) -> int:
        """Return the steady time that the log has for what is decided now.

        It is that of an open record, if there is one.
        """
        if self._events and not self._only_acks and (self._in_turn or not self._stale()):
            return self.steady_ms
        return max(self._clock.steady_ms(), self._since_ms)

    def _begin_record(self) -> None:
        self._since_ms = self.steady_ms = max(self._clock.steady_ms(), self._since_ms)
        self._begun = self._clock.monotonic()
        if not self._events:
            self._deferred_since = self._begun

    def _stale(self) -> bool:
        """Return whether the open record is too old for further events."""
        if self.steady_ms < self._since_ms:
            return True
        return self._clock.steady_ms() - self.steady_ms > _STALE_MS

    def not_before(self, steady_ms: int) -> None:
        """Write events of later turns to records of this time or later; call it between turns."""
        self._since_ms = max(self._since_ms, steady_ms)

    def jump(self, ms: int, seen: str) -> ClockJumped:
        """Begin a record whose time follows a jump of the clock; return the event to append to it.

        The time does not change if an operator confirmed the clock. Call it between turns.
        """
        if self._events:
            self._finish_record(last=True)
        event = ClockJumped(ms, seen, self._jumps.record)
        jump_ms = 0 if seen == "confirmed" else ms
        self._jumps = ClockJumps(self._jumps.total_ms + jump_ms, self._next)
        return event

    def split_turn(self) -> None:
        """Keep the incomplete turn open while the event loop does other work."""
        self._split = True

    def end_turn(self) -> None:
        """Close the turn: its events are complete. Send the records that may be sent."""
        self._in_turn = self._split = False
        if self._turn:
            effects, self._turn = self._turn, GatedOutput()
            if self._events:
                self._effects.append(effects)
            elif self._finished:
                self._finished[-1].effects.append(effects)
            elif self._inflight:
                self._inflight[-1].effects.append(effects)
            else:
                self._release(effects)
        if self._events and not self._effects:
            self._defer(self.ack_delay if self._only_acks else _DEFER)
        self._close_record()

    def _defer(self, seconds: float) -> None:
        """Request a flush in some seconds, unless an earlier one is requested."""
        if not self._deferred or seconds < self._deferred:
            self._deferred = seconds
            self.on_deferred(seconds)

    def flush_deferred(self) -> None:
        """Send the open record if its events have been in memory for long enough."""
        self._deferred = 0.0
        if self._events and not self._effects:
            waited = self._clock.monotonic() - self._deferred_since
            delay = self.ack_delay - waited if self._only_acks else 0.0
            if delay < _DEFER:
                self.flush()
            else:
                self._defer(delay)

    def flush(self) -> None:
        """Send the open record although no output waits for it."""
        self._flush = bool(self._events)
        self._close_record()

    def committed(self, sequence: int) -> None:
        """Mark all records up to this stream sequence as durable and release their effects."""
        inflight = self._inflight
        newest = None
        for record in inflight:
            if record.sequence <= sequence:
                newest = record
        if newest is not None:
            self.on_durable(newest)
        now = self.released_at = self._clock.monotonic()
        releasing = self._releasing
        idle = not releasing
        while inflight and inflight[0].sequence <= sequence:
            record = inflight.popleft()
            self.durable = record.sequence
            if record.last:
                self.last_complete_turn = record.sequence
            self.durable_link = record.link
            self._pending_bytes -= record.size
            self.stats.stored(record.events, record.entries, record.size)
            self.stats.commit.observe(now - record.begun)
            releasing += record.effects
            if self.on_stored is not None:
                self.on_stored(record)
        # A small record goes first: it is synced while the output is written to the sockets.
        small = not self._finished and self._size < self._parallel_from
        try:
            if small:
                self._close_record()
        finally:
            if idle and releasing:
                self._begin_release()
        if not small:
            self._close_record()
        self._resume_input()

    def resend(self) -> None:
        """Send every record that is on its way again, in order."""
        for record in self._inflight:
            self._store.send(record)

    def _close_record(self) -> None:
        """Close and send the open record, if it is due and another one may be on its way.

        Events that no output waits for (a client's PUBACK, which completes a delivery) are not
        worth a separate sync. They are written with the next record that an effect waits for, or
        after ``ack_delay``; after a crash before that, the message is delivered again, which is
        permitted.
        """
        self._send_records()
        if self._split:
            return
        due = self._effects or self._flush
        # A small record is not worth a second sync in parallel: events that arrive until the
        # current sync ends join it, which reduces the latency of each message and the broker's
        # work.
        most = self.max_inflight if self._part or self._size >= self._parallel_from else 1
        free = not self._finished and len(self._inflight) < most
        # If a record becomes full within a turn, output of earlier turns in it waits until the
        # turn's last part is stored: so a large record is closed between two turns.
        large = self._size > self.max_record // 2 or len(self._events) > _MAX_EVENTS // 2
        if self._events and ((due and free) or large):
            self._flush = False
            self._finish_record(last=True)
        self._send_records()

    def _finish_record(self, *, last: bool) -> None:
        """Close the open record.

        If the current turn continues in the next record, this one is not the ``last`` part: it is
        void until that one is stored. The effects of earlier turns in it wait as well.
        """
        effects: list[GatedOutput] = []
        if last:
            effects, self._effects = self._effects, effects
        pieces = record_pieces(
            self._link,
            self.node,
            self.steady_ms + self._jumps.total_ms,
            self._events,
            self._payloads,
            self._part,
            last=last,
            jumps=self._jumps,
            record_format=self.record_format,
            sealed=self._sealed,
            salt=self._salt,
        )
        count = len(self._events)
        record = PendingRecord(
            self._next, pieces, effects, count, self._index, last=last, begun=self._begun
        )
        self._finished.append(record)
        self._pending_bytes += record.size
        self._link = record.link
        self._next += 1
        self._part = 0 if last else self._part + 1
        self._events = []
        self._payloads = []
        self._payload_bytes = self._size = self._index = 0
        if self._salt:
            self._salt, self._seal, self._sealed = b"", None, []
        self._only_acks = last

    def _send_records(self) -> None:
        while self._finished and len(self._inflight) < self.max_inflight:
            record = self._finished.popleft()
            self._inflight.append(record)
            self._store.send(record)


_WITH_PAYLOADS = (
    MessagePublished,
    WillArmed,
    RetainedSnapshot,
    MessagesCarried,
    TurnPublished,
)


def _completes(event: LogEvent) -> bool:
    """Return whether an event only completes deliveries."""
    if isinstance(event, TurnAcked):
        return event.kind != "Received"
    return isinstance(event, Acked | Completed)


def _nothing(*_: object) -> None:
    """Do nothing."""
