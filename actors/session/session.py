"""The session actor: one for each client identifier, its state a fold of its events.

Every decision becomes events; an event is appended to the journal and applied to the state
immediately. The resulting output for the client (acknowledgements, deliveries) is handed to the
gate and sent when the events are on disk.

A session whose client is offline has no connection and no subscription actors: messages that match
its subscriptions are sent directly to it and queued. After some time without messages it is
froze.

Work of unbounded length (many filters, many messages, many receivers) is done in parts, each in a
separate turn. Until it is done, all other messages to the session wait, except deliveries.
"""

from typing import Any, ClassVar, Final

import structlog

from actors.kernel.references import ActorFailed
from actors.session.core import CONTINUE, SessionCore
from actors.session.decisions import queueing
from actors.session.delivery import Delivery
from actors.session.lifecycle import SessionLifecycle
from actors.session.node_context import NodeContext
from actors.session.packet_handler import PacketHandler
from actors.session.session_messages import (
    AckCheck,
    ConnectionAttached,
    ConnectionDetached,
    ContinueSending,
    Kick,
    Loaded,
    Outgoing,
    Packets,
    Remove,
    Writable,
)
from actors.session.subscription_actor import Subscription
from actors.session.subscription_handler import SubscriptionHandler
from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position, sequence_of
from projections.state.session import SessionState

_log = structlog.get_logger("foldmq")

_ENDS_REST: Final = frozenset({ConnectionAttached, ConnectionDetached, Kick, Remove})
"""Messages that end the pause of a client whose subscription changes are throttled."""


