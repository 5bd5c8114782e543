"""The queries of the inspector and their answers.

Requests and answers are described in ``docs/nats-api.md``; rows in ``actors.inspection.views``.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from fnmatch import translate
from itertools import chain
from operator import itemgetter
from re import compile as compile_pattern
from typing import Any, NamedTuple

from actors.inspection import receiver_preview, views
from actors.inspection.broker_status import memory_use, status
from actors.inspection.inspector import (
    LOOKED_AT_ONCE,
    Answer,
    Handler,
    Listing,
    NameSimilarity,
    NotReady,
    Refused,
    Work,
    actor_of,
    count_outstanding,
    flag,
    in_steps,
    number,
    optional,
    shown,
    text,
    valid,
)
from actors.inspection.problems import ProblemSearch
from actors.inspection.status_metrics import log_sessions
from actors.inspection.status_sources import StatusSources
from actors.kernel.actor import LoopActor
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import Publication
from eventstore.format.events import LOG_SESSION
from eventstore.format.name_entries import is_token
from projections.state.session import SessionState
from projections.state.session_table import OutstandingTotals
from protocol.mqtt.topics import matches, validate_topic_filter

_LEASE = 10.0
"""Seconds without a query after which counting stops."""
_SHORTEST = 1.0
"""Minimum seconds of a measurement."""
_SAMPLED = 16
"""Maximum topics of a batch that are sampled."""
_KEPT = 4096
_MAX_RETURNED = 50


class BusiestTopics:
    """Counts messages by topic between two queries."""

    def __init__(self, node: NodeContext, lease: float = _LEASE) -> None:
        self._node = node
        self._lease = lease
        self.complete = True
        """Whether all topics are counted; the rarest of too many are left out."""
        self._counts: Counter[bytes] = Counter()
        self._began = 0.0
        self._asked = 0.0
        self._last: list[tuple[str, float]] = []
        self._watching = False

    def take_rates(self) -> list[tuple[str, float]]:
        """Return the busiest topics with their messages per second, and restart counting.

        The first query starts the counting and returns nothing. A query right after another one
        returns the same.
        """
        now = self._node.clock.monotonic()
        if self._begin(now):
            self._last = []
        elif now - self._began >= _SHORTEST:
            span, counts = now - self._began, self._counts
            self._counts, self._began = Counter(), now
            self._last = [
                (topic.decode(), round(count / span, 1))
                for topic, count in counts.most_common(_MAX_RETURNED)
            ]
        return self._last

    def counts(self) -> tuple[Counter[bytes], float]:
        """Return the messages by topic, and for how many seconds they have been counted.

        The first query starts the counting, which goes on until there are no more queries.
        """
        now = self._node.clock.monotonic()
        self._begin(now)
        return self._counts, now - self._began

    def _begin(self, now: float) -> bool:
        """Count from now on; return False if that had begun."""
        self._asked = now
        if self._watching:
            return False
        self._watching = self.complete = True
        self._began = now
        self._node.add_observer(self)
        self._node.timers.after(self._lease, self._look)
        return True

    def published(self, publication: Publication) -> None:
        """Count messages by topic."""
        if publication.session.startswith(LOG_SESSION):
            # Taken from another log, whose broker has counted it.
            return
        topics = publication.batch.topics
        step = -(-len(topics) // _SAMPLED)
        counts = self._counts
        for topic in topics[::step]:
            counts[topic] += step
        if len(counts) > _KEPT:
            self.complete = False
            self._counts = Counter(dict(counts.most_common(_KEPT // 2)))

    def _look(self) -> None:
        remaining = self._asked + self._lease - self._node.clock.monotonic()
        if remaining > 0:
            self._node.timers.after(remaining, self._look)
        else:
            self._node.remove_observer(self)
            self._watching = False
            self._counts = Counter()


_MAX_TOP = 500
_LONGEST_PATTERN, _MAX_STARS = 256, 16
"""Limits of a pattern, whose cost grows with both."""
_MAX_PART = 1000
_PART = 100
_LARGEST_SIZE = 1 << 28
"""Maximum bytes of a PUBLISH packet."""
_TOTALS_LIFETIME = 5.0
"""Maximum age in seconds of the totals over all sessions."""
_TOPICS_LEASE = 90.0
"""Seconds for which messages are counted by topic after a query."""
_EPOCH = 1.0
"""Minimum seconds over which the recent work of actors is measured."""

_ACTOR_KEYS: dict[str, Callable[[LoopActor], float]] = {
    "busy": lambda actor: actor.busy,
    "recent": lambda actor: actor.recent[0],
    "handled": lambda actor: actor.handled,
    "mailbox": lambda actor: actor.mailbox_depth,
    "high_water": lambda actor: actor.high_water,
    "last_active": lambda actor: actor.last_run,
}
_SESSION_KEYS: dict[str, Callable[[SessionState], float]] = {
    "queued": lambda state: state.queued,
    "queued_bytes": lambda state: state.queued_bytes,
    "in_flight": lambda state: len(state.inflight) + len(state.releasing),
    "subscriptions": lambda state: len(state.subscriptions),
}


class Top(NamedTuple):
    """A request for the highest items."""

    by: str
    most: int


class Queries:
    """Answers queries about one broker."""

    def __init__(self, sources: StatusSources, busiest: BusiestTopics) -> None:
        self._node = sources.node
        self._sources = sources
        self._busiest = busiest
        self._counted_topics = BusiestTopics(sources.node, _TOPICS_LEASE)
        self._totals = OutstandingTotals()
        self._counted = -_TOTALS_LIFETIME
        self._counted_ms = 0

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each endpoint."""
        return {
            "status": self.status,
            "actors": self.actors,
            "actor": self.actor,
            "sessions": self.sessions,
            "session": self.session,
            "retained": self.retained,
            "retained.get": self.retained_message,
            "subscriptions": self.subscriptions,
            "topics": self.topics,
            "problems": self.problems,
        }

    # The broker as a whole.

    def status(self, request: Mapping[str, Any]) -> Work:
        """Counters and gauges; with ``topics`` also the busiest topics."""
        topics = self._busiest.take_rates() if flag(request, "topics") else None
        yield from self._count()
        yield self._sources.storage.refresh()
        totals = self._totals
        answer = {
            **status(self._sources),
            "memory": memory_use(self._sources, totals),
            "census": {
                "at_ms": self._counted_ms,
                "in_flight": totals.inflight,
                "releasing": totals.releasing,
                "inbound": totals.inbound,
                "queued": totals.queued,
                "queued_bytes": totals.queued_bytes,
            },
        }
        return answer if topics is None else {**answer, "topics": topics}

    def _count(self) -> Work:
        """Update the totals over all sessions, unless they are recent."""
        node, now = self._node, self._node.clock.monotonic()
        if now - self._counted >= _TOTALS_LIFETIME:
            self._totals = yield from count_outstanding(node.state.sessions)
            self._counted, self._counted_ms = now, node.clock.time_ms()
        return {}

    # Actors.

    def actors(self, request: Mapping[str, Any]) -> Work | Listing:
        """Actors, oldest first, or those with the highest value of a column."""
        node = self._node
        is_wanted = _wanted_actors(request, node)
        top = _top(request, _ACTOR_KEYS)
        if top is None:
            return Listing(
                node.kernel,
                lambda actor: views.actor_row(actor, node) if is_wanted(actor) else None,
                total=len(node.kernel),
            )
        return self._top_actors(is_wanted, top)

    def _top_actors(self, is_wanted: Callable[[LoopActor], bool], top: Top) -> Work:
        node, kernel = self._node, self._node.kernel
        key = _ACTOR_KEYS[top.by]
        figures = ((key(actor), actor) if is_wanted(actor) else None for actor in kernel)
        highest = yield from _highest(figures, top.most)
        rows = []
        for actor, pause in in_steps(highest):
            if not actor.stopped:
                rows.append(views.actor_row(actor, node))
            if pause:
                yield None
        if kernel.clock() - kernel.epoch_began >= _EPOCH:
            kernel.begin_epoch()
        return {"rows": rows, "total": len(kernel), "more": False, "cursor": None}

    def actor(self, request: Mapping[str, Any]) -> Answer:
        """One actor in detail."""
        node = self._node
        actor = actor_of(text(request, "id"), node)
        row = views.actor_row(actor, node)
        detail: dict[str, Any] = {}
        if isinstance(actor, Session):
            detail = self._session(row["client"], request)
        elif row["type"] == "connection":
            detail = views.connection_view(actor, self._node)  # type: ignore[arg-type]  # by its type
        elif row["type"] == "subscription":
            detail = views.subscription_view(actor, node)  # type: ignore[arg-type]  # as above
        return {"actor": row, "detail": detail, "position": node.journal.last}

    # Sessions.

    def sessions(self, request: Mapping[str, Any]) -> Work | Listing:
        """Sessions in no order, or those with the highest value of a column.

        With ``without_logs`` the sessions that represent other logs are left out.
        """
        node = self._node
        table = node.state.sessions
        state_if_wanted = _wanted_sessions(request, node)
        total = len(table) - (log_sessions(node) if flag(request, "without_logs") else 0)
        top = _top(request, _SESSION_KEYS)

        def row(name: str) -> dict[str, Any] | None:
            state = state_if_wanted(name)
            return None if state is None else views.session_row(name, state, node)

        names = chain.from_iterable(table.parts())
        if top is None:
            return Listing(names, row, total=total)
        key = _SESSION_KEYS[top.by]

        def figure(name: str) -> tuple[float, str] | None:
            state = state_if_wanted(name)
            return None if state is None else (key(state), name)

        def highest() -> Work:
            chosen = yield from _highest(map(figure, names), top.most, every=1)
            return Listing(chosen, row, total=total)

        return highest()

    def session(self, request: Mapping[str, Any]) -> Answer | Work:
        """One session in full; raises Refused with a similar name if there is none."""
        name = text(request, "client")
        if name not in self._node.state.sessions:
            return self._no_session(name)
        return self._session(name, request)

    def _no_session(self, name: str) -> Work:
        names = self._node.names
        if names is not None and not is_token(name) and names.client(name) != name:
            # The same for a client that is unknown: a viewer does not learn whom the broker knows.
            raise Refused(
                f"no session {shown(name)}; such a client has a token instead, which "
                "'foldmq erase --client ID --dry-run' shows"
            )
        likeness, best, similar = NameSimilarity(name), 0.0, ""
        sessions = chain.from_iterable(self._node.state.sessions.parts())
        for other, pause in in_steps(sessions):
            rate = 0.0 if other.startswith(LOG_SESSION) else likeness.of(other)
            if rate > best:
                best, similar = rate, other
            if pause:
                yield None
        hint = f"; did you mean {shown(similar)}?" if similar else ""
        raise Refused(self._unless_lost(f"no session {shown(name)}") + hint)

    def _unless_lost(self, absence: str) -> str:
        """Return a message about something absent, and whether it may have been lost."""
        unsure = self._node.state.unsure_state()
        return absence if unsure is None else f"{absence}; {unsure}"

    def _session(self, name: str, request: Mapping[str, Any]) -> Answer:
        state = self._node.state.sessions.peek(name)
        if state is None:
            raise Refused(self._unless_lost(f"no session {shown(name)}"))
        offset = number(request, "offset", 0, 1 << 31)
        most = number(request, "most", _PART, _MAX_PART)
        return views.session_answer(name, state, self._node, offset, most)

    # Messages.

    def retained(self, request: Mapping[str, Any]) -> Listing:
        """Retained messages on topics that match a filter; or only those without permission."""
        self._check_retained()
        index = self._node.state.retained
        denied_only = flag(request, "not_permitted")
        topic_filter = "#"
        if request.get("filter") not in (None, ""):
            topic_filter = valid(request, "filter", validate_topic_filter)
        topics: Iterable[str] = chain.from_iterable(index.parts())
        if topic_filter != "#" and not {"#", "+"} & set(topic_filter.split("/")):
            topics = [topic_filter]

        def shown_row(topic: str) -> dict[str, Any] | None:
            message = index.current(topic)
            if message is None or not matches(topic_filter, topic):
                return None
            row = views.retained_row(message, self._node)
            return None if denied_only and row["permitted"] is not False else row

        return Listing(topics, shown_row, total=len(index), bytes=index.size)

    def retained_message(self, request: Mapping[str, Any]) -> Answer:
        """Return the retained message of a topic."""
        self._check_retained()
        topic = text(request, "topic")
        message = self._node.state.retained.current(topic)
        if message is None:
            raise Refused(self._unless_lost(f"no retained message on {shown(topic)}"))
        return views.retained_answer(message, self._node)

    def _check_retained(self) -> None:
        """Raise NotReady while retained messages of other logs may be missing."""
        exchange = self._node.exchange
        if exchange is not None and exchange.catching_up:
            raise NotReady("it has just started, and does not have all retained messages yet")

    def subscriptions(self, request: Mapping[str, Any]) -> Work:
        """Preview a message on a topic: its outcome for each matching subscription."""
        node = self._node
        topic = valid(request, "topic")
        size = number(request, "size", 0, _LARGEST_SIZE) if "size" in request else None
        message = receiver_preview.Previewed(topic, number(request, "qos", 1, 2), size)
        matching: dict[str, list[receiver_preview.Match]] = {}
        for subscriber, pause in in_steps(node.router.indexed(topic)):
            if isinstance(subscriber, str):
                if subscriber not in matching:
                    matching[subscriber] = receiver_preview.matches_of_frozen(
                        subscriber, topic, node
                    )
                    yield None  # its state was decoded
            elif not subscriber.ended:
                matching.setdefault(subscriber.session, []).append(
                    receiver_preview.match_of(subscriber, topic)
                )
            if pause:
                yield None

        def rows() -> Iterable[dict[str, Any]]:
            for name, subscriptions in matching.items():
                yield from receiver_preview.receiver_rows(name, subscriptions, message, node)

        kept = node.state.retained.current(topic)
        retained = None if kept is None else views.retained_row(kept, node)
        about = {"retained": retained, "topic": topic, "published_qos": message.qos}
        return Listing(rows(), lambda row: row, **about)

    def topics(self, request: Mapping[str, Any]) -> Listing:
        """Topics of messages since the first such query, the busiest first.

        With ``unheard`` only those that no subscription matches now.
        """
        node, unheard_only = self._node, flag(request, "unheard")
        counts, span = self._counted_topics.counts()

        def row(counted: tuple[bytes, int]) -> dict[str, Any] | None:
            topic = counted[0].decode()
            subscribers = node.router.indexed(topic)
            heard = node.router.observes(topic) or any(
                isinstance(subscriber, str) or not subscriber.ended for subscriber in subscribers
            )
            if unheard_only and heard:
                return None
            retained = node.state.retained.current(topic) is not None
            return {"topic": topic, "count": counted[1], "heard": heard, "retained": retained}

        about = {"seconds": span, "complete": self._counted_topics.complete}
        return Listing(counts.most_common(), row, total=len(counts), **about)

    def problems(self, request: Mapping[str, Any]) -> Work:
        """Return the current problems of all clients, or of one ``client``."""
        search = ProblemSearch(self._node, optional(request, "client"))
        yield from search.run()
        yield self._sources.storage.refresh()
        options = self._node.options
        return {
            **search.answer(),
            "keep_s": options.keep,
            "keep_bytes": options.keep_bytes,
            "keep_until_archived": options.keep_until_archived,
        }


