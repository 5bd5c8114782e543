"""Lists as streams: JSON lines (NDJSON) and server-sent events.

A reader that is slower than the log pauses the reading. An error behind the first item ends the
stream with a line, or an event, that says so.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from cli.web.api.operation import Item, StreamMark
from cli.web.api.problem_types import Unauthorized
from eventstore.task_cancellation import end_tasks

NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"
_CHUNK: Final = 64 * 1024
_FLUSH_SECONDS: Final = 0.05
_PING_SECONDS: Final = 15.0
_SLICE: Final = 0.01
"""Seconds of work before other requests are served."""
_RETRY: Final = b"retry: 2000\n\n"
_PING: Final = b": ping\n\n"


def as_line(entry: Item | StreamMark) -> bytes:
    """Return an item as a line; also what is missing in the list."""
    if isinstance(entry, Item):
        return dumps(entry.value) + b"\n"
    return b"" if entry.event == "live" else dumps({"event": entry.event, **entry.about}) + b"\n"


def as_event(entry: Item | StreamMark) -> bytes:
    """Return an item, or what there is to say about the list, as a server-sent event."""
    if isinstance(entry, Item):
        value, place = entry
        return b"id: %b\nevent: message\ndata: %b\n\n" % (place.encode(), dumps(value))
    head = b"id: %b\n" % entry.place.encode() if entry.place else b""
    return head + _sse(entry.event, entry.about)


def dumps(value: Any) -> bytes:
    """Return a value as JSON; names that are not UTF-8 have replacement characters."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_replaced(value))


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replaced(key): _replaced(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(each) for each in value]
    return value


async def send_stream(
    request: web.Request,
    response: web.StreamResponse,
    entries: AsyncIterator[Item | StreamMark],
    problem: Callable[[Exception], dict[str, Any]],
    seconds: float | None = None,
) -> None:
    """Send all entries, until they end or the client leaves; ``problem`` describes an error.

    ``seconds``: then the permissions have expired, also if there is nothing to send.
    """
    events = response.content_type == EVENT_STREAM
    encode = as_event if events else as_line
    output = _Output(request, response, ping=_PING if events else b"")
    if events:
        output.add(_RETRY)
    flushing = asyncio.create_task(output.keep(), name="stream")
    turn = time.monotonic()
    permitted = asyncio.timeout(seconds)
    try:
        try:
            async with permitted:
                async for entry in entries:
                    if output.add(encode(entry)) or time.monotonic() - turn > _SLICE:
                        await output.flush()
                        await asyncio.sleep(0)
                        turn = time.monotonic()
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the status has been sent
            expired = Unauthorized("the token has expired") if permitted.expired() else None
            details = problem(expired or error)
            output.add(_sse("error", details) if events else dumps({"error": details}) + b"\n")
        if events:
            output.add(_sse("end", {}))
        await output.flush()
    except ConnectionError:
        pass  # the client has left
    except asyncio.CancelledError:
        if not output.left:
            raise
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
    finally:
        await end_tasks([flushing])


def _sse(event: str, about: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), dumps(about))


class _Output:
    """Bytes on their way to a client."""

    def __init__(self, request: web.Request, response: web.StreamResponse, ping: bytes) -> None:
        """Send to the client of a request, from the current task."""
        self.left = False
        """Whether the client left while nothing was sent, so that the task was cancelled."""
        self._request = request
        self._task = asyncio.current_task()
        self._response = response
        self._ping = ping
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent_at = time.monotonic()

    def add(self, data: bytes) -> bool:
        """Add bytes; return whether there are so many that they must be sent."""
        self._pieces.append(data)
        self._size += len(data)
        return self._size >= _CHUNK

    async def flush(self) -> None:
        """Send what was added; returns when the client has read enough of it."""
        if self._size:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            self._sent_at = time.monotonic()
            await self._response.write(data)

    def _has_left(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()

    async def keep(self) -> None:
        """Send what waits, and a sign of life if nothing does."""
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(_FLUSH_SECONDS)
                if self._has_left() and self._task is not None:
                    self.left = True
                    self._task.cancel()
                    return
                if self._ping and time.monotonic() - self._sent_at > _PING_SECONDS:
                    self.add(self._ping)
                await self.flush()
