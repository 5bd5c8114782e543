"""The subscription index of a node: finds the subscriptions that match a topic."""

from actors.routing.option_semantics import (
    bridge_options,
    is_no_local,
    is_retain_as_published,
    sends_retained,
)
from actors.routing.remote_members import RemoteMembers
from actors.routing.router import Router, routed
from actors.routing.routes import Route
from actors.routing.routing_plan import (
    RoutingPlan,
    SomeMessages,
    plan_routing,
    routes_at_once,
    same_route_at_once,
)
from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber, is_shared

__all__ = [
    "RemoteMembers",
    "Route",
    "Router",
    "RoutingPlan",
    "SharedGroup",
    "SomeMessages",
    "Subscriber",
    "bridge_options",
    "is_no_local",
    "is_retain_as_published",
    "is_shared",
    "plan_routing",
    "routed",
    "routes_at_once",
    "same_route_at_once",
    "sends_retained",
]
