"""The sink ``python``: a class of the user's, in a process of its own.

Whatever the class does harms only its process: each failure ends that, and the next attempt starts
a new one.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from eventstore.display import escaped
from eventstore.format.positions import Position, format_position
from eventstore.task_cancellation import end_tasks
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.python_host import SIZES

_log = structlog.get_logger("foldmq")

_CODE: Final = "import foldmq; from outbox.sinks.python_host import {0}; {0}()"
"""The module ``foldmq`` finds the packages of an installation."""
_CLOSE_SECONDS = 2.0
_CHECK_SECONDS = 30.0
_REASON = 200
"""Maximum number of characters of a reason that are recorded."""
_LARGEST_ANSWER = 16 * 1024 * 1024
_OUTPUT_LINES, _OUTPUT_SECONDS = 100, 60.0
"""So many lines that a class prints are logged in this time; others are dropped."""
_OUTPUT_PIECE = 4096


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """Which class runs, and its bounds."""

    target: str
    """``module:Class``."""
    directory: Path | None = None
    """Where its module is, besides the installed packages."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name for the class."""
    timeout: float = 30.0
    """Seconds for a start and for each batch."""
    memory: int = 512 * 1024 * 1024
    """Bytes of data that the process may have."""


class PythonSink:
    """Passes batches to a class in a process, one at a time."""

    def __init__(self, options: PythonOptions) -> None:
        self._options = options
        self._name = self._log = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._output: asyncio.Task[None] | None = None
        self._answered: dict[Position, str | None] = {}
        """Why messages are refused, None if stored, while refusals of their batch are recorded."""

    async def open(self, about: Destination) -> None:
        """Start the process."""
        self._name, self._log = about.name, about.log
        self._answered = {}
        await self.close()
        await self._start()

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Return when the class has stored a batch."""
        asked = [message for message in batch if message.at not in self._answered]
        if asked:
            if self._process is None:
                await self._start()
            answer = await self._exchange(
                *_frame(asked), sealed=any(message.key for message in asked)
            )
            self._answered = dict.fromkeys((message.at for message in asked), None)
            for index, reason in answer["refused"]:
                self._answered[asked[index].at] = escaped(reason, _REASON)
        for message in batch:
            reason = self._answered[message.at]
            if reason is not None:
                same = [each.at for each in batch if self._answered[each.at] == reason]
                raise RefusedMessages(reason, at=same)
        self._answered = {}

    async def close(self) -> None:
        """Let the class close what it has opened, and end its process."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(OSError, TimeoutError):
                self._writer.write(SIZES.pack(4, 0) + b"null")
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await process.wait()
        await self._end()

    async def _start(self) -> None:
        options = self._options
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _CODE.format("run_host"), str(theirs.fileno())),
                f"sink:{self._name}",
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # what the class starts is killed with it
                env=_environment(),
                cwd=_directory(options),
            )
        except OSError as error:
            reason = f"cannot start its process: {error.strerror}"
            raise TryAgain(reason, misconfigured=True) from None
        finally:
            theirs.close()
            if self._process is None:
                self._writer.close()
        if self._process.stdout is not None:
            self._output = asyncio.create_task(_log_output(self._name, self._process.stdout))
        request = {
            "target": options.target,
            "directory": _directory(options),
            "options": dict(options.options),
            "memory": options.memory,
            "log": self._log,
        }
        await self._exchange(orjson.dumps(request))

    async def _exchange(
        self, head: bytes, body: bytes = b"", *, sealed: bool = False
    ) -> dict[str, Any]:
        """Send a frame and return the answer; raises TryAgain, without a process, if it failed.

        ``sealed``: the text of an exception is not repeated, for it may quote the content.
        """
        seconds = self._options.timeout
        is_done = False
        try:
            async with asyncio.timeout(seconds):
                self._writer.writelines((SIZES.pack(len(head), len(body)), head, body))
                await self._writer.drain()
                sizes = await self._reader.readexactly(SIZES.size)
                size = min(SIZES.unpack(sizes)[0], _LARGEST_ANSWER)
                answer: dict[str, Any] = orjson.loads(await self._reader.readexactly(size))
            is_done = not {"wrong", "failed"} & answer.keys()
        except TimeoutError:
            raise TryAgain(f"{self._options.target} did not return within {seconds:g} s") from None
        except (OSError, EOFError, ValueError, RuntimeError):  # the last one from uvloop
            raise TryAgain(f"its process ended: {await self._ended()}") from None
        finally:
            if not is_done:
                await self._end()
        if not is_done:
            reason = answer.get("wrong") or answer["failed"]
            if sealed:
                reason = reason.partition(":")[0]
            raise TryAgain(
                f"{self._options.target}: {escaped(reason, _REASON)}",
                misconfigured="wrong" in answer,
            )
        return answer

    async def _ended(self) -> str:
        """Return how the process ended."""
        code: int | None = None
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    code = await self._process.wait()
        if code is None:
            return "it closed its connection"
        return f"exit {code}" if code >= 0 else f"signal {-code}"

    async def _end(self) -> None:
        """End the process and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        self._writer.close()
        if self._output is not None:
            await asyncio.wait([self._output], timeout=_CLOSE_SECONDS)
            await end_tasks([self._output])


def check_target(options: PythonOptions) -> str:
    """Return why a class cannot be used, found in a process; empty if it can."""
    directory = _directory(options)
    request = {
        "target": options.target,
        "directory": directory,
        "options": dict(options.options),
    }
    try:
        process = subprocess.run(  # noqa: S603 - the operator names the class
            [sys.executable, "-P", "-c", _CODE.format("check_class")],
            input=orjson.dumps(request),  # not arguments, which all users of the machine can see
            capture_output=True,
            check=False,
            timeout=_CHECK_SECONDS,
            env=_environment(),
            cwd=directory,
        )
    except subprocess.TimeoutExpired:
        return f"its module was not imported within {_CHECK_SECONDS:g} s"
    except OSError as error:
        return f"directory: {error.strerror}"
    if process.returncode == 0:
        return ""
    lines = process.stderr.decode("utf-8", "replace").splitlines()
    return escaped(lines[-1], _REASON) if lines else f"exit {process.returncode}"


def _directory(options: PythonOptions) -> str | None:
    return str(options.directory.absolute()) if options.directory is not None else None


def _frame(batch: Sequence[OutboxMessage]) -> tuple[bytes, bytes]:
    rows = [
        (
            *(format_position(message.position), message.topic, message.qos, message.retain),
            *(message.client, message.time_ms, len(message.payload), len(message.block)),
        )
        for message in batch
    ]
    return orjson.dumps(rows), b"".join(
        part for message in batch for part in (message.payload, message.block)
    )


def _environment() -> dict[str, str]:
    """Return the environment without the broker's settings, which may be secrets."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FOLDMQ_")}
    return variables | {"PYTHONUNBUFFERED": "1"}


async def _log_output(name: str, stream: asyncio.StreamReader) -> None:
    """Log what the class prints, within bounds."""
    clock = asyncio.get_running_loop().time
    begun, count, remainder = clock(), 0, b""
    while piece := await stream.read(_OUTPUT_PIECE):
        *lines, remainder = (remainder + piece).split(b"\n")
        if len(remainder) > _OUTPUT_PIECE:
            lines, remainder = [*lines, remainder], b""
        if clock() - begun > _OUTPUT_SECONDS:
            begun, count = clock(), 0
        for line in lines[: _OUTPUT_LINES - count]:
            _log.info(
                "output of a sink", to=name, line=escaped(line.decode("utf-8", "replace"), 500)
            )
        count = min(_OUTPUT_LINES, count + len(lines))
