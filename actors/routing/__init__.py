"""The subscription index of a node: finds the subscriptions that match a topic."""

from actors.routing.remote_members import RemoteMembers
from actors.routing.router import Router, routed
from actors.routing.routes import NOWHERE, Route
from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber, is_shared
from actors.routing.subscription_options import (
    is_no_local,
    is_retain_as_published,
    sends_retained,
)

__all__ = [
    "NOWHERE",
    "RemoteMembers",
    "Route",
    "Router",
    "SharedGroup",
    "Subscriber",
    "is_no_local",
    "is_retain_as_published",
    "is_shared",
    "routed",
    "sends_retained",
]
