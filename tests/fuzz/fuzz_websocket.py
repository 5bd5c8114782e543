"""WebSocket: the same data is passed up however it is cut, and it equals the library's.

Bit 0 of the first byte of an input: the client completes its handshake first. The second byte
determines how the rest is cut: 0 is not at all.
"""

import sys
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from stagefuzz import Lower, Turns, Upper
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from actors.transports.websocket import (
    WebSocketOptions,
    WebSocketStage,
    WebSocketStats,
)

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
LONGEST = 300
"""Bytes of a frame."""
_PINGS = 64
"""How many pings and pongs may come in a second of the broker's time, which stands still here."""
_EMPTY = 64
"""How many frames in a row may carry nothing."""


def one(data: bytes) -> None:
    """Have a stage read the input, cut in two ways; raises AssertionError if they differ."""
    if len(data) < 2:
        return
    greeted, step, sent = bool(data[0] & 1), data[1], data[2:]
    whole, out, closed = read(sent, 0, greeted=greeted)
    cut, cut_out, cut_closed = read(sent, step, greeted=greeted)
    assert cut == whole, "other bytes go up when they come in other pieces"
    assert (bare(cut_out), cut_closed) == (bare(out), closed)
    if greeted:
        expected = by_library(sent)
        assert whole == expected, "not what the library reads"


def read(sent: bytes, step: int, *, greeted: bool) -> tuple[bytes, bytes, bool]:
    """What went up, what was sent back, and whether the connection was closed."""
    with Turns() as turns:
        upper, lower = Upper(), Lower()
        stage = WebSocketStage(upper, WebSocketOptions(), WebSocketStats(), LONGEST)
        stage.connection_made(lower)
        if greeted:
            stage.data_received(REQUEST)
            assert lower.sent.startswith(b"HTTP/1.1 101 ")
        for at in range(0, len(sent), step or max(1, len(sent))):
            if lower.closed:
                break
            stage.data_received(sent[at : at + step] if step else sent)
            turns.run()
        assert lower.closed or not lower.paused, "nobody will have it read again"
        up, closed = bytes(upper.data), lower.closed
        stage.close()
        assert stage.is_closing()
        stage.connection_lost(None)
        assert len(upper.lost) == 1
        assert bytes(upper.data) == up
        return up, bytes(lower.sent), closed


def bare(sent: bytes) -> bytes:
    """What was sent back without the time of day in an answer's head."""
    lines = sent.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"Date: "))


def by_library(sent: bytes) -> bytes:
    """What the library reads until there is a frame that MQTT has no use for."""
    protocol = Protocol(Side.SERVER, max_size=(None, LONGEST))
    protocol.receive_data(sent[: minimal_until(sent)])
    payload, pings, empty = b"", 0, 0
    for event in protocol.events_received():
        frame = cast("Frame", event)
        pings += frame.opcode in (Opcode.PING, Opcode.PONG)
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            payload += bytes(frame.data)
            empty = 0 if frame.data else empty + 1
        if frame.opcode is Opcode.TEXT or pings > _PINGS or empty > _EMPTY:
            break
    return payload


def minimal_until(sent: bytes) -> int:
    """Where the first frame begins whose length takes more bytes than it needs."""
    at = 0
    while at + 2 <= len(sent):
        wide = {126: 2, 127: 8}.get(sent[at + 1] & 0x7F, 0)
        size = sent[at + 1] & 0x7F
        if wide:
            field = sent[at + 2 : at + 2 + wide]
            size = int.from_bytes(field, "big")
            if len(field) == wide and size < {2: 126, 8: 65_536}[wide]:
                return at
        at += 2 + wide + (4 if sent[at + 1] & 0x80 else 0) + size
    return len(sent)
