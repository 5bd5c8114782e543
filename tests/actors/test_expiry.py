"""The expiry buckets: each name is due at its time, and not before."""

import heapq
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.maintenance.session_expiry import Expiries


class Time:
    """A clock with timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.timers, (self.now + delay, self.count, callback))

    def go(self, until: float) -> None:
        while self.timers and self.timers[0][0] <= until:
            self.now, _, callback = heapq.heappop(self.timers)
            callback()
        self.now = until


def noting(
    due: list[tuple[str, float]], time: Time, subscriptions: int = 0
) -> Callable[[str], int]:
    """Return a callback that records names, of sessions with this many subscriptions."""

    def is_due(name: str) -> int:
        due.append((name, time.now))
        return subscriptions

    return is_due


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), max_size=40))
def test_each_name_comes_once_and_in_time(names: list[tuple[float, float]]) -> None:
    time = Time()
    due: list[tuple[str, float]] = []
    expiries = Expiries(lambda: time.now, time.after, noting(due, time))
    wanted = {}
    for number, (delay, pause) in enumerate(names):
        expiries.watch(str(number), delay)
        wanted[str(number)] = time.now + delay
        time.go(time.now + pause)
    time.go(time.now + 100)
    assert sorted(name for name, _ in due) == sorted(wanted)
    for name, when in due:
        assert wanted[name] <= when + 1e-9
        assert when <= wanted[name] + 0.2


def test_a_name_is_stored_once_and_can_be_removed() -> None:
    time = Time()
    due: list[tuple[str, float]] = []
    expiries = Expiries(lambda: time.now, time.after, noting(due, time))
    for delay in (9.0, 5.0, 7.0):
        expiries.watch("a", delay)
    expiries.watch("b", 3.0)
    expiries.forget("b")
    expiries.forget("unknown")
    time.go(time.now + 20)
    assert [name for name, _ in due] == ["a"]
    assert 105.0 <= due[0][1] <= 105.2


@pytest.mark.parametrize(("subscriptions", "at_once"), [(0, 256), (3, 256), (100, 11), (5000, 1)])
def test_a_fleet_is_handed_on_in_parts(subscriptions: int, at_once: int) -> None:
    time = Time()
    due: list[tuple[str, float]] = []
    expiries = Expiries(lambda: time.now, time.after, noting(due, time, subscriptions))
    for number in range(1000):
        expiries.watch(str(number), 1.0)
    time.go(time.now + 20)
    assert sorted(map(int, dict(due))) == list(range(1000))
    together = Counter(when for _, when in due)
    assert max(together.values()) == at_once
