"""How many subscriptions each owner has, and may have."""

from actors.routing.subscription_quotas import SubscriptionQuota


def granted(shares: SubscriptionQuota, owner: str, total: int, most: int) -> int:
    """Subscribe as often as it is allowed, each time with a session of its own."""
    count = 0
    while shares.allows(owner, total + count, most):
        shares.begun(f"{owner}-{count}", owner)
        count += 1
    return count


def test_each_owner_leaves_as_many_as_it_takes() -> None:
    shares = SubscriptionQuota()
    assert granted(shares, "a", 0, 100) == 50
    assert granted(shares, "b", 50, 100) == 25
    assert granted(shares, "c", 75, 100) == 13


def test_without_a_limit_nothing_is_refused() -> None:
    shares = SubscriptionQuota()
    shares.begun("s", "a")
    assert shares.allows("a", 1_000_000_000, 0)


def test_ended_subscriptions_no_longer_count() -> None:
    shares = SubscriptionQuota()
    for _ in range(5):
        shares.begun("s", "a")
    assert not shares.allows("a", 5, 10)
    shares.ended("s")
    assert shares.allows("a", 4, 10)
    shares.forget("s")
    shares.ended("s")
    shares.forget("unknown")
    assert granted(shares, "a", 0, 10) == 5


def test_a_session_keeps_its_owner() -> None:
    shares = SubscriptionQuota()
    shares.begun("s", "a")
    shares.begun("s", "b")  # the same client from another network
    shares.forget("s")
    assert granted(shares, "b", 0, 10) == 5
