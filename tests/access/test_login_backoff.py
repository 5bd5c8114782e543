"""The login backoff: the locked-out users and addresses, and the duration."""

import pytest
from harness.anonymous import Anonymous
from harness.manual_clock import ManualClock

from actors.access.backend_selection import BackendSelection
from actors.access.backends import make_backends
from actors.access.credentials import Credentials, login_rank
from actors.access.login_backoff import BackoffOptions, LoginBackoff, LoginRank, network

HERE, THERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def backoff(clock: ManualClock, **options: float) -> LoginBackoff:
    chosen = {"failures": 3, "address_failures": 6, "window": 60, "duration": 300, **options}
    return LoginBackoff(BackoffOptions(**chosen), clock)  # type: ignore[arg-type]


def test_a_user_is_locked_out_at_one_address(clock: ManualClock) -> None:
    guard = backoff(clock)
    assert [guard.failed(HERE, "ann") for _ in range(3)] == [(), (), ("user",)]
    assert guard.holds(HERE, "ann")
    assert not guard.holds(HERE, "bob")
    assert not guard.holds(THERE, "ann")
    assert not guard.holds(HERE, None)
    assert guard.lockouts == 1


def test_it_ends_and_can_start_again(clock: ManualClock) -> None:
    guard = backoff(clock)
    for _ in range(3):
        guard.failed(HERE, "ann")
    clock.now += 299
    assert guard.holds(HERE, "ann")
    # What is tried meanwhile makes it no longer.
    assert guard.failed(HERE, "ann") == ()
    clock.now += 1
    assert not guard.holds(HERE, "ann")
    assert [guard.failed(HERE, "ann") for _ in range(3)] == [(), (), ("user",)]


def test_failures_count_within_the_window(clock: ManualClock) -> None:
    guard = backoff(clock)
    guard.failed(HERE, "ann")
    guard.failed(HERE, "ann")
    clock.now += 60
    assert guard.failed(HERE, "ann") == ()
    assert guard.failed(HERE, "ann") == ()
    assert guard.failed(HERE, "ann") == ("user",)


def test_a_success_is_for_the_user_alone(clock: ManualClock) -> None:
    guard = backoff(clock)
    for name in "abcde":
        guard.failed(HERE, name)
        guard.succeeded(HERE, name)
    assert guard.failed(HERE, "f") == ("address",)
    assert guard.answers_late(HERE)
    assert not guard.answers_late(THERE)
    assert not guard.holds(HERE, "anybody")
    assert guard.reserve(HERE, "anybody") == 0.0


def test_the_pauses_of_a_slowed_user_grow_and_end(clock: ManualClock) -> None:
    guard = backoff(clock)
    for _ in range(3):
        guard.failed(HERE, "ann")
    pauses = []
    for _ in range(400):
        wait = guard.reserve(HERE, "ann")
        assert wait is not None
        pauses.append(wait)
        clock.now += wait
        if not guard.holds(HERE, "ann"):
            break
    assert pauses[0] == 0.0
    assert pauses[1:50] == [pytest.approx(0.25)] * 49
    assert pauses[51] == pytest.approx(0.5)
    assert sum(pauses) == pytest.approx(300, abs=100), "to the end of the lockout"
    assert guard.reserve(HERE, "ann") == 0.0


def test_a_user_and_the_address_at_once(clock: ManualClock) -> None:
    guard = backoff(clock, failures=6)
    assert [guard.failed(HERE, "ann") for _ in range(6)][-1] == ("user", "address")


@pytest.mark.parametrize("which", ["failures", "address_failures"])
def test_each_bound_can_be_off(clock: ManualClock, which: str) -> None:
    guard = backoff(clock, **{which: 0})
    locked_out = [what for _ in range(50) for what in guard.failed(HERE, "ann")]
    assert locked_out == ["address" if which == "failures" else "user"]


def test_a_reload_keeps_lockouts(clock: ManualClock) -> None:
    guard = backoff(clock)
    for _ in range(3):
        guard.failed(HERE, "ann")
    guard.options = BackoffOptions(failures=100, address_failures=100)
    assert guard.holds(HERE, "ann")


