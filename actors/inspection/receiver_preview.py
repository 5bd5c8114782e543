"""Preview of a message on a topic: one row for each matching subscription.

The default size of its payload is the average of the messages that wait for the client.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from actors.inspection.problems import stalled
from actors.inspection.views import granted_qos
from actors.routing.subscriber import Subscriber, is_shared
from actors.session.decisions import delivery_preview, queueing
from actors.session.node_context import NodeContext
from actors.session.session import Session
from projections.state.session import SessionState
from protocol.mqtt.topics import filters_overlap

_MEMBERS = 256
"""Members of a shared subscription that are examined, at most."""

Match = tuple[str, int, bool]
"""A subscription that matches: its filter, its QoS, and whether the client may read the topic."""


class Previewed(NamedTuple):
    """The message of a preview."""

    topic: str
    qos: int
    size: int | None
    """Bytes of its payload; None: the average of the messages that wait for the client."""


def match_of(subscriber: Subscriber, topic: str) -> Match:
    """Return the match of a subscription in the index."""
    acl = subscriber.acl
    return subscriber.filter, subscriber.qos, acl is None or acl.may_read(topic)


def matches_of_frozen(name: str, topic: str, node: NodeContext) -> list[Match]:
    """Return the matches of a frozen session, whose permissions are unknown."""
    state = node.state.sessions.peek(name)
    if state is None:
        return []
    return [
        (held.filter, held.qos, True)
        for held in state.active()
        if filters_overlap(held.filter, topic)
        and (held.filter[0] not in "+#" or not topic.startswith("$"))
    ]


def receiver_rows(
    name: str, matches: list[Match], message: Previewed, node: NodeContext
) -> Iterator[dict[str, Any]]:
    """Yield a row for each matching subscription of a session; one of them is chosen."""
    permitted = [at for at, (_, _, may_read) in enumerate(matches) if may_read]
    best = max(permitted, key=lambda at: matches[at][1], default=-1)
    state = node.state.sessions.peek(name)
    group = node.router.groups.find(name) if is_shared(name) else None
    actor = node.directory.find_session(name)
    for at, (topic_filter, qos, may_read) in enumerate(matches):
        row: dict[str, Any] = {
            "client": name,
            "filter": topic_filter,
            "qos": granted_qos(name, qos, node),
            "connected": actor is not None and actor.connection is not None,
            "members": None if group is None else group.size,
            "online": None if group is None else len(group.online),
            "chosen": at == best,
        }
        if not may_read:
            row |= {"why": "denied", "reason": ""}
        elif at != best:
            row |= {"why": "overlapped", "reason": ""}
        elif state is None:
            row |= {"why": "ended", "reason": ""}
        else:
            sent = message._replace(qos=min(row["qos"], message.qos))
            if group is None:
                row |= _of_client(state, topic_filter, sent, node)
            else:
                row |= _of_group(state, sent, node)
            row |= _figures(state, topic_filter, node)
            if row["why"] in ("sent", "shared") and sent.qos:
                members = [name] if group is None else list(group.online)[:_MEMBERS]
                row["stalled"] = [
                    {"client": member, **figures}
                    for member in members
                    if (figures := stalled(node, member)) is not None
                ]
        yield row


def _of_client(
    state: SessionState, topic_filter: str, message: Previewed, node: NodeContext
) -> dict[str, Any]:
    qos = message.qos
    actor = node.directory.find_session(state.session)
    connection = actor.connection if actor is not None else None
    if actor is None or connection is None:
        if not qos:
            return {"why": "offline_qos0", "reason": "offline"}
        blocked_by = "offline"
    elif not qos:
        slow = connection.unsent >= node.options.max_outbound_bytes
        return {"why": "dropped", "reason": "reader"} if slow else {"why": "sent", "reason": ""}
    else:
        blocked_by = actor.delivery.blocked_by
    preview = delivery_preview.preview_delivery(
        state, topic_filter, qos, node.delivery_limits, blocked_by, message.size
    )
    return {"why": preview.outcome, "reason": preview.reason, "queue": preview.queue}


def _of_group(state: SessionState, message: Previewed, node: NodeContext) -> dict[str, Any]:
    """Return the row of a shared subscription: it sends to a member with room, or queues."""
    topic, qos, size = message
    group = node.router.groups.find(state.session)
    if not group.online:
        if not qos:
            return {"why": "offline_qos0", "reason": "no_member"}
        return _waits(state, "no_member", size, node)
    permitted = [member for member in group.online.values() if match_of(member, topic)[2]]
    if not permitted:
        return {"why": "denied", "reason": ""}
    if not state.queued and any(_has_room(member, qos, node) for member in permitted):
        return {"why": "shared", "reason": ""}
    if not qos:
        return {"why": "dropped", "reason": "no_room"}
    return _waits(state, "no_room", size, node)


def _waits(state: SessionState, reason: str, size: int | None, node: NodeContext) -> dict[str, Any]:
    queue = delivery_preview.full_queue(state, node.delivery_limits, size)
    why = "dropped" if queue else "shared_waits"
    return {"why": why, "reason": reason, "queue": queue}


def _has_room(member: Subscriber, qos: int, node: NodeContext) -> bool:
    if member.remote is not None:
        return not qos or member.remote.left > 0
    actor: Session | None = node.directory.find_session(member.session)
    connection = actor.connection if actor is not None else None
    state = node.state.sessions.live.get(member.session)
    if actor is None or connection is None or state is None:
        return False
    if not min(qos, member.qos):
        return connection.unsent < node.options.max_outbound_bytes
    held = state.subscriptions.get(member.filter)
    if held is None or actor.delivery.blocked_by:
        return False
    return queueing.room(state, held, node.delivery_limits.window) > 0


def _figures(state: SessionState, topic_filter: str, node: NodeContext) -> dict[str, Any]:
    """Return the figures that determine the outcome."""
    held = state.subscriptions.get(topic_filter)
    limits = node.delivery_limits
    actor = node.directory.find_session(state.session)
    connection = actor.connection if actor is not None else None
    return {
        "outstanding": held.outstanding if held is not None else 0,
        "window": limits.window,
        "in_flight": len(state.inflight) + len(state.releasing),
        "receive_maximum": state.receive_maximum,
        "queued": state.queued,
        "max_queued": limits.queued_messages,
        "queued_bytes": state.queued_bytes,
        "max_queued_bytes": limits.queued_bytes,
        "unsent": connection.unsent if connection is not None else 0,
        "max_unsent": node.options.max_outbound_bytes,
        "identifier": held.identifier if held is not None else 0,
        "options": held.options if held is not None else 0,
    }
