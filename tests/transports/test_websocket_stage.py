"""WebSocket: handshakes, frames of all kinds, closing, and required refusals."""

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from harness.waiting import happens
from hypothesis import given
from hypothesis import strategies as st
from upper import Client, Upper, placed
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from wsframes import frame, head, next_frame, request

from actors.transports import websocket
from actors.transports.peer import forwarded_peer
from actors.transports.stack import StackOptions
from actors.transports.websocket import WebSocketOptions, WebSocketStage, frame_size, plain_frames

pytestmark = pytest.mark.system


def ws_options(**others: Any) -> StackOptions:
    return StackOptions(websocket=WebSocketOptions(**others))


@contextlib.asynccontextmanager
async def shaken(
    options: StackOptions | None = None, *, echo: bool = False, **others: Any
) -> AsyncIterator[tuple[Client, Upper]]:
    """A client after the handshake, and the connection above."""
    async with placed(options or ws_options(), echo=echo) as place:
        client = await place.dial()
        await client.send(request(**others))
        assert b" 101 " in await head(client)
        yield client, await place.upper()


async def closed_with(client: Client) -> int:
    """The code with which the server closes; nothing comes behind it."""
    opcode, data = await next_frame(client)
    assert opcode == Opcode.CLOSE
    assert await client.rest() == b""
    return int.from_bytes(data[:2], "big")


# ------------------------------------------------------------- the handshake


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1"), ("mqttv3.1, mqtt", "mqtt"), ("x, mqtt", "mqtt")],
)
async def test_the_subprotocol_is_agreed_on(asked: str, agreed: str) -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(request(protocols=asked))
        answer = (await head(client)).decode()
        assert answer.startswith("HTTP/1.1 101 ")
        assert f"\r\nSec-WebSocket-Protocol: {agreed}\r\n" in answer
        assert "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
        assert "Extensions" not in answer
        upper = await place.upper()
        assert upper.transport.get_extra_info("websocket") == agreed
        assert upper.transport.get_extra_info("peername") is not None
        assert place.options.websocket_stats.accepted == 1


async def test_compression_is_not_agreed_on() -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(request(Sec_WebSocket_Extensions="permessage-deflate"))
        answer = await head(client)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"Extensions" not in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(protocols=None), 400),
        (request(protocols="chat"), 400),
        (request(path="/mqtt/more"), 404),
        (request(path="/MQTT"), 404),
        (request(method="POST"), 405),
        (request(Sec_WebSocket_Version="12"), 400),
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 426),
        (b"GET /mqtt HTTP/1.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET /mqtt HTTP/1.1\r\n" + b"a: b\r\n" * 4_000, 431),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /mqtt HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    ],
)
async def test_requests_that_are_refused(sent: bytes, status: int) -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(sent)
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        upper = await place.upper()
        assert str(status) in str(await upper.ended())
        assert not upper.data
        assert place.options.websocket_stats.refused == {status: 1}


@pytest.mark.parametrize("path", ["/", "/mqtt", "/ws", "/mqtt?token=1", "/?a=/x"])
async def test_the_paths_of_clients_are_served(path: str) -> None:
    async with shaken(path=path):
        pass


async def test_a_refusal_names_the_requested_and_the_served_paths() -> None:
    async with placed(ws_options(paths=("/a", "/b"))) as place:
        client = await place.dial()
        await client.send(request(path="/socket"))
        answer = await client.rest()
        assert answer.endswith(b"\r\n\r\nno MQTT at /socket, only at /a, /b (ws_path)\n")
        error = str(await (await place.upper()).ended())
        assert error.endswith("HTTP status 404: no MQTT at /socket, only at /a, /b (ws_path)")


async def test_a_long_path_is_cut_in_the_refusal() -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(request(path="/" + "x" * 5000))
        assert b" 404 " in await client.rest()
        assert len(str(await (await place.upper()).ended())) < 500


LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
TEN = (ipaddress.ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize(
    ("headers", "host"),
    [
        ({"X_Forwarded_For": "203.0.113.9"}, "203.0.113.9"),
        ({"X_Forwarded_For": "198.51.100.1, 203.0.113.9, 127.0.0.5"}, "203.0.113.9"),
        ({"Forwarded": 'for="[2001:db8::9]:4711";proto=https'}, "2001:db8::9"),
        ({"X_Forwarded_For": "nonsense"}, "127.0.0.1"),
        ({}, "127.0.0.1"),
    ],
)
async def test_a_trusted_proxy_names_the_client(headers: dict[str, str], host: str) -> None:
    async with placed(ws_options(trusted=LOOPBACK)) as place:
        client = await place.dial()
        upper = await place.upper()
        assert upper.transport.get_extra_info("peer_pending") is True
        await client.send(request(**headers))
        await head(client)
        assert [peer[0] for peer in upper.peers] == [host]
        assert not upper.transport.get_extra_info("peer_pending")


async def test_others_cannot_name_a_client() -> None:
    for trusted in ((), TEN):
        async with shaken(ws_options(trusted=trusted), X_Forwarded_For="203.0.113.9") as (_, upper):
            assert upper.transport.get_extra_info("peername")[0] == "127.0.0.1"
            assert not upper.transport.get_extra_info("peer_pending")
            assert not upper.peers


async def test_a_proxy_behind_the_proxy_protocol_names_the_client() -> None:
    options = StackOptions(proxy=LOOPBACK, websocket=WebSocketOptions(trusted=TEN))
    line = b"PROXY TCP4 %s 198.51.100.1 56324 1883\r\n"
    for proxy, host in ((b"10.1.1.1", "203.0.113.9"), (b"192.0.2.7", "192.0.2.7")):
        async with placed(options) as place:
            client = await place.dial()
            await client.send(line % proxy + request(X_Forwarded_For="203.0.113.9"))
            await head(client)
            assert [peer[0] for peer in (await place.upper()).peers] == [host]


@pytest.mark.parametrize(
    ("x_forwarded_for", "forwarded", "peer"),
    [
        (["203.0.113.9"], [], ("203.0.113.9", 0)),
        (["203.0.113.9:4711"], [], ("203.0.113.9", 4711)),
        (["[2001:db8::9]:80"], [], ("2001:db8::9", 80)),
        (["2001:db8::9"], [], ("2001:db8::9", 0)),
        (["::ffff:203.0.113.9"], [], ("203.0.113.9", 0)),
        (["1.1.1.1", "203.0.113.9, 10.0.0.1", "10.0.0.2"], [], ("203.0.113.9", 0)),
        (["junk, 203.0.113.9"], [], ("203.0.113.9", 0)),
        (["203.0.113.9, junk"], [], None),
        (["junk, 10.0.0.1"], [], None),
        (["10.0.0.3, 10.0.0.2"], [], ("10.0.0.3", 0)),
        (["203.0.113.9:70000"], [], None),
        (["fe80::1%eth0"], [], None),
        ([""], [], None),
        ([], ["for=203.0.113.9"], ("203.0.113.9", 0)),
        ([], ['FOR="203.0.113.9:80"; by=10.0.0.1, For=10.0.0.2'], ("203.0.113.9", 80)),
        ([], ['for="[2001:db8::9]"'], ("2001:db8::9", 0)),
        ([], ["for=unknown"], None),
        ([], ["for=_hidden, for=10.0.0.1"], None),
        ([], ["proto=https"], None),
        ([], ['for="203.0.113.9'], None),
        ([], ["for=203.0.113.9;for=203.0.113.8"], None),
        (["203.0.113.9"], ["for=203.0.113.9:80"], ("203.0.113.9", 80)),
        (["203.0.113.9"], ["for=198.51.100.1"], None),
        (["203.0.113.9"], ["for=unknown"], None),
        ([], [], None),
    ],
)
def test_addresses_in_headers_of_proxies(
    x_forwarded_for: list[str], forwarded: list[str], peer: tuple[str, int] | None
) -> None:
    assert forwarded_peer(x_forwarded_for, forwarded, TEN) == peer


@pytest.mark.parametrize(
    "sent", [b"\x10\x0d\x00\x04MQTT\x04\x02", b"\x16\x03\x01", b"get / http/1.1\r\n\r\n"]
)
async def test_a_client_without_http_is_closed_at_once(sent: bytes) -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(sent)
        assert await client.rest() == b""
        assert "does not use HTTP" in str(await (await place.upper()).ended())
        assert place.options.websocket_stats.refused == {0: 1}


async def test_broken_http_is_closed() -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(b"GET /mqtt\r\n\r\n")
        assert await client.rest() == b""
        assert await (await place.upper()).ended() is not None


async def test_the_request_may_come_byte_by_byte_and_with_a_query() -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        sent = request(path="/mqtt?token=1") + frame(b"early")
        for at in range(len(sent)):
            client.writer.write(sent[at : at + 1])
            if at % 16 == 0:
                await asyncio.sleep(0)
        assert b" 101 " in await head(client)
        await (await place.upper()).got(b"early")


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://good.example", b"101"), (None, b"101"), ("https://bad.example", b"403")],
)
async def test_origins(origin: str | None, status: bytes) -> None:
    async with placed(ws_options(origins=("https://good.example",))) as place:
        client = await place.dial()
        await client.send(request(**({} if origin is None else {"Origin": origin})))
        assert (await head(client)).split(b" ")[1] == status


