"""Which subscribers get which messages of a batch, and how many messages to route in one turn.

Pure functions of the routes of the messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from actors.routing.routes import NOWHERE, REFUSED, Route
from actors.routing.subscriber import Subscriber

SomeMessages: TypeAlias = "tuple[Sequence[Subscriber], Sequence[int] | None]"
"""Subscribers, and indices into a batch of messages; None: all of them."""

_RECEIVER, _MESSAGE, _MESSAGE_QOS0 = 100.0, 4.0, 0.1
"""Cost in microseconds of a batch for each receiver, and of each message in it with its answers."""
_FEW, _AT_LEAST = 8, 16
"""Maximum receivers for which a part has a minimum of messages; that minimum, at any pace."""


class RoutingPlan:
    """The receivers of the messages of a batch."""

    __slots__ = ("deliveries", "frozen", "observed", "withheld")

    def __init__(
        self,
        deliveries: Sequence[SomeMessages],
        withheld: Sequence[SomeMessages],
        frozen: Sequence[str],
        *,
        observed: bool,
    ) -> None:
        self.deliveries = deliveries
        """Each set of subscribers that gets the same messages."""
        self.withheld = withheld
        """Subscribers that may not read some messages."""
        self.observed = observed
        """Whether an observer of topics is to be notified."""
        self.frozen = frozen
        """Frozen sessions that get some of the messages: they are activated first, and the messages
        are then planned again."""


def plan_routing(message_routes: Sequence[Route], qos: int) -> RoutingPlan:
    """Return the receivers of messages with these routes; one route: that of all messages.

    A subscriber gets its messages in their order, whatever their topics.
    """
    first = message_routes[0]
    if message_routes.count(first) == len(message_routes):
        return RoutingPlan(
            [(first.targets, None)] if first.targets else [],
            [(first.denied, None)] if first.denied else [],
            first.to_activate(qos),
            observed=first.observed,
        )
    groups: dict[Route, list[int]] = defaultdict(list)
    for at, route in enumerate(message_routes):
        groups[route].append(at)
    groups.pop(NOWHERE, None)
    groups.pop(REFUSED, None)
    withheld: list[SomeMessages] = [
        (route.denied, chosen) for route, chosen in groups.items() if route.denied
    ]
    owners: dict[Subscriber, list[Route]] = defaultdict(list)
    observed = False
    frozen: list[str] = []
    for route in groups:
        if route.observed:
            observed = True
        if route.frozen:
            frozen += route.to_activate(qos)
        for target in route.targets:
            owners[target].append(route)
    if len(owners) == sum(len(route.targets) for route in groups):
        deliveries: list[SomeMessages] = [
            (route.targets, chosen) for route, chosen in groups.items() if route.targets
        ]
        return RoutingPlan(deliveries, withheld, frozen, observed=observed)
    # A session may get messages by several routes: they must be merged to stay in order.
    shared: dict[tuple[Route, ...], list[Subscriber]] = defaultdict(list)
    for target, routes in owners.items():
        shared[tuple(routes)].append(target)
    merged: list[SomeMessages] = [
        (
            targets,
            groups[routes[0]]
            if len(routes) == 1
            else sorted(at for route in routes for at in groups[route]),
        )
        for routes, targets in shared.items()
    ]
    return RoutingPlan(merged, withheld, frozen, observed=observed)


def same_route_at_once(route: Route, count: int, qos: int, enough: float) -> int:
    """Return how many of ``count`` messages with one route to route in one turn.

    ``enough`` are the microseconds of work after which a turn is long enough.
    """
    receivers = _receivers(route, qos)
    if not receivers:
        return count
    work = max(enough, receivers * _RECEIVER)
    return min(count, 1 + int(work / (receivers * _cost(qos))))


def routes_at_once(message_routes: Sequence[Route], qos: int, enough: float) -> int:
    """Return how many messages with these routes to route in one turn.

    Each part has a fixed cost for every set of receivers and a cost for each message; the latter
    should not be several times the former.
    """
    each = _cost(qos)
    sizes = [_receivers(route, qos) for route in set(message_routes)]
    receivers = sum(sizes)
    if receivers * (_RECEIVER + each * len(message_routes)) <= enough:
        return len(message_routes)
    if receivers <= _FEW:
        # In shorter parts each message would cost what a part costs once.
        return min(len(message_routes), max(_AT_LEAST, int(enough / (max(sizes) * each))))
    seen: set[Route] = set()
    once = spent = 0.0
    for count, route in enumerate(message_routes):
        new = route not in seen
        if count and once + spent > enough and (new or spent > once):
            return count
        receivers = _receivers(route, qos)
        spent += receivers * each
        if new:
            seen.add(route)
            once += receivers * _RECEIVER
    return len(message_routes)


def _cost(qos: int) -> float:
    return _MESSAGE if qos else _MESSAGE_QOS0


def _receivers(route: Route, qos: int) -> int:
    """Return how many receivers cause work per message; denied ones do not at QoS 0."""
    return len(route.targets) + (len(route.denied) if qos else 0)
