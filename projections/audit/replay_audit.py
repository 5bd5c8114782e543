"""What one session's replays say of themselves: cursors, messages, parts that were cut off.

A replay's steps are compared with the messages of the log by ``replay_fold``.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Delivered,
    ReplayOpened,
    ReplayReached,
    SessionClosed,
    Unsubscribed,
)
from eventstore.format.positions import Position, Run, format_position
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Rule, Violation
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.subscription_options import NO_LOCAL

_FINAL: Final = frozenset({"ended", "damaged", "too_many_topics"})
"""States of a replay that reads no more."""
OF_REPLAYS: Final = frozenset({ReplayOpened, ReplayReached})
"""The events of replays."""
_STATES: Final = _FINAL | {"", "live", "withheld"}
_REASONS: Final = frozenset({"not_permitted", "expired", "packet_too_large", "no_local", "erased"})
_PACKET_IDS: Final = 65_535
_SPARE: Final = 16
"""Largest part of the Receive Maximum that a replay leaves to other subscriptions."""


class ReplayStep(NamedTuple):
    """What a replay did between two cursors. Plain values, since it is serialized."""

    topic_filter: str
    opened: Position | None
    """Position of its ReplayOpened; None: not known."""
    begin: Position | None
    """The cursor before; None: nothing was read."""
    through: Position
    """The cursor behind."""
    start_ms: int
    until: Position | None
    until_ms: int
    last: Position | None
    """Up to there only the last message of each topic is read; None: all are."""
    sent: int
    left_out: dict[str, int]
    elsewhere: bool
    """Whether messages of other logs may be among them."""
    gap: list[Position]
    """First and last position that were removed unread; empty: none were."""
    qos: int
    """The granted QoS."""
    no_local: bool
    deliveries: list[tuple[Position, int, list[Run]]]
    """Position, QoS and messages of each Delivered."""
    time_ms: int
    ready_ms: int
    """Time since which messages could have been sent; -1: they could not."""
    stood: bool
    """Whether the replay read nothing at all until its connection ended."""
    last_elsewhere: bool = False
    """Whether the last message of a topic may be in another log."""


class ReplayAudit:
    """Follows the replays of one session; ``tell`` is called with each step."""

    __slots__ = ("_opened", "_outline", "_placed", "_ready", "_sent", "_tell", "_violations")

    def __init__(
        self,
        report: Callable[[Violation], object],
        outline: LogOutline,
        tell: Callable[[ReplayStep, Position], object] | None,
    ) -> None:
        self._violations = report
        self._outline = outline
        self._tell = tell
        self._opened: dict[str, Position] = {}
        """Filter -> position of its ReplayOpened."""
        self._sent: dict[str, list[tuple[Position, int, list[Run]]]] = {}
        """Filter -> messages that were sent in this turn, of which no cursor tells yet."""
        self._placed: set[str] = set()
        """Filters of the replays that have read something in this connection. Others may wait: a
        broker has a limited number of replays."""
        self._ready: dict[str, int] = {}
        """Filter -> time since which messages could be sent to the client."""

    def delivered(self, state: SessionState, event: Delivered, at: Position) -> bool:
        """Note messages that a replay sent; return whether it was a replay."""
        if event.filter not in state.replays:
            return False
        self._sent.setdefault(event.filter, []).append((at, event.qos, event.refs))
        if event.queued >= 0 or event.retain:
            self._report(at, "a replay sent messages from a queue, or retained ones")
        return True

    def take(self, state: SessionState, event: Event, at: Position, ms: int) -> None:
        """Check the next event of the session; ``state`` is the state before it."""
        if isinstance(event, ReplayReached):
            self._reached(state, event, at, ms)
        elif isinstance(event, ReplayOpened):
            self._opened[event.filter] = at
            held = state.subscriptions.get(event.filter)
            if event.filter in state.replays:
                self._report(at, "a replay was opened that was open")
            self._placed.discard(event.filter)
            self._ready.pop(event.filter, None)
            if held is None or not held.active:
                self._report(at, "a replay was opened without its subscription")
        elif isinstance(event, SessionClosed):
            self._stopped(state, event, at, ms)
        elif self._opened and isinstance(event, Unsubscribed):
            for topic_filter in event.filters:
                self._opened.pop(topic_filter, None)
                self._ready.pop(topic_filter, None)
                self._placed.discard(topic_filter)

    def after(self, state: SessionState, at: Position, ms: int) -> None:
        """Note since when the replays could send messages."""
        for name in self._placed:
            held = state.replays.get(name)
            if held is None or not self._can_send(state, held, at):
                self._ready.pop(name, None)
            else:
                self._ready.setdefault(name, ms)

    def end_turn(self) -> None:
        """Report messages that were sent in the turn without a cursor."""
        for sent in self._sent.values():
            self._report(sent[0][0], "a replay sent messages, but its cursor did not move")
        self._sent.clear()

    def forget(self) -> None:
        """Forget the session, which ended, or its state, which is not known any more."""
        self._opened.clear()
        self._sent.clear()
        self._ready.clear()
        self._placed.clear()

    def _reached(self, state: SessionState, event: ReplayReached, at: Position, ms: int) -> None:
        held = state.replays.get(event.filter)
        deliveries = self._sent.pop(event.filter, [])
        if held is None or held.replay is None:
            self._report(at, f"no replay {event.filter!r:.200} was opened")
            return
        replay = held.replay
        for log, through in event.through.items():
            before = replay.through.get(log, replay.start.get(log, -1) if not replay.last else -1)
            if through < before:
                what = f"the cursor of a replay went back from {format_position(before)}"
                self._report(at, f"{what} to {format_position(through)}")
                return
        if event.through.get("", -1) >= at:
            self._report(at, "a replay read what was not in the log yet")
            return
        if replay.state in _FINAL and (event.sent or event.through):
            self._report(at, "a replay went on after its end")
        until = replay.until.get("", -1)
        if event.state == "ended" and event.through.get("", replay.through.get("", -1)) < until:
            self._report(at, "a replay ended before its end")
        if event.state not in _STATES:
            self._report(at, f"unknown state of a replay: {event.state!r:.60}")
        self._check_left_out(state, held, event, at)
        ready = self._ready.pop(event.filter, None)
        self._tell_step(held, event, at, ms, -1 if ready is None else ready, deliveries)
        if state.connected:
            self._placed.add(event.filter)

    def _tell_step(
        self,
        held: SubscriptionState,
        event: ReplayReached | None,
        at: Position,
        ms: int,
        ready_ms: int,
        deliveries: list[tuple[Position, int, list[Run]]],
    ) -> None:
        """Tell of a step; ``event`` None: the replay read nothing until its connection ended."""
        replay = held.replay
        if replay is None or self._tell is None:
            return
        begin = replay.through.get("")
        through, gap = event.through if event else {}, event.gap if event else {}
        step = ReplayStep(
            topic_filter=replay.topic_filter,
            opened=self._opened.get(held.filter),
            begin=begin,
            through=through.get("", -1 if begin is None else begin),
            start_ms=replay.start_ms,
            until=replay.until.get(""),
            until_ms=replay.until_ms,
            last=replay.start.get("") if replay.last else None,
            sent=event.sent if event else 0,
            left_out=event.left_out if event else {},
            elsewhere=bool(through.keys() - {""} or gap.keys() - {""}),
            gap=gap.get("", []),
            qos=held.qos,
            no_local=bool(held.options & NO_LOCAL),
            deliveries=deliveries,
            time_ms=ms,
            ready_ms=ready_ms,
            stood=event is None,
            last_elsewhere=replay.last and len(replay.start) > 1,
        )
        self._tell(step, at)

    def _check_left_out(
        self, state: SessionState, held: SubscriptionState, event: ReplayReached, at: Position
    ) -> None:
        """Check the reasons for which messages were left out."""
        counts = event.left_out
        limits = self._outline.limits_at(at)
        if event.sent < 0 or any(count < 1 for count in counts.values()):
            self._report(at, "a replay counts fewer messages than none")
        for reason, wrong in (
            ("not_permitted", limits is not None and not limits.denies),
            ("packet_too_large", not state.packet_maximum),
            ("no_local", not held.options & NO_LOCAL),
        ):
            if wrong and reason in counts:
                self._report(at, f"a replay left out messages as {reason}, but none can be that")
        for reason in counts.keys() - _REASONS:
            self._report(at, f"a replay left out messages for an unknown reason: {reason!r:.60}")

    def _stopped(self, state: SessionState, event: SessionClosed, at: Position, ms: int) -> None:
        """Tell of the replays that read nothing between their last cursor and the end.

        At the end of a connection the cursor is recorded; a broker that crashed could not do that.
        """
        for name, ready_ms in self._ready.items() if event.reason != "broker_restarted" else ():
            held = state.replays.get(name)
            replay = held.replay if held is not None else None
            if held is not None and replay is not None and "" in replay.through:
                self._tell_step(held, None, at, ms, ready_ms, [])
        self._ready.clear()
        self._placed.clear()

    def _can_send(self, state: SessionState, held: SubscriptionState, at: Position) -> bool:
        """Return whether a message at any QoS could be sent to the client."""
        limits = self._outline.limits_at(at)
        if not state.connected or held.replay is None or limits is None:
            return False
        if limits.max_ack_pending is None or held.replay.state in _FINAL | {"withheld"}:
            return False
        unfinished = len(state.inflight) + len(state.releasing)
        most = min(_PACKET_IDS, state.receive_maximum)
        return held.outstanding < limits.max_ack_pending and (
            not unfinished or unfinished < most - min(_SPARE, most // 4 + 1)
        )

    def _report(self, at: Position, what: str) -> None:
        self._violations(Violation(Rule.REPLAY, at, what))