def _highest(
    figures: Iterable[tuple[float, Any] | None], most: int, every: int = LOOKED_AT_ONCE
) -> Generator[None, None, list[Any]]:
    """Return the items with the highest figures, the highest first; yields after ``every``."""
    heap: list[tuple[float, int, Any]] = []
    for serial, (candidate, pause) in enumerate(in_steps(figures, every)):
        if candidate is not None:
            entry = (candidate[0], -serial, candidate[1])
            if len(heap) < most:
                heapq.heappush(heap, entry)
            elif heap and entry > heap[0]:
                heapq.heapreplace(heap, entry)
        if pause:
            yield None
    heap.sort(reverse=True, key=itemgetter(0, 1))
    return [item for _, _, item in heap]


# ------------------------------------------------------------------------------- requests


def _wanted_actors(request: Mapping[str, Any], node: NodeContext) -> Callable[[LoopActor], bool]:
    kind, state, client = (optional(request, field) for field in ("type", "state", "client"))
    matches = _glob(request)

    def wanted(actor: LoopActor) -> bool:
        return (
            (kind is None or views.type_of(actor) == kind)
            and (client is None or views.client_of(actor) == client)
            and (matches is None or matches(actor.actor_urn) or matches(views.name_of(actor, node)))
            and (state is None or views.state_of(actor, node) == state)
        )

    return wanted


