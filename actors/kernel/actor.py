"""Actors of a kernel, their references, and the futures of their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pykka
import structlog
from mypy_extensions import mypyc_attr
from pykka.messages import _ActorStop

from actors.kernel.actor_observer import ActorObserver
from actors.kernel.clock import Timer, Timers
from actors.kernel.references import STOP, Ask, LoopRef

if TYPE_CHECKING:
    from actors.kernel.kernel import Kernel

_log = structlog.get_logger("foldmq")

RESTART = object()
_serial = itertools.count(1)


class ActorRestarted(Exception):  # noqa: N818 - what happened, not what went wrong
    """An actor failed because a restart was requested."""


@dataclass(slots=True)
class DeferredRead:
    """Bytes that an actor read; gathered with the reads of other actors, see ``Kernel.gather``."""

    data: bytes

    def __repr__(self) -> str:
        """Return the size."""
        return f"{len(self.data)} bytes"


@mypyc_attr(allow_interpreted_subclasses=True)
class LoopActor:
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
        "timers_set",
    )

    kernel: Kernel
    parent: LoopActor | None
    begins_turns: ClassVar[bool] = False
    """Whether its messages may wait for the next turn, as none completes a decision of this one."""

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
        self.timers_set: list[Timer] | None = None
        """Timers that are cancelled when the actor stops; some may have run."""

    @classmethod
    def start(cls, *_args: object, **_kwargs: object) -> LoopRef[Self]:
        """Raise TypeError: an actor needs a kernel and a parent, see :meth:`Kernel.spawn`."""
        raise TypeError(f"use Kernel.spawn({cls.__name__}(...))")

    @property
    def actor_ref(self) -> LoopRef[Self]:
        """A reference to this actor."""
        return LoopRef(self)

    @property
    def actor_urn(self) -> str:
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

    def start_timer(self, timers: Timers, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back ``delay`` seconds from now, unless the actor has stopped by then."""
        timer = timers.after(delay, callback)
        kept = self.timers_set
        if kept is None:
            self.timers_set = [timer]
        else:
            self.timers_set = [*(other for other in kept if other.callback is not None), timer]
        return timer

    def cancel_timers(self) -> None:
        """Cancel the actor's timers; called when it stops."""
        kept, self.timers_set = self.timers_set, None
        for timer in kept or ():
            timer.cancel()

    def on_start(self) -> None:
        """Handle the start of the actor, before its first message."""

    def on_receive(self, message: Any) -> Any:
        """Handle a message; the result is the answer to an ``ask``."""
        _log.warning("message not handled", actor=self.actor_urn, message=describe(message))

    def on_stop(self) -> None:
        """Handle the end of the actor, unless it failed."""

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Handle the actor's failure."""

    def stop(self) -> None:
        """Stop after the messages that are already in the mailbox."""
        self.kernel.tell(self, STOP)

    def on_read_deferred(self) -> None:
        """Handle the deferral of one of its reads."""

    def on_read_resumed(self) -> None:
        """Prepare for one of its deferred reads, which is handled next."""

    def on_part_done(self, seconds: float) -> None:
        """Handle the report how long a part of this actor's longer work took, in seconds."""

    def on_dead_letters(self, messages: list[Any]) -> None:
        """Handle the messages that this actor did not handle before it stopped."""
        _log.debug("messages to a stopped actor", actor=self.actor_urn, count=len(messages))


pykka.Actor.register(LoopActor)


def about(actor: LoopActor) -> dict[str, Any]:
    """Return the fields of a log line that identify an actor."""
    fields = {"actor": actor.actor_urn}
    return fields if actor.client is None else {**fields, "client": actor.client}


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
    unanswered: list[Any] = []
    for message in messages:
        if isinstance(message, Ask):
            if isinstance(message.message, _ActorStop):
                message.reply_to.set(value=False)
            else:
                dead = pykka.ActorDeadError(f"{actor.actor_urn} has stopped")
                message.reply_to.set_exception((type(dead), dead, None))
        elif not isinstance(message, _ActorStop):
            unanswered.append(message)
    return unanswered
