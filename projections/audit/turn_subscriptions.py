"""The subscriptions and unsubscriptions of a session in the current turn.

A subscription counts for the whole of each turn in which it existed: a message may or may not have
been sent before the broker processes the next packet of the same turn [MQTT-3.10.4].
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from eventstore.format.events import Unsubscribed
from eventstore.format.positions import Position, format_position
from projections.audit.rule_table import UNEXPECTED, Rule, Violation


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
                one
                for name, some in self._grants.items()
                if name not in self._withheld
                for one in some
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
        found: list[Violation] = []
        if qos > max(grants):
            what = f"a retained message was sent at QoS {qos}, but QoS {max(grants)} was granted"
            found.append(Violation(Rule.QOS, at, what))
        for number, ref in enumerate(refs):
            key = topic_filter or "", ref
            self._replays[key] += 1
            if self._replays[key] > len(grants):
                what = f"retained message {format_position(ref)} was sent more than once"
                found.append(Violation(UNEXPECTED, at + number, what, ref))
        return found

    def clear(self) -> None:
        """Begin a new turn."""
        if self._grants or self._left:
            self._grants.clear()
            self._left.clear()
            self._withheld.clear()
            self._replays.clear()
