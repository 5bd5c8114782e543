"""MQTT over WebSocket: frames between a socket, or TLS, and a connection (MQTT 3.1.1, section 6).

The ``websockets`` library does the framing, without I/O, except for runs of the simplest frames:
see actors.transports.websocket. Compression is not offered: it costs memory for every client
and processor time for every packet, and small frames could expand to large ones.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.exceptions import HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from actors.transports.peer import Network, Peer, forwarded_peer, is_trusted
from actors.transports.stage import Sendable, Stage
from eventstore.display import escaped

if TYPE_CHECKING:
    from websockets.typing import Origin, Subprotocol


SUBPROTOCOLS: Final = cast("tuple[Subprotocol, ...]", ("mqtt", "mqttv3.1"))

_MAX_HEAD: Final = 16 * 1024
"""Maximum bytes of an HTTP request; browsers with large cookies send a few KiB."""
_SHOWN: Final = 200
"""Maximum number of characters shown of a path."""
_HEAD_END: Final = b"\r\n\r\n"
_SMALL: Final = 16 * 1024
"""Size in bytes up to which an incomplete frame is kept here and not passed to the library."""
_CONTROL_FRAMES_AT_ONCE: Final = 512
"""Maximum number of frames passed to the library in one iteration of the event loop."""
_PINGS_A_SECOND: Final = 64
"""Maximum number of pings and pongs that a client may send per second."""
_EMPTY_IN_A_ROW: Final = 64
"""Maximum number of consecutive empty binary frames and continuations. An empty one that ends a
fragmented message is normal; more of them only cause work."""
_PONG: Final = 0x8A
_CARRY: Final = frozenset({Opcode.BINARY, Opcode.CONT})
"""Frames with MQTT data."""
_PINGS: Final = frozenset({Opcode.PING, Opcode.PONG})

# The library logs every connection; the broker has its own log lines.
_silent = logging.getLogger("foldmq.websocket")
_silent.disabled = True


@dataclass(frozen=True, slots=True)
class WebSocketOptions:
    """WebSocket options of a listener."""

    paths: tuple[str, ...] = ("/", "/mqtt", "/ws")
    """Paths at which MQTT is served; a query is ignored."""
    origins: tuple[str, ...] | None = None
    """Web sites whose pages may connect, as ``https://example.org``; None: all. Clients other than
    browsers send no origin and may always connect."""
    trusted: tuple[Network, ...] = ()
    """Networks of proxies whose headers X-Forwarded-For and Forwarded name the client."""
    close_timeout: float = 5.0
    """Seconds to wait for the client's close frame."""


@dataclass(slots=True)
class WebSocketStats:
    """Counters of WebSocket listeners since the start."""

    accepted: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """Handshakes refused, by HTTP status; 0: the request was not HTTP."""
    failed: Counter[int] = field(default_factory=Counter)
    """Connections closed because of invalid input, by close code (RFC 6455, 7.4.1)."""


