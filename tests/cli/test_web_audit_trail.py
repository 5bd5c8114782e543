"""The audit trail of the web page: the recorded facts, and the bound on its growth."""

import asyncio
from typing import Any

import pytest
from harness.manual_clock import ManualClock

from cli.logs.broker_client import NoLiveBroker
from cli.web import audit_trail as module
from cli.web.audit_trail import MAX_SERIES, WINDOW, AuditTrail, Entry, Gathering
from cli.web.tokens import Grant, Role

ANN = Grant("ann", Role.VIEW, "0" * 64)
BOB = Grant("bob", Role.OPERATE, "1" * 64)


def entry(address: str, outcome: str = "refused", name: str = "") -> Entry:
    return Entry(outcome, address, name, "", "wrong_token", 1000)


# ------------------------------------------------------------------------------- few of many


def test_equal_accesses_are_two_events_in_a_window() -> None:
    clock = ManualClock()
    gathering = Gathering(clock)
    first = entry("192.0.2.1")
    assert gathering.add(first) is first
    for _ in range(100_000):
        assert gathering.add(entry("192.0.2.1")) is None
    assert gathering.due() == []
    assert gathering.next_end() == WINDOW
    clock.now += WINDOW
    (more,) = gathering.due()
    assert (more.address, more.count) == ("192.0.2.1", 100_000)
    assert gathering.next_end() is None
    again = entry("192.0.2.1")
    assert gathering.add(again) is again


def test_a_single_access_is_recorded_once() -> None:
    clock = ManualClock()
    gathering = Gathering(clock)
    gathering.add(entry("192.0.2.1"))
    clock.now += WINDOW
    assert gathering.due() == []


def test_different_accesses_are_distinguished() -> None:
    gathering = Gathering(ManualClock())
    different = [
        entry("192.0.2.1"),
        entry("192.0.2.2"),
        entry("192.0.2.1", "denied"),
        entry("192.0.2.1", "login"),
        entry("192.0.2.1", "login", "ann"),
    ]
    assert [gathering.add(one) for one in different] == different
    # A customer has a /64 of IPv6 addresses: they are one.
    assert gathering.add(entry("2001:db8::1")) is not None
    assert gathering.add(entry("2001:db8::2")) is None


def test_many_addresses_do_not_make_many_events() -> None:
    clock = ManualClock()
    gathering = Gathering(clock)
    told = [gathering.add(entry(f"10.{n >> 8}.{n & 255}.1")) for n in range(20_000)]
    now = [one for one in told if one is not None]
    assert len(now) == MAX_SERIES + 1
    assert [one.address for one in now].count("") == 1
    # A login with a right token is not drowned by them.
    assert gathering.add(entry("127.0.0.1", "login", "ann")) is not None
    clock.now += WINDOW
    (rest,) = gathering.due()
    assert (rest.address, rest.name, rest.count) == ("", "", 20_000 - MAX_SERIES - 1)


# ------------------------------------------------------------------------------- recording


class Log:
    """A broker that records, unless it is away."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.away = False
        self.asked = asyncio.Event()
        self.grown = asyncio.Event()

    async def __call__(self, endpoint: str, **request: Any) -> None:
        self.asked.set()
        assert (endpoint, request.pop("do")) == ("change", "web_accessed")
        assert request.pop("by")
        if self.away:
            raise NoLiveBroker("not there")
        self.found.append(request)
        self.grown.set()

    def outcomes(self) -> list[tuple[str, str, str, int]]:
        return [(one["outcome"], one["address"], one["name"], one["count"]) for one in self.found]


async def until_found(log: Log, count: int) -> None:
    async with asyncio.timeout(30):
        while len(log.found) < count:
            log.grown.clear()
            await log.grown.wait()


async def test_a_login_is_recorded_before_it_is_accepted() -> None:
    log = Log()
    trail = AuditTrail(log, now_ms=lambda: 7)
    await trail.login("127.0.0.1", ANN)
    assert log.found == [
        {
            "outcome": "login",
            "address": "127.0.0.1",
            "name": "ann",
            "role": "view",
            "reason": "",
            "count": 1,
            "first_ms": 7,
        }
    ]
    await trail.close()


async def test_refusals_are_recorded_and_collected() -> None:
    log = Log()
    trail = AuditTrail(log)
    for _ in range(5):
        trail.refused("192.0.2.1", None, "wrong_token")
    trail.refused("192.0.2.1", ANN, "expired")
    trail.denied("192.0.2.1", ANN)
    await until_found(log, 3)
    assert log.outcomes() == [
        ("refused", "192.0.2.1", "", 1),
        ("refused", "192.0.2.1", "ann", 1),
        ("denied", "192.0.2.1", "ann", 1),
    ]
    # What was counted is recorded at the end, if not before.
    await trail.close()
    assert log.outcomes()[3:] == [("refused", "192.0.2.1", "", 4)]


async def test_collected_refusals_are_recorded_after_their_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WINDOW", 0.05)
    log = Log()
    trail = AuditTrail(log)
    for _ in range(3):
        trail.refused("192.0.2.1", None, "wrong_token")
    await until_found(log, 2)
    assert log.outcomes() == [("refused", "192.0.2.1", "", 1), ("refused", "192.0.2.1", "", 2)]
    await trail.close()


async def test_without_a_broker_logins_work_and_are_recorded_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOGIN_TIMEOUT", 0.01)
    monkeypatch.setattr(module, "_AGAIN", (0.01, 0.02))
    log = Log()
    log.away = True
    trail = AuditTrail(log)
    await trail.login("127.0.0.1", ANN)
    await trail.login("127.0.0.1", BOB)
    await log.asked.wait()
    assert log.found == []
    log.away = False
    await until_found(log, 2)
    assert log.outcomes() == [("login", "127.0.0.1", "ann", 1), ("login", "127.0.0.1", "bob", 1)]
    await trail.close()


async def test_unrecorded_accesses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    monkeypatch.setattr(module, "_AGAIN", (0.01, 0.02))
    monkeypatch.setattr(module, "_END_SECONDS", 0.01)
    log = Log()
    log.away = True
    trail = AuditTrail(log)
    for number in range(50):
        trail.refused(f"192.0.2.{number}", None, "wrong_token")
    await log.asked.wait()
    log.away = False
    await until_found(log, 10)
    assert [one["address"] for one in log.found][-10:] == [f"192.0.2.{n}" for n in range(40, 50)]
    await trail.close()
    assert len(log.found) <= 11


async def test_a_trail_that_is_woken_while_it_is_closed_ends() -> None:
    log = Log()
    trail = AuditTrail(log)
    for _ in range(2):
        trail.refused("192.0.2.1", None, "wrong_token")
    await until_found(log, 1)
    task = trail._task
    assert task is not None
    for _ in range(3):  # until it waits for the end of the series
        await asyncio.sleep(0)
    trail._wake.set()
    await asyncio.sleep(0)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert task.cancelled()
