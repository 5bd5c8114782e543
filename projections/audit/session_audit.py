"""Checks whether the log of one session satisfies the guarantees of MQTT and foldmq.

The caller sorts the events of a log by session and passes them to :class:`SessionAudit` in order,
together with the messages that the session had to get. The result is a list of violations, each
with the position that shows it. The audit is pure, and the only code that it shares with the broker
is the fold, which defines the meaning of the events: an auditor need not trust the broker.
``projections.audit`` contains the rules.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    LOG_SESSION,
    Assigned,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
)
from eventstore.format.name_entries import is_token
from eventstore.format.node_events import OperatorActed, RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import INDEX_BITS, Position, format_position, from_runs
from eventstore.format.stored_properties import expiries_of
from projections.audit import single_event_rules
from projections.audit.acknowledgement_audit import ANSWERS, AcknowledgementAudit
from projections.audit.drop_rules import DropAudit
from projections.audit.expected_messages import ExpectedMessage, ExpectedMessages, is_match
from projections.audit.log_outline import LogOutline
from projections.audit.ordering_rules import QueueProgress, TopicOrder
from projections.audit.ownership import OwnershipAudit, SessionEnds
from projections.audit.replay_audit import OF_REPLAYS, ReplayAudit, ReplayStep
from projections.audit.rule_coverage import count_cases
from projections.audit.rule_table import UNEXPECTED, Rule, Violation
from projections.audit.shared_subscription_steps import SHARE, SharedStep, SharedSteps
from projections.audit.snapshot_audit import CheckpointSnapshotAudit
from projections.audit.subscription_option_checks import (
    OwnMessages,
    TurnSubscriptions,
    filters_without_retained,
    is_subscribed,
)
from projections.audit.will_rules import WillAudit
from projections.state.inconsistent_events import INCONSISTENCIES
from projections.state.session import SessionState
from projections.state.single_session import SessionFold
from projections.state.waiting_queue import QOS_MASK
from protocol.mqtt.replay_filters import is_replay_filter

_QUEUE_CHANGES: Final = frozenset({Delivered, MessageDropped, Expired, Assigned})
_BEYOND: Final = 1 << 62
"""A position after the end of every log."""


class SessionAudit:
    """Folds one session and checks each event.

    ``whole`` is as for ``SessionFold``; facts that the log records only in part are not checked.
    ``begin`` is the first position of a log that was cut: messages before it are not known.
    ``tell`` is called with each violation; without it they are collected in ``violations``.
    ``shared`` is called with each step that concerns shared subscriptions, for
    ``projections.audit.shared_subscription_audit``, ``replayed`` with each step of a replay and its
    position, for ``projections.audit.replay_fold``. ``outline`` is the outline of the log as a
    whole; without it drops are not compared with limits.

    A subscription counts for the whole of each turn in which it existed: see
    ``projections.audit.subscription_option_checks``.
    """

    def __init__(
        self,
        session: str,
        whole: Position = 0,
        begin: Position = 0,
        tell: Callable[[Violation], object] | None = None,
        shared: Callable[[SharedStep], object] | None = None,
        outline: LogOutline | None = None,
        replayed: Callable[[ReplayStep, Position], object] | None = None,
    ) -> None:
        self.session = session
        self.fold = SessionFold(session, whole)
        self.violations: list[Violation] = []
        self.cases: Counter[str] = Counter()
        """The number of checked cases of each rule."""
        self._begin = begin
        self._violations = self.violations.append if tell is None else tell
        self._known = not whole
        """Whether the state includes all earlier events."""
        self._broken = False
        self._expected = ExpectedMessages()
        """Messages that took effect and that no event of the session mentions yet."""
        self._queue: dict[Position, ExpectedMessage] = {}
        """Messages in the session's queues."""
        self._answers = AcknowledgementAudit(self._violations)
        self._open = self._answers.open
        self.latencies = self._answers.latencies.counts
        self.slowest_ms = self._answers.latencies.slowest_ms
        self._order = TopicOrder()
        self._local = OwnMessages()
        self._turn: Position = 0
        """Position at which the turn of the current event begins."""
        self._in_turn = TurnSubscriptions()
        outline = outline or LogOutline()
        self._outline = outline
        self._holes = list(reversed(outline.holes))
        """Positions behind lost records that are not passed yet, the next one last."""
        self._tell_shared = shared
        self._begin_parts()
        self._replays = ReplayAudit(self._violations, outline, replayed)
        self._off: dict[str, int] = {}
        """Filters whose queue has the wrong number of bytes -> difference."""

    def expect(
        self,
        at: Position,
        ref: Position,
        topic: str,
        time_ms: int,
        *,
        origin: Hashable,
        qos: int,
        granted: int,
        owed: bool,
        size: int = 0,
        expires: int | None = None,
    ) -> None:
        """Record a message that took effect at a position and matches a subscription of QoS 1 or 2.

        ``ref`` is the position of its publication, ``time_ms`` the time at which it took effect,
        ``origin`` identifies its publisher. ``owed`` says that the subscription existed from before
        the message took effect until after the end of that turn; otherwise it existed in a part of
        that turn, and the message may, but need not, be delivered. ``size`` is its ``packed_size``,
        ``expires`` its expiry (Unix time in seconds, 0: never, None: not known). Call once for each
        subscription that the message matches, before the session's own events at that position.
        """
        self.pass_holes(at)
        if self._known and self.fold.state is not None:
            self.cases[Rule.UNDELIVERED] += self._expected.expect(
                at, ref, topic, time_ms, origin, qos, granted, owed=owed, size=size, expires=expires
            )

    def take(
        self,
        event: Event,
        at: Position,
        time_ms: int,
        payload: bytes | None = None,
        part: int = 0,
    ) -> None:
        """Check the session's next event.

        ``payload`` is as for ``SessionFold``, ``part`` the part of the turn that the event's record
        contains.
        """
        if self._broken:
            return
        self.pass_holes(at)
        fold, kind = self.fold, type(event)
        turn = (at >> INDEX_BITS) - part << INDEX_BITS
        if turn != self._turn:
            self._begin_turn(turn)
        if not self._known and at >= fold.whole:
            self._known = True  # what the checkpoint does not contain did not exist
        try:
            self._check(event, kind, at, time_ms, payload)
            if self._known:
                state = fold.state
                count_cases(self.cases, event, state)
                self._owner.take(event, state, at, turn)
                self._wills.take(event, state, at, time_ms, turn)
                self._progress.before(at, time_ms)
                if state is not None and (state.replays or kind in OF_REPLAYS):
                    self._replays.take(state, event, at, time_ms)
            fold.take(event, at, time_ms, payload)
        except INCONSISTENCIES as error:
            self._broken = True
            self._report(Rule.EVENT, at, f"{kind.__name__} does not fit: {error!r:.100}")
            return
        state = fold.state
        if self._known:
            self._progress.after(state, at, time_ms, event)
            if state is not None and state.replays:
                self._replays.after(state, at, time_ms)
            if state is not None and kind in _QUEUE_CHANGES:
                self._check_bytes(state, event, at)
        if self._shared is not None and self._shared.begun:
            self._shared.take(event, at, self._turn)
        elif self._shared is not None and self._known:
            self._shared.begin(state, at)
        if state is None:
            self._forget()

    def pass_holes(self, at: Position) -> None:
        """Forget what was known before lost records, if a position is behind them."""
        if not self._holes or at < self._holes[-1]:
            return
        if self._known and self.fold.state is not None:
            self._report_all(self._expected.overdue(self._holes[-1]))
        self._end_turn()
        self._wills.end_turn()
        while self._holes and at >= self._holes[-1]:
            self._begin = self._holes.pop()
        self.fold = SessionFold(self.session, self.fold.whole)
        self._known = False
        self._clear()
        self._answers.interrupted()
        self._replays.forget()
        self._in_turn.clear()
        self._off.clear()
        self._begin_parts()

    def _begin_parts(self) -> None:
        """Begin the checks that follow one part of the state each, here or behind lost records."""
        outline, shared, known = self._outline, self._tell_shared, self._known
        self._shared = None if shared is None else SharedSteps(self.session, shared, begun=known)
        self._repetitions = CheckpointSnapshotAudit(self._violations)
        self._wills = WillAudit(self._violations, self._case, outline)
        self._drops = DropAudit(self._violations, self._case, outline, self._in_turn.left)
        self._ends = SessionEnds(self._violations, outline)
        self._progress = QueueProgress(self._violations, self._case, outline)
        self._owner = OwnershipAudit(self.session, self._violations, outline)

    def _check(
        self, event: Event, kind: type, at: Position, time_ms: int, payload: bytes | None
    ) -> None:
        """Check an event against the state before it."""
        self._drops.took(event)
        self._answers.take(event, at)
        check = _CHECKS.get(kind)
        if kind is RetainedSnapshot:
            if self._known and at >= self.fold.whole:
                self._repetitions.messages(self.fold, event, at, payload)  # type: ignore[arg-type]
        elif check is not None:
            check(self, event, at, time_ms)
        elif self._known:
            self._check_with_state(event, kind, at, time_ms)

    def _check_with_state(self, event: Event, kind: type, at: Position, time_ms: int) -> None:
        state = self.fold.state
        if state is None:
            if kind is Delivered or kind is Queued:
                self._report(Rule.NO_SUBSCRIPTION, at, "there is no session to deliver to")
            return
        check = _CHECKS_WITH_STATE.get(kind)
        if check is not None:
            check(self, state, event, at, time_ms)
        elif (answered := ANSWERS.get(kind)) is not None:
            answered(self._answers, state, event, at, time_ms)
        pure = single_event_rules.WITH_STATE.get(kind)
        if pure is not None:
            self._report_all(pure(state, event, at))

    def finish(self, unsure: Position = _BEYOND) -> None:
        """Check what is left at the end of the log; from ``unsure`` on, a turn is not whole."""
        if self._broken:
            return
        self.pass_holes(_BEYOND)
        state = self.fold.state
        if state is not None:
            self._report_all(self._expected.overdue(_BEYOND))
        self._end_turn()
        self._drops.took(None)
        self._answers.take(None, unsure)
        self._ends.finish(state)
        self._wills.finish(state)
        self._progress.finish()

    def _begin_turn(self, turn: Position) -> None:
        self._turn = turn
        self._order.end_turn()
        self._expected.begin_turn(turn)
        self._in_turn.clear()
        self._end_turn()

    def _end_turn(self) -> None:
        self._drops.end_turn()
        self._ends.end_turn()
        self._owner.end_turn()
        self._repetitions.end_turn()
        self._replays.end_turn()

    # Reporting.

    def _case(self, rule: str) -> None:
        self.cases[rule] += 1

    def _report(self, rule: str, at: Position, what: str, ref: Position | None = None) -> None:
        self._violations(Violation(rule, at, what, ref))

    def _report_all(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self._violations(violation)

    def _forget(self) -> None:
        """Forget the session, which ended: no more messages must be delivered to it."""
        self._owner.ended(self._turn)
        # Messages of the turn in which it ended are not overdue.
        self._report_all(self._expected.overdue(self._turn))
        self._clear()
        self._answers.forget()
        self._replays.forget()

    def _clear(self) -> None:
        self._expected.clear()
        self._queue.clear()
        self._order.clear()
        self._local.clear()

    # The session.

    def _opened(self, event: SessionOpened, at: Position, _ms: int) -> None:
        state = self.fold.state
        if self._known:
            self._report_all(single_event_rules.opened(state, event, at))
        if not event.resumed:
            self._forget()
            self._known = True
        self._answers.opened(state if event.resumed else None, at, known=self._known)
        for name in filter(is_token, (event.session, event.user or "")):
            self._case(Rule.ERASURE)
            if 0 < (erased := self._outline.name_erased_at(name)) < at:
                what = f"a client connected as {name}, which was erased at "
                self._report(Rule.ERASURE, at, what + format_position(erased))

    def _ended(self, event: SessionClosed | SessionExpired, at: Position, ms: int) -> None:
        self._answers.ended()
        if self._known:
            self._report_all(single_event_rules.ended(self.fold.state, event, at))
            if isinstance(event, SessionClosed):
                self._ends.closed(self.fold.state, event, at)
            else:
                self._ends.expired(self.fold.state, event, at, ms)

    def _snapshot(self, event: SessionSnapshot, at: Position, _ms: int) -> None:
        if not self._known or at < self.fold.whole:
            self._known = self._known or event.last
            return
        self._repetitions.state(self.fold, event, at)

    def _subscribed(self, event: Subscribed, _at: Position, _ms: int) -> None:
        filters = dict(event.filters)
        state = self.fold.state if self._known else None
        self._in_turn.subscribed(filters, filters_without_retained(state, event))
        self._expected.granted(filters, self._turn)

    def withholds(self, topic_filter: str) -> bool:
        """Return whether retained messages may not be sent for a filter in this turn."""
        return self._in_turn.withheld(topic_filter)

    def _unsubscribed(self, event: Unsubscribed, at: Position, _ms: int) -> None:
        state = self.fold.state
        for topic_filter in event.filters if self._known and state is not None else ():
            if not is_subscribed(state, topic_filter):
                what = f"unsubscribed from {topic_filter!r:.200}, which was not subscribed to"
                self._report(Rule.NO_SUBSCRIPTION, at, what)
        self._in_turn.unsubscribed(event)
        self._drops.unsubscribed(event)

    # Deliveries to its client.

    def _delivered(self, state: SessionState, event: Delivered, at: Position, ms: int) -> None:
        refs, pids = from_runs(event.refs), from_runs(event.pids)
        self._report_all(single_event_rules.identifiers(state, pids, len(refs), at))
        self._answers.sent(state, pids, at)
        is_subscribed_to = self._check_subscription(state, event.filter, at)
        if event.queued >= 0:
            flags = event.qos | event.retain << 2
            held = state.subscriptions.get(event.filter)
            self._report_all(single_event_rules.from_the_head(held, refs, flags, at))
            self._report_all(single_event_rules.sent_in_time(held, refs, ms, at))
        if self._replays.delivered(state, event, at):
            return
        if event.filter.startswith(SHARE):
            return  # the shared subscription records the outcome of these messages in Assigned
        if event.retain:
            if event.queued < 0 and is_subscribed_to:
                self._report_all(self._in_turn.replayed(event.filter, refs, event.qos, at))
                if self._in_turn.granted_once(event.filter):
                    held = state.subscriptions.get(event.filter)
                    self._report_all(self._local.replayed(held, refs, at))
            return
        topic_filter, qos, queued = event.filter, event.qos, event.queued >= 0
        if not queued:
            self._report_all(self._local.sent(state, refs, at, changed=self._in_turn.changed))
        for number, ref in enumerate(refs):
            if not queued:
                message = self._expected.pop(ref)
                if message is None:
                    self._unexpected(ref, at + number)
                    continue
                self._check_message(message, qos, at + number)
                self._check_sent(message, ref, at + number)
                if not is_match(topic_filter, message.topic):
                    what = f"{topic_filter!r:.200} does not match the topic"
                    self._report(Rule.NO_SUBSCRIPTION, at + number, what)
            else:
                message = self._unqueued(ref)
                if message is None:  # queued before the log began
                    continue
            self._check_erased(message, ref, at + number)
            self._open[ref] = message
            if not self._order.delivered(message.stream, message.at):
                what = f"message {format_position(ref)} came after a later one of its topic"
                self._report(Rule.ORDER, at + number, what)

    def _check_bytes(self, state: SessionState, event: Any, at: Position) -> None:
        """Check the size of a queue that messages left; report a wrong size once."""
        topic_filter = getattr(event, "filter", None) or event.session.split("/", 2)[-1]
        held = state.subscriptions.get(topic_filter)
        if held is not None and self._off.get(topic_filter, 0) != held.queued_bytes:
            wrong = single_event_rules.bytes_left(held, at)
            if wrong:
                self._off[topic_filter] = held.queued_bytes
                self._report_all(wrong)

    def _queued(self, state: SessionState, event: Queued, at: Position, _ms: int) -> None:
        is_subscribed_to = self._check_subscription(state, event.filter, at)
        refs = from_runs(event.refs)
        if event.behind < 0:
            self._drops.queued(state, event, refs, at)
        if event.retain:
            if is_subscribed_to:
                self._report_all(self._in_turn.replayed(None, refs, event.qos, at))
            return
        if event.behind >= 0:
            self._report_all(single_event_rules.put_behind(state, event, at))
            return  # a member of this shared subscription returned these messages
        self._report_all(self._local.sent(state, refs, at, changed=self._in_turn.changed))
        ends = expiries_of(event.expires, len(refs)) or [0] * len(refs)
        for number, ref in enumerate(refs):
            message = self._expected.pop(ref)
            if message is None:
                self._unexpected(ref, at + number)
                continue
            self.cases[Rule.EXPIRY] += bool(message.expires)
            self._report_all(
                single_event_rules.expiry_differs(message, ref, ends[number], at + number)
            )
            # The filter need not match: a message is queued behind the waiting messages of another
            # filter of the session, so that it does not overtake a message of its topic.
            self._queue[ref] = message
            self._order.queued(message.stream)
            self._check_message(message, event.qos, at + number)

    def _dropped(self, state: SessionState, event: MessageDropped, at: Position, _ms: int) -> None:
        refs = from_runs(event.refs)
        self._report_all(single_event_rules.dropped(state, event, refs, at))
        messages = [self._queue.get(ref) or self._expected.get(ref) for ref in refs]
        first = messages[0] if messages else None
        self._drops.dropped(state, event, refs, None if first is None else first.size, at)
        if event.reason == "other_prefix":
            from_nats = [message is None or message.is_from_nats for message in messages]
            self._drops.of_other_prefix(all(from_nats), at)
        elif event.reason == "packet_too_large" and state.packet_maximum:
            self._drops.too_large(state, event, messages, at)
        ended: set[Position] = set()
        if event.queued < 0 and event.reason in ("not_permitted", "packet_too_large", "erased"):
            # At QoS 2 these are not sent again; a PUBREL for them is.
            in_flight = state.inflight.values()
            ended = {sent.ref for sent in in_flight if sent.flags & QOS_MASK == 2}
            if is_replay_filter(event.filter):
                ended |= {
                    sent.ref for sent in in_flight if sent.subscription.filter == event.filter
                }
        uninvited = not self._in_turn.granted and not single_event_rules.takes_assigned(state)
        for ref in refs:
            if event.queued >= 0:
                self._unqueued(ref)
                continue
            message = self._expected.pop(ref)
            if message is not None:
                self._check_turn(message, at)
            elif ref in ended:
                continue
            elif (ref in self._open or ref in self._queue) and not self._in_turn.granted:
                # With a newly granted filter this may be a retained message that is sent again.
                what = f"message {format_position(ref)} was dropped although it was accepted before"
                self._report(Rule.UNDELIVERED, at, what)
            elif ref >= self._begin and uninvited:
                self._drops.unexpected(ref, at)

    def _expired(self, state: SessionState, event: Expired, at: Position, ms: int) -> None:
        self._report_all(single_event_rules.expired(state, event, at, ms))
        for ref in from_runs(event.refs):
            self._unqueued(ref)

    def _unqueued(self, ref: Position) -> ExpectedMessage | None:
        """Return a message that leaves its queue; None: it was queued before the log began."""
        message = self._queue.pop(ref, None)
        if message is not None:
            self._order.left(message.stream)
        return message

    def _assigned(self, state: SessionState, event: Assigned, at: Position, ms: int) -> None:
        """Check messages that a shared subscription gave to one of its members."""
        refs = from_runs(event.refs)
        if event.queued >= 0:
            held = state.subscriptions.get(event.session.split("/", 2)[-1])
            self._report_all(single_event_rules.from_the_head(held, refs, None, at))
            if not event.member.startswith(LOG_SESSION):  # otherwise they expire in that log
                self._report_all(single_event_rules.sent_in_time(held, refs, ms, at))
        assigned = []
        for number, ref in enumerate(refs):
            if event.queued < 0:
                message = self._expected.pop(ref)
                if message is None:
                    self._unexpected(ref, at + number)
                else:
                    self._check_turn(message, at + number)
                    self._check_sent(message, ref, at + number)
            else:
                message = self._unqueued(ref)
            if message is not None:
                self._check_erased(message, ref, at + number)
            assigned.append(message)
        if self._shared is not None:
            self._shared.assigned(event, assigned, at, self._turn)

    def _check_subscription(self, state: SessionState, topic_filter: str, at: Position) -> bool:
        if topic_filter in state.subscriptions or self._in_turn.left(topic_filter):
            return True
        self._report(Rule.NO_SUBSCRIPTION, at, f"no subscription {topic_filter!r:.200}")
        return False

    def _unexpected(self, ref: Position, at: Position) -> None:
        if ref >= self._begin and not single_event_rules.takes_assigned(self.fold.state):
            what = f"message {format_position(ref)} was not to be delivered to it"
            self._report(UNEXPECTED, at, what, ref)

    def _check_message(self, message: ExpectedMessage, qos: int, at: Position) -> None:
        """Check that the outcome of a message is recorded in its turn, and its QoS."""
        self._check_turn(message, at)
        if not message.may_be_at(qos):
            self._report(Rule.QOS, at, f"at QoS {qos}, which its subscriptions do not allow")

    def _check_erased(self, message: ExpectedMessage, ref: Position, at: Position) -> None:
        """Check that a message that was sent had not been erased; an empty one has no content."""
        if message.topic not in self._outline.erased or not message.size:
            return
        self._case(Rule.ERASURE)
        if 0 < (erased := self._outline.erased_at(message.topic, ref)) < at:
            what = f"message {format_position(ref)} was delivered, but was erased at "
            self._report(Rule.ERASURE, at, what + format_position(erased))

    def _check_sent(self, message: ExpectedMessage, ref: Position, at: Position) -> None:
        """Check that a message that was sent at once had not expired."""
        if message.expires:
            self.cases[Rule.EXPIRY] += 1
            self._report_all(single_event_rules.taken_in_time(message, ref, at))

    def _check_turn(self, message: ExpectedMessage, at: Position) -> None:
        if message.at < self._turn:
            self._report(
                Rule.UNDELIVERED, at, "the outcome of a message was recorded in a later turn"
            )


_CHECKS: Final[dict[type, Callable[[SessionAudit, Any, Position, int], None]]] = {
    SessionOpened: SessionAudit._opened,
    SessionClosed: SessionAudit._ended,
    SessionExpired: SessionAudit._ended,
    SessionSnapshot: SessionAudit._snapshot,
    OperatorActed: lambda audit, event, at, _: audit._ends.acted(event, at, known=audit._known),
    Subscribed: SessionAudit._subscribed,
    Unsubscribed: SessionAudit._unsubscribed,
}
"""Type of event -> its check, whether the state is known or not."""

_CHECKS_WITH_STATE: Final[
    dict[type, Callable[[SessionAudit, SessionState, Any, Position, int], None]]
] = {
    Delivered: SessionAudit._delivered,
    Queued: SessionAudit._queued,
    MessageDropped: SessionAudit._dropped,
    SubscriptionDenied: lambda audit, _state, event, at, _: audit._drops.denied(event, at),
    MessagePublished: lambda audit, state, event, at, _: audit._local.published(state, event, at),
    Expired: SessionAudit._expired,
    Assigned: SessionAudit._assigned,
}
"""Type of event -> its check where the state is known, besides ``checks.WITH_STATE`` and
``acknowledgement_audit.ANSWERS``."""
