"""Structured logs on stderr: readable text or one JSON object a line.

The broker logs through ``structlog.get_logger("foldmq")``. Values may hold what a client sent, so
no control character, line break or direction mark reaches the output unescaped: nobody forges a
log line or drives the terminal of its reader.
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
    """The level below which nothing is logged; one object, so that SIGHUP reaches every logger."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = logging.INFO


_threshold = _Threshold()


class FilteringLogger(structlog.BoundLoggerBase):
    """A logger whose calls below the threshold cost one comparison."""

    def debug(self, event: str, **values: object) -> None:
        """Log what only a developer of foldmq wants to see."""
        if _threshold.number <= logging.DEBUG:
            self._proxy_to_logger("debug", event, **values)

    def info(self, event: str, **values: object) -> None:
        """Log what happens in normal service."""
        if _threshold.number <= logging.INFO:
            self._proxy_to_logger("info", event, **values)

    def warning(self, event: str, **values: object) -> None:
        """Log what an operator should look at."""
        if _threshold.number <= logging.WARNING:
            self._proxy_to_logger("warning", event, **values)

    def error(self, event: str, **values: object) -> None:
        """Log what went wrong."""
        self._proxy_to_logger("error", event, **values)

    def exception(self, event: str, **values: object) -> None:
        """Log what went wrong with the traceback of the exception being handled."""
        self._proxy_to_logger("error", event, **{"exc_info": True, **values})

    critical = error


class _Output:
    """What structlog hands finished lines to; stderr is looked up late, tests replace it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def _write(self, line: str) -> None:
        stream = self._stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            # The reader of the log has gone (closed pipe); the broker serves on without it.
            return

    debug = info = warning = error = _write


def configure(level: Level, format: Format, stream: TextIO | None = None) -> None:  # noqa: A002 -- the setting's name
    """Send all logs, those of libraries too, to ``stream`` (stderr) in ``format``."""
    set_level(level)
    output = stream or sys.stderr
    colour = output.isatty() and "NO_COLOR" not in os.environ
    renderer: Processor = render_json if format == "json" else TextRenderer(colour=colour)
    structlog.configure(
        processors=[_name_level, _shorten, _format_exception, _STAMP, renderer],
        wrapper_class=FilteringLogger,
        logger_factory=lambda *_: _Output(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_FromStdlib()], level=logging.WARNING, force=True)


def set_level(level: Level) -> None:
    """Change the level of every logger, those in use included."""
    _threshold.number = _NUMBERS[level]


LONGEST_VALUE = 1000
"""Characters of a value that are logged."""

_STAMP = structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True)


def _name_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["level"] = method
    return event


def _shorten(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Cut what a client made too long to read: its identifier may have 64 KiB."""
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
    """Return one line of JSON, all of it ASCII: every other character is escaped as JSON does."""
    first = {key: event.pop(key) for key in ("timestamp", "level", "event")}
    return json.dumps({**first, **event}, default=_readable, ensure_ascii=True)


class TextRenderer:
    """Gives lines like ``2026-01-31T12:00:00.000Z info    client connected  client=a1``."""

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
            # Indented, so that text inside an exception never looks like a line of its own.
            line += "".join(f"\n    {printable(row)}" for row in str(exception).split("\n"))
        return line

    def _pairs(self, values: Mapping[str, Any]) -> list[str]:
        return [self._paint(_DIM, f"{key}=") + quoted(value) for key, value in values.items()]

    def _paint(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._colour else text


def printable(text: str) -> str:
    """Return ``text`` with everything that is not printable as a JSON escape."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


def quoted(value: object) -> str:
    """Return ``value`` as one word, or in double quotes when it is not one."""
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
    """Carries what libraries log through ``logging`` (asyncio, nats) into the same output."""

    def emit(self, record: logging.LogRecord) -> None:
        level = {name for name, number in _NUMBERS.items() if number == record.levelno}
        write = getattr(structlog.get_logger("foldmq"), level.pop() if level else "error")
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info)
