"""The store with one message for each key, on a real server."""

import os
import signal

import orjson
import pytest
import pytest_asyncio
from harness.waiting import TIMEOUT

from eventstore.errors import LogUnavailable
from eventstore.log.keyed_store import KeyedStore
from eventstore.nats.direct_client import DirectClient
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


@pytest_asyncio.fixture
async def store(nc: DirectClient) -> KeyedStore:
    store = KeyedStore(nc, "STATE", "state.")
    await store.open()
    return store


async def contents(store: KeyedStore) -> list[bytes]:
    return [data async for _, data in store.read()]


async def test_the_latest_message_of_each_key_stays(store: KeyedStore) -> None:
    assert (await contents(store), await store.last()) == ([], 0)
    for number in range(1500):
        await store.put(f"key.{number % 700}", b"%d" % number)
    assert await store.confirm("mark", b"the mark", 1500)
    assert await contents(store) == [*(b"%d" % number for number in range(800, 1500)), b"the mark"]
    assert await store.last() == 1501


async def test_many_messages_are_read(store: KeyedStore) -> None:
    for number in range(3456):
        await store.put(f"key.{number}", b"%d" % number)
    assert await store.confirm("mark", b"m", 3456)
    found = [one async for one in store.read()]
    assert found == [*((f"key.{number}", b"%d" % number) for number in range(3456)), ("mark", b"m")]


async def test_large_messages_are_read_a_few_at_a_time(store: KeyedStore) -> None:
    """A server disconnects a client with more pending bytes than it keeps."""
    for number in range(40):
        await store.put(f"key.{number}", bytes([number]) * 1_000_000)
    assert await store.confirm("mark", b"m", 40)
    found = await contents(store)
    assert [(one[0], len(one)) for one in found[:-1]] == [(at, 1_000_000) for at in range(40)]


async def test_without_a_stream_the_store_is_empty(nc: DirectClient) -> None:
    assert await contents(KeyedStore(nc, "NONE", "none.")) == []


async def test_a_message_that_did_not_arrive_is_noticed(store: KeyedStore) -> None:
    await store.put("a", b"1")
    assert not await store.confirm("mark", b"no", 2)
    assert await contents(store) == [b"1"]
    assert await store.confirm("mark", b"yes", 1)


async def test_a_deleted_key_may_be_dropped(store: KeyedStore, nc: DirectClient) -> None:
    await store.put("a", b"1")
    await store.put("a", b"", gone=True)
    assert await store.confirm("mark", b"m", 2)
    reply = await nc.request("$JS.API.DIRECT.GET.STATE.state.a", b"", timeout=TIMEOUT)
    assert (reply.headers or {})["Nats-TTL"] == "24h"


async def test_sequences_continue_after_clearing(store: KeyedStore) -> None:
    await store.put("a", b"1")
    assert await store.confirm("mark", b"m", 1)
    await store.clear()
    assert (await contents(store), await store.last()) == ([], 2)
    assert await store.confirm("mark", b"again", 2)
    assert await contents(store) == [b"again"]


async def test_it_is_opened_again_as_it_is(store: KeyedStore, nc: DirectClient) -> None:
    await store.put("a", b"1")
    assert await store.confirm("mark", b"m", 1)
    other = KeyedStore(nc, "STATE", "state.")
    await other.open()
    assert await contents(other) == [b"1", b"m"]


async def test_it_is_compacted_and_does_not_wait_for_the_disk(
    store: KeyedStore, nc: DirectClient
) -> None:
    del store
    reply = await nc.request("$JS.API.STREAM.INFO.STATE", b"", timeout=TIMEOUT)
    config = orjson.loads(reply.data)["config"]
    assert (config["max_msgs_per_subject"], config["storage"]) == (1, "file")
    assert config["persist_mode"] == "async"


async def test_a_server_that_does_not_answer(
    store: KeyedStore, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.nats.jetstream.REQUEST_SECONDS", 0.1)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    os.waitpid(server.pid, os.WUNTRACED)  # noqa: ASYNC222 - until it stands still, at once
    try:
        with pytest.raises(LogUnavailable, match="does not answer"):
            await store.last()
        with pytest.raises(LogUnavailable, match="does not answer"):
            await store.confirm("mark", b"m", 0)
        with pytest.raises(LogUnavailable, match="does not answer"):
            await store.clear()
    finally:
        os.kill(server.pid, signal.SIGCONT)
