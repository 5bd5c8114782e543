"""How the kernel and a connection show what an actor does: the tap of that actor.

An actor has a tap while it is traced. While the actor runs, its tap is the kernel's observer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.actor import LoopActor


class Tap(Protocol):
    """Sees what an actor does; it must not raise."""

    def begin(self, actor: LoopActor) -> None:
        """Take note that the actor is about to handle messages."""

    def gets(self, actor: LoopActor, message: Any) -> None:
        """Take note of the message that the actor is about to handle."""

    def sends(self, target: LoopActor, message: Any) -> None:
        """Take note of a message that the actor tells another one."""

    def end(self, actor: LoopActor) -> None:
        """Take note that the actor has handled what it could, or failed."""

    def ended(self, actor: LoopActor, error: Exception | None) -> None:
        """Take note that the actor stopped, or failed with an error."""

    def took(self, actor: LoopActor, packets: Sequence[Any], error: Exception | None) -> None:
        """Take note of packets that came over the actor's connection."""

    def wrote(self, actor: LoopActor, data: bytes) -> None:
        """Take note of bytes that leave over the actor's connection."""

    def closes(self, actor: LoopActor, reason: str) -> None:
        """Take note that the actor's connection ends."""
