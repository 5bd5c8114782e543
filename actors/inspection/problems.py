"""The current problems of clients: the figures of ``foldmq doctor``, without its sentences.

A problem is an object with its ``code``, the client or shared subscription, and the figures that
prove it. The search covers all sessions, and all clients with a known history. Frozen sessions
without waiting messages have no problems and are not decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from math import inf
from typing import Any, Final

from actors.connection.connection import Connection
from actors.inspection.inspector import Answer, in_steps
from actors.routing.subscriber import is_shared
from actors.session.decisions import delivery_preview
from actors.session.node_context import NodeContext
from actors.session.overdue import ANSWER_SECONDS, Overdue, earlier, unfinished
from actors.session.session import Session
from eventstore.display import escaped
from projections.state.client_history import ClientHistory
from projections.state.session import ReplayState, SessionState

RECENT_MS: Final = 600_000
"""Milliseconds for which drops, denials and takeovers count as current."""
_FLAPPING_MS: Final = 60_000
_FLAPPING: Final = 4
"""Number of connects within ``_FLAPPING_MS`` from which a client is flapping."""
_DUPLICATE: Final = 3
"""Number of takeovers within ``RECENT_MS`` from which two clients may share an identifier."""
_LASTS_MS: Final = 60_000
"""Milliseconds after the last denial for which a client is denied what it asks for."""
_CALM_MS: Final = 10_000
_PAUSES: Final = 3
_LAST_PAUSES: Final = 3
"""A series of takeovers or failures lasts for ``_CALM_MS`` after the last one, or for ``_PAUSES``
times the longest of its last pauses."""
_UNACKNOWLEDGED_MS: Final = 10_000
_STUCK_MS: Final = 30_000
_FILLING: Final = 0.8
"""Fraction of a queue's limit from which the queue counts as filling."""
_SLOW: Final = 0.25
"""Fraction of ``max_outbound_bytes`` from which a client counts as a slow reader."""
_REFUSED_MS: Final = 3_600_000
"""Milliseconds for which a refusal counts as current."""
_LONGEST_FIELD: Final = 200
_MAX: Final = 500
"""Maximum problems in one answer."""

_WHOSE: Final = ("client", "user", "address", "listener", "error", "why")
"""The fields of a refusal that are shown."""

_STOPPED: Final = frozenset({"damaged", "too_many_topics", "withheld"})
"""States of a replay that does not go on by itself."""
_STILL_MS: Final = 60_000
"""Milliseconds without a message after which a connected replay counts as standing still."""
_MQTT_5: Final = 5
"""Protocol level from which nothing is sent again on the same connection [MQTT-4.4.0-1]."""

Problem = dict[str, Any]


