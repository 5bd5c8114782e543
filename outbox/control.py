"""What the outbox asks of the broker: where destinations are, and to record how far they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from eventstore.format.positions import Position, to_runs


@dataclass(frozen=True, slots=True)
class RecordedCursor:
    """A destination as the log has it."""

    run: Position
    through: Position
    received: Position
    number: int
    paused: bool
    retry: tuple[Position, ...] = ()
    """Refused messages that an operator wants to be sent again."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RecordedCursor:
        """Return the cursor in an answer of the broker."""
        return cls(
            *(row["run"], row["through"], row["received"], row["number"], row["paused"]),
            tuple(row.get("retry", ())),
        )


class Refusal(NamedTuple):
    """A message that a destination refused, with its answer."""

    ref: Position
    settled: Position
    """A cursor from here on is behind the message: it is not sent again after a crash."""
    number: int
    """Number of messages that were due up to there."""
    reason: str
    code: int


class LostMessages(NamedTuple):
    """Messages that are not sent: all that are due in a range of positions."""

    after: Position
    """Position before the range."""
    until: Position
    messages: int
    reason: str
    """cut: the log no longer has them; erased: their content was erased."""
    number: int = 0
    """Number of the last one among those that are due; 0: it is not known."""

    def precedes(self, other: LostMessages) -> bool:
        """Return whether no message that is due is between the two."""
        if self.reason != other.reason:
            return False
        return other.after == self.until or 0 < self.number == other.number - other.messages


@dataclass(slots=True)
class Progress:
    """What is to be recorded of a destination, and what is to be shown of it."""

    through: Position = 0
    received: Position = 0
    number: int = 0
    count: int = 0
    """Number of messages stored since the last report."""
    reset: bool = False
    """Whether ``received`` is lower than before: a receiver lost what it had."""
    lost: list[LostMessages] = field(default_factory=list)
    """Messages that cannot be sent."""
    retried: list[Position] = field(default_factory=list)
    """Refused messages that were stored now, or no longer exist."""

    def request(
        self, name: str, run: Position, shown: Mapping[str, Any], refusals: Iterable[Refusal]
    ) -> dict[str, Any]:
        """Return the request to the broker; ``shown`` is what operators see."""
        groups: dict[tuple[str, int], list[Position]] = {}
        for each in refusals:
            groups.setdefault((each.reason, each.code), []).append(each.ref)
        return {
            "do": "forwarded",
            "by": "outbox",
            "to": name,
            "run": run,
            "through": self.through,
            "received": self.received,
            "reset": self.reset,
            "number": self.number,
            "count": self.count,
            "refused": [[to_runs(refs), *answer] for answer, refs in groups.items()],
            "lost": [list(each[:4]) for each in self.lost],
            "retried": self.retried,
            "shown": dict(shown),
        }


class BrokerUnavailable(Exception):  # noqa: N818 - it is an answer, not an error
    """The broker does not answer now."""


class BrokerControl(Protocol):
    """Requests to the broker of the log."""

    async def cursors(self) -> dict[str, RecordedCursor]:
        """Return all destinations of the log by name. Raises BrokerUnavailable."""

    async def record(self, request: Mapping[str, Any]) -> RecordedCursor:
        """Record progress; return what the log has then. Raises BrokerUnavailable.

        A cursor that is behind that of the log, or of another run, is not recorded.
        """
