"""Overload begins when the loop stays late, and ends when that is over: never with one sample."""

from __future__ import annotations

from structlog.testing import capture_logs

from actors.limits.client_limits import Overload


class Sampler:
    """Feeds samples, ten in a second."""

    def __init__(self, overload: Overload) -> None:
        self.overload = overload
        self.now = 100.0

    def feed(self, seconds: float, lag: float = 0.0, commit: float = 0.0) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.overload.sample(lag, commit, self.now)


def overload(after: float = 5.0) -> Sampler:
    return Sampler(Overload(lag=0.5, commit=2.0, after=after))


def test_continued_lateness_is_overload() -> None:
    sampler = overload()
    sampler.feed(4.8, lag=0.6)
    assert sampler.overload.reason is None
    sampler.feed(0.5, lag=0.6)
    assert sampler.overload.reason == "loop_lag"


def test_a_log_that_is_slow_for_long_is_overload() -> None:
    sampler = overload()
    sampler.feed(6, commit=2.5)
    assert sampler.overload.reason == "commit_latency"


def test_one_late_sample_is_none_however_late() -> None:
    sampler = overload()
    sampler.feed(1)
    sampler.now += 300.0
    sampler.overload.sample(300.0, 300.0, sampler.now)
    assert sampler.overload.reason is None
    sampler.feed(2)
    for _ in range(10):
        sampler.feed(2, lag=0.6)
        sampler.feed(2)
    assert sampler.overload.reason is None


def test_a_loop_that_is_late_for_longer_than_between_samples_is_noticed_in_time() -> None:
    sampler = overload()
    for _ in range(6):
        sampler.now += 2.0
        sampler.overload.sample(1.9, 0.0, sampler.now)
    assert sampler.overload.reason == "loop_lag"


def test_it_takes_as_long_to_end() -> None:
    sampler = overload()
    sampler.feed(6, lag=0.6)
    sampler.feed(30, lag=0.4)
    assert sampler.overload.reason == "loop_lag", "between half the bound and the bound it stays"
    sampler.feed(4.5, lag=0.1)
    assert sampler.overload.reason == "loop_lag"
    sampler.feed(1, lag=0.1)
    assert sampler.overload.reason is None


def test_a_bound_of_0_is_none() -> None:
    sampler = Sampler(Overload(lag=0.0, commit=0.0, after=1.0))
    sampler.feed(10, lag=9, commit=9)
    assert sampler.overload.reason is None


def test_a_bound_that_is_taken_away_ends_it() -> None:
    sampler = overload()
    sampler.feed(6, lag=0.6)
    sampler.overload.change(0.0, 2.0, 5.0)
    sampler.feed(0.1, lag=0.6)
    assert sampler.overload.reason is None


def test_only_changes_are_logged() -> None:
    sampler = overload()
    with capture_logs() as lines:
        sampler.feed(20, lag=0.6)
        sampler.feed(20)
    assert [line["event"] for line in lines] == [
        "overloaded: new connections are refused",
        "overload has ended",
    ]
    assert lines[0]["reason"] == lines[1]["reason"] == "loop_lag"
    assert lines[1]["seconds"] > 15


def test_two_reasons_end_one_after_the_other() -> None:
    sampler = overload()
    sampler.feed(6, lag=0.6, commit=3)
    assert sampler.overload.reason == "loop_lag"
    sampler.feed(6, commit=3)
    assert sampler.overload.reason == "commit_latency"
    sampler.feed(6)
    assert sampler.overload.reason is None