def test_without_a_bound_for_users_everybody_is_released(clock: ManualClock) -> None:
    guard = backoff(clock)
    for _ in range(6):
        guard.failed(HERE, "ann")
    guard.failed(HERE, "bob")
    guard.failed(HERE, "bob")
    for _ in range(3):
        guard.failed(THERE, "carl")
    assert guard.holds(HERE, "ann")
    assert guard.answers_late(HERE)
    assert guard.holds(THERE, "carl")
    guard.options = BackoffOptions(failures=0, address_failures=6)
    assert not guard.holds(HERE, "ann")
    assert not guard.holds(HERE, "bob")
    assert not guard.holds(THERE, "carl")
    # Nothing is left from before when there is a bound again.
    guard.options = BackoffOptions(failures=3, address_failures=6)
    assert guard.failed(HERE, "bob") == ()


def test_without_a_bound_for_addresses_they_are_released(clock: ManualClock) -> None:
    guard = backoff(clock)
    for _ in range(6):
        guard.failed(HERE, "ann")
    guard.options = BackoffOptions(failures=3, address_failures=0)
    assert guard.holds(HERE, "ann")
    assert not guard.holds(HERE, "bob")


def test_everybody_behind_a_unix_socket_has_the_same_address(clock: ManualClock) -> None:
    guard = backoff(clock)
    found = [guard.failed("unix:/run/foldmq", f"user {number}") for number in range(20)]
    assert set(found) == {()}
    assert [guard.failed("unix:/run/foldmq", "ann") for _ in range(3)][-1] == ("user",)
    assert guard.holds("unix:/run/foldmq", "ann")


def test_a_customer_with_many_ipv6_addresses_is_one(clock: ManualClock) -> None:
    guard = backoff(clock)
    for number in range(6):
        guard.failed(f"2001:db8:1:2::{number}", "ann")
    assert guard.holds("2001:db8:1:2:ffff::1", "ann")
    assert guard.answers_late("2001:db8:1:2:ffff::1")
    assert not guard.answers_late("2001:db8:1:3::1")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix", ""),
    ],
)
def test_network(address: str, expected: str) -> None:
    assert network(address) == expected


def test_memory_is_bounded_and_the_oldest_are_dropped_first(clock: ManualClock) -> None:
    guard = backoff(clock, remembered=100, address_failures=0)
    for _ in range(3):
        guard.failed(HERE, "ann")
    for number in range(99):
        guard.failed(HERE, f"user {number}" + "x" * 60_000)
    assert guard.holds(HERE, "ann")
    assert len(guard) == 100
    guard.failed(HERE, "one more")
    assert len(guard) == 100
    assert not guard.holds(HERE, "ann")


def test_a_name_is_not_taken_for_another(clock: ManualClock) -> None:
    guard = backoff(clock, failures=1, address_failures=0)
    guard.failed(HERE, "")
    assert not guard.holds(HERE, None)
    guard.failed(HERE, "\ud800")  # no text that could be encoded
    assert guard.holds(HERE, "\ud800")


def test_recent_failures_make_a_user_or_an_address_suspect(clock: ManualClock) -> None:
    guard = backoff(clock)
    assert guard.rank(HERE, "ann") is not LoginRank.SUSPECT
    guard.failed(HERE, "ann")
    assert guard.rank(THERE, "ann") is LoginRank.SUSPECT
    assert guard.rank(HERE, "bob") is LoginRank.SUSPECT
    assert guard.rank(THERE, "bob") is not LoginRank.SUSPECT
    assert guard.rank("", "bob") is not LoginRank.SUSPECT  # a Unix socket is everybody's address
    guard.succeeded(THERE, "ann")
    assert guard.rank(THERE, "ann") is LoginRank.KNOWN
    assert guard.rank(HERE, "ann") is LoginRank.SUSPECT  # by the address
    clock.now += 60
    assert guard.rank(HERE, "ann") is not LoginRank.SUSPECT


