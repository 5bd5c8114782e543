"""Which reads wait for each other."""

import math

import pytest

from actors.kernel.gathering import Gathering

DELAY = 0.003
NEVER = -math.inf


class Bench:
    """Reads of clients at times of their own."""

    def __init__(self, rate: float = 1000.0, delay: float = DELAY) -> None:
        self.gathering = Gathering()
        self.gathering.delay = delay
        self.now = 10.0
        self.released: dict[str, float] = {}
        self.until: dict[str, float] = {}
        self.joined: dict[str, float] = {}
        self.took = 0.0
        # Closed loops were tested just now.
        self.gathering._probed = math.inf
        for _ in range(300):
            self.now += 1 / rate
            self.read("others")
            self.gathering.end()
        self.until.clear()

    def read(self, name: str = "others", size: int = 80) -> bool:
        gathering, joined = self.gathering, self.joined.get(name, NEVER)
        until = gathering.independent_until(self.now, joined, self.until.get(name, NEVER))
        self.until[name] = until
        waits = gathering.joins(
            self.now,
            size,
            released=self.released.get(name, NEVER),
            until=until,
            took=self.took,
        )
        if waits and joined < gathering.began:
            self.joined[name] = self.now
        return waits


@pytest.mark.parametrize(
    ("rate", "delay", "waits"),
    [
        (50, DELAY, False),
        (200, DELAY, False),
        (300, DELAY, False),
        (400, DELAY, True),
        (1000, DELAY, True),
        (200, 0.01, True),
        (30, 0.05, True),
        (15, 0.05, False),
    ],
)
def test_a_read_waits_if_another_one_is_expected(rate: float, delay: float, *, waits: bool) -> None:
    bench = Bench(rate, delay)
    bench.now += 1 / rate
    assert bench.read() is waits
    assert (bench.gathering.left(bench.now) == pytest.approx(delay)) is waits


def test_what_is_known_of_the_rate_ends_with_a_pause() -> None:
    bench = Bench()
    bench.now += 0.11
    assert not bench.read()
    bench.gathering.end()
    bench.now += 0.001
    assert not bench.read()


def test_no_read_waits_while_most_are_from_clients_that_got_output_just_now() -> None:
    bench = Bench()
    bench.released["a"] = bench.released["b"] = bench.now
    bench.now += 1.9 * DELAY
    assert not bench.read("a")
    bench.gathering.end()
    assert bench.read("x")
    assert not bench.read("a"), "one of two"
    bench.gathering.end()
    assert [bench.read(name) for name in "xyab"] == [True, True, True, False]


def test_a_client_that_got_output_two_delays_ago_sends_for_another_reason() -> None:
    bench = Bench()
    bench.released["a"] = bench.now
    bench.now += 2.1 * DELAY
    assert bench.read("a")


def test_a_client_that_sends_while_its_read_waits_is_independent_for_a_second() -> None:
    bench = Bench()
    assert bench.read("a")
    bench.now += DELAY / 2
    assert bench.read("a")
    bench.gathering.end()
    bench.released["a"] = bench.now
    bench.now += 0.001
    assert bench.read("a")
    bench.gathering.end()
    for _ in range(600):
        bench.now += 0.002
        bench.released["b"] = bench.now
        bench.read("b")
        bench.gathering.end()
    bench.released["a"] = bench.now
    assert not bench.read("a")


def test_a_client_that_sends_several_packets_at_once_is_not_independent() -> None:
    bench = Bench()
    bench.read("x")
    bench.read("y")
    for _ in range(5):
        bench.now += 0.0001
        bench.read("a")
    bench.gathering.end()
    bench.released["a"] = bench.now
    assert not bench.read("a")


def test_closed_loops_are_tested_now_and_then() -> None:
    bench = Bench()
    bench.gathering._probed = NEVER
    waits = 0
    for _ in range(2000):
        bench.released["a"] = bench.now
        bench.now += 0.001
        if bench.read("a"):
            waits += 1
        bench.gathering.end()
    assert 3 <= waits <= 4, "each 200 delays"


@pytest.mark.parametrize(("size", "most"), [(80, 15), (2000, 8)])
def test_few_reads_of_few_bytes_wait(size: int, most: int) -> None:
    bench = Bench()
    assert [bench.read(size=size) for _ in range(most + 1)] == [*[True] * most, False]


def test_no_read_waits_after_a_long_turn() -> None:
    bench = Bench()
    bench.took = DELAY
    assert not bench.read()


def test_answers_of_a_handshake_join_a_wait_but_begin_none() -> None:
    bench = Bench()
    assert bench.gathering.left(bench.now) == 0
    bench.read()
    assert bench.gathering.left(bench.now + 0.001) == pytest.approx(DELAY - 0.001)
    assert bench.gathering.left(bench.now + DELAY) == 0
    bench.gathering.end()
    assert bench.gathering.left(bench.now) == 0
