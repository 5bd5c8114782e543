"""The router: from a topic to its receivers."""

from __future__ import annotations

import pytest

from actors.routing import routes
from actors.routing.router import Router
from actors.routing.subscriber import Subscriber
from eventstore.format.events import Subscribed, Unsubscribed
from eventstore.format.positions import position
from projections.state.session import SessionState, evolve
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING


@pytest.fixture
def router() -> Router:
    return Router()


def who(router: Router, topic: str) -> dict[str, tuple[str, int]]:
    """Session -> filter and QoS, through the cache, which must agree with the index."""
    targets = router.routes[topic.encode()].targets
    assert set(targets) == set(router.match(topic)[0])
    assert len({target.session for target in targets}) == len(targets)
    return {target.session: (target.filter, target.qos) for target in targets}


@pytest.mark.mqtt("MQTT-3.3.5-1")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_overlapping_filters_the_highest_qos_is_chosen(
    router: Router, order: tuple[int, ...]
) -> None:
    filters = [("a/#", 0), ("a/+", 2), ("a/b", 1)]
    for at in order:
        router.subscribe("s", *filters[at])
    router.subscribe("other", "#", 1)
    assert who(router, "a/b") == {"s": ("a/+", 2), "other": ("#", 1)}
    assert who(router, "a") == {"s": ("a/#", 0), "other": ("#", 1)}
    router.unsubscribe("s", "a/+")
    assert who(router, "a/b") == {"s": ("a/b", 1), "other": ("#", 1)}


def test_subscribing_again_keeps_the_subscriber_unless_it_changes(router: Router) -> None:
    first = router.subscribe("s", "a", 2)
    assert who(router, "a") == {"s": ("a", 2)}
    assert router.subscribe("s", "a", 2) is first
    second = router.subscribe("s", "a", 0)
    assert who(router, "a") == {"s": ("a", 0)}
    assert router.subscriptions == 1
    # A message may still be on its way to the first one: it keeps its QoS.
    assert (first.qos, second.qos) == (2, 0)
    third = router.subscribe("s", "a", 0, options=NO_LOCAL)
    assert (second.options, third.options) == (0, NO_LOCAL)
    assert router.subscribers("s") == [third]
    assert router.unsubscribe("s", "a") is third
    assert router.subscriptions == 0
    assert not router.indexed("a")


def test_a_subscription_to_statistics_is_replaced_everywhere(router: Router) -> None:
    first = router.subscribe("s", "$SYS/#", 1)
    second = router.subscribe("s", "$SYS/#", 0)
    assert first is not second
    assert router.system == {second}
    assert router.match_system("$SYS/broker") == (second,)
    router.unsubscribe("s", "$SYS/#")
    assert not router.system


def test_a_member_of_a_shared_subscription_is_not_replaced(router: Router) -> None:
    first = router.subscribe("s", "$share/g/a", 2)
    assert router.subscribe("s", "$share/g/a", 1) is first
    assert first.qos == 1


def test_subscribing_again_lower_lets_another_filter_win(router: Router) -> None:
    router.subscribe("s", "a", 2)
    router.subscribe("s", "+", 1)
    assert who(router, "a") == {"s": ("a", 2)}
    router.subscribe("s", "a", 0)
    assert who(router, "a") == {"s": ("+", 1)}


def test_every_change_is_seen_by_the_cache(router: Router) -> None:
    assert router.routes[b"a"] is routes.NOWHERE
    router.subscribe("s", "a", 1)
    assert who(router, "a") == {"s": ("a", 1)}
    router.subscribe("t", "#", 1)
    assert set(who(router, "a")) == {"s", "t"}
    assert router.unsubscribe("s", "a") is not None
    assert set(who(router, "a")) == {"t"}
    router.remove_session("t")
    assert router.routes[b"a"] is routes.NOWHERE


