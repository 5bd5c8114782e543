"""The observer of an actor: the kernel and a connection report the actor's actions to it.

An actor has an observer while it is traced. While the actor runs, the kernel also refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from actors.kernel.actor import LoopActor


class ActorObserver(Protocol):
    """Observes an actor; it must not raise."""

    def begin(self, actor: LoopActor) -> None:
        """Record that the actor is about to handle messages."""

    def gets(self, actor: LoopActor, message: Any) -> None:
        """Record the message that the actor is about to handle."""

    def sends(self, target: LoopActor, message: Any) -> None:
        """Record a message that the actor sends to another one."""

    def end(self, actor: LoopActor) -> None:
        """Record that the actor has handled its messages, or failed."""

    def ended(self, actor: LoopActor, error: Exception | None) -> None:
        """Record that the actor stopped, or failed with an error."""

    def took(self, actor: LoopActor, packets: Sequence[Any], error: Exception | None) -> None:
        """Record packets received by the actor's connection."""

    def wrote(self, actor: LoopActor, data: bytes) -> None:
        """Record bytes sent by the actor's connection."""

    def closes(self, actor: LoopActor, reason: str) -> None:
        """Record that the actor's connection ends."""
