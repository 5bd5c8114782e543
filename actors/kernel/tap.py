"""How the kernel and a connection tell somebody what an actor does: the tap of that actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.kernel.kernel import LoopActor


class Tap(Protocol):
    """Sees what an actor does; it must not raise."""

    def begin(self, actor: LoopActor) -> None:
        """Take note that the actor is about to handle messages."""

    def gets(self, actor: LoopActor, message: Any) -> None:
        """Take note of the message that the actor is about to handle."""

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


class Watched(list[Any]):
    """A mailbox that tells of each message before it is handled: when it is first gone through."""

    __slots__ = ("_tell",)

    def __init__(self, messages: list[Any], tell: Callable[[Any], None]) -> None:
        super().__init__(messages)
        self._tell: Callable[[Any], None] | None = tell

    def __iter__(self) -> Iterator[Any]:
        tell, self._tell = self._tell, None
        for message in super().__iter__():
            if tell is not None:
                tell(message)
            yield message
