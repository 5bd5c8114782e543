"""JSON objects of actors, sessions and messages for the inspector.

A session is shown from its folded state; frozen sessions stay frozen, and nothing is changed.
"""

import base64
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any

from actors.connection.connection import Connection
from actors.inspection.inspector import Inspector, TooLarge
from actors.inspection.operations import publisher_permitted
from actors.kernel.actor import LoopActor
from actors.node.read_pause import ReadPause
from actors.routing.subscriber import is_shared
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import ClientConnection
from actors.session.subscription_actor import Subscription
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import Position, sequence_of
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState
from projections.views.session_view import (
    LiveSession,
    MemberView,
    Part,
    session_view,
    subscription_row,
)
from projections.views.state_view import retained_view
from projections.views.vocabulary import plain

LARGEST_PAYLOAD = 256 * 1024
"""Maximum bytes of a payload in an answer."""
_MEMBERS_READ = 64
"""Maximum offline members of a shared subscription whose granted QoS is looked up."""
_COUNTED = ("counted_since_ms", "dropped", "connects", "takeovers", "last_close")
"""What the row of a session's actor has of the history of its client."""
_LARGEST_ANSWER = 512 * 1024
"""Maximum characters of names in an answer."""


def type_of(actor: LoopActor) -> str:
    """Return the type of an actor, as in its name."""
    return type(actor).__name__.lower()


def client_of(actor: LoopActor) -> str | None:
    """Return the client identifier of an actor's client; None if there is none (yet)."""
    if isinstance(actor, Session):
        return actor.name
    if isinstance(actor, Connection):
        return actor.client_id
    if isinstance(actor, Subscription):
        return actor.subscriber.session
    return None


def name_of(actor: LoopActor, node: NodeContext) -> str:
    """Return the identification of an actor: client identifier, address, filter or node."""
    if isinstance(actor, Session):
        return actor.name
    if isinstance(actor, Connection):
        return actor.address
    if isinstance(actor, Subscription):
        return actor.subscriber.filter
    return node.options.node


def state_of(actor: LoopActor, node: NodeContext) -> str:
    """Return the state of an actor in a word."""
    if isinstance(actor, Session):
        if actor.name in node.rebuilding:
            return "rebuilding"
        if actor.loading:
            return "loading"
        return "offline" if actor.connection is None else "connected"
    if isinstance(actor, Connection):
        if actor.ended:
            return "closing"
        if actor.session is None:
            return "connecting"
        return "paused" if actor.paused else "open"
    return "running"


def actor_row(actor: LoopActor, node: NodeContext) -> dict[str, Any]:
    """Return an actor as a row of a list."""
    kernel = node.kernel
    now = kernel.clock()
    busy, handled = actor.recent
    span = max(now - kernel.epoch_began, 1e-3)
    last_run = actor.last_run
    history = history_fields(actor.name, None, node) if isinstance(actor, Session) else {}
    return {
        "id": actor.actor_urn,
        "type": type_of(actor),
        "name": name_of(actor, node),
        "client": client_of(actor),
        "parent": actor.parent.actor_urn if actor.parent is not None else None,
        "state": state_of(actor, node),
        # The message that the inspector is handling does not count as waiting.
        "mailbox": actor.mailbox_depth if not isinstance(actor, Inspector) else 0,
        "high_water": actor.high_water,
        "handled": actor.handled,
        "last_active_ms": node.clock.time_ms() - round((now - last_run) * 1000)
        if last_run
        else None,
        "busy_us": round(actor.busy * 1e6),
        "recent_us_per_s": round(busy * 1e6 / span, 1),
        "recent_per_s": round(handled / span, 1),
        **({key: history[key] for key in _COUNTED} if history else {}),
    }


def connection_view(connection: Connection, node: NodeContext) -> dict[str, Any]:
    """Return a connection in detail."""
    session, identity = connection.session, connection.identity
    return {
        "id": connection.actor_urn,
        "address": connection.address,
        "listener": connection.listener.options.name,
        "via": connection.via or None,
        "user": node.user_in_log(identity.user) if identity is not None else None,
        "tls": connection.tls,
        "client": connection.client_id,
        "level": session.state.level if session is not None else None,
        "bridge": session is not None and session.state.bridge,
        "keep_alive": connection.keep_alive,
        "connected_ms": connection.connected_ms or None,
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
        "messages_in": connection.messages_in,
        "messages_out": connection.messages_out,
        "unsent": connection.unsent,
        "gated": connection.gated,
        "writable": connection.writable,
        "paused": ReadPause.names(connection.paused),
    }


