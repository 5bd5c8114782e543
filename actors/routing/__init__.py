"""The subscription index of a node: finds the subscriptions that match a topic."""

from actors.routing.router import NOWHERE, Route, Router
from actors.routing.shared_groups import SharedGroup, is_shared
from actors.routing.subscriber import Subscriber

__all__ = [
    "NOWHERE",
    "Route",
    "Router",
    "SharedGroup",
    "Subscriber",
    "is_shared",
]