class ProblemSearch:
    """Searches for problems of all clients, or of one."""

    def __init__(self, node: NodeContext, client: str | None = None) -> None:
        self._node = node
        self._client = client
        self._now = node.clock.steady_ms()
        self._shown = node.clock.time_ms()
        self._found: list[Problem] = []
        self._total = 0

    def run(self) -> Iterator[None]:
        """Check one client after the other; yields where it can be interrupted."""
        node, client = self._node, self._client
        sessions = node.state.sessions
        names = chain.from_iterable(sessions.parts_with_messages()) if client is None else [client]
        for name, pause in in_steps(names):
            frozen = name not in sessions.live
            state = sessions.peek(name)
            if state is not None:
                self._take(name, self._of_state(name, state))
            if pause or frozen:  # reading a frozen session takes longer
                yield None
        histories = node.clients.items()
        if client is not None:
            histories = [(client, node.clients.find(client))]
        for (name, history), pause in in_steps(histories):
            self._take(name, self._of_history(name, history))
            if pause:
                yield None

    def answer(self) -> Answer:
        """Return the problems found."""
        return {
            "problems": self._found,
            "total": self._total,
            "at_ms": self._shown,
            "refusals": [*self._refusals()],
        }

    def _refusals(self) -> Iterator[Problem]:
        """Yield the latest refusal for each reason, with the number of refusals.

        ``recent`` is their number in the last hour, at most ``MAX_TIMES``.
        """
        node, refused = self._node, self._node.limits.refused
        now = node.clock.monotonic()
        for reason, latest in refused.latest.items():
            whose, ages = latest.whose, [round((now - at) * 1000) for at in latest.times]
            client = whose.get("client")
            if ages[-1] > _REFUSED_MS or self._client not in (None, client):
                continue
            if node.options.pseudonym_key and client not in node.state.sessions:
                whose = {"address": whose.get("address")}
            yield {
                "reason": reason,
                "count": refused.counts[reason],
                "recent": sum(age <= _REFUSED_MS for age in ages),
                "age_ms": ages[-1],
                "session": client in node.state.sessions,
                "closed": isinstance(client, str) and node.clients.find(client).closed_ms > 0,
                **{
                    field: escaped(str(value), _LONGEST_FIELD)
                    for field, value in whose.items()
                    if field in _WHOSE and value is not None
                },
            }

    def _take(self, client: str, problems: Iterator[Problem]) -> None:
        for problem in problems:
            self._total += 1
            if len(self._found) < _MAX:
                self._found.append({"client": client, **problem})

    def _of_state(self, name: str, state: SessionState) -> Iterator[Problem]:
        node, limits = self._node, self._node.delivery_limits
        actor = node.directory.find_session(name)
        connection = actor.connection if actor is not None else None
        if is_shared(name):
            group = node.router.groups.find(name)
            if state.queued and not group.online:
                yield {"code": "no_member", "queued": state.queued, "members": group.size}
        if actor is not None and connection is not None and (state.inflight or state.releasing):
            yield from self._unfinished(actor, state)
        idle = connection is None or (
            node.clock.monotonic() - connection.last_read >= _STUCK_MS / 1000
        )
        if state.inbound and idle:
            yield {
                "code": "stuck_publish",
                "count": len(state.inbound),
                "connected": connection is not None,
                "first": next(iter(state.inbound.values())),
            }
        if isinstance(connection, Connection):
            yield from self._reader(connection)
        for held in state.replays.values():
            if held.replay is not None and held.replay.state in _STOPPED:
                yield {"code": "replay_stopped", "filter": held.filter, "state": held.replay.state}
            elif held.replay is not None and self._is_behind(actor, held.filter, held.replay):
                yield {
                    "code": "replay_behind",
                    "filter": held.filter,
                    "connected": connection is not None,
                }
        queue = delivery_preview.full_queue(state, limits)
        filling = (
            state.queued >= _FILLING * limits.queued_messages
            or state.queued_bytes >= _FILLING * limits.queued_bytes
        )
        if queue or filling:
            yield {
                "code": "queue_full" if queue else "queue_filling",
                "queue": queue,
                "queued": state.queued,
                "max_queued": limits.queued_messages,
                "queued_bytes": state.queued_bytes,
                "max_queued_bytes": limits.queued_bytes,
                "connected": connection is not None,
                "offline_ms": None if state.connected else self._now - state.closed_ms,
            }

    def _is_behind(self, actor: Session | None, topic_filter: str, state: ReplayState) -> bool:
        """Return whether a replay that stands still has not read what is cut off next."""
        cursor, node = state.through.get(""), self._node
        attached = actor.delivery.replays or () if actor is not None else ()
        for replay in attached:
            if replay.filter == topic_filter:
                cursor = replay.cursor
        if cursor is None or state.state == "ended":
            return False
        if attached and self._shown - state.reached_ms < _STILL_MS:
            return False
        return cursor < node.retention.next_cut

    def _unfinished(self, actor: Session, state: SessionState) -> Iterator[Problem]:
        """Yield the problems of deliveries that a connected client does not complete."""
        ages = unfinished(actor.connection, actor.delivery, state, self._node)
        named = False
        if ages.quiet_ms >= _UNACKNOWLEDGED_MS:
            for problem in self._window(state):
                named = True
                yield {**problem, "age_ms": ages.oldest_ms, "resumed": actor.delivery.resumed}
        ages, connections = _with_earlier(actor, state, ages, self._node)
        after = overdue_after_ms(self._node)
        if ages.released_ms >= after:
            yield {
                "code": "stuck_release",
                "count": len(state.releasing),
                "age_ms": ages.released_ms,
                "resumed": actor.delivery.resumed,
                "connections": connections,
            }
        if ages.sent_ms >= after and not named:
            figures = stalled(self._node, state.session)
            if figures is not None:
                again = self._node.options.ack_wait and state.level < _MQTT_5
                kind = {"code": "slow_acks"} if figures["slow"] else {"code": "unacknowledged"}
                yield {**kind, **figures, "sent_again": bool(again)}

    def _window(self, state: SessionState) -> Iterator[Problem]:
        limits = self._node.delivery_limits
        unacknowledged = len(state.inflight) + len(state.releasing)
        if unacknowledged >= state.receive_maximum:
            yield {
                "code": "receive_maximum",
                "outstanding": unacknowledged,
                "window": state.receive_maximum,
                "queued": state.queued,
            }
            return
        for held in state.subscriptions.values():
            if held.outstanding >= limits.window:
                yield {
                    "code": "window_full",
                    "filter": held.filter,
                    "outstanding": held.outstanding,
                    "window": limits.window,
                    "queued": len(held.queue) if held.queue is not None else 0,
                }

    def _reader(self, connection: Connection) -> Iterator[Problem]:
        most = self._node.options.max_outbound_bytes
        if not connection.writable or connection.unsent >= _SLOW * most:
            yield {
                "code": "slow_reader",
                "unsent": connection.unsent,
                "max_unsent": most,
                "address": connection.address,
            }

    def _decided_by(self, history: ClientHistory) -> Problem:
        """Return the permission file that denied an action, and the user; empty: not known."""
        path = self._node.permissions.permissions.path
        if history.denied_as is None or not path:
            return {}
        user, groups = history.denied_as
        return {"permissions": path, "user": user, "groups": groups}

    def _recent(self, at_ms: Iterable[int], most: int) -> list[int]:
        """Return the ages of the events of the last ``most`` milliseconds.

        Events later than now, before which the clock was set back, are left out.
        """
        return [age for at in at_ms if 0 <= (age := self._shown - at) <= most]

    def _of_history(self, name: str, history: ClientHistory) -> Iterator[Problem]:
        session = {"session": name in self._node.state.sessions}
        drops = {
            reason: ages[0]
            for reason, at in (history.dropped_at or {}).items()
            if (ages := self._recent([at], RECENT_MS))
        }
        if history.dropped and drops:
            by = {reason: history.dropped[reason] for reason in drops}
            yield {
                "code": "drops",
                "count": sum(by.values()),
                "by": by,
                "since_ms": history.since_ms,
                "age_ms": min(drops.values()),
                "ages_ms": drops,
                "unrecorded": history.unrecorded or {},
                **session,
            }
        if history.denied and (ages := self._recent([history.denied_ms], RECENT_MS)):
            yield {
                "code": "denied",
                "count": history.denied_count,
                "what": history.denied,
                "age_ms": ages[0],
                "lasts": ages[0] <= _LASTS_MS,
                **session,
                **self._decided_by(history),
            }
        connects = len(self._recent(history.opened_ms, _FLAPPING_MS))
        failed = self._recent(history.failed_ms, _FLAPPING_MS)
        takeovers = self._recent(history.taken_ms, RECENT_MS)
        if len(takeovers) >= _DUPLICATE:
            actor = self._node.directory.find_session(name)
            connected = actor is not None and actor.connection is not None
            yield {
                "code": "duplicate",
                "takeovers": history.takeovers,
                "recent_takeovers": len(takeovers),
                "recent": connects,
                "hosts": list(history.hosts),
                "age_ms": takeovers[-1],
                "lasts": connected and takeovers[-1] <= _lasting_ms(takeovers),
            }
        elif connects >= _FLAPPING and len(failed) >= _FLAPPING - 1:
            has_left = (
                history.last_close == "disconnect" and history.closed_ms > history.failed_ms[-1]
            )
            yield {
                "code": "flapping",
                "connects": history.connects,
                "since_ms": history.since_ms,
                "recent": connects,
                "failed": len(failed),
                "last_close": history.last_close,
                "age_ms": failed[-1],
                "lasts": not has_left and failed[-1] <= _lasting_ms(failed),
            }


