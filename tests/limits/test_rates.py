"""Publish rates: a client above its rate is not read for a while, and finally disconnected."""

import gc

import pytest

from actors.limits.limit_options import NO_QUOTA, Quota
from actors.limits.publish_rates import PublishRates, RateLimiter


def rates(
    listener: Quota = NO_QUOTA,
    address: Quota = NO_QUOTA,
    user: Quota = NO_QUOTA,
    client: Quota = NO_QUOTA,
    max_wait: float = 10.0,
) -> PublishRates:
    return PublishRates({"plain": listener}, address, user, client, 1.0, max_wait)


def connected(
    limits: PublishRates, host: int = 1, user: str | None = None, now: float = 0.0
) -> RateLimiter:
    """The rate limiter of a new connection."""
    limiter = limits.rate_limiter("plain", f"192.0.2.{host}", user, now)
    assert limiter is not None
    return limiter


def test_without_limits_nothing_is_counted() -> None:
    assert rates().rate_limiter("plain", "192.0.2.1", "alice", 0.0) is None


def test_a_bound_of_users_is_none_for_those_without_a_name() -> None:
    limits = rates(user=Quota(publish_rate=1))
    assert limits.rate_limiter("plain", "192.0.2.1", None, 0.0) is None
    assert limits.rate_limiter("plain", "192.0.2.1", "alice", 0.0) is not None


def test_messages_and_bytes_are_bounded_each() -> None:
    limits = rates(client=Quota(publish_rate=10, publish_bytes=1000))
    by_number = connected(limits)
    assert by_number.took(10, 100, 0.0) == 0
    assert by_number.took(5, 100, 0.0) == pytest.approx(0.5)
    by_size = connected(limits)
    assert by_size.took(1, 1000, 0.0) == 0
    assert by_size.took(0, 2000, 0.0) == pytest.approx(2.0)


def test_a_bucket_of_its_own_is_not_shared() -> None:
    limits = rates(client=Quota(publish_rate=1))
    assert connected(limits, user="a").took(1, 9, 0.0) == 0
    assert connected(limits, user="a").took(1, 9, 0.0) == 0


@pytest.mark.parametrize(
    ("limits", "other"),
    [
        (rates(address=Quota(publish_rate=10)), ("tls", "192.0.2.1", "bob")),
        (rates(address=Quota(publish_bytes=1000)), ("tls", "::ffff:192.0.2.1", "bob")),
        (rates(user=Quota(publish_rate=10)), ("tls", "192.0.2.9", "alice")),
        (rates(listener=Quota(publish_rate=10)), ("plain", "192.0.2.9", "bob")),
    ],
    ids=["address", "bytes", "user", "listener"],
)
def test_connections_of_one_party_share_its_bound(
    limits: PublishRates, other: tuple[str, str, str]
) -> None:
    one = connected(limits, user="alice")
    two = limits.rate_limiter(*other, 0.0)
    assert two is not None
    assert one.took(10, 1000, 0.0) == 0
    assert two.took(10, 1000, 0.0) == pytest.approx(1.0)
    assert one.took(10, 1000, 0.0) == pytest.approx(2.0)


def test_the_debt_of_a_party_outlives_its_connection() -> None:
    limits = rates(user=Quota(publish_rate=1))
    connected(limits, user="alice").took(11, 9, 0.0)
    limits.sweep(5.0)
    again = connected(limits, user="alice", now=5.0)
    assert again.debt(5.0) == pytest.approx(5.0)
    assert limits.debt("192.0.2.1", "alice", 5.0) == pytest.approx(5.0)


def test_a_bound_of_its_own_is_no_debt_of_others() -> None:
    limits = rates(client=Quota(publish_rate=10))
    assert connected(limits).debt(0.0) == 0


def test_light_clients_do_not_wait_for_heavy_ones() -> None:
    limits = rates(listener=Quota(publish_rate=100))
    flooders = [connected(limits, n) for n in range(3)]
    for flooder in flooders:
        flooder.took(1000, 9, 0.0)
    assert flooders[0].took(1, 9, 0.0) > 9
    quiet = connected(limits, 9)
    assert quiet.took(10, 9, 0.0) == pytest.approx(10 / (100 / 4))
    # Nor does it get more for not waiting.
    assert quiet.took(10, 9, 0.0) == pytest.approx(20 / (100 / 4))


