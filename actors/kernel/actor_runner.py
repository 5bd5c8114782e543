"""What happens to a single actor when it runs: its messages, its end, its failure.

- Actors form a tree. An actor that fails is stopped and its parent gets a :class:`ActorFailed` with
  the message that it failed on and those not handled yet: no message is lost silently. Messages
  left by a stopped actor are passed to its ``on_dead_letters``.
- Each actor counts what it handled, for how long, and how full its mailbox was; this takes one
  reading of the clock for each run of an actor.
- An actor may have an ``observer``. This costs other actors nothing.

Which actor runs when is up to :class:`~actors.kernel.kernel.Kernel`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, cast

import pykka
import structlog
from pykka.messages import _ActorStop

from actors.kernel.actor import RESTART, ActorRestarted, LoopActor, about, log_failure, refuse_asks
from actors.kernel.actor_observer import ActorObserver
from actors.kernel.references import ActorFailed, Ask, LoopFuture

_log = structlog.get_logger("foldmq")

TURN_SLICE = 0.006
"""Seconds after which a turn is split, so that the event loop runs."""
_LOOK_EVERY = 4
"""Messages of one mailbox handled between two readings of the clock."""


class ActorRunner:
    """Runs and stops actors; ``clock`` gives the seconds in which their work is measured.

    Adding, finding and removing an actor take constant time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._blocks: dict[int, dict[int, LoopActor]] = {}
        """The actors by number, in blocks: iteration copies one block at a time."""
        self._count = 0
        self.population: Counter[type[LoopActor]] = Counter()
        """The number of actors of each class."""
        self.clock = clock
        self._began = 0.0
        """When the current run began, in seconds of the clock."""
        self._read = 0.0
        """The last reading of the clock in this turn."""
        self.turn_slice = TURN_SLICE
        """Seconds after which a turn is split."""
        self.observer: ActorObserver | None = None
        """The observer of the running actor; None unless it is traced."""
        self.handled = 0
        self.high_water = 0
        """The highest number of messages in any mailbox."""
        self.epoch = 0
        """Number of the period that :attr:`LoopActor.recent` covers; see :meth:`begin_epoch`."""
        self.epoch_began = clock()

    def __len__(self) -> int:
        """Return the number of actors."""
        return self._count

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not use ``__len__`` for this."""
        return len(self) > 0

    def __iter__(self) -> Iterator[LoopActor]:
        """Yield the actors, oldest first; those that start or stop meanwhile may be missing."""
        for block in list(self._blocks.values()):
            yield from list(block.values())

    def add(self, actor: LoopActor) -> None:
        """Add an actor that starts."""
        self._blocks.setdefault(actor._serial >> _BLOCK_BITS, {})[actor._serial] = actor
        self._count += 1
        self.population[type(actor)] += 1

    def remove(self, actor: LoopActor) -> None:
        """Remove an actor that has stopped; it may have been removed before."""
        number = actor._serial >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is not None and block.pop(actor._serial, None) is not None:
            if not block:
                del self._blocks[number]
            self._count -= 1
            self.population[type(actor)] -= 1

    def get(self, urn: str) -> LoopActor | None:
        """Return the actor with this name."""
        serial = urn.rpartition(":")[2]
        is_serial = serial.isdecimal() and len(serial) <= _SERIAL_DIGITS
        number = int(serial) if is_serial else 0
        actor = self._blocks.get(number >> _BLOCK_BITS, {}).get(number)
        return actor if actor is not None and actor.actor_urn == urn else None

    def begin_epoch(self) -> None:
        """Start a new period for the recent figures of actors."""
        self.epoch += 1
        self.epoch_began = self.clock()

    def tell(self, actor: LoopActor, message: Any) -> None:
        """Put a message into an actor's mailbox; implemented by the kernel."""
        raise NotImplementedError

    def stop_now(self, actor: LoopActor) -> None:
        """Stop an actor immediately, from within its handler.

        The messages after the current one in its mailbox go to its ``on_dead_letters``.
        """
        if not actor.stopped:
            self._stop(actor)

    def stop_other(self, actor: LoopActor) -> None:
        """Stop an actor other than the running one immediately.

        The messages in its mailbox go to its ``on_dead_letters`` before this returns.
        """
        if actor.stopped:
            return
        self._stop(actor)
        waiting, actor._waiting = actor._waiting, None
        if waiting:
            self._dead_letters(actor, waiting)

    def restart(self, actor: LoopActor) -> LoopFuture:
        """Make an actor fail, so that its parent replaces it.

        Raises pykka.ActorDeadError if it has stopped; the answer raises it if the actor stops
        before it fails.
        """
        answer = LoopFuture()
        self.tell(actor, Ask(RESTART, answer))
        return answer

    def _run(self, actor: LoopActor) -> None:
        waiting = actor._waiting
        if waiting is None:
            return
        handled, observer = 0, actor.observer
        message = None
        try:
            # Messages that are added to the mailbox meanwhile are also handled.
            for message in waiting:
                handled += 1
                kind = type(message)
                if observer is not None:
                    observer.gets(actor, message.message if kind is Ask else message)
                if kind is Ask:
                    self._answer(actor, cast("Ask", message))
                elif kind is _ActorStop:
                    self._stop(actor)
                else:
                    actor.on_receive(message)
                if actor.stopped:
                    break
                if not handled % _LOOK_EVERY and self.clock() - self._began >= self.turn_slice:
                    break
        except Exception as error:
            self._fail(actor, error, message, waiting[handled:])
            return
        finally:
            # Only this actor has run since the clock was last read. Inlined, since this code runs
            # for each run of each actor.
            now = self.clock()
            if actor.epoch != self.epoch:
                actor.epoch = self.epoch
                actor.marked_busy, actor.marked_handled = actor.busy, actor.handled
            actor.handled += handled
            actor.busy += now - self._read
            actor.last_run = self._read = now
            self.handled += handled
            depth = len(waiting)
            if depth > actor.high_water:
                actor.high_water = depth
                if depth > self.high_water:
                    self.high_water = depth
        unhandled = waiting[handled:] if handled < len(waiting) else None
        if actor.stopped:
            actor._waiting = None
            if unhandled:
                self._dead_letters(actor, unhandled)
        else:
            actor._waiting = unhandled

    def _run_observed(self, actor: LoopActor, observer: ActorObserver) -> None:
        """Run an actor that has an observer."""
        if actor._waiting is None:
            return
        observer.begin(actor)
        self.observer = observer
        try:
            self._run(actor)
        finally:
            self.observer = None
            observer.end(actor)

    def _answer(self, actor: LoopActor, ask: Ask) -> None:
        if isinstance(ask.message, _ActorStop):
            try:
                self._stop(actor)
            finally:
                ask.reply_to.set(value=True)
            return
        if ask.message is RESTART:
            ask.reply_to.set(value=True)
            raise ActorRestarted("restarted by an operator")
        try:
            ask.reply_to.set(actor.on_receive(ask.message))
        except Exception:
            ask.reply_to.set_exception()

    def _stop(self, actor: LoopActor) -> None:
        actor.stopped = True
        actor.cancel_timers()
        self.remove(actor)
        actor.on_stop()
        if actor.observer is not None:
            actor.observer.ended(actor, None)

    def _dead_letters(self, actor: LoopActor, messages: list[Any]) -> None:
        """Pass unhandled messages to the actor that stopped."""
        unhandled = refuse_asks(actor, messages)
        if unhandled:
            try:
                actor.on_dead_letters(unhandled)
            except Exception as error:
                self._fail(actor, error, unhandled[0], unhandled[1:])

    def _fail(self, actor: LoopActor, error: Exception, message: Any, unseen: list[Any]) -> None:
        log_failure(actor, error, message)
        actor.stopped = True
        actor._waiting = None
        actor.cancel_timers()
        self.remove(actor)
        try:
            actor.on_failure(type(error), error, cast("TracebackType", error.__traceback__))
        except Exception as second:
            _log.error("actor failed in on_failure", **about(actor), exc_info=second)
        if actor.observer is not None:
            actor.observer.ended(actor, error)
        parent, unseen = actor.parent, refuse_asks(actor, unseen)
        if parent is not None:
            failed = ActorFailed(actor, error, message, unseen)
            try:
                self.tell(parent, failed)
            except pykka.ActorDeadError:
                self._dead_letters(parent, [failed])


_SERIAL_DIGITS = 20
"""Maximum digits of an actor's number; Python rejects numbers with thousands of digits."""
_BLOCK_BITS = 8
