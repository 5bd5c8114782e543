"""The short path past nats-py's tasks, over a real NATS server."""

import asyncio
import inspect
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.broker import free_port
from harness.waiting import happens
from linked import Nats
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.direct_client import DirectClient

pytestmark = pytest.mark.system

Heard = list[tuple[str, bytes]]


@asynccontextmanager
async def prompt(folder: Path, **notices: Any) -> AsyncIterator[tuple[Nats, DirectClient]]:
    server = Nats(folder)
    await server.start()
    try:
        client = await connect(ConnectionOptions(urls=(server.url,)), **notices)
        try:
            yield server, client
        finally:
            await disconnect(client)
    finally:
        server.kill()


def send(client: DirectClient, subject: str, payload: bytes, reply: str = "r") -> bool:
    pieces = payload[:9], payload[9:]
    return client.send_now(subject, pieces, reply=reply, headers={"Name": "value", "Other": "2"})


async def test_sent_bytes_equal_those_of_nats_py(tmp_path: Path) -> None:
    async with prompt(tmp_path) as (_, client):
        subscription = await client.subscribe("a.b")
        await client.flush()
        payload = bytes(range(256)) * 40
        assert send(client, "a.b", payload, "answers.to.this")
        assert send(client, "a.b", b"")
        message = await subscription.next_msg(5)
        assert (message.data, message.reply) == (payload, "answers.to.this")
        assert message.headers == {"Name": "value", "Other": "2"}
        assert (await subscription.next_msg(5)).data == b""


async def test_messages_arrive_in_order_without_a_task(tmp_path: Path) -> None:
    async with prompt(tmp_path) as (_, client):
        heard: Heard = []
        tasks = len(asyncio.all_tasks())
        await client.listen("in.*.*", lambda subject, data: heard.append((subject, data)))
        assert len(asyncio.all_tasks()) == tasks
        for number in range(100):
            assert send(client, f"in.x.{number}", b"%d" % number)
        await happens(lambda: len(heard) == 100)
        assert heard == [(f"in.x.{number}", b"%d" % number) for number in range(100)]
        # Requests of nats-py work as usual beside it.
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await client.publish(inbox, b"as ever")
        assert (await answers.next_msg(5)).data == b"as ever"