# ------------------------------------------------------------------- frames


async def test_frames_hold_several_packets_and_packets_span_frames() -> None:
    async with shaken(echo=True) as (client, upper):
        await client.send(frame(b"one two") + frame(b"") + frame(b" th") + frame(b"ree"))
        await upper.got(b"one two three")
        assert upper.reads == 1
        assert await next_frame(client) == (Opcode.BINARY, b"one two three")


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
async def test_however_frames_are_cut(step: int) -> None:
    data = os.urandom(70_000)
    sizes = [0, 1, 125, 126, 300, 20_000]
    sent, at = b"", 0
    for size in sizes:
        sent += frame(data[at : at + size])
        at += size
    sent += frame(data[at : at + 10], fin=False) + frame(b"in between", Opcode.PING)
    sent += frame(data[at + 10 : at + 10], Opcode.CONT, fin=False)
    sent += frame(data[at + 10 : at + 50], Opcode.CONT)
    sent += frame(data[at + 50 :])  # longer than what is kept aside
    async with shaken() as (client, upper):
        for begin in range(0, len(sent), step):
            upper.transport.data_received(sent[begin : begin + step])  # type: ignore[attr-defined]
        assert bytes(upper.data) == data
        assert await next_frame(client) == (Opcode.PONG, b"in between")


async def test_one_write_is_one_frame() -> None:
    async with shaken() as (client, upper):
        for size in (1, 125, 126, 65_535, 65_536):
            upper.transport.write(bytes(size))
            assert await next_frame(client) == (Opcode.BINARY, bytes(size))
        upper.transport.writelines([b"a", b"b"])
        assert await next_frame(client) == (Opcode.BINARY, b"ab")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"text", Opcode.TEXT), 1003),
        (frame(b"t", Opcode.TEXT, fin=False), 1003),
        (Frame(Opcode.BINARY, b"not masked").serialize(mask=False), 1002),
        (b"\xc2\x80mask", 1002),  # a bit that needs an extension
        (b"\x83\x80mask", 1002),  # an opcode that there is not
        (frame(b"", Opcode.CONT), 1002),
        (frame(b"a", fin=False) + frame(b"b"), 1002),
        (b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", 1009),
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1009),
        (b"\x89\xfe\x00\x7emask" + bytes(126), 1002),  # a ping that is too long
        (b"\x09\x80mask", 1002),  # a ping in pieces
        (b"\x88\x81maskx", 1002),  # a close with half a code
        (frame(b"\x03\xe7", Opcode.CLOSE), 1002),  # with a code that there is not
        (frame(b"\x03\xe8\xff", Opcode.CLOSE), 1007),  # with a reason that is not UTF-8
    ],
    ids=range(14),  # masks are random
)
async def test_frames_that_are_refused(sent: bytes, code: int) -> None:
    async with shaken() as (client, upper):
        await client.send(frame(b"before ") + sent + frame(b"behind"))
        assert await closed_with(client) == code
        await upper.ended()
        assert bytes(upper.data) in (b"before ", b"before a")


