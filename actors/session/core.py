"""The part of a session that its parts use: its name, state and connection, and longer work.

:class:`actors.session.session.Session` is a core with its parts, such as ``Delivery`` and
``SubscriptionHandler``. These get the core, and know nothing of each other but what they are given.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from actors.kernel.actor import LoopActor
from actors.node.read_pause import ReadPause
from actors.session.node_context import NodeContext
from actors.session.session_messages import NEXT_TURN, SAME_TURN, ClientConnection
from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position
from projections.state.session import SessionState

CONTINUE: Final = object()
"""Tells the session to do the next part of longer work."""
_PAUSE: Final[Iterator[object]] = iter(())
"""Work without parts: what is deferred waits for the next turn."""


class SessionCore(LoopActor):
    """Name, state, connection and longer work of a session."""

    __slots__ = (
        "_node",
        "_stash",
        "_work",
        "connection",
        "held_back",
        "last_active",
        "last_subscription",
        "name",
        "state",
    )

    def __init__(self, node: NodeContext, name: str, state: SessionState | None) -> None:
        super().__init__()
        self._node = node
        self.name = name
        self.state = state if state is not None else SessionState(name)
        self.connection: ClientConnection | None = None
        self.last_active = node.clock.monotonic()
        self._stash: list[Any] | None = None
        """Deferred messages; None: there are none."""
        self._work: Iterator[object] | None = None
        """Longer work that is not finished."""
        self.held_back = 0
        """Number of messages in the mailboxes of its subscriptions; output sent to the client
        meanwhile would overtake them."""
        self.last_subscription: LoopActor | None = None
        """The subscription whose mailbox contains the last of these messages."""

    def __str__(self) -> str:
        """Return the client identifier."""
        return self.name

    @property
    def client(self) -> str:
        """The client identifier."""
        return self.name

    @property
    def loading(self) -> bool:
        """True while messages for the session are being read from the log."""
        raise NotImplementedError

    @property
    def free(self) -> bool:
        """True while no message or work is pending for the session and no trace follows it."""
        raise NotImplementedError

    @property
    def awaits_acks(self) -> bool:
        """True while messages wait that an acknowledgement of the client may give room."""
        raise NotImplementedError

    def send_queued(self) -> None:
        """Send queued messages for which the client has room."""
        raise NotImplementedError

    def _handle(self, message: Any) -> None:
        raise NotImplementedError

    def passed_on(self) -> None:
        """Count messages that have left the mailbox of a subscription."""
        self.held_back -= 1
        if not self.held_back:
            self.last_subscription = None

    def answer(self, connection: ClientConnection, data: bytes, packets: int = 1) -> None:
        """Send the client a response when the events of this turn are on disk."""
        self._node.journal.send_when_durable(connection, data)
        self._node.counters.packets_out += packets

    # Longer work.

    @property
    def occupied(self) -> bool:
        """True while longer work is in progress; everything but deliveries waits for it."""
        return self._work is not None or self.loading

    def begin_work(self, work: Iterator[object]) -> None:
        """Begin longer work with its first part."""
        for pause in work:
            self._work = work
            if self.connection is not None:
                self.connection.pause(ReadPause.WORK)
            if pause is NEXT_TURN:
                self.kernel.later(self, CONTINUE)
            elif pause is SAME_TURN:
                self.kernel.tell(self, CONTINUE)
            else:
                self.start_timer(self._node.timers, cast("float", pause), self._continue_work_later)
            return

    def _defer(self, message: Any) -> None:
        """Handle a message after those that were deferred before it."""
        if self._stash is None:
            self._stash = [message]
        else:
            self._stash.append(message)

    def stash_first(self, message: Any) -> None:
        """Handle a message before all deferred ones."""
        self._stash = [message, *(self._stash or ())]

    def _continue_work_later(self) -> None:
        self.kernel.later(self, CONTINUE)

    def _continue_work(self) -> None:
        """Do the next part of longer work; after the last one, handle deferred messages."""
        work, self._work = self._work, None
        if work is not None and work is not _PAUSE:
            self.begin_work(work)
            if self._stash and not self.stopped and not self.occupied:
                self._pause()
        self._unstash()

    def _pause(self) -> None:
        """Handle the next deferred message in another turn, after the other actors."""
        self._work = _PAUSE
        if self.connection is not None:
            self.connection.pause(ReadPause.WORK)
        self.kernel.later(self, CONTINUE)

    def _unstash(self) -> None:
        """Handle the deferred messages, each in a separate turn."""
        if self.stopped or self.occupied:
            return
        stash = self._stash
        if stash:
            self._handle(stash.pop(0))
            if self._stash and not self.stopped and not self.occupied:
                self._pause()
        if self.stopped or self.occupied or self._stash:
            return
        if self.connection is not None:
            self.connection.resume(ReadPause.WORK)
            if self.state.queued:
                self.send_queued()

    def on_part_done(self, seconds: float) -> None:
        """Adapt the length of the next part of longer work to the duration of the last one."""
        if self.connection is not None:
            self.connection.on_part_done(seconds)

    def at_once(self, most: int) -> int:
        """Return how many of ``most`` items to handle in one turn, at the pace of the client."""
        connection = self.connection
        return most if connection is None else max(1, int(most * connection.pace))

    def on_dead_letters(self, messages: list[Any]) -> None:
        """Pass messages that arrived after it was frozen to the session's successor."""
        self._node.directory.redirect(self.name, messages)

    def emit(self, event: Event, payloads: Sequence[bytes] = (), size: int = 0) -> Position:
        """Append an event and apply it; return its first position."""
        return self._node.emit(event, payloads, size)

    @property
    def now_ms(self) -> int:
        """The time of the log in Unix milliseconds."""
        return self._node.log_ms

    def drop_denied(self, topic_filter: str, refs: Sequence[Position]) -> None:
        """Record that the client does not get messages that it is not permitted to read."""
        node = self._node
        if self.name in node.state.sessions or self.name in node.rebuilding:  # it has not ended
            node.drop(self.name, "not_permitted", refs, topic_filter)

    def drain_stash(self) -> list[Any]:
        """Return the deferred messages, for the successor of the session."""
        unhandled, self._stash = self._stash, None
        return unhandled or []
