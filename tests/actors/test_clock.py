"""Timers, driven by a manual clock."""

import heapq

import pytest
from freezegun import freeze_time
from freezegun.api import FrozenDateTimeFactory

from actors.kernel.clock import _AT_ONCE, _REMOVED_AT_ONCE, LogClock, SystemClock, Timers


class FakeTimerLoop:
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
def loop() -> FakeTimerLoop:
    return FakeTimerLoop()


def test_timers_fire_in_the_order_of_their_deadlines(loop: FakeTimerLoop) -> None:
    for delay, name in ((3, "c"), (1, "a"), (2, "b"), (1, "a2")):
        loop.after(delay, name)
    loop.go(0.99)
    assert loop.fired == []
    loop.go(0.02)
    assert loop.fired == ["a", "a2"]
    loop.go(5)
    assert loop.fired == ["a", "a2", "b", "c"]
    assert len(loop.timers) == 0


def test_only_a_shorter_timer_reschedules_the_loop(loop: FakeTimerLoop) -> None:
    loop.after(10, "later")
    loop.after(20, "last")
    assert len(loop.calls) == 1
    loop.after(5, "sooner")
    assert len(loop.calls) == 2


def test_calls_do_not_pile_up(loop: FakeTimerLoop) -> None:
    """A call for a shorter timer comes in addition, and must not go on for ever."""
    loop.after(1000, "far")
    for _ in range(100):
        loop.after(1, "near")
        loop.go(2)
    assert len(loop.fired) == 100
    assert len(loop.calls) == 1
    loop.go(2000)
    assert (len(loop.fired), loop.calls) == (101, [])


def test_a_timer_set_by_a_timer(loop: FakeTimerLoop) -> None:
    def again() -> None:
        loop.fired.append("tick")
        loop.timers.after(1, again)

    loop.timers.after(1, again)
    loop.go(10.5)
    assert len(loop.fired) == 10
    assert len(loop.calls) == 1


def test_a_timer_without_delay_set_by_a_timer_does_not_spin(loop: FakeTimerLoop) -> None:
    def again() -> None:
        loop.fired.append("tick")
        loop.timers.after(0, again)

    loop.timers.after(0, again)
    loop.timers.run_due()
    assert loop.fired == ["tick"]


def test_a_timer_that_fails_keeps_no_other_from_firing(loop: FakeTimerLoop) -> None:
    def fail() -> None:
        raise ValueError("boom")

    loop.after(1, "before")
    loop.timers.after(1, fail)
    loop.after(1, "after")
    loop.after(2, "later")
    loop.go(3)
    assert loop.fired == ["before", "after", "later"]


def test_a_call_too_early_or_too_many_does_no_harm(loop: FakeTimerLoop) -> None:
    loop.after(5, "five")
    for _ in range(3):
        loop.timers.run_due()
    assert loop.fired == []
    loop.go(6)
    assert loop.fired == ["five"]
    loop.timers.run_due()
    assert loop.fired == ["five"]


def test_a_call_for_a_clock_that_has_not_moved_is_repeated(loop: FakeTimerLoop) -> None:
    loop.after(5, "five")
    loop.calls.clear()
    loop.timers.run_due()
    assert len(loop.calls) == 1


def test_the_system_clock() -> None:
    with freeze_time("2030-01-01 00:00:00") as frozen:
        assert isinstance(frozen, FrozenDateTimeFactory)
        clock = SystemClock()
        assert clock.time_ms() == 1_893_456_000_000
        before = clock.monotonic()
        frozen.tick(1.5)
        assert clock.time_ms() == 1_893_456_001_500
        assert clock.monotonic() - before == 1.5


class SetClock:
    """The clock of a machine that can be set."""

    def __init__(self) -> None:
        self.set_ms = self.elapsed = 0

    def time_ms(self) -> int:
        return 1_000_000 + self.elapsed + self.set_ms

    def elapsed_ms(self) -> int:
        return self.elapsed

    def monotonic(self) -> float:
        return self.elapsed / 1000

    stopwatch = processor = monotonic


@pytest.mark.parametrize("jump", [3_600_000, -3_600_000])
def test_the_steady_time_does_not_follow_a_jump(jump: int) -> None:
    machine = SetClock()
    clock = LogClock(machine)
    machine.elapsed += 500
    machine.set_ms += jump
    assert (clock.time_ms(), clock.ahead_ms()) == (1_000_500, jump)
    assert clock.check() == jump
    assert (clock.time_ms(), clock.steady_ms()) == (1_000_500 + jump, 1_000_500)
    assert clock.check() == 0


def test_a_small_difference_is_made_up_for_gradually() -> None:
    machine = SetClock()
    clock = LogClock(machine)
    machine.set_ms += 250
    assert [(clock.check(), clock.ahead_ms()) for _ in range(3)] == [(0, 150), (0, 50), (0, 0)]
    assert clock.jumped_ms == 0


@pytest.mark.parametrize(
    ("last_ms", "longest_ms", "jump"),
    [
        (999_000, 5000, 0),  # a short break
        (900_000, 0, 0),  # any break counts
        (900_000, 5000, 100_000),
        (1_001_000, 5000, 0),  # the clock of another machine is a bit ahead
        (1_100_000, 5000, -100_000),
    ],
)
def test_a_log_is_continued(last_ms: int, longest_ms: int, jump: int) -> None:
    clock = LogClock(SetClock())
    assert clock.resume(last_ms, 0, longest_ms) == jump
    assert clock.steady_ms() >= last_ms
    assert clock.time_ms() == max(1_000_000, last_ms + jump)


def test_timers_of_a_crowd_fire_some_at_a_time_and_in_order(loop: FakeTimerLoop) -> None:
    count = 3 * _AT_ONCE
    for number in range(count):
        loop.after(1 + number / count / 1000, str(number))
    loop.now += 2
    for parts in range(1, 4):
        loop.timers.run_due()
        assert loop.fired == [str(number) for number in range(parts * _AT_ONCE)]


def test_cancelled_timers_are_removed_some_at_a_time(loop: FakeTimerLoop) -> None:
    loop.after(1.5, "alive")
    timers = [loop.timers.after(1, lambda: None) for _ in range(2 * _REMOVED_AT_ONCE)]
    for timer in timers:
        timer.cancel()
    loop.now += 2
    loop.timers.run_due()
    assert len(loop.timers) == _REMOVED_AT_ONCE + 1
    loop.go(1)
    assert loop.fired == ["alive"]
    assert len(loop.timers) == 0


def test_many_cancelled_timers_are_removed_before_they_are_due(loop: FakeTimerLoop) -> None:
    for number in range(3 * _REMOVED_AT_ONCE):
        timer = loop.timers.after(10, lambda: None)
        if number % 3:
            timer.cancel()
    assert len(loop.timers) < 2 * _REMOVED_AT_ONCE
    loop.after(11, "alive")
    loop.go(12)
    assert loop.fired == ["alive"]
    assert len(loop.timers) == loop.timers.cancelled == 0