def padded(size: int, width: int, opcode: Opcode = Opcode.BINARY) -> bytes:
    """A final frame whose length takes this many bytes behind the first one."""
    short = {2: 126, 8: 127}[width]
    head = bytes([0x80 | opcode, 0x80 | short]) + size.to_bytes(width, "big")
    return head + bytes(4 + size)


@pytest.mark.parametrize(
    "sent",
    [
        padded(0, 2),
        padded(5, 2),
        padded(125, 2),
        padded(5, 8),
        padded(126, 8),
        padded(65_535, 8),
        padded(65_535, 8)[:10],
        padded(3, 2, Opcode.PING),
        frame(b"a", fin=False) + padded(5, 2, Opcode.CONT),
    ],
    ids=range(9),  # masks are random
)
@pytest.mark.parametrize("step", [1, 100_000])
async def test_a_length_that_is_not_minimal_is_refused(sent: bytes, step: int) -> None:
    """RFC 6455, section 5.2: "the minimal number of bytes MUST be used to encode the length"."""
    sent = frame(b"before ") + sent + frame(b"behind")
    async with shaken() as (client, upper):
        for at in range(0, min(len(sent), 300) if step == 1 else len(sent), step):
            upper.transport.data_received(sent[at : at + step])  # type: ignore[attr-defined]
        assert await closed_with(client) == 1002
        assert "not minimal" in str(await upper.ended())
        assert client.stats.failed == {1002: 1}
        assert bytes(upper.data) in (b"before ", b"before a")


@pytest.mark.parametrize(("size", "width"), [(126, 2), (65_535, 2), (65_536, 8)])
async def test_the_shortest_of_long_lengths_are_taken(size: int, width: int) -> None:
    async with shaken() as (client, upper):
        await client.send(padded(size, width))
        await upper.got(bytes(size))


async def test_the_longest_frame_can_be_changed() -> None:
    async with shaken(StackOptions(websocket=WebSocketOptions(), max_frame=100)) as (client, upper):
        await client.send(frame(bytes(100)))
        await upper.got(bytes(100))
        stage = upper.transport
        assert isinstance(stage, WebSocketStage)
        stage.max_size = 30_000
        await client.send(frame(bytes(30_000)))
        await upper.got(bytes(30_100))
        await client.send(frame(bytes(30_001))[:8])
        assert await closed_with(client) == 1009
        assert "WebSocket: " in str(await upper.ended())
        assert client.stats.failed == {1009: 1}


async def test_a_frame_that_is_too_long_is_refused_before_it_is_there() -> None:
    async with shaken(StackOptions(websocket=WebSocketOptions(), max_frame=100)) as (client, _):
        await client.send(frame(bytes(101))[:2])
        assert await closed_with(client) == 1009


# --------------------------------------------------------------- pings, ends


async def test_pings_are_answered_and_pongs_are_not() -> None:
    async with shaken() as (client, upper):
        await client.send(frame(b"nobody asked", Opcode.PONG) + frame(b"1", Opcode.PING))
        assert await next_frame(client) == (Opcode.PONG, b"1")
        assert not upper.data


