"""The session of a shared subscription: it has members in place of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from actors.routing.subscriber import is_shared
from actors.session.delivery import Delivery
from actors.session.session import Session
from actors.sharing.shared_delivery import SharedDelivery

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import Outgoing
    from eventstore.format.positions import Position
    from eventstore.log.message_store import Message
    from projections.state.session import SessionState


class SharedSession(Session):
    """The session of a shared subscription."""

    __slots__ = ()

    delivery_class: ClassVar[type[Delivery]] = SharedDelivery

    def take_back(self, returned: dict[Position, Message]) -> None:
        """Queue messages that a member returns."""
        cast("SharedDelivery", self._delivery).take_back(returned)

    def take_in(self, outgoing: Outgoing) -> None:
        """Take messages that another log assigned to this one.

        They are recorded at once: this log is the only one that has them.
        """
        self.last_active = self._node.clock.monotonic()
        if self._recorded is not None:
            self.record_unseen(outgoing, 0)
        else:
            cast("SharedDelivery", self._delivery).take_in(outgoing)

    def give_back(self) -> None:
        """Return all queued messages to the log that is the home of the shared subscription.

        They get assigned to members in other logs.
        """
        cast("SharedDelivery", self._delivery).give_back()


def make_session(node: NodeContext, name: str, state: SessionState | None) -> Session:
    """Return the actor of a client's session, or of a shared subscription."""
    return (SharedSession if is_shared(name) else Session)(node, name, state)
