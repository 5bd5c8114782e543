"""Accepting connections: fair, early refusals, and a pause while descriptors are short."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.waiting import happens
from structlog.testing import capture_logs

from actors.transports.acceptor import Acceptor, listening_socket
from actors.transports.file_descriptors import Descriptors
from cli.common.units import Address
from cli.settings.socket_binding import bind

pytestmark = pytest.mark.system

ANYBODY = lambda host: True  # noqa: E731


class Taken(asyncio.Protocol):
    """The accepted connections."""

    all: list[Taken]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        Taken.all.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


@contextlib.contextmanager
def clients(
    address: object, count: int, family: int = socket.AF_INET
) -> Iterator[list[socket.socket]]:
    """Connections whose clients wait."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            client = stack.enter_context(socket.socket(family))
            client.settimeout(20)
            client.connect(address)
            client.setblocking(False)
            found.append(client)
        yield found


def tcp() -> socket.socket:
    Taken.all = []
    (listener,) = bind(Address("127.0.0.1", 0), "listen", 200)
    return listener


def end(acceptor: Acceptor) -> None:
    acceptor.close()
    for one in Taken.all:
        one.transport.close()


async def test_clients_are_taken_and_served() -> None:
    listener = tcp()
    acceptor = Acceptor(listener, ANYBODY, Taken)
    with clients(listener.getsockname(), 50) as found:
        acceptor.start()
        loop = asyncio.get_running_loop()
        for client in found:
            await loop.sock_sendall(client, b"hello")
        assert [await loop.sock_recv(client, 9) for client in found] == [b"hello"] * 50
        peers = {one.transport.get_extra_info("peername") for one in Taken.all}
        assert peers == {client.getsockname() for client in found}
        raw = Taken.all[0].transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        end(acceptor)
        assert [await loop.sock_recv(client, 9) for client in found] == [b""] * 50
    acceptor.close()


async def test_a_unix_socket_is_taken_from(tmp_path: Path) -> None:
    Taken.all = []
    place = str(tmp_path / "mqtt")
    seen: list[str] = []
    listener = listening_socket(socket.AF_UNIX, place, 10)
    acceptor = Acceptor(listener, lambda host: not seen.append(host), Taken)
    acceptor.start()
    with clients(place, 2, socket.AF_UNIX) as found:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(found[1], b"hello")
        assert await loop.sock_recv(found[1], 9) == b"hello"
        assert seen == ["", ""]
        end(acceptor)


async def test_while_others_are_at_work_it_takes_breaks() -> None:
    listener = tcp()
    asked: list[int] = []

    def busy_recently() -> bool:
        asked.append(len(Taken.all))
        return len(asked) < 5

    acceptor = Acceptor(listener, ANYBODY, Taken, busy_recently=busy_recently)
    with clients(listener.getsockname(), 100):
        acceptor.start()
        await happens(lambda: len(Taken.all) == 100)
        # It asked after each few of them, and went on after each break: late breaks make it
        # take more at once, but not all.
        assert len(asked) > 5
        assert not acceptor.paused
        end(acceptor)


@pytest.mark.parametrize(
    ("busy", "takes", "most"), [(False, 1.0, 16), (True, 1.0, 2), (True, 0.00002, 5), (True, 0, 10)]
)
async def test_the_time_that_accepting_takes_is_bounded_while_others_wait(
    busy: bool, takes: float, most: int
) -> None:
    Taken.all = []
    seen: list[str] = []
    listener = tcp()
    acceptor = Acceptor(
        *(listener, lambda host: not seen.append(host), Taken),
        busy_recently=lambda: busy,
        clock=lambda: takes * len(seen),
    )
    with clients(listener.getsockname(), 20):
        acceptor.start()
        acceptor._accept_some()
        assert len(seen) == most
        await happens(lambda: len(Taken.all) == 20)
        end(acceptor)


async def test_it_can_be_closed_in_a_break() -> None:
    listener = tcp()
    acceptor = Acceptor(listener, ANYBODY, Taken, busy_recently=lambda: True)
    with clients(listener.getsockname(), 8):
        acceptor.start()
        await happens(lambda: Taken.all and not acceptor._taking)
        end(acceptor)
        taken = len(Taken.all)
        await asyncio.sleep(0.05)
        assert len(Taken.all) == taken


async def test_refused_connections_are_closed_before_anything_is_allocated() -> None:
    listener = tcp()
    seen: list[str] = []

    def every_other(host: str) -> bool:
        seen.append(host)
        return len(seen) % 2 == 0

    acceptor = Acceptor(listener, every_other, Taken)
    with clients(listener.getsockname(), 40) as found:
        acceptor.start()
        loop = asyncio.get_running_loop()
        assert [await loop.sock_recv(client, 9) for client in found[::2]] == [b""] * 20
        await happens(lambda: len(Taken.all) == 20)
        assert seen == ["127.0.0.1"] * 40
        end(acceptor)


