"""Checks that the records and turns of a log follow each other: rules ``chain`` and ``turn``.

The scan sees pieces of a log, in order within each piece. It reports the ends of each piece, and
breaks inside it; the driver joins the pieces with the same comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import orjson

from eventstore.format.positions import Position, position
from eventstore.format.records import GENESIS
from projections.audit.rule_table import Rule

PIECE, PROBLEM, OPEN, BEGUN, COMPLETED, CUT, REPEATED, RATES, DROPS, COUNTS = (
    "piece", "problem", "open", "begun", "completed", "cut", "repeated", "rates", "drops",
    "counts",
)  # fmt: skip
STARTED, STOPPED, LIMITS, ACTED, CLEARED_BY, ARCHIVED, SHARED_THERE, FOLLOWED = (
    "started", "stopped", "limits", "acted", "cleared", "archived", "shared", "followed",
)  # fmt: skip
BRIDGED_LATER, DOUBT, GIVEN_UP, JUMPED, TORN = (
    "bridged later", "doubt", "given up", "jumped", "torn",
)  # fmt: skip
REPLAYS_THERE, CLOCK, DESTINATION, OWNER = "replays", "clock", "destination", "owner"
KEYS, UNSEALED = "keys", "unsealed"
"""Subjects of notes. OPEN: the turn that begins there is not checked to its end. COUNTS: the number
of facts of each kind. ACTED: an operator removed retained messages, CLEARED_BY: their removal.
SHARED_THERE: the log has shared subscriptions. FOLLOWED: the log takes messages of others; with a
turn: in this one, retained messages are removed.
BRIDGED_LATER: NATS is reported to have messages that come later in the log. DOUBT: nothing can be
said about a part of the log. JUMPED: the clock jumped. TORN: a record of a turn that is not whole,
behind its beginning: its events did not happen. REPLAYS_THERE: the log has replays. CLOCK: from
there on, the times of records contain other jumps of the clock. DESTINATION: an event of a
destination of the outbox. KEYS: an event of keys of sealed contents. UNSEALED: a message is not
sealed as it has to be. OWNER: from there on, another node wrote the records."""


class LogNote(NamedTuple):
    """A fact about a log as a whole."""

    node: str
    at: Position
    about: str
    values: dict[str, Any]

    @property
    def data(self) -> bytes:
        """Return the content of the note, serialized."""
        return orjson.dumps([self.about, self.values])

    @classmethod
    def read(cls, node: str, at: Position, data: bytes) -> LogNote:
        """Return the note with this serialized content."""
        return cls(node, at, *orjson.loads(data))


@dataclass(frozen=True, slots=True)
class RecordLink:
    """The fields of a record that the check of its neighbours needs."""

    sequence: int
    link: str
    """Empty, like ``previous``, if damage makes it unknown."""
    previous: str
    part: int
    """-1 if the record is damaged."""
    last: bool
    starts: bool
    """Whether a broker starts in it: turns before it may be unfinished."""


class ChainBreak(NamedTuple):
    """A record that does not follow the one before it, or cannot be read."""

    rule: str
    at: Position
    what: str


def check_link(record: RecordLink, other: RecordLink) -> Iterator[ChainBreak]:
    """Yield the breaks between a record and the next existing record.

    Missing records are reported by the scan.
    """
    at = position(other.sequence, 0)
    if other.sequence != record.sequence + 1:
        return
    if record.link and other.previous and other.previous != record.link:
        yield ChainBreak(Rule.CHAIN, at, f"does not continue record {record.sequence}")
        return
    if record.part < 0 or other.part < 0:
        return
    if other.part == 0:
        if not record.last and not other.starts:
            what = "begins a turn, but the previous turn was not completed and no broker started"
            yield ChainBreak(Rule.TURN, at, what)
    elif record.last or other.part != record.part + 1:
        before = f"part {record.part}" + (", the last one" if record.last else "")
        yield ChainBreak(Rule.TURN, at, f"is part {other.part} of a turn, behind {before}")


@dataclass(slots=True)
class LogPiece:
    """Consecutive records without a gap, each checked against the one before."""

    first: RecordLink
    last: RecordLink
    begins_ms: int
    """0, like the other times, if all of its records are damaged."""
    ends_ms: int
    records: int = 1
    events: int = 0
    entries: int = 0
    bytes: int = 0
    ends_steady_ms: int = 0
    """``ends_ms`` without the jumps of the clock."""

    def values(self) -> dict[str, Any]:
        """Return its fields for serialization."""
        return asdict(self)

    @classmethod
    def read(cls, values: dict[str, Any]) -> LogPiece:
        """Return the piece with these serialized fields."""
        ends = {name: RecordLink(**values[name]) for name in ("first", "last")}
        return cls(**{**values, **ends})

    def join(self, other: LogPiece) -> LogPiece:
        """Return both pieces as one."""
        return replace(
            self,
            last=other.last,
            begins_ms=self.begins_ms or other.begins_ms,
            ends_ms=other.ends_ms or self.ends_ms,
            ends_steady_ms=other.ends_steady_ms or self.ends_steady_ms,
            records=self.records + other.records,
            events=self.events + other.events,
            entries=self.entries + other.entries,
            bytes=self.bytes + other.bytes,
        )


def join_pieces(pieces: Iterable[LogPiece]) -> tuple[LogPiece, list[ChainBreak]]:
    """Join the pieces of a log, at least one; return the joined piece and its breaks."""
    whole: LogPiece | None = None
    breaks: list[ChainBreak] = []
    for piece in sorted(pieces, key=lambda piece: piece.first.sequence):
        if whole is None:
            whole = piece
        else:
            breaks += check_link(whole.last, piece.first)
            whole = whole.join(piece)
    if whole is None:
        raise ValueError("no pieces")
    first = whole.first
    at = position(first.sequence, 0)
    if first.sequence == 1 and first.previous not in ("", GENESIS.hex()):
        breaks.insert(
            0, ChainBreak(Rule.CHAIN, at, "is the first record, but continues another one")
        )
    if first.part > 0:
        breaks.insert(
            0, ChainBreak(Rule.TURN, at, f"begins the log with part {first.part} of a turn")
        )
    return whole, breaks
