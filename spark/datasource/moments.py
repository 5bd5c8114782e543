"""Places in logs as options name them: a position, a time, or a position for each log."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from eventstore.format import MAX_INDEX, Position, parse_position, position
from spark.runtime.marked_errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Mapping

_POSITION: Final = re.compile(r"[0-9]{1,13}(\.[0-9]{1,7})?")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """A position, or a time in Unix milliseconds; exactly one of both is set."""

    text: str
    position: Position | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Moments:
    """Where reading begins or ends: one moment for all logs, or one for each; None: anywhere."""

    everywhere: Moment | None = None
    each: Mapping[str, Moment] = field(default_factory=dict)

    @classmethod
    def read(cls, option: str, text: str | None) -> Moments:
        """Read an option; raises BadOption.

        A record's number alone stands for all of it: in ``until`` for its last position, in
        ``from`` for its first. A time without a zone is UTC.
        """
        if text is None or not text.strip():
            return cls()
        if not text.lstrip().startswith("{"):
            return cls(_moment(option, text))
        try:
            given = json.loads(text)
            return cls(
                each={stream: _moment(option, str(place)) for stream, place in given.items()}
            )
        except (ValueError, AttributeError):
            raise BadOption(f"{option} is not a JSON object of logs and positions") from None

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return self.everywhere is not None or bool(self.each)

    def of(self, stream: str) -> Moment | None:
        """Return the moment for a log."""
        return self.each.get(stream, self.everywhere)

    @staticmethod
    def offsets(text: str | None) -> Mapping[str, int]:
        """Read where a stream begins; gives of each log, ``*`` for all, the last one not to read.

        It is ``earliest``, ``latest`` (-1), the sequence of the first record to read, or a JSON
        object as in a checkpoint, of the last ones not to read.
        """
        if text is None or text == "earliest":
            return {}
        if text == "latest":
            return {"*": -1}
        try:
            if text.isdecimal():
                return {"*": max(0, int(text) - 1)}
            return {str(stream): int(sequence) for stream, sequence in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError):
            raise BadOption(
                "startingOffset is neither earliest nor latest, nor a sequence, nor a JSON object "
                'of logs and the last sequences not to read, such as {"FOLDMQ_LOG_a": 12}'
            ) from None


def _moment(option: str, text: str) -> Moment:
    text = text.strip()
    if _POSITION.fullmatch(text):
        whole = "." not in text
        try:
            if whole:
                return Moment(text, position(int(text), MAX_INDEX if option == "until" else 0))
            return Moment(text, parse_position(text))
        except ValueError:
            pass
    else:
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return Moment(text, time_ms=(moment - _EPOCH) // timedelta(milliseconds=1))
        except (ValueError, OverflowError):
            pass
    raise BadOption(
        f"{option} = {text!a}: expected a position such as 12 or 12.3, or a time such as "
        "2026-11-20T09:30:00Z"
    )
