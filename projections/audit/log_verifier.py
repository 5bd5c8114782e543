"""Checks that every record of a log is there, in order, intact and readable; epochs of leaders."""

from collections.abc import Callable, Iterable

from eventstore.display import name
from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_parsing import Event, UnknownEvent, UnreadableEvent, entries
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    LeaderProved,
    LogEndUnproven,
    LogSalvaged,
)
from eventstore.format.records import GENESIS, ChainChecker, Record, decode_record
from eventstore.log.log_start import (
    LostBeginning,
    RecordedCut,
    check_beginning,
    check_first,
    find_cut,
)
from eventstore.reading.log_source import LogSource, check_noted
from eventstore.reading.progress import Progress, few_collections, silent
from projections.audit.checkpoint_check import CheckpointCheck
from projections.audit.event_checks import event_problem
from projections.audit.exchange_check import ExchangeCheck
from projections.log_proof import Doubt, LogProof, damaged, proven_spans, unproven_end


class EpochCheck:
    """Checks the records of a log, in order; records of a single node have no epochs."""

    def __init__(self, report: Callable[[int, str], None], begin: int) -> None:
        """Call ``report(sequence, what)`` for every problem; ``begin`` is the first record."""
        self._report = report
        self._epoch: int | None = 0 if begin == 1 else None
        """Epoch of the leader; None: not known."""
        self._time_ms = 0

    def take(self, record: Record, events: Iterable[tuple[int, Event]]) -> None:
        """Check the next record."""
        for index, event in events:
            if isinstance(event, BrokerStarted):
                self._started(record, index, event)
            elif isinstance(event, (CheckpointBegun, LeaderProved)):
                if self._epoch is not None and event.epoch != self._epoch:
                    what = f"has epoch {event.epoch}, but its leader has epoch {self._epoch}"
                    self._report(record.sequence, f"entry {index}: event {event.e}: {what}")
                self._epoch = event.epoch
        self._time_ms = record.steady_ms

    def lose_track(self) -> None:
        """Continue after records that are missing or cannot be read."""
        self._epoch, self._time_ms = None, 0

    def _started(self, record: Record, index: int, event: BrokerStarted) -> None:
        before = self._epoch
        entry = f"entry {index}: event BrokerStarted"
        if before is not None and event.epoch != (before + 1 if before or event.epoch else 0):
            self._report(record.sequence, f"{entry}: epoch {event.epoch} follows epoch {before}")
        if event.epoch and record.steady_ms < self._time_ms:
            ms = self._time_ms - record.steady_ms
            self._report(record.sequence, f"{entry}: is {ms} ms before the record before it")
        self._epoch = event.epoch


_UPDATE_EVERY = 16


