"""The key store in JetStream: there after a restart, and at any crash the old or the new one."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from eventstore.errors import LogUnavailable, LostLog
from eventstore.log.key_pages import Change, KeyPages
from eventstore.log.key_stream import KeyStream
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.direct_client import DirectClient
from eventstore.server.process import EmbeddedServer

pytestmark = pytest.mark.system

MASTERS = {generation: bytes([generation]) * 32 for generation in range(1, 4)}


@pytest_asyncio.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[DirectClient]:
    access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    made = await connect(access)
    yield made
    await disconnect(made)


@pytest_asyncio.fixture
async def stream(client: DirectClient) -> KeyStream:
    made = KeyStream(client, "FOLDMQ_KEYS_n1", "foldmq.keys.n1.")
    await made.open(must_exist=False)
    return made


async def loaded(stream: KeyStream) -> KeyPages:
    found = KeyPages.load(await stream.load(), MASTERS)
    assert found is not None
    return found


def all_keys(keys: KeyPages) -> list[bytes | None]:
    return [keys.key(number) for number in range(keys.end)]


async def test_keys_are_there_after_a_restart(
    stream: KeyStream, server: EmbeddedServer
) -> None:
    assert await stream.load() == {}
    keys = KeyPages(1, MASTERS[1])
    for _ in range(3):
        await stream.apply(keys.extend())
    keys, change = keys.erase([1, 600], MASTERS[2], 1)
    await stream.apply(change)
    await server.restart()
    await stream.open(must_exist=True)
    found = await loaded(stream)
    assert (found.generation, all_keys(found)) == (2, all_keys(keys))
    assert found.outdated(await stream.load()) == []


@pytest.mark.parametrize("stored", range(4))
async def test_an_interrupted_change(stream: KeyStream, stored: int) -> None:
    keys = KeyPages(1, MASTERS[1])
    for _ in range(2):
        await stream.apply(keys.extend())
    after, change = keys.erase([1, 300], MASTERS[2], 1)
    await stream.apply(Change(change.blobs[:stored], []))
    found = await loaded(stream)
    expected = after if stored == len(change.blobs) else keys
    assert (found.generation, all_keys(found)) == (expected.generation, all_keys(expected))
    await stream.remove(found.outdated(await stream.load()))
    assert all_keys(await loaded(stream)) == all_keys(expected)


async def test_a_lost_stream_is_not_an_empty_one(client: DirectClient) -> None:
    lost = KeyStream(client, "FOLDMQ_KEYS_n2", "foldmq.keys.n2.")
    with pytest.raises(LostLog):
        await lost.open(must_exist=True)
    with pytest.raises(LogUnavailable, match="FOLDMQ_KEYS_n2"):
        await lost.apply(KeyPages(1, MASTERS[1]).extend())
