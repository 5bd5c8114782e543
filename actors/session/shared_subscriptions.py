"""The life of shared subscriptions: from their first member to their last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.routing import is_shared
from actors.session import decisions
from actors.session.actor_messages import ContinueSending
from actors.session.node_context import NEVER_EXPIRES
from eventstore.format import (
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    to_runs,
)
from protocol.mqtt5 import split_share

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from actors.session.session import Session
    from eventstore.format import Position
    from eventstore.log import Message

_QOS = 2
"""Members cap it."""


class SharedSubscriptions:
    """Opens and ends the sessions that shared subscriptions are; wakes them."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def begin(self) -> None:
        """Bring them in line with their members, and follow these from now on: after recovery."""
        groups, sessions = self._node.router.groups, self._node.state.sessions
        groups.on_change, groups.wake = self._changed, self._wake
        for name in [name for name in sessions if is_shared(name)]:
            if name not in groups:
                self._end(name)
                continue
            state = sessions.peek(name)
            if state is not None and state.queued:
                groups.waiting.add(name)
        for name in groups:
            if name not in sessions:
                self._open(name)

    def _changed(self, name: str) -> None:
        sessions = self._node.state.sessions
        if name in self._node.router.groups:
            if name not in sessions:
                self._open(name)
        elif name in sessions:
            self._end(name)

    def _open(self, name: str) -> None:
        """Open the session with its only subscription."""
        node, topic_filter = self._node, split_share(name)[1]
        opened = SessionOpened(name, False, False, 5, 0, 1, "", None)
        opened.expiry = NEVER_EXPIRES
        node.emit(opened)
        node.emit(Subscribed(name, [(topic_filter, _QOS)]))
        node.emit(SessionClosed(name, "shared", 1))
        node.router.subscribe(name, topic_filter, _QOS)

    def _end(self, name: str) -> None:
        """End the session with what waits in it."""
        node = self._node
        node.router.remove_session(name)
        node.emit(SessionExpired(name, "no_members"))
        session = node.directory.find_session(name)
        if session is not None:
            node.directory.retire(session)

    def _wake(self, name: str) -> None:
        node = self._node
        node.tell_session(node.directory.session(name), ContinueSending())


def refs_to_return(session: Session) -> list[Position]:
    """Return the positions of what a member has to return should its connection end now."""
    state = session.state
    pids = [pid for some in decisions.shared_in_flight(state).values() for pid in some]
    return [state.inflight[pid].ref for pid in pids]


def return_unacknowledged(
    node: NodeContext, session: Session, found: dict[Position, Message], *, ends: bool
) -> None:
    """Return what a member that goes did not acknowledge to its shared subscriptions.

    ``ends``: its session ends with its connection. What is of a shared subscription that has no
    other member then goes with it; what is of one that ended before is for this client alone.
    """
    state, groups = session.state, node.router.groups
    for name, pids in decisions.shared_in_flight(state).items():
        members = groups.find(name).members
        if not members or (ends and members == {session.name}):
            continue
        refs = [state.inflight[pid].ref for pid in pids]
        for some in decisions.in_parts(pids):
            of = [state.inflight[pid].ref for pid in some]
            session.emit(Returned(session.name, name, to_runs(some), to_runs(of)))
        node.directory.session(name).take_back({ref: found[ref] for ref in refs})
