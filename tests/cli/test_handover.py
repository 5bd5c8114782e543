"""The main process of several passes each connection to the process of its client, in order."""

import asyncio
import contextlib
import errno
import os
import socket
from typing import Any

import pytest
from harness import packets as p
from structlog.testing import capture_logs

from actors.connection.pseudonyms import KEY_SIZE, pseudonym
from cli.serve.handover import Handover
from eventstore.partitions import partition_of

pytestmark = pytest.mark.system


class Given:
    """The processes: what they were given, once they take something."""

    def __init__(self) -> None:
        self.takes = False
        self.by_process: list[tuple[int, bytes]] = []
        self.waited = 0.0

    def give(self, process: int, listener: int, client: socket.socket, waited: float) -> bool:
        """Take a socket, or not."""
        assert listener == 0
        self.waited = waited
        if self.takes:
            self.by_process.append((process, client.recv(100, socket.MSG_PEEK)))
        return self.takes


async def wait_for(count: int, given: Given) -> None:
    async with asyncio.timeout(30):
        while len(given.by_process) < count:  # noqa: ASYNC110 - the sockets set the pace
            await asyncio.sleep(0.01)


async def test_connections_of_a_client_stay_in_order_while_its_process_is_away() -> None:
    given = Given()
    handover = Handover(2, given.give, wait=60, most=100)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    handover.listen(0, [listening])
    with contextlib.ExitStack() as stack:
        stack.callback(handover.close)
        sent = []
        for number in range(20):
            name = f"client{number % 3}"
            client = stack.enter_context(socket.create_connection(listening.getsockname()))
            packet = p.connect(name, keepalive=number + 1)
            client.sendall(packet)
            sent.append((partition_of(name, 2), packet))
            await asyncio.sleep(0.02)  # other waits begin at other times
        given.takes = True
        await wait_for(20, given)
    for process in range(2):
        assert [one for one in given.by_process if one[0] == process] == [
            one for one in sent if one[0] == process
        ]


async def test_a_connection_waits_no_longer_than_it_may() -> None:
    given = Given()
    handover = Handover(2, given.give, wait=0.1, most=100)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    handover.listen(0, [listening])
    with contextlib.ExitStack() as stack:
        stack.callback(handover.close)
        silent = stack.enter_context(socket.create_connection(listening.getsockname()))
        away = stack.enter_context(socket.create_connection(listening.getsockname()))
        away.sendall(p.connect("client"))
        loop = asyncio.get_running_loop()
        for client in (silent, away):
            client.setblocking(False)
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionResetError):
                    assert await loop.sock_recv(client, 1) == b""
        assert handover.refused == 2
        given.takes = True
        late = stack.enter_context(socket.create_connection(listening.getsockname()))
        late.sendall(p.connect("client"))
        await wait_for(1, given)


async def test_a_process_learns_how_long_a_client_has_waited() -> None:
    given = Given()
    given.takes = True
    handover = Handover(2, given.give, wait=60, most=100)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    handover.listen(0, [listening])
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        stack.callback(handover.close)
        slow = stack.enter_context(socket.create_connection(listening.getsockname()))
        while not handover._waiting:  # noqa: ASYNC110 - the socket sets the pace
            await asyncio.sleep(0.01)
        accepted = loop.time()
        await asyncio.sleep(0.1)
        slow.sendall(p.connect("client"))
        sent = loop.time()
        await wait_for(1, given)
    assert given.waited >= sent - accepted


class Exhausted(socket.socket):
    """A listening socket without descriptors for the connections that wait on it."""

    error = 0
    tries = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept, or fail."""
        self.tries += 1
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().accept()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
async def test_without_descriptors_it_waits_and_does_not_spin(error: int) -> None:
    given = Given()
    given.takes = True
    handover = Handover(2, given.give, wait=60, most=100)
    listening = Exhausted(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    listening.setblocking(False)
    listening.error = error
    with contextlib.ExitStack() as stack, capture_logs() as lines:
        stack.callback(handover.close)
        client = stack.enter_context(socket.create_connection(listening.getsockname()))
        client.sendall(p.connect("client"))
        handover.listen(0, [listening])
        async with asyncio.timeout(30):
            while listening.tries < 2:  # noqa: ASYNC110 - it tries again by itself
                await asyncio.sleep(0.01)
        before = listening.tries
        for _ in range(50):
            await asyncio.sleep(0)
        assert listening.tries - before < 25
        listening.error = 0
        await wait_for(1, given)
    assert [line["event"][:23] for line in lines] == ["out of file descriptors"]


async def test_with_pseudonyms_a_client_belongs_to_the_process_of_its_pseudonym() -> None:
    given, key = Given(), bytes(range(KEY_SIZE))
    given.takes = True
    handover = Handover(2, given.give, wait=60, most=100, pseudonym_key=key)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    handover.listen(0, [listening])
    names = [f"client{number}" for number in range(8)]
    with contextlib.ExitStack() as stack:
        stack.callback(handover.close)
        for number, name in enumerate(names, 1):
            client = stack.enter_context(socket.create_connection(listening.getsockname()))
            client.sendall(p.connect(name))
            await wait_for(number, given)
    expected = [partition_of(pseudonym(name, key), 2) for name in names]
    assert [process for process, _ in given.by_process] == expected
    assert expected != [partition_of(name, 2) for name in names]