class WebSocketStage(Stage):
    """The server's side of a WebSocket.

    No frame is longer than ``max_size`` bytes, which may be set at any time. Extra info:
    ``websocket`` is the negotiated subprotocol; ``incomplete`` whether a part of a frame was
    received. From a trusted proxy, ``peer_pending`` is True until the HTTP request is complete;
    then ``peername`` is the client that it names, and ``upper.peer_known()`` is called.
    """

    __slots__ = (
        "_backlog",
        "_closer",
        "_empty",
        "_frame_rest",
        "_head",
        "_max_size",
        "_options",
        "_over",
        "_paused",
        "_peer",
        "_pending",
        "_ping_second",
        "_pings",
        "_protocol",
        "_rest",
        "_stats",
        "_stopped",
        "_write_paused",
        "error",
    )

    def __init__(
        self,
        upper: asyncio.Protocol,
        options: WebSocketOptions,
        stats: WebSocketStats,
        max_size: int,
    ) -> None:
        super().__init__(upper)
        self._options = options
        self._stats = stats
        self._max_size = max_size
        self._head = b""  # of the HTTP request
        self._peer: Peer | None = None  # the client, if a proxy names it
        self._pending = False  # a proxy may name it yet
        self._protocol: ServerProtocol | None = None  # until the HTTP request has arrived
        self._rest = b""  # received, and not handled yet
        self._frame_rest = 0  # missing bytes of a frame whose beginning the library has
        self._backlog = False  # _rest contains more than the beginning of a frame
        self._paused = False  # the protocol above has paused reading
        self._stopped = False  # the transport below is paused
        self._write_paused = False  # the client reads too slowly
        self._over = False  # further input is ignored
        self._closer: asyncio.TimerHandle | None = None
        self._empty = 0  # empty frames since the last one with content
        self._pings = 0
        self._ping_second = 0.0
        self.error: str | None = None
        """Why the connection was closed by this stage."""

    @property
    def max_size(self) -> int:
        """Maximum bytes of a frame; a longer one closes the connection at its start."""
        return self._max_size

    @max_size.setter
    def max_size(self, size: int) -> None:
        self._max_size = size
        if self._protocol is not None:
            self._protocol.max_fragment_size = size

    # As a protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the name of the client if this is a trusted proxy."""
        self._lower = cast("asyncio.Transport", transport)
        self._expect_peer()
        super().connection_made(transport)

    def peer_known(self) -> None:
        """Pass on the client's address, unless that is a proxy, too: see ProxyStage."""
        self._expect_peer()
        if not self._pending:
            super().peer_known()

    def _expect_peer(self) -> None:
        trusted, lower = self._options.trusted, self.lower
        self._pending = (
            bool(trusted)
            and not lower.get_extra_info("peer_pending")
            and is_trusted(lower.get_extra_info("peername"), trusted)
        )

    def data_received(self, data: bytes) -> None:
        """Handle frames; before that, the handshake."""
        self._read(len(data))
        if self._over:
            return
        if self._protocol is None:
            self._handshake(data)
        else:
            self._take(self._rest + data if self._rest else data)

    def pause_writing(self) -> None:
        """Stop answering pings while the client does not read: the answers would accumulate."""
        self._write_paused = True
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Answer pings again."""
        self._write_paused = False
        self._upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the reason for the end, if it is known here."""
        self._over = True
        self._rest = self._head = b""
        if self._closer is not None:
            self._closer.cancel()
            self._closer = None
        if self.error is not None:
            exc = ConnectionError(self.error)
        self._upper.connection_lost(exc)

    # As a transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return extra information about the WebSocket, or that of the lower transport."""
        if name == "websocket" and self._protocol is not None:
            return self._protocol.subprotocol
        if name == "incomplete" and (self._frame_rest or self._rest):
            return True
        if name == "peername" and self._peer is not None:
            return self._peer
        if name == "peer_pending" and self._pending:
            return True
        return super().get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether it is closed or closing."""
        open_ = self._protocol is None or self._protocol.state is State.OPEN
        return self._over or not open_ or self.lower.is_closing()

    def close(self) -> None:
        """Send a close frame after the written data, and close when the client has answered."""
        protocol = self._protocol
        if protocol is None or self._over:
            self._over = True
            self.lower.close()
        elif protocol.state is State.OPEN:
            protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
            loop = asyncio.get_running_loop()
            self._closer = loop.call_later(self._options.close_timeout, self.abort)
            self._backlog = self._paused = False
            self._adjust()

    def part(self, close: Callable[[asyncio.Transport], object]) -> None:  # noqa: ARG002
        """Close as usual, which waits for the client's answer."""
        self.close()

    def abort(self) -> None:
        """Close at once."""
        self._over = True
        self.lower.abort()

    def is_reading(self) -> bool:
        """Return whether data is passed up."""
        return not self._paused and not self.is_closing()

    def pause_reading(self) -> None:
        """Stop passing data up."""
        self._paused = True
        self._adjust()

    def resume_reading(self) -> None:
        """Pass data up again."""
        if self._paused:
            self._paused = False
            self._adjust()
            if self._backlog:
                asyncio.get_running_loop().call_soon(self._continue)

    def write(self, data: Sendable) -> None:
        """Send bytes as one frame."""
        protocol = self._protocol
        if protocol is not None and protocol.state is State.OPEN and not self._over:
            self.lower.write(Frame(Opcode.BINARY, cast("bytes", data)).serialize(mask=False))

    # The handshake.

    def _handshake(self, data: bytes) -> None:
        """Answer the HTTP request when it is complete."""
        searched = max(0, len(self._head) - len(_HEAD_END))
        head = self._head + data
        if not head[:1].isupper():
            self._over = True
            self.error = "the client does not use HTTP"
            self._stats.refused[0] += 1
            self.lower.abort()
            return
        end = head.find(_HEAD_END, searched, _MAX_HEAD) + len(_HEAD_END)
        if end < len(_HEAD_END):
            self._head = head
            if len(head) >= _MAX_HEAD:
                self._refuse_head()
            return
        self._head = b""
        protocol = self._protocol = self._new_protocol()
        protocol.receive_data(head[:end])
        request = next(iter(protocol.events_received()), None)
        if isinstance(request, Request):
            self._answer(protocol, request)
        else:
            self._refused(_status(protocol.handshake_exc))
        self._send()
        if self._over:
            self.lower.close()
        elif end < len(head):
            # The client should have waited for the answer; this is tolerated.
            self._take(head[end:])

    def _new_protocol(self) -> ServerProtocol:
        origins = self._options.origins
        return ServerProtocol(
            origins=None if origins is None else [*cast("tuple[Origin, ...]", origins), None],
            subprotocols=SUBPROTOCOLS,
            max_size=(None, self._max_size),
            logger=_silent,
        )

    def _answer(self, protocol: ServerProtocol, request: Request) -> None:
        if self._pending:
            self._name_peer(request)
            if self._over:  # too many connections of this client
                return
        path, paths = request.path.partition("?")[0], self._options.paths
        problem = ""
        if path not in paths:
            problem = f"no MQTT at {escaped(path, _SHOWN)}, only at {', '.join(paths)} (ws_path)"
            response = protocol.reject(404, f"{problem}\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        if response.status_code == 101:
            self._stats.accepted += 1
        else:
            self._refused(response.status_code, problem)

    def _name_peer(self, request: Request) -> None:
        """Take the address of the client from the headers of the proxy."""
        headers = request.headers
        self._peer = forwarded_peer(
            headers.get_all("X-Forwarded-For"), headers.get_all("Forwarded"), self._options.trusted
        )
        self._pending = False
        super().peer_known()

    def _refuse_head(self) -> None:
        self._head = b""
        protocol = self._protocol = self._new_protocol()
        protocol.send_response(protocol.reject(431, "The request is too long.\n"))
        self._refused(431)
        self._send()
        self.lower.close()

    def _refused(self, status: int, problem: str = "") -> None:
        self._over = True
        detail = f": {problem}" if problem else ""
        self.error = f"WebSocket handshake refused: HTTP status {status}{detail}"
        self._stats.refused[status] += 1

    # Open.

    def _take(self, data: bytes) -> None:
        """Pass up the content of the frames in ``data`` in one piece."""
        protocol = self._protocol
        assert protocol is not None  # noqa: S101 - narrows the type
        parts: list[bytes] = []
        at, end, odd = 0, len(data), 0
        self._backlog = False
        while at < end and not self._over:
            if not self._frame_rest:
                if protocol.current_size is None:  # not within a fragmented message
                    before, at = at, plain_frames(data, at, self._max_size, parts)
                    self._empty = self._empty if at == before else 0
                size = frame_size(data, at)
                if size and not is_minimal(data, at):
                    self._fail(protocol, CloseCode.PROTOCOL_ERROR, "length is not minimal")
                    break
                if size == 0 or (at + size > end and size <= min(_SMALL, self._max_size)):
                    break
                if odd == _CONTROL_FRAMES_AT_ONCE:
                    self._backlog = True
                    break
                odd += 1
                self._frame_rest = size
            count = min(self._frame_rest, end - at)
            self._feed(protocol, data[at : at + count], parts)
            self._frame_rest -= count
            at += count
        self._rest = data[at:]
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        if whole and self._closer is None:
            self._upper.data_received(whole)
        if self._over:
            self._rest = b""
            self.lower.close()
        elif self._backlog:
            self._adjust()
            asyncio.get_running_loop().call_soon(self._continue)

    def _feed(self, protocol: ServerProtocol, data: bytes, parts: list[bytes]) -> None:
        """Pass one frame, or a part of it, to the library."""
        protocol.receive_data(data)
        for event in protocol.events_received():
            frame = cast("Frame", event)
            if frame.opcode in _CARRY and frame.data:
                parts.append(bytes(frame.data))
                self._empty = 0
            elif protocol.state is not State.OPEN:
                continue
            elif frame.opcode is Opcode.TEXT:
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
            elif frame.opcode in _CARRY:
                self._empty += 1
                if self._empty > _EMPTY_IN_A_ROW:
                    protocol.fail(CloseCode.POLICY_VIOLATION, "too many empty frames")
            elif frame.opcode in _PINGS and self._too_many_pings():
                protocol.fail(CloseCode.POLICY_VIOLATION, "too many pings")
        self._answer_frames(protocol)

    def _fail(self, protocol: ServerProtocol, code: CloseCode, why: str) -> None:
        """Close the connection because of a frame that the library would accept."""
        protocol.fail(code, why)
        self._answer_frames(protocol)

    def _answer_frames(self, protocol: ServerProtocol) -> None:
        """Send the library's answers to frames; keep its reason for closing the connection."""
        self._send()
        if self._over and protocol.close_rcvd is None and protocol.close_sent is not None:
            self._stats.failed[protocol.close_sent.code] += 1
            self.error = f"WebSocket: {protocol.close_sent.reason or protocol.close_sent.code}"

    def _too_many_pings(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._ping_second > 1.0:
            self._ping_second = now
            self._pings = 0
        self._pings += 1
        return self._pings > _PINGS_A_SECOND

    def _send(self) -> None:
        """Write the library's output; an empty part marks the end."""
        protocol = self._protocol
        assert protocol is not None  # noqa: S101 - narrows the type
        for part in protocol.data_to_send():
            if not part:
                self._over = True
            elif not self._write_paused or part[0] != _PONG:
                self.lower.write(part)

    def _continue(self) -> None:
        """Handle the input left over in the last iteration."""
        if self._backlog and not self._paused and not self._over:
            self._take(self._rest)
            self._adjust()

    def _adjust(self) -> None:
        """Pause or resume reading of the lower transport."""
        stop = self._paused or self._backlog
        if stop != self._stopped and not self.lower.is_closing():
            self._stopped = stop
            if stop:
                self.lower.pause_reading()
            else:
                self.lower.resume_reading()


def _status(error: Exception | None) -> int:
    """Return the HTTP status of the library's answer to an invalid request."""
    if isinstance(error, RequestLineTooLong):
        return 414
    return 431 if isinstance(error, HeaderLineTooLong | TooManyHeaders) else 0


try:
    from websockets.speedups import apply_mask
except ImportError:  # the library was built without a compiler
    from websockets.utils import apply_mask

_PLAIN: Final = 0x82
"""First byte of a final binary frame (RFC 6455, 5.2)."""
_MASKED: Final = 0x80


def plain_frames(data: bytes, at: int, longest: int, parts: list[bytes]) -> int:
    """Read complete plain frames of ``data``, from ``at`` on; return their end.

    Their content is appended to ``parts``. A plain frame is final, binary, masked, not empty, no
    longer than ``longest`` bytes, shorter than 64 KiB, and has its length in as few bytes as
    possible. RFC 6455, section 5.2.
    """
    end = len(data)
    while end - at >= 6 and data[at] == _PLAIN:
        size = data[at + 1] - _MASKED
        body = at + 6
        if size >= 126:
            if size == 127 or end - at < 8:
                break
            size = (data[at + 2] << 8) | data[at + 3]
            if size < 126:
                break
            body = at + 8
        after = body + size
        if size < 1 or size > longest or after > end:
            break
        parts.append(apply_mask(data[body:after], data[body - 4 : body]))
        at = after
    return at


def frame_size(data: bytes, at: int) -> int:
    """Return the length of the frame at ``at`` with its header; 0 if the header is incomplete."""
    if len(data) - at < 2:
        return 0
    size = data[at + 1] & 0x7F
    head = 6 if data[at + 1] & _MASKED else 2
    if size >= 126:
        wide = 2 if size == 126 else 8
        if len(data) - at < 2 + wide:
            return 0
        size = int.from_bytes(data[at + 2 : at + 2 + wide], "big")
        head += wide
    return head + size


def is_minimal(data: bytes, at: int) -> bool:
    """Return whether the length of the frame at ``at``, with a complete header, is minimal.

    "The minimal number of bytes MUST be used to encode the length" (RFC 6455, section 5.2).
    Otherwise one frame could be encoded in three ways, and an intermediary could interpret it
    differently from the broker.
    """
    size = data[at + 1] & 0x7F
    if size < 126:
        return True
    if size == 126:
        return int.from_bytes(data[at + 2 : at + 4], "big") >= 126
    return int.from_bytes(data[at + 2 : at + 10], "big") >= 1 << 16
