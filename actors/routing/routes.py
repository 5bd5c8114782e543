"""Routes: the receivers of topics, kept by raw topic.

A *route* is the set of subscribers that get a message, one for each session. Topics with the same
subscribers share a route, so that the messages of one read can be grouped by route: messages in a
group stay in order and are prepared once.

Routes are looked up by raw topic in a dict. When a subscription without wildcards changes, the
route of that topic is dropped; when one with wildcards changes, all routes are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.routing.subscriber import Subscriber, is_shared
from actors.routing.topic_match import Receivers

if TYPE_CHECKING:
    from actors.routing.router import Router

_CACHED_TOPICS = 65_536
_CACHED_BYTES = 16 * 1024 * 1024
_MATCHED_AT_ONCE, _MATCHING = 256, 0.001
"""Maximum number of topics matched in one turn for one client, and seconds spent on them."""
_LARGE = 4096
"""Receivers of a route above which it is not hashed."""
_COMPARED = 8
"""Maximum number of routes with many receivers that the receivers of a topic are compared with."""
_STALE = 1024
"""Maximum number of receiver sets that are kept although no known topic has them."""
_UNBOUNDED = 1 << 62


class Route:
    """The subscribers of a topic, one for each session. Routes are compared by identity."""

    __slots__ = (
        "denied",
        "frozen",
        "frozen_qos0",
        "no_local",
        "observed",
        "own",
        "plain",
        "plain_qos0",
        "recorded",
        "targets",
    )

    def __init__(
        self,
        targets: tuple[Subscriber, ...],
        denied: tuple[Subscriber, ...] = (),
        own: tuple[Subscriber, ...] = (),
        frozen: tuple[str, ...] = (),
        *,
        no_local: bool = False,
        observed: bool = False,
        recorded: bool = False,
        refused: bool = False,
    ) -> None:
        self.targets = targets
        self.denied = denied
        """Subscribers that may not read the messages."""
        self.no_local = no_local
        """Whether some targets have the option No Local: they do not get their own publications."""
        self.observed = observed
        """Whether a ``TopicObserver`` is notified of the messages."""
        self.recorded = recorded
        """Whether messages at QoS 0 are recorded, too."""
        self.frozen = frozen
        """Frozen sessions with matching subscriptions: they are activated for messages at QoS 1
        and 2, and the topic is then looked up again."""
        self.frozen_qos0 = tuple(filter(is_shared, frozen)) if frozen else frozen
        """Those that also get messages at QoS 0: a shared subscription may have members."""
        plain = not (denied or no_local or observed or refused)
        self.plain_qos0 = plain and not (recorded or self.frozen_qos0)
        """Whether clients may publish to the topics at QoS 0, all targets get the messages, and no
        observer is notified of them, nor are they recorded."""
        self.plain = plain and not frozen
        """The same for QoS 1 and 2, which are always recorded."""
        self.own = {subscriber.session: subscriber for subscriber in own}
        """Session -> the subscription without No Local through which it gets its own publications
        although its target has the option."""

    def to_activate(self, qos: int) -> tuple[str, ...]:
        """Return the frozen sessions that get messages at a QoS."""
        return self.frozen if qos else self.frozen_qos0


NOWHERE = Route(())
REFUSED = Route((), refused=True)
"""The route of topics to which no client may publish."""
NO_RECEIVERS: Receivers = ((), (), (), False, ())


class EnoughMatched(Exception):  # noqa: N818 - a signal, not an error
    """No further topic is matched in this turn."""


class Routes(dict[bytes, Route]):
    """Routes by raw topic; a miss is looked up in the index."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self._router = router
        self._interned: dict[tuple[Receivers, bool, bool], Route] = {}
        self._large: dict[tuple[object, ...], deque[Route]] = {}
        """Routes with many receivers, by the number of receivers and a sample of them."""
        self._size = 0
        self._forgot = False
        """Whether all routes were dropped since this was set to False."""
        self._left = _UNBOUNDED
        """Topics that may still be matched."""
        self._until = 0.0
        self.matched_at_once = _MATCHED_AT_ONCE
        """Maximum topics that :meth:`look_up` matches."""
        self.any_observed = False
        """Whether some topics are observed; once True, it stays so."""
        self.any_frozen = False
        """Whether some routes have frozen receivers."""

    def look_up(self, topics: Sequence[bytes]) -> list[Route]:
        """Return the routes of the first topics: of all if there are few, otherwise of some.

        The list is empty while the first topic is being matched, which takes several turns if it
        has many receivers.
        """
        self._left = self.matched_at_once
        self._until = self._router.clock() + _MATCHING
        self._forgot = False
        routes: list[Route] = []
        try:
            routes.extend(map(self.__getitem__, topics))
        except EnoughMatched:
            pass
        finally:
            self._left = _UNBOUNDED
        if self._forgot:
            # Dropped for lack of room: the result is still valid, and need not be matched again in
            # this turn.
            self.update(zip(topics, routes, strict=False))
            self._size = sum(map(len, self))
            self.any_frozen = self.any_frozen or any(route.frozen for route in routes)
        return routes

    @property
    def size(self) -> int:
        """Bytes of the names of the cached topics."""
        return self._size

    def of_messages(
        self,
        topics: Sequence[bytes],
        message_routes: list[Route] | None = None,
        *,
        is_recorded: bool,
    ) -> list[Route]:
        """Return the routes of admitted messages.

        ``message_routes``: those looked up before, without those for bridges alone. A recorded
        message on a refused topic is a bridge's report on its connection.
        """
        routes = list(map(self.__getitem__, topics)) if message_routes is None else message_routes
        if not is_recorded or REFUSED not in routes:
            return routes
        return [
            self._of_bridges(raw) if route is REFUSED else route
            for raw, route in zip(topics, routes, strict=False)
        ]

    def _of_bridges(self, topic: bytes) -> Route:
        receivers = self._router.match(topic.decode())
        return self._intern(receivers) if receivers != NO_RECEIVERS else REFUSED

    def knows(self, topic: bytes) -> bool:
        """Return whether the receivers of a topic are known; otherwise look for them.

        That takes several turns if there are many: ask again in the next one.
        """
        return topic in self or bool(self.look_up((topic,)))

    def __missing__(self, raw: bytes) -> Route:
        """Look a topic up in the index."""
        if self._left <= 0:
            raise EnoughMatched
        if len(self) >= _CACHED_TOPICS or self._size >= _CACHED_BYTES:
            self.forget()
        topic = raw.decode()
        until = None if self._left == _UNBOUNDED else self._until
        if self._router.refuses(raw):
            route = REFUSED
        else:
            receivers = self._router.match(topic, until)
            observed, recorded = self._router.observes(topic), self._router.records(topic)
            route = NOWHERE
            if observed or recorded or receivers != NO_RECEIVERS:
                route = self._intern(receivers, observed=observed, recorded=recorded)
                if observed:
                    self.any_observed = True
        self[raw] = route
        if route.frozen:
            self.any_frozen = True
        self._size += len(raw)
        if self._left < _UNBOUNDED:
            self._left = 0 if self._router.clock() >= self._until else self._left - 1
        return route

    def _intern(
        self, receivers: Receivers, *, observed: bool = False, recorded: bool = False
    ) -> Route:
        """Return the route with these receivers: a known one, if there is one."""
        targets, denied, own, no_local, frozen = receivers
        alike: deque[Route] | None = None
        if len(targets) + len(denied) + len(frozen) > _LARGE:
            # Hashing many receivers takes longer than comparing them with known ones.
            counts = len(targets), len(denied), len(frozen)
            key = (*counts, *targets[:1], *targets[-1:], *denied[-1:], *frozen[-1:])
            alike = self._large.setdefault(key, deque(maxlen=_COMPARED))
            for candidate in alike:
                if (
                    candidate.observed == observed
                    and candidate.recorded == recorded
                    and candidate.targets == targets
                    and candidate.frozen == frozen
                    and candidate.denied == denied
                    and tuple(candidate.own.values()) == own
                ):
                    return candidate
        elif (receivers, observed, recorded) in self._interned:
            return self._interned[receivers, observed, recorded]
        route = Route(
            targets,
            denied,
            own,
            frozen,
            no_local=no_local,
            observed=observed,
            recorded=recorded,
        )
        if alike is not None:
            alike.append(route)
        else:
            self._interned[receivers, observed, recorded] = route
        return route

    def changed(self, topic_filter: str) -> None:
        """Drop the routes that a changed subscription matches."""
        if "+" in topic_filter or "#" in topic_filter:
            self.forget()
            return
        raw = topic_filter.encode()
        if self.pop(raw, None) is not None:
            self._size -= len(raw)
            if len(self._interned) + len(self._large) > len(self) + _STALE:
                self.forget()  # receiver sets that no topic has any more

    def forget(self) -> None:
        """Drop all routes: the subscriptions changed, or there are too many."""
        self.clear()
        self._interned.clear()
        self._large.clear()
        self.any_frozen = False
        self._size = 0
        self._forgot = True