def test_unsubscribing_an_unknown_filter(router: Router) -> None:
    router.subscribe("s", "a", 1)
    assert router.unsubscribe("s", "b") is None
    assert router.unsubscribe("nobody", "a") is None
    assert router.subscriptions == 1


def test_options_without_an_effect_on_routes_keep_them(router: Router) -> None:
    """Retain Handling alone used to drop every known route, for each SUBSCRIBE."""
    router.subscribe("s", "#", 1)
    known = router.routes[b"a"]
    router.subscribe("t", "b", 1, options=RETAIN_HANDLING | RETAIN_AS_PUBLISHED)
    router.subscribe("s", "#", 1, options=RETAIN_HANDLING)
    router.subscribe("t", "b", 1)
    assert router.routes.get(b"a") is known
    # Of equal subscriptions one with Retain As Published is taken.
    router.subscribe("s", "#", 1, options=RETAIN_AS_PUBLISHED)
    assert router.routes.get(b"a") is None


def test_of_equal_subscriptions_one_with_retain_as_published_is_taken(router: Router) -> None:
    router.subscribe("s", "#", 1)
    router.subscribe("s", "+", 1, options=RETAIN_AS_PUBLISHED)
    router.subscribe("s", "a", 1)
    assert [one.filter for one in router.routes[b"a"].targets] == ["+"]
    router.subscribe("s", "+", 1)
    router.subscribe("s", "a", 1, options=RETAIN_AS_PUBLISHED)
    assert [one.filter for one in router.routes[b"a"].targets] == ["a"]


def test_a_route_has_the_other_subscriptions_of_a_no_local_client(router: Router) -> None:
    router.subscribe("s", "#", 2, options=NO_LOCAL)
    router.subscribe("s", "+", 0)
    router.subscribe("s", "a", 1)
    router.subscribe("s", "a/#", 1, options=NO_LOCAL)
    router.subscribe("t", "a", 1)
    route = router.routes[b"a"]
    assert route.no_local
    assert {name: one.filter for name, one in route.own.items()} == {"s": "a"}
    router.subscribe("s", "a", 1, options=NO_LOCAL)
    assert {name: one.filter for name, one in router.routes[b"a"].own.items()} == {"s": "+"}
    router.unsubscribe("s", "+")
    assert router.routes[b"a"].own == {}
    router.subscribe("s", "#", 2)
    assert not router.routes[b"c"].no_local


def test_topics_with_the_same_receivers_share_a_route(router: Router) -> None:
    router.subscribe("s", "a/#", 1)
    assert router.routes[b"a/1"] is router.routes[b"a/2"]
    assert router.routes[b"a/1"] is not router.routes[b"b"]


