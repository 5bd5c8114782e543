"""Where reading begins and ends: a position or a time (``from``, ``until``), or Kafka's offsets.

Either is one for all logs, or one for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Final

from eventstore.format.positions import MAX_INDEX
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.position_text import PointSpec, parse_point
from spark.runtime.marked_errors import BadOption


@dataclass(frozen=True, slots=True)
class PointOption:
    """A bound of reading: one moment for all logs, or one for each; None: no bound."""

    everywhere: PointSpec | None = None
    each: Mapping[str, PointSpec] = field(default_factory=dict)

    @classmethod
    def read(cls, option: str, text: str | None) -> PointOption:
        """Read an option; raises BadOption.

        The number of a record denotes all of it: in ``until`` its last position, in ``from`` its
        first. A time without a zone is UTC.
        """
        if text is None or not text.strip():
            return cls()
        if not text.lstrip().startswith("{"):
            return cls(_moment(option, text))
        try:
            places = json.loads(text)
            return cls(
                each={stream: _moment(option, str(place)) for stream, place in places.items()}
            )
        except (ValueError, AttributeError):
            raise BadOption(f"{option} is not a JSON object of logs and positions") from None

    @property
    def given(self) -> bool:
        """Whether a moment is set."""
        return self.everywhere is not None or bool(self.each)

    def of(self, stream: str) -> PointSpec | None:
        """Return the moment for a log."""
        return self.each.get(stream, self.everywhere)


EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets for the beginning and the end of a log, as in Kafka."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """The options ``startingOffsets`` and ``endingOffsets``, with the meaning that Kafka's have.

    An offset is the sequence of a record: the first one to read, or the first one not to read.
    """

    name: str
    everywhere: int | None = None
    """For the logs that have none of their own; None: the default."""
    each: Mapping[str, int] = field(default_factory=dict)
    """By node, or by the name of the log."""

    @classmethod
    def read(cls, name: str, text: str | None) -> OffsetOption:
        """Read an option; raises BadOption."""
        if text is None or not text.strip():
            return cls(name)
        text = text.strip()
        if text in _WORDS or text.isdecimal():
            return cls(name, _WORDS.get(text) or max(1, int(text)))
        try:
            offsets = json.loads(text)
            each = {log: cls._offset(value) for log, value in offsets.items()}
        except (ValueError, TypeError, AttributeError):
            raise BadOption(
                f"{name} = {text!a:.100}: expected earliest, latest, the sequence of a record, or "
                'one for each node such as {"n1": 12, "n2": -2}, with -2 for earliest and -1 for '
                "latest"
            ) from None
        return cls(name, each.pop("*", None), each)

    @staticmethod
    def _offset(value: object) -> int:
        """Return an offset; raise ValueError unless it is one."""
        if isinstance(value, str):
            value = _WORDS.get(value, value)
        if type(value) is not int or value < EARLIEST:
            raise ValueError(value)
        return value or 1

    @property
    def given(self) -> bool:
        """Whether the option is set."""
        return self.everywhere is not None or bool(self.each)

    def of(self, stream: str) -> int | None:
        """Return the offset for a log."""
        node = stream.removeprefix(LOG_STREAM_PREFIX)
        return self.each.get(stream, self.each.get(node, self.everywhere))

    def reject(self, offset: int, why: str) -> None:
        """Raise BadOption if some log has this offset."""
        if offset in (self.everywhere, *self.each.values()):
            word = next(word for word, value in _WORDS.items() if value == offset)
            raise BadOption(f"{self.name} = {word}: {why}")


def _moment(option: str, text: str) -> PointSpec:
    moment = parse_point(text, UTC, MAX_INDEX if option == "until" else 0)
    if moment is None:
        raise BadOption(
            f"{option} = {text.strip()!a}: expected a position such as 12 or 12.3, or a time such "
            "as 2026-11-20T09:30:00Z"
        )
    return moment
