"""From when to when each filter of a session was subscribed to: what messages it had to get."""

from __future__ import annotations

from typing import NamedTuple

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
from projections.state import SessionFold

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
"""The events that tell; all others may be left out."""


class SubscriptionSpan(NamedTuple):
    """A subscription between two positions; what took effect there and matches was its.

    What took effect in the turn in which it began or ended may have been its as well.
    """

    filter: str
    qos: int
    since: Position
    until: Position | None
    """None: it goes on."""
    begins: Position
    """Where the turn begins in which it began."""
    ends: Position | None
    """Where the turn begins in which it ended."""


class SubscriptionSpans:
    """Follows the subscriptions of one session; ``whole`` is as for ``SessionFold``."""

    def __init__(self, session: str, whole: Position = 0) -> None:
        self._fold = SessionFold(session, whole)
        self._open: dict[str, tuple[int, Position, Position]] = {}
        """QoS, where it began, and where that turn began."""
        self._closed: list[SubscriptionSpan] = []
        self._turn: Position = 0

    def take(self, event: Event, at: Position, time_ms: int = 0, part: int = 0) -> None:
        """Take the next event of one of the ``SUBSCRIPTION_EVENTS``, of that part of its turn."""
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
        elif isinstance(event, Subscribed):
            for topic_filter, _ in event.filters:
                self._grant(topic_filter, state.subscriptions[topic_filter].qos, at)
        elif isinstance(event, Unsubscribed):
            self._close(event.filters, at)
        elif isinstance(event, SessionSnapshot) and state is not before:
            held = {one.filter: one.qos for one in state.active()}
            self._close([gone for gone in self._open if gone not in held], at)
            for topic_filter, qos in held.items():
                self._grant(topic_filter, qos, at)

    def ended(self) -> list[SubscriptionSpan]:
        """Return the spans that ended since this was asked for last."""
        ended, self._closed = self._closed, []
        return ended

    def finish(self) -> list[SubscriptionSpan]:
        """Return all spans that are left, those that go on last."""
        going_on = [
            SubscriptionSpan(topic_filter, qos, since, None, begins, None)
            for topic_filter, (qos, since, begins) in self._open.items()
        ]
        return self.ended() + going_on

    def _grant(self, topic_filter: str, qos: int, at: Position) -> None:
        known = self._open.get(topic_filter)
        if known is not None:
            if known[0] == qos:
                return
            self._close([topic_filter], at)
        self._open[topic_filter] = qos, at, self._turn

    def _close(self, filters: list[str], at: Position) -> None:
        for topic_filter in filters:
            known = self._open.pop(topic_filter, None)
            if known is not None:
                qos, since, begins = known
                self._closed.append(
                    SubscriptionSpan(topic_filter, qos, since, at, begins, self._turn)
                )