class LogVerifier:
    """Checks stored records in order, reports each problem, and continues after it."""

    def __init__(
        self,
        report: Callable[[int, str], None],
        noted: tuple[int, bytes] | None,
        begin: int = 1,
        cut: RecordedCut | None = None,
        unproven: LogEndUnproven | None = None,
    ) -> None:
        """Call ``report(sequence, what)`` for every problem.

        ``noted`` is sequence and link of the last record that the broker noted as stored, ``begin``
        the first sequence of the log, ``cut`` the newest cut of a log that does not begin with
        record 1, ``unproven`` why it may lack records at its end.
        """
        self.proof = LogProof()
        """What is proven of the log."""
        self._unproven = unproven
        self.records = 0
        self.entries = 0
        self.void = 0
        """Number of parts of turns that were never complete, and so never acknowledged."""
        self.given_up: list[LogSalvaged] = []
        """What a salvage gave up: in place of these records are others without content."""
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.jumps: list[tuple[int, int]] = []
        """The records at which the clock jumped, each with the milliseconds; negative: back."""
        self._jumped_ms = 0
        self.damage: list[Doubt] = []
        """The damaged parts of the log."""
        self._call = report
        report = self._report
        self._noted = noted
        self._chain: ChainChecker | None = ChainChecker() if begin == 1 else None
        self._next = begin
        self._checkpoints = CheckpointCheck(report, begin)
        self._epochs = EpochCheck(report, begin)
        self._exchange = ExchangeCheck(report)
        self._check_beginning(begin, cut)
        self._node: str | None = None
        self._later: tuple[int, UnknownLogFormat] | None = None
        self._parts = 0
        """Number of held parts of an incomplete turn."""

    def take(self, sequence: int, data: bytes) -> None:
        """Check the message stored under the next sequence.

        Raises UnknownEvent for an event of a later foldmq.
        """
        if sequence != self._next:
            self._gap(self._next, sequence - 1)
        self._next = sequence + 1
        try:
            record = decode_record(sequence, data)
        except CorruptLog as error:
            self._report(sequence, error.what)
            self._lose_track(sequence)
            return
        except UnknownLogFormat as error:
            self._later = self._later or (sequence, error)
            self._lose_track(sequence)
            return
        if self._later is not None:  # formats only grow: it is damage, and not in the checksum
            self._report(self._later[0], str(self._later[1]))
            self._later = None
        self._check_place(record)
        self._check_part(record)
        self._check_events(record)
        self.records += 1
        jumped_ms = record.jumps.total_ms
        if self.first_ms is None:
            self.first_ms = record.time_ms
        elif jumped_ms != self._jumped_ms:
            self.jumps.append((sequence, jumped_ms - self._jumped_ms))
        self._jumped_ms = jumped_ms
        self.last_ms = record.time_ms
        if self.damage and not self.damage[-1].to_ms and self.damage[-1].until < sequence:
            self.damage[-1] = self.damage[-1]._replace(to_ms=record.time_ms)

    def end(self, last: int) -> None:
        """Check that the log reaches record ``last``, and the noted one.

        Raises UnknownLogFormat if a later foldmq wrote the last records.
        """
        if self._later is not None:
            raise self._later[1]
        self.skip(last)
        if self._unknown_from and not self.given_up:
            what = "begins the log, and no complete checkpoint follows it"
            self._report(self._unknown_from, what)
        if self._unproven is not None:
            self.proof.doubts.append(unproven_end(self._unproven))
        elif self._noted is not None and self._noted[0] >= self._next:
            self._gap(self._next, self._noted[0])

    @property
    def proven(self) -> list[tuple[int, int]]:
        """The times for which the verdict holds, Unix time in milliseconds."""
        if self.first_ms is None or self.last_ms is None:
            return []
        return proven_spans(self.first_ms, self.last_ms, self.doubts)

    @property
    def doubts(self) -> list[Doubt]:
        """The parts about which nothing can be said, in order."""
        return sorted([*self.proof.doubts, *self.damage], key=lambda doubt: doubt.after)

    def _report(self, sequence: int, what: str) -> None:
        self._call(sequence, what)
        if not self.damage or self.damage[-1].to_ms:
            self.damage.append(damaged(sequence, self.last_ms or 0))
        elif sequence > self.damage[-1].until:
            self.damage[-1] = self.damage[-1]._replace(until=sequence)

    def begin_again(self, begin: int, cut: RecordedCut | None) -> None:
        """Continue at a record before which the broker has cut the log meanwhile."""
        self._lose_track(begin - 1)
        self._next = begin
        self._check_beginning(begin, cut)
        self.proof.cut(begin)

    def skip(self, last: int) -> None:
        """Continue after a sequence up to which nothing more is stored."""
        if self._next <= last:
            self._gap(self._next, last)
            self._next = last + 1

    def unfinished(self) -> int:
        """Return the number of parts of an incomplete turn at the end."""
        return self._parts

    def _gap(self, first: int, last: int) -> None:
        what = "is missing or cannot be read"
        if last > first:
            what = f"and all up to {last} ({last - first + 1:,} records) are missing"
        self._report(first, what)
        self._lose_track(last)

    def _lose_track(self, sequence: int) -> None:
        self._chain = None
        self._parts = 0
        self._unknown_from = 0
        self._checkpoints.lose_track(sequence)
        self._epochs.lose_track()
        self._exchange.lose_track()

    def _check_beginning(self, begin: int, cut: RecordedCut | None) -> None:
        self._cut = cut
        self._unknown_from = begin if begin > 1 else 0
        try:
            check_beginning(begin, cut)
        except LostBeginning as error:
            self._report(error.sequence, error.what)

    def _check_place(self, record: Record) -> None:
        try:
            if self._chain is not None:
                self._chain.check(record)
            else:
                check_first(record, self._cut)
            if self._noted is not None:
                check_noted(self._noted, record)
        except CorruptLog as error:
            self._report(record.sequence, error.what)
        if record.sequence == 1 and self._chain is None and record.previous != GENESIS:
            self._report(1, "does not begin a log")
        # A log that was restored as another node goes on with a start of that node's broker.
        started = bool(record.raw_events) and record.raw_events[0].get("e") == "BrokerStarted"
        if self._node is not None and record.node != self._node and not started:
            self._report(record.sequence, f"belongs to another node, {name(record.node)}")
        self._node = record.node
        self._chain = ChainChecker(record.sequence, record.link)

    def _check_part(self, record: Record) -> None:
        if record.part == 0:
            self.void += max(0, self._parts)
            self._parts = 0
        elif record.part != self._parts >= 0:
            self._report(
                record.sequence, f"is part {record.part} of a turn, part {self._parts} is missing"
            )
        self._parts = 0 if record.last else record.part + 1

    def _check_events(self, record: Record) -> None:
        area = len(record.payload)
        seen = 0
        event: Event | None = None
        events: list[tuple[int, Event]] = []
        problem = False
        try:
            for seen, event in record.events():
                events.append((seen, event))
                self.proof.take(event, record.sequence, record.time_ms)
                what = event_problem(event, area)
                if what is not None:
                    self._report(record.sequence, f"entry {seen}: event {event.e}: {what}")
                    problem = True
        except UnknownEvent:
            raise
        except UnreadableEvent as error:
            reason = str(error).removeprefix(f"record {record.sequence}, ")
            self._report(record.sequence, f"cannot be read: {reason}")
            problem = True
        if problem:
            self._unknown_from = 0
            self._checkpoints.lose_track(record.sequence)
            self._epochs.lose_track()
            self._exchange.lose_track()
        else:
            if events and isinstance(events[0][1], LogSalvaged):
                self.given_up.append(events[0][1])
                self._epochs.lose_track()
                self._exchange.lose_track()
                self._parts = -1
            self._exchange.take(record, events)
            self._epochs.take(record, events)
            self._checkpoints.take(record, events)
            if self._unknown_from and not self._checkpoints.partial:
                self._unknown_from = 0
        self.entries += seen + (entries(event) if event is not None else 0)


async def verify_log(
    source: LogSource, report: Callable[[int, str], None], progress: Progress = silent
) -> LogVerifier:
    """Check every record of a log; return the verifier.

    ``report(sequence, what)`` is called for every problem. Raises NatsUnavailable, and
    UnknownLogFormat or UnknownEvent for a log that a later foldmq wrote.
    """
    verifier = LogVerifier(report, source.noted, source.begin, source.cut, source.unproven)
    last = source.last
    with few_collections(), progress("verifying", last) as update:
        position = source.begin
        while position <= last:
            before = position
            async for sequence, data in source.stored(position, last):
                if sequence != position and source.live:
                    await _check_cut(source, position, verifier)
                verifier.take(sequence, data)
                position = sequence + 1
                if sequence % _UPDATE_EVERY == 0:
                    update(sequence)
            if position == before:  # the server returns nothing from here on: continue after it
                position += 1
        verifier.end(last)
    return verifier


async def _check_cut(source: LogSource, position: int, verifier: LogVerifier) -> None:
    """Find out whether a record is missing because the broker has cut the log meanwhile."""
    first, last = await source.bounds()
    if first > position:
        cut = await find_cut(source.stored, first, last)
        verifier.begin_again(first, cut)
