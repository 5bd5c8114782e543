"""Token buckets: the mean is kept, debt is paid, and full buckets are removed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.limits.token_bucket import Bucket, Buckets


def test_a_burst_is_free_and_more_takes_time() -> None:
    bucket = Bucket(rate=10, burst=20, now=5.0)
    assert bucket.take(20, 5.0) == 0
    assert bucket.take(5, 5.0) == pytest.approx(0.5)
    assert bucket.take(0, 5.5) == 0


def test_credit_does_not_grow_beyond_the_burst() -> None:
    bucket = Bucket(rate=10, burst=20, now=0.0)
    assert bucket.take(20, 1000.0) == 0
    assert bucket.take(1, 1000.0) == pytest.approx(0.1)


def test_whether_something_may_be_taken_changes_nothing() -> None:
    bucket = Bucket(rate=1, burst=2, now=0.0)
    assert all(bucket.allows(0.0, 2) for _ in range(5))
    bucket.take(2, 0.0)
    assert not bucket.allows(0.5)
    assert bucket.allows(1.0)


@given(
    st.floats(0.5, 1000),
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 500)), max_size=50),
)
def test_waiting_as_computed_keeps_the_mean_rate(
    rate: float, burst: float, takes: list[tuple[float, float]]
) -> None:
    """However it comes, no more than burst + rate x time is taken, the last time left out."""
    now = 0.0
    bucket = Bucket(rate, burst, now)
    taken = last = 0.0
    for idle, amount in takes:
        now += idle
        assert taken <= (burst + rate * now) * (1 + 1e-9)
        taken += amount
        last = bucket.take(amount, now)
        now += last
    assert last >= 0


def test_each_key_has_its_own_bucket() -> None:
    buckets = Buckets(rate=1, burst=1)
    assert buckets.take("a", 1, 0.0) == 0
    assert buckets.take("b", 1, 0.0) == 0
    assert buckets.take("a", 1, 0.0) == pytest.approx(1.0)
    assert not buckets.allows("a", 0.0)
    assert buckets.allows("c", 0.0)


def test_full_buckets_are_removed_and_buckets_in_debt_are_kept() -> None:
    buckets = Buckets(rate=1, burst=10)
    buckets.take("poor", 20, 0.0)
    for name in range(50):
        buckets.take(name, 1, 0.0)
    buckets.forget_full(2.0)
    assert len(buckets) == 1
    assert not buckets.allows("poor", 2.0)
    for second in range(3, 21):
        buckets.forget_full(float(second))
    assert len(buckets) == 0


def test_a_bucket_that_is_used_again_and_again_stays() -> None:
    buckets = Buckets(rate=1, burst=2)
    for tick in range(100):
        buckets.take("busy", 1, tick * 0.9)
        buckets.forget_full(tick * 0.9)
        assert len(buckets) == 1
    assert not buckets.allows("busy", 89.1)


def test_the_number_of_buckets_is_bounded() -> None:
    buckets = Buckets(rate=1, burst=5, most=100)
    for number in range(1000):
        buckets.take(number, 1, number * 0.001)
        assert len(buckets) <= 100
    buckets.forget_full(1000.0)
    assert len(buckets) == 0


def test_one_call_forgets_a_bounded_number() -> None:
    buckets = Buckets(rate=1, burst=2)
    for number in range(3000):
        buckets.take(number, 1, 0.0)
    buckets.forget_full(10.0)
    assert len(buckets) == 2000