def test_no_client_waits_longer_than_the_debt() -> None:
    limits = rates(listener=Quota(publish_rate=10))
    others = [connected(limits, n) for n in range(20)]
    for other in others:
        other.took(1, 9, 0.0)
    # Ten wait, with a tenth of the rate each: one a second. But eleven are soon paid for.
    assert others[-1].took(1, 9, 0.0) == pytest.approx(1.1)


def test_closed_connections_have_no_share_of_a_rate() -> None:
    limits = rates(listener=Quota(publish_rate=10))
    gone = connected(limits)
    gone.took(1000, 9, 0.0)
    del gone
    gc.collect()
    here = connected(limits, 2)
    assert here.took(10, 9, 0.0) == pytest.approx(1.0)


def test_together_they_get_no_more_than_the_shared_rate() -> None:
    limits = rates(listener=Quota(publish_rate=100))
    flooders = [connected(limits, n) for n in range(4)]
    due = dict.fromkeys(flooders, 0.0)
    taken = late = 0
    while (now := min(due.values())) < 1000:
        flooder = min(due, key=lambda one: due[one])
        due[flooder] = now + flooder.took(50, 9, now)
        taken += 50
        late += 50 if now >= 500 else 0
    assert taken == pytest.approx(100_000, rel=0.02)
    assert late == pytest.approx(50_000, rel=0.02)


def test_a_shared_limit_disconnects_no_client() -> None:
    limits = rates(listener=Quota(publish_rate=10), max_wait=10.0)
    one = connected(limits)
    two = connected(limits, 2)
    now = 0.0
    while now < 100.0:
        now += min(one.took(20, 9, now), two.took(20, 9, now))
        assert not one.is_throttled_too_long(now)
        assert not two.is_throttled_too_long(now)


def test_its_own_bound_tries_the_patience_beside_a_shared_one() -> None:
    limits = rates(listener=Quota(publish_rate=1000), client=Quota(publish_rate=10), max_wait=10.0)
    client = connected(limits)
    flood(client, 0.0, 12.0)
    assert client.is_throttled_too_long(12.0)


def test_nothing_is_held_back_for_a_moment_only() -> None:
    client = connected(rates(client=Quota(publish_rate=1000)))
    assert client.took(1001, 9, 0.0) == 0.05


def flood(client: RateLimiter, now: float, until: float) -> float:
    """Sends as soon as it is read again, always too much; gives when that was the last time."""
    while now < until:
        now += client.took(20, 100, now)
    return now


def test_a_client_that_never_slows_down_reaches_the_timeout() -> None:
    client = connected(rates(client=Quota(publish_rate=10), max_wait=10.0))
    now = flood(client, 0.0, 9.0)
    assert not client.is_throttled_too_long(9.0)
    flood(client, now, 12.0)
    assert client.is_throttled_too_long(12.0)


def test_a_read_that_fits_is_a_break() -> None:
    client = connected(rates(client=Quota(publish_rate=10), max_wait=10.0))
    now = flood(client, 0.0, 9.0)
    assert client.took(1, 100, now + 0.5) == 0
    assert not client.is_throttled_too_long(now + 9.0)
    flood(client, now + 0.5, 15.0)
    assert not client.is_throttled_too_long(15.0)


def test_silence_is_a_break() -> None:
    client = connected(rates(client=Quota(publish_rate=10), max_wait=10.0))
    now = flood(client, 0.0, 9.0)
    assert client.took(1000, 100, now + 50.0) > 0
    assert not client.is_throttled_too_long(now + 51.0)


def test_without_a_timeout_no_client_is_disconnected() -> None:
    client = connected(rates(client=Quota(publish_rate=10), max_wait=0.0))
    flood(client, 0.0, 1000.0)
    assert not client.is_throttled_too_long(1000.0)


def test_no_client_is_paused_longer_than_the_timeout() -> None:
    """The peer may be gone, which only reading detects; its debt is kept."""
    client = connected(rates(client=Quota(publish_rate=10), max_wait=10.0))
    assert client.took(1010, 100, 0.0) == 10.0
    assert not client.is_throttled_too_long(0.0)
    assert client.took(1, 100, 10.0) > 0
    assert client.is_throttled_too_long(10.0)
