"""Admission: counts and rates per listener, address and user."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.limits.address_networks import network_of
from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import NO_QUOTA, LimitOptions, Quota


def admission(listener: Quota = NO_QUOTA, **quotas: Quota) -> ClientLimits[Any]:
    return ClientLimits(LimitOptions(**quotas), {"plain": listener})


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:C000:0207", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("@mqtt", "@mqtt"),
        ("a:b:c", "a:b:c"),
        ("::\0", "::\0"),
    ],
)
def test_connections_that_count_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network


def test_without_quotas_everybody_may_come() -> None:
    door = admission()
    for _ in range(1000):
        assert door.arrive("plain", "192.0.2.1", 0.0) is None
        assert door.identify("alice", "", 0.0) is None
    assert door.connections("plain") == 1000


def test_an_address_has_a_number_of_connections() -> None:
    door = admission(address=Quota(connections=2))
    for _ in range(2):
        assert door.arrive("plain", "192.0.2.1", 0.0) is None
    assert door.arrive("plain", "192.0.2.1", 0.0) == "address_connections"
    assert door.arrive("plain", "192.0.2.2", 0.0) is None
    door.leave("plain", "192.0.2.1", None)
    assert door.arrive("plain", "192.0.2.1", 0.0) is None


def test_addresses_of_one_ipv6_network_share_it() -> None:
    door = admission(address=Quota(connections=2))
    assert door.arrive("plain", "2001:db8::1", 0.0) is None
    assert door.arrive("plain", "2001:db8::2", 0.0) is None
    assert door.arrive("plain", "2001:db8::3", 0.0) == "address_connections"
    assert door.arrive("plain", "2001:db8:0:1::1", 0.0) is None


def test_a_listener_has_a_number_of_connections() -> None:
    door = admission(listener=Quota(connections=1))
    assert door.arrive("plain", "192.0.2.1", 0.0) is None
    assert door.arrive("plain", "192.0.2.2", 0.0) == "listener_connections"
    assert door.arrive("tls", "192.0.2.2", 0.0) is None


def test_new_connections_come_at_a_rate() -> None:
    door = admission(address=Quota(connection_rate=5.0))
    for _ in range(10):
        assert door.arrive("plain", "192.0.2.1", 0.0) is None
        door.leave("plain", "192.0.2.1", None)
    assert door.arrive("plain", "192.0.2.1", 0.0) == "address_rate"
    assert door.arrive("plain", "192.0.2.2", 0.0) is None
    assert door.arrive("plain", "192.0.2.1", 0.19) == "address_rate"
    assert door.arrive("plain", "192.0.2.1", 0.21) is None


def test_a_low_rate_still_admits_clients() -> None:
    door = admission(listener=Quota(connection_rate=0.1))
    assert door.arrive("plain", "192.0.2.1", 0.0) is None
    assert door.arrive("plain", "192.0.2.1", 9.9) == "listener_rate"
    assert door.arrive("plain", "192.0.2.1", 10.1) is None


def test_a_refused_connection_costs_no_credit() -> None:
    """An address at its bound must not use up the rate of the listener."""
    door = admission(listener=Quota(connection_rate=1.0), address=Quota(connections=1))
    assert door.arrive("plain", "192.0.2.1", 0.0) is None
    for _ in range(100):
        assert door.arrive("plain", "192.0.2.1", 0.0) == "address_connections"
    assert door.arrive("plain", "192.0.2.2", 0.0) is None


def test_a_user_has_a_number_of_connections_wherever_they_come_from() -> None:
    door = admission(user=Quota(connections=1, connection_rate=1.0))
    assert door.identify("alice", "", 0.0) is None
    assert door.identify("alice", "", 0.0) == "user_connections"
    assert door.identify("bob", "", 0.0) is None
    assert door.identify(None, "", 0.0) is None
    door.arrive("plain", "192.0.2.1", 0.0)
    door.leave("plain", "192.0.2.1", "alice")
    assert door.identify("alice", "", 0.0) is None
    door.leave("plain", "192.0.2.1", "alice")
    assert door.identify("alice", "", 0.0) == "user_rate"


def test_behind_a_proxy_the_address_comes_later() -> None:
    door = admission(address=Quota(connections=1))
    for _ in range(3):
        assert door.arrive("plain", "", 0.0) is None
    assert door.locate("plain", "192.0.2.1", 0.0) is None
    assert door.locate("plain", "192.0.2.1", 0.0) == "address_connections"
    assert door.locate("plain", "", 0.0) is None
    door.leave("plain", "192.0.2.1", None)
    assert door.locate("plain", "192.0.2.1", 0.0) is None


def test_a_reload_counts_existing_connections() -> None:
    door = admission()
    for _ in range(3):
        door.arrive("plain", "192.0.2.1", 0.0)
    door.change(LimitOptions(address=Quota(connections=3)), {"plain": NO_QUOTA})
    assert door.arrive("plain", "192.0.2.1", 0.0) == "address_connections"
    door.leave("plain", "192.0.2.1", None)
    assert door.arrive("plain", "192.0.2.1", 0.0) is None


def test_a_reload_that_changes_no_rate_forgives_nothing() -> None:
    quota = Quota(connection_rate=1.0)
    door = admission(address=quota)
    for _ in range(2):
        assert door.arrive("plain", "192.0.2.1", 0.0) is None
    door.change(LimitOptions(address=quota), {"plain": NO_QUOTA})
    assert door.arrive("plain", "192.0.2.1", 0.0) == "address_rate"
    door.change(LimitOptions(address=Quota(connection_rate=2.0)), {"plain": NO_QUOTA})
    assert door.arrive("plain", "192.0.2.1", 0.0) is None


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["1.1.1.1", "2.2.2.2", "::2", ""]))))
def test_closed_connections_leave_no_state(steps: list[tuple[bool, str]]) -> None:
    door = admission(address=Quota(connections=3), listener=Quota(connections=5))
    inside: list[str] = []
    for comes, address in steps:
        if comes and door.arrive("plain", address, 0.0) is None:
            inside.append(address)
        elif not comes and inside:
            door.leave("plain", inside.pop(), None)
        assert len(inside) <= 5
        assert all(inside.count(one) <= 3 for one in inside if one)
    for address in inside:
        door.leave("plain", address, None)
    assert (door._addresses._count, door._quotas["plain"]._count) == ({}, {})
