"""pykka's programming model on an event loop: mailboxes, one dispatcher, supervision."""

from actors.kernel.actor import (
    ActorRestarted,
    DeferredRead,
    LoopActor,
    describe,
)
from actors.kernel.actor_runner import TURN_SLICE
from actors.kernel.clock import Clock, LogClock, SystemClock, Timer, Timers
from actors.kernel.kernel import LATER_SLICE, Kernel
from actors.kernel.os_priority import lower_thread_priority, set_short_time_slice
from actors.kernel.references import ActorFailed, LoopFuture, LoopRef
from actors.kernel.turn_work import TurnWork

__all__ = [
    "LATER_SLICE",
    "TURN_SLICE",
    "ActorFailed",
    "ActorRestarted",
    "Clock",
    "DeferredRead",
    "Kernel",
    "LogClock",
    "LoopActor",
    "LoopFuture",
    "LoopRef",
    "SystemClock",
    "Timer",
    "Timers",
    "TurnWork",
    "describe",
    "lower_thread_priority",
    "set_short_time_slice",
]
