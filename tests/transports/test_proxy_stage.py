"""The PROXY protocol: headers of both versions, whole and in pieces, good and bad."""

import asyncio
import contextlib
import ipaddress
import socket
import struct
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upper import Place, Upper, placed

from actors.transports.proxy_protocol import BadHeader, ProxyStage, read_header
from actors.transports.stack import StackOptions, build_stack

pytestmark = pytest.mark.system

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
ELSEWHERE = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n"


def v2(command: int = 0x21, family: int = 0x11, body: bytes = b"", length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    return SIGNATURE + struct.pack("!BBH", command, family, size) + body


def v2_from(host: str, port: int, more: bytes = b"") -> bytes:
    address = ipaddress.ip_address(host)
    family = 0x11 if address.version == 4 else 0x21
    target = bytes(len(address.packed))
    return v2(0x21, family, address.packed + target + struct.pack("!HH", port, 1883) + more)


@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (V1, ("192.0.2.7", 56324)),
        (b"PROXY TCP6 2001:db8::1 2001:DB8::2 1 65535\r\n", ("2001:db8::1", 1)),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", ("192.0.2.7", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff whatever\r\n", None),
        (v2_from("192.0.2.7", 56324), ("192.0.2.7", 56324)),
        (v2_from("2001:db8::1", 80), ("2001:db8::1", 80)),
        (v2_from("::ffff:192.0.2.7", 80), ("192.0.2.7", 80)),
        (v2_from("192.0.2.7", 1, b"\x04\x00\x04abcd" * 100), ("192.0.2.7", 1)),
        (v2(0x20, 0x00), None),
        (v2(0x20, 0x11, b"left by a health check"), None),
        (v2(0x21, 0x00, b"\x03\x00\x04crc!"), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
)
def test_good_headers(header: bytes, peer: tuple[str, int] | None) -> None:
    for end in range(len(header)):
        assert read_header(header[:end]) is None
    for more in (b"", b"\x10\x00", header):
        assert read_header(header + more) == (peer, len(header))


@pytest.mark.parametrize(
    "header",
    [
        b"\x10\x0d\x00\x04MQTT",
        b"proxy TCP4",
        b"PROXY\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1 2\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.256 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -1 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 +2\r\n",
        b"PROXY TCP6 fe80::1%\x1b[31m fe80::2 1 2\r\n",
        b"PROXY TCP4 192.0.2.7  198.51.100.1 1 2\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 \xff 198.51.100.1 1 2\r\n",
        b"PROXY UNKNOWN " + b"x" * 93 + b"\r\n",
        b"PROXY TCP4 " + b"1" * 200,
        SIGNATURE[:5] + b"x",
        v2(0x11),
        v2(0x22),
        v2(0x21, 0x12, bytes(12)),
        v2(0x21, 0x22, bytes(36)),
        v2(0x21, 0x77, bytes(36)),
        v2(0x21, 0x11, bytes(11)),
        v2(0x21, 0x21, bytes(35)),
        v2(0x21, 0x11, b"", 4097),
    ],
)
def test_bad_headers(header: bytes) -> None:
    with pytest.raises(BadHeader):
        read_header(header)


def test_the_longest_line_is_taken() -> None:
    line = b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n"
    assert len(line) == 107
    assert read_header(line) == (None, 107)


@given(st.sampled_from([b"", b"PROXY TCP4 1", SIGNATURE, SIGNATURE + b"\x21\x11"]), st.binary())
def test_any_bytes_are_a_header_or_not(start: bytes, data: bytes) -> None:
    with contextlib.suppress(BadHeader):
        header = read_header(start + data)
        assert header is None or 0 < header.size <= len(start + data)
        assert header is not None or len(start + data) < 16 + 4096


async def test_the_client_is_known_from_the_header_on() -> None:
    async with placed(StackOptions(proxy=LOOPBACK), echo=True) as place:
        client = await place.dial()
        upper = await place.upper()
        proxy = client.writer.get_extra_info("sockname")
        assert upper.transport.get_extra_info("peername") == proxy
        assert upper.transport.get_extra_info("peer_pending") is True
        for byte in V1:
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        await client.send(b"CONNECT")
        assert await client.get(7) == b"CONNECT"
        assert upper.peers == [("192.0.2.7", 56324)]
        assert upper.transport.get_extra_info("peername") == ("192.0.2.7", 56324)
        assert upper.transport.get_extra_info("peer_pending") is False
        assert upper.transport.get_extra_info("sockname")[1] == place.port
        await client.send(b"more")
        assert await client.get(4) == b"more"
        await client.close()
        assert await upper.ended() is None


async def test_bytes_after_the_header_are_passed_on() -> None:
    async with placed(StackOptions(proxy=LOOPBACK)) as place:
        client = await place.dial()
        await client.send(v2_from("2001:db8::1", 7) + b"CONNECT")
        upper = await place.upper()
        await upper.got(b"CONNECT")
        assert upper.peers == [("2001:db8::1", 7)]


async def test_a_proxy_may_speak_for_itself() -> None:
    async with placed(StackOptions(proxy=LOOPBACK)) as place:
        client = await place.dial()
        await client.send(v2(0x20, 0x00) + b"PING")
        upper = await place.upper()
        await upper.got(b"PING")
        assert upper.peers == [client.writer.get_extra_info("sockname")]


async def refused(place: Place, sent: bytes) -> str | None:
    client = await place.dial()
    await client.send(sent)
    assert await client.rest() == b""
    upper = await place.upper()
    await upper.ended()
    assert not upper.data
    assert not upper.peers
    await client.close()
    return cast("ProxyStage", upper.transport).error


async def test_bad_headers_are_closed() -> None:
    async with placed(StackOptions(proxy=LOOPBACK)) as place:
        error = await refused(place, b"\x10\x0d\x00\x04MQTT")
        assert error == "it does not begin with a PROXY header"


@pytest.mark.parametrize("trusted", [ELSEWHERE, ()])
async def test_only_proxies_are_believed(trusted: tuple[ipaddress.IPv4Network, ...]) -> None:
    async with placed(StackOptions(proxy=trusted)) as place:
        assert await refused(place, V1) == "it does not come from a trusted proxy"


async def test_a_unix_socket_is_trusted(tmp_path: Path) -> None:
    upper = Upper()
    loop = asyncio.get_running_loop()
    options = StackOptions(proxy=())
    path = str(tmp_path / "s")
    server = await loop.create_unix_server(lambda: build_stack(upper, options), path)
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        await loop.sock_connect(client, path)
        await loop.sock_sendall(client, V1 + b"CONNECT")
        await upper.got(b"CONNECT")
        assert upper.peers == [("192.0.2.7", 56324)]
    await upper.ended()
    server.close()
