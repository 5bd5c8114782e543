"""The lasting connection to a broker that `top` and the web page share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from cli.logs import reconnecting_client
from cli.logs.broker_client import LiveBroker, NoAnswer, NoLiveBroker, Refused
from cli.logs.log_brokers import LogBrokers
from cli.logs.reconnecting_client import ReconnectingClient
from eventstore.errors import UsageError


class Broker:
    """Answers, or fails with `trouble`; counts how often it was found and left."""

    where = "here"

    def __init__(self, node: str = "n1") -> None:
        self.node = node
        self.connected = True
        self.trouble: Exception | None = None
        self.missing: Exception | None = None
        self.found = 0
        self.left = 0

    @contextlib.asynccontextmanager
    async def find(self) -> AsyncIterator[LogBrokers]:
        if self.missing is not None:
            raise self.missing
        self.found += 1
        self.connected = True
        try:
            yield LogBrokers([cast("LiveBroker", self)])
        finally:
            self.left += 1

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        if self.trouble is not None:
            raise self.trouble
        return {"asked": endpoint, **request}


async def test_one_connection_for_many_questions() -> None:
    broker = Broker()
    link = ReconnectingClient(broker.find)
    answers = await asyncio.gather(*(link.ask("status", number=one) for one in range(3)))
    assert [one["number"] for one in answers] == [0, 1, 2]
    assert (broker.found, link.epoch, link.node, link.where) == (1, 1, "n1", "here")
    await link.close()
    assert broker.left == 1


async def test_a_lost_broker_is_found_again() -> None:
    broker = Broker()
    link = ReconnectingClient(broker.find)
    await link.ask("status")
    broker.trouble = NoAnswer("time-out")
    with pytest.raises(NoLiveBroker, match="time-out"):
        await link.ask("status")
    assert broker.left == 1
    broker.trouble = None
    await link.ask("status")
    assert (broker.found, link.epoch) == (2, 2)


async def test_no_request_uses_an_ended_connection() -> None:
    broker = Broker()
    link = ReconnectingClient(broker.find)
    await link.ask("status")
    broker.connected = False
    await link.ask("status")
    assert (broker.found, broker.left) == (2, 1)


async def test_a_refusal_keeps_the_connection() -> None:
    broker = Broker()
    link = ReconnectingClient(broker.find)
    broker.trouble = Refused("no such actor")
    with pytest.raises(Refused, match="no such actor"):
        await link.ask("actor")
    broker.trouble = None
    await link.ask("status")
    assert (broker.found, broker.left) == (1, 0)


async def test_a_missing_broker_is_searched_for_after_a_delay() -> None:
    broker = Broker()
    link = ReconnectingClient(broker.find, retry_seconds=3600.0)
    broker.missing = NoLiveBroker("no broker is running")
    with pytest.raises(NoLiveBroker, match="no broker is running"):
        await link.ask("status")
    broker.missing = None
    with pytest.raises(NoLiveBroker, match="no broker is running"):
        await link.ask("status")
    assert broker.found == 0
    eager = ReconnectingClient(broker.find)
    await eager.ask("status")
    assert broker.found == 1


async def test_no_answer_in_time_closes_the_connection() -> None:
    broker = Broker()
    link = ReconnectingClient(broker.find, answer_seconds=0.01)

    async def never(*_: Any, **__: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.ask = never  # type: ignore[method-assign]
    with pytest.raises(NoLiveBroker, match="no reply in time"):
        await link.ask("status")
    assert broker.left == 1


LOGS = ["n-p0", "n-p1"]


class SeveralBrokers:
    """The brokers of two logs; counts how often they were found and left."""

    def __init__(self) -> None:
        self.brokers = [Broker(log) for log in LOGS]
        self.found = 0
        self.left = 0

    @contextlib.asynccontextmanager
    async def find(self) -> AsyncIterator[LogBrokers]:
        self.found += 1
        try:
            yield LogBrokers([cast("LiveBroker", one) for one in self.brokers], LOGS)
        finally:
            self.left += 1

    def client(self, answer_seconds: float | None = None) -> ReconnectingClient:
        return ReconnectingClient(self.find, answer_seconds=answer_seconds)


async def test_the_brokers_of_all_logs_are_queried() -> None:
    several = SeveralBrokers()
    link = several.client()
    answers = await link.poll("status", topics=True)
    assert [(broker.node, answer) for broker, answer in answers] == [
        (log, {"asked": "status", "topics": True}) for log in LOGS
    ]
    assert (link.node, several.found) == ("n", 1)
    found = await link.ask_of(lambda brokers: brokers.of_log("n-p1"), "actor", id="session:1")
    assert found == {"asked": "actor", "id": "session:1"}
    with pytest.raises(UsageError, match="give --node, one of n-p0, n-p1"):
        await link.ask("actor")


async def test_a_log_that_is_missing_does_not_close_the_connection() -> None:
    several = SeveralBrokers()
    link = several.client()
    several.brokers[1].trouble = NoAnswer("time-out")
    assert [broker.node for broker, _ in await link.poll("status")] == ["n-p0"]
    assert link.polled is not None
    assert list(link.polled.absent) == ["n-p1"]
    several.brokers[1].trouble = None
    # Only polls ask it again.
    assert [broker.node for broker, _ in await link.each("actors")] == ["n-p0"]
    assert [broker.node for broker, _ in await link.poll("status")] == LOGS
    assert link.polled.absent == {}
    several.brokers[0].trouble = NoAnswer("time-out")
    with pytest.raises(NoLiveBroker):
        await link.ask_of(lambda brokers: brokers.of_log("n-p0"), "actor")
    assert (several.found, several.left) == (1, 0)


async def test_brokers_that_all_fail_are_found_again() -> None:
    several = SeveralBrokers()
    link = several.client()
    await link.poll("status")
    for broker in several.brokers:
        broker.trouble = NoAnswer("time-out")
    with pytest.raises(NoLiveBroker, match="time-out"):
        await link.poll("status")
    assert several.left == 1
    for broker in several.brokers:
        broker.trouble = None
    assert [broker.node for broker, _ in await link.each("actors")] == LOGS
    assert several.found == 2


async def test_a_log_that_hangs_delays_one_poll_only(monkeypatch: pytest.MonkeyPatch) -> None:
    several = SeveralBrokers()
    link = several.client(answer_seconds=3600.0)

    async def never(*_: Any, **__: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    several.brokers[0].trouble = NoAnswer("time-out")
    await link.poll("status")
    monkeypatch.setattr(reconnecting_client, "_LATE_SECONDS", 0.01)
    monkeypatch.setattr(several.brokers[0], "ask", never)
    assert [broker.node for broker, _ in await link.poll("status")] == ["n-p1"]
    assert link.polled is not None
    assert str(link.polled.absent["n-p0"]) == "no reply in time"