@pytest.mark.parametrize("size", [0, 10, 70_000, 300_000, 900_000])
async def test_many_messages_of_a_listener_arrive_in_order(tmp_path: Path, size: int) -> None:
    async with prompt(tmp_path) as (server, client):
        heard: Heard = []
        left = await client.listen("many.*", lambda subject, data: heard.append((subject, data)))
        other = await connect(ConnectionOptions(urls=(server.url,)))
        count = min(200, 30_000_000 // (size + 1))  # the server disconnects slow subscribers
        payload = b"MSG many.0 1 2\r\n" * (size // 16 + 1)
        for number in range(count):
            await other.publish(f"many.{number}", payload, reply="r" if number % 2 else "")
        await happens(lambda: len(heard) == count)
        assert heard == [(f"many.{number}", payload) for number in range(count)]
        await client.leave(left)
        await other.publish("many.0", b"")
        await other.flush()
        await client.flush()
        assert len(heard) == count
        await disconnect(other)


async def test_received_bytes_are_reported_before_they_are_handled(tmp_path: Path) -> None:
    lost: list[bool] = []
    async with prompt(tmp_path, on_disconnect=lambda: lost.append(True)) as (server, client):
        seen: list[str] = []
        await client.listen("in", lambda _subject, _data: seen.append("handled"))
        for _ in range(2):  # again over the second connection
            seen.clear()
            client.on_arrival = lambda: seen.append("arrived")
            assert send(client, "in", b"x")
            await happens(lambda: "handled" in seen)
            assert seen[0] == "arrived"
            lost.clear()
            server.kill()
            await happens(lambda: lost)
            server.run()
            await happens(lambda: client.is_connected)


def feed(client: DirectClient, data: bytes) -> None:
    """Feed bytes as if the server had sent them."""
    reader = client._transport._io_reader
    reader.feed_data(data)


async def test_listeners_are_called_while_their_messages_arrive(tmp_path: Path) -> None:
    async with prompt(tmp_path) as (_, client):
        heard: Heard = []
        subscription = await client.subscribe("in")
        await client.listen("in", lambda subject, data: heard.append((subject, data)))
        sid = max(client._listeners)
        messages = [b"", b"one", b"MSG in %d 3\r\n" % sid, b"\r\n" * 9]
        render = b"MSG in %d %d\r\n%b\r\n"
        feed(client, b"".join(render % (sid, len(data), data) for data in messages))
        assert heard == [("in", data) for data in messages]
        # What follows something that nats-py has to read waits for it, whatever that is.
        heard.clear()
        other = b"MSG in %d 5\r\nother\r\n" % subscription._id
        feed(client, render % (sid, 1, b"1") + other + render % (sid, 1, b"2"))
        feed(client, render % (sid, 1, b"3"))
        assert heard == [("in", b"1")]
        assert (await subscription.next_msg(5)).data == b"other"
        await happens(lambda: heard == [("in", b"1"), ("in", b"2"), ("in", b"3")])


async def test_it_does_not_matter_where_the_network_cuts(tmp_path: Path) -> None:
    async with prompt(tmp_path) as (_, client):
        heard: Heard = []
        left = await client.listen("in.*", lambda subject, data: heard.append((subject, data)))
        sid = max(client._listeners)
        sent = b"MSG in.a %d 2\r\nab\r\n+OK\r\nMSG in.b %d a.reply 2\r\n\r\n\r\n" % (sid, sid)
        for more in (b"", b"PING\r\n", b"MSG other %d 1\r\nx\r\n" % (sid + 1)):
            for cut in range(len(sent) + 1):
                heard.clear()
                feed(client, sent[:cut])
                if cut % 2:  # nats-py reads in between, or does not
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                feed(client, sent[cut:] + more)
                await happens(lambda: len(heard) == 2)
                assert heard == [("in.a", b"ab"), ("in.b", b"\r\n")]
        await client.leave(left)
        assert client.take(sent) == (sent, b"")


@pytest.mark.parametrize("fed", [True, False])
async def test_a_failing_listener_is_reported_and_the_next_message_read(
    tmp_path: Path, *, fed: bool
) -> None:
    """As its message arrives, and also if a task of nats-py handles it."""
    problems: list[str] = []
    heard: Heard = []

    def listen(subject: str, data: bytes) -> None:
        if data == b"bad":
            raise ValueError("cannot take that")
        heard.append((subject, data))

    async with prompt(tmp_path, on_error=problems.append) as (_, client):
        await client.listen("in", listen)
        if fed:
            sid = max(client._listeners)
            feed(client, b"MSG in %d 3\r\nbad\r\nMSG in %d 4\r\ngood\r\n" % (sid, sid))
            assert heard == [("in", b"good")]
        else:
            for data in (b"bad", b"good"):
                assert send(client, "in", data)
        await happens(lambda: heard == [("in", b"good")])
        await happens(lambda: any("cannot take that" in line for line in problems))


async def test_without_a_connection_nothing_is_taken_and_nothing_kept(tmp_path: Path) -> None:
    lost: list[bool] = []
    async with prompt(tmp_path, on_disconnect=lambda: lost.append(True)) as (server, client):
        heard: Heard = []
        await client.listen("in", lambda subject, data: heard.append((subject, data)))
        server.kill()
        await happens(lambda: lost)
        assert not send(client, "in", b"lost")
        server.run()
        await happens(lambda: client.is_connected)
        assert send(client, "in", b"found")  # the subscription was renewed before
        await happens(lambda: heard)
        assert heard == [("in", b"found")]


async def test_a_suspended_server_blocks_no_caller(tmp_path: Path) -> None:
    async with prompt(tmp_path) as (server, client):
        heard: Heard = []
        await client.listen("in", lambda subject, data: heard.append((subject, data[:1])))
        server.signal(signal.SIGSTOP)
        try:
            for number in range(20):
                assert send(client, "in", b"%d" % (number % 10) + bytes(500_000))
        finally:
            server.signal(signal.SIGCONT)
        await happens(lambda: len(heard) == 20)
        assert [data for _, data in heard] == [b"%d" % (number % 10) for number in range(20)]


async def test_over_a_websocket_nats_py_s_task_sends(tmp_path: Path) -> None:
    port = free_port()
    server = Nats(tmp_path, websocket={"host": "127.0.0.1", "port": port, "no_tls": True})
    await server.start()
    try:
        client = await connect(ConnectionOptions(urls=(f"ws://127.0.0.1:{port}",)))
        try:
            heard: Heard = []
            await client.listen("in", lambda subject, data: heard.append((subject, data)))
            for number in range(100):
                assert send(client, "in", b"%d" % number)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await happens(lambda: len(heard) == 100)
            assert [data for _, data in heard] == [b"%d" % number for number in range(100)]
        finally:
            await disconnect(client)
    finally:
        server.kill()


def test_nats_py_is_as_this_needs_it() -> None:
    """What eventstore.nats.direct_client touches or replaces in nats-py."""
    advice = "nats-py has changed: read eventstore/nats/direct_client.py again"
    ours = list(inspect.signature(DirectClient._process_msg).parameters)
    assert list(inspect.signature(Client._process_msg).parameters) == ours, advice
    touched = {"_transport", "_pending", "_pending_data_size", "_flush_queue", "_error_cb"}
    assert touched <= vars(Client()).keys(), advice
    assert {"_io_reader", "_io_writer"} <= vars(TcpTransport()).keys(), advice
    assert list(inspect.signature(Client._connect_to_server).parameters) == ["self", "s"], advice
    assert "_id" in vars(Subscription(Client(), 1)), advice


@pytest.mark.parametrize("method", ["request", "publish", "subscribe"])
async def test_a_cancellation_that_nats_py_loses_is_raised(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(_self: Client, _subject: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    monkeypatch.setattr(Client, method, lose)
    task = asyncio.ensure_future(getattr(DirectClient(), method)("a"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
