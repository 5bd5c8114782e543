"""The shares of parties in the keys for new names."""

from __future__ import annotations

import pytest

from actors.limits import key_shares
from actors.limits.address_networks import networks_of
from actors.limits.key_shares import KeyShares

DAY = 86_400.0


def used(shares: KeyShares, party: str, free: int, now: float) -> int:
    """Use as many keys as possible; return their number."""
    count = 0
    while count < free and shares.take([party], free - count, now):
        count += 1
    return count


def test_a_party_uses_a_tenth_of_what_is_free_and_gets_it_back_in_a_day() -> None:
    shares = KeyShares()
    first = used(shares, "a", 1000, 0.0)
    assert 90 <= first <= 100
    assert used(shares, "a", 1000 - first, 0.0) == 0
    assert 40 <= used(shares, "a", 1000, DAY / 2) <= 60
    assert used(shares, "a", 1000, 3 * DAY) == first


def test_one_party_leaves_keys_for_ever() -> None:
    shares, free = KeyShares(), 100_000
    for day in range(60):
        free -= used(shares, "a", free, day * DAY)
    assert free > 100


def test_a_key_counts_for_all_parties_or_for_none() -> None:
    shares = KeyShares()
    assert used(shares, "user", 10, 0.0) == 1
    assert not shares.take(["address", "user"], 10, 0.0)
    assert shares.take(["address"], 10, 0.0)


@pytest.mark.parametrize(
    "host", ["2001:db8:0:{:x}::1", "2001:db8:0:{:x}ff::1", "2001:db8:0:ff{:02x}:7::1"]
)
def test_networks_of_one_customer_share(host: str) -> None:
    shares, free = KeyShares(), 10_000
    for network in range(256):
        networks = networks_of(host.format(network))
        while shares.take(networks, free, 0.0):
            free -= 1
    assert free >= 9000


def test_an_address_is_in_these_networks() -> None:
    assert networks_of("2001:db8:1:2345:6::7%eth0") == [
        "2001:db8:1:2345::/64",
        "2001:db8:1:2300::/56",
        "2001:db8:1::/48",
    ]
    assert networks_of("2001:db9::1")[2] != networks_of("2001:db8::1")[2]
    for host, network in (("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("", "")):
        assert networks_of(host) == [network]


def test_a_small_rest_is_shared_as_well() -> None:
    shares = KeyShares()
    assert shares.take(["a"], 3, 0.0)
    assert not shares.take(["a"], 2, DAY / 2)
    assert shares.take(["b"], 2, DAY / 2)
    assert shares.take(["a"], 1, DAY)


def test_the_parties_that_used_a_key_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_shares, "_PARTIES", 2)
    shares = KeyShares()
    assert shares.take(["a"], 5, 0.0)
    assert shares.take(["b"], 5, 0.0)
    assert shares.take(["c"], 5, 0.0)
    assert not shares.take(["c"], 5, 1.0)
    assert not shares.take(["b"], 5, 1.0)
    assert shares.take(["a"], 5, 1.0)