def subscription_view(actor: Subscription, node: NodeContext) -> dict[str, Any]:
    """Return a subscription of a connected session in detail."""
    subscriber = actor.subscriber
    state = node.state.sessions.peek(subscriber.session)
    held = state.subscriptions.get(subscriber.filter) if state is not None else None
    facts: dict[str, Any] = {"filter": subscriber.filter}
    if held is not None:
        live = _live_session(subscriber.session, node)
        facts = plain(subscription_row(held, live.granted_qos(held), live))
    return {
        "session": subscriber.session,
        **facts,
        "matched": actor.matched,
        "replayed": actor.replayed,
    }


def session_row(name: str, state: SessionState, node: NodeContext) -> dict[str, Any]:
    """Return a session as a row of a list."""
    return {
        "session": name,
        "connected": state.connected,
        "clean": state.clean,
        "members": node.router.groups.find(name).size if is_shared(name) else None,
        "level": state.level,
        "bridge": state.bridge,
        "subscriptions": len(state.subscriptions),
        "in_flight": len(state.inflight) + len(state.releasing),
        "queued": state.queued,
        "queued_bytes": state.queued_bytes,
        "user": state.user,
        "closed_ms": None if state.connected else state.closed_ms + node.clock.jumped_ms,
        **_session_facts(name, state, node),
    }


def _session_facts(name: str, state: SessionState, node: NodeContext) -> dict[str, Any]:
    """Return what is known of a session beside its state."""
    actor = node.directory.find_session(name)
    connection = actor.connection if actor is not None else None
    return {
        "frozen": name not in node.state.sessions.live,
        "address": connection.address if connection is not None else None,
        "expires_ms": _expires(state, node),
        "actor": actor.actor_urn if actor is not None else None,
        **history_fields(name, connection, node),
    }


def history_fields(
    name: str, connection: ClientConnection | None, node: NodeContext
) -> dict[str, Any]:
    """Return a client's history, and its current rates.

    ``counted_since_ms`` is None if the client has no history: nothing happened to it, or the
    history was dropped.
    """
    history = node.clients.find(name)
    rates: tuple[float, float] | None = None
    if isinstance(connection, Connection):
        begun = connection.connected_ms or node.clock.time_ms()
        received, sent = connection.messages_in, connection.messages_out
        rates = history.rates(node.clock.time_ms(), begun, received, sent)
    return {
        "counted_since_ms": history.since_ms or None,
        "connects": history.connects,
        "takeovers": history.takeovers,
        "last_close": history.last_close or None,
        "last_close_ms": history.closed_ms or None,
        "dropped": history.dropped.total() if history.dropped is not None else 0,
        "dropped_by": dict(history.dropped or ()),
        "dropped_ms": history.dropped_ms or None,
        "denied": history.denied_count,
        "rate_in": None if rates is None else round(rates[0], 2),
        "rate_out": None if rates is None else round(rates[1], 2),
    }


def session_answer(
    name: str, state: SessionState, node: NodeContext, offset: int, most: int
) -> dict[str, Any]:
    """Return a session in detail; its lists contain at most ``most`` items from ``offset`` on."""
    actor = node.directory.find_session(name)
    connection = actor.connection if actor is not None else None
    facts = {
        **_session_facts(name, state, node),
        "position": node.journal.last,
        "denied_what": dict(node.clients.find(name).denied or ()),
        "connection": (
            connection_view(connection, node) if isinstance(connection, Connection) else None
        ),
        "actors": [actor_row(each, node) for each in _actors_of(name, node, offset, most)],
    }
    view = session_view(
        state,
        _live_session(name, node, facts),
        jumped_ms=node.clock.jumped_ms,
        offset=offset,
        most=most,
        members=_members(name, node, offset, most),
        last=sequence_of(node.journal.last),
        unsure=node.state.unsure_session(name),
    )
    answer: dict[str, Any] = plain(view)
    room = _LARGEST_ANSWER  # a name may have 64 KiB
    lists = [part["rows"] for part in answer.values() if isinstance(part, dict) and "rows" in part]
    for row in chain(answer["actors"], *lists):
        room -= _letters(row)
        if room < 0:
            raise TooLarge("the names in the answer are too long: request fewer items")
    return answer


