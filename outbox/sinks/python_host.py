"""The process of a sink ``python``: it runs a class of the user's, and ends with the outbox.

It talks to the outbox over a socket of its own, so whatever the class prints is only output.
Frames are the sizes of a JSON value and of the bytes behind it (4 each, big-endian), then both.
"""

import asyncio
import importlib
import inspect
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from io import BufferedReader
from typing import Any, Final

import orjson

from eventstore.parent_process import end_with_parent
from protocol.mqtt.message_properties import properties_object

SIZES: Final = struct.Struct(">II")
_REASON: Final = 200
"""Maximum number of characters of the reason for a refusal."""


@dataclass(frozen=True)
class SinkMessage:
    """A message, as the class gets it."""

    id: str
    """Log and position: the same when a message is sent again."""
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: str
    """Client identifier of the publisher."""
    time: datetime
    _block: bytes = field(repr=False)

    @cached_property
    def properties(self) -> dict[str, Any]:
        """The properties of MQTT 5 by name, such as content_type and user_properties."""
        return properties_object(self._block)

    def json(self) -> Any:
        """Return the payload as JSON; raises ValueError if it is none."""
        return json.loads(self.payload)


class UnusableTarget(Exception):  # noqa: N818 - named for the condition, as in eventstore.errors
    """There is no such class, or it is no sink; the text says why."""


def load_class(target: str, directory: str | None, options: Mapping[str, Any]) -> type[Any]:
    """Return the class ``module:Class``; raises UnusableTarget unless it can be made and sends."""
    if directory is not None:
        sys.path.insert(0, directory)
    module, _, name = target.partition(":")
    try:
        kind: type[Any] = getattr(importlib.import_module(module), name)
        inspect.signature(kind).bind(**options)
    except (Exception, SystemExit) as error:
        raise UnusableTarget(_text(error)) from error
    if not callable(getattr(kind, "send", None)):
        raise UnusableTarget("it has no method send")
    return kind


def check_class() -> None:
    """Exit with the reason if the class that standard input names cannot be used."""
    try:
        load_class(**orjson.loads(sys.stdin.buffer.read()))
    except UnusableTarget as error:
        sys.exit(str(error))


def run_host() -> None:
    """Run the class that the outbox names, until the outbox or the class ends it."""
    # A class that holds the interpreter's lock lets no thread notice that the outbox is gone.
    end_with_parent(signal.SIGKILL)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    asyncio.run(_run(connection))


async def _run(connection: socket.socket) -> None:
    frames: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(frame: tuple[Any, bytes]) -> None:
        loop.call_soon_threadsafe(frames.put_nowait, frame)

    # In a thread, since the class may block the event loop.
    threading.Thread(target=_read, args=(connection.makefile("rb"), put), daemon=True).start()
    request, _ = await frames.get()
    limit, hard = request["memory"], resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        await _serve(request, frames, connection)
    except UnusableTarget as error:
        _answer(connection, wrong=str(error))
        raise
    except BaseException as error:
        # Also sys.exit and MemoryError: a new process begins anew.
        _answer(connection, failed=_text(error))
        raise


def _read(stream: BufferedReader, put: Callable[[tuple[Any, bytes]], object]) -> None:
    """Read frames; when the outbox is gone, end the process and those that it has started."""
    try:
        while len(sizes := stream.read(SIZES.size)) == SIZES.size:
            head, body = SIZES.unpack(sizes)
            put((orjson.loads(stream.read(head)), stream.read(body)))
    finally:  # also if the connection was reset, or a frame needs too much memory
        os.killpg(0, signal.SIGKILL)


async def _serve(
    request: Mapping[str, Any],
    frames: asyncio.Queue[tuple[Any, bytes]],
    connection: socket.socket,
) -> None:
    options = request["options"]
    sink = load_class(request["target"], request["directory"], options)(**options)
    await _call(sink, "open")
    _answer(connection)
    while (frame := await frames.get())[0] is not None:
        messages = _messages(request["log"], *frame)
        refused = await _call(sink, "send", messages)
        _answer(connection, refused=_refusals(refused, messages))
    await _call(sink, "close")


async def _call(sink: Any, name: str, *arguments: Any) -> Any:
    method = getattr(sink, name, None)
    result = method(*arguments) if method is not None else None
    return await result if inspect.isawaitable(result) else result


def _messages(log: str, rows: list[Any], body: bytes) -> list[SinkMessage]:
    messages = []
    at = 0
    for position, topic, qos, retain, client, time_ms, payload, block in rows:
        end = at + payload
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
        messages.append(
            SinkMessage(
                *(f"{log}/{position}", topic, body[at:end], qos, retain, client, moment),
                body[end : end + block],
            )
        )
        at = end + block
    return messages


def _refusals(result: Any, messages: list[SinkMessage]) -> list[tuple[int, str]]:
    """Return the indices of the refused messages, and why."""
    indices = {message.id: index for index, message in enumerate(messages)}
    try:
        return [(indices[message.id], str(reason)[:_REASON]) for message, reason in result or ()]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TypeError(
            f"send returned {result!r:.100}: must be None, or refused messages as a list of "
            "(message, reason)"
        ) from None


def _answer(connection: socket.socket, **answer: Any) -> None:
    connection.sendall(SIZES.pack(len(data := orjson.dumps(answer)), 0) + data)


def _text(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
