"""Errors of foldmq that pass through Spark: one line each, with a mark to find them again.

Spark's Python workers send an exception as text, with a traceback, inside other exceptions. The
mark lets the driver show the one relevant line.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from eventstore.errors import SALVAGE, CorruptLog, UnknownLogFormat
from protocol.errors import FoldmqError

_MARK: Final = "FOLDMQ-ERROR "

Item = TypeVar("Item")


class BadOption(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """An option of the data source is wrong."""

    exit_code = 64


class OtherLog(FoldmqError):  # noqa: N818
    """An archive has a different history from the log of that name."""

    exit_code = 65


class SparkFailure(FoldmqError):  # noqa: N818
    """A foldmq error that passed through Spark."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.exit_code = exit_code


class MarkedError(Exception):
    """An error with the mark that :func:`find_error` looks for."""

    def __init__(self, error: FoldmqError) -> None:
        code = error.exit_code
        super().__init__(_MARK + json.dumps({"code": code, "line": " ".join(str(error).split())}))


@contextmanager
def name_log_in_errors(stream: str) -> Iterator[None]:
    """Add the name of the log to errors about its content."""
    try:
        yield
    except CorruptLog as error:
        # a part of the log was read, perhaps without its beginning: is that part intact?
        what = f"the log is damaged: record {error.sequence} {error.what}"
        help_ = f"restore a backup, or continue with the intact part: {SALVAGE}"
        raise SparkFailure(f"log {stream}: {what}; {help_}", error.exit_code) from None
    except FoldmqError as error:
        from eventstore.format.event_parsing import (
            UnreadableEvent,  # not before: it takes long to import
        )

        if not isinstance(error, (UnreadableEvent, UnknownLogFormat)):
            raise
        raise SparkFailure(f"log {stream}: {error}", error.exit_code) from None


@contextmanager
def mark_errors() -> Iterator[None]:
    """Mark foldmq's errors that leave the block; for code that Spark's workers run.

    A worker then sends the error without a traceback, which would not help the user.
    """
    try:
        yield
    except FoldmqError as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise MarkedError(error) from None


def marked_iterator(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items; mark foldmq's errors."""
    with mark_errors():
        yield from items


def find_error(error: object) -> SparkFailure | None:
    """Return the marked error in a text or an exception of Spark; None if there is none."""
    text = str(error)
    at = text.find(_MARK)
    while at >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, at + len(_MARK))
            return SparkFailure(str(value["line"]), int(value["code"]))
        except (ValueError, KeyError, TypeError):
            at = text.find(_MARK, at + 1)
    return None
