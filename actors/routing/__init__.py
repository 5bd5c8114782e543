"""The subscription index of a node: finds the subscriptions that match a topic."""

from actors.routing.remote_members import RemoteMembers
from actors.routing.router import NOWHERE, Route, Router, routed
from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber, is_shared

__all__ = [
    "NOWHERE",
    "RemoteMembers",
    "Route",
    "Router",
    "SharedGroup",
    "Subscriber",
    "is_shared",
    "routed",
]
