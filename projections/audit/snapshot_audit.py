"""Compares the repetitions of a session in checkpoints with its fold."""

from collections.abc import Callable

import orjson

from eventstore.format.node_events import RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import Position, format_position
from projections.audit.rule_table import Rule, Violation
from projections.state.retained import repeated_messages
from projections.state.single_session import SessionFold, split_area
from projections.state.snapshot import Part, encode_session


class CheckpointSnapshotAudit:
    """Compares the repetitions of one session in checkpoints with its fold."""

    __slots__ = ("_left", "_parts", "_violations")

    def __init__(self, report: Callable[[Violation], object]) -> None:
        self._violations = report
        self._parts: list[Part] = []
        self._left: dict[Position, Position] = {}
        """Message that becomes retained with its PUBREL and must be repeated in this turn ->
        position at which the session was repeated."""

    def end_turn(self) -> None:
        """Report messages that had to be repeated in the turn and were not."""
        for ref, at in self._left.items():
            what = f"a checkpoint does not repeat message {format_position(ref)}, which waits for "
            self._report(at, f"{what}its PUBREL to be retained")
        self._left.clear()

    def state(self, fold: SessionFold, event: SessionSnapshot, at: Position) -> None:
        """Check the repeated state of the session, or a part of it."""
        if event.part == 0:
            self._parts = []
        if event.part != len(self._parts):
            self._report(at, f"part {event.part} of a session follows {len(self._parts)} parts")
        self._parts.append(event.state)
        if not event.last:
            return
        parts, self._parts = self._parts, []
        state = fold.state
        if state is None:
            self._report(at, "a checkpoint repeats a session that does not exist")
        elif orjson.dumps(encode_session(state)) != orjson.dumps(parts):
            self._report(at, "a checkpoint repeats a state that differs from the log")
        self._left = dict.fromkeys(fold.pending, at)

    def messages(
        self, fold: SessionFold, event: RetainedSnapshot, at: Position, payload: bytes | None
    ) -> None:
        """Check repeated messages of the session that become retained with their PUBREL."""
        if payload is None:
            return
        for number, message in enumerate(repeated_messages(event, split_area(event, payload))):
            owed = self._left.pop(message.ref, None)
            if owed is None or fold.pending.get(message.ref) != message:
                what = f"message {format_position(message.ref)} is repeated, but is not pending so"
                self._report(at + number, what)

    def _report(self, at: Position, what: str) -> None:
        self._violations(Violation(Rule.CHECKPOINT, at, what))
