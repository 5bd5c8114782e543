"""Wildcard patterns: the bounds on the cost of a match."""

import itertools

import pytest

from actors.routing.router import Router
from actors.routing.subscriber import Subscriber
from actors.routing.subscription_quotas import Patterns, pattern_of


@pytest.mark.parametrize(
    ("topic_filter", "pattern"),
    [("a/b", 0), ("#", 0), ("a/#", 0), ("+", 1), ("+/a", 1), ("a/+", 2), ("+/+/#", 3), ("//+", 4)],
)
def test_a_pattern_is_where_the_plus_signs_are(topic_filter: str, pattern: int) -> None:
    assert pattern_of(topic_filter) == pattern


@pytest.mark.parametrize("levels", [32, 33, 1000, 32_768])
def test_a_pattern_of_many_levels(levels: int) -> None:
    assert pattern_of("/".join("+" * levels)) == (1 << levels) - 1
    assert pattern_of("/".join(["+", "a"] * (levels // 2)) + "/#") == int("01" * (levels // 2), 2)


def granted(
    patterns: Patterns, session: str, filters: list[str], most: int, in_all: int, owner: str = ""
) -> int:
    """Subscribe as a session does, a filter at a time; return how many it got."""
    count = 0
    for topic_filter in filters:
        if patterns.allows(session, owner, topic_filter, set(), most, in_all):
            patterns.begun(session, topic_filter)
            patterns.added(topic_filter)
            count += 1
    return count


def of(patterns: Patterns, session: str) -> int:
    """Return how many different patterns a session has that is not frozen."""
    return len(patterns._sessions.get(session, ()))


BOMB = ["/".join(levels) for levels in itertools.product("a+", repeat=5)]


def test_a_session_has_limited_patterns_and_unlimited_filters() -> None:
    patterns = Patterns()
    assert granted(patterns, "s", BOMB, 8, 0) == 9  # the one without a wildcard has no pattern
    assert of(patterns, "s") == 8
    alike = [f"site/+/sensor/{number}" for number in range(1000)]
    assert granted(patterns, "t", alike, 8, 0) == 1000
    assert of(patterns, "t") == 1


def test_within_one_request_new_patterns_count_once() -> None:
    patterns, fresh = Patterns(), set[int]()
    allowed = [
        patterns.allows("s", "", one, fresh, 2, 0) for one in ("+", "+/a", "a/+", "+/+", "a")
    ]
    assert allowed == [True, True, True, False, True]
    assert fresh == {1, 2}


def test_all_sessions_together_have_a_bound_and_share_patterns() -> None:
    patterns = Patterns()
    assert granted(patterns, "s", ["+"], 0, 2, "ann") == 1
    assert granted(patterns, "t", ["+/b", "a/+"], 0, 2, "bob") == 2
    assert granted(patterns, "u", ["c/+", "+/+"], 0, 2, "cid") == 1
    assert len(patterns) == 2


def test_each_user_or_address_may_add_half_of_the_remaining_patterns() -> None:
    patterns = Patterns()
    for number in range(64):  # many sessions are no way around it
        granted(patterns, f"s{number}", BOMB[number % 31 :], 8, 24, "ann")
    assert len(patterns) == 12
    assert granted(patterns, "t", BOMB[::-1], 0, 24, "bob") > 6
    assert len(patterns) == 18
    patterns.allows("u", "cid", "/".join("+" * 6), set(), 0, 24)
    assert len(patterns) == 19


def test_a_pattern_counts_for_its_user_until_no_session_has_it() -> None:
    patterns = Patterns()
    assert granted(patterns, "s", ["+"], 0, 2, "ann") == 1
    assert granted(patterns, "t", ["+"], 0, 2, "bob") == 1
    for session in "st":
        assert not patterns.allows(session, "ann", "a/+", set(), 0, 2)
        patterns.ended(session, "+")
        patterns.removed("+")
    assert patterns.allows("s", "ann", "a/+", set(), 0, 2)


def test_ended_sessions_free_their_patterns() -> None:
    patterns = Patterns()
    granted(patterns, "s", ["+", "+/a"], 1, 1)
    for topic_filter in ("+", "+/a"):
        assert not patterns.allows("s", "", "a/+", set(), 1, 1)
        patterns.ended("s", topic_filter)
        patterns.removed(topic_filter)
    assert patterns.allows("s", "", "a/+", set(), 1, 1)


def test_no_bound_is_no_bound() -> None:
    assert granted(Patterns(), "s", BOMB, 0, 0) == len(BOMB)


# The index counts what it holds.


def test_the_index_counts_patterns_of_all_whatever_becomes_of_them() -> None:
    router = Router()
    router.subscribe("s", "+/a", 1)
    router.subscribe("s", "+/b", 1)
    router.subscribe("t", "a/+", 1)
    assert (len(router.patterns), of(router.patterns, "s")) == (2, 1)
    router.freeze("s", ["+/a", "+/b"])
    assert (len(router.patterns), of(router.patterns, "s")) == (2, 0)
    router.unsubscribe("t", "a/+")
    assert len(router.patterns) == 1
    router.subscribe("s", "+/a", 1)
    router.subscribe("s", "+/b", 1)
    router.remove_session("s")
    assert (len(router.patterns), of(router.patterns, "s")) == (0, 0)


def test_a_large_ended_session_matches_nothing_and_is_removed_in_steps() -> None:
    router = Router()
    called: list[bool] = []
    router.on_gone = lambda: called.append(True)
    gone = [router.subscribe("s", f"a/{number}", 1) for number in range(200)]
    assert router.remove_session("s") == gone
    assert called == [True]
    assert router.match("a/7") == ((), (), (), False, ())
    assert router.routes[b"a/7"].targets == ()
    # It comes back before the index is clean: what is new stays.
    new = router.subscribe("s", "a/7", 2)
    steps = 1
    while router.sweep():
        steps += 1
    assert steps == 4
    assert router.subscriptions == 1
    found: tuple[Subscriber, ...] = router.match("a/7")[0]
    assert found == (new,)


def test_a_subscription_without_wildcards_leaves_other_routes_as_they_are() -> None:
    router = Router()
    other, own = router.routes[b"other"], router.routes[b"own"]
    assert other.targets == own.targets == ()
    router.subscribe("s", "own", 1)
    assert b"other" in router.routes
    assert len(router.routes[b"own"].targets) == 1
    router.unsubscribe("s", "own")
    assert b"other" in router.routes
    assert router.routes[b"own"].targets == ()
    router.subscribe("s", "+", 1)
    assert b"other" not in router.routes


@pytest.mark.plain
def test_so_many_topics_are_matched_at_once() -> None:
    router = Router()
    router.clock = lambda: 0.0
    router.routes.matched_at_once = 3
    topics = [b"%d" % number for number in range(5)]
    assert len(router.routes.look_up(topics)) == 3
    assert len(router.routes.look_up(topics)) == 5  # three are known by now
    assert len(router.routes) == 5
    router.routes[b"always"]  # outside of look_up nothing is refused
    assert len(router.routes) == 6


@pytest.mark.plain
def test_topics_are_matched_for_a_short_time_but_always_one() -> None:
    now = iter(range(1000))
    router = Router()
    router.clock = lambda: float(next(now))
    topics = [b"%d" % number for number in range(5)]
    for count in range(1, 6):
        assert len(router.routes.look_up(topics)) == count


def test_cached_receivers_of_changed_topics_are_dropped() -> None:
    router = Router()
    for number in range(5000):
        router.subscribe(f"s{number}", "a", 1)
        assert len(router.routes[b"a"].targets) == 1
        router.remove_session(f"s{number}")
    assert len(router.routes._interned) < 1100
