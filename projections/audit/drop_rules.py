"""Checks that the recorded reason of a drop or a denial is known and true: rule ``drop``.

A drop caused by a limit is compared with the limit that applied, as the log records it. Older logs
do not record limits: there they are not checked. A reason is checked against what the log records.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from eventstore.display import escaped
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    LONGEST_DROPPED_TOPIC,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    SessionClosed,
    SubscriptionDenied,
    Unsubscribed,
    WillFired,
)
from eventstore.format.node_events import OperatorActed
from eventstore.format.positions import INDEX_BITS, Position, count_runs, format_position, from_runs
from eventstore.reasons import DROP_REASONS
from projections.audit.expected_messages import ExpectedMessage
from projections.audit.log_outline import Limits, LogOutline
from projections.audit.rule_table import Rule, Violation
from projections.audit.single_event_rules import largest_packet
from projections.state.session import LOST, SessionState
from protocol.mqtt.reason_codes import FAILURE
from protocol.mqtt.replay_filters import is_replay_filter, replayed_filter
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import matches

_SHOWN: Final = 60
_NOT_AUTHORIZED: Final = 0x87
_OF_PUBLISHERS: Final = frozenset(
    {"reserved_topic", "topic_levels", "personal_keys", "payload_format"}
)
"""Reasons for which a publication is dropped before it is recorded: the log has no message."""
_OF_RECEIVERS: Final = frozenset(
    {"queue_messages", "queue_bytes", "unsubscribed", "other_prefix", LOST}
)
"""Reasons for which a message in the log does not reach a session."""
_OF_OTHERS: Final = (Queued, MessagePublished, WillFired)
"""Events that may happen to a session while its state is not known."""
UNKNOWN_LIMITS: Final = "drops without limits"
"""Counter of drops that are not compared with their limit, because the log does not record it."""


class DropAudit:
    """Checks the drops of one session; ``cases`` is called for each checked drop.

    ``was_unsubscribed`` returns whether a filter was unsubscribed from in the turn.
    """

    def __init__(
        self,
        report: Callable[[Violation], object],
        cases: Callable[[str], object],
        outline: LogOutline,
        was_unsubscribed: Callable[[str], bool],
    ) -> None:
        self._left = was_unsubscribed
        self._violations = report
        self._cases = cases
        self._outline = outline
        self._leaving: dict[str, Position] = {}
        """Filters whose messages were dropped as unsubscribed in this turn -> position."""
        self._before: tuple[object, ...] = ()
        """Reason, filter and last position of the previous drop: a large drop is recorded in
        parts."""
        self._beyond: dict[Position, tuple[Position, str]] = {}
        """Messages that were queued beyond a limit, by the first one -> position of the event, and
        the error text; until the session's next event shows whether there was a reason."""
        self._restarted = False
        """Whether an operator restarted the session, and nothing but messages came since."""

    def end_turn(self) -> None:
        """Report filters with a drop as unsubscribed, but without an unsubscription in the turn."""
        for at in self._leaving.values():
            what = "messages were dropped as unsubscribed, but the client did not unsubscribe"
            self._report(at, what)
        self._leaving.clear()

    def unsubscribed(self, event: Unsubscribed) -> None:
        """Process filters that the client unsubscribed from, after the drops that this caused."""
        for topic_filter in event.filters:
            self._leaving.pop(topic_filter, None)

    def queued(
        self, state: SessionState, event: Queued, refs: Sequence[Position], at: Position
    ) -> None:
        """Check that the limits, which drops are explained with, have room for queued messages.

        While a session is restarted or has failed, its queue is not known, and has no limit.
        """
        limits = self._outline.limits_at(at)
        if limits is None or self._restarted:
            return
        counts = (
            (limits.max_queued_messages, state.queued + len(refs), "messages"),
            (limits.max_queued_bytes, state.queued_bytes + event.size, "bytes"),
        )
        for most, count, unit in counts:
            if most is not None and count > most and refs:
                what = f"{count} {unit} wait, but the limit that is recorded is {most}"
                self._beyond[refs[0]] = at, what

    def took(self, event: Event | None) -> None:
        """Process the session's next event before the others are called; None: there is none."""
        if isinstance(event, _OF_OTHERS):
            return
        self._restarted = isinstance(event, OperatorActed) and event.action == "restart"
        if not self._beyond:
            return
        if isinstance(event, Expired):  # those that had expired on arrival are queued for no time
            for ref in from_runs(event.refs):
                self._beyond.pop(ref, None)
        if not (isinstance(event, SessionClosed) and event.reason == "session_failed"):
            for at, what in self._beyond.values():
                self._violations(Violation(Rule.QUEUE, at, what))
        self._beyond.clear()

    def dropped(
        self,
        state: SessionState,
        event: MessageDropped,
        refs: Sequence[Position],
        first: int | None,
        at: Position,
    ) -> None:
        """Check a drop; ``first`` is the size of its first message in bytes, if it is known."""
        part, self._before = self._before, (event.reason, event.filter, at + 1)
        self._cases(Rule.DROP)
        if event.reason not in DROP_REASONS:
            self._report(at, f"messages were dropped for an unknown reason: {_word(event)}")
            return
        what = _shape(event, refs) or self._without_subscription(state, event) or _topics(event)
        if what:
            self._report(at, what)
            return
        limits = self._outline.limits_at(at)
        check = _CHECKS.get(event.reason)
        if check is None:
            return
        if limits is None and event.reason in _LIMITED:
            self._cases(UNKNOWN_LIMITS)
            return
        if part == (event.reason, event.filter, at):
            return
        what = check(self, state, event, first, limits, at)
        if what:
            self._report(at, what)

    def denied(self, event: SubscriptionDenied, at: Position) -> None:
        """Check a subscription that was not granted."""
        self._cases(Rule.DROP)
        as_many = count_runs(event.reasons) == len(event.filters)
        codes = from_runs(event.reasons) if as_many else []
        if min(codes, default=0) < FAILURE:
            self._report(at, "subscriptions were denied, but not all of them with a reason")
            return
        limits = self._outline.limits_at(at)
        if _NOT_AUTHORIZED in codes and limits is not None and not limits.denies:
            what = "a subscription was denied as not authorized, but everything was permitted"
            self._report(at, what)

    def unexpected(self, ref: Position, at: Position) -> None:
        """Report a drop of a message that was not to be delivered to the session."""
        self._report(at, f"message {format_position(ref)} was dropped, but was not to be delivered")

    def of_other_prefix(self, from_nats: bool, at: Position) -> None:
        """Report a drop as ``other_prefix``, unless all known messages came ``from_nats``."""
        if not from_nats:
            self._report(at, "dropped as other_prefix, but it did not come from NATS")

    def too_large(
        self,
        state: SessionState,
        event: MessageDropped,
        messages: Iterable[ExpectedMessage | None],
        at: Position,
    ) -> None:
        """Check the smallest packet of known messages against the client's maximum packet size.

        Members of a shared subscription have their own limits.
        """
        if event.filter.startswith(SHARE) or state.session.startswith(SHARE):
            return
        sizes = [
            largest_packet(state, message.topic, message.size, message.properties)
            for message in messages
            if message
        ]
        if sizes and min(sizes) <= state.packet_maximum:
            what = f"a packet has at most {min(sizes)} bytes, and the client accepts "
            self._report(at, f"dropped as packet_too_large, but {what}{state.packet_maximum}")

    def _report(self, at: Position, what: str) -> None:
        self._violations(Violation(Rule.DROP, at, what))

    def _without_subscription(self, state: SessionState, event: MessageDropped) -> str:
        """Return an error text if the session has no subscription with the filter."""
        held = event.filter in state.subscriptions or self._left(event.filter)
        if not event.filter or held:
            return ""
        shown = escaped(event.filter, _SHOWN)
        return f"messages were dropped for {shown}, which is not subscribed to"

    # The reasons.

    def _queue_messages(
        self, state: SessionState, _event: Any, _first: Any, limits: Limits, _at: Position
    ) -> str:
        most = limits.max_queued_messages
        if most is None or state.queued >= most:
            return ""
        return f"dropped as queue_messages, but {state.queued} of {most} allowed messages waited"

    def _queue_bytes(
        self,
        state: SessionState,
        _event: Any,
        first: int | None,
        limits: Limits,
        _at: Position,
    ) -> str:
        most = limits.max_queued_bytes
        if most is None or first is None or state.queued_bytes + first > most:
            return ""
        return (
            f"dropped as queue_bytes, but with it {state.queued_bytes + first} of {most} allowed "
            "bytes would have waited"
        )

    def _unsubscribed(
        self, state: SessionState, event: MessageDropped, _first: Any, _limits: Any, at: Position
    ) -> str:
        if event.queued < 0:
            return "dropped as unsubscribed, but they had not waited"
        held = state.subscriptions.get(event.filter)
        if held is not None and held.active:
            self._leaving[event.filter] = at
        return ""

    def _slow_reader(
        self, state: SessionState, event: MessageDropped, _first: Any, _limits: Any, _at: Position
    ) -> str:
        if event.refs or event.queued >= 0:
            return "dropped as slow_reader, which only happens at QoS 0"
        if not state.connected and not state.session.startswith(SHARE):
            return "dropped as slow_reader, but no client was connected"
        return "" if state.subscriptions else "dropped as slow_reader without a subscription"

    def _not_permitted(
        self, state: SessionState, event: MessageDropped, _first: Any, limits: Limits, _at: Position
    ) -> str:
        if not limits.denies:
            return "dropped as not_permitted, but everything was permitted"
        if event.queued >= 0 and not state.connected and not state.session.startswith(SHARE):
            return "left the queue as not_permitted, but no client was connected"
        return ""

    def _lost(
        self, _state: Any, event: MessageDropped, _first: Any, _limits: Any, at: Position
    ) -> str:
        for ref in from_runs(event.refs):
            if ref >= self._outline.begin and not self._outline.gave_up(ref, at):
                message = f"message {format_position(ref)}"
                return f"dropped as lost, but the record of {message} was not given up"
        return ""

    def _erased(
        self, state: Any, event: MessageDropped, _first: Any, _limits: Any, at: Position
    ) -> str:
        if self._outline.begin > 1 << INDEX_BITS:
            return ""  # the erasure may have been cut off
        pattern = split_share(event.filter)[1]
        if is_replay_filter(pattern):
            held = state.replays.get(pattern) if state is not None else None
            pattern = held.replay.topic_filter if held else replayed_filter(pattern) or "#"
        for topic, spans in self._outline.erased.items():
            if spans[0].at < at and (not event.filter or matches(pattern, topic)):
                return ""
        return "dropped as erased, but nothing that its filter matches was erased before"

    def _topic_levels(
        self, _state: Any, event: MessageDropped, _first: Any, limits: Limits, _at: Position
    ) -> str:
        most = limits.max_topic_levels
        if most == 0:
            return "dropped as topic_levels, but the number of levels was not limited"
        if most is None:
            return ""
        for topic in event.topics:
            if len(topic) < LONGEST_DROPPED_TOPIC and topic.count("/") < most:
                levels = topic.count("/") + 1
                return f"dropped as topic_levels, but {_name(topic)} has {levels} of {most} allowed"
        return ""

    def _reserved(
        self, _state: Any, event: MessageDropped, _first: Any, _limits: Any, _at: Position
    ) -> str:
        for topic in event.topics:
            if not topic.startswith("$"):
                return f"dropped as reserved_topic, but {_name(topic)} is not reserved"
        return ""

    def _payload_format(
        self, _state: Any, _event: Any, _first: Any, limits: Limits, _at: Position
    ) -> str:
        if limits.check_payload_format is False:
            return "dropped as payload_format, but payloads were not checked"
        return ""

    def _too_large(
        self, state: SessionState, _event: Any, _first: Any, _limits: Any, _at: Position
    ) -> str:
        if state.packet_maximum or state.session.startswith(SHARE):
            return ""
        return "dropped as packet_too_large, but the client accepts packets of any size"