def _lasting_ms(ages: list[int]) -> int:
    """Return the milliseconds after the last of several events for which they last.

    The pauses between them may become longer and longer. ``ages`` are theirs, the oldest first.
    """
    pauses = [before - after for before, after in pairwise(ages)]
    return max(_CALM_MS, _PAUSES * max(pauses[-_LAST_PAUSES:]))


# Clients that do not acknowledge what they were sent, as ``doctor`` and previews name them.

_WITHOUT_REDELIVERY: Final = 30.0
"""Seconds after which a delivery is overdue if ``ack_wait`` is 0."""
_LEFT: Final = 2
"""Connections that left deliveries unacknowledged, after which the next one gets no time."""
_FILTERS: Final = 4
"""Maximum filters that are named."""


def overdue_after_ms(node: NodeContext) -> int:
    """Return the age from which an unfinished delivery is a problem.

    The client has had ``ack_wait``, and the time to answer one redelivery.
    """
    return round(1000 * ((node.options.ack_wait or _WITHOUT_REDELIVERY) + ANSWER_SECONDS))


def _with_earlier(
    actor: Session, state: SessionState, ages: Overdue, node: NodeContext
) -> tuple[Overdue, int]:
    """Add to ages the time of earlier connections; return them, and the number of connections.

    A client that has just connected has some time to answer, unless it did not use it twice.
    """
    connection = actor.connection
    before = earlier(connection, state, node) if connection is not None and ages.oldest_ms else None
    if before is None or (ages.oldest_ms < _UNACKNOWLEDGED_MS and before.connections < _LEFT):
        return ages, 1
    sent, released = (ages.sent_ms, ages.released_ms)
    if before.released and released:
        released += before.connected_ms
    elif sent:
        sent += before.connected_ms
    answered = connection is not None and connection.last_ack > -inf
    quiet = ages.quiet_ms if answered else max(sent, released)
    return Overdue(sent, released, quiet), before.connections + 1


