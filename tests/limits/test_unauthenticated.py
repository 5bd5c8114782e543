"""Connections without CONNECT: a common bound, and the heaviest address is closed first."""

from hypothesis import given
from hypothesis import strategies as st

from actors.limits.client_limits import Unauthenticated


def test_within_the_limits_no_connection_is_closed() -> None:
    waiting: Unauthenticated[int] = Unauthenticated(100, 100 * 10_000)
    for number in range(100):
        assert waiting.join(number, "192.0.2.1") == []
        assert waiting.holds(number, "192.0.2.1", 1000) == []
    assert len(waiting) == 100


def test_the_oldest_of_the_heaviest_address_go_first() -> None:
    waiting: Unauthenticated[str] = Unauthenticated(80, 0)
    waiting.join("good", "192.0.2.1")
    closed: list[str] = []
    for number in range(79):
        closed += waiting.join(f"bad {number}", "192.0.2.66")
    assert closed == []
    closed = waiting.join("late", "192.0.2.2")
    assert closed == [f"bad {number}" for number in range(11)]
    assert len(waiting) == 70


def test_many_bytes_weigh_as_much_as_many_connections() -> None:
    waiting: Unauthenticated[str] = Unauthenticated(0, 1_000_000)
    for number in range(20):
        assert waiting.join(f"many {number}", "192.0.2.1") == []
    waiting.join("fat", "192.0.2.66")
    closed: list[str] = []
    for size in range(100_000, 1_000_000, 100_000):
        closed += waiting.holds("fat", "192.0.2.66", size)
    assert closed == ["fat"]
    assert waiting.bytes <= 1_000_000


def test_only_buffered_bytes_count() -> None:
    waiting: Unauthenticated[str] = Unauthenticated(0, 100_000)
    waiting.join("one", "192.0.2.1")
    for _ in range(50):
        assert waiting.holds("one", "192.0.2.1", 50_000) == []
        assert waiting.holds("one", "192.0.2.1", 10) == []


def test_a_network_of_ipv6_is_one_address() -> None:
    waiting: Unauthenticated[str] = Unauthenticated(10, 0)
    for number in range(3):
        waiting.join(f"good {number}", f"192.0.2.{number}")
    closed: list[str] = []
    for number in range(8):
        closed += waiting.join(f"bad {number}", f"2001:db8::{number + 1}")
    assert closed == ["bad 0", "bad 1", "bad 2"]


def test_closed_connections_are_not_examined() -> None:
    waiting: Unauthenticated[str] = Unauthenticated(10, 0)
    waiting.join("one", "192.0.2.1")
    waiting.leave("one", "192.0.2.1")
    waiting.leave("one", "192.0.2.1")
    assert waiting.holds("one", "192.0.2.1", 1000) == []
    waiting.join("two", "192.0.2.1")
    assert waiting.holds("one", "192.0.2.1", 1000) == []
    assert len(waiting) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "holds", "leave"]), st.integers(0, 30), st.integers(0, 5)
        ),
        max_size=150,
    ),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_the_books_are_right_and_the_bounds_hold(
    steps: list[tuple[str, int, int]], most: int, most_kib: int
) -> None:
    waiting: Unauthenticated[int] = Unauthenticated(most, most_kib * 10_000)
    there: dict[int, int] = {}
    for what, who, amount in steps:
        address = f"192.0.2.{who % 4}"
        closed: list[int] = []
        if what == "join" and who not in there:
            there[who] = 0
            closed = waiting.join(who, address)
        elif what == "holds":
            if who in there:
                there[who] = amount * 3000
            closed = waiting.holds(who, address, amount * 3000)
        elif what == "leave":
            there.pop(who, None)
            waiting.leave(who, address)
        for gone in closed:
            del there[gone]
        assert len(waiting) == len(there)
        assert waiting.bytes == sum(8192 + size for size in there.values())
        assert not most or len(there) <= most
        assert not most_kib or waiting.bytes <= most_kib * 10_000
    for who in list(there):
        waiting.leave(who, f"192.0.2.{who % 4}")
    assert (len(waiting), waiting.bytes, waiting._addresses) == (0, 0, {})
