"""The state that a running broker says it has: digests, page by page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from eventstore.format import Position
    from projections.state import SessionState


@dataclass(slots=True)
class LivePage:
    """Digests as of a position; None for what had ended by then."""

    bound: Position
    """All before it had happened."""
    sessions: dict[str, int | None]
    retained: dict[str, int | None]


@dataclass(slots=True)
class LiveState:
    """All that a broker answered."""

    node: str
    begun: Position
    """Every session and topic that existed then is on a page."""
    pages: list[LivePage] = field(default_factory=list)
    sessions: int = 0
    retained: int = 0

    @property
    def end(self) -> Position:
        """The position of the last page."""
        return self.pages[-1].bound if self.pages else self.begun


@dataclass(slots=True)
class LiveSession:
    """A session as the broker has it."""

    bound: Position
    state: SessionState | None
    """None: no such session, or it cannot be read."""
    digest: int | None
    pending: list[Any] | None


class LiveStateSource(Protocol):
    """A running broker that answers for its state; an implementation tells how it may fail."""

    async def all(self) -> LiveState:
        """Return the digests of all sessions and retained messages."""

    async def session(self, name: str) -> LiveSession:
        """Return a session as it is now."""

    async def retained(self, topic: str) -> tuple[Position, dict[str, Any] | None]:
        """Return a retained message as it is now: QoS, position, size and digest."""

    async def until_stored(self, bound: Position) -> int:
        """Wait until the log holds all before a position; return the record to read up to."""


def digest_number(digest: str) -> int:
    """Return a digest, hexadecimal digits, as a number: millions of them are kept."""
    return int(digest, 16)
