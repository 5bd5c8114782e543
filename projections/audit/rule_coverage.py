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
_ARRIVED: Final = (Rule.DELIVERED_TWICE, Rule.NO_SUBSCRIPTION, Rule.QOS)
_SENT: Final = (Rule.PACKET_ID_REUSE, Rule.ORDER)


def count_cases(cases: Counter[str], event: Event, state: SessionState | None) -> None:
    """Count what one event of a session is checked for; ``state`` is the state before it.

    Messages that a session must get, drops, wills and queues that could be sent are counted where
    they are checked.
    """
    cases[Rule.EVENT] += 1
    kind = type(event)
    count = _COUNTS.get(kind)
    if count is not None and (state is not None or kind is SessionOpened):
        count(cases, event, state)


def _delivered(cases: Counter[str], event: Delivered, state: SessionState) -> None:
    count = count_runs(event.refs)
    for rule in _SENT:
        cases[rule] += count
    if state.receive_maximum < _ANY:
        cases[Rule.RECEIVE_MAXIMUM] += count
    if event.queued >= 0:
        cases[Rule.QUEUE] += count
    else:
        _arrived(cases, event, state)


def _arrived(cases: Counter[str], event: Delivered | Queued, state: SessionState) -> None:
    """Count messages on arrival: sent at once, or queued."""
    count = count_runs(event.refs)
    for rule in _ARRIVED:
        cases[rule] += count
    held = state.subscriptions.get(event.filter)
    if held is not None and held.options & NO_LOCAL:
        cases[Rule.NO_LOCAL] += count


def _left(cases: Counter[str], event: MessageDropped | Assigned, _state: Any) -> None:
    if event.queued >= 0:
        cases[Rule.QUEUE] += count_runs(event.refs)


def _expired(cases: Counter[str], event: Expired, _state: Any) -> None:
    cases[Rule.EXPIRY] += count_runs(event.refs)


def _answered(cases: Counter[str], event: Any, _state: Any) -> None:
    cases[Rule.ACKNOWLEDGEMENT] += count_runs(event.pids)


def _published(cases: Counter[str], event: MessagePublished, _state: Any) -> None:
    if event.qos > 1 and not event.will:
        cases[Rule.PACKET_ID_REUSE] += event.count


def _subscribed(cases: Counter[str], event: Subscribed, _state: Any) -> None:
    cases[Rule.RETAIN_HANDLING] += sum(bool(bits & RETAIN_HANDLING) for bits in event.options)


def _of_session(cases: Counter[str], _event: Any, _state: Any) -> None:
    cases[Rule.SESSION] += 1


_COUNTS: Final[dict[type, Callable[[Counter[str], Any, Any], None]]] = {
    Delivered: _delivered,
    Queued: _arrived,
    MessageDropped: _left,
    Assigned: _left,
    Expired: _expired,
    MessagePublished: _published,
    Subscribed: _subscribed,
    **dict.fromkeys((SessionOpened, SessionClosed, SessionExpired), _of_session),
    **dict.fromkeys(
        (Acked, Received, Refused, Completed, Released, InboundReplaced, Returned, Redelivered),
        _answered,
    ),
}
