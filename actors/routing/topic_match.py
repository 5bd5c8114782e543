"""Finds the receivers of a topic in steps: one turn may not suffice to evaluate all of them."""

from collections.abc import Iterable
from typing import TypeAlias

from actors.routing.option_semantics import is_no_local, is_preferred
from actors.routing.subscriber import Subscriber
from protocol.mqtt.topics import matches

Receivers: TypeAlias = tuple[
    tuple[Subscriber, ...], tuple[Subscriber, ...], tuple[Subscriber, ...], bool, tuple[str, ...]
]
"""The arguments of a ``Route``: the receivers of a message, the subscribers that may not read it,
the subscriptions through which sessions get their own publications, whether some receivers
have No Local, and the frozen sessions with matching subscriptions."""


class TopicMatch:
    """The evaluation of the subscriptions that match a topic.

    Each session receives through its matching subscription with the highest QoS; among several with
    that QoS, one with Retain As Published. Subscriptions may change between the steps: the router
    reports each change, and only the sessions concerned are evaluated again. So the work of the
    last step depends on the changes since the previous one, not on the number of receivers.
    """

    __slots__ = (
        "_at",
        "_best",
        "_changed",
        "_denied",
        "_found",
        "_frozen",
        "_gone",
        "_held",
        "_no_local",
        "_outdated",
        "_own",
        "large",
        "last",
        "topic",
    )

    def __init__(self, topic: str, entries: list[Subscriber | str], *, large: bool = False) -> None:
        """Begin with the entries of the index: subscriptions, and names of frozen sessions."""
        self.topic = topic
        self.large = large
        """Whether it takes more than one step."""
        self.last = 0.0
        """When the last step was, on the clock of the router."""
        self._found = entries
        self._at = 0
        self._held: dict[str, Subscriber | dict[Subscriber, None]] = {}
        """Session -> its matching subscription, or several, found so far."""
        self._gone: set[Subscriber] = set()
        """Subscriptions that ended since the match began."""
        self._best: dict[str, Subscriber] = {}
        self._denied: dict[str, Subscriber] = {}
        """Sessions that may not read the topic with any of their subscriptions."""
        self._own: dict[str, Subscriber] = {}
        """Session with No Local -> its best subscription without it, if it has one."""
        self._no_local: set[str] = set()
        """Sessions whose best subscription has No Local."""
        self._changed: dict[str, None] = {}
        """Sessions to be evaluated again."""
        self._frozen: dict[str, None] = {}
        """Frozen sessions with matching subscriptions, found so far."""
        self._outdated: set[str] = set()
        """Sessions that were activated or ended since the match began: if one was found as a
        frozen session, that no longer counts."""

    @property
    def done(self) -> bool:
        """Whether all that was found or changed is evaluated."""
        return self._at >= len(self._found) and not self._changed

    def evaluate(self, most: int) -> None:
        """Evaluate up to ``most`` subscriptions, those of changed sessions last."""
        begin = self._at
        for entry in self._found[begin : begin + most]:
            if isinstance(entry, str):
                if entry not in self._outdated:
                    self._frozen[entry] = None
            elif not entry.ended and entry not in self._gone:
                self._add(entry)
            self._at += 1
        if self._at < len(self._found):
            return
        count = 0
        while self._changed and count < most:
            session = next(iter(self._changed))
            del self._changed[session]
            count += 1 + self._evaluate(session)

    def _add(self, subscriber: Subscriber) -> None:
        """Add a subscription; it is evaluated immediately if its session has no other one."""
        session = subscriber.session
        subscribers = self._held.get(session)
        if subscribers is None:
            self._held[session] = subscriber
            if subscriber.acl is not None and not subscriber.acl.may_read(self.topic):
                self._denied[session] = subscriber
            else:
                self._best[session] = subscriber
                if is_no_local(subscriber.options):
                    self._no_local.add(session)
        elif isinstance(subscribers, dict):
            subscribers[subscriber] = None
            self._changed[session] = None
        elif subscribers is not subscriber:
            self._held[session] = {subscribers: None, subscriber: None}
            self._changed[session] = None

    def _evaluate(self, session: str) -> int:
        """Evaluate the subscriptions of a session; return how many there are."""
        subscribers = self._held.get(session)
        several: Iterable[Subscriber] = ()
        if isinstance(subscribers, dict):
            several = subscribers
        elif subscribers is not None:
            several = (subscribers,)
        best: Subscriber | None = None
        plain: Subscriber | None = None
        denied: Subscriber | None = None
        count = 0
        for subscriber in several:
            count += 1
            if subscriber.acl is not None and not subscriber.acl.may_read(self.topic):
                if denied is None or subscriber.qos >= denied.qos:
                    denied = subscriber
                continue
            if best is None or is_preferred(subscriber, best):
                best = subscriber
            if not is_no_local(subscriber.options) and (
                plain is None or is_preferred(subscriber, plain)
            ):
                plain = subscriber
        self._forget(session)
        if best is None:
            if denied is not None:
                self._denied[session] = denied
            return count
        self._best[session] = best
        if is_no_local(best.options):
            self._no_local.add(session)
            if plain is not None:
                self._own[session] = plain
        return count

    def _forget(self, session: str) -> None:
        """Remove a session from the result."""
        self._best.pop(session, None)
        self._denied.pop(session, None)
        self._own.pop(session, None)
        self._no_local.discard(session)

    def changed(self, session: str) -> None:
        """Record that the read permissions of a session changed."""
        if session in self._held:
            self._changed[session] = None

    def began(self, subscriber: Subscriber) -> None:
        """Record that a subscription is new, or has another QoS or other options."""
        if matches(subscriber.filter, self.topic):
            self._outdated.add(subscriber.session)
            self._frozen.pop(subscriber.session, None)
            if self._held.get(subscriber.session) is subscriber:
                self._changed[subscriber.session] = None
            else:
                self._add(subscriber)

    def ended(self, subscriber: Subscriber) -> None:
        """Record that a subscription ended."""
        if not matches(subscriber.filter, self.topic):
            return
        self._gone.add(subscriber)
        session = subscriber.session
        subscribers = self._held.get(session)
        if isinstance(subscribers, dict):
            subscribers.pop(subscriber, None)
            self._changed[session] = None
        elif subscribers is subscriber:
            del self._held[session]
            self._forget(session)

    def left(self, session: str) -> None:
        """Record that a session ended; its subscriptions already show it."""
        self._held.pop(session, None)
        self._forget(session)
        self._changed.pop(session, None)
        self._frozen.pop(session, None)
        self._outdated.add(session)

    def froze(
        self, session: str, subscribers: Iterable[Subscriber], filters: Iterable[str]
    ) -> None:
        """Record that a session became frozen, with its subscriptions and remaining filters."""
        self.left(session)
        self._gone.update(subscribers)
        if any(matches(topic_filter, self.topic) for topic_filter in filters):
            self._frozen[session] = None

    def receivers(self) -> Receivers:
        """Return the receivers; call this once all is evaluated."""
        return (
            tuple(self._best.values()),
            tuple(self._denied.values()),
            tuple(self._own.values()),
            bool(self._no_local),
            tuple(self._frozen),
        )
