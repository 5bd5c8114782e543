"""The main process passes the socket or the bytes of each client to the process of its session."""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncIterator

import pytest
from harness import packets as p

from actors.connection.listener import ListenerOptions
from actors.connection.pseudonyms import KEY_SIZE, name_in_log
from actors.limits.limit_options import LimitOptions
from actors.transports.stack import StackOptions
from cli.serve.process_edges import PASSED_ON, ProcessEdges
from cluster.client_header import MAGIC, NONCE_SIZE, PeerAnswer, decode_client
from eventstore.partitions import partition_of

pytestmark = pytest.mark.system

NONCE = bytes(NONCE_SIZE)
ANSWER = b"an answer"
PROXIES = (ipaddress.ip_network("127.0.0.0/8"),)
HEADER = b"PROXY UNKNOWN\r\n"


class World:
    """The edge of a main process, its clients, and two processes that note what they are passed."""

    def __init__(
        self, stack: contextlib.AsyncExitStack, connect_timeout: float, key: bytes, *, proxied: bool
    ) -> None:
        self.takes = True
        self.waited: list[float] = []
        self.sockets = 0
        """The number of clients whose sockets were passed."""
        self._proxied = proxied
        self.passed: list[tuple[int, bytes]] = []
        self._stack = stack
        loop = asyncio.get_running_loop()
        self.edges = ProcessEdges(2, self._give, LimitOptions(), 100, loop.time, key)
        stack.callback(self.edges.close)
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        self._place = bound.getsockname()
        stages = StackOptions(proxy=PROXIES) if proxied else StackOptions()
        options = ListenerOptions("one", 1_000_000, connect_timeout, stack=stages)
        self.edges.listen(options, [bound])

    def ready(self) -> None:
        for number in range(2):
            self.edges.ready(number, f"log-{number}")

    def _give(
        self, number: int, listener: int, end: socket.socket, waited: float, data: bytes
    ) -> bool:
        if self.takes:
            assert (listener == PASSED_ON) is self._proxied
            own = self._stack.enter_context(socket.socket(fileno=os.dup(end.fileno())))
            own.setblocking(False)
            self.waited.append(waited)
            serve = self._serve(number, own) if self._proxied else self._take(number, own, data)
            task = asyncio.create_task(serve)
            self._stack.callback(task.cancel)
        return self.takes

    async def _take(self, number: int, own: socket.socket, data: bytes) -> None:
        self.passed.append((number, data))
        self.sockets += 1
        await asyncio.get_running_loop().sock_sendall(own, ANSWER)

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
        for one in (HEADER, *sent) if self._proxied else sent:
            await asyncio.get_running_loop().sock_sendall(client, one)
        return client


@contextlib.asynccontextmanager
async def world(
    connect_timeout: float = 60.0, key: bytes = b"", *, proxied: bool = True
) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        yield World(stack, connect_timeout, key, proxied=proxied)


async def read(client: socket.socket) -> bytes:
    async with asyncio.timeout(30):
        try:
            return await asyncio.get_running_loop().sock_recv(client, 1000)
        except ConnectionResetError:
            return b""


both = pytest.mark.parametrize("proxied", [True, False])
"""Whether the bytes of clients are passed on, or their sockets."""


@both
@pytest.mark.parametrize("key", [b"", bytes(range(KEY_SIZE))])
async def test_each_client_reaches_the_process_of_its_session(key: bytes, proxied: bool) -> None:
    async with world(key=key, proxied=proxied) as place:
        place.ready()
        sent = {name: p.connect(name) for name in (f"client{number}" for number in range(8))}
        for packet in sent.values():
            assert await read(await place.dial(packet)) == ANSWER
        found = [(partition_of(name_in_log(name, key), 2), sent[name]) for name in sent]
        assert place.passed == found
        assert {number for number, _ in place.passed} == {0, 1}


@both
async def test_a_connect_in_single_bytes_is_passed_on_as_a_whole(proxied: bool) -> None:
    async with world(proxied=proxied) as place:
        place.ready()
        packet = p.connect("client")
        client = await place.dial()
        for at in range(len(packet)):
            await asyncio.get_running_loop().sock_sendall(client, packet[at : at + 1])
            await asyncio.sleep(0.002)
        assert await read(client) == ANSWER
        assert b"".join(data for _, data in place.passed)[:12] == packet[:12]
        assert place.passed[0][0] == partition_of("client", 2)


@both
async def test_clients_without_an_identifier_go_to_the_processes_in_turn(proxied: bool) -> None:
    async with world(proxied=proxied) as place:
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


async def test_connections_of_a_client_stay_in_order_while_its_process_is_away() -> None:
    async with world(proxied=False) as place:
        place.takes = False
        place.ready()
        sent, clients = [], []
        for number in range(20):
            name = f"client{number % 3}"
            packet = p.connect(name, keepalive=number + 1)
            sent.append((partition_of(name, 2), packet))
            clients.append(await place.dial(packet))
            await asyncio.sleep(0.02)  # other attempts begin at other times
        place.takes = True
        for client in clients:
            assert await read(client) == ANSWER
    for process in range(2):
        assert [one for one in place.passed if one[0] == process] == [
            one for one in sent if one[0] == process
        ]


async def test_a_process_learns_how_long_a_client_has_waited() -> None:
    loop = asyncio.get_running_loop()
    async with world(proxied=False) as place:
        place.ready()
        slow = await place.dial()
        while not place.edges.connected:  # noqa: ASYNC110 - the socket sets the pace
            await asyncio.sleep(0.01)
        accepted = loop.time()
        await asyncio.sleep(0.1)
        sent = loop.time()
        await loop.sock_sendall(slow, p.connect("client"))
        assert await read(slow) == ANSWER
        assert place.waited[0] >= sent - accepted
        assert (place.edges.connected, place.edges.clients, place.sockets) == (0, 0, 1)


@both
async def test_a_client_is_closed_whose_identifier_is_too_far_behind(proxied: bool) -> None:
    async with world(proxied=proxied) as place:
        place.ready()
        endless = b"\x10\xff\xff\x7f\x00\x04MQTT\x05\x02\x00\x3c\xff\xff\x7e"
        client = await place.dial(endless)
        sent = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(client, bytes(1024 * 1024))
        )
        assert await read(client) == b""
        sent.cancel()
        assert (place.passed, place.edges.refused) == ([], {"connect_too_long": 1})


@both
async def test_a_client_waits_no_longer_than_it_may(proxied: bool) -> None:
    async with world(connect_timeout=0.1, proxied=proxied) as place:
        silent = await place.dial(p.connect("client")[:5])
        parked = await place.dial(p.connect("client"))
        for client in (silent, parked):
            assert await read(client) == b""
        assert place.passed == []
        assert place.edges.refused == {"connect_timeout": 1, "process_not_ready": 1}