class Session(SessionCore):
    """The session of a client."""

    __slots__ = (
        "_lifecycle",
        "_recorded",
        "_subscriptions",
        "delivery",
        "publisher",
        "to_deliver",
    )

    __deletable__ = ("_lifecycle", "_subscriptions", "delivery", "publisher")
    delivery_class: ClassVar[type[Delivery]] = Delivery

    def __init__(self, node: NodeContext, name: str, state: SessionState | None) -> None:
        super().__init__(node, name, state)
        self.delivery = delivery = self.delivery_class(node, self)
        """Deliveries to the client, and the queue."""
        self._subscriptions = subscriptions = SubscriptionHandler(node, self, delivery)
        self.publisher = publisher = PacketHandler(node, self, delivery, subscriptions)
        """Handles the packets of the client; records and routes what it publishes."""
        self._lifecycle = SessionLifecycle(node, self, delivery, publisher, subscriptions)
        self._recorded: list[tuple[Event, Position, int]] | None = None
        self.to_deliver: list[Outgoing] | None = None
        """Remaining deliveries of a failed subscription; None: there are none."""

    @property
    def loading(self) -> bool:
        """True while messages for the session are being read from the log."""
        return self.delivery.loading

    # Mailbox.

    def on_receive(self, message: Any) -> None:
        """Handle one message; while messages are being loaded, all others wait except deliveries.

        Deliveries include those of a failed subscription: the publisher gets its acknowledgement as
        soon as the publication is on disk, so deliveries must be recorded with it, as queued.
        """
        if self._recorded is not None:
            if type(message) is Outgoing:
                self.record_unseen(message, 0)
            else:
                self._defer(message)
            return
        if message is CONTINUE:
            self._continue_work()
        elif (self._work is not None or self.delivery.loading) and type(message) not in (
            Loaded,
            Outgoing,
            ActorFailed,
        ):
            self._defer(message)
            if self._subscriptions.throttled and type(message) in _ENDS_REST:
                self._continue_work()
        else:
            self._handle(message)

    def _handle(self, message: Any) -> None:
        kind = type(message)
        if kind is Packets:
            self.publisher.handle(message)
        elif kind is Outgoing:
            self.delivery.deliver(message)
        elif kind is Writable:
            if message.connection is self.connection:
                self.delivery.send_queued()
        elif kind is Loaded:
            self.delivery.loaded(message.messages)
            self._unstash()
        elif kind is AckCheck:
            self.delivery.check_acks()
        elif kind is ContinueSending:
            self.delivery.continue_sending()
        elif kind is ActorFailed:
            self._on_failed(message)
        else:
            self._lifecycle.handle(message)

    # Members used by the fast path, which decides for many sessions in one pass; see
    # ``actors.fast_path``.

    @property
    def free(self) -> bool:
        """True while no message or work is pending for the session and no trace follows it."""
        return (
            self._waiting is None
            and self._work is None
            and self._recorded is None
            and self.observer is None
            and not self.stopped
            and not self._stash
            and not self.delivery.loading
            and not self.publisher.is_bridge
        )

    @property
    def awaits_acks(self) -> bool:
        """True while messages wait that an acknowledgement of the client may give room."""
        if self.state.queued or self.delivery.resuming or self.delivery.replays is not None:
            return True
        return self._node.router.groups.await_room(self.name)

    def _on_failed(self, message: ActorFailed) -> None:
        """Replace a failed subscription; deliver the messages that it did not handle."""
        failed = message.actor
        if not isinstance(failed, Subscription):
            return
        subscriber = failed.subscriber
        if subscriber.actor is failed:
            subscriber.actor = None
            if self.connection is not None:
                self._subscriptions.start_actor(subscriber)
        self.to_deliver = outgoings = failed.outgoings(message)
        while outgoings:
            self._handle(outgoings[0])
            outgoings.pop(0)
        self.to_deliver = None

    # Output to the client.

    def send_queued(self) -> None:
        """Send queued messages for which the client has room."""
        self.delivery.send_queued()

    # Rebuild after a failure.

    def begin_rebuild(self) -> None:
        """Replace a failed session: record deliveries, defer everything else.

        The state left by the failed session suffices to find the queue that messages must join.
        """
        self._recorded = []
        state = self._node.state.sessions.get(self.name)
        if state is not None:
            self.state = state

    def record_unseen(self, outgoing: Outgoing, start: int) -> None:
        """Record the deliveries of a session without state as queued, from ``start`` on."""
        subscriber, batch, qos = outgoing
        refs = batch.positions[start:]
        if not qos or not refs or subscriber.ended or self._recorded is None:
            return
        payloads = batch.payloads[start:]
        topic_filter = queueing.goes_behind(self.state, subscriber.filter) or subscriber.filter
        for event in queueing.queued(
            self.name,
            topic_filter,
            qos,
            refs,
            payloads,
            retain=batch.retain,
            expires=batch.expires[start:],
        ):
            at = self.emit(event)
            self._recorded.append((event, at, self._node.journal.steady_ms))

    def end_rebuild(self, state: SessionState | None, last_record: int, first: list[Any]) -> None:
        """Continue with a state folded up to record ``last``: handle ``first``, then the rest."""
        recorded, self._recorded = self._recorded, None
        self.state = state if state is not None else SessionState(self.name)
        if state is not None:
            for event, at, time_ms in recorded or ():
                if sequence_of(at) > last_record:
                    self._node.state.apply(event, at, time_ms)
        if self.state.queued:
            self.kernel.tell(self, ContinueSending())
        stashed, self._stash = self._stash, None
        for message in (*first, *(stashed or ())):
            self.kernel.tell(self, message)

    def on_failure(self, *_exc_info: object) -> None:
        """Replace the session immediately: no message may go to a stopped actor."""
        self.delivery.release_publishers()
        self._subscriptions.withdraw_announced()
        if self._lifecycle.attaching is not None:
            self._lifecycle.attaching.abort("session_failed")
        self._node.directory.on_session_failure(self)

    def release(self) -> None:
        """Drop the references to this stopped actor, which would form reference cycles."""
        self.delivery.forget()
        self._subscriptions.withdraw_announced()
        self._work = None
        del self.delivery, self.publisher, self._lifecycle, self._subscriptions
