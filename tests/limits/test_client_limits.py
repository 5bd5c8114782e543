"""The guard: the broker's requests, and the counters of its answers."""

from dataclasses import replace

import pytest

from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import LimitOptions, Quota

LISTENERS = {"plain": Quota(connections=5)}


class Client:
    """A connection, as the guard sees it."""

    def __init__(self, unread: int = 0) -> None:
        self.bytes_out = self.unread = unread
        self.ended = False


def guard(**options: object) -> ClientLimits[Client]:
    return ClientLimits(replace(LimitOptions(), **options), LISTENERS)  # type: ignore[arg-type]


def test_a_client_that_connects_and_disconnects() -> None:
    door = guard(address=Quota(connections=2), user=Quota(connections=1))
    for _ in range(10):
        assert not door.refuses("plain", "192.0.2.1", 0.0)
        assert door.arrive("plain", "192.0.2.1", 0.0) is None
        assert door.identify("alice", "192.0.2.1", 0.0) is None
        door.leave("plain", "192.0.2.1", "alice")
    assert not door.refused.counts


def test_each_refusal_is_counted_by_its_reason() -> None:
    door = guard(address=Quota(connections=2), user=Quota(connections=1), flapping_connects=1)
    for _ in range(3):
        door.arrive("plain", "192.0.2.1", 0.0)
        door.identify("alice", "192.0.2.1", 0.0)
        door.flaps(("alice", "c"), 0.0, "c", "192.0.2.1")
    assert door.refuses("plain", "192.0.2.1", 0.0)
    assert door.locate("plain", "192.0.2.1", 0.0) == "address_connections"
    for number in range(4):
        door.arrive("plain", f"192.0.2.{number + 2}", 0.0)
    assert door.refused.counts == {
        "address_connections": 3,
        "user_connections": 2,
        "flapping": 2,
        "listener_connections": 1,
    }


def test_overload_refuses_new_clients_and_keeps_connected_ones() -> None:
    door = guard(overload_lag=0.1, overload_after=1.0)
    assert door.arrive("plain", "192.0.2.1", 0.0) is None
    for tick in range(20):
        door.overload.sample(0.2, 0.0, tick * 0.1)
    assert door.refuses("plain", "192.0.2.2", 2.0)
    assert door.refused.counts == {"overload": 1}
    assert door.identify("alice", "192.0.2.1", 2.0) is None


def test_a_reload_changes_bounds_and_forgives_nothing_else() -> None:
    options = replace(LimitOptions(), flapping_connects=1, user=Quota(publish_rate=1.0))
    door: ClientLimits[Client] = ClientLimits(options, LISTENERS)
    door.flaps("c", 0.0, "c", "192.0.2.1")
    door.flaps("c", 0.0, "c", "192.0.2.1")
    rate_limiter = door.rate_limiter("plain", "", "alice", 0.0)
    assert rate_limiter is not None
    assert rate_limiter.took(12, 9, 0.0) > 9
    door.change(replace(options, slow_reader_time=1.0, max_topic_levels=2), LISTENERS)
    assert door.flaps("c", 0.0, "c", "192.0.2.1") > 0
    again = door.rate_limiter("plain", "", "alice", 0.0)
    assert again is not None
    assert again.debt(0.0) > 9
    assert door.refuses_filter("a/b/c") == "topic_levels"
    door.change(replace(options, flapping_connects=0, user=Quota()), {})
    assert door.flaps("c", 0.0, "c", "192.0.2.1") == 0
    assert door.rate_limiter("plain", "", "alice", 0.0) is None


def test_the_sweep_finds_slow_readers() -> None:
    door = guard(slow_reader_time=5.0)
    slow, good = Client(100), Client()
    found = [one.reader for second in range(8) for one in door.sweep([slow, good], float(second))]
    assert found == [
        slow,
    ]


def test_changed_limits_apply_to_unauthenticated_connections() -> None:
    door = guard(max_unauthenticated=100)
    first = [Client() for _ in range(10)]
    for one in first:
        assert door.unauthenticated.join(one, "192.0.2.1") == []
    door.change(replace(LimitOptions(), max_unauthenticated=8), LISTENERS)
    assert door.unauthenticated.join(Client(), "192.0.2.2") == first[:4]


def test_an_address_of_many_faults_is_turned_away_for_a_while() -> None:
    door: ClientLimits[Client] = ClientLimits(
        LimitOptions(max_faults_per_address=3, fault_backoff=60.0), {}
    )
    for second in range(3):
        door.count_fault("192.0.2.1", float(second))
        assert not door.refuses("l", "192.0.2.1", float(second))
    door.count_fault("192.0.2.1", 3.0)
    assert door.refuses("l", "192.0.2.1", 4.0)
    assert door.locate("l", "192.0.2.1", 4.0) == "faults"
    assert not door.refuses("l", "192.0.2.2", 4.0)
    assert not door.refuses("l", "", 4.0), "a proxy, or a Unix socket"
    assert not door.refuses("l", "192.0.2.1", 64.0)
    assert door.refused.counts["faults"] == 2


def test_faults_have_no_bound_unless_it_is_set() -> None:
    door: ClientLimits[Client] = ClientLimits(LimitOptions(), {})
    for _ in range(1000):
        door.count_fault("192.0.2.1", 0.0)
    assert not door.refuses("l", "192.0.2.1", 0.0)


def test_an_address_in_debt_is_turned_away_at_once() -> None:
    door: ClientLimits[Client] = ClientLimits(LimitOptions(address=Quota(publish_rate=10)), {})
    rate_limiter = door.rate_limiter("l", "192.0.2.1", None, 0.0)
    assert rate_limiter is not None
    rate_limiter.took(200, 0, 0.0)
    assert door.refuses("l", "192.0.2.1", 1.0)
    assert not door.refuses("l", "192.0.2.1", 30.0)


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("a/b/c/d", None),
        ("a/b/c/d/e", "topic_levels"),
        ("////", "topic_levels"),
        ("+/b/#", None),
        ("+/+/#", "wildcards"),
    ],
)
def test_levels_and_wildcards_of_filters(topic_filter: str, reason: str | None) -> None:
    assert guard(max_topic_levels=4, max_wildcards=2).refuses_filter(topic_filter) == reason


def test_0_is_no_bound_of_filters() -> None:
    assert guard(max_topic_levels=0, max_wildcards=0).refuses_filter("+/" * 30_000 + "#") is None
