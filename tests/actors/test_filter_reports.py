"""Reports of filters between the bridges of several logs: how NATS is asked to confirm them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from harness.manual_clock import ManualClock

from actors.bridge.filter_reports import FilterReports
from actors.bridge.interest import TopicHomes
from actors.kernel.clock import Timers

CHANGES, ALL = 1, 2
"""Kinds of reports."""


class Place:
    """The reports of log ``n-p0``, with a NATS server that answers fences when told to."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.timers = Timers(self.clock, lambda _delay: None)
        self.fences: list[Callable[[], None]] = []
        self.sent: list[Any] = []
        node: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=self.clock), timers=self.timers, draining=False
        )
        self.reports = FilterReports(
            node,
            TopicHomes(["n-p0", "n-p1", "n-p2"], "n-p0"),
            list,
            lambda _filter: None,
            lambda _filter: None,
            self.fences.append,
            lambda data: self.sent.append(orjson.loads(data)),
        )
        self.reports.begin()
        for log in ("n-p1", "n-p2"):  # each has begun without filters
            self.hears(log, 0, ALL, (0, True, []))
        self.answer()

    def begins(self, log: str, number: int) -> None:
        """Take the report of another log that one more filter began."""
        self.hears(log, number, CHANGES, (number - 1, [f"+/{number}"], []))

    def hears(self, log: str, changes: int, kind: int, content: object) -> None:
        """Take a report of another log, which knows the filters of this one."""
        known = {"n-p0": (self.sent[0][0], 0, 0)}
        self.reports.heard(log, orjson.dumps(("run", changes, known, kind, content)))

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.now += 0.1
            self.timers.run_due()

    def answer(self) -> None:
        """Answer all fences as NATS does, and those that follow from the answers."""
        while self.fences:
            self.fences.pop(0)()

    def confirmed(self, log: str) -> int:
        """Return the number of changes of a log that the last report confirms."""
        self.wait(1.0)
        number: int = self.sent[-1][2][log][2]
        return number


@pytest.fixture
def place() -> Place:
    return Place()


def test_one_fence_for_each_log_waits_for_nats_that_hangs(place: Place) -> None:
    for number in range(1, 50):
        place.begins("n-p1", number)
        place.wait(0.3)
    place.begins("n-p2", 1)
    place.wait(20.0)
    assert len(place.fences) == 2
    assert place.confirmed("n-p1") == 0
    place.answer()
    assert place.confirmed("n-p1") == 49
    assert place.confirmed("n-p2") == 1
    assert not place.fences


def test_changes_after_the_fence_are_confirmed_by_another_one(place: Place) -> None:
    place.begins("n-p1", 1)
    place.begins("n-p1", 2)
    place.fences.pop(0)()
    assert place.confirmed("n-p1") == 1
    place.answer()
    assert place.confirmed("n-p1") == 2


def test_nats_is_asked_again_after_the_connection_was_lost(place: Place) -> None:
    place.begins("n-p1", 1)
    old = place.fences.pop()
    place.reports.connection_lost()
    place.wait(1.0)
    assert len(place.fences) == 1
    old()  # its connection is gone
    assert place.confirmed("n-p1") == 0
    place.answer()
    assert place.confirmed("n-p1") == 1
