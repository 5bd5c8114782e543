"""The bytes of WebSocket clients, and the answers of the server."""

import asyncio
import struct

from upper import TIMEOUT, Client
from websockets.frames import Frame, Opcode


def request(
    path: str = "/mqtt", protocols: str | None = "mqtt", method: str = "GET", **more: str
) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    ]
    if protocols is not None:
        lines.append(f"Sec-WebSocket-Protocol: {protocols}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(data: bytes, opcode: Opcode = Opcode.BINARY, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


async def head(client: Client) -> bytes:
    async with asyncio.timeout(TIMEOUT):
        return await client.reader.readuntil(b"\r\n\r\n")


async def next_frame(client: Client) -> tuple[int, bytes]:
    """The opcode and what it carries of a frame of the server, which must be final and bare."""
    first, size = await client.get(2)
    assert first & 0xF0 == 0x80
    assert size < 128
    if size == 126:
        (size,) = struct.unpack("!H", await client.get(2))
    elif size == 127:
        (size,) = struct.unpack("!Q", await client.get(8))
    return first & 0x0F, await client.get(size)
