"""Requests over NATS: answers, silence, an absent server and one that returns."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from harness.waiting import happens
from linked import Nats

from eventstore.nats.connection import ConnectionOptions
from eventstore.nats.request_client import RequestClient, UnansweredError

pytestmark = pytest.mark.system

SUBJECT = "foldmq.auth"
TIMEOUT = 30


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Nats]:
    made = Nats(tmp_path)
    yield made
    if made.process is not None:
        made.kill()


def questions(server: Nats, problems: list[str] | None = None) -> RequestClient:
    tell = problems.append if problems is not None else None
    return RequestClient(ConnectionOptions(urls=(server.url,)), SUBJECT, tell)


async def known(client: Any) -> None:
    """Wait until the server knows what the client subscribed to.

    The PING of a flush may go before the subscription; that of a second one does not.
    """
    await client.flush()
    await client.flush()


async def echo(server: Nats) -> Any:
    """A service that answers with the question."""
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)

    async def answer(message: Any) -> None:
        await message.respond(b"echo " + message.data)

    await client.subscribe(SUBJECT, cb=answer)
    await known(client)
    return client


async def test_an_answer_also_after_the_server_was_away(server: Nats) -> None:
    await server.start()
    service = await echo(server)
    asked = questions(server, problems := [])
    assert await asked.ask(b"one", TIMEOUT) == b"echo one"
    answers = await asyncio.gather(*(asked.ask(b"%d" % n, TIMEOUT) for n in range(100)))
    assert answers == [b"echo %d" % n for n in range(100)]
    server.kill()
    await happens(lambda: not asked._connected.is_set())
    with pytest.raises(UnansweredError, match="no connection to NATS"):
        await asked.ask(b"two", 0.05)
    server.run()
    await happens(lambda: service.is_connected)
    await known(service)
    assert await asked.ask(b"three", TIMEOUT) == b"echo three"
    asked.close()
    await asked.closed()
    await service.close()
    assert problems


async def test_no_responder_and_no_answer_in_time(server: Nats) -> None:
    await server.start()
    asked = questions(server)
    with pytest.raises(UnansweredError, match=f"no answer on {SUBJECT}"):
        await asked.ask(b"one", TIMEOUT)
    silent = await nats.connect(server.url)
    await silent.subscribe(SUBJECT)
    await known(silent)
    with pytest.raises(UnansweredError, match="no answer in time"):
        await asked.ask(b"two", 0.05)
    with pytest.raises(UnansweredError, match="payload"):
        await asked.ask(bytes(2 << 20), TIMEOUT)
    asked.close()
    await asked.closed()
    await silent.close()


async def test_a_server_that_comes_later(server: Nats) -> None:
    asked = questions(server, [])
    with pytest.raises(UnansweredError, match="no connection to NATS"):
        await asked.ask(b"one", 0.05)
    await server.start()
    service = await echo(server)
    assert await asked.ask(b"two", TIMEOUT) == b"echo two"
    asked.close()
    await asked.closed()
    await service.close()


async def test_closing_waits_for_the_last_question(server: Nats) -> None:
    await server.start()
    service = await echo(server)
    asked = questions(server)
    task = asyncio.create_task(asked.ask(b"one", TIMEOUT))
    await asyncio.sleep(0)
    asked.close()
    assert await task == b"echo one"
    await asked.closed()
    await service.close()


async def test_closing_an_unused_or_unconnected_client(server: Nats) -> None:
    asked = questions(server)
    asked.close()
    await asked.closed()
    asked = questions(server, [])
    with pytest.raises(UnansweredError):
        await asked.ask(b"one", 0.05)
    asked.close()
    await asked.closed()


async def test_asking_after_the_end_connects_no_more(server: Nats) -> None:
    await server.start()
    asked = questions(server)
    asked.close()
    with pytest.raises(UnansweredError, match="closed"):
        await asked.ask(b"one", TIMEOUT)
    await asked.closed()
    assert asked._client is None


async def test_an_unreadable_file_is_reported(server: Nats, tmp_path: Path) -> None:
    await server.start()
    options = ConnectionOptions(urls=(server.url,), credentials=tmp_path / "none.creds")
    asked = RequestClient(options, SUBJECT, (problems := []).append)
    with pytest.raises(UnansweredError, match="no connection to NATS"):
        await asked.ask(b"one", 0.1)
    assert problems == [f"cannot read {tmp_path}/none.creds: No such file or directory"]
    asked.close()
    await asked.closed()
