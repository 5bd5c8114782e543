"""Structured logs on stderr: readable text, or one JSON object per line.

The broker logs through ``structlog.get_logger("foldmq")``. Values may contain data sent by clients,
so control characters, line breaks and direction marks are always escaped: a client cannot forge a
log line or control the reader's terminal.
"""

import asyncio
import io
import json
import logging
import os
import select
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from cli.common.text import printable

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]

_NUMBERS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class _Threshold:
    """The minimum level; one shared object, so that SIGHUP changes it for every logger."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = logging.INFO


_threshold = _Threshold()


class FilteringLogger(structlog.BoundLoggerBase):
    """A logger whose calls below the minimum level cost one comparison."""

    def debug(self, event: str, **values: object) -> None:
        """Log details for developers of foldmq."""
        if _threshold.number <= logging.DEBUG:
            self._proxy_to_logger("debug", event, **values)

    def info(self, event: str, **values: object) -> None:
        """Log a normal event."""
        if _threshold.number <= logging.INFO:
            self._proxy_to_logger("info", event, **values)

    def warning(self, event: str, **values: object) -> None:
        """Log a condition that an operator should check."""
        if _threshold.number <= logging.WARNING:
            self._proxy_to_logger("warning", event, **values)

    def error(self, event: str, **values: object) -> None:
        """Log an error."""
        self._proxy_to_logger("error", event, **values)

    def exception(self, event: str, **values: object) -> None:
        """Log an error with the traceback of the current exception."""
        self._proxy_to_logger("error", event, **{"exc_info": True, **values})

    critical = error


def dropped_text(count: int) -> str:
    """Return that so many lines were dropped."""
    lines = "1 line was" if count == 1 else f"{count} lines were"
    return f"{lines} dropped here, because stderr was not read"


class UnblockedStream(io.TextIOBase):
    """Writes to a descriptor whose reader may stop reading: without waiting, so text may be lost.

    Each text is written whole or not at all; :attr:`dropped` counts the lines that are lost, and a
    line says so once there is room again.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write where ``stream`` does."""
        self._stream = stream
        self._number = number = stream.fileno()
        self._rest = b""
        """The end of a text that was written in part."""
        self._said = 0
        """Dropped lines that the reader knows of."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._waits = False
        """Whether a write may wait for the reader."""
        self.dropped = 0
        self.notice: Callable[[int], str] = dropped_text
        """Returns the line that says how many were dropped."""
        mode = os.fstat(number).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(number))
        elif not stat.S_ISREG(mode):
            try:
                # A description of its own: other programs may share the other one.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._number = os.open(f"/proc/self/fd/{number}", flags)
            except OSError:
                self._waits = True

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write the text if the reader has room for it."""
        with self._lock:
            self._say_dropped()
            if not self._put(text.encode(self._stream.encoding or "utf-8", "backslashreplace")):
                self.dropped += text.count("\n")
        return len(text)

    def say_dropped(self) -> None:
        """Tell the reader of lines that were dropped, if there is room again."""
        if self._said < self.dropped or self._rest:
            with self._lock:
                self._say_dropped()

    def _say_dropped(self) -> None:
        count = self.dropped - self._said
        if count and self._put(f"{self.notice(count)}\n".encode()):
            self._said = self.dropped

    def _put(self, data: bytes) -> bool:
        """Write all of the data, the last part perhaps later; return False if nothing was."""
        if self._rest:
            self._rest = self._rest[self._written(self._rest) :]
            if self._rest:
                return False
        count = self._written(data)
        if 0 < count < len(data):
            self._rest = data[count:]
        return count > 0

    def _written(self, data: bytes) -> int:
        """Return the number of bytes that were written without waiting."""
        count = 0
        try:
            while count < len(data):
                if self._socket is not None:
                    count += self._socket.send(data[count:], socket.MSG_DONTWAIT)
                elif not self._waits:
                    count += os.write(self._number, data[count:])
                elif select.select((), (self._number,), (), 0)[1]:
                    # A pipe that has room at all has room for this much (pipe(7)).
                    count += os.write(self._number, data[count : count + select.PIPE_BUF])
                else:
                    break
        except OSError:
            # No room, or the reader is gone: the broker continues without a log.
            pass
        return count


def dropped_lines() -> int:
    """Return how many lines of stderr were dropped; tell its reader, if there is room again."""
    stream = sys.stderr
    if not isinstance(stream, UnblockedStream):
        return 0
    stream.say_dropped()
    return stream.dropped


async def report_dropped_lines() -> None:
    """Tell the reader of stderr about dropped lines every second, if there is room again."""
    while True:
        await asyncio.sleep(1.0)
        dropped_lines()


class _Output:
    """Writes the finished lines of structlog; looks up stderr late, because tests replace it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def _write(self, line: str) -> None:
        stream = self._stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            # The reader of the log is gone (closed pipe): the broker continues without a log.
            return

    debug = info = warning = error = _write


