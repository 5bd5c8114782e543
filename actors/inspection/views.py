"""JSON objects of actors, sessions and messages for the inspector.

A session is shown from its folded state; frozen sessions stay frozen, and nothing is changed.
"""

from __future__ import annotations

import base64
from itertools import islice
from typing import TYPE_CHECKING, Any

from actors.connection.connection import Connection
from actors.inspection.inspector import Inspector
from actors.inspection.requests import TooLarge
from actors.inspection.retained_clearing import publisher_permitted
from actors.node.read_pause import ReadPause
from actors.routing.subscriber import is_shared
from actors.session.session import Session
from actors.session.subscription_actor import Subscription
from eventstore.format.events import LOG_SESSION
from eventstore.format.stored_properties import expiry_ms
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from protocol.mqtt.message_properties import properties_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors.kernel.actor import LoopActor
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import ClientConnection
    from eventstore.format.positions import Position
    from projections.state.retained import RetainedMessage
    from projections.state.session import InFlight, SessionState, SubscriptionState

LARGEST_PAYLOAD = 256 * 1024
"""Maximum bytes of a payload in an answer."""
_MEMBERS_READ = 64
"""Maximum offline members of a shared subscription whose granted QoS is looked up."""
_LARGEST_ANSWER = 512 * 1024
"""Maximum characters of names in an answer."""


class _Room:
    """Limits the size of an answer: names may have 64 KiB."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _LARGEST_ANSWER

    def taken(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row if there is room for it; otherwise raises TooLarge."""
        self._left -= sum(len(value) for value in row.values() if isinstance(value, str))
        if self._left < 0:
            raise TooLarge("the names in the answer are too long: request fewer items")
        return row


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
    last = actor.last_run
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
        "last_active_ms": node.clock.time_ms() - round((now - last) * 1000) if last else None,
        "busy_us": round(actor.busy * 1e6),
        "recent_us_per_s": round(busy * 1e6 / span, 1),
        "recent_per_s": round(handled / span, 1),
        **(_history_of(actor.name, node) if isinstance(actor, Session) else {}),
    }


def _history_of(client: str, node: NodeContext) -> dict[str, Any]:
    """Return a summary of a client's history."""
    history = node.clients.find(client)
    return {
        "counted_since_ms": history.since_ms or None,
        "dropped": history.dropped.total() if history.dropped is not None else 0,
        "connects": history.connects,
        "takeovers": history.takeovers,
        "last_close": history.last_close or None,
    }


