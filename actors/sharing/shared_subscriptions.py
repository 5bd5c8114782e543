"""The life cycle of shared subscriptions: from their first member to their last one."""

from __future__ import annotations

from typing import ClassVar, cast

from actors.routing.subscriber import is_shared
from actors.session.delivery import Delivery
from actors.session.node_context import NEVER_EXPIRES, NodeContext
from actors.session.session import Session
from actors.session.session_messages import ContinueSending, Outgoing
from actors.sharing.shared_delivery import SharedDelivery
from eventstore.format.events import (
    LOG_SESSION,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from projections.state.session import SHARED_HOME, SHARED_PART, SessionState
from protocol.mqtt.shared_filters import split_share

_QOS = 2
"""The granted QoS of each member limits it."""


class SharedSubscriptions:
    """Opens, ends and wakes the sessions of shared subscriptions."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def begin(self) -> None:
        """Reconcile the sessions with their members after recovery, then track changes."""
        groups, sessions = self._node.router.groups, self._node.state.sessions
        exchange = self._node.exchange
        if exchange is not None:
            groups.home_of = exchange.home_of
            for name in groups:
                groups.find(name).home = exchange.home_of(name)
        groups.wake = self._wake
        for name in [name for name in sessions if is_shared(name)]:
            state = sessions.peek(name)
            for subscription in state.active() if state is not None else ():
                if subscription.filter.startswith(LOG_SESSION):
                    groups.log_joined(name, subscription.filter.removeprefix(LOG_SESSION))
            if name not in groups:
                self._end(name)
            elif state is not None and (state.queued or groups.find(name).home):
                groups.waiting.add(name)
        groups.on_change = self._changed
        for name in groups:
            if name not in sessions:
                self._open(name)
            elif exchange is not None and groups.find(name).home:
                exchange.part_began(name, self._node.journal.last)
                self._wake(name)

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
        options, is_part = 0, False
        if node.exchange is not None:
            is_part = bool(node.exchange.home_of(name))
            options = SHARED_PART if is_part else SHARED_HOME
        at = self._emit(name, Subscribed(name, [(topic_filter, _QOS)]), options, resumed=False)
        if is_part and node.exchange is not None:
            node.exchange.part_began(name, at)
            node.router.groups.waiting.add(name)  # it is notified when a member has room
        else:
            node.router.subscribe(name, topic_filter, _QOS, options=options)

    def _emit(
        self, name: str, event: Subscribed | Unsubscribed, options: int = 0, *, resumed: bool
    ) -> int:
        """Record a change of the session, which has no connection; return its position."""
        node = self._node
        state = node.state.sessions.get(name)
        generation = state.generation + 1 if state is not None else 1
        opened = SessionOpened(name, resumed, False, 5, 0, generation, "", None)
        opened.expiry = NEVER_EXPIRES
        at = node.emit(opened)
        if options and isinstance(event, Subscribed):
            event.options = [options]
        node.emit(event)
        node.emit(SessionClosed(name, "shared", generation))
        return at

    def _end(self, name: str) -> None:
        """End the session and drop its queued messages, if other logs have no members either."""
        node = self._node
        session = node.directory.session(name)  # for a frozen one the router has only filters
        if node.exchange is not None and node.exchange.home_of(name):
            cast("SharedSession", session).shared_delivery.give_back()
            node.exchange.part_ended(name)
        node.router.groups.waiting.discard(name)
        node.router.remove_session(name)
        node.emit(SessionExpired(name, "no_members"))
        node.clients.session_ended(name)
        node.directory.retire(session, running=False)

    def _wake(self, name: str) -> None:
        node = self._node
        node.tell_session(node.directory.session(name), ContinueSending())

    # Other logs.

    def log_joined(self, name: str, log: str) -> None:
        """Record that another log has members of a shared subscription whose home is this one."""
        groups = self._node.router.groups
        if log in groups.find(name).logs:
            return
        groups.log_joined(name, log)
        self._emit(name, Subscribed(name, [(LOG_SESSION + log, 0)]), resumed=True)

    def log_left(self, name: str, log: str) -> None:
        """Record that another log no longer has members."""
        groups = self._node.router.groups
        group = groups.find(name)
        if log not in group.logs:
            return
        if group.members or len(group.logs) > 1:
            self._emit(name, Unsubscribed(name, [LOG_SESSION + log]), resumed=True)
        groups.log_left(name, log)

    def receiver(self, name: str) -> SharedSession | None:
        """Return the session that takes messages that another log assigned or returned.

        A part that has ended begins again, to return the messages: see :meth:`settled`. None: no
        log has members.
        """
        node = self._node
        if name not in node.state.sessions:
            if node.exchange is None or not node.exchange.home_of(name):
                return None
            self._open(name)
        return cast("SharedSession", node.directory.session(name))

    def settled(self, name: str) -> None:
        """End a part that began again only to return messages."""
        if name in self._node.state.sessions and name not in self._node.router.groups:
            self._end(name)


class SharedSession(Session):
    """The session of a shared subscription."""

    __slots__ = ()

    delivery_class: ClassVar[type[Delivery]] = SharedDelivery

    @property
    def shared_delivery(self) -> SharedDelivery:
        """Its deliveries, which go to members."""
        return cast("SharedDelivery", self.delivery)

    def add_assigned(self, outgoing: Outgoing) -> None:
        """Take messages that another log assigned to this one.

        They are recorded at once: this log is the only one that has them.
        """
        self.last_active = self._node.clock.monotonic()
        if self._recorded is not None:
            self.record_unseen(outgoing, 0)
        else:
            self.shared_delivery.add_assigned(outgoing)


def make_session(node: NodeContext, name: str, state: SessionState | None) -> Session:
    """Return the actor of a client's session, or of a shared subscription."""
    return (SharedSession if is_shared(name) else Session)(node, name, state)
