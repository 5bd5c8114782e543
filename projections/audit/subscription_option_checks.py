"""Checks that subscription options are obeyed (MQTT 5): No Local and Retain Handling.

``session_audit`` calls them; ``subscription_spans`` passes the options of a subscription to the
check of the messages that a session must get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from eventstore.format.events import MessagePublished, Subscribed
from eventstore.format.positions import Position, format_position
from projections.audit.rule_table import Rule, Violation
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_HANDLING
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from projections.state.session import SessionState, SubscriptionState

_IF_NEW, _NEVER = 0x10, 0x20
"""Retain Handling: retained messages are sent for a new subscription only, or not at all."""
_KEPT: Final = 65_536
"""Number of a session's own messages that are remembered."""


class OwnMessages:
    """A session's own messages: retained ones, and those during a subscription with No Local."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[Position, str] = {}
        """Position of each message, the oldest first -> its topic."""

    def published(self, state: SessionState, event: MessagePublished, at: Position) -> None:
        """Record messages of the session."""
        if not event.retain and not _is_no_local(state):
            return
        for number in range(event.count):
            topic = event.topics[event.which[number] if event.which else 0]
            self._topics[at + number] = topic
        while len(self._topics) > _KEPT:
            del self._topics[next(iter(self._topics))]

    def sent(
        self, state: SessionState, refs: list[Position], at: Position, *, changed: bool
    ) -> list[Violation]:
        """Check messages that are sent to the session or queued for it [MQTT-3.8.3-3].

        A message that also matches a subscription without No Local is sent for that one.
        ``changed``: subscriptions changed in this turn, and may have been different when the
        message was sent.
        """
        found: list[Violation] = []
        if changed or not self._topics:
            return found
        for number, ref in enumerate(refs):
            topic = self._topics.get(ref)
            if topic is not None and _matches_no_local_only(state, topic):
                found.append(_own(ref, at + number))
        return found

    def replayed(
        self, held: SubscriptionState | None, refs: list[Position], at: Position
    ) -> list[Violation]:
        """Check retained messages that are sent because the session subscribed."""
        if held is None or not held.options & NO_LOCAL:
            return []
        return [_own(ref, at + number) for number, ref in enumerate(refs) if ref in self._topics]

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self._topics.clear()


def _is_no_local(state: SessionState) -> bool:
    """Return whether a session has a subscription with No Local."""
    for held in state.subscriptions.values():  # noqa: SIM110 - all() costs a generator
        if held.options & NO_LOCAL:
            return True
    return False


def _matches_no_local_only(state: SessionState, topic: str) -> bool:
    """Return whether a topic matches subscriptions, all of them with No Local.

    A message that matches no subscription is another violation.
    """
    options = [
        held.options
        for held in state.subscriptions.values()
        if held.active and matches(held.filter, topic)
    ]
    return bool(options) and all(value & NO_LOCAL for value in options)


def _own(ref: Position, at: Position) -> Violation:
    what = f"message {format_position(ref)} went back to the client that published it"
    return Violation(Rule.NO_LOCAL, at, what)


def filters_without_retained(state: SessionState | None, event: Subscribed) -> list[str]:
    """Return the filters for which no retained messages may be sent [MQTT-3.3.1-10].

    ``state`` is the session before the event, None: not known.
    """
    if state is None or not event.options:
        return []
    filters: Sequence[Any] = event.filters  # readers of columns have lists in place of tuples
    return [
        topic_filter
        for (topic_filter, _), options in zip(filters, event.options, strict=True)
        if (handling := options & RETAIN_HANDLING) == _NEVER
        or (handling == _IF_NEW and is_subscribed(state, topic_filter))
    ]


def is_subscribed(state: SessionState | None, topic_filter: str) -> bool:
    """Return whether a session has a subscription with this filter."""
    held = state.subscriptions.get(topic_filter) if state is not None else None
    return held is not None and held.active