def test_the_cache_is_bounded_by_count(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_CACHED_TOPICS", 10)
    router.subscribe("s", "#", 1)
    for number in range(100):
        assert who(router, f"t/{number}") == {"s": ("#", 1)}
        assert len(router.routes) <= 10


def test_the_cache_is_bounded_by_bytes(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_CACHED_BYTES", 5000)
    for number in range(100):
        assert router.routes[f"{number:03}{'x' * 997}".encode()] is routes.NOWHERE
        assert sum(map(len, router.routes)) <= 6000


@pytest.mark.parametrize("topic", ["$SYS/x", "$foldmq/x", "$JS/API", "$MQTT", "$NRG/a"])
def test_reserved_topics_lead_nowhere(router: Router, topic: str) -> None:
    router.subscribe("s", topic, 1)
    router.subscribe("s", "#", 1)
    assert router.match(topic) == ((), (), (), False, ())


@pytest.mark.mqtt("MQTT-4.7.2-1")
def test_other_dollar_topics_are_not_for_leading_wildcards(router: Router) -> None:
    router.subscribe("s", "#", 1)
    router.subscribe("t", "$own/#", 1)
    assert who(router, "$own/x") == {"t": ("$own/#", 1)}


def test_a_removed_session_leaves_nothing(router: Router) -> None:
    router.subscribe("s", "a", 1)
    router.subscribe("s", "b/#", 2)
    router.subscribe("t", "a", 0)
    gone = router.remove_session("s")
    assert sorted(one.filter for one in gone) == ["a", "b/#"]
    assert list(router.subscribers("s")) == []
    assert (who(router, "a"), router.match("b")[0], router.subscriptions) == (
        {"t": ("a", 0)},
        (),
        1,
    )
    assert router.remove_session("s") == []


def test_the_index_is_brought_in_line_with_a_state(router: Router) -> None:
    kept = router.subscribe("s", "kept", 0)
    router.subscribe("s", "gone", 1)
    state = SessionState("s")
    events = [
        Subscribed("s", [("kept", 2), ("new", 1), ("left", 1)]),
        Unsubscribed("s", ["left"]),
    ]
    for at, event in enumerate(events):
        evolve(state, event, position(1, at), 0)
    state.subscription("inactive")
    router.restore(state)
    assert {one.filter: one.qos for one in router.subscribers("s")} == {"kept": 2, "new": 1}
    assert kept not in router.subscribers("s")
    (kept,) = (one for one in router.subscribers("s") if one.filter == "kept")
    router.restore(state)
    assert kept in router.subscribers("s")
    assert who(router, "gone") == {}


def test_a_subscriber_has_a_repr() -> None:
    assert repr(Subscriber("s", "a/#", 1)) == "Subscriber('s', 'a/#', QoS 1)"


def test_a_look_up_finds_frozen_sessions_and_leaves_them_so() -> None:
    state = SessionState("c", clean=False)
    evolve(state, Subscribed("c", [("a/+", 1), ("b", 2)]), position(1, 0), 0)
    router = Router()
    router.restore(state)
    router.subscribe("d", "a/+", 0)
    router.freeze("c", ["a/+", "b"])
    assert (router.subscriptions, router.active_sessions()) == (3, ["d"])
    assert router.match("nothing") == ((), (), (), False, ())
    route = router.routes[b"a/x"]
    assert [one.session for one in route.targets] == ["d"]
    assert (route.frozen, route.frozen_qos0) == (("c",), ())
    assert (route.plain, route.plain_qos0) == (False, True)
    assert router.routes.any_frozen
    assert router.active_sessions() == ["d"]
    router.restore(state)
    assert router.routes[b"a/x"] is not route
    assert router.routes[b"a/x"].plain
    assert not router.routes.any_frozen
    assert who(router, "a/x") == {"c": ("a/+", 1), "d": ("a/+", 0)}
    assert who(router, "b") == {"c": ("b", 2)}
    assert router.subscriptions == 3
    assert {one.session for one in router.remove_session("c")} == {"c"}
    assert who(router, "b") == {}


def test_a_frozen_shared_subscription_also_gets_messages_at_qos_0() -> None:
    router = Router()
    router.freeze("$share/g/a", ["a"])
    router.freeze("c", ["a"])
    route = router.routes[b"a"]
    assert route.to_activate(1) == ("$share/g/a", "c")
    assert route.to_activate(0) == ("$share/g/a",)
    assert not route.plain_qos0


@pytest.mark.plain
def test_a_lookup_survives_a_reset_of_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[str] = []
    router = Router()
    router.subscribe("s", "late/+", 1)
    match = router.match
    router.match = lambda topic, until=None: (  # type: ignore[method-assign]
        matched.append(topic) or match(topic, until)  # type: ignore[func-returns-value]
    )
    topics = [b"a", b"b", b"late/x", b"c"]
    monkeypatch.setattr(routes, "_CACHED_TOPICS", 3)
    found = router.routes.look_up(topics)
    assert [len(route.targets) for route in found] == [0, 0, 1, 0]
    assert [router.routes[raw] for raw in topics] == found
    assert matched == ["a", "b", "late/x", "c"]
    router.subscribe("s", "#", 0)
    assert all(router.routes[raw].targets for raw in topics)