def _wanted_sessions(
    request: Mapping[str, Any], node: NodeContext
) -> Callable[[str], SessionState | None]:
    """Return a function that returns the state of a matching session, None for others."""
    table = node.state.sessions
    matches = _glob(request)
    connected = request.get("connected")
    if connected not in (None, True, False):
        raise Refused("connected must be true or false")
    offline = request.get("offline_s")
    if offline is not None and (isinstance(offline, bool) or not isinstance(offline, int | float)):
        raise Refused("offline_s must be a number of seconds")
    before = None if offline is None else node.clock.steady_ms() - offline * 1000
    without_logs = flag(request, "without_logs")

    def wanted(name: str) -> SessionState | None:
        if matches is not None and not matches(name):
            return None
        if without_logs and name.startswith(LOG_SESSION):
            return None
        state = table.peek(name)
        if state is None or (connected is not None and state.connected != connected):
            return None
        if before is not None and (state.connected or state.closed_ms > before):
            return None
        return state

    return wanted


def _top(request: Mapping[str, Any], keys: Mapping[str, Any]) -> Top | None:
    top = request.get("top")
    if top is None:
        return None
    if not isinstance(top, dict) or not isinstance(top.get("by"), str) or top["by"] not in keys:
        raise Refused(f"top.by must be one of {', '.join(keys)}")
    return Top(top["by"], number(top, "count", 20, _MAX_TOP, "top.count"))


def _glob(request: Mapping[str, Any]) -> Callable[[str], bool] | None:
    pattern = optional(request, "match")
    if pattern is None:
        return None
    if len(pattern) > _LONGEST_PATTERN or pattern.count("*") > _MAX_STARS:
        raise Refused(
            f"match must have at most {_LONGEST_PATTERN} characters and {_MAX_STARS} stars"
        )
    match = compile_pattern(translate(pattern)).match
    return lambda name: match(name) is not None