def connection_view(connection: Connection) -> dict[str, Any]:
    """Return a connection in detail."""
    session = connection.session
    return {
        "id": connection.actor_urn,
        "address": connection.address,
        "listener": connection.listener.options.name,
        "via": connection.via or None,
        "user": connection.identity.user if connection.identity is not None else None,
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
    found = (
        _subscription(subscriber.session, held, node)
        if held is not None
        else {"filter": subscriber.filter}
    )
    return {
        "client": subscriber.session,
        **found,
        "matched": actor.matched,
        "replayed": actor.replayed,
    }


def session_row(name: str, state: SessionState, node: NodeContext) -> dict[str, Any]:
    """Return a session as a row of a list."""
    actor = node.directory.find_session(name)
    connection = actor.connection if actor is not None else None
    return {
        "client": name,
        "connected": state.connected,
        "clean": state.clean,
        "members": node.router.groups.find(name).size if is_shared(name) else None,
        "level": state.level,
        "bridge": state.bridge,
        "passive": name not in node.state.sessions.live,
        "subscriptions": len(state.subscriptions),
        "inflight": len(state.inflight) + len(state.releasing),
        "queued": state.queued,
        "queued_bytes": state.queued_bytes,
        "user": state.user,
        "address": connection.address if connection is not None else None,
        "closed_ms": None if state.connected else state.closed_ms + node.clock.jumped_ms,
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
        taken, sent = connection.messages_in, connection.messages_out
        rates = history.rates(node.clock.time_ms(), begun, taken, sent)
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


def session_view(
    name: str, state: SessionState, node: NodeContext, offset: int, most: int
) -> dict[str, Any]:
    """Return a session in detail; its lists contain at most ``most`` items from ``offset`` on."""
    actor = node.directory.find_session(name)
    connection = actor.connection if actor is not None else None
    topic = _topics(node)
    oldest = min(
        (first for held in state.waiting.values() if (first := _oldest(held)) is not None),
        default=None,
    )
    will = state.will
    room = _Room()
    return {
        **session_row(name, state, node),
        "position": node.journal.last,
        "denied_what": dict(node.clients.find(name).denied or ()),
        "receive_maximum": state.receive_maximum,
        "packet_maximum": state.packet_maximum,
        "expiry": state.expiry,
        "shared": is_shared(name),
        "shared_with": _members(name, node, offset, most, room),
        "generation": state.generation,
        "last_pid": state.last_pid,
        "oldest": None if oldest is None else {"ref": oldest, "topic": topic(oldest)},
        "will": None
        if will is None
        else {
            "topic": will.topic,
            "qos": will.qos,
            "retain": will.retain,
            "delay": will.delay,
            "ref": will.ref,
        },
        "subscriptions": _part(
            state.subscriptions.values(),
            len(state.subscriptions),
            offset,
            most,
            lambda held: room.taken(_subscription(name, held, node)),
        ),
        "inflight": _sent(state.inflight, node, offset, most, topic, room),
        "releasing": _sent(state.releasing, node, offset, most, topic, room),
        "inbound": _part(
            state.inbound.items(),
            len(state.inbound),
            offset,
            most,
            lambda item: room.taken({"pid": item[0], "ref": item[1], "topic": topic(item[1])}),
        ),
        "connection": (connection_view(connection) if isinstance(connection, Connection) else None),
        "actors": [
            room.taken(actor_row(one, node)) for one in _actors_of(name, node, offset, most)
        ],
    }


def retained_row(message: RetainedMessage, node: NodeContext) -> dict[str, Any]:
    """Return a retained message as a row of a list."""
    expires_ms = expiry_ms(message.expires) + node.clock.jumped_ms if message.expires else 0
    return {
        "topic": message.topic,
        "qos": message.qos,
        "size": len(message.payload),
        "ref": message.ref,
        "set_by": message.publisher or None,
        "permitted": publisher_permitted(message, node),
        "expires_ms": expires_ms or None,
        "properties": properties_object(message.block),
    }


def retained_view(message: RetainedMessage, node: NodeContext) -> dict[str, Any]:
    """Return a retained message with its payload, if that is not too large."""
    small = len(message.payload) <= LARGEST_PAYLOAD
    payload = base64.b64encode(message.payload).decode() if small else None
    return {**retained_row(message, node), "payload_base64": payload}


def _actors_of(name: str, node: NodeContext, offset: int, most: int) -> list[LoopActor]:
    session = node.directory.find_session(name)
    if session is None:
        return []
    found: list[LoopActor] = [session]
    if isinstance(session.connection, Connection):
        found.append(session.connection)
    chosen = islice(node.router.subscribers(name), offset, offset + most)
    return found + [one.actor for one in chosen if one.actor is not None]


def _part(
    items: Iterable[Any],
    total: int,
    offset: int,
    most: int,
    shown: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    return {"total": total, "rows": [shown(one) for one in islice(items, offset, offset + most)]}


def _sent(
    table: Mapping[int, InFlight],
    node: NodeContext,
    offset: int,
    most: int,
    topic: Callable[[Position], str | None],
    room: _Room,
) -> dict[str, Any]:
    return _part(
        table.items(),
        len(table),
        offset,
        most,
        lambda item: room.taken(
            {
                "pid": item[0],
                "qos": item[1].flags & QOS_MASK,
                "retain": bool(item[1].flags & RETAIN_FLAG),
                "ref": item[1].ref,
                "filter": item[1].subscription.filter,
                "topic": topic(item[1].ref),
                "sent_ms": item[1].sent_ms + node.clock.jumped_ms,
            }
        ),
    )


def granted_qos(name: str, qos: int, node: NodeContext) -> int:
    """Return the granted QoS of a subscription of a session.

    A shared subscription has none of its own: it is the highest of its connected members, or of
    all of them if none is connected.
    """
    if not is_shared(name):
        return qos
    group = node.router.groups.find(name)
    if group.online:
        return max(one.qos for one in group.online.values())
    granted = []
    for member in islice(sorted(group.members), _MEMBERS_READ):
        state = node.state.sessions.peek(member)
        held = state.subscriptions.get(name) if state is not None else None
        if held is not None:
            granted.append(held.qos)
    return max(granted, default=qos)


def _subscription(name: str, held: SubscriptionState, node: NodeContext) -> dict[str, Any]:
    return {
        "filter": held.filter,
        "qos": granted_qos(name, held.qos, node),
        "options": held.options,
        "identifier": held.identifier,
        "active": held.active,
        "outstanding": held.outstanding,
        "window": node.options.max_ack_pending,
        "queued": len(held.queue) if held.queue is not None else 0,
        "queued_bytes": held.queued_bytes,
        "oldest": _oldest(held),
    }


def _members(
    name: str, node: NodeContext, offset: int, most: int, room: _Room
) -> dict[str, Any] | None:
    """Return the members of a shared subscription; None for other sessions."""
    if not is_shared(name):
        return None
    group = node.router.groups.find(name)

    def member(client: str) -> dict[str, Any]:
        if client.startswith(LOG_SESSION):
            remote = group.remote.get(client.removeprefix(LOG_SESSION))
            return room.taken(
                {
                    "client": client,
                    "connected": remote is not None and remote.online > 0,
                    "qos": 2,
                    "outstanding": remote.under_way if remote is not None else 0,
                    "window": remote.room if remote is not None else 0,
                }
            )
        state = node.state.sessions.peek(client)
        held = state.subscriptions.get(name) if state is not None else None
        return room.taken(
            {
                "client": client,
                "connected": client in group.online,
                "qos": held.qos if held is not None else None,
                "outstanding": held.outstanding if held is not None else 0,
                "window": node.options.max_ack_pending,
            }
        )

    names = [*sorted(group.members), *(LOG_SESSION + log for log in sorted(group.logs))]
    return _part(names, len(names), offset, most, member)


def _oldest(held: SubscriptionState) -> Position | None:
    """Return the position of the next message for a subscription."""
    ends = held.queue.ends() if held.queue is not None else None
    return ends[0] >> FLAG_BITS if ends is not None else None


def _expires(state: SessionState, node: NodeContext) -> int | None:
    delay = float("inf") if state.connected or state.clean else node.expires_in(state)
    if delay == float("inf"):
        return None
    return node.clock.time_ms() + round(delay * 1000)


def _topics(node: NodeContext) -> Callable[[Position], str | None]:
    """Return a function that returns the topic of a cached message."""
    get = node.messages.get

    def topic(ref: Position) -> str | None:
        message = get(ref)
        return message.topic.decode() if message is not None else None

    return topic
