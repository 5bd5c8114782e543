"""The spans of subscriptions: they determine the messages that a session had to get."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    ReplayOpened,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import INDEX_BITS, Position
from projections.audit.shared_subscription_steps import SHARE
from projections.state.session import SHARED_PART, SubscriptionState
from projections.state.single_session import SessionFold
from protocol.mqtt.subscription_options import NO_LOCAL
from protocol.mqtt.topic_trie import FilterTrie

SUBSCRIPTION_EVENTS: Final[
    tuple[
        type[SessionOpened],
        type[SessionClosed],
        type[SessionExpired],
        type[SessionSnapshot],
        type[Subscribed],
        type[Unsubscribed],
        type[ReplayOpened],
        type[WillArmed],
        type[WillCancelled],
        type[WillFired],
    ]
] = (
    SessionOpened,
    SessionClosed,
    SessionExpired,
    SessionSnapshot,
    Subscribed,
    Unsubscribed,
    ReplayOpened,
    WillArmed,
    WillCancelled,
    WillFired,
)
"""The events that change subscriptions; all others may be left out."""
_TOPICS: Final = 65_536
"""Maximum number of topics whose filters are cached."""


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
            filters: Sequence[Any] = event.filters  # in a log that is read, lists
            for topic_filter, _ in filters:
                self._grant(state.subscriptions[topic_filter], at)
        elif isinstance(event, Unsubscribed):
            self._close(event.filters, at)
        elif isinstance(event, ReplayOpened):
            self._open.pop(event.filter, None)  # it reads its messages from the log
        elif isinstance(event, SessionSnapshot) and state is not before:
            held = {held.filter: held for held in state.active()}
            self._close([ended for ended in self._open if ended not in held], at)
            for subscription in held.values():
                self._grant(subscription, at)

    def finish(self) -> list[SubscriptionSpan]:
        """Return all spans, with those that continue last."""
        open_spans = [
            SubscriptionSpan(topic_filter, qos, since, None, begins, None, no_local)
            for topic_filter, (qos, since, begins, no_local) in self._open.items()
        ]
        return self._closed + open_spans

    def _grant(self, held: SubscriptionState, at: Position) -> None:
        topic_filter, qos, no_local = held.filter, held.qos, bool(held.options & NO_LOCAL)
        if topic_filter.startswith(SHARE):
            return  # the shared subscription selects the member for each message
        if held.options & SHARED_PART:
            return  # another log assigns its messages
        if held.replay is not None:
            return  # it reads its messages from the log
        before = self._open.get(topic_filter)
        if before is not None:
            if (before[0], before[3]) == (qos, no_local):
                return
            self._close([topic_filter], at)
        self._open[topic_filter] = qos, at, self._turn, no_local

    def _close(self, filters: list[str], at: Position) -> None:
        for topic_filter in filters:
            before = self._open.pop(topic_filter, None)
            if before is not None:
                qos, since, begins, no_local = before
                self._closed.append(
                    SubscriptionSpan(topic_filter, qos, since, at, begins, self._turn, no_local)
                )


class HeldSubscription:
    """A span of a session at QoS 1 or 2, for :class:`SubscribedSessions`."""

    __slots__ = ("begins", "ends", "no_local", "qos", "session", "since")

    def __init__(
        self,
        session: str,
        qos: int,
        since: Position,
        begins: Position,
        ends: Position,
        no_local: bool,
    ) -> None:
        self.session = session
        self.qos = qos
        self.since = since
        self.begins = begins
        self.ends = ends
        self.no_local = no_local


_begins: Final = attrgetter("begins")


class _OfFilter:
    """The spans of one filter, for queries with ascending turns."""

    __slots__ = ("_here", "_next", "_spans", "_turn", "_until")

    def __init__(self) -> None:
        self._spans: list[HeldSubscription] = []
        self._next = 0
        """Number of the first span that begins after the turn."""
        self._here: list[HeldSubscription] = []
        self._turn: Position = -1
        self._until: Position = -1
        """The first end of a span in ``_here``."""

    def add(self, span: HeldSubscription) -> None:
        """Add a span before the first query."""
        self._spans.append(span)

    def at(self, turn: Position) -> list[HeldSubscription]:
        """Return the spans that exist in a turn."""
        if turn == self._turn:
            return self._here
        if self._turn < 0:
            self._spans.sort(key=_begins)
        if turn < self._turn:  # an earlier part of the log than the previous query
            self._next, self._here = 0, []
        self._turn = turn
        spans, number, here = self._spans, self._next, self._here
        if here and self._until < turn:
            here = self._here = [span for span in here if span.ends >= turn]
        elif number == len(spans) or spans[number].begins > turn:
            return here
        while number < len(spans) and spans[number].begins <= turn:
            if spans[number].ends >= turn:
                here.append(spans[number])
            number += 1
        self._next = number
        self._until = min([span.ends for span in here], default=turn)
        return here


class SubscribedSessions:
    """The subscriptions at QoS 1 and 2 of all sessions of a log, to find the receivers of messages.

    Add all of them before the first query, and query in the order of the log: then each is visited
    once.
    """

    __slots__ = ("_filters", "_topics", "_wild")

    def __init__(self) -> None:
        self._filters: dict[str, _OfFilter] = {}
        self._wild: FilterTrie[_OfFilter] = FilterTrie()
        """Those filters with wildcards."""
        self._topics: dict[str, list[_OfFilter]] = {}

    def add(self, topic_filter: str, span: HeldSubscription) -> None:
        """Add the span of a subscription to a filter."""
        spans = self._filters.get(topic_filter)
        if spans is None:
            spans = self._filters[topic_filter] = _OfFilter()
            if "+" in topic_filter or "#" in topic_filter:
                self._wild.insert(topic_filter, None, spans)
        spans.add(span)

    def matching(self, topic: str, turn: Position) -> list[HeldSubscription]:
        """Return the spans that match a topic and exist in a turn, once for each filter."""
        filters = self._topics.get(topic)
        if filters is None:
            filters = self._find(topic)
        if len(filters) == 1:
            return filters[0].at(turn)
        return [span for spans in filters for span in spans.at(turn)]

    def _find(self, topic: str) -> list[_OfFilter]:
        if len(self._topics) >= _TOPICS:
            self._topics.clear()
        filters = list(self._wild.match(topic))
        exact = self._filters.get(topic)
        if exact is not None:
            filters.append(exact)
        self._topics[topic] = filters
        return filters
