"""Which records of a damaged store are kept, and what is given up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from eventstore.encryption import StoreKey
from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_parsing import UnknownEvent, UnreadableEvent
from eventstore.format.node_events import LogCut
from eventstore.format.records import (
    FORMAT,
    GENESIS,
    MAGIC,
    decode_record,
    format_of,
    is_intact,
    link_of,
    mentions,
    previous_of,
)
from eventstore.reading.fresh_log import log_names
from eventstore.reading.stored_blocks import (
    FrameDamage,
    read_blocks,
)

_VOTES: Final = 3
"""Messages whose sequences decide on the first sequence of a run."""


@dataclass(slots=True)
class Hole:
    """Records that were given up, next to each other."""

    first: int
    last: int
    link: str
    """Link of the last one, as the next kept record names it; empty if there is none."""
    bytes: int
    """Bytes of them that are still in the store."""
    why: str
    """What is wrong with the first one."""

    def __str__(self) -> str:
        """Return the records as text."""
        if self.first == self.last:
            return f"record {self.first} {self.why}"
        return f"records {self.first} to {self.last}: record {self.first} {self.why}"


_LATER = "record {} of the log has format {}: use the foldmq that wrote it, or a later one"


class _Link(NamedTuple):
    """A message of the store: an intact record, or damage."""

    sequence: int
    data: bytes
    problem: str | None = None


class StoredLog:
    """The messages in the files of a store, each read and checked."""

    def __init__(
        self,
        files: list[Path],
        node: str,
        progress: Callable[[str, int, int], None],
        key: StoreKey | None = None,
    ) -> None:
        self._files = files
        self._key = key
        self._subject = log_names(node)[1]
        self._progress = progress
        self.beside = FrameDamage()
        """Damage beside the records that were read so far."""

    def messages(self) -> Iterator[_Link]:
        """Yield the messages in order. Raises UnknownLogFormat and UnknownEvent."""
        later: UnknownLogFormat | UnknownEvent | None = None
        link = b""
        self.beside = FrameDamage()
        for number, file in enumerate(self._files, 1):
            for sequence, data in read_blocks([file], self._subject, self._key, self.beside):
                checked = _checked(sequence, data, link)
                if isinstance(checked, (UnknownLogFormat, UnknownEvent)):
                    later = checked
                    checked = _Link(sequence, data, "is of a later version")
                elif data[:3] == MAGIC and data[3] > FORMAT and checked.problem is None:
                    # Whole but for its version: damage if a record of a known one follows.
                    later = UnknownLogFormat(_LATER.format(sequence, data[3]))
                elif checked.problem is None:
                    later = None  # versions only grow: it is damage
                link = link_of(checked.data) if checked.problem is None else b""
                yield checked
            self._progress("reading", number, len(self._files))
        if later is not None:
            raise later


def _checked(sequence: int, data: bytes, link: bytes) -> _Link | UnknownLogFormat | UnknownEvent:
    """Return a stored message; ``link`` is that of the record before it, if it is intact."""
    later: UnknownLogFormat | None = None
    if is_intact(data) and data[:4] != (begin := MAGIC + bytes([format_of(data)])):
        # The checksum does not cover the version: only its place shows that it is damaged.
        if data[:3] == MAGIC and data[3] not in range(1, FORMAT + 1):
            later = UnknownLogFormat(_LATER.format(sequence, data[3]))
            if not (link and previous_of(data) == link):
                return later
        data = begin + data[4:]
    try:
        for _ in decode_record(sequence, data).events():
            pass
    except (UnknownEvent, UnknownLogFormat) as error:
        return error
    except UnreadableEvent as error:
        reason = str(error).removeprefix(f"record {sequence}, ")
        return _Link(sequence, data, f"cannot be read: {reason}")
    except CorruptLog as error:
        return later or _Link(sequence, data, error.what)
    return _Link(sequence, data)


@dataclass(slots=True)
class _Run:
    """Intact records that continue each other."""

    number: int
    """Number of the first one among the intact messages of the store."""
    previous: bytes
    """Link that the first record continues."""
    link: bytes
    """Link of the first record."""
    begins: bool
    """Whether the first record begins a checkpoint."""
    why: str
    """The damage before it."""
    bytes: int
    """Bytes of what is damaged before it."""
    first: int = 0
    """Sequence of the first record."""
    count: int = 0

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return self.first + self.count - 1

    def without_first(self, count: int) -> None:
        """Leave out records at the beginning."""
        self.number += count
        self.first += count
        self.count -= count
        self.begins = False


class Plan:
    """Which records of a store are kept, and what is given up."""

    def __init__(self, stored: StoredLog, mark: tuple[int, bytes] | None) -> None:
        self._stored = stored
        self._mark = mark
        self.begin = 1
        self.before = GENESIS
        """Link that the first record continues."""
        self.cut: LogCut | None = None
        """The newest cut that a kept record contains."""
        self.runs: list[_Run] = []
        self.holes: list[Hole] = []
        self._rest = self._find_runs()
        self.beside = stored.beside
        """Damage beside the records."""
        self.beside.frames += self._wrong_numbers
        self._choose()
        self._begin_at()
        if not self.runs:
            raise CorruptLog(1, "and all others are damaged: the log has no intact record")
        self._find_holes()

    @property
    def until(self) -> int:
        """The last record, kept or given up."""
        return max(self.runs[-1].last, self.holes[-1].last if self.holes else 0)

    def kept(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kept records with their sequences."""
        runs = list(reversed(self.runs))
        number = 0
        for message in self._stored.messages():
            if message.problem is not None:
                continue
            while runs and number >= runs[-1].number + runs[-1].count:
                runs.pop()
            if not runs:
                return
            if number >= runs[-1].number:
                yield runs[-1].first + number - runs[-1].number, message.data
            number += 1

    def _find_runs(self) -> tuple[str, int, int]:
        """Find the runs; return the damage behind the last one, its bytes and messages."""
        run: _Run | None = None
        self._wrong_numbers = 0
        votes: list[int] = []
        number, size, count, link, why = 0, 0, 0, b"", ""
        for message in self._stored.messages():
            data = message.data
            if message.problem is not None:
                why, size, count = why or message.problem, size + len(data), count + 1
                link = b""
                continue
            if run is None or previous_of(data) != link:
                begins = mentions(data, (b'"CheckpointBegun"',))
                run = _Run(number, previous_of(data), link_of(data), begins, why, size)
                self.runs.append(run)
                votes, size, count, why = [], 0, 0, ""
            link = link_of(data)
            if len(votes) < _VOTES and message.sequence:
                votes.append(message.sequence - run.count)
                run.first = max(votes, key=votes.count)
            place = run.first + run.count
            self._wrong_numbers += message.sequence not in (0, place)
            if self._mark is not None and place == self._mark[0] and link != self._mark[1]:
                return "is not the one that was acknowledged", len(data), 1
            run.count += 1
            number += 1
            if mentions(data, (b'"LogCut"',)):
                for _, event in decode_record(run.last, data).events():
                    self.cut = event if isinstance(event, LogCut) else self.cut
        return why, size, count

    def _choose(self) -> None:
        """Keep the runs that fit together by their sequences; of two that do not, the longer."""
        kept: list[_Run] = []
        omitted: list[_Run] = []
        """Runs that were left out, before the next one that is kept."""
        for run in self.runs:
            if not run.count or run.first < 1:
                omitted.append(run)
                continue
            while kept and run.first <= kept[-1].last and run.count > kept[-1].count:
                omitted.append(kept.pop())
            if kept and run.first <= kept[-1].last:
                omitted.append(run)
                continue
            if kept and run.first == kept[-1].last + 1:
                # Nothing is missing between them: one of the two records is a wrong one.
                run.why = run.why or f"does not continue record {run.first - 1}"
                if kept[-1].count < run.count:
                    kept[-1].count -= 1
                    if not kept[-1].count:
                        omitted.append(kept.pop())
                else:
                    run.previous = run.link
                    run.without_first(1)
                    if not run.count:
                        omitted.append(run)
                        continue
            run.why = next((omission.why for omission in omitted if omission.why), run.why)
            run.bytes += sum(omission.bytes for omission in omitted)
            omitted = []
            kept.append(run)
        self.runs = kept
        if omitted:
            why, size, count = self._rest
            why = next((omission.why for omission in omitted if omission.why), why)
            self._rest = why, size, max(1, count)

    def _begin_at(self) -> None:
        """Find out where the log begins: at record 1, or where it was cut."""
        if self.cut is not None:
            self.begin, self.before = self.cut.first, bytes.fromhex(self.cut.link)
            self.runs = [run for run in self.runs if run.last >= self.begin]
            if self.runs and self.runs[0].first < self.begin:  # cut off, but still in the files
                self.runs[0].without_first(self.begin - self.runs[0].first)
        elif self.runs and self.runs[0].begins:
            self.begin, self.before = self.runs[0].first, self.runs[0].previous

    def _find_holes(self) -> None:
        expected = self.begin
        for run in self.runs:
            if run.first > expected:
                why = run.why or "is missing"
                self.holes.append(Hole(expected, run.first - 1, run.previous.hex(), run.bytes, why))
            expected = run.last + 1
        why, size, count = self._rest
        end = max(self._mark[0] if self._mark is not None else 0, expected + count - 1)
        if end >= expected:
            self.holes.append(Hole(expected, end, "", size, why or "is missing"))
