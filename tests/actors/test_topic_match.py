"""Matching a topic in steps, between which subscriptions change."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from harness.examples import examples
from hypothesis import given
from hypothesis import strategies as st

from actors.routing import router as router_module
from actors.routing import routes
from actors.routing.router import Router
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED

if TYPE_CHECKING:
    from actors.routing.subscriber import Subscriber
    from actors.routing.topic_match import Receivers

FILTERS = ["a/b", "a/+", "+/b", "a/#", "#", "x"]
OPTIONS = [0, NO_LOCAL, RETAIN_AS_PUBLISHED]


class Acl:
    """An ACL that denies one session's filters everything, or nothing."""

    def __init__(self, *, denies: bool) -> None:
        self.denies = denies

    def guards(self, _topic_filter: str) -> bool:
        return True

    def may_read(self, _topic: str) -> bool:
        return not self.denies

    def may_subscribe(self, _topic_filter: str) -> bool:
        return True


ALLOWS, DENIES = Acl(denies=False), Acl(denies=True)

changes = st.one_of(
    st.tuples(
        st.just("subscribe"),
        st.integers(0, 3),
        st.sampled_from(FILTERS),
        st.integers(0, 2),
        st.sampled_from(OPTIONS),
    ),
    st.tuples(st.just("unsubscribe"), st.integers(0, 3), st.sampled_from(FILTERS)),
    st.tuples(st.just("remove"), st.integers(0, 3)),
    st.tuples(st.just("freeze"), st.integers(0, 3)),
    st.tuples(st.just("deny"), st.integers(0, 3)),
    st.tuples(st.just("allow"), st.integers(0, 3)),
)


class Sessions:
    """A router, and what its frozen sessions have."""

    def __init__(self) -> None:
        self.router = Router()
        self.frozen: dict[str, list[tuple[str, int, int]]] = {}

    def activate(self, name: str) -> None:
        """As ``SessionRegistry.session``, do nothing if the session is active already."""
        for topic_filter, qos, options in self.frozen.pop(name, ()):
            self.router.subscribe(name, topic_filter, qos, options=options)

    def change(self, change: tuple[object, ...]) -> None:
        kind, number, *rest = change
        name, router = f"s{number}", self.router
        if kind == "freeze":
            held = [(one.filter, one.qos, one.options) for one in router.subscribers(name)]
            if held and name not in self.frozen:
                router.freeze(name, [topic_filter for topic_filter, *_ in held])
                self.frozen[name] = held
            return
        if name in self.frozen:
            self.activate(name)
        if kind == "subscribe":
            topic_filter, qos, options = rest
            router.subscribe(name, topic_filter, qos, options=options)  # type: ignore[arg-type]
        elif kind == "unsubscribe":
            router.unsubscribe(name, rest[0])  # type: ignore[arg-type]
        elif kind == "remove":
            router.remove_session(name)
        else:
            router.set_acl(name, DENIES if kind == "deny" else ALLOWS)  # type: ignore[arg-type]


def summary(found: Receivers) -> tuple[object, ...]:
    """What the receivers come to, whatever the order in which they were found.

    Of a session's subscriptions of equal QoS the one found first may be the target: what counts is
    how it gets messages of others and its own.
    """
    targets, denied, own, no_local, frozen = found
    assert len(set(frozen)) == len(frozen)
    assert no_local == any(one.options & NO_LOCAL for one in targets)

    def how(one: Subscriber) -> tuple[int, int]:
        return one.qos, one.options & RETAIN_AS_PUBLISHED

    own_ways = {one.session: how(one) for one in own}
    assert own_ways.keys() <= {one.session for one in targets if one.options & NO_LOCAL}
    return (
        {
            (
                one.session,
                how(one),
                own_ways.get(one.session) if one.options & NO_LOCAL else how(one),
            )
            for one in targets
        },
        {(one.session, one.qos) for one in denied},
        {*frozen},
    )


@examples(3)
@given(st.lists(changes, max_size=30), st.lists(st.lists(changes, max_size=3), max_size=12))
def test_steps_with_changes_between_them_equal_one_match(
    before: list[tuple[object, ...]], between: list[list[tuple[object, ...]]]
) -> None:
    sessions = Sessions()
    for change in before:
        sessions.change(change)
    router = sessions.router
    found: Receivers | None = None
    router.evaluated_at_once = 2
    ticks = count(1)
    router.clock = lambda: float(next(ticks))
    for some in [*between, *[[]] * 50]:
        try:
            found = router.match("a/b", until=0.0)
            break
        except routes.EnoughMatched:
            for change in some:
                sessions.change(change)
    assert found is not None
    assert not router._matches
    assert summary(found) == summary(router.match("a/b"))
    assert {*found[4]} <= {*sessions.frozen}
    assert all(one.session not in sessions.frozen for one in found[0])
    assert len({one.session for one in found[0]}) == len(found[0])


