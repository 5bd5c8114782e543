"""The counterpart of a connection on top of the stages, and servers and clients for them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from harness.waiting import happens

from actors.transports.handshakes import Handshakes
from actors.transports.stack import StackOptions, build_stack
from actors.transports.websocket import WebSocketStats

TIMEOUT = 10.0
"""Seconds in which what must come has come."""


class Upper(asyncio.Protocol):
    """Records all calls; sends received bytes back with `echo`."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.data = bytearray()
        self.reads = 0
        self.peers: list[Any] = []
        self.eof = False
        self.lost: list[Exception | None] = []
        self.writable = True
        self.on_data: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        assert not self.lost
        self.data += data
        self.reads += 1
        if self.on_data is not None:
            self.on_data(data)
        if self.echo:
            self.transport.write(data)

    def eof_received(self) -> None:
        self.eof = True

    def peer_known(self) -> None:
        self.peers.append(self.transport.get_extra_info("peername"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    async def got(self, data: bytes) -> None:
        """Wait until all of this has come, and nothing else."""
        await happens(lambda: len(self.data) >= len(data), f"{len(data)} bytes")
        assert bytes(self.data) == data

    async def ended(self) -> Exception | None:
        """Wait for the end; return the reported error."""
        await happens(lambda: self.lost, "the end")
        assert len(self.lost) == 1
        return self.lost[0]


class Place:
    """A listener with stages; each connection to it gets an Upper."""

    def __init__(self, options: StackOptions, *, echo: bool = False) -> None:
        self.options = options
        self.echo = echo
        self.port = 0
        self.uppers: list[Upper] = []
        self.clients: list[Client] = []

    def made(self) -> asyncio.Protocol:
        self.uppers.append(Upper(echo=self.echo))
        return build_stack(self.uppers[-1], self.options)

    async def upper(self, number: int = 0) -> Upper:
        """The connection of this number, once it is made."""
        await happens(
            lambda: len(self.uppers) > number and self.uppers[number].transport, "a connection"
        )
        return self.uppers[number]

    async def dial(self, tls: ssl.SSLContext | None = None) -> Client:
        name = "localhost" if tls is not None else None
        dialled = asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname=name, limit=2**24
        )
        self.clients.append(Client(*await dialled, self.options.websocket_stats))
        return self.clients[-1]


class Client:
    """A stream to a place."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stats: WebSocketStats
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.stats = stats

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, count: int) -> bytes:
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        """All that comes until the other side closes."""
        data = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            async with asyncio.timeout(TIMEOUT):
                while part := await self.reader.read(65536):
                    data += part
        return data

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def placed(options: StackOptions, *, echo: bool = False) -> AsyncIterator[Place]:
    """A listener for the time of a test; its clients are closed at the end."""
    place = Place(options, echo=echo)
    server = await asyncio.get_running_loop().create_server(place.made, "127.0.0.1", 0)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()
        for upper in place.uppers:
            if upper.transport and not upper.lost:
                upper.transport.abort()
        for client in place.clients:
            await client.close()
        if options.handshakes is not None:
            options.handshakes.close()


def tls_options(context: ssl.SSLContext, **others: Any) -> StackOptions:
    """The options of a listener that speaks TLS."""
    return StackOptions(tls_context=context, handshakes=Handshakes(2), **others)
