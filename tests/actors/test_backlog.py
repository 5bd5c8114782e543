"""Publishers wait for receivers that catch up soon, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from actors.bridge.bridge import NatsBackpressure
from actors.node.backpressure import Backlog, SlowReaderBackpressure
from actors.node.read_pause import ReadPause

pytestmark = pytest.mark.plain


class Publisher:
    """A connection that is read, or not."""

    def __init__(self, resumed: list[Publisher] | None = None) -> None:
        self.ended = False
        self.paused = 0
        self._resumed = resumed

    def pause(self, reason: int) -> None:
        self.paused |= reason

    def resume(self, reason: int) -> None:
        self.paused &= ~reason
        if self._resumed is not None:
            self._resumed.append(self)


class Bench:
    """A backlog, its time, and the queue that it looks at."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.waiting, self.left = 5000, 0
        self.backlog = Backlog(
            cast("Any", self), cast("Any", self), lambda: (self.waiting, self.left)
        )

    def monotonic(self) -> float:
        return self.now

    def after(self, delay: float, method: Callable[[], None]) -> None:
        self.due.append((self.now + delay, method))

    def go(self, seconds: float, taken: int = 0) -> None:
        """Let time pass, in which the receiver takes some of what waits."""
        end = self.now + seconds
        while self.due and self.due[0][0] <= end:
            self.now, method = self.due.pop(0)
            self.waiting -= taken
            self.left += taken
            method()
        self.now = end


@pytest.fixture
def bench() -> Bench:
    return Bench()


def hold(bench: Bench) -> Publisher:
    publisher = Publisher()
    bench.backlog.hold(cast("Any", publisher), 100)
    return publisher


def test_a_publisher_waits_as_long_as_the_queue_will_soon_be_short(bench: Bench) -> None:
    publisher = hold(bench)
    assert publisher.paused == ReadPause.BACKLOG
    bench.go(0.5, taken=1500)
    bench.go(0.5, taken=1500)
    assert publisher.paused
    bench.backlog.release()
    assert not publisher.paused


@pytest.mark.parametrize("taken", [0, 100])
def test_no_publisher_waits_for_a_dead_or_much_slower_receiver(bench: Bench, taken: int) -> None:
    publisher = hold(bench)
    bench.go(0.6, taken=taken)
    assert not publisher.paused
    assert not hold(bench).paused
    bench.go(11)
    assert hold(bench).paused  # it gets another chance


def test_a_repeated_wait_uses_only_the_progress_since_the_last_one(bench: Bench) -> None:
    hold(bench)
    bench.go(0.4)
    bench.backlog.release()
    publisher = hold(bench)
    bench.go(0.2)  # the first timer: too early to judge
    assert publisher.paused
    bench.go(0.5, taken=2000)
    assert publisher.paused


def test_a_publisher_that_ended_is_not_held(bench: Bench) -> None:
    publisher = Publisher()
    publisher.ended = True
    bench.backlog.hold(cast("Any", publisher), 100)
    assert not publisher.paused
    assert bench.due == []


def test_a_slow_publisher_does_not_wait_for_the_backlog_of_others(bench: Bench) -> None:
    busy, quiet = Publisher(), Publisher()
    bench.backlog.hold(cast("Any", busy), 500)
    bench.backlog.hold(cast("Any", quiet), 1)
    assert busy.paused
    assert not quiet.paused
    bench.backlog.hold(cast("Any", quiet), 600)
    assert quiet.paused


@pytest.mark.parametrize("what", ["backlog", "slow reader", "NATS"])
def test_publishers_are_resumed_in_the_order_in_which_they_were_paused(
    bench: Bench, what: str
) -> None:
    resumed: list[Publisher] = []
    paused = [Publisher(resumed) for _ in range(10)][::-1]
    slow = SlowReaderBackpressure()
    nats = NatsBackpressure(lambda: True, bench.after)
    for publisher in cast("list[Any]", paused):
        if what == "backlog":
            bench.backlog.hold(publisher, 100)
        elif what == "slow reader":
            slow.hold(publisher, 100, cast("Any", bench))
        else:
            nats.hold(publisher)
    bench.go(0.1)
    bench.backlog.release()
    slow.release()
    assert resumed == paused
