"""An HTTP server for short answers: one for each connection, without bodies of requests.

It serves the monitoring port of a broker. An HTTP framework would take a tenth of the memory of an
idle one. What is not a request of HTTP/1 is answered with 400 and logged by nobody.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, NamedTuple, cast

MAX_CONNECTIONS: Final = 128
_LONGEST_LINE: Final = 4096
"""Maximum bytes of the request line and of each header."""
_LONGEST_HEAD: Final = 16 * _LONGEST_LINE
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_END: Final = b"\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"


class Request(NamedTuple):
    """The part of a request that is used."""

    method: str
    path: str
    """As it was sent, without the query."""
    hosts: list[str]
    """The values of Host headers."""


class Response(NamedTuple):
    """A response; ``headers`` are those that depend on it."""

    status: int
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, body: bool) -> bytes:
        """Return the bytes of the response; for HEAD without its body."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Server: foldmq",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join(lines).encode("ascii") + _END + (self.body if body else b"")


def parse_request(head: bytes) -> Request | None:
    """Return the request with this head, without the empty line; None: it is malformed."""
    first, *lines = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None or any(len(line) > _LONGEST_LINE for line in (first, *lines)):
        return None
    headers = [_HEADER.fullmatch(line) for line in lines]
    fields = [(header[1].lower(), header[2]) for header in headers if header is not None]
    if len(fields) < len(headers) or any(name == b"transfer-encoding" for name, _ in fields):
        return None
    hosts = [value.rstrip(b" \t").decode("latin-1") for name, value in fields if name == b"host"]
    return Request(match[1].decode("ascii"), match[2].decode("ascii").partition("?")[0], hosts)


Answer = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Answers requests with ``answer``.

    ``longest`` seconds after its beginning a connection is aborted, whether or not its response was
    read.
    """

    def __init__(self, answer: Answer, longest: float) -> None:
        self.answer = answer
        self.longest = longest
        self.connections: set[_Connection] = set()

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Refusal() if len(self.connections) >= MAX_CONNECTIONS else _Connection(self)

    def close(self) -> None:
        """Abort all connections."""
        for connection in [*self.connections]:
            connection.abort()


class _Connection(asyncio.Protocol):
    """A connection, for one request."""

    _transport: asyncio.Transport
    _cut: asyncio.TimerHandle

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._head = bytearray()
        self._task: asyncio.Task[None] | None = None
        """Writes the response."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        loop = asyncio.get_running_loop()
        self._cut = loop.call_later(self._server.longest, self.abort)

    def data_received(self, data: bytes) -> None:
        """Answer the first request; the bytes after it are not read."""
        if self._transport.is_closing() or self._task is not None:
            return
        self._head += data
        head, end, _ = self._head.partition(_END)
        if not end and len(self._head) <= _LONGEST_HEAD:
            return
        request = parse_request(bytes(head)) if end else None
        if request is None:
            self._end(Response(400, b"no HTTP request that is read here\n").encode(body=True))
            return
        self._transport.pause_reading()
        self._task = asyncio.create_task(self._respond(request), name="monitoring")

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection."""
        self._cut.cancel()
        self._server.connections.discard(self)

    def abort(self) -> None:
        """End the connection and the work for its response."""
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()

    async def _respond(self, request: Request) -> None:
        response = await self._server.answer(request)
        self._end(response.encode(body=request.method != "HEAD"))

    def _end(self, response: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(response)
            self._transport.close()


class _Refusal(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection."""
        transport.close()
