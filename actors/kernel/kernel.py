"""pykka's actors on an event loop.

The programming model is pykka's: subclass an actor, ``Kernel.spawn`` it, ``tell`` and ``ask`` its
ref; ``on_receive`` gets one message at a time, ``on_start``, ``on_stop`` and ``on_failure`` are
called at its start and end. The execution differs:

- An actor needs no thread. A mailbox is a list that exists while it contains a message.
- ``tell`` puts an actor with an empty mailbox on the ready list. A *turn* of the dispatcher runs
  ready actors until none is left, then calls ``turn_ended``: everything that one wake-up of the
  event loop causes is decided in one turn, and committed together.
- Reads of sockets are *gathered* and handled at the beginning of a turn, all in one pass. Those
  that may wait (``gather_waiting``) cause no turn by themselves until their time is over, and so
  do messages that may wait (``tell_waiting``).
- A turn that takes longer than ``TURN_SLICE`` is *split*: it yields to the event loop once, then
  continues. Messages from outside that arrive meanwhile belong to the next turn, so the decisions
  of a turn are the same whether it is split or not.
- ``later`` is for work that an actor does in parts: the next part runs when the actors that are
  ready are done. While light clients are active (``shared``), or new clients wait, each part is a
  turn of its own, and its actor is notified how long it took (``on_part_done``), so that it can
  make the next one shorter; otherwise the parts that are due share a turn.
- ``tell_low_priority`` is ``tell`` for work that others must not wait for. Such actors run when
  those that are ready have nothing left to do, for no longer than ``SLICE``. If others are busy,
  they then pause for as long as that took: they get at most half of the time.
- What happens to a single actor, its failure included, is in
  :class:`~actors.kernel.actor_runner.ActorRunner`. Refs are found by urn in a dict: starting and
  stopping take constant time for any number of actors.

Kernel actors belong to one thread, that of the event loop. pykka's own registry is not used; its
proxies are not supported, since nothing may block the loop.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

import pykka

from actors.kernel.actor import DeferredRead, LoopActor
from actors.kernel.actor_runner import ActorRunner
from actors.kernel.gathering import Gathering
from actors.kernel.low_priority import SLICE, LowPriorityQueue
from actors.kernel.references import LoopRef

A = TypeVar("A", bound=LoopActor)

_LONG = 0.002
"""Seconds of running without a break from which the processor time is recorded, too."""
LATER_SLICE = 0.001
"""Target duration in seconds of a part of longer work while light clients are active; after that
time no further part starts before the event loop runs."""
_TOGETHER = 16
"""Maximum number of parts of longer work that share a turn."""
_READS_TOGETHER, _SMALL = 64, 2048
"""Maximum number of reads that share such a part, and maximum bytes of each."""
_WAITING = 256
"""Maximum number of reads that wait without a turn."""
_TIMER_STEP = 0.001
"""Resolution of the event loop's timers in seconds: what is due in less than that is due."""
_ABOUT = 0.5
"""Seconds for which a light client counts as active after it has sent something."""
_AT_WORK = 0.02
"""Seconds for which the kernel counts as busy after a turn without low-priority work."""


