"""The main process passes the bytes of each client to the process of its session."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from harness import packets as p

from actors.connection.listener import ListenerOptions
from actors.connection.pseudonyms import KEY_SIZE, name_in_log
from actors.limits.limit_options import LimitOptions
from cli.serve.process_edges import ProcessEdges
from cluster.client_header import MAGIC, NONCE_SIZE, PeerAnswer, decode_client
from eventstore.partitions import partition_of

pytestmark = pytest.mark.system

NONCE = bytes(NONCE_SIZE)
ANSWER = b"an answer"


class World:
    """The edge of a main process, its clients, and two processes that note what they are passed."""

    def __init__(
        self, stack: contextlib.AsyncExitStack, connect_timeout: float, key: bytes
    ) -> None:
        self.takes = True
        self.passed: list[tuple[int, bytes]] = []
        self._stack = stack
        loop = asyncio.get_running_loop()
        self.edges = ProcessEdges(2, self._give, LimitOptions(), 100, loop.time, key)
        stack.callback(self.edges.close)
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        self._place = bound.getsockname()
        self.edges.listen(ListenerOptions("one", 1_000_000, connect_timeout), [bound])

    def ready(self) -> None:
        for number in range(2):
            self.edges.ready(number, f"log-{number}")

    def _give(self, number: int, end: socket.socket) -> bool:
        if self.takes:
            own = self._stack.enter_context(end.dup())
            own.setblocking(False)
            task = asyncio.create_task(self._serve(number, own))
            self._stack.callback(task.cancel)
        return self.takes

    async def _serve(self, number: int, own: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(own, MAGIC + NONCE)
        data, found = b"", None
        while found is None:
            data += await loop.sock_recv(own, 65536)
            found = decode_client(data, NONCE, b"")
        client, size = found
        assert (client.node, client.listener) == ("", "one")
        await loop.sock_sendall(own, PeerAnswer.ACCEPTED.value)
        self.passed.append((number, data[size:] or await loop.sock_recv(own, 65536)))
        await loop.sock_sendall(own, ANSWER)

    async def dial(self, *sent: bytes) -> socket.socket:
        client = self._stack.enter_context(socket.create_connection(self._place))
        client.setblocking(False)
        for one in sent:
            await asyncio.get_running_loop().sock_sendall(client, one)
        return client


@contextlib.asynccontextmanager
async def world(connect_timeout: float = 60.0, key: bytes = b"") -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        yield World(stack, connect_timeout, key)


async def read(client: socket.socket) -> bytes:
    async with asyncio.timeout(30):
        try:
            return await asyncio.get_running_loop().sock_recv(client, 1000)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("key", [b"", bytes(range(KEY_SIZE))])
async def test_each_client_reaches_the_process_of_its_session(key: bytes) -> None:
    async with world(key=key) as place:
        place.ready()
        sent = {name: p.connect(name) for name in (f"client{number}" for number in range(8))}
        for packet in sent.values():
            assert await read(await place.dial(packet)) == ANSWER
        found = [(partition_of(name_in_log(name, key), 2), sent[name]) for name in sent]
        assert place.passed == found
        assert {number for number, _ in place.passed} == {0, 1}


async def test_a_connect_in_single_bytes_is_passed_on_as_a_whole() -> None:
    async with world() as place:
        place.ready()
        packet = p.connect("client")
        client = await place.dial()
        for at in range(len(packet)):
            await asyncio.get_running_loop().sock_sendall(client, packet[at : at + 1])
            await asyncio.sleep(0.002)
        assert await read(client) == ANSWER
        assert b"".join(data for _, data in place.passed)[:12] == packet[:12]
        assert place.passed[0][0] == partition_of("client", 2)


async def test_clients_without_an_identifier_go_to_the_processes_in_turn() -> None:
    async with world() as place:
        place.ready()
        for sent in (p.connect(""), b"GET / HTTP/1.1\r\n", p.connect(""), p.pingreq()):
            assert await read(await place.dial(sent)) == ANSWER
        assert [number for number, _ in place.passed] == [0, 1, 0, 1]


async def test_clients_wait_while_their_process_is_away() -> None:
    async with world() as place:
        place.takes = False
        early = await place.dial(p.connect("early"))
        place.ready()
        await asyncio.sleep(0.2)  # it is tried several times, and refused
        assert (place.edges.parked, place.passed) == (1, [])
        place.takes = True
        assert await read(early) == ANSWER
        assert (place.edges.parked, place.edges.clients) == (0, 1)
        number = partition_of("early", 2)
        place.edges.away(number)
        late = await place.dial(p.connect("early"))
        other = next(name for name in "abcdef" if partition_of(name, 2) != number)
        assert await read(await place.dial(p.connect(other))) == ANSWER
        assert place.edges.parked == 1
        place.edges.ready(number, "log")
        assert await read(late) == ANSWER


async def test_a_client_is_closed_whose_identifier_is_too_far_behind() -> None:
    async with world() as place:
        place.ready()
        endless = b"\x10\xff\xff\x7f\x00\x04MQTT\x05\x02\x00\x3c\xff\xff\x7e"
        client = await place.dial(endless)
        sent = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(client, bytes(1024 * 1024))
        )
        assert await read(client) == b""
        sent.cancel()
        assert (place.passed, place.edges.refused) == ([], {"connect_too_long": 1})


async def test_a_client_waits_no_longer_than_it_may() -> None:
    async with world(connect_timeout=0.1) as place:
        silent = await place.dial(p.connect("client")[:5])
        parked = await place.dial(p.connect("client"))
        for client in (silent, parked):
            assert await read(client) == b""
        assert place.passed == []
