"""Checks that subscription options are obeyed (MQTT 5), and what a turn subscribes.

The options are No Local and Retain Handling. A subscription counts for the whole of each turn in
which it existed: a message may or may not have been sent before the broker processes the next
packet of the same turn [MQTT-3.10.4].

``session_audit`` calls them; ``subscription_spans`` passes the options of a subscription to the
check of the messages that a session must get.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from eventstore.format.events import MessagePublished, Subscribed, Unsubscribed
from eventstore.format.positions import Position, format_position
from projections.audit.rule_table import UNEXPECTED, Rule, Violation
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_HANDLING
from protocol.mqtt.topics import matches

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
        violations: list[Violation] = []
        if changed or not self._topics:
            return violations
        for number, ref in enumerate(refs):
            topic = self._topics.get(ref)
            if topic is not None and _matches_no_local_only(state, topic):
                violations.append(_own(ref, at + number))
        return violations

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


class TurnSubscriptions:
    """Follows the subscriptions of one session through a turn."""

    __slots__ = ("_grants", "_left", "_replays", "_withheld")

    def __init__(self) -> None:
        self._grants: dict[str, list[int]] = {}
        """Filters that were subscribed to -> each granted QoS."""
        self._left: set[str] = set()
        """Filters that were unsubscribed from."""
        self._withheld: set[str] = set()
        """Filters whose Retain Handling excludes retained messages (MQTT 5)."""
        self._replays: Counter[tuple[str, Position]] = Counter()
        """(filter, message) of the retained messages that were sent."""

    @property
    def granted(self) -> bool:
        """Whether filters were subscribed to for which retained messages may be sent."""
        return bool(self._grants)

    def subscribed(self, filters: Mapping[str, int], withheld: Iterable[str] = ()) -> None:
        """Record filters and the QoS granted for each.

        For the ``withheld`` ones retained messages may not be sent.
        """
        for topic_filter, qos in filters.items():
            self._grants.setdefault(topic_filter, []).append(qos)
        self._withheld.update(withheld)

    def granted_once(self, topic_filter: str) -> bool:
        """Return whether a filter was subscribed to exactly once."""
        return len(self._grants.get(topic_filter, ())) == 1

    def withheld(self, topic_filter: str) -> bool:
        """Return whether no retained messages may be sent for a filter."""
        return topic_filter in self._withheld

    def unsubscribed(self, event: Unsubscribed) -> None:
        """Record filters that are no longer subscribed to."""
        self._left.update(event.filters)

    @property
    def changed(self) -> bool:
        """Whether filters were subscribed to or unsubscribed from."""
        return bool(self._grants or self._left)

    def left(self, topic_filter: str) -> bool:
        """Return whether a filter was unsubscribed from."""
        return topic_filter in self._left

    def replayed(
        self, topic_filter: str | None, refs: list[Position], qos: int, at: Position
    ) -> list[Violation]:
        """Record retained messages that are sent; return violations.

        Each is sent once for each subscription to its filter. None as the filter: the messages are
        queued, possibly for another filter, after messages that they must not overtake.
        """
        if topic_filter is None:
            grants = [
                granted
                for name, levels in self._grants.items()
                if name not in self._withheld
                for granted in levels
            ]
        else:
            grants = self._grants.get(topic_filter, [])
        withheld = self._withheld if topic_filter is None else self._withheld & {topic_filter}
        if withheld and (topic_filter is not None or not grants):
            what = "a retained message was sent although the filter's Retain Handling forbids it"
            return [Violation(Rule.RETAIN_HANDLING, at, what)]
        if not grants:
            what = "a retained message was sent for a filter that was not subscribed to then"
            return [Violation(Rule.NO_SUBSCRIPTION, at, what)]
        violations: list[Violation] = []
        if qos > max(grants):
            what = f"a retained message was sent at QoS {qos}, but QoS {max(grants)} was granted"
            violations.append(Violation(Rule.QOS, at, what))
        for number, ref in enumerate(refs):
            key = topic_filter or "", ref
            self._replays[key] += 1
            if self._replays[key] > len(grants):
                what = f"retained message {format_position(ref)} was sent more than once"
                violations.append(Violation(UNEXPECTED, at + number, what, ref))
        return violations

    def clear(self) -> None:
        """Begin a new turn."""
        if self._grants or self._left:
            self._grants.clear()
            self._left.clear()
            self._withheld.clear()
            self._replays.clear()
