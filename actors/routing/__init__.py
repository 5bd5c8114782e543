"""The subscription index of a node: finds the subscriptions that match a topic."""

from actors.routing.router import NOWHERE, Route, Router, Subscriber
from actors.routing.shared_groups import SharedGroup, is_shared

__all__ = [
    "NOWHERE",
    "Route",
    "Router",
    "SharedGroup",
    "Subscriber",
    "is_shared",
]
