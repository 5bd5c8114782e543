"""Turns for work that only a few may do at once, shared fairly among addresses."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_Queue: TypeAlias = "OrderedDict[str, dict[asyncio.Future[None], Callable[[], bool] | None]]"
"""Those who wait, by lane, and what says whether they come last; the next lane is the first."""


class FairQueue:
    """At most ``at_once`` have their turn; all others wait, each address in a lane of its own.

    Lanes are served in rotation. Whoever sends a thousand logins from one address waits for
    them; the one login of another address is next. Work that is to come ``last`` waits in lanes
    of its own, which are served when the others are empty.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._lanes: tuple[_Queue, _Queue] = OrderedDict(), OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(len(lane) for lanes in self._lanes for lane in lanes.values())

    async def enter(self, lane: str, *, last: Callable[[], bool] | None = None) -> None:
        """Wait for a turn; :meth:`leave` must follow, unless this is cancelled.

        ``last`` says, whenever the turn would come, whether it comes last.
        """
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lanes[last is not None and last()].setdefault(lane, {})[turn] = last
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                for lanes in self._lanes:
                    _forget(lanes, lane, turn)
            else:  # the turn came in the moment in which nobody wanted it any more
                self.leave()
            raise

    def leave(self) -> None:
        """End a turn: the next lane has one."""
        for lanes in self._lanes:
            while lanes:
                name, lane = lanes.popitem(last=False)
                turn = next(iter(lane))
                last = lane.pop(turn)
                if lane:
                    lanes[name] = lane
                if lanes is self._lanes[0] and last is not None and last():
                    self._lanes[1].setdefault(name, {})[turn] = last
                elif not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


def _forget(lanes: _Queue, name: str, turn: asyncio.Future[None]) -> None:
    lane = lanes.get(name)
    if lane is not None:
        lane.pop(turn, None)
        if not lane:
            del lanes[name]


class Once(Generic[T]):
    """Work that is done once for all who want the same at the same time.

    It is given up when the last of them leaves: what nobody waits for is not worth doing.
    """

    def __init__(self) -> None:
        self._running: dict[bytes, _Running[T]] = {}

    async def do(self, key: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Give the result of ``work``, or of the same work that is being done already."""
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(asyncio.create_task(work()))
        running.waiting += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if running.task.done() or not running.waiting:
                if self._running.get(key) is running:
                    del self._running[key]
                running.task.cancel()


class _Running(Generic[T]):
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0