def test_of_overlapping_subscriptions_the_own_one_is_the_best_without_no_local() -> None:
    router = Router()
    router.subscribe("s", "a/+", 1)
    router.subscribe("s", "a/#", 2, options=NO_LOCAL)
    router.subscribe("s", "#", 0)
    targets, denied, own, no_local, _ = router.match("a/b")
    assert [one.filter for one in targets] == ["a/#"]
    assert [one.filter for one in own] == ["a/+"]
    assert (denied, no_local) == ((), True)


def test_many_receivers_are_looked_up_in_several_turns() -> None:
    router = Router()
    router.evaluated_at_once = 100
    for number in range(1000):
        router.subscribe(f"s{number}", "a/#", 1)
    ticks = count(1)
    router.clock = lambda: float(next(ticks))
    turns = 0
    while not router.routes.look_up([b"a/b"]):
        turns += 1
        router.subscribe(f"late{turns}", "a/b", 0)
    assert turns == 9
    assert len(router.routes.look_up([b"a/b"])[0].targets) == 1000 + turns


def test_few_long_matches_are_under_way_and_abandoned_ones_make_room() -> None:
    router = Router()
    router.evaluated_at_once = 1
    for number in range(10):
        router.subscribe(f"s{number}", "#", 1)
    now = [1.0]
    router.clock = lambda: now[0]
    topics = [f"t/{number}" for number in range(router_module._MATCHES + 1)]
    for topic in topics:
        with pytest.raises(routes.EnoughMatched):
            router.match(topic, until=0.0)
    assert len(router._matches) == router_module._MATCHES
    assert topics[-1] not in router._matches
    now[0] += 2 * router_module._ABANDONED
    with pytest.raises(routes.EnoughMatched):
        router.match(topics[-1], until=0.0)
    assert list(router._matches) == [topics[-1]]


@pytest.mark.plain
def test_topics_that_wait_for_others_are_not_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Router()
    router.evaluated_at_once = 1
    for number in range(3):
        router.subscribe(f"s{number}", "#", 1)
    ticks = count(1)
    router.clock = lambda: next(ticks) / 500
    looked_up: list[str] = []
    match = router._index.match

    def noted(_index: object, topic: str) -> list[Subscriber | str]:
        looked_up.append(topic)
        return match(topic)

    monkeypatch.setattr(type(router._index), "match", noted)
    for number in range(router_module._MATCHES):
        assert not router.routes.look_up([b"t/%d" % number])
    for _ in range(5):
        assert not router.routes.look_up([b"waits"])
    assert looked_up.count("waits") == 1
    # When there is room, it is looked up again.
    router._matches.clear()
    while not router.routes.look_up([b"waits"]):
        pass
    assert looked_up.count("waits") == 2
    assert not router._postponed


@pytest.mark.plain
def test_only_changes_are_evaluated_in_the_last_step() -> None:
    """Neither the index is asked again, nor are all receivers gone through."""
    router = Router()
    router.evaluated_at_once = 100
    for number in range(1000):
        router.subscribe(f"s{number}", "a/#", 1)
    asked: list[str] = []

    class Counting(Acl):
        def may_read(self, topic: str) -> bool:
            asked.append(topic)
            return True

    ticks = count(1)
    router.clock = lambda: float(next(ticks))
    for _ in range(9):
        assert not router.routes.look_up([b"a/b"])
    for number in range(1000):
        router.set_acl(f"s{number}", None)
    router.subscribe("s7", "a/b", 2, Counting(denies=False))  # type: ignore[arg-type]
    router.unsubscribe("s8", "a/#")
    router.remove_session("s9")
    router._index = None  # type: ignore[assignment]
    (route,) = router.routes.look_up([b"a/b"])
    assert len(route.targets) == 998
    assert asked == ["a/b"]
    assert {one.session: one.qos for one in route.targets}["s7"] == 2


def test_topics_with_the_same_many_receivers_share_a_route() -> None:
    router = Router()
    for number in range(routes._LARGE + 1):
        router.subscribe(f"s{number}", "a/#", 1)
    one, two = router.routes[b"a/1"], router.routes[b"a/2"]
    assert one is two
    router.subscribe("other", "a/3", 1)
    three = router.routes[b"a/3"]
    assert three is not one
    assert len(three.targets) == len(one.targets) + 1
    router.subscribe("s1", "a/+", 2)
    assert router.routes[b"a/1"] is router.routes[b"a/2"] is not one


def test_a_route_with_many_receivers_is_compared_with_few_others() -> None:
    """Each topic has another set of receivers: they differ in one of many."""
    router = Router()
    for number in range(routes._LARGE + 1):
        router.subscribe(f"s{number}", "a/#", 1)
    topics = [b"a/%d" % number for number in range(2 * routes._COMPARED)]
    for topic in topics:
        router.subscribe(f"of {topic.decode()}", topic.decode(), 1)
    found = [router.routes[topic] for topic in topics]
    assert len(set(found)) == len(topics)
    assert max(map(len, router.routes._large.values())) <= routes._COMPARED
    router.routes.clear()  # what is known of the receivers stays
    assert [router.routes[topic] for topic in topics[-4:]] == found[-4:]