def test_logins_from_a_network_with_many_failures_are_suspect(clock: ManualClock) -> None:
    """An attacker with many addresses fails only once from each."""
    guard = backoff(clock)
    for number in range(7):
        guard.failed(f"203.0.113.{number}", f"user-{number}")
        guard.failed(f"2001:db8:1:{number}::1", f"user-{number}")
    assert guard.rank("203.0.113.200", "ann") is not LoginRank.SUSPECT
    assert guard.rank("2001:db8:1:99::1", "ann") is not LoginRank.SUSPECT
    guard.failed("203.0.113.7", "user-7")
    guard.failed("2001:db8:1:7::1", "user-7")
    assert guard.rank("203.0.113.200", "ann") is LoginRank.SUSPECT
    assert guard.rank("2001:db8:1:99::1", "ann") is LoginRank.SUSPECT
    assert not guard.holds("203.0.113.200", "ann")
    assert guard.rank("203.0.114.200", "ann") is not LoginRank.SUSPECT
    assert guard.rank("2001:db8:2:99::1", "ann") is not LoginRank.SUSPECT
    clock.now += 60
    assert guard.rank("203.0.113.200", "ann") is not LoginRank.SUSPECT


def test_without_a_backoff_no_network_is_suspect(clock: ManualClock) -> None:
    guard = backoff(clock, failures=0)
    for number in range(20):
        guard.failed(f"203.0.113.{number}", f"user-{number}")
    assert guard.rank("203.0.113.200", "ann") is not LoginRank.SUSPECT


def test_a_name_that_fails_everywhere_is_locked_out_nowhere_else(clock: ManualClock) -> None:
    guard = backoff(clock)
    for number in range(100):
        guard.failed(f"203.0.113.{number}", "ann")
    assert not guard.holds(HERE, "ann")
    assert guard.rank(HERE, "ann") is LoginRank.SUSPECT


def test_without_recorded_failures_no_login_is_suspect() -> None:
    shown = Credentials("ann", b"x", address=HERE)
    assert login_rank(Anonymous(), shown) is LoginRank.NEW


def test_a_chain_suspects_whom_its_backoff_suspects(clock: ManualClock) -> None:
    guard = backoff(clock)
    chain = BackendSelection(make_backends(), backoff=guard)
    shown = Credentials("ann", b"x", address=HERE)
    assert login_rank(chain, shown) is LoginRank.NEW
    guard.failed(HERE, "bob")
    assert login_rank(chain, shown) is LoginRank.SUSPECT


def test_a_known_user_is_neither_slowed_nor_last_at_an_address_with_many_failures(
    clock: ManualClock,
) -> None:
    guard = backoff(clock, failures=3, address_failures=5)
    guard.succeeded(HERE, "ann")
    for number in range(5):
        guard.failed(HERE, f"user {number}")
    assert guard.rank(HERE, "ann") is LoginRank.KNOWN
    assert not guard.slows(HERE, "ann")
    assert guard.rank(HERE, "bob") is LoginRank.SUSPECT
    assert guard.rank(THERE, "ann") is LoginRank.NEW
    for _ in range(3):
        guard.failed(HERE, "ann")
    assert guard.rank(HERE, "ann") is LoginRank.GUESS
    assert guard.slows(HERE, "ann")


def test_guesses_over_many_names_are_verified_at_a_bounded_rate(clock: ManualClock) -> None:
    guard = backoff(clock, failures=3, address_failures=5)
    for number in range(5):
        guard.failed(HERE, f"user {number}")
    waits = [guard.reserve(HERE, f"name {number}") for number in range(90)]
    assert waits[:3] == [0.0, pytest.approx(0.1), pytest.approx(0.2)]
    assert waits[79] is not None
    assert waits[-1] is None, "too many wait"
    assert guard.reserve(THERE, "name 1") == 0.0
    clock.now += 60
    assert guard.reserve(HERE, "name 1") == 0.0


def test_known_users_are_known_after_a_restart(clock: ManualClock) -> None:
    guard = backoff(clock, remembered=2)
    assert guard.known_users() is None
    for user in ("gone", "ann", "bob"):
        guard.succeeded(HERE, user)
    stored = guard.known_users()
    assert stored is not None
    assert "ann" not in stored
    assert guard.known_users() is None, "nothing has changed"
    after = backoff(clock, remembered=2)
    after.load_known_users(stored)
    ranks = [after.rank(HERE, user) for user in ("gone", "ann", "bob")]
    assert ranks == [LoginRank.NEW, LoginRank.KNOWN, LoginRank.KNOWN]
    assert after.rank(THERE, "ann") is LoginRank.NEW
    for broken in ("", "zz", "00" * 65):
        with pytest.raises(ValueError, match=r"size|hexadecimal|unpack"):
            after.load_known_users(broken)
