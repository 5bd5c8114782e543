"""The throttle of takeovers: the pure rule, and the bound on its memory."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from actors.broker.session_admission import PreviousConnection, TakeoverThrottle

A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"
WINDOW = 1.0


def story(*steps: tuple[float, str, str, float]) -> list[bool]:
    """Whether each takeover waits: when, by whom, of whose connection, silent for how long."""
    takeovers = TakeoverThrottle()
    return [
        takeovers.must_wait("c", host, PreviousConnection(old, silence), now, WINDOW)
        for now, host, old, silence in steps
    ]


def test_a_displaced_client_that_reconnects_waits() -> None:
    assert story((0, B, A, 0.1), (0.1, A, B, 0.1), (1.2, B, A, 0.1)) == [False, True, True]


def test_a_silent_connection_is_no_rival() -> None:
    assert story((0, B, A, 5), (0.1, A, B, math.inf), (0.2, B, A, 1)) == [False, False, False]


def test_a_client_that_reconnects_later_does_not_wait() -> None:
    assert story((0, B, A, 0), (2, A, B, 0), (4, B, A, 0)) == [False, False, False]


def test_a_third_one_does_not_wait() -> None:
    assert story((0, B, A, 0), (0.1, C, B, 0), (0.2, A, C, 0)) == [False, False, True]


def test_addresses_of_one_network_are_one() -> None:
    one, other = "2001:db8::1", "2001:db8::2"
    assert not any(story(*((0.1 * step, one, other, 0) for step in range(10))))


def test_twelve_takeovers_in_a_row_and_one_per_second_are_not_throttled() -> None:
    assert story(*((0.0, A, A, 0) for _ in range(14))) == [False] * 12 + [True] * 2
    assert not any(story(*((float(second), A, A, 0) for second in range(1000))))


def test_a_wait_counts_as_paid() -> None:
    """A takeover right after an accepted one waits as well."""
    free = [(0.0, A, A, 0.0)] * 12
    late = [(float(second), A, A, 0.0) for second in range(10)]
    assert story(*free, *late)[12:] == [True] * 10


def test_without_a_delay_no_client_waits() -> None:
    takeovers = TakeoverThrottle()
    assert not any(
        takeovers.must_wait("c", A, PreviousConnection(A, 0), 0.0, 0.0) for _ in range(100)
    )
    assert len(takeovers) == 0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=200))
def test_memory_is_bounded(steps: list[tuple[int, int]]) -> None:
    takeovers = TakeoverThrottle(most=10)
    for at, (name, host) in enumerate(steps):
        takeovers.must_wait(str(name), str(host), PreviousConnection(str(at), 0), at * 0.01, WINDOW)
        assert len(takeovers) <= 10
        assert all(len(known.disconnected) <= 8 for known in takeovers._known.values())
