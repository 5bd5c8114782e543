"""Sessions: decisions, publishing, routing, subscriptions, delivery and back-pressure."""

from actors.session.actor_messages import (
    Attach,
    Authenticated,
    Batch,
    ChangeQos,
    Close,
    ConnectRequest,
    Detached,
    Expire,
    Kick,
    Loaded,
    Outgoing,
    Packets,
    Publication,
    Remove,
    Retire,
    Retry,
    Writable,
)
from actors.session.authorization import Authorizer
from actors.session.interfaces import ClientConnection
from actors.session.node_context import NodeContext
from actors.session.operator_commands import OperatorCommand
from actors.session.publisher import Publisher
from actors.session.session import Session
from actors.session.subscription import Subscription

__all__ = [
    "Attach",
    "Authenticated",
    "Authorizer",
    "Batch",
    "ChangeQos",
    "ClientConnection",
    "Close",
    "ConnectRequest",
    "Detached",
    "Expire",
    "Kick",
    "Loaded",
    "NodeContext",
    "OperatorCommand",
    "Outgoing",
    "Packets",
    "Publication",
    "Publisher",
    "Remove",
    "Retire",
    "Retry",
    "Session",
    "Subscription",
    "Writable",
]