class Kernel(ActorRunner):
    """Runs actors; see the module's docstring.

    ``schedule`` arranges for :meth:`run_turn` to be called soon (``loop.call_soon``); a simulation
    calls it itself. ``clock`` returns seconds, to measure work. ``delay`` runs a callback after
    some seconds (``loop.call_later``) unless it is cancelled; without it low-priority work has no
    breaks.
    """

    def __init__(
        self,
        schedule: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = perf_counter,
        delay: Callable[[float, Callable[[], None]], Any] | None = None,
        processor: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(clock)
        self._schedule = schedule
        self._delay = delay
        self._processor = processor or clock
        """Returns seconds of processor time, to measure parts of longer work: a part does not count
        as longer if another program used the processor meanwhile."""
        self._ready: list[LoopActor] = []
        self._gathered: list[tuple[Any, bytes]] = []
        """Reads of actors that are not handled yet; those left by an earlier turn come first."""
        self._left = 0
        """Number of reads that were left by an earlier turn."""
        self._left_of: set[Any] = set()
        """Actors of these reads."""
        self._left_input: list[tuple[Any, bytes]] = []
        """These reads, set aside while parts of longer work run."""
        self.handle_gathered: Callable[[Sequence[tuple[Any, bytes]]], int] = self._tell_gathered
        """Handles reads of actors, all in one pass; returns how many. It passes the others to the
        actors as messages."""
        self.gathering = Gathering()
        """Decides which reads may wait for others."""
        self.may_wait: Callable[[], bool] = _always
        """Returns whether any read may wait at present."""
        self._due = math.inf
        """When what waits is due; infinite: nothing waits."""
        self._timer: Any = None
        """The timer for that; it ends with a turn: it would wake the loop for nothing."""
        self.last_took = 0.0
        """Duration of the last run in seconds."""
        self._rest: list[LoopActor] = []
        """The rest of a turn that was split."""
        self._split = False
        """Whether the turn continues in the next run."""
        self.between = False
        """Whether the event loop runs between two parts of a turn."""
        self._next: list[LoopActor] = []
        """Actors that were ready in a split turn but may wait for the next one."""
        self._came: list[tuple[LoopActor, Any, bool | None]] = []
        """Messages sent while a turn is split: they belong to the next turn. With each one, whether
        it goes first among low-priority ones; None: not low-priority."""
        self._came_later: list[tuple[LoopActor, Any]] = []
        """Parts of longer work requested while a turn is split: they follow these messages."""
        self._began_work = 0.0
        """When the current run began, in seconds of processor time."""
        self._later: deque[tuple[LoopActor, Any]] = deque()
        """Parts of longer work that are due: actor and message."""
        self._parts_had = False
        """Whether parts have run since the messages of a split turn were delivered."""
        self._low_priority_ran = False
        """Whether low-priority actors have run since then."""
        self._parts_deferred = False
        """Whether the last run left the parts to the next one, so that its output is sent first."""
        self.light_at = -_ABOUT
        """When a light client last sent something; set by its connection."""
        self._low_priority = LowPriorityQueue()
        """Actors with low-priority messages."""
        self._rescheduled: list[tuple[LoopActor, Any]] = []
        """Messages that actors rescheduled in this run."""
        self._last_busy = -_AT_WORK
        """When the last turn with work of normal priority began."""
        self.scheduled = False
        """Whether a turn will run in this iteration of the event loop or the next one."""
        self._yields = False
        """Whether the callbacks of the event loop that are due run before the next turn."""
        self.turn_ended: Callable[[], None] = _nothing
        """Called when no messages of a turn are left."""
        self.turn_split: Callable[[], None] = _nothing
        """Called when a turn was split and continues later."""
        self.longest = 0.0
        """Longest time in seconds that actors ran without a break; its reader resets it."""
        self.longest_work = 0.0
        """The same in processor time, which excludes other programs and waits for the disk."""
        self.splits = 0
        """Number of times that turns were split."""
        self.parts = 0
        """Number of parts of longer work that ran in separate turns."""
        self.turns = 0
        self.on_spawn: Callable[[LoopActor], None] | None = None
        """Called for each actor before it starts, while there is an observer."""

    @property
    def busy(self) -> bool:
        """True while a turn is due."""
        waits = self._ready or self._later or self._gathered or self._low_priority
        return self.scheduled or bool(waits)

    def spawn(self, actor: A, parent: LoopActor | None = None) -> LoopRef[A]:
        """Start an actor; ``parent`` supervises it."""
        actor.kernel = self
        actor.parent = parent
        self.add(actor)
        if self.on_spawn is not None:
            self.on_spawn(actor)
        try:
            actor.on_start()
        except Exception as error:
            self._fail(actor, error, None, actor._waiting or [])
        return actor.actor_ref

    def tell(self, actor: LoopActor, message: Any) -> None:
        """Put a message into an actor's mailbox.

        Raises pykka.ActorDeadError when it has stopped.
        """
        if self.observer is not None:
            self.observer.sends(actor, message)
        waiting = actor._waiting
        if self.between:
            if actor.stopped:
                raise pykka.ActorDeadError(f"{actor.actor_urn} has stopped")
            self._came.append((actor, message, None))
            return
        if waiting is not None:
            waiting.append(message)
            return
        if actor.stopped:
            raise pykka.ActorDeadError(f"{actor.actor_urn} has stopped")
        actor._waiting = [message]
        self._ready.append(actor)
        if not self.scheduled:
            self.scheduled = True
            self._schedule(self.run_turn)

    def gather(self, actor: LoopActor, data: bytes) -> None:
        """Handle a read of an actor together with other reads of this iteration of the loop.

        It is handled before messages sent from now on, and after messages sent before.
        """
        if self.between and not actor.stopped:
            self._came.append((actor, DeferredRead(data), None))
            return
        if actor._waiting is not None and actor not in self._left_of:
            self.tell(actor, data)
            return
        self._gathered.append((actor, data))
        self.wake()

    def gather_waiting(self, actor: LoopActor, data: bytes, seconds: float) -> None:
        """Handle a read of an actor in the next turn, which begins after some seconds at most."""
        free = actor._waiting is None or actor in self._left_of
        if self.between or not free or self._delay is None or len(self._gathered) >= _WAITING:
            self.gather(actor, data)
            return
        self._gathered.append((actor, data))
        self._begin_within(seconds)

    def tell_waiting(self, actor: LoopActor, message: Any, seconds: float) -> None:
        """Like :meth:`tell`, but the next turn begins after some seconds at most, not at once."""
        busy = self.between or actor._waiting is not None or actor.stopped
        if busy or seconds <= 0 or self._delay is None:
            self.tell(actor, message)
            return
        actor._waiting = [message]
        self._ready.append(actor)
        self._begin_within(seconds)

    def _begin_within(self, seconds: float) -> None:
        if not self.scheduled and self._delay is not None:
            due = self.clock() + seconds
            if due < self._due:
                self._end_timer()
                self._due, self._timer = due, self._delay(seconds, self._end_wait)

    def _end_timer(self) -> None:
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_wait(self) -> None:
        """Handle what waits, if it is due."""
        self._timer = None
        remaining = self._due - self.clock()
        if remaining < _TIMER_STEP:
            self.wake()
        elif self._delay is not None:
            self._timer = self._delay(remaining, self._end_wait)

    def is_waiting(self, actor: LoopActor) -> bool:
        """Return whether a read of an actor waits for the next turn."""
        return any(of is actor for of, _ in self._gathered)

    def tell_first(self, actor: LoopActor, message: Any) -> None:
        """Like :meth:`tell`, but put the message ahead of all others in the mailbox."""
        if actor._waiting is None:
            self.tell(actor, message)
        else:
            actor._waiting.insert(0, message)

    def _tell_gathered(self, reads: Sequence[tuple[Any, bytes]]) -> int:
        for actor, data in list(reads)[::-1]:
            if not actor.stopped:
                self.tell_first(actor, data)
        return len(reads)

    def _run_gathered(self) -> None:
        """Handle the gathered reads, those that have waited longest first.

        If there are more than a turn may handle, the rest stays for the next turn.
        """
        reads, self._gathered = self._gathered, []
        waited, self._left = self._left, 0
        handled = self.handle_gathered(reads)
        now = self.clock()
        share = (now - self._read) / handled if handled else 0.0
        for actor, _ in reads[:handled]:
            if actor.epoch != self.epoch:
                actor.epoch = self.epoch
                actor.marked_busy, actor.marked_handled = actor.busy, actor.handled
            actor.busy += share
            actor.last_run = now
        self._read = now
        for actor, _ in reads[: min(handled, waited)]:
            actor.on_read_resumed()
        unhandled = reads[handled:]
        for actor, _ in reads[max(handled, waited) :]:
            actor.on_read_deferred()
        self._gathered = unhandled + self._gathered if unhandled else self._gathered
        self._left = len(unhandled)
        if unhandled or waited:
            self._left_of = {actor for actor, _ in unhandled + self._left_input}

    def tell_low_priority(self, actor: LoopActor, message: Any, *, first: bool = False) -> None:
        """Like :meth:`tell`, but the actor runs only when no other actor has work.

        With ``first`` it runs before actors told without it. An actor that is already ready or
        queued keeps its place. For messages of an actor to itself see :meth:`reschedule`.
        """
        if self.between and not actor.stopped:
            self._came.append((actor, message, first))
            return
        if actor._waiting is not None or actor.stopped:
            self.tell(actor, message)
            return
        actor._waiting = [message]
        self._low_priority.add(actor, first=first)
        if not self._low_priority.cooling_down:
            self.wake()

    def reschedule(self, actor: LoopActor, message: Any) -> None:
        """Send the running actor a message to itself at low priority: others run in between."""
        self._rescheduled.append((actor, message))

    def later(self, actor: LoopActor, message: Any) -> None:
        """Send an actor a message in a separate turn, after the actors that are ready."""
        (self._came_later if self.between else self._later).append((actor, message))
        self.wake()

    def wake(self) -> None:
        """Schedule a turn, even if only ``turn_ended`` has something to do."""
        if not self.scheduled:
            self.scheduled = True
            self._schedule(self.run_turn)

    def yield_once(self) -> None:
        """Delay the next turn by one iteration of the event loop.

        Called when an answer of NATS has arrived: its callbacks, which open the gate, run first.
        """
        self._yields = True

    @property
    def busy_recently(self) -> bool:
        """True if there was work of normal priority recently."""
        return self.clock() - self._last_busy < _AT_WORK

    @property
    def low_priority_waits(self) -> bool:
        """True while low-priority actors are ready or have a break."""
        return self._low_priority.cooling_down or bool(self._low_priority)

    def run_turn(self) -> None:
        """Run due work: a turn, then parts of longer work, then some low-priority actors."""
        if self._yields:
            self._yields = False
            self._schedule(self.run_turn)
            return
        self._began = self._read = self.clock()
        self._began_work = self._processor()
        self.between = False
        if self._split:
            self._continue()
        elif self._ready or self._gathered:
            self._last_busy = self._began
            self._end_timer()
            self.gathering.end()
            if self._gathered:
                self._run_gathered()
            self._run_ready()
            if self._later and not self._parts_deferred and not self._split and self.shared:
                # The event loop sends output at the end of a run: light clients need not wait for
                # the parts.
                self._parts_deferred = True
                self._end_run()
                return
        self._parts_deferred = False
        # Turn, parts and low-priority actors each run once before the messages that arrived
        # meanwhile are delivered, however often they are split: none of the three starves.
        if not self._split and not self._parts_had:
            self._parts_had = True
            if self._later:
                self._run_parts()
        if not self._split and not self._low_priority_ran:
            self._low_priority_ran = True
            self._run_low_priority()
        if self._split:
            self._pause_turn()
            return
        self._end_run()

    def _end_run(self) -> None:
        """End the turn; begin the next one with the messages that arrived while it was split."""
        self._parts_had = self._low_priority_ran = False
        self.scheduled = False
        self.turns += 1
        self.turn_ended()
        if self._next:
            self._ready, self._next = self._next + self._ready, []
        if self._came or self._came_later:
            self._hand_over()
        self._note_length()
        waits = self._ready or self._gathered or self._later
        if waits or (self._low_priority and not self._low_priority.cooling_down):
            self.wake()

    def _pause_turn(self) -> None:
        """Return to the event loop: the turn was split."""
        self._note_length()
        self.splits += 1
        self.turn_split()
        self.between = True
        self.scheduled = True
        self._schedule(self.run_turn)

    def _note_length(self) -> None:
        took = self.last_took = self.clock() - self._began
        self.longest = max(self.longest, took)
        if took > max(_LONG, self.longest_work):
            self.longest_work = max(self.longest_work, self._processor() - self._began_work)

    def _continue(self) -> None:
        """Continue a turn that was split."""
        self._ready, self._rest = self._rest + self._ready, []
        self._split = False
        self._run_ready()

    def _hand_over(self) -> None:
        """Deliver the messages that arrived while a turn was split: the next turn begins."""
        came, self._came = self._came, []
        for actor, message, first in came:
            if actor.stopped:
                self._dead_letters(
                    actor, [message.data if type(message) is DeferredRead else message]
                )
            elif type(message) is DeferredRead:
                self.gather(actor, message.data)
            elif first is None:
                self.tell(actor, message)
            else:
                self.tell_low_priority(actor, message, first=first)
        self._later += self._came_later
        self._came_later.clear()

    @property
    def shared(self) -> bool:
        """True while light clients are active, or new ones wait: parts of longer work are short."""
        return self._began - self.light_at < _ABOUT or bool(self._low_priority.others)

    def _run_parts(self) -> None:
        """Run parts of longer work, each as a turn, one after the other for a while.

        Reads that this turn has left are not part of them.
        """
        left_count = self._left
        self._left_input, came = self._gathered[:left_count], self._gathered[left_count:]
        self._gathered, self._left = [], 0
        self._last_busy = self._read
        self.turn_ended()
        if self.shared:
            self._run_one_by_one()
        else:
            self._run_together()
        if self._left_input or came:
            left_count = self._left
            self._left += len(self._left_input)
            self._gathered = (
                self._left_input + self._gathered[:left_count] + came + self._gathered[left_count:]
            )
            self._left_input = []

    def _run_one_by_one(self) -> None:
        """Run parts, each as a turn, for as long as light clients may wait."""
        began = self._read
        # A part that is requested meanwhile may depend on a read that is left for the next turn.
        for _ in range(len(self._later)):
            if self._split or not self._later:
                break
            actor, message = self._later.popleft()
            self.parts += 1
            if not actor.stopped:
                begun = self._processor()
                self._begin_part(actor, message)
                self._gather_small()
                self._run_gathered()
                self._run_ready()
                seconds = self._processor() - begun
                if not self._split:
                    self.turn_ended()
                actor.on_part_done(seconds)
            if self._read - began >= LATER_SLICE / 2:
                break

    def _run_together(self) -> None:
        """Run the parts that are due as one turn: no client waits for the end of the turn."""
        for _ in range(min(len(self._later), _TOGETHER)):
            actor, message = self._later.popleft()
            self.parts += 1
            if not actor.stopped:
                self._begin_part(actor, message)
        self._run_gathered()
        self._run_ready()

    def _gather_small(self) -> None:
        """Add small deferred reads to those handled together."""
        if self._gathered:
            later = self._later
            for _ in range(_READS_TOGETHER):
                if (
                    not later
                    or type(later[0][1]) is not DeferredRead
                    or len(later[0][1].data) > _SMALL
                ):
                    break
                actor, message = later.popleft()
                if not actor.stopped:
                    self._begin_part(actor, message)

    def _begin_part(self, actor: LoopActor, message: Any) -> None:
        if type(message) is not DeferredRead:
            self.tell(actor, message)
        elif self._left_input and actor in self._left_of:
            self._left_input.append((actor, message.data))
        elif actor._waiting is None:
            actor.on_read_resumed()
            self._gathered.append((actor, message.data))
        else:
            self.tell(actor, message)

    def _run_low_priority(self) -> None:
        """Run some low-priority actors, one after the other, unless they pause."""
        deferred = self._low_priority
        if not deferred or deferred.cooling_down:
            return
        began = self._read
        allowed = deferred.begin_slice(began, alone=not self.busy_recently)
        while deferred and not self._split:
            self._ready.append(deferred.pop())
            self._run_ready()
            if self._read - began >= allowed:
                break
        took = self._read - began
        if took >= SLICE and self._delay is not None and self.busy_recently:
            self._delay(deferred.begin_cooldown(took, self._read), self._end_cooldown)

    def _end_cooldown(self) -> None:
        self._low_priority.cooling_down = False
        if self._low_priority:
            self.wake()

    def _run_ready(self) -> None:
        """Run ready actors until none is left, or until the turn is split."""
        until = self._began + self.turn_slice
        while self._ready:
            ready, self._ready = self._ready, []
            for at, actor in enumerate(ready, 1):
                if actor.observer is None:
                    self._run(actor)
                else:
                    self._run_observed(actor, actor.observer)
                if self._read >= until:
                    # The turn continues here: the order does not change.
                    first = [actor] if actor._waiting else []
                    unfinished = first + ready[at:] + self._ready
                    # Actors that begin turns can wait for the next one, unless one of their later
                    # reads is left, which the next turn handles first.
                    later = [
                        waiting
                        for waiting in unfinished
                        if waiting.begins_turns and waiting not in self._left_of
                    ]
                    self._next += later
                    self._rest = (
                        [waiting for waiting in unfinished if waiting not in later]
                        if later
                        else unfinished
                    )
                    self._ready = []
                    self._split = bool(self._rest)
                    if self._split:
                        return
                    break
        if self._rescheduled:
            reschedule, self._rescheduled = self._rescheduled, []
            for actor, message in reschedule:
                if not actor.stopped:
                    self.tell_low_priority(actor, message)


def _nothing() -> None:
    """Do nothing."""


def _always() -> bool:
    """Return True."""
    return True