_CHECKS: Final[dict[str, Callable[..., str]]] = {
    "queue_messages": DropAudit._queue_messages,
    "queue_bytes": DropAudit._queue_bytes,
    "unsubscribed": DropAudit._unsubscribed,
    "slow_reader": DropAudit._slow_reader,
    "not_permitted": DropAudit._not_permitted,
    "topic_levels": DropAudit._topic_levels,
    "reserved_topic": DropAudit._reserved,
    "payload_format": DropAudit._payload_format,
    "packet_too_large": DropAudit._too_large,
    "erased": DropAudit._erased,
    LOST: DropAudit._lost,
}
_LIMITED: Final = frozenset(
    {"queue_messages", "queue_bytes", "not_permitted", "topic_levels", "payload_format"}
)
"""Reasons that are compared with limits."""


def _word(event: MessageDropped) -> str:
    return escaped(event.reason, _SHOWN) or "no reason is recorded"


def _name(topic: str) -> str:
    return escaped(topic, _SHOWN)


def _topics(event: MessageDropped) -> str:
    """Return an error text if a named topic does not match the subscription of a drop."""
    if not event.filter or event.filter.startswith(SHARE):
        return ""
    for topic in event.topics:
        if len(topic) < LONGEST_DROPPED_TOPIC and not matches(event.filter, topic):
            return f"dropped for {_name(event.filter)}, which {_name(topic)} does not match"
    return ""


def _shape(event: MessageDropped, refs: Sequence[Position]) -> str:
    """Return an error text if the messages that a drop names are inconsistent."""
    if refs and event.count != len(refs) and event.queued < 0:
        return f"{event.count} messages were dropped, but {len(refs)} are named"
    if event.count < 1:
        return "no message was dropped"
    if event.reason in _OF_PUBLISHERS and (refs or event.queued >= 0):
        return f"dropped as {event.reason}, which only happens to publications of the client"
    if event.reason in _OF_RECEIVERS and not refs:
        return f"dropped as {event.reason}, but no message is named"
    if event.reason == "other_prefix" and event.queued >= 0:
        return "dropped as other_prefix, which only happens to messages that have not waited"
    return ""
