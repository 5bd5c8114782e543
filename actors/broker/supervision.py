"""Restart of failed sessions.

The successor starts immediately. In the turn in which the session failed, and so in the same record
as the publications, every delivery that is not recorded yet is recorded as queued; so are
deliveries to the successor until the state is rebuilt. The connection is closed: when the client
reconnects, the state determines the deliveries.

The state is rebuilt from the log, then the successor continues: first with the end of the
connection, then with the other messages of its predecessor, then with those that arrived meanwhile.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import structlog

from actors.kernel.references import ActorFailed
from actors.maintenance.recovery import rebuild_session
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import (
    ConnectionAttached,
    ConnectionDetached,
    Expire,
    Kick,
    Outgoing,
    Remove,
    Retry,
)
from actors.session.subscription_actor import Subscription
from actors.sharing.shared_subscriptions import make_session
from eventstore.errors import LogUnavailable
from eventstore.format.events import SessionClosed
from projections.state.session import SessionState
from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")

_RETRY = 0.5
MAX_ATTEMPTS = 3
"""Number of failures of a session at the end of its connection after which that is abandoned."""


def start_successor(node: NodeContext, broken: Session) -> None:
    """Replace a session that has just failed."""
    fresh = make_session(node, broken.name, None)
    fresh.begin_rebuild()
    node.rebuilding.add(broken.name)
    node_state = node.state
    if node_state.dirty is not None:
        # Events recorded for it until the rebuild are in no state: the projections must wait.
        before = node_state.sessions.live.get(broken.name)
        node_state.dirty.setdefault(broken.name, before.saved if before is not None else 0)
    node.directory.install(fresh)
    node.kernel.spawn(fresh, node.root)
    connection, broken.connection = broken.connection, None
    if connection is not None:
        connection.session = None
        connection.abort("session_failed")
    actors = []
    for subscriber in node.router.subscribers(broken.name):
        actor, subscriber.actor = subscriber.actor, None
        node.router.stopped(subscriber)
        if actor is not None and not actor.stopped:
            actors.append(actor)
    node.directory.stop_all(actors)


def inherit(node: NodeContext, broken: Session, failed: ActorFailed) -> list[Any]:
    """Record the failed session's pending deliveries; return its other messages."""
    fresh = node.directory.session(broken.name)
    others: list[Any] = []
    for message in (failed.message, *broken.drain_stash(), *failed.unseen):
        if isinstance(message, Outgoing):
            fresh.record_unseen(message, broken.delivery.recorded_of(message))
        elif isinstance(message, ActorFailed):
            for outgoing in _left(broken, message):
                fresh.record_unseen(outgoing, broken.delivery.recorded_of(outgoing))
        elif isinstance(message, ConnectionAttached) and message is failed.message:
            message.connection.abort("session_failed")
        elif message is not None:
            others.append(message)
    return others


def _left(broken: Session, failed: ActorFailed) -> list[Outgoing]:
    """Return the remaining deliveries of a failed subscription whose session failed, too."""
    if broken.to_deliver:
        return broken.to_deliver
    return failed.actor.outgoings(failed) if isinstance(failed.actor, Subscription) else []


async def replace(node: NodeContext, fresh: Session, failing: Any, others: list[Any]) -> None:
    """Rebuild the state and continue with the successor."""
    try:
        last_record, state = await _rebuild(node, fresh.name)
    except FoldmqError as error:
        node.fail(error)
        return
    except Exception as error:  # noqa: BLE001 - only this session stays out of order
        _log.error("session cannot be rebuilt: it stays closed", client=fresh.name, exc_info=error)
        return
    if fresh.stopped:  # it also failed, and has a successor
        node.directory.redirect(fresh.name, others)
        return
    node_state = node.state
    before = node_state.sessions.live.get(fresh.name)
    saved = before.saved if before is not None else 0
    if node_state.dirty is not None:
        node_state.dirty.setdefault(fresh.name, saved)
    if state is not None:
        state.saved = saved
        node_state.sessions[fresh.name] = state
        node.router.restore(state)
    else:
        node_state.sessions.discard(fresh.name)
        node.router.remove_session(fresh.name)
    fresh.end_rebuild(state, last_record, list(_again(node, fresh, state, failing, others)))
    node.rebuilding.discard(fresh.name)
    node.directory.went_offline(fresh)


async def _rebuild(node: NodeContext, name: str) -> tuple[int, SessionState | None]:
    """Rebuild a session's state as soon as the log can be read."""
    while True:
        try:
            return await rebuild_session(node, name)
        except LogUnavailable as error:
            _log.warning("session cannot be rebuilt yet", client=name, error=str(error))
            await asyncio.sleep(_RETRY)


def _again(
    node: NodeContext, fresh: Session, state: SessionState | None, failing: Any, others: list[Any]
) -> Iterator[Any]:
    """Yield the messages that the successor handles first."""
    attempts = failing.attempts if isinstance(failing, Retry) else 0
    if isinstance(failing, (ConnectionDetached, Retry)):
        attempts += 1
    if state is not None and state.connected:
        if attempts < MAX_ATTEMPTS:
            yield Retry(ConnectionDetached(None, "session_failed", orderly=False), attempts)
        else:
            node.emit(SessionClosed(fresh.name, "session_failed", state.generation))
            node.clients.closed(fresh.name, "session_failed", node.clock.time_ms())
            if state.clean:
                node.router.remove_session(fresh.name)
    for message in others:
        if isinstance(message, (Kick, Remove)) and message is failing:
            message.command.refuse("failed: see the broker's messages")
        elif isinstance(message, (ConnectionAttached, Expire, Kick, Remove)):
            yield message
