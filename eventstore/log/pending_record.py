"""The output of the journal: closed records for the store, and effects for the sinks.

The output of a turn, its *effects*, belongs to the last record of that turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

import structlog

from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position
from eventstore.format.records import link_of
from eventstore.log.journal_stats import JournalStats

_log = structlog.get_logger("foldmq")

LARGE_PAYLOAD: Final[int] = 16 * 1024
"""Mean payload size in bytes from which output and records are not joined into one piece: copying
them costs more than handling the pieces."""


class OutputSink(Protocol):
    """A receiver of effects: a connection.

    A sink with a method ``writelines`` gets large output in pieces, which are not joined.
    """

    waits_for: GatedOutput | None
    """The effects that this sink waits for, see :meth:`Journal.send_unlogged`."""
    gated: int
    """Bytes that wait at the gate for this sink; the journal keeps the count."""

    def write(self, data: bytes) -> None:
        """Write bytes whose events are on disk."""


class GatedOutput(dict[OutputSink, list[bytes]]):
    """The effects of one turn: the bytes for each sink, in order."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # compared by identity only


class JournalObserver(Protocol):
    """Observes appended events and output passed to the gate; it must not raise."""

    def appended(self, event: Event, at: Position, payloads: Sequence[bytes]) -> None:
        """Observe an appended event, with the payloads of its messages."""

    def gated(self, sink: OutputSink, data: bytes) -> None:
        """Observe output for a sink."""


class OutputGate:
    """Holds effects back until they may be released, and releases them in order."""

    def __init__(self) -> None:
        self.stats = JournalStats()
        self.observer: JournalObserver | None = None
        """The observer, while there is a trace."""
        self.call_soon: Callable[[Callable[[], None]], object] = _at_once
        """Calls a function in the next turn of the event loop; set by the broker."""
        self.released_at_once = 1024
        """Number of sinks whose effects are released before control returns to the event loop."""
        self.gated = 0
        """Bytes that wait at the gate for all sinks."""
        self._turn = GatedOutput()
        """The effects of this turn."""
        self._releasing: deque[GatedOutput] = deque()
        """Effects that may be released but were too many for one pass; the first ones may be partly
        released."""
        self._left: Iterator[tuple[OutputSink, list[bytes]]] = iter(())
        """The part of the first ones that is not released yet."""

    @property
    def releasing(self) -> bool:
        """True while some of the effects that may be released are not written yet."""
        return bool(self._releasing)

    def send_when_durable(self, sink: OutputSink, data: bytes) -> None:
        """Send bytes to a sink once everything appended in this turn is on disk."""
        if self.observer is not None:
            self.observer.gated(sink, data)
        self._count(sink, len(data))
        chunks = self._turn.get(sink)
        if chunks is None:
            self._turn[sink] = [data]
        else:
            chunks.append(data)

    def send_pieces_when_durable(self, sink: OutputSink, pieces: Sequence[bytes]) -> int:
        """Send bytes in pieces as ``send_when_durable`` does; return their number."""
        size = sum(map(len, pieces))
        if self.observer is not None:
            self.observer.gated(sink, b"".join(pieces))
        self._count(sink, size)
        chunks = self._turn.get(sink)
        if chunks is None:
            self._turn[sink] = [*pieces]
        else:
            chunks += pieces
        return size

    def order_behind(self, sink: OutputSink) -> None:
        """Order all later output for the sink after this turn's effects for it."""
        sink.waits_for = self._turn
        self._turn.setdefault(sink, [])

    def send_unlogged(self, sink: OutputSink, data: bytes) -> None:
        """Send bytes that depend on no event, immediately unless the sink waits for effects."""
        if self.observer is not None:
            self.observer.gated(sink, data)
        if sink.waits_for is None:
            sink.write(data)
        else:
            self._count(sink, len(data))
            sink.waits_for.setdefault(sink, []).append(data)

    def _count(self, sink: OutputSink, size: int) -> None:
        sink.gated += size
        self.gated += size

    def _release(self, effects: GatedOutput) -> None:
        """Release effects, after those that are already being released."""
        self._releasing.append(effects)
        if len(self._releasing) == 1:
            self._begin_release()

    def _begin_release(self) -> None:
        self._left = iter(self._releasing[0].items())
        self._release_some()

    def _release_some(self) -> None:
        """Release effects for some sinks; the rest follows in the next turn of the event loop."""
        room, releasing = self.released_at_once, self._releasing
        while releasing:
            effects = releasing[0]
            for sink, chunks in islice(self._left, room):
                room -= 1
                self._write_output(sink, chunks, effects)
            if not room:
                self.call_soon(self._release_some)
                return
            self.stats.released += len(effects)
            releasing.popleft()
            if releasing:
                self._left = iter(releasing[0].items())
        self._resume_input()

    def _write_output(self, sink: OutputSink, chunks: list[bytes], effects: GatedOutput) -> None:
        if sink.waits_for is effects:
            sink.waits_for = None
        if chunks:
            size = sum(map(len, chunks))
            self._count(sink, -size)
            try:
                if len(chunks) == 1:
                    sink.write(chunks[0])
                elif 4 * size < LARGE_PAYLOAD * len(chunks) or not hasattr(sink, "writelines"):
                    sink.write(b"".join(chunks))
                else:
                    sink.writelines(chunks)
            except Exception as error:  # noqa: BLE001 - the other sinks must get their output
                _log.error("effect not written", exc_info=error)

    def _resume_input(self) -> None:
        """Resume input when there is room for it; implemented by the journal."""
        raise NotImplementedError


class PendingRecord:
    """A closed record that is not known to be on disk."""

    def __init__(
        self,
        sequence: int,
        pieces: Sequence[bytes],
        effects: list[GatedOutput],
        events: int,
        entries: int,
        *,
        last: bool = True,
        begun: float = 0.0,
    ) -> None:
        self.sequence = sequence
        self.begun = begun
        """Monotonic time at which its first event was appended."""
        self.last = last
        """Whether a turn ends with it."""
        self.pieces = pieces
        """Its bytes; the first piece has the whole head."""
        self.size = sum(map(len, pieces))
        """Its bytes in total."""
        self.effects = effects
        self.events = events
        self.entries = entries
        self.sent_at = 0.0
        """Monotonic time of the last attempt, set by the store."""

    @property
    def link(self) -> bytes:
        """The link by which the next record names it."""
        return link_of(self.pieces[0])

    @property
    def data(self) -> bytes:
        """Its bytes in one piece."""
        return b"".join(self.pieces)


class RecordStore(Protocol):
    """Appends records: JetStream, or a simulation."""

    def send(self, record: PendingRecord) -> None:
        """Append a record under its sequence; call ``Journal.committed`` when it is on disk."""


def _at_once(call: Callable[[], None]) -> None:
    """Call the function immediately."""
    call()
