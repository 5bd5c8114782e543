"""Structured logs on stderr: readable text, or one JSON object per line.

The broker logs through ``structlog.get_logger("foldmq")``. Values may contain data sent by clients,
so control characters, line breaks and direction marks are always escaped: a client cannot forge a
log line or control the reader's terminal.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping, MutableMapping
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


def configure(level: Level, format: Format, stream: TextIO | None = None) -> None:  # noqa: A002 -- the setting's name
    """Send all logs, also those of libraries, to ``stream`` (stderr) in ``format``."""
    set_level(level)
    output = stream or sys.stderr
    colour = output.isatty() and not os.environ.get("NO_COLOR")
    renderer: Processor = render_json if format == "json" else TextRenderer(colour=colour)
    structlog.configure(
        processors=[_name_level, _shorten, _format_exception, _STAMP, renderer],
        wrapper_class=FilteringLogger,
        logger_factory=lambda *_: _Output(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_FromStdlib()], level=logging.WARNING, force=True)


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
