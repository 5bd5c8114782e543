"""The spans of a session's subscriptions: they determine the messages that it had to get."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventstore.format import (
    INDEX_BITS,
    Event,
    Position,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionSnapshot,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from projections.audit.shared_subscription_steps import SHARE
from projections.state import SHARED_PART, SessionFold
from protocol.mqtt5 import NO_LOCAL

if TYPE_CHECKING:
    from projections.state import SubscriptionState

SUBSCRIPTION_EVENTS = (
    SessionOpened,
    SessionClosed,
    SessionExpired,
    SessionSnapshot,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
"""The events that change subscriptions; all others may be left out."""


class SubscriptionSpan(NamedTuple):
    """A subscription between two positions; matching messages that took effect there belong to it.

    Messages that took effect in the turn in which it began or ended may belong to it as well.
    """

    filter: str
    qos: int
    since: Position
    until: Position | None
    """None: the subscription continues."""
    begins: Position
    """Start of the turn in which it began."""
    ends: Position | None
    """Start of the turn in which it ended."""
    no_local: bool = False
    """Whether it excludes the session's own messages (No Local, MQTT 5)."""


class SubscriptionSpans:
    """Follows the subscriptions of one session; ``whole`` is as for ``SessionFold``."""

    def __init__(self, session: str, whole: Position = 0) -> None:
        self._fold = SessionFold(session, whole)
        self._open: dict[str, tuple[int, Position, Position, bool]] = {}
        """Filter -> QoS, position of its beginning, start of that turn, and No Local."""
        self._closed: list[SubscriptionSpan] = []
        self._turn: Position = 0

    def take(self, event: Event, at: Position, time_ms: int = 0, part: int = 0) -> None:
        """Process the next of the ``SUBSCRIPTION_EVENTS``, in this part of its turn."""
        self._turn = (at >> INDEX_BITS) - part << INDEX_BITS
        fold = self._fold
        before = fold.state
        fold.take(event, at, time_ms)
        state = fold.state
        if state is None:
            self._close(list(self._open), at)
        elif isinstance(event, SessionOpened):
            if not event.resumed:
                self._close(list(self._open), at)
        elif isinstance(event, SessionClosed):
            if state.clean:
                self._close(list(self._open), at)
        elif isinstance(event, Subscribed):
            for topic_filter, _ in event.filters:
                self._grant(state.subscriptions[topic_filter], at)
        elif isinstance(event, Unsubscribed):
            self._close(event.filters, at)
        elif isinstance(event, SessionSnapshot) and state is not before:
            held = {one.filter: one for one in state.active()}
            self._close([gone for gone in self._open if gone not in held], at)
            for one in held.values():
                self._grant(one, at)

    def ended(self) -> list[SubscriptionSpan]:
        """Return the spans that ended since the last call."""
        ended, self._closed = self._closed, []
        return ended

    def finish(self) -> list[SubscriptionSpan]:
        """Return all remaining spans, with those that continue last."""
        going_on = [
            SubscriptionSpan(topic_filter, qos, since, None, begins, None, no_local)
            for topic_filter, (qos, since, begins, no_local) in self._open.items()
        ]
        return self.ended() + going_on

    def _grant(self, held: SubscriptionState, at: Position) -> None:
        topic_filter, qos, no_local = held.filter, held.qos, bool(held.options & NO_LOCAL)
        if topic_filter.startswith(SHARE):
            return  # the shared subscription decides what its members get
        if held.options & SHARED_PART:
            return  # another log decides what it gets
        known = self._open.get(topic_filter)
        if known is not None:
            if (known[0], known[3]) == (qos, no_local):
                return
            self._close([topic_filter], at)
        self._open[topic_filter] = qos, at, self._turn, no_local

    def _close(self, filters: list[str], at: Position) -> None:
        for topic_filter in filters:
            known = self._open.pop(topic_filter, None)
            if known is not None:
                qos, since, begins, no_local = known
                self._closed.append(
                    SubscriptionSpan(topic_filter, qos, since, at, begins, self._turn, no_local)
                )