def _letters(value: object) -> int:
    """Return the number of characters of all texts in a row."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    return sum(map(_letters, value)) if isinstance(value, Iterable) else 0


def retained_row(message: RetainedMessage, node: NodeContext) -> dict[str, Any]:
    """Return a retained message as a row of a list."""
    row: dict[str, Any] = plain(retained_view(message, node.clock.jumped_ms))
    return {**row, "permitted": publisher_permitted(message, node)}


def retained_answer(message: RetainedMessage, node: NodeContext) -> dict[str, Any]:
    """Return a retained message with its payload, if that is not too large."""
    small = len(message.payload) <= LARGEST_PAYLOAD
    payload = base64.b64encode(message.payload).decode() if small else None
    return {**retained_row(message, node), "payload_base64": payload}


def _actors_of(name: str, node: NodeContext, offset: int, most: int) -> list[LoopActor]:
    session = node.directory.find_session(name)
    if session is None:
        return []
    actors: list[LoopActor] = [session]
    if isinstance(session.connection, Connection):
        actors.append(session.connection)
    chosen = islice(node.router.subscribers(name), offset, offset + most)
    return actors + [subscriber.actor for subscriber in chosen if subscriber.actor is not None]


def granted_qos(name: str, qos: int, node: NodeContext) -> int:
    """Return the granted QoS of a subscription of a session.

    A shared subscription has none of its own: it is the highest of its connected members, or of
    all of them if none is connected.
    """
    if not is_shared(name):
        return qos
    group = node.router.groups.find(name)
    if group.online:
        return max(member_actor.qos for member_actor in group.online.values())
    granted = []
    for member in islice(sorted(group.members), _MEMBERS_READ):
        state = node.state.sessions.peek(member)
        held = state.subscriptions.get(name) if state is not None else None
        if held is not None:
            granted.append(held.qos)
    return max(granted, default=qos)


def _members(name: str, node: NodeContext, offset: int, most: int) -> Part[MemberView] | None:
    """Return the members of a shared subscription; None for other sessions."""
    if not is_shared(name):
        return None
    group, window = node.router.groups.find(name), node.options.max_ack_pending

    def member(client: str) -> MemberView:
        if client.startswith(LOG_SESSION):
            remote = group.remote.get(client.removeprefix(LOG_SESSION))
            if remote is None:
                return MemberView(client, False, 2, 0, 0)
            return MemberView(client, remote.online > 0, 2, remote.under_way, remote.room)
        state = node.state.sessions.peek(client)
        held = state.subscriptions.get(name) if state is not None else None
        if held is None:
            return MemberView(client, client in group.online, None, 0, window)
        return MemberView(
            client,
            client in group.online,
            held.qos,
            held.outstanding,
            window,
            held.options,
            held.identifier,
            held.active,
        )

    names = [*sorted(group.members), *(LOG_SESSION + log for log in sorted(group.logs))]
    return Part(len(names), [member(each) for each in names[offset : offset + most]])


def _expires(state: SessionState, node: NodeContext) -> int | None:
    delay = float("inf") if state.connected or state.clean else node.expires_in(state)
    if delay == float("inf"):
        return None
    return node.clock.time_ms() + round(delay * 1000)


def _live_session(
    name: str, node: NodeContext, facts: Mapping[str, Any] | None = None
) -> LiveSession:
    get = node.messages.get

    def topic(ref: Position) -> str | None:
        message = get(ref)  # as long as it is in memory
        return message.topic.decode() if message is not None else None

    return LiveSession(
        node.options.max_ack_pending,
        lambda held: granted_qos(name, held.qos, node),
        topic,
        facts or {},
    )
