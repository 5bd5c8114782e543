"""Timers, driven by a manual clock."""

from __future__ import annotations

import heapq

import pytest
from freezegun import freeze_time
from freezegun.api import FrozenDateTimeFactory

from actors.kernel import SystemClock, Timers
from actors.kernel.clock import _AT_ONCE, _REMOVED_AT_ONCE


class Wheel:
    """A clock and the calls that timers scheduled, like an event loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[float] = []
        self.fired: list[str] = []
        self.timers = Timers(lambda: self.now, self.arm)

    def arm(self, delay: float) -> None:
        assert delay > 0
        heapq.heappush(self.calls, self.now + delay)

    def go(self, seconds: float) -> None:
        """Advance the clock; run scheduled calls when they are due."""
        end = self.now + seconds
        while self.calls and self.calls[0] <= end:
            self.now = max(self.now, heapq.heappop(self.calls))
            self.timers.run_due()
        self.now = end

    def after(self, delay: float, name: str) -> None:
        self.timers.after(delay, lambda: self.fired.append(name))


@pytest.fixture
def wheel() -> Wheel:
    return Wheel()


def test_timers_fire_in_the_order_of_their_deadlines(wheel: Wheel) -> None:
    for delay, name in ((3, "c"), (1, "a"), (2, "b"), (1, "a2")):
        wheel.after(delay, name)
    wheel.go(0.99)
    assert wheel.fired == []
    wheel.go(0.02)
    assert wheel.fired == ["a", "a2"]
    wheel.go(5)
    assert wheel.fired == ["a", "a2", "b", "c"]
    assert len(wheel.timers) == 0


def test_only_a_shorter_timer_reschedules_the_loop(wheel: Wheel) -> None:
    wheel.after(10, "later")
    wheel.after(20, "last")
    assert len(wheel.calls) == 1
    wheel.after(5, "sooner")
    assert len(wheel.calls) == 2


def test_calls_do_not_pile_up(wheel: Wheel) -> None:
    """A call for a shorter timer comes in addition, and must not go on for ever."""
    wheel.after(1000, "far")
    for _ in range(100):
        wheel.after(1, "near")
        wheel.go(2)
    assert len(wheel.fired) == 100
    assert len(wheel.calls) == 1
    wheel.go(2000)
    assert (len(wheel.fired), wheel.calls) == (101, [])


def test_a_timer_set_by_a_timer(wheel: Wheel) -> None:
    def again() -> None:
        wheel.fired.append("tick")
        wheel.timers.after(1, again)

    wheel.timers.after(1, again)
    wheel.go(10.5)
    assert len(wheel.fired) == 10
    assert len(wheel.calls) == 1


def test_a_timer_without_delay_set_by_a_timer_does_not_spin(wheel: Wheel) -> None:
    def again() -> None:
        wheel.fired.append("tick")
        wheel.timers.after(0, again)

    wheel.timers.after(0, again)
    wheel.timers.run_due()
    assert wheel.fired == ["tick"]


def test_a_timer_that_fails_keeps_no_other_from_firing(wheel: Wheel) -> None:
    def fail() -> None:
        raise ValueError("boom")

    wheel.after(1, "before")
    wheel.timers.after(1, fail)
    wheel.after(1, "after")
    wheel.after(2, "later")
    wheel.go(3)
    assert wheel.fired == ["before", "after", "later"]


def test_a_call_too_early_or_too_many_does_no_harm(wheel: Wheel) -> None:
    wheel.after(5, "five")
    for _ in range(3):
        wheel.timers.run_due()
    assert wheel.fired == []
    wheel.go(6)
    assert wheel.fired == ["five"]
    wheel.timers.run_due()
    assert wheel.fired == ["five"]


def test_a_call_for_a_clock_that_has_not_moved_is_repeated(wheel: Wheel) -> None:
    wheel.after(5, "five")
    wheel.calls.clear()
    wheel.timers.run_due()
    assert len(wheel.calls) == 1


def test_the_system_clock() -> None:
    with freeze_time("2030-01-01 00:00:00") as frozen:
        assert isinstance(frozen, FrozenDateTimeFactory)
        clock = SystemClock()
        assert clock.time_ms() == 1_893_456_000_000
        before = clock.monotonic()
        frozen.tick(1.5)
        assert clock.time_ms() == 1_893_456_001_500
        assert clock.monotonic() - before == 1.5


def test_timers_of_a_crowd_fire_some_at_a_time_and_in_order(wheel: Wheel) -> None:
    count = 3 * _AT_ONCE
    for number in range(count):
        wheel.after(1 + number / count / 1000, str(number))
    wheel.now += 2
    for parts in range(1, 4):
        wheel.timers.run_due()
        assert wheel.fired == [str(number) for number in range(parts * _AT_ONCE)]


def test_cancelled_timers_are_removed_some_at_a_time(wheel: Wheel) -> None:
    wheel.after(1.5, "alive")
    timers = [wheel.timers.after(1, lambda: None) for _ in range(2 * _REMOVED_AT_ONCE)]
    for timer in timers:
        timer.cancel()
    wheel.now += 2
    wheel.timers.run_due()
    assert len(wheel.timers) == _REMOVED_AT_ONCE + 1
    wheel.go(1)
    assert wheel.fired == ["alive"]
    assert len(wheel.timers) == 0


def test_many_cancelled_timers_are_removed_before_they_are_due(wheel: Wheel) -> None:
    for number in range(3 * _REMOVED_AT_ONCE):
        timer = wheel.timers.after(10, lambda: None)
        if number % 3:
            timer.cancel()
    assert len(wheel.timers) < 2 * _REMOVED_AT_ONCE
    wheel.after(11, "alive")
    wheel.go(12)
    assert wheel.fired == ["alive"]
    assert len(wheel.timers) == wheel.timers.cancelled == 0
