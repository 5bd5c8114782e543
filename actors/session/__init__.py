"""Sessions: decisions, publishing, routing, subscriptions, delivery and backpressure."""

from actors.session.authorization import Authorizer
from actors.session.delivery import Delivery
from actors.session.interfaces import ClientConnection
from actors.session.node_context import NEVER_EXPIRES, NodeContext
from actors.session.operator_commands import OperatorCommand
from actors.session.publisher import Publisher, select
from actors.session.session import Session
from actors.session.session_messages import (
    Attach,
    Authenticated,
    AuthenticationStep,
    Batch,
    ChangeQos,
    Close,
    ConnectRequest,
    ContinueSending,
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
from actors.session.subscription import Subscription

__all__ = [
    "NEVER_EXPIRES",
    "Attach",
    "Authenticated",
    "AuthenticationStep",
    "Authorizer",
    "Batch",
    "ChangeQos",
    "ClientConnection",
    "Close",
    "ConnectRequest",
    "ContinueSending",
    "Delivery",
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
    "select",
]
