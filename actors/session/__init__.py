"""Sessions: decisions, publishing, routing, subscriptions, delivery and backpressure."""

from actors.session.authorization import Authorizer
from actors.session.delivery import Delivery
from actors.session.interfaces import ClientConnection, MessageExchange
from actors.session.node_context import NEVER_EXPIRES, HeldTime, NodeContext
from actors.session.publisher import Publisher
from actors.session.session import Session
from actors.session.session_messages import (
    Authenticated,
    AuthenticationStep,
    Batch,
    ChangeQos,
    Close,
    ConnectionAttached,
    ConnectionDetached,
    ConnectRequest,
    ContinueSending,
    Expire,
    Kick,
    Loaded,
    Outgoing,
    Packets,
    Passivate,
    Publication,
    Remove,
    Retry,
    Writable,
)
from actors.session.subscription_actor import Subscription, enqueue

__all__ = [
    "NEVER_EXPIRES",
    "Authenticated",
    "AuthenticationStep",
    "Authorizer",
    "Batch",
    "ChangeQos",
    "ClientConnection",
    "Close",
    "ConnectRequest",
    "ConnectionAttached",
    "ConnectionDetached",
    "ContinueSending",
    "Delivery",
    "Expire",
    "HeldTime",
    "Kick",
    "Loaded",
    "MessageExchange",
    "NodeContext",
    "Outgoing",
    "Packets",
    "Passivate",
    "Publication",
    "Publisher",
    "Remove",
    "Retry",
    "Session",
    "Subscription",
    "Writable",
    "enqueue",
]
