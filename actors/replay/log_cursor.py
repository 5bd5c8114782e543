"""How far a replay has read one log: its cursor, records ahead, what is not recorded yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from actors.replay.log_reader import next_record
from actors.replay.selection import LastMessages, TopicMatches
from actors.session.position_properties import point_text
from eventstore.format.events import ReplayReached
from eventstore.format.positions import Position, format_position, position, sequence_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.replay.log_reader import LogReader
    from actors.replay.named_records import NamedRecords
    from actors.replay.selection import LogRecord, Step
    from projections.log_proof import Doubt
    from projections.state.session import ReplayState
    from protocol.errors import FoldmqError

STILL_LIVE: Final = 64
"""Records that a cursor which has read everything may be behind, and still counts as live."""


class LogCursor:
    """The place of a replay in a log; ``log`` is the name of the log, empty for that of the node.

    ``wake`` is called when the replay may go on, ``damaged`` when the log cannot be read.
    """

    def __init__(
        self,
        log: str,
        label: str,
        reader: LogReader,
        matches: TopicMatches,
        state: ReplayState,
        wake: Callable[[], None],
        damaged: Callable[[FoldmqError], None],
    ) -> None:
        self.log = log
        self.label = label
        """The log in a position that clients see, such as ``p0:``; empty: there is one log."""
        self.reader = reader
        self.matches = matches
        """Which topics match the filter."""
        self.wake = wake
        self._damaged = damaged
        self.start_ms = state.start_ms
        self.cursor: Position | None = state.through.get(log)
        """The last position that was read; None: it is to be determined where it begins."""
        self.recorded = self.cursor
        """The cursor in the log."""
        self.unrecorded = 0
        """Records that were read since then."""
        self.sent = 0
        """Messages sent since then."""
        self.left_out: dict[str, int] = {}
        """Messages left out since then, by the reason."""
        self.gap: tuple[Position, Position] | None = None
        """A part of the log that was gone unread, which the next message reports."""
        self.new_gap: tuple[Position, Position] | None = None
        """The same, until it is recorded."""
        self.last: LastMessages | None = None
        """Which messages it sends up to where it began, if it is the last of each topic."""
        if state.last:
            self.last = LastMessages(state.start.get(log, 0), self.cursor or 0)
        self.ahead: deque[LogRecord] = deque()
        """Records after the cursor in order; nothing matches in any between them."""
        self.until, self.until_ms = state.until.get(log), state.until_ms
        """The last position and the last time that it sends; None and 0: there is none."""
        self.ended = False
        """Whether the end of the replay in this log is reached."""
        self.named: NamedRecords | None = None
        """The next records in which something may match, as the index names them."""
        self.until_found = (0, 0)
        """Up to which record ``until_ms`` was looked for, and the last record before it."""
        self.fruitless = False
        """Whether none of the last records had a message for the client."""
        self.was_live = False
        """Whether it has read everything once."""

    # What the reader reports; it also calls wake when there are records.

    def skip_to(self, sequence: int) -> None:
        """Go on with a record: nothing matches in those before it."""
        through = position(sequence, 0) - 1
        if self.cursor is not None and through > self.cursor:
            self.unrecorded += sequence - next_record(self.cursor)
            self.cursor = through

    def on_cut(self, first: int) -> None:
        """Continue at the new beginning of the log, and report what was removed."""
        if self.cursor is not None and self.cursor + 1 < position(first, 0):
            self._pass_over(self.cursor + 1, self.cursor + 1, position(first, 0) - 1)
        self.wake()

    def tell_lost(self) -> None:
        """Tell with the next message what was given up before the beginning of the replay.

        The last messages of topics may have been there.
        """
        ends = self.last.start if self.last is not None else 0
        for hole in self.reader.given_up:
            if position(hole.after + 1, 0) <= ends:
                begins = self.gap[0] if self.gap is not None else position(hole.after + 1, 0)
                self.gap = begins, position(hole.until + 1, 0) - 1

    @property
    def ends_in_hole(self) -> bool:
        """Whether the last position to be sent is in a part that was given up."""
        return self._last_hole() is not None

    def pass_end(self) -> None:
        """Report the part that was given up in which the replay ends."""
        hole = self._last_hole()
        if hole is not None and self.until is not None:
            begins = position(hole.after + 1, 0)
            self._pass_over(begins, max(begins, (self.recorded or 0) + 1), self.until)

    def _last_hole(self) -> Doubt | None:
        for hole in self.reader.given_up if self.until is not None else ():
            if hole.after < sequence_of(self.until or 0) < hole.until:
                return hole
        return None

    def pass_lost(self, first: int) -> None:
        """Go on behind the next record, and report that those from ``first`` on were given up."""
        begins, record = position(first, 0), self.ahead.popleft()
        unrecorded = max(begins, (self.recorded or 0) + 1)
        self._pass_over(begins, unrecorded, position(record.sequence + 1, 0) - 1)

    def _pass_over(self, begins: Position, unrecorded: Position, ends: Position) -> None:
        """Go on behind a part of which the cursor in the log is before ``unrecorded``."""
        self.new_gap = unrecorded, ends
        self.gap = self.gap[0] if self.gap is not None else begins, ends
        self.cursor = ends

    def on_damage(self, error: FoldmqError) -> None:
        """End the replay: a record cannot be read."""
        self._damaged(error)

    # Where it is.

    @property
    def next_sequence(self) -> int:
        """Sequence of the record that follows the cursor; 0: not known."""
        return next_record(self.cursor) if self.cursor is not None else 0

    @property
    def next_ahead(self) -> int:
        """Sequence of the record that follows those ahead."""
        return self.ahead[-1].sequence + 1 if self.ahead else self.next_sequence

    @property
    def is_live(self) -> bool:
        """Whether everything has been read."""
        return self.cursor is not None and next_record(self.cursor) > self.reader.last

    @property
    def lag(self) -> int:
        """Number of records that are to be read."""
        return max(0, self.reader.last - max(self.next_sequence, self.reader.first) + 1)

    @property
    def keeps_up(self) -> bool:
        """Whether it has read everything, but for the newest records."""
        if self.is_live:
            self.was_live = True
        return self.was_live and self.lag <= STILL_LIVE

    @property
    def recordable(self) -> Position | None:
        """The cursor to be recorded: never within a part that was given up."""
        cursor = self.cursor
        is_told = self.new_gap is not None and self.new_gap[1] == cursor
        if cursor is not None and cursor != self.recorded and not is_told:
            for hole in self.reader.given_up:
                if position(hole.after + 1, 0) <= cursor < position(hole.until + 1, 0) - 1:
                    return position(hole.after + 1, 0) - 1
        return cursor

    @property
    def has_news(self) -> bool:
        """Whether something is to be recorded."""
        return bool(
            self.recordable != self.recorded
            or self.sent
            or self.left_out
            or self.new_gap is not None
        )

    def take_news(self, session: str, topic_filter: str) -> ReplayReached | None:
        """Return what is to be recorded, which then counts as recorded; None: nothing."""
        if not self.has_news:
            return None
        event = ReplayReached(session, topic_filter, {}, sent=self.sent)
        through = self.recordable
        if through is not None and through != self.recorded:
            event.through = {self.log: through}
        if self.left_out:
            event.left_out, self.left_out = self.left_out, {}
        if self.new_gap is not None:
            event.gap = {self.log: [*self.new_gap]}
        self.recorded, self.unrecorded, self.sent, self.new_gap = through, 0, 0, None
        return event

    def look_ahead(self) -> None:
        """Take further records from memory, or request them."""
        records = self.reader.take(self.next_ahead)
        self.ahead.extend(records)
        if not records:
            self.reader.request(self)

    def count(self, step: Step) -> None:
        """Go on to the end of a step."""
        self.cursor = step.through
        self.unrecorded += step.records
        self.sent += step.sent
        self.fruitless = not step.sent and not step.no_room
        self.ended = step.ended
        for reason, count in step.left_out.items():
            self.left_out[reason] = self.left_out.get(reason, 0) + count

    def at_end(self) -> bool:
        """Return whether its end is reached, when everything was read."""
        if self.until is not None:
            self.ended = self.cursor is not None and self.cursor >= self.until
        elif self.until_ms:
            self.ended = self.reader.is_settled(self.until_ms)
        return self.ended

    def place(self, at: Position) -> str:
        """Return a position in this log as clients see it."""
        return self.label + point_text(at)

    def gap_text(self, gap: tuple[Position, Position]) -> str:
        """Return a part of this log as clients see it."""
        return f"{self.label}{format_position(gap[0])}..{point_text(gap[1])}"
