"""Counts the cases of each rule in the events of a session."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
)
from eventstore.format.positions import count_runs
from projections.audit.rule_table import Rule
from projections.state.session import SessionState
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_HANDLING

_ANY: Final = 65_535
"""The Receive Maximum of a client that sends none."""


class EventCases:
    """The cases that the events of one session are checked for.

    Messages that a session must get, drops, wills and queues that could be sent are counted where
    they are checked.
    """

    def __init__(self) -> None:
        self._events = self._sessions = self._answers = self._identifiers = 0
        self._deliveries = self._windowed = self._from_queues = self._expired = 0
        self._taken = self._of_local = self._withholding = 0

    def take(self, event: Event, state: SessionState | None) -> None:
        """Count an event; ``state`` is the state before it."""
        self._events += 1
        kind = type(event)
        count = _COUNTS.get(kind)
        if count is not None and (state is not None or kind is SessionOpened):
            count(self, event, state)

    def by_rule(self) -> Counter[str]:
        """Return the number of cases of each rule."""
        return Counter[str](
            {
                Rule.EVENT: self._events,
                Rule.SESSION: self._sessions,
                Rule.ACKNOWLEDGEMENT: self._answers,
                Rule.PACKET_ID_REUSE: self._identifiers,
                Rule.ORDER: self._deliveries,
                Rule.RECEIVE_MAXIMUM: self._windowed,
                Rule.QUEUE: self._from_queues,
                Rule.EXPIRY: self._expired,
                Rule.DELIVERED_TWICE: self._taken,
                Rule.NO_SUBSCRIPTION: self._taken,
                Rule.QOS: self._taken,
                Rule.NO_LOCAL: self._of_local,
                Rule.RETAIN_HANDLING: self._withholding,
            }
        )

    def _delivered(self, event: Delivered, state: SessionState) -> None:
        count = count_runs(event.refs)
        self._identifiers += count
        self._deliveries += count
        if state.receive_maximum < _ANY:
            self._windowed += count
        if event.queued >= 0:
            self._from_queues += count
        else:
            self._arrived(event.filter, count, state)

    def _queued(self, event: Queued, state: SessionState) -> None:
        self._arrived(event.filter, count_runs(event.refs), state)

    def _arrived(self, topic_filter: str, count: int, state: SessionState) -> None:
        """Count messages on arrival: sent at once, or queued."""
        self._taken += count
        held = state.subscriptions.get(topic_filter)
        if held is not None and held.options & NO_LOCAL:
            self._of_local += count

    def _left(self, event: MessageDropped | Assigned, _state: Any) -> None:
        if event.queued >= 0:
            self._from_queues += count_runs(event.refs)

    def _on_expired(self, event: Expired, _state: Any) -> None:
        self._expired += count_runs(event.refs)

    def _answered(self, event: Any, _state: Any) -> None:
        self._answers += count_runs(event.pids)

    def _published(self, event: MessagePublished, _state: Any) -> None:
        if event.qos > 1 and not event.will:
            self._identifiers += event.count

    def _subscribed(self, event: Subscribed, _state: Any) -> None:
        for bits in event.options:
            self._withholding += bool(bits & RETAIN_HANDLING)

    def _of_session(self, _event: Any, _state: Any) -> None:
        self._sessions += 1


_COUNTS: Final[dict[type, Callable[[EventCases, Any, Any], None]]] = {
    Delivered: EventCases._delivered,
    Queued: EventCases._queued,
    MessageDropped: EventCases._left,
    Assigned: EventCases._left,
    Expired: EventCases._on_expired,
    MessagePublished: EventCases._published,
    Subscribed: EventCases._subscribed,
    **dict.fromkeys((SessionOpened, SessionClosed, SessionExpired), EventCases._of_session),
    **dict.fromkeys(
        (Acked, Received, Refused, Completed, Released, InboundReplaced, Returned, Redelivered),
        EventCases._answered,
    ),
}