def configure(
    level: Level,
    format: Format,  # noqa: A002 -- the setting's name
    stream: TextIO | None = None,
    complete: Callable[[str], str] = str,
) -> None:
    """Send all logs, also those of libraries, to ``stream`` (stderr) in ``format``.

    ``complete`` completes the commands that an event or its advice suggests.
    """

    def complete_commands(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        for name in ("event", "advice", "reason"):
            if name in event:
                event[name] = complete(str(event[name]))
        return event

    set_level(level)
    if stream is None and sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = UnblockedStream(sys.stderr)
    output = stream or sys.stderr
    colour = output.isatty() and not os.environ.get("NO_COLOR")
    renderer: Processor = render_json if format == "json" else TextRenderer(colour=colour)
    if isinstance(sys.stderr, UnblockedStream):
        sys.stderr.notice = partial(_notice, renderer)
    structlog.configure(
        processors=[
            _name_level,
            _shorten,
            complete_commands,
            _format_exception,
            _STAMP,
            renderer,
        ],
        wrapper_class=FilteringLogger,
        logger_factory=lambda *_: _Output(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_FromStdlib()], level=logging.WARNING, force=True)


def _notice(renderer: Processor, count: int) -> str:
    event: EventDict = {"event": dropped_text(count), "level": "warning"}
    return str(renderer(None, "warning", _STAMP(None, "warning", event)))


def set_level(level: Level) -> None:
    """Change the level of every logger, including those in use."""
    _threshold.number = _NUMBERS[level]


LONGEST_VALUE = 1000
"""Maximum number of characters logged of a value."""

_STAMP = structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True)


def _name_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["level"] = method
    return event


def _shorten(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Shorten long values: a client identifier may have 64 KiB."""
    for name, value in event.items():
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            event[name] = f"{value[:LONGEST_VALUE]}... ({len(value)} characters)"
    return event


def _format_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    elif isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        event["exception"] = "".join(traceback.format_exception(info)).rstrip("\n")
    return event


def render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Return one line of JSON in ASCII; all other characters are escaped."""
    first = {key: event.pop(key) for key in ("timestamp", "level", "event")}
    return json.dumps({**first, **event}, default=_readable, ensure_ascii=True)


class TextRenderer:
    """Renders lines such as ``2026-01-31T12:00:00.000Z info    client connected  client=a1``."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(
        self, _logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]
    ) -> str:
        """Render one event."""
        stamp = str(event.pop("timestamp"))
        level = str(event.pop("level"))
        title = printable(str(event.pop("event")))
        exception = event.pop("exception", None)
        parts = [
            self._paint(_DIM, f"{stamp[:23]}Z"),
            self._paint(_COLOURS[level], f"{level:<7}"),
            self._paint(_BOLD, title),
            *self._pairs(event),
        ]
        line = " ".join(parts)
        if exception is not None:
            # Indented, so that the text of an exception cannot look like a log line.
            line += "".join(f"\n    {printable(row)}" for row in str(exception).split("\n"))
        return line

    def _pairs(self, values: Mapping[str, Any]) -> list[str]:
        return [self._paint(_DIM, f"{key}=") + quoted(value) for key, value in values.items()]

    def _paint(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._colour else text


def quoted(value: object) -> str:
    """Return ``value`` as one word, or in double quotes if it is not one."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = _readable(value)
    if text and text.isprintable() and not any(mark in text for mark in ' "=\\'):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _readable(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


class _FromStdlib(logging.Handler):
    """Passes messages logged through ``logging`` (asyncio, nats) to the same output."""

    def emit(self, record: logging.LogRecord) -> None:
        level = {name for name, number in _NUMBERS.items() if number == record.levelno}
        write = getattr(structlog.get_logger("foldmq"), level.pop() if level else "error")
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info)
