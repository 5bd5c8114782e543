"""Connections that are cancelled while they are opened, or closed when the server has gone."""

import asyncio
import contextlib
from typing import Any

import nats.errors
import pytest
from harness.broker import free_port
from harness.waiting import happens
from nats.aio.client import Client

from eventstore.datadir import DataDir
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system


async def test_giving_up_does_not_depend_on_one_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[int] = []

    real = Client.connect

    async def dial(*arguments: Any, **options: Any) -> None:
        inner = asyncio.ensure_future(real(*arguments, **options))
        while len(heard) < 3:
            try:
                await asyncio.shield(inner)
            except asyncio.CancelledError:
                heard.append(1)
        inner.cancel()
        await inner

    monkeypatch.setattr(Client, "connect", dial)
    opening = asyncio.create_task(
        connect(ConnectionOptions(urls=(f"nats://127.0.0.1:{free_port()}",)), timeout=60)
    )
    await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(opening, 20)
    assert len(heard) == 3


async def test_giving_up_at_any_moment() -> None:
    options = ConnectionOptions(urls=(f"nats://127.0.0.1:{free_port()}",))
    for step in range(0, 60, 3):
        opening = asyncio.create_task(connect(options))
        await asyncio.sleep(step / 1000)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(opening, 20)


async def test_closing_when_the_server_has_gone(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir)
    await server.start()
    client = await connect(
        ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    )
    await server.stop()
    await disconnect(client)
    assert client.is_closed


async def serve_hurriedly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a NATS server until the client has pinged once."""
    writer.write(b'INFO {"server_id": "S", "version": "2.15.0", "max_payload": 1048576}\r\n')
    while b"PING" not in await reader.readline():
        pass
    writer.write(b"PONG\r\n")
    writer.close()


async def test_closing_at_any_moment_of_a_reconnect() -> None:
    server = await asyncio.start_server(serve_hurriedly, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for turns in range(40):
        client = await connect(ConnectionOptions(urls=(f"nats://127.0.0.1:{port}",)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await disconnect(client)
        assert client.is_closed
    server.close()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a NATS server that answers pings."""
    writer.write(b'INFO {"server_id": "S", "version": "2.15.0", "max_payload": 1048576}\r\n')
    with contextlib.suppress(OSError):
        while line := await reader.readline():
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
    writer.close()


async def answered(client: Client) -> None:
    """Wait for an answer of the server, also if the connection ends once more."""
    while True:
        await happens(lambda: client.is_connected)
        with contextlib.suppress(nats.errors.Error, OSError):
            await client.flush(1)
            if client.is_connected:
                return


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("close", ["leave", "abort"])
def test_a_connection_that_ends_while_it_is_made_is_made_again(loop: str, close: str) -> None:
    """Another reader changes the server at that moment, or the server resets the connection."""
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None

    async def main() -> None:
        servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        options = ConnectionOptions(urls=tuple(f"nats://127.0.0.1:{port}" for port in ports))
        for turns in range(25):
            client = await connect(options)
            await client.subscribe("a")
            await client.change_server()
            for _ in range(turns):
                await asyncio.sleep(0)
            if close == "leave":
                await client.change_server()
            else:
                client._transport._io_writer.transport.abort()
            await answered(client)
            await disconnect(client)
        for server in servers:
            server.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@pytest.mark.parametrize("error", [ValueError("unexpected"), asyncio.CancelledError()])
async def test_an_unexpected_error_does_not_end_the_attempts_to_connect(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    told: list[str] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await connect(
        ConnectionOptions(urls=(f"nats://127.0.0.1:{port}",)), on_error=told.append
    )
    real, failures = Client._connect_to_server, [error]

    async def dial(self: Client, chosen: Any) -> None:
        if failures:
            raise failures.pop()
        await real(self, chosen)

    monkeypatch.setattr(Client, "_connect_to_server", dial)
    await client.change_server()
    await happens(lambda: not failures and client.is_connected)
    await client.flush()
    assert all("unexpected" in line for line in told)
    await disconnect(client)
    server.close()


async def test_nothing_reconnects_after_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the attempt that was cancelled fails instead, as in Python 3.11 it may."""
    attempts: list[asyncio.Task[Any] | None] = []

    async def dial(_client: Client, _server: object) -> None:
        attempts.append(asyncio.current_task())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionRefusedError from None

    server = await asyncio.start_server(serve_hurriedly, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await connect(ConnectionOptions(urls=(f"nats://127.0.0.1:{port}",)))
    monkeypatch.setattr(Client, "_connect_to_server", dial)
    await happens(lambda: attempts)
    await disconnect(client)
    await happens(lambda: all(task is not None and task.done() for task in attempts))
    assert len(attempts) == 1
    server.close()


async def test_closing_is_cancelled_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "close", lambda _: asyncio.Event().wait())
    closing = asyncio.create_task(disconnect(Client()))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
