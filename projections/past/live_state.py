"""The state that a running broker reports: digests, page by page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from eventstore.format.positions import Position

if TYPE_CHECKING:
    from projections.state.session import SessionState


@dataclass(slots=True)
class LivePage:
    """Digests as of a position; None for sessions and messages that no longer existed."""

    bound: Position
    """Position of the page: the digests include everything before it."""
    sessions: dict[str, int | None]
    retained: dict[str, int | None]


@dataclass(slots=True)
class LiveState:
    """The whole answer of a broker."""

    node: str
    begun: Position
    """Position from which every existing session and topic is on a page."""
    pages: list[LivePage] = field(default_factory=list)
    sessions: int = 0
    retained: int = 0

    @property
    def end(self) -> Position:
        """The position of the last page."""
        return self.pages[-1].bound if self.pages else self.begun


@dataclass(slots=True)
class LiveSession:
    """A session in the state of the broker."""

    bound: Position
    state: SessionState | None
    """None: there is no such session, or it cannot be read."""
    digest: int | None
    pending: list[Any] | None


class LiveStateSource(Protocol):
    """A running broker that reports its state; implementations document their errors."""

    async def all(self) -> LiveState:
        """Return the digests of all sessions and retained messages."""

    async def session(self, name: str) -> LiveSession:
        """Return the current state of a session."""

    async def retained(self, topic: str) -> tuple[Position, dict[str, Any] | None]:
        """Return the current retained message of a topic: QoS, position, size and digest."""

    async def until_stored(self, bound: Position) -> int:
        """Wait until the log contains everything before a position; return the last record to read.

        That is the record in which the turn ends.
        """
