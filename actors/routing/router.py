"""The subscription index: from a topic to the subscriptions that match it.

Of the overlapping subscriptions of a session the one with the highest QoS is chosen, so that a
session gets one copy at that QoS [MQTT-3.3.5-1]. ``actors.routing.routes`` keeps the results.

``actors.routing.router`` limits the cost of a match; the filters of an ended session are
removed from the index gradually, and match nothing meanwhile.
"""

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import NoReturn, Protocol

from actors.access.rules import TopicAcl
from actors.limits.bridge_options import REQUESTS
from actors.routing.option_semantics import ROUTED_OPTIONS, is_no_local
from actors.routing.routes import NO_RECEIVERS, EnoughMatched, Routes
from actors.routing.shared_groups import SharedGroups
from actors.routing.subscriber import SessionEnd, Subscriber, is_shared
from actors.routing.subscription_quotas import Patterns, SubscriptionQuota
from actors.routing.topic_match import Receivers, TopicMatch
from eventstore.format.events import LOG_SESSION
from projections.state.session import SHARED_PART, SessionState, SubscriptionState
from protocol.mqtt.shared_filters import split_share
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import is_bridge_state, is_reserved_topic

_REMOVED_AT_ONCE = 64
"""Number of subscriptions of an ended session that are removed from the index in one step."""
_EVALUATED = 1024
_MATCHES, _ABANDONED = 8, 1.0
"""Maximum number of topics with more than ``_EVALUATED`` subscriptions that are matched at a time,
and seconds after which a match that is not continued may be replaced by another one."""
_POSTPONED = 1024
"""Number of waiting topics above which abandoned ones are removed."""


class SubscriptionObserver(Protocol):
    """Notified of each subscription that begins or ends, including those of frozen sessions."""

    def added(self, session: str, topic_filter: str) -> None:
        """Record a new subscription of a session."""

    def removed(self, session: str, topic_filter: str) -> None:
        """Record the end of a subscription."""


