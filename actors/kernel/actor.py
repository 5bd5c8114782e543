"""Actors of a kernel, their references, and the futures of their answers."""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

import pykka
import structlog
from pykka.messages import _ActorStop

if TYPE_CHECKING:
    from actors.kernel.actor_observer import ActorObserver
    from actors.kernel.kernel import Kernel

_log = structlog.get_logger("foldmq")

STOP = _ActorStop()
RESTART = object()
_serial = itertools.count(1)


class LoopFuture(pykka.Future[Any]):
    """The answer to an ``ask``; awaitable on the loop, never blocking."""

    def __init__(self) -> None:
        super().__init__()
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def future(self) -> asyncio.Future[Any]:
        """The asyncio future of the answer."""
        return self._future

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer if it is available.

        Raises the exception that the actor raised, or pykka.Timeout if there is no answer yet: code
        on an event loop must not block. Use ``await``.
        """
        if not self._future.done():
            raise pykka.Timeout("not answered yet; await the future instead")
        return self._future.result()

    def set(self, value: Any = None) -> None:
        """Set the answer."""
        if not self._future.done():
            self._future.set_result(value)

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an exception as the answer: that of ``exc_info``, or the current one."""
        exception = (exc_info or sys.exc_info())[1]
        if exception is not None and not self._future.done():
            self._future.set_exception(exception)

    def __await__(self) -> Any:
        """Wait for the answer."""
        return self._future.__await__()


@dataclass(slots=True)
class Ask:
    """A message that expects an answer."""

    message: Any
    reply_to: LoopFuture


class ActorRestarted(Exception):  # noqa: N818 - what happened, not what went wrong
    """An actor failed because a restart was requested."""


@dataclass(slots=True)
class ActorFailed:
    """Notifies the parent of an actor that failed."""

    actor: LoopActor
    error: BaseException
    message: Any
    """The message it was handling."""
    unseen: list[Any]
    """The other messages in its mailbox."""


@dataclass(slots=True)
class DeferredRead:
    """Bytes that an actor read; gathered with the reads of other actors, see ``Kernel.gather``."""

    data: bytes

    def __repr__(self) -> str:
        """Return the size."""
        return f"{len(self.data)} bytes"


A = TypeVar("A", bound="LoopActor")


class LoopRef(pykka.ActorRef[A]):
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


class LoopActor(pykka.Actor):
    """An actor that a kernel runs."""

    __slots__ = (
        "_serial",
        "_waiting",
        "busy",
        "epoch",
        "handled",
        "high_water",
        "kernel",
        "last_run",
        "marked_busy",
        "marked_handled",
        "observer",
        "parent",
        "stopped",
    )

    kernel: Kernel
    parent: LoopActor | None
    begins_turns: ClassVar[bool] = False
    """Its messages may wait for the next turn: none completes something decided in this one."""

    def __init__(self) -> None:
        self._serial = next(_serial)
        self._waiting: list[Any] | None = None
        self.handled = 0
        """Messages handled."""
        self.busy = 0.0
        """Seconds spent on them."""
        self.high_water = 0
        """The highest number of messages in its mailbox."""
        self.last_run = 0.0
        """When it last handled a message, in seconds of the kernel's clock; 0: never."""
        self.epoch = 0
        self.marked_busy = 0.0
        self.marked_handled = 0
        self.stopped = False
        self.observer: ActorObserver | None = None
        """Observes this actor; None unless it is traced."""

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> LoopRef[Self]:
        """Raise TypeError: an actor needs a kernel and a parent, see :meth:`Kernel.spawn`."""
        raise TypeError(f"use Kernel.spawn({cls.__name__}(...))")

    @property
    def actor_ref(self) -> LoopRef[Self]:
        """A reference to this actor."""
        return LoopRef(self)

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # pykka makes each actor a uuid
        """The actor's name, unique in its kernel."""
        return f"{type(self).__name__.lower()}:{self._serial}"

    @property
    def client(self) -> str | None:
        """The client identifier of the actor's client; None if there is none (yet)."""
        return None

    @property
    def mailbox_depth(self) -> int:
        """Messages waiting."""
        return len(self._waiting) if self._waiting else 0

    @property
    def recent(self) -> tuple[float, int]:
        """Seconds of work and messages handled since the kernel's epoch began."""
        if self.epoch != self.kernel.epoch:
            return 0.0, 0
        return self.busy - self.marked_busy, self.handled - self.marked_handled

    def stop(self) -> None:
        """Stop after the messages that are already in the mailbox."""
        self.kernel.tell(self, STOP)

    def on_read_deferred(self) -> None:
        """Handle that one of its reads is deferred."""

    def on_read_resumed(self) -> None:
        """Handle that one of its deferred reads is handled now."""

    def on_part_done(self, seconds: float) -> None:
        """Handle how long a part of this actor's longer work took, including its consequences."""

    def on_dead_letters(self, messages: list[Any]) -> None:
        """Handle the messages that this actor did not handle before it stopped."""
        _log.debug("messages to a stopped actor", actor=self.actor_urn, count=len(messages))

    @staticmethod
    def _create_actor_inbox() -> Any:
        raise TypeError("mailboxes of kernel actors belong to the kernel")

    @staticmethod
    def _create_future() -> LoopFuture:
        return LoopFuture()

    def _start_actor_loop(self) -> None:
        raise TypeError("kernel actors are run by the kernel")


def about(actor: LoopActor) -> dict[str, Any]:
    """Return the fields of a log line that identify an actor."""
    found = {"actor": actor.actor_urn}
    return found if actor.client is None else {**found, "client": actor.client}


def describe(message: Any) -> str:
    """Return a message as one bounded line for the log, without payloads."""
    if isinstance(message, (bytes, bytearray)):
        return f"{len(message)} bytes"
    text = repr(message)
    return text if len(text) <= 200 else text[:200] + "..."


def log_failure(actor: LoopActor, error: Exception, message: Any) -> None:
    """Log that an actor failed, or was restarted, with the message that it handled."""
    if isinstance(error, ActorRestarted):
        _log.info("actor restarted", **about(actor))
    else:
        _log.error(
            "actor failed",
            **about(actor),
            last_message=describe(message),
            error=f"{type(error).__name__}: {error}",
            exc_info=error,
        )


def refuse_asks(actor: LoopActor, messages: list[Any]) -> list[Any]:
    """Fail the requests to a stopped actor; return the messages that expect no answer."""
    told: list[Any] = []
    for message in messages:
        if isinstance(message, Ask):
            if isinstance(message.message, _ActorStop):
                message.reply_to.set(value=False)
            else:
                dead = pykka.ActorDeadError(f"{actor.actor_urn} has stopped")
                message.reply_to.set_exception((type(dead), dead, None))
        elif not isinstance(message, _ActorStop):
            told.append(message)
    return told