async def test_a_storm_is_taken_in_parts() -> None:
    """Between two parts the loop does what else there is to do."""
    listener = tcp()
    acceptor = Acceptor(listener, ANYBODY, Taken)
    loop = asyncio.get_running_loop()
    seen = [0]

    def look() -> None:
        seen.append(len(Taken.all))
        if len(Taken.all) < 120:
            loop.call_soon(look)

    with clients(listener.getsockname(), 120):
        acceptor.start()
        look()
        await happens(lambda: len(Taken.all) == 120)
        steps = [after - before for before, after in itertools.pairwise(seen)]
        assert max(steps) <= 16
        end(acceptor)


class Few(Descriptors):
    """Descriptors of which there are as many as a test wants."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.taken = 0

    def last(self, descriptor: int) -> bool:
        self.taken += 1
        return self.taken >= self.number

    def free(self, descriptor: int) -> bool:
        return self.taken < self.number


async def test_the_last_descriptors_are_left_to_the_broker() -> None:
    listener = tcp()
    few = Few(3)
    acceptor = Acceptor(listener, ANYBODY, Taken, few)
    with clients(listener.getsockname(), 10) as found, capture_logs() as lines:
        acceptor.start()
        await happens(lambda: acceptor.paused and len(Taken.all) == 3)
        for more in (5, 10):
            few.number = more
            await happens(lambda more=more: len(Taken.all) == more)  # type: ignore[misc]
        few.number = 1000
        await happens(lambda: not acceptor.paused)
        loop = asyncio.get_running_loop()
        for client in found:
            await loop.sock_sendall(client, b"hello")
            assert await loop.sock_recv(client, 9) == b"hello"
        assert acceptor.pauses >= 3
        assert [line["event"][:23] for line in lines] == ["out of file descriptors"]
        end(acceptor)


async def test_closing_while_paused_stays_closed() -> None:
    listener = tcp()
    acceptor = Acceptor(listener, ANYBODY, Taken, Few(1))
    with clients(listener.getsockname(), 2):
        acceptor.start()
        await happens(lambda: acceptor.paused)
        end(acceptor)
        assert not acceptor.paused
        assert listener.fileno() == -1


@contextlib.contextmanager
def descriptors_up_to(limit: int) -> Iterator[None]:
    """The limit on open files lowered, as `ulimit -n` does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This many descriptors may be opened, whatever others have open or left behind."""
    with contextlib.ExitStack() as stack:
        left: list[int] = []
        while len(left) < count:
            number = os.dup(0)
            if left and number != left[-1] + 1:
                for gap in left:
                    stack.callback(os.close, gap)
                left = []
            left.append(number)
        for number in left:
            os.close(number)
        with descriptors_up_to(left[-1] + 1):
            yield


async def test_when_there_are_none_at_all_it_neither_spins_nor_closes_anybody() -> None:
    listener = tcp()
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    loop.set_exception_handler(lambda _, context: calls.append(context))
    acceptor = Acceptor(listener, ANYBODY, Taken, Descriptors(spare=0))
    with clients(listener.getsockname(), 20) as found:
        with descriptors_left(5):
            acceptor.start()
            await happens(lambda: acceptor.paused and len(Taken.all) >= 4)
            before = acceptor.pauses
            turns = 0

            def turn() -> None:
                nonlocal turns
                turns += 1

            for _ in range(20):
                loop.call_soon(turn)
                await asyncio.sleep(0)
            assert (acceptor.paused, acceptor.pauses) == (True, before)
            assert turns == 20
            assert not calls
        await happens(lambda: len(Taken.all) == 20)
        for client in found:
            await loop.sock_sendall(client, b"hello")
            assert await loop.sock_recv(client, 9) == b"hello"
        end(acceptor)


def test_a_descriptor_number_shows_how_many_are_left() -> None:
    trial = os.dup(0)
    os.close(trial)
    with descriptors_up_to(trial + 10):
        assert not Descriptors(spare=9).last(trial)
        assert Descriptors(spare=10).last(trial)
        assert Descriptors(spare=9).free(0)
        assert not Descriptors(spare=10).free(0)
    with descriptors_up_to(3):
        assert not Descriptors(spare=0).free(0)


def test_an_address_that_is_taken_is_an_error_and_no_leak() -> None:
    with tcp() as listener:
        before = os.dup(0)
        os.close(before)
        with pytest.raises(OSError, match="in use"):
            listening_socket(socket.AF_INET, listener.getsockname(), 5)
        after = os.dup(0)
        os.close(after)
        assert after == before