async def test_too_many_pings_close() -> None:
    async with shaken() as (client, _):
        await client.send(frame(b"", Opcode.PING) * 5_000)
        codes = []
        for _ in range(5_000):
            opcode, data = await next_frame(client)
            codes.append(opcode)
            if opcode == Opcode.CLOSE:
                break
        assert int.from_bytes(data[:2], "big") == 1008
        assert len(codes) < 200


async def test_too_many_pongs_close() -> None:
    async with shaken() as (client, _):
        await client.send(frame(b"", Opcode.PONG) * 5_000)
        assert await closed_with(client) == 1008


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"a", fin=False) + frame(b"", Opcode.CONT, fin=False) * 20_000,
        frame(b"") * 20_000,
        (frame(b"", fin=False) + frame(b"", Opcode.CONT)) * 10_000,
        (frame(b"") + frame(b"", Opcode.PONG) * 2) * 7_000,
    ],
    ids=["continuations", "whole messages", "messages in fragments", "pongs in between"],
)
async def test_frames_that_carry_nothing_are_bounded(sent: bytes) -> None:
    async with shaken() as (client, upper):
        await client.send(sent)
        assert await closed_with(client) == 1008
        assert "too many" in str(await upper.ended())
        assert client.stats.failed == {1008: 1}


async def test_an_empty_frame_may_end_every_message() -> None:
    message = frame(b"a", fin=False) + frame(b"", Opcode.CONT)
    async with shaken() as (client, upper):
        await client.send(message * 1_000)
        await upper.got(b"a" * 1_000)
        await client.send((frame(b"") * 40 + frame(b"b")) * 10)
        await upper.got(b"a" * 1_000 + b"b" * 10)


async def test_pings_of_a_client_that_does_not_read_are_not_answered() -> None:
    async with shaken() as (client, upper):
        stage = cast("WebSocketStage", upper.transport)
        stage.pause_writing()
        assert not upper.writable
        await client.send(frame(b"1", Opcode.PING) + frame(b"data"))
        await upper.got(b"data")
        stage.resume_writing()
        assert upper.writable
        await client.send(frame(b"2", Opcode.PING))
        assert await next_frame(client) == (Opcode.PONG, b"2")


async def test_the_client_closes() -> None:
    async with shaken() as (client, upper):
        await client.send(frame(b"last") + frame(b"\x03\xe8bye", Opcode.CLOSE))
        assert await closed_with(client) == 1000
        assert await upper.ended() is None
        assert bytes(upper.data) == b"last"
        assert upper.transport.is_closing()
        assert not client.stats.failed


async def test_the_server_closes_and_waits_for_the_answer() -> None:
    async with shaken() as (client, upper):
        upper.transport.pause_reading()
        upper.transport.write(b"last")
        upper.transport.close()
        upper.transport.close()
        assert upper.transport.is_closing()
        upper.transport.write(b"too late")
        assert await next_frame(client) == (Opcode.BINARY, b"last")
        assert await next_frame(client) == (Opcode.CLOSE, b"\x03\xe8")
        await client.send(frame(b"not for you") + frame(b"\x03\xe8", Opcode.CLOSE))
        assert await client.rest() == b""
        assert await upper.ended() is None
        assert not upper.data


async def test_a_client_that_does_not_answer_a_close_is_cut_off() -> None:
    async with shaken(ws_options(close_timeout=0.05)) as (client, upper):
        upper.transport.close()
        assert await next_frame(client) == (Opcode.CLOSE, b"\x03\xe8")
        assert await client.rest() == b""
        await upper.ended()


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_the_upper_layer_may_close_before_the_handshake(end: str) -> None:
    async with placed(ws_options()) as place:
        client = await place.dial()
        await client.send(b"GET ")
        upper = await place.upper()
        getattr(upper.transport, end)()
        assert upper.transport.is_closing()
        assert await client.rest() == b""
        await upper.ended()


async def test_a_client_that_leaves_without_a_close_frame() -> None:
    async with shaken() as (client, upper):
        await client.send(frame(b"whole") + frame(b"half")[:7])
        await upper.got(b"whole")
        await client.close()
        assert await upper.ended() is None
        assert upper.eof


