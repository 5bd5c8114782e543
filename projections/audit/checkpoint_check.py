"""Checks that the checkpoints of a log agree with the rest of the log.

The log is folded. Once the fold is complete, every snapshot must equal the folded state, and every
cut must leave a complete log.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from eventstore import display
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished, SessionOpened
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    LogSalvaged,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import INDEX_BITS, Position, format_position, from_runs, position
from eventstore.format.records import Record
from eventstore.reading import position_text
from projections.state.inconsistent_events import INCONSISTENCIES
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage, repeated_messages
from projections.state.session import SessionState
from projections.state.snapshot import (
    Part,
    decode_session,
    encode_session,
    expand_runs,
    reference_runs,
)
from projections.views.session_fields import FIELDS

_NAMED = 3


_Check: TypeAlias = "Callable[[CheckpointCheck, Any, Position, Sequence[bytes]], None]"


class CheckpointCheck:
    """Folds the records of a log in order; reports problems in its checkpoints and cuts."""

    def __init__(self, report: Callable[[int, str], None], begin: int) -> None:
        """Begin with record ``begin``; call ``report(sequence, what)`` for every problem."""
        self._report = report
        self._state = NodeState(begin)
        self._turn: list[tuple[Record, list[tuple[int, Event]]]] = []
        self._begun: CheckpointBegun | None = None
        self._links: dict[int, tuple[bytes, int]] = {}
        """First record of a checkpoint -> the link that it continues, and its time."""
        self._sessions: set[str] = set()
        """Sessions that the checkpoint still has to repeat."""
        self._retained: dict[str, Position] = {}
        """Topics with a retained message at the beginning of the checkpoint -> its position."""
        self._waiting: set[Position] = set()
        """Unreleased retained QoS 2 messages of the session that was repeated last."""
        self._counts = [0, 0]
        self._parts: list[Part] = []

    @property
    def partial(self) -> bool:
        """Whether the state is not known yet, or not any more."""
        return self._state.partial or self._state.unsure

    def lose_track(self, sequence: int) -> None:
        """Begin again after a record: the current state is no longer correct."""
        self._turn = []
        self._begun = None
        self._state = NodeState(sequence + 1, of_rest=True)
        self._sessions, self._retained, self._waiting = set(), {}, set()

    def take(self, record: Record, events: list[tuple[int, Event]]) -> None:
        """Fold the next record and its events; a turn counts when its last part is folded."""
        if record.part == 0 and record.last:  # nearly all records
            self._turn = []
            self._fold(record, events)
            return
        if record.part == 0:
            self._turn = []
        self._turn.append((record, events))
        if record.last:
            turn, self._turn = self._turn, []
            if turn[0][0].part == 0:
                for part in turn:
                    self._fold(*part)

    def _fold(self, record: Record, events: list[tuple[int, Event]]) -> None:
        apply, checks = self._state.apply, self._CHECKS
        base, time_ms = position(record.sequence, 0), record.steady_ms
        self._state.jumped_ms = record.jumps.total_ms
        index = 0
        try:
            for index, event in events:
                kind = type(event)
                if kind in checks:
                    pieces: Sequence[bytes] = ()
                    if isinstance(event, RetainedSnapshot):
                        pieces = record.pieces(event)
                    if kind is CheckpointBegun:
                        self._links[record.sequence] = (record.previous, record.time_ms)
                    checks[kind](self, event, base + index, pieces)
                    apply(event, base + index, time_ms, pieces)
                elif type(event) is MessagePublished and event.retain:
                    apply(event, base + index, time_ms, record.pieces(event))
                else:
                    apply(event, base + index, time_ms)
        except INCONSISTENCIES as error:
            self._report(
                record.sequence, f"entry {index}: contradicts the state before: {error!r:.100}"
            )
            self.lose_track(record.sequence)

    def _report_at(self, at: Position, what: str) -> None:
        self._report(at >> INDEX_BITS, f"entry {at & ((1 << INDEX_BITS) - 1)}: {what}")

    # Checkpoints.

    def _checkpoint(self, event: CheckpointBegun, _at: Position, _: Sequence[bytes]) -> None:
        self._begun = event
        self._counts = [0, 0]
        self._sessions, self._retained, self._waiting = set(), {}, set()
        if not self.partial:
            self._sessions = set(self._state.sessions)
            retained = self._state.retained
            self._retained = {message.topic: message.ref for message in retained.all()}

    def _opened(self, event: SessionOpened, _at: Position, _: Sequence[bytes]) -> None:
        if not event.resumed:  # the session began after the checkpoint
            self._sessions.discard(event.session)

    def _session(self, event: SessionSnapshot, at: Position, _: Sequence[bytes]) -> None:
        if event.part == 0:
            self._parts = []
        self._parts.append(event.state)
        if not event.last:
            return
        parts, self._parts = self._parts, []
        name = event.session
        self._counts[0] += 1
        self._sessions.discard(name)
        if self.partial:
            decode_session(name, parts)  # must be possible
            return
        self._check_waiting(at)
        state = self._state.sessions.peek(name)
        if state is None:
            self._report_at(at, f"repeats session {display.name(name)}, which does not exist")
            return
        self._waiting = {message.ref for message in self._state.retained.pending(name)}
        if parts != encode_session(state):  # the encoding may differ
            wrong = _differences(state, decode_session(name, parts))
            if wrong:
                where = f"repeats session {display.name(name)}"
                self._report_at(at, f"{where} with a different state: {wrong}")

    def _check_waiting(self, at: Position) -> None:
        if self._waiting:
            count = display.count_of(len(self._waiting), "message")
            self._report_at(at, f"before it {count} that wait for a PUBREL were not repeated")
            self._waiting = set()

    def _messages(self, event: RetainedSnapshot, at: Position, pieces: Sequence[bytes]) -> None:
        refs = from_runs(event.refs)
        if event.session is None:
            self._counts[1] += event.count
        if self.partial:
            return
        retained = self._state.retained
        pending: dict[Position, RetainedMessage] = {}
        if event.session is not None:
            pending = {message.ref: message for message in retained.pending(event.session)}
            self._waiting.difference_update(refs)
        for number, message in enumerate(repeated_messages(event, pieces), at):
            topic, ref = message.topic, message.ref
            retained_message = retained.get(topic) if event.session is None else pending.get(ref)
            if (
                retained_message is not None and not message.publisher
            ):  # repeated by an earlier version
                retained_message = retained_message._replace(publisher="")
            if retained_message != message:
                self._report_at(
                    number,
                    f"repeats a message on {display.name(topic)} from {format_position(ref)} that "
                    "is not the retained one",
                )

    def _completed(self, event: CheckpointCompleted, at: Position, _: Sequence[bytes]) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            if not self.partial:
                self._report_at(at, f"completes checkpoint {event.checkpoint}, which was not begun")
            return
        self._check_waiting(at)
        if [event.sessions, event.retained] != self._counts or begun.checkpoint != event.checkpoint:
            sessions, retained = self._counts
            self._report_at(
                at,
                f"records that checkpoint {event.checkpoint} has {event.sessions:,} sessions and "
                f"{event.retained:,} retained messages, but it has {sessions:,} and {retained:,}",
            )
        missing = sorted(name for name in self._sessions if name in self._state.sessions)
        if missing:
            self._report_at(at, f"the checkpoint does not repeat sessions {_several(missing)}")
        get = self._state.retained.get
        same = (topic for topic, ref in self._retained.items() if _ref(get(topic)) == ref)
        if topics := sorted(same):
            self._report_at(
                at, f"the checkpoint does not repeat the retained messages of {_several(topics)}"
            )
        self._sessions, self._retained = set(), {}

    # Cuts.

    def _cut(self, event: LogCut, at: Position, _: Sequence[bytes]) -> None:
        first_known = max(self._state.begin, self._state.salvaged + 1)
        if self.partial or event.first < first_known:
            return
        begun = [checkpoint.begun >> INDEX_BITS for checkpoint in self._state.checkpoints]
        if event.first not in begun:
            self._report_at(
                at, f"cuts the log before record {event.first}, where no complete checkpoint begins"
            )
            return
        link, time_ms = self._links[event.first]
        if (event.link, event.begins_ms) != (link.hex(), time_ms):
            self._report_at(
                at, f"cuts the log before record {event.first}, but describes another one"
            )
        self._check_carried(event, at)
        self._links = {first: link for first, link in self._links.items() if first >= event.first}

    def _salvaged(self, _event: LogSalvaged, _at: Position, _: Sequence[bytes]) -> None:
        """Forget the checkpoint that was begun: its rest may be lost."""
        self._begun = None
        self._parts = []
        self._sessions, self._retained, self._waiting = set(), {}, set()

    def _check_carried(self, event: LogCut, at: Position) -> None:
        """Report messages that were cut off although sessions need them."""
        state, before = self._state, position(event.first, 0)
        for name in state.sessions.names():
            held = state.sessions.peek(name) if state.sessions.holds(name, before) else None
            for ref in expand_runs(reference_runs(held), before) if held is not None else ():
                carriers = state.carried.get(ref >> INDEX_BITS, ())
                if not any(carrier >= event.first for carrier in carriers):
                    needed = f"session {display.name(name)} needs message {format_position(ref)}"
                    self._report_at(at, f"cuts off a message that is not repeated: {needed}")
                    break

    _CHECKS: ClassVar[dict[type, _Check]] = {
        CheckpointBegun: _checkpoint,
        CheckpointCompleted: _completed,
        LogCut: _cut,
        LogSalvaged: _salvaged,
        RetainedSnapshot: _messages,
        SessionOpened: _opened,
        SessionSnapshot: _session,
    }


def _ref(message: RetainedMessage | None) -> Position | None:
    return None if message is None else message.ref


def _several(names: list[str]) -> str:
    return position_text.several(map(display.name, names[:_NAMED]), len(names))


def _differences(state: SessionState, other: SessionState) -> str:
    """Return the names of the fields in which two states differ; empty if there are none."""
    return ", ".join(part.name for part in FIELDS if part.items(state) != part.items(other))
