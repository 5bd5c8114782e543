"""Clients that reconnect again and again are refused for a while, and no longer."""

from hypothesis import given
from hypothesis import strategies as st

from actors.limits.client_limits import Flapping


def test_so_many_connects_are_not_too_many() -> None:
    flapping = Flapping(connects=5, window=60, backoff=30)
    assert [flapping.connects("c", 0.0) for _ in range(6)] == [0, 0, 0, 0, 0, 30]
    assert flapping.connects("c", 10.0) == 20
    assert flapping.connects("other", 10.0) == 0


def test_trying_again_does_not_make_it_longer() -> None:
    flapping = Flapping(connects=1, window=1, backoff=30)
    flapping.connects("c", 0.0)
    assert flapping.connects("c", 0.0) == 30
    for second in range(1, 30):
        assert flapping.connects("c", float(second)) == 30 - second
    assert flapping.connects("c", 30.0) == 0


def test_none_is_refused_at_a_pace_that_is_allowed() -> None:
    flapping = Flapping(connects=10, window=60, backoff=30)
    assert not any(flapping.connects("c", number * 6.0) for number in range(1000))


def test_flapping_detection_can_be_disabled() -> None:
    flapping = Flapping(connects=0, window=60, backoff=30)
    assert not any(flapping.connects("c", 0.0) for _ in range(1000))


def test_expired_entries_are_removed() -> None:
    flapping = Flapping(connects=1, window=1, backoff=30)
    for number in range(20):
        flapping.connects(number, 0.0)
        flapping.connects(number, number * 0.01)
    assert len(flapping) == 20
    flapping.sweep(30.1)
    assert len(flapping) == 9
    flapping.sweep(31.0)
    assert len(flapping) == 0


@given(st.lists(st.integers(0, 300), max_size=400))
def test_memory_is_bounded(names: list[int]) -> None:
    flapping = Flapping(connects=1, window=1, backoff=30, most=20)
    for number, name in enumerate(names):
        flapping.connects(name, number * 0.001)
        assert len(flapping) <= 20
