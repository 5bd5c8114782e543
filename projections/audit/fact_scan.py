"""Makes facts from the records of logs, in one pass."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import UnknownEvent, UnreadableEvent, entries, parse_event
from eventstore.format.events import MessageDropped
from eventstore.format.fast_parse import parse_frequent
from eventstore.format.node_events import RetainedSnapshot
from eventstore.format.positions import MAX_INDEX, Position, position
from eventstore.format.records import HEAD_SIZE, Record, link_of
from projections.audit.chain_check import (
    CLOCK,
    COUNTS,
    DROPS,
    OPEN,
    OWNER,
    PIECE,
    PROBLEM,
    RATES,
    TORN,
    LogNote,
    LogPiece,
    RecordLink,
    check_link,
)
from projections.audit.event_codec import EventBatches, packed_item
from projections.audit.event_facts import FACT_MAKERS, FactMakers
from projections.audit.fact_buffer import FactBuffer, FactChunk
from projections.audit.histogram import MIN_MS, RateCounts
from projections.audit.log_summary import BEYOND_ALL
from projections.audit.rule_table import Rule

_PIECES: Final = 1000
"""Maximum separate pieces of a log; beyond it, pieces are merged."""
_ELSEWHERE: Final = frozenset({RetainedSnapshot})
"""Types that are transferred with their payload."""
_LINKS: Final = 20_000
"""Maximum links of records kept, for comparison with those reported by archives."""
_CONTRADICTIONS: Final = (ValueError, KeyError, IndexError, TypeError, OverflowError)


@dataclass(slots=True)
class CheckedRecord:
    """A record and its damage."""

    sequence: int
    data: bytes | None
    """None: it does not exist."""
    record: Record | None
    """None: it cannot be read."""
    damage: str | None = None
    void: bool = False
    """Whether it is part of a turn that never finished.

    A turn followed by a damaged or missing record counts as finished: that record was its last
    part. If it was not, at least the damage is reported directly behind it."""


class FactScan:
    """Reads the records of one log, in order, up to the position ``end``.

    Counts are kept in intervals of at least ``interval_ms``. ``strict`` makes an event that cannot
    be read an error.
    """

    def __init__(
        self,
        node: str,
        end: Position | None = None,
        interval_ms: int = MIN_MS,
        *,
        strict: bool = False,
    ) -> None:
        self.node = node
        self._strict = strict
        self.facts = FactBuffer(node)
        self._end = BEYOND_ALL if end is None else end
        self._piece: LogPiece | None = None
        self._pieces = 0
        self._jumped_ms = 0
        """The sum of the jumps of the clock in the last record."""
        self._owner = ""
        """The node of the last record."""
        self._rates = RateCounts(interval_ms)
        self._drops: Counter[str] = Counter()
        self._packs = EventBatches(self.facts)
        self._takers = FactMakers(self.facts, self._packs, self._drops, self._note)

    def take(self, checked: CheckedRecord) -> None:
        """Take the next record. Raises UnknownEvent for events of a later foldmq.

        Raises UnreadableEvent, and CorruptLog for an event that does not fit, if strict.
        """
        record, data = checked.record, checked.data
        if record is None:
            self._problem(position(checked.sequence, 0), Rule.CHAIN, f"record {checked.damage}")
            if data is not None:
                link_text = link_of(data).hex() if len(data) > HEAD_SIZE else ""
                damaged = RecordLink(checked.sequence, link_text, "", -1, last=True, starts=False)
                self._extend(damaged, 0, 0, len(data))
            return
        raw, size = record.raw_events, len(data or b"")
        link = RecordLink(
            record.sequence,
            record.link.hex(),
            record.previous.hex(),
            record.part,
            record.last,
            starts=bool(raw) and raw[0].get("e") == "BrokerStarted",
        )
        follows = self._piece is not None and self._piece.last.sequence + 1 == record.sequence
        self._takers.before_ms = (
            self._piece.ends_steady_ms if follows and self._piece is not None else 0
        )
        self._takers.interrupts = (
            follows and self._piece is not None and not (self._piece.last.last or record.part)
        )
        if record.time_ms - record.steady_ms != self._jumped_ms:
            self._jumped_ms = record.time_ms - record.steady_ms
            before_ms = self._takers.before_ms
            values = {"jumped_ms": self._jumped_ms, "before_ms": before_ms}
            self._note(position(record.sequence, 0), CLOCK, values)
        if record.node != self._owner:
            self._owner = record.node
            self._note(position(record.sequence, 0), OWNER, {"node": record.node})
        self._extend(link, record.time_ms, record.steady_ms, size)
        if not checked.void:
            self._take_events(record)
            self._packs.counted(len(raw), len(record.header))
        elif record.part:
            self._note(position(record.sequence, 0), TORN, {})
        self._keep_link(link)

    def finish(self) -> Iterator[FactChunk]:
        """Yield the remaining facts."""
        self._packs.give()
        self._end_piece()
        for point in self._rates.points():
            self._note(0, RATES, point)
        if self._drops:
            self._note(0, DROPS, dict(self._drops))
        yield from self.facts.rest()
        self._note(0, COUNTS, {str(kind): count for kind, count in self.facts.counts.items()})
        yield from self.facts.last()

    def _take_events(self, record: Record) -> None:
        takers, base, end = self._takers, position(record.sequence, 0), self._end
        takers.record = record
        time_ms, part = record.steady_ms, record.part
        counted = self._rates.of(record.time_ms)
        packs = self._packs.items
        count = index = 0
        try:
            for raw in record.raw_events:
                at = base + index
                if at > end:
                    self._note(position(record.sequence - part, 0), OPEN, {})
                    break
                event = parse_frequent(raw) or parse_event(raw)
                kind = type(event)
                size = entries(event)
                if size > MAX_INDEX:
                    raise IndexError("more entries than a record can have")
                handle = FACT_MAKERS.get(kind)
                is_passed = handle is not None and handle(takers, event, at)
                session: str | None = getattr(event, "session", None)
                if session is not None and not is_passed and kind not in _ELSEWHERE:
                    items = packs.get(session)
                    if items is None:
                        items = packs[session] = []
                    items.append(packed_item(event, at, time_ms, part))
                if kind in counted:
                    counted[kind] += event.count if isinstance(event, MessageDropped) else size
                count += 1
                index += size
        except (UnreadableEvent, *_CONTRADICTIONS) as error:
            readable = isinstance(error, UnreadableEvent)
            if isinstance(error, UnreadableEvent) and (
                self._strict or isinstance(error, UnknownEvent)
            ):
                place = f"record {record.sequence}, entry {index}"
                raise type(error)(f"{place}: {error}") from None
            what = str(error) if readable else f"an event does not fit: {error!r:.100}"
            if self._strict:
                raise CorruptLog(record.sequence, f"cannot be read: {what}") from error
            before = index + (self._piece.entries if self._piece is not None else 0)
            self._problem(base + index, Rule.EVENT, what, part, before, record.time_ms)
        if self._piece is not None:
            self._piece.events += count
            self._piece.entries += index

    def _keep_link(self, link: RecordLink) -> None:
        links = self._takers.links
        links[link.sequence] = link.link
        if len(links) > _LINKS:
            del links[next(iter(links))]

    # The log as a whole.

    def _extend(self, link: RecordLink, time_ms: int, steady_ms: int, size: int) -> None:
        """Continue the piece with a record, or start a new piece."""
        piece = self._piece
        if piece is None or (self._pieces < _PIECES and _parts(piece.last, link)):
            self._end_piece()
            self._pieces += 1
            self._piece = LogPiece(
                link, link, time_ms, time_ms, bytes=size, ends_steady_ms=steady_ms
            )
            return
        piece.last = link
        piece.ends_ms = time_ms or piece.ends_ms
        piece.ends_steady_ms = steady_ms or piece.ends_steady_ms
        piece.records += 1
        piece.bytes += size

    def _end_piece(self) -> None:
        piece = self._piece
        if piece is not None:
            self._takers.finish(position(piece.last.sequence + 1, 0) - 1)
            self._note(position(piece.first.sequence, 0), PIECE, piece.values())
            self._piece = None

    def _note(self, at: Position, about: str, values: dict[str, Any]) -> None:
        self.facts.notes.add(at, LogNote(self.node, at, about, values).data)

    def _problem(
        self, at: Position, rule: str, what: str, part: int = 0, entries: int = 0, time_ms: int = 0
    ) -> None:
        """Note an unreadable part of the log, in the record that is that ``part`` of its turn.

        Of an event: the number of ``entries`` before it in its piece, and the time of its record.
        """
        values = {"rule": rule, "what": what, "part": part, "entries": entries, "time_ms": time_ms}
        self._note(at, PROBLEM, values)


def _parts(before: RecordLink, other: RecordLink) -> bool:
    """Return whether a new piece begins with the second of two records."""
    missing = other.sequence != before.sequence + 1
    return missing or before.part < 0 or other.part < 0 or any(check_link(before, other))
