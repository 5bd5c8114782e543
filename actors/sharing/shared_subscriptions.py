"""The life cycle of shared subscriptions: from their first member to their last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.routing import is_shared
from actors.session import NEVER_EXPIRES, ContinueSending
from eventstore.format import (
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
)
from protocol.mqtt5 import split_share

if TYPE_CHECKING:
    from actors.session import NodeContext

_QOS = 2
"""Each member's granted QoS caps it."""


class SharedSubscriptions:
    """Opens, ends and wakes the sessions of shared subscriptions."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def begin(self) -> None:
        """Reconcile the sessions with their members after recovery, then track changes."""
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
        """End the session and drop its queued messages."""
        node = self._node
        session = node.directory.session(name)  # of a passive one the router has only filters
        node.router.remove_session(name)
        node.emit(SessionExpired(name, "no_members"))
        node.directory.retire(session, running=False)

    def _wake(self, name: str) -> None:
        node = self._node
        node.tell_session(node.directory.session(name), ContinueSending())
