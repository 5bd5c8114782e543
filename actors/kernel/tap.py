"""How the kernel and a connection tell somebody what an actor does: the tap of that actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.kernel.kernel import LoopActor
    from actors.tracing.recorder import Lookout
    from actors.tracing.trace import Trace


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


class ActorTap:
    """What one actor does goes to the traces that cover it."""

    __slots__ = ("_lookout", "traces")

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self.traces: list[Trace] = []

    def begin(self, actor: LoopActor) -> None:
        """See what the actor sends from now on."""
        self._lookout.begin(actor, self)

    def end(self, _actor: LoopActor) -> None:
        """See no more what is sent."""
        self._lookout.end()

    def gets(self, actor: LoopActor, message: Any) -> None:
        """Show a message that the actor is about to handle."""
        self._lookout.quietly(self._lookout.on_gets, actor, self.traces, message)

    def ended(self, actor: LoopActor, error: Exception | None) -> None:
        """Show that the actor stopped or failed."""
        self._lookout.quietly(self._lookout.on_ended, actor, self.traces, error)

    def took(self, actor: LoopActor, packets: Sequence[Any], error: Exception | None) -> None:
        """Show the packets that a client sent."""
        self._lookout.quietly(self._lookout.on_took, actor, self.traces, packets, error)

    def wrote(self, actor: LoopActor, data: bytes) -> None:
        """Show the packets that leave for the client."""
        self._lookout.quietly(self._lookout.on_wrote, actor, self.traces, data)

    def closes(self, actor: LoopActor, reason: str) -> None:
        """Show that a connection ends."""
        self._lookout.quietly(self._lookout.on_closes, actor, self.traces, reason)