def stalled(node: NodeContext, name: str) -> dict[str, Any] | None:
    """Return the figures of a client with overdue deliveries; None if there are none.

    ``count`` deliveries are unfinished, the oldest for ``age_ms``; ``filters`` has their numbers by
    filter. The client has acknowledged nothing for ``quiet_ms``, and sent nothing for
    ``silent_ms``; ``slow``: it does acknowledge, but not the oldest. More than one of
    ``connections``: the ages count the time on all of these.
    """
    state, actor = node.state.sessions.live.get(name), node.directory.find_session(name)
    if state is None or actor is None:
        return None
    ages = unfinished(actor.connection, actor.delivery, state, node)
    ages, connections = _with_earlier(actor, state, ages, node)
    age, after = ages.oldest_ms, overdue_after_ms(node)
    if age < after:
        return None
    of = Counter(
        sent.subscription.filter
        for sent in chain(state.inflight.values(), state.releasing.values())
    )
    connection = actor.connection
    silent = float("inf")
    if isinstance(connection, Connection):
        silent = 1000 * (node.clock.monotonic() - connection.last_read)
    if silent == float("inf"):  # it has sent nothing since its CONNECT
        silent = age
    return {
        "count": len(state.inflight) + len(state.releasing),
        "filters": dict(of.most_common(_FILTERS)),
        "age_ms": age,
        "quiet_ms": ages.quiet_ms,
        "slow": ages.quiet_ms < after,
        "silent_ms": round(silent),
        "resumed": actor.delivery.resumed,
        "connections": connections,
    }
