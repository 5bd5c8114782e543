"""The options ``from`` and ``until``: a position, a time, or a position for each log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING

from eventstore.format import MAX_INDEX, PointSpec, parse_point
from spark.runtime import BadOption

if TYPE_CHECKING:
    from collections.abc import Mapping


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
            given = json.loads(text)
            return cls(
                each={stream: _moment(option, str(place)) for stream, place in given.items()}
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

    @staticmethod
    def offsets(text: str | None) -> Mapping[str, int]:
        """Read the start of a stream; return the last record not to read by log, ``*`` for all.

        It is ``earliest``, ``latest`` (-1), the sequence of the first record to read, or a JSON
        object as in a checkpoint, with the last sequences not to read.
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


def _moment(option: str, text: str) -> PointSpec:
    moment = parse_point(text, UTC, MAX_INDEX if option == "until" else 0)
    if moment is None:
        raise BadOption(
            f"{option} = {text.strip()!a}: expected a position such as 12 or 12.3, or a time such "
            "as 2026-11-20T09:30:00Z"
        )
    return moment
