"""The subscription actor: one for each subscription of a connected session.

It keeps the granted options, takes the batches that match, caps their QoS and passes the deliveries
to its session. The inspector shows it as the subscription.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pykka

from actors.kernel.actor import LoopActor
from actors.kernel.references import ActorFailed
from actors.routing.subscriber import Subscriber
from actors.session.core import SessionCore
from actors.session.delivery import Delivery
from actors.session.delivery_encoder import remaining_properties
from actors.session.session_messages import Batch, ChangeQos, DeniedMessages, Outgoing
from eventstore.format.stored_properties import expired_until
from projections.state.retained import RetainedMessage


class Subscription(LoopActor):
    """Delivers messages that match one topic filter to one session."""

    __slots__ = ("_subscriber", "delivery", "granted", "matched", "replayed", "session")

    def __init__(self, session: SessionCore, delivery: Delivery, subscriber: Subscriber) -> None:
        super().__init__()
        self.session = session
        """The session that receives the deliveries."""
        self.delivery = delivery
        """The deliveries of that session."""
        self._subscriber = subscriber
        self.granted = subscriber.qos
        """The QoS granted when the next message was sent here. After a renewal with another QoS,
        the mailbox may still contain messages that matched under the earlier one."""
        self.matched = 0
        """Messages that matched since the session connected."""
        self.replayed = 0
        """Number of retained messages among them."""

    @property
    def client(self) -> str:
        """The client identifier of the session."""
        return self._subscriber.session

    @property
    def free(self) -> bool:
        """True while nothing waits for the actor or for its session, and no trace follows it."""
        return (
            self._waiting is None
            and self.observer is None
            and not self.stopped
            and not self.session.held_back
            and self.session.free
        )

    def renew(self, subscriber: Subscriber) -> None:
        """Deliver for a subscription that has replaced the one with the same filter."""
        self._subscriber = subscriber

    def enqueue(
        self, messages: Batch | list[RetainedMessage], matched: Subscriber | None = None
    ) -> None:
        """Put messages for the client into a mailbox, in the order of all its subscriptions.

        ``matched`` is the subscription that they matched, which another one may have replaced
        meanwhile: its QoS applies.

        If another subscription of the session has the newest waiting messages in its mailbox, the
        messages are put there: in the mailbox of this subscription they could overtake those. The
        other subscription passes them on.
        """
        session = self.session
        last_actor = session.last_subscription
        subscriber = self._subscriber if matched is None else matched
        if (
            not session.held_back
            or last_actor is None
            or last_actor is self
            or self._waiting is None
            or last_actor.stopped
        ):
            session.last_subscription = last_actor = self
            if subscriber is self._subscriber:
                self.kernel.tell(self, messages)
                session.held_back += 1
                return
        self.matched += len(messages)
        batches: Iterable[Batch] = (messages,) if isinstance(messages, Batch) else ()
        if isinstance(messages, list):
            self.replayed += len(messages)
            batches = self._retained_batches(messages)
        for batch in batches:
            qos = batch.qos if batch.qos < subscriber.qos else subscriber.qos
            self.kernel.tell(last_actor, Outgoing(subscriber, batch, qos))
            session.held_back += 1

    @property
    def subscriber(self) -> Subscriber:
        """The subscription that this actor delivers for."""
        return self._subscriber

    def on_receive(self, message: Any) -> None:
        """Handle a batch that matches, or the retained messages requested by a SUBSCRIBE.

        Other messages report matching messages that the client may not read, which are recorded, or
        contain the delivery of another subscription of the session, which is passed on.
        """
        if type(message) is Batch:
            self.matched += len(message)
            self._forward(self.outgoing(message))
            self.session.passed_on()
        elif type(message) is Outgoing:
            self._forward(message)
            self.session.passed_on()
        elif type(message) is ChangeQos:
            self.granted = message.qos
        elif type(message) is DeniedMessages:
            self._record_withheld(message)
        else:
            self._replay(message)
            self.session.passed_on()

    def on_dead_letters(self, messages: list[Any]) -> None:
        """Forward messages published before the subscription ended."""
        for message in messages:
            self.on_receive(message)

    def outgoing(self, batch: Batch) -> Outgoing:
        """Return the delivery of a batch to the session: its QoS is capped by the granted one."""
        qos = batch.qos if batch.qos < self.granted else self.granted
        return Outgoing(self._subscriber, batch, qos)

    def outgoings(self, failed: ActorFailed) -> list[Outgoing]:
        """Return the deliveries that this actor would have sent, had it not failed."""
        deliveries: list[Outgoing] = []
        for message in (failed.message, *failed.unseen):
            if isinstance(message, (Batch, Outgoing, list)):
                self.session.passed_on()
            if isinstance(message, Batch):
                deliveries.append(self.outgoing(message))
            elif isinstance(message, Outgoing):
                deliveries.append(message)
            elif isinstance(message, ChangeQos):
                self.granted = message.qos
            elif isinstance(message, DeniedMessages):
                self._record_withheld(message)
            elif isinstance(message, list):
                deliveries += map(self.outgoing, self._retained_batches(message))
        return deliveries

    def _forward(self, outgoing: Outgoing) -> None:
        try:
            self.session.kernel.tell(self.session, outgoing)
        except pykka.ActorDeadError:
            self.session.on_dead_letters([outgoing])

    def _record_withheld(self, message: DeniedMessages) -> None:
        self.session.drop_denied(self._subscriber.filter, message.refs)

    def _replay(self, messages: list[RetainedMessage]) -> None:
        self.matched += len(messages)
        self.replayed += len(messages)
        for batch in self._retained_batches(messages):
            self._forward(self.outgoing(batch))

    def _retained_batches(self, messages: list[RetainedMessage]) -> Iterator[Batch]:
        """Yield retained messages in batches, in the order of their publication within each QoS.

        Expired messages are left out.
        """
        if any(message.expires for message in messages):
            passed = expired_until(self.session.now_ms)
            messages = [message for message in messages if not 0 < message.expires <= passed]
        for qos in sorted({message.qos for message in messages}):
            chosen = [message for message in messages if message.qos == qos]
            payloads = [message.payload for message in chosen]
            batch = Batch(
                qos,
                [message.topic.encode() for message in chosen],
                payloads,
                [message.ref for message in chosen],
                size=sum(map(len, payloads)),
                retain=True,
            )
            if any(message.block for message in chosen):
                now_ms = self.session.now_ms
                batch.blocks = remaining_properties(chosen, now_ms)
                if any(message.expires for message in chosen):
                    batch.expires = [message.expires for message in chosen]
            yield batch


def enqueue(actor: LoopActor, messages: Batch, matched: Subscriber) -> None:
    """Put messages into the mailbox of the actor of the subscription that they matched."""
    if isinstance(actor, Subscription):
        actor.enqueue(messages, matched)
    else:
        actor.kernel.tell(actor, messages)
