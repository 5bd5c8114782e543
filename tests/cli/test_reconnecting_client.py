"""The lasting connection to a broker that `top` and the web page share."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from cli.live.broker_client import NoAnswer, NoLiveBroker, Refused
from cli.live.reconnecting_client import ReconnectingClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cli.live.broker_client import LiveBroker


class Broker:
    """Answers, or fails with `trouble`; counts how often it was found and left."""

    node = "n1"
    where = "here"

    def __init__(self) -> None:
        self.connected = True
        self.trouble: Exception | None = None
        self.missing: Exception | None = None
        self.found = 0
        self.left = 0

    @contextlib.asynccontextmanager
    async def find(self) -> AsyncIterator[LiveBroker]:
        if self.missing is not None:
            raise self.missing
        self.found += 1
        self.connected = True
        try:
            yield cast("LiveBroker", self)
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


async def test_a_connection_that_ended_is_not_asked() -> None:
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


async def test_a_missing_broker_is_not_looked_for_at_once() -> None:
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
