"""References to actors of a kernel, and the futures of their answers: those of pykka."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import pykka
from pykka.messages import _ActorStop

if TYPE_CHECKING:
    from actors.kernel.actor import LoopActor

STOP = _ActorStop()


class LoopFuture(pykka.Future[Any]):
    """The answer to an ``ask``; awaitable on the loop, never blocking."""

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """The asyncio future of the answer."""

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer if it is available.

        Raises the exception that the actor raised, or pykka.Timeout if there is no answer yet: code
        on an event loop must not block. Use ``await`` to wait.
        """
        if not self.future.done():
            raise pykka.Timeout("not answered yet; await the future instead")
        return self.future.result()

    def set(self, value: Any = None) -> None:
        """Set the answer."""
        if not self.future.done():
            self.future.set_result(value)

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an exception as the answer: that of ``exc_info``, or the current one."""
        exception = (exc_info or sys.exc_info())[1]
        if exception is not None and not self.future.done():
            self.future.set_exception(exception)

    def __await__(self) -> Any:
        """Wait for the answer."""
        return self.future.__await__()


@dataclass(slots=True)
class Ask:
    """A message that expects an answer."""

    message: Any
    reply_to: LoopFuture


@dataclass(slots=True)
class ActorFailed:
    """Notifies the parent of an actor that failed."""

    actor: LoopActor
    error: BaseException
    message: Any
    """The message it was handling."""
    unseen: list[Any]
    """The other messages in its mailbox."""


A = TypeVar("A", bound="LoopActor")


class LoopRef(pykka.ActorRef[Any], Generic[A]):
    """A reference to an actor of a kernel; two to the same actor are equal."""

    __slots__ = ("_actor",)

    def __init__(self, actor: A) -> None:
        self._actor = actor

    def __eq__(self, other: object) -> bool:
        """Return whether both refer to the same actor."""
        return isinstance(other, LoopRef) and other._actor is self._actor

    def __hash__(self) -> int:
        """Return the hash of the actor."""
        return hash(self._actor)

    @property
    def actor_class(self) -> type[A]:  # type: ignore[override]  # pykka stores it in each ref
        """The class of the actor."""
        return type(self._actor)

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # as above
        """The actor's name."""
        return self._actor.actor_urn

    def is_alive(self) -> bool:
        """Return whether the actor accepts messages."""
        return not self._actor.stopped

    def tell(self, message: Any) -> None:
        """Put a message into the actor's mailbox; raise pykka.ActorDeadError if it stopped."""
        self._actor.kernel.tell(self._actor, message)

    @overload
    def ask(
        self, message: Any, *, block: Literal[False], timeout: float | None = None
    ) -> LoopFuture: ...

    @overload
    def ask(self, message: Any, *, block: Literal[True], timeout: float | None = None) -> Any: ...

    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...

    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """Send a message and return a future of the answer. ``block`` must be False."""
        if block:
            raise RuntimeError("an event loop cannot block: ask(..., block=False) and await it")
        future = LoopFuture()
        try:
            self.tell(Ask(message, future))
        except pykka.ActorDeadError:
            future.set_exception()
        return future

    def stop(self, *, block: bool = True, timeout: float | None = None) -> Any:
        """Ask the actor to stop once it has handled the messages in its mailbox.

        The answer is True, or False if the actor had already stopped. ``block`` must be False.
        """
        if block:
            raise RuntimeError("an event loop cannot block: stop(block=False) and await it")
        future = LoopFuture()
        try:
            self.tell(Ask(STOP, future))
        except pykka.ActorDeadError:
            future.set(value=False)
        return future
