"""The sessions of a node: their actors, the offline sessions, and their expiry.

A session has an actor while it is connected or has work; otherwise its state is frozen. Messages to
an actor that ended are passed to its successor.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from actors.broker.message_loading import MessageLoader
from actors.broker.supervision import start_successor
from actors.kernel.actor import LoopActor
from actors.maintenance.session_expiry import Expiries
from actors.routing.router import routed
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import (
    ConnectionAttached,
    ConnectRequest,
    Expire,
    Freeze,
    Kick,
    Outgoing,
    Remove,
)
from actors.sharing.shared_subscriptions import make_session
from eventstore.format.positions import Position
from projections.state.session import SessionState

SWEEP_INDEX = object()
"""Message to the root actor while ended subscriptions are in the index, or their actors run."""

_UNTIL_RECOVERED = 1.0
"""Seconds until the check of a session that is due before the recovery is complete."""
_LONGEST_TIMER = 3600.0
_NOTIFIED_AT_ONCE = 256
"""Maximum number of sessions that are notified in one iteration of the event loop."""
_WATCH_AT_ONCE, _WATCH_PAUSE = 500, 0.02
"""Number of offline sessions checked together, and seconds between batches."""
_STOPPING_AT_MOST = 20_000
"""Maximum number of actors that wait to be stopped; further ones are stopped immediately."""
_STOPPED_AT_ONCE = 256
"""Such actors stopped in one turn."""


class SessionRegistry:
    """Holds the actor of each session, activates and freezes sessions, schedules their expiry.

    This is the :class:`actors.session.interfaces.SessionDirectory` of the node.
    """

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._sessions: dict[str, Session] = {}
        self._offline: dict[Session, None] = {}
        self._expiries = Expiries(node.clock.monotonic, node.timers.after, self._expiry_due)
        self._loader = MessageLoader(node)
        self._stopping: deque[LoopActor] = deque()
        """Actors that get no more messages and wait to be stopped."""

    @property
    def attached(self) -> int:
        """The number of connected sessions."""
        return len(self._sessions) - len(self._offline)

    def any_attached(self) -> bool:
        """Return whether any session has a connection, open or about to end."""
        return any(session.connection is not None for session in self._sessions.values())

    def session(self, name: str) -> Session:
        """Return the actor of a session, activated if it was frozen."""
        session = self._sessions.get(name)
        if session is None:
            node = self._node
            session = make_session(node, name, node.state.sessions.get(name))
            self._sessions[name] = session
            self._offline[session] = None
            node.kernel.spawn(session, node.root)
        return session

    def find_session(self, name: str) -> Session | None:
        """Return the actor of a session; None if it is frozen or does not exist."""
        return self._sessions.get(name)

    def install(self, session: Session) -> None:
        """Make an actor the current one of its session."""
        before = self._sessions.get(session.name)
        if before is not None:
            self._offline.pop(before, None)
        self._sessions[session.name] = session

    def on_session_failure(self, session: Session) -> None:
        """Replace a session that has just failed."""
        start_successor(self._node, session)

    def redirect(self, name: str, messages: list[Any]) -> None:
        """Pass messages to the successor of a session that ended."""
        node = self._node
        if name in self._sessions or name in node.state.sessions:
            session = self.session(name)
            for message in messages:
                if isinstance(message, Outgoing):
                    node.router.remember(message.subscriber)
                node.kernel.tell(session, message)
            return
        for message in messages:
            if isinstance(message, ConnectionAttached):
                node.kernel.tell(node.root, ConnectRequest(message.connection, message.connect))
            elif isinstance(message, (Kick, Remove)):
                message.command.refuse("ended meanwhile")

    def load(self, session: Session, refs: Sequence[Position]) -> None:
        """Read messages from the log; the session gets a ``Loaded`` message."""
        self._loader.load(session, refs)

    # Connected, offline, frozen.

    def came_online(self, session: Session) -> None:
        """Record that a session has a connection."""
        self._offline.pop(session, None)

    def went_offline(self, session: Session) -> None:
        """Record that a session has no connection."""
        self._offline[session] = None
        self.watch_expiry(session.state)

    def retire(self, session: Session, *, running: bool = True) -> None:
        """Stop the actor of a session that ended or is frozen.

        ``running``: the actor itself calls this while it runs.
        """
        node = self._node
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        self._offline.pop(session, None)
        if running:
            node.kernel.stop_now(session)
        else:
            node.kernel.stop_other(session)
        unfinished = session.drain_stash()
        if unfinished:
            self.redirect(session.name, unfinished)
        state = node.state.sessions.live.get(session.name)
        if session.name not in node.state.sessions:
            self._expiries.forget(session.name)
        elif state is session.state and not state.connected and session.name not in self._sessions:
            self.freeze(session.name)
        session.release()

    def freeze(self, name: str) -> None:
        """Freeze an offline session: keep only what is needed to restore it."""
        node = self._node.state
        if node.dirty is not None:
            # This snapshot differs from the one in the projections.
            node.dirty.setdefault(name, node.sessions.live[name].saved)
        state = node.sessions.freeze(name, self._node.journal.next_position)
        if state is not None:
            self._node.router.freeze(name, [subscription.filter for subscription in routed(state)])

    def add_frozen(self, state: SessionState) -> None:
        """Add a session that is already frozen."""
        self._node.router.freeze(
            state.session, [subscription.filter for subscription in routed(state)]
        )
        self.watch_expiry(state)

    def freeze_idle(self, seconds: float) -> None:
        """Freeze the offline sessions without work for ``seconds``, some at a time."""
        node = self._node
        if node.router.is_matching() or node.activation.is_pending():
            return  # all receivers of a topic are to be active at the same time
        idle_since = node.clock.monotonic() - seconds
        idle = [
            session
            for session in self._offline
            if session.connection is None and session.last_active < idle_since
        ]
        node.in_parts(
            idle, _NOTIFIED_AT_ONCE, lambda session: node.tell_if_alive(session, Freeze())
        )

    # Expiry.

    def watch_expiry(self, state: SessionState) -> None:
        """Check an offline session when it may have expired, or its will is due."""
        delay = min(self._node.expires_in(state), self._node.will_due_in(state))
        if delay < float("inf"):
            self._expiries.watch(state.session, min(max(0.0, delay), _LONGEST_TIMER))

    def watch_all(self) -> None:
        """Check every offline session, since all may expire at other times than before."""
        self._node.spawn_task(self._watch_all())

    async def _watch_all(self) -> None:
        sessions = self._node.state.sessions
        for number, name in enumerate(sessions.names()):
            state = sessions.peek(name)
            if state is not None and not state.connected:
                self.watch_expiry(state)
            if number % _WATCH_AT_ONCE == 0:
                await asyncio.sleep(_WATCH_PAUSE)

    def _expiry_due(self, name: str) -> int:
        """Notify a session if it has expired; return how many subscriptions it then has."""
        node = self._node
        state = node.state.sessions.peek(name)
        if not node.recovered:
            self._expiries.watch(name, _UNTIL_RECOVERED)
        elif state is not None and not state.connected:
            if node.expires_in(state) <= 0 or node.will_due_in(state) <= 0:
                node.kernel.tell(self.session(name), Expire())
                return len(state.subscriptions)
            self.watch_expiry(state)
        return 0

    # Cleaning up after ended sessions.

    def stop_all(self, actors: Sequence[LoopActor]) -> None:
        """Stop actors that get no more messages, gradually if there are many."""
        if len(actors) <= _STOPPED_AT_ONCE or len(self._stopping) > _STOPPING_AT_MOST:
            for actor in actors:
                actor.stop()
            return
        if not self._stopping:
            self.sweep_later()
        self._stopping += actors

    def sweep_later(self) -> None:
        """Ask the root to call :meth:`sweep` in a later turn."""
        self._node.kernel.later(self._node.root, SWEEP_INDEX)

    def sweep(self) -> None:
        """Clean up after some ended sessions, and after the others later."""
        for _ in range(min(_STOPPED_AT_ONCE, len(self._stopping))):
            actor = self._stopping.popleft()
            if not actor.stopped:
                actor.stop()
        if self._node.router.sweep() or self._stopping:
            self.sweep_later()