# ------------------------------------------------------------------- flow


async def test_nothing_comes_up_while_paused() -> None:
    async with shaken() as (client, upper):
        stage = cast("WebSocketStage", upper.transport)
        stage.pause_reading()
        assert not stage.is_reading()
        assert not stage.lower.is_reading()
        await client.send(frame(b"later"))
        await asyncio.sleep(0.02)
        assert not upper.data
        stage.resume_reading()
        await upper.got(b"later")


async def test_many_odd_frames_leave_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of a byte take turns with what else there is to do."""
    monkeypatch.setattr(websocket, "_CONTROL_FRAMES_AT_ONCE", 10)
    count = 95
    data = os.urandom(count)
    fragments = [
        frame(data[at : at + 1], Opcode.CONT if at else Opcode.BINARY, fin=at == count - 1)
        for at in range(count)
    ]
    async with shaken() as (client, upper):
        stage = cast("WebSocketStage", upper.transport)
        stage.data_received(b"".join(fragments) + frame(b"end"))
        assert len(upper.data) == 10
        assert not stage.lower.is_reading()
        stage.pause_reading()
        await asyncio.sleep(0)
        assert len(upper.data) == 10
        stage.resume_reading()
        await upper.got(data + b"end")
        assert upper.reads == 10
        await happens(stage.lower.is_reading, "it is read again")
        await client.send(frame(b"!"))
        await upper.got(data + b"end!")


async def test_closed_by_the_upper_layer_within_unusual_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "_CONTROL_FRAMES_AT_ONCE", 3)
    async with shaken(ws_options(close_timeout=0.05)) as (_, upper):
        stage = cast("WebSocketStage", upper.transport)
        fragments = [frame(b"a", fin=False)] + [frame(b"b", Opcode.CONT, fin=False)] * 20
        stage.data_received(b"".join(fragments))
        stage.close()
        await upper.ended()
        assert bytes(upper.data) == b"abb"


# ---------------------------------------------- the shortcut and the library


def by_library(data: bytes) -> bytes:
    """What the library alone makes of frames of a client."""
    protocol = Protocol(Side.SERVER, max_size=None)
    protocol.receive_data(data)
    return b"".join(bytes(cast("Frame", event).data) for event in protocol.events_received())


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=8), st.integers(0, 20))
def test_simple_frames_agree_with_the_library(payloads: Sequence[bytes], cut: int) -> None:
    data = b"".join(map(frame, payloads))
    data = data[: len(data) - cut] if cut else data
    parts: list[bytes] = []
    end = plain_frames(data, 0, 1000, parts)
    assert b"".join(parts) == by_library(data)
    rest = data[end:]
    size = frame_size(rest, 0)
    assert not rest or size == 0 or size > len(rest)


@given(st.integers(0, 70_000), st.booleans())
def test_the_size_of_a_frame(size: int, masked: bool) -> None:
    data = Frame(Opcode.BINARY, bytes(size)).serialize(mask=masked)
    assert frame_size(data, 0) == len(data)
    assert frame_size(b"__" + data, 2) == len(data)
    assert frame_size(data[:1], 0) == 0


def test_other_frames_are_left_to_the_library() -> None:
    for data in (
        frame(b"t", Opcode.TEXT),
        frame(b"f", fin=False),
        Frame(Opcode.BINARY, b"bare").serialize(mask=False),
        Frame(Opcode.BINARY, bytes(300)).serialize(mask=False),
        frame(bytes(300))[:5],
        frame(bytes(70_000)),
        frame(bytes(201)),
        b"\xc2\x80mask",
        frame(b""),
        padded(125, 2),
    ):
        parts: list[bytes] = []
        assert plain_frames(frame(b"first") + data, 0, 200, parts) == len(frame(b"first"))
        assert parts == [b"first"]
