"""The subscription index of a node: from a topic to the subscriptions that match it."""

from actors.routing.router import NOWHERE, Route, Router, Subscriber

__all__ = [
    "NOWHERE",
    "Route",
    "Router",
    "Subscriber",
]