class Router:
    """The subscription index of this node.

    For subscriptions of a frozen session, the index has only the name of the session. A look-up
    returns that name; the delivery of a message to the session activates it, which calls
    :meth:`restore`.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.clock: Callable[[], float] = perf_counter
        """A clock in seconds, to measure how long matching takes."""
        self._observer: SubscriptionObserver | None = None
        """Notified of each subscription that begins or ends, including those of frozen sessions;
        for requests from NATS (``$nats/request/...``) only while the session is connected."""
        self._index: FilterTrie[Subscriber | str] = FilterTrie()
        self._subscribers: dict[str, dict[str, Subscriber]] = {}
        self.routes = Routes(self)
        self.patterns = Patterns()
        self.quota = SubscriptionQuota()
        self._gone: deque[Subscriber] = deque()
        """Subscriptions of ended sessions that are still in the index."""
        self.deliveries = 0
        """Deliveries of this turn; reset by the broker."""
        self.on_gone: Callable[[], None] = _nothing
        """Called when :meth:`sweep` has something to do."""
        self._session_ends: dict[str, SessionEnd] = {}
        """The end of each session that is not frozen and had a subscription."""
        self.observes: Callable[[str], bool] = _nowhere
        """Returns whether a ``TopicObserver`` is notified of the messages on a topic."""
        self.records: Callable[[str], bool] = _nowhere
        """Returns whether messages at QoS 0 on a topic are recorded."""
        self.refuses: Callable[[bytes], bool] = _never
        """Returns whether no client may publish to a topic; such topics have no receivers."""
        self.system: set[Subscriber] = set()
        """Subscriptions below ``$SYS`` of sessions that are not frozen."""
        self.groups = SharedGroups()
        """The shared subscriptions; their members are not in the index."""
        self._matches: dict[str, TopicMatch] = {}
        """Topics that are being matched."""
        self._postponed: dict[str, float] = {}
        """Topics with many subscriptions that wait until others are matched, and the time of their
        last request; they are not looked up meanwhile."""
        self.evaluated_at_once = _EVALUATED
        """Matching subscriptions that are evaluated between two readings of the clock."""

    def attach(
        self,
        observer: SubscriptionObserver | None,
        clock: Callable[[], float],
    ) -> None:
        """Serve a broker that has the states from which the index was filled.

        The observer is not notified of existing subscriptions: see :meth:`report`.
        """
        self._observer, self.clock = observer, clock
        self.routes.forget()
        if self._gone:
            self.on_gone()

    def report(self, state: SessionState) -> None:
        """Notify the observer of the subscriptions of a session."""
        if self._observer is not None:
            for subscription in routed(state):
                if not is_shared(subscription.filter) and not subscription.filter.startswith(
                    REQUESTS
                ):
                    self._observer.added(state.session, subscription.filter)

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions."""
        return len(self._index) + self.groups.memberships

    def match(self, topic: str, until: float | None = None) -> Receivers:
        """Return the receivers of a topic.

        ``until`` limits the time, but some progress is always made. Raises EnoughMatched when the
        time is over; the next call continues.
        """
        if is_reserved_topic(topic) and not is_bridge_state(topic):
            return NO_RECEIVERS
        match = self._matches.pop(topic, None)
        if match is None:
            match = self._begin_match(topic, limited=until is not None)
        match.last = self.clock()
        self._matches[topic] = match
        while not match.done:
            match.evaluate(self.evaluated_at_once)
            if until is not None and self.clock() >= until and not match.done:
                match.last = self.clock()
                if not match.large:
                    del self._matches[topic]  # quickly evaluated again
                raise EnoughMatched
        del self._matches[topic]
        return match.receivers()

    def _begin_match(self, topic: str, *, limited: bool) -> TopicMatch:
        """Look a topic up in the index.

        If the time is ``limited`` and the match needs several turns, raises EnoughMatched while too
        many other matches do.
        """
        if limited and topic in self._postponed and not self._may_begin():
            self._postpone(topic)
        matching = self._index.match(topic)
        large = len(matching) > self.evaluated_at_once
        if limited and large and not self._may_begin():
            self._postpone(topic)
        self._postponed.pop(topic, None)
        return TopicMatch(topic, matching, large=large)

    def _postpone(self, topic: str) -> NoReturn:
        now, postponed = self.clock(), self._postponed
        postponed[topic] = now
        if len(postponed) > _POSTPONED:
            oldest = now - _ABANDONED
            self._postponed = {name: at for name, at in postponed.items() if at >= oldest}
        raise EnoughMatched

    def _may_begin(self) -> bool:
        """Return whether a match that takes several turns may begin: their number is limited."""
        return not self.is_matching() or len(self._matches) < _MATCHES

    def is_matching(self) -> bool:
        """Return whether some match that takes several turns is in progress."""
        if self._matches:
            oldest = self.clock() - _ABANDONED
            for topic, match in list(self._matches.items()):
                if match.last < oldest:
                    del self._matches[topic]
        return bool(self._matches)

    def indexed(self, topic: str) -> list[Subscriber | str]:
        """Return what the index has for a topic: subscriptions, and the names of frozen sessions.

        Some subscriptions may have ended. There may be many: process some at a time.
        """
        return self._index.match(topic)

    def match_system(self, topic: str) -> tuple[Subscriber, ...]:
        """Return the active receivers of a message from the broker, each once."""
        matching = self._index.match(topic)
        best = {
            entry.session: entry
            for entry in matching
            if isinstance(entry, Subscriber) and entry.is_receiver(topic)
        }
        return tuple(best.values())

    def set_acl(self, session: str, access: TopicAcl | None) -> None:
        """Set the ACL of a session; None: it may read all topics.

        Offline sessions have no ACL; queued messages are checked when they are sent.
        """
        subscribers = self.subscribers(session)
        if access is None:
            subscribers = [subscriber for subscriber in subscribers if subscriber.acl is not None]
        changed = False
        for subscriber in subscribers:
            changed |= self._set_acl(subscriber, access)
        if changed:
            self.routes.forget()
            for match in self._matches.values():
                match.changed(session)
            self.groups.has_room(session)

    def _set_acl(self, subscriber: Subscriber, access: TopicAcl | None) -> bool:
        before = subscriber.acl
        subscriber.acl, subscriber.may_read = None, True
        if access is not None:
            plain = split_share(subscriber.filter)[1]
            if access.guards(plain):
                subscriber.acl = access
                subscriber.may_read = not is_shared(subscriber.filter) or access.may_subscribe(
                    plain
                )
        return subscriber.acl is not before

    def subscribe(
        self,
        session: str,
        topic_filter: str,
        qos: int,
        access: TopicAcl | None = None,
        options: int = 0,
    ) -> Subscriber:
        """Add a subscription, or replace the one with this filter if QoS or options differ.

        ``access`` is the ACL of the client; None: it may read all topics, or is offline.
        """
        own = self._subscribers.setdefault(session, {})
        subscriber = own.get(topic_filter)
        before = (
            (subscriber.qos, subscriber.options & ROUTED_OPTIONS)
            if subscriber is not None
            else None
        )
        if subscriber is None:
            end = self._session_ends.get(session)
            if end is None:
                end = self._session_ends[session] = SessionEnd()
            subscriber = Subscriber(session, topic_filter, qos, end)
            own[topic_filter] = subscriber
            self.patterns.begun(session, split_share(topic_filter)[1])
            self._insert(topic_filter, session, subscriber)
            if is_reserved_topic(topic_filter):
                self.system.add(subscriber)
        elif before != (qos, options & ROUTED_OPTIONS) and not subscriber.shared:
            subscriber = own[topic_filter] = self._replace(subscriber)
        subscriber.qos = qos
        subscriber.options = options
        guarded = self._set_acl(subscriber, access)
        if not subscriber.shared:
            for match in self._matches.values():
                match.began(subscriber)
        if before is not None and is_no_local(before[1]) != is_no_local(options):
            self.routes.forget()  # a route knows whether its targets have No Local
        elif guarded or before != (qos, options & ROUTED_OPTIONS):
            self.routes.changed(topic_filter)
        return subscriber

    def _replace(self, before: Subscriber) -> Subscriber:
        """Put another object into the index: messages that are to be delivered keep ``before``."""
        subscriber = Subscriber(before.session, before.filter, before.qos, before.session_end)
        subscriber.actor, subscriber.acl, subscriber.may_read = (
            before.actor,
            before.acl,
            before.may_read,
        )
        self._index.insert(subscriber.filter, subscriber.session, subscriber)
        if before in self.system:
            self.system.discard(before)
            self.system.add(subscriber)
        for match in self._matches.values():
            match.ended(before)
        return subscriber

    def unsubscribe(self, session: str, topic_filter: str) -> Subscriber | None:
        """Remove and return a subscription."""
        own = self._subscribers.get(session)
        subscriber = own.pop(topic_filter, None) if own else None
        if subscriber is not None:
            self._remove(subscriber)
            self.system.discard(subscriber)
            self.patterns.ended(session, split_share(topic_filter)[1])
            self.quota.ended(session)
            self.routes.changed(topic_filter)
            for match in self._matches.values():
                match.ended(subscriber)
            if not own:
                del self._subscribers[session]
        return subscriber

    def _remove(self, subscriber: Subscriber) -> None:
        """Remove a subscription from the index, unless another one has replaced it."""
        session, topic_filter = subscriber.session, subscriber.filter
        if is_shared(topic_filter):
            self.groups.left(topic_filter, session)
            return
        if self._index.get(topic_filter, session) is not subscriber:
            return
        self._index.remove(topic_filter, session)
        self.patterns.removed(topic_filter)
        if self._observer is not None:
            self._observer.removed(session, topic_filter)

    def has(self, session: str, topic_filter: str) -> bool:
        """Return whether a session that is not frozen has a subscription with this filter."""
        return topic_filter in self._subscribers.get(session, ())

    def subscribers(self, session: str) -> list[Subscriber]:
        """Return the subscriptions of a session."""
        return list(self._subscribers.get(session, {}).values())

    def remove_session(self, session: str) -> list[Subscriber]:
        """Remove and return all subscriptions of an ended session, which no longer match topics.

        Many are removed from the index gradually (:meth:`sweep`).
        """
        subscribers = [*self._subscribers.pop(session, {}).values()]
        self.patterns.forget(session)
        self.quota.forget(session)
        end = self._session_ends.pop(session, None)
        if end is not None:
            end.happened = True
        for match in self._matches.values():
            match.left(session)
        for subscriber in subscribers:
            self.system.discard(subscriber)
        indexed = []
        for subscriber in subscribers:
            if subscriber.shared:
                self.groups.left(subscriber.filter, session)
            else:
                indexed.append(subscriber)
        if len(indexed) > _REMOVED_AT_ONCE:
            self.routes.forget()
            self._gone += indexed
            self.on_gone()
        else:
            for subscriber in indexed:
                self._remove(subscriber)
                self.routes.changed(subscriber.filter)
        return subscribers

    def sweep(self) -> bool:
        """Remove some subscriptions of ended sessions; return whether some are left."""
        for _ in range(min(_REMOVED_AT_ONCE, len(self._gone))):
            self._remove(self._gone.popleft())
        return bool(self._gone)

    def freeze(self, session: str, filters: Iterable[str]) -> None:
        """Keep only the filters of a session whose state is frozen."""
        own, filters = self._subscribers.pop(session, {}).values(), [*filters]
        self.system.difference_update(own)
        self.patterns.forget(session)
        self._session_ends.pop(session, None)
        for topic_filter in filters:
            self._insert(topic_filter, session, session)
        for match in self._matches.values():
            match.froze(session, own, filters)
        self.routes.forget()

    def remember(self, subscriber: Subscriber) -> None:
        """Add a subscription that was removed while messages were pending for it.

        It must end with its session, which was frozen meanwhile.
        """
        end = self._session_ends.setdefault(subscriber.session, subscriber.session_end)
        subscriber.session_end = end

    def _insert(self, topic_filter: str, session: str, value: Subscriber | str) -> None:
        if is_shared(topic_filter):
            self.groups.joined(topic_filter, session)
            return
        before = len(self._index)
        self._index.insert(topic_filter, session, value)
        if len(self._index) > before:
            self.patterns.added(topic_filter)
            if self._observer is not None and not topic_filter.startswith(REQUESTS):
                self._observer.added(session, topic_filter)

    def started(self, subscriber: Subscriber) -> None:
        """Record that a subscription has a client, which now answers requests."""
        if is_shared(subscriber.filter):
            self.groups.connected(subscriber)
        if self._observer is not None and subscriber.filter.startswith(REQUESTS):
            self._observer.added(subscriber.session, subscriber.filter)

    def stopped(self, subscriber: Subscriber) -> None:
        """Record that a subscription has no client, so that NATS rejects requests for it."""
        if subscriber.shared:
            self.groups.disconnected(subscriber)
        if self._observer is not None and subscriber.filter.startswith(REQUESTS):
            self._observer.removed(subscriber.session, subscriber.filter)

    def active_sessions(self) -> list[str]:
        """Return the active sessions with subscriptions."""
        return list(self._subscribers)

    def restore(self, state: SessionState) -> None:
        """Update the index from a session's state, after recovery or a rebuild."""
        subscriptions = {subscription.filter: subscription for subscription in routed(state)}
        for subscriber in self.subscribers(state.session):
            if subscriber.filter not in subscriptions:
                self.unsubscribe(state.session, subscriber.filter)
        for topic_filter, subscription in subscriptions.items():
            self.subscribe(
                state.session, topic_filter, subscription.qos, options=subscription.options
            )


def routed(state: SessionState) -> list[SubscriptionState]:
    """Return the subscriptions of a session that belong in the index.

    Those that read the log, and those that only record where the members of a shared subscription
    are, do not.
    """
    subscriptions = state.active()
    if state.replays:
        subscriptions = [held for held in subscriptions if held.replay is None]
    if not is_shared(state.session):
        return subscriptions
    return [
        subscription
        for subscription in subscriptions
        if not (subscription.options & SHARED_PART or subscription.filter.startswith(LOG_SESSION))
    ]


def _never(_topic: bytes) -> bool:
    return False


def _nowhere(_topic: str) -> bool:
    return False


def _nothing() -> None:
    """Do nothing."""
