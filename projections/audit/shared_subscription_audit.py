"""Checks whether one shared subscription satisfies its guarantees: rule ``shared``.

Each message belongs to one member at a time. A member that leaves returns the QoS 1 messages that
it did not acknowledge, and keeps the QoS 2 messages that were sent to it [MQTT-4.8.2-4]. The events
are in the logs of the shared subscription and of all its members, see
``shared_subscription_steps``; the audit processes the steps of them all in the order of the log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import ClassVar, Final, NamedTuple

from eventstore.display import name as shown
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import Position, format_position
from projections.audit import shared_subscription_steps as step_kinds
from projections.audit.rule_table import Rule, Violation
from projections.audit.shared_subscription_steps import SharedStep

_STREAMS: Final = 65_536
"""Number of (topic, publisher) pairs whose order is followed; the oldest are forgotten."""

_Piece = tuple[str, "Position"]
"""Member and message."""


class _Assigned(NamedTuple):
    at: Position
    level: int
    """QoS of the message, 0: not known."""


class _Turn:
    """The steps of the current turn."""

    __slots__ = (
        "assigned", "begins", "came", "changed", "granted", "requeued", "returned", "sent", "topics"
    )  # fmt: skip

    def __init__(self, begins: Position) -> None:
        self.begins = begins
        self.assigned: dict[_Piece, list[_Assigned]] = defaultdict(list)
        self.sent: dict[_Piece, list[tuple[Position, int]]] = defaultdict(list)
        """Member and message -> position and QoS of each transmission."""
        self.returned: Counter[Position] = Counter()
        """Messages that a member returned and that were not queued again yet."""
        self.requeued: list[tuple[Position, Position]] = []
        """(message, position) of messages that were queued again though no member returned them."""
        self.granted: dict[str, set[int]] = {}
        """Member -> each QoS that was granted to it in the turn."""
        self.came: set[str] = set()
        """Members that were connected at some time in the turn."""
        self.topics: dict[str, dict[str, Position]] = {}
        """Topic -> members that got its messages, and where."""
        self.changed = False
        """Whether members joined, left, connected or disconnected."""


class SharedAudit:
    """Follows one shared subscription.

    ``whole`` is as for ``SessionFold``: turns that begin before it are not checked, nor are turns
    from ``unsure`` on.
    """

    def __init__(self, group: str, whole: Position, unsure: Position) -> None:
        self.group = group
        self.violations: list[Violation] = []
        self._whole = whole
        self._unsure = unsure
        self._there = False
        self._granted: dict[str, int] = {}
        """Member, connected or not -> the QoS that it was granted."""
        self._online: set[str] = set()
        self._out: dict[Position, tuple[str, int]] = {}
        """Message -> the member that has it, and the QoS at which it was sent."""
        self._late: list[tuple[Position, str, Position]] = []
        """(message, member, position at which it disconnected) of messages to be returned."""
        self._order: dict[tuple[str, Hashable], Position] = {}
        """Topic and publisher -> the position at which the latest assigned message took effect."""
        self._kept: dict[str, str] = {}
        """Topic -> the member that gets it since the last change of the members."""
        self._turn = _Turn(-1)

    def take(self, step: SharedStep) -> None:
        """Process the next step."""
        if step.turn and step.turn != self._turn.begins:
            self._end_turn()
            self._turn = _Turn(step.turn)
            self._turn.came.update(self._online)
        self._HANDLERS[step.what](self, step)

    def finish(self) -> None:
        """Check what is left at the end of the log."""
        self._end_turn()

    def _report(self, at: Position, what: str, rule: str = Rule.SHARED) -> None:
        if self._whole <= self._turn.begins < self._unsure:
            self.violations.append(Violation(rule, at, what, session=self.group))

    # The shared subscription.

    def _begun(self, _step: SharedStep) -> None:
        self._there = True

    def _ended(self, _step: SharedStep) -> None:
        """Forget the messages of members: each member keeps its own."""
        self._there = False
        self._out.clear()
        self._late.clear()
        self._order.clear()
        self._kept.clear()

    def _assigned(self, step: SharedStep) -> None:
        member, turn = step.member, self._turn
        if member.startswith(LOG_SESSION):  # that log records their outcome
            for ref in step.refs:
                turn.returned[ref] -= turn.returned[ref] > 0
            return
        for number, (ref, level) in enumerate(zip(step.refs, step.levels, strict=True)):
            turn.assigned[member, ref].append(_Assigned(step.at + number, level))
            turn.returned[ref] -= turn.returned[ref] > 0
        if member not in turn.came:
            self._report(step.at, f"assigned to {shown(member)}, which was not connected")
        elif member not in self._granted and member not in turn.granted:
            self._report(step.at, f"assigned to {shown(member)}, which is not a member")
        for topic, origin, effect in step.streams:
            turn.topics.setdefault(topic, {}).setdefault(member, step.at)
            before = self._order.pop((topic, origin), 0)
            if before > effect:
                what = f"assigned a message of topic {shown(topic)} after a later one"
                self._report(step.at, what, Rule.ORDER)
            self._order[topic, origin] = max(before, effect)
        while len(self._order) > _STREAMS:
            del self._order[next(iter(self._order))]

    def _requeued(self, step: SharedStep) -> None:
        returned = self._turn.returned
        for number, ref in enumerate(step.refs):
            if returned[ref] > 0:
                returned[ref] -= 1
            elif not step.number:
                self._turn.requeued.append((ref, step.at + number))

    # Its members.

    def _joined(self, step: SharedStep) -> None:
        before = self._granted.get(step.member)
        self._granted[step.member] = step.number
        levels = self._turn.granted.setdefault(step.member, set())
        levels.add(step.number)
        if before is not None:
            levels.add(before)
        self._turn.changed = True

    def _left(self, step: SharedStep) -> None:
        qos = self._granted.pop(step.member, None)
        if qos is not None:
            self._turn.granted.setdefault(step.member, set()).add(qos)
        self._online.discard(step.member)
        self._turn.changed = True

    def _connected(self, step: SharedStep) -> None:
        self._online.add(step.member)
        self._turn.came.add(step.member)
        self._turn.changed = True

    def _disconnected(self, step: SharedStep) -> None:
        self._online.discard(step.member)
        self._turn.changed = True
        self._late += [
            (ref, step.member, step.at)
            for ref, (member, qos) in self._out.items()
            if member == step.member and qos == 1
        ]

    # Messages with members.

    def _sent(self, step: SharedStep) -> None:
        for number, ref in enumerate(step.refs):
            there = self._out.get(ref)
            if there is not None:
                what = f"message {format_position(ref)} was sent to {shown(step.member)} while"
                self._report(step.at + number, f"{what} {shown(there[0])} had it")
            self._out[ref] = step.member, step.number
            self._turn.sent[step.member, ref].append((step.at + number, step.number))

    def _held(self, step: SharedStep) -> None:
        for ref in step.refs:
            self._out[ref] = step.member, step.number

    def _waits_for_one(self, step: SharedStep) -> None:
        what = f"messages wait for {shown(step.member)} that may go to any member"
        self._report(step.at, what)

    def _finished(self, step: SharedStep) -> None:
        for ref in step.refs:
            self._finish_delivery(step.member, ref)

    def _returned(self, step: SharedStep) -> None:
        for ref in step.refs:
            self._finish_delivery(step.member, ref)
            self._turn.returned[ref] += 1

    def _finish_delivery(self, member: str, ref: Position) -> None:
        there = self._out.get(ref)
        if there is not None and there[0] == member:
            del self._out[ref]

    # Turns.

    def _end_turn(self) -> None:
        turn = self._turn
        for piece in dict.fromkeys([*turn.assigned, *turn.sent]):
            self._compare(piece, turn.assigned.get(piece, []), turn.sent.get(piece, []))
        for ref, count in turn.returned.items():
            if count > 0:
                what = f"message {format_position(ref)} was returned but not queued again"
                self._report(turn.begins, what)
        for ref, at in turn.requeued:
            what = f"message {format_position(ref)} was queued again, but no member returned it"
            self._report(at, what)
        late, self._late = self._late, []
        for ref, member, at in late if self._there else ():
            if self._out.get(ref, ("", 0))[0] == member:
                del self._out[ref]
            what = f"message {format_position(ref)} was not returned when {shown(member)} left"
            self._report(at, what)
        self._follow_topics(turn)

    def _compare(
        self, piece: _Piece, assigned: list[_Assigned], sent: list[tuple[Position, int]]
    ) -> None:
        """Compare how often a message was assigned to a member and how often it was sent."""
        member, ref = piece
        message = f"message {format_position(ref)}"
        granted = self._turn.granted.get(member) or {self._granted.get(member, 0)}
        for at, _ in sent[len(assigned) :]:
            self._report(at, f"{message} was sent to {shown(member)} but not assigned to it")
        if 0 not in granted:
            for assignment in assigned[len(sent) :]:
                self._report(
                    assignment.at, f"{message} is assigned to {shown(member)}, which did not get it"
                )
        for assignment, (at, qos) in zip(assigned, sent, strict=False):
            if assignment.level and qos not in {min(assignment.level, level) for level in granted}:
                what = f"{message} was sent to {shown(member)} at the wrong QoS {qos}"
                self._report(at, what, Rule.QOS)

    def _follow_topics(self, turn: _Turn) -> None:
        """Check that each topic went to one member while the members did not change."""
        if turn.changed:
            self._kept.clear()
            return
        for topic, members in turn.topics.items():
            for member, at in members.items():
                before = self._kept.setdefault(topic, member)
                if before != member:
                    what = f"topic {shown(topic)} went to {shown(member)} instead of"
                    self._report(at, f"{what} {shown(before)}, although the members are the same")
                    self._kept[topic] = member
        if len(self._kept) > _STREAMS:
            self._kept.clear()

    _HANDLERS: ClassVar[dict[str, Callable[[SharedAudit, SharedStep], None]]] = {
        step_kinds.BEGUN: _begun,
        step_kinds.ENDED: _ended,
        step_kinds.ASSIGNED: _assigned,
        step_kinds.REQUEUED: _requeued,
        step_kinds.JOINED: _joined,
        step_kinds.LEFT: _left,
        step_kinds.CONNECTED: _connected,
        step_kinds.DISCONNECTED: _disconnected,
        step_kinds.SENT: _sent,
        step_kinds.HELD: _held,
        step_kinds.KEPT: _waits_for_one,
        step_kinds.FINISHED: _finished,
        step_kinds.GONE: _finished,
        step_kinds.RETURNED: _returned,
    }
