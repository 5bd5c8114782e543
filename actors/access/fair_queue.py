"""Fair queues: limited concurrency, shared fairly among addresses."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from actors.access.login_backoff import LoginRank, network_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_Rank: TypeAlias = "Callable[[], LoginRank]"
_AddressQueue: TypeAlias = "dict[asyncio.Future[None], _Rank]"
"""Waiting callers, each with a function that returns its rank."""
_Queue: TypeAlias = "OrderedDict[str, OrderedDict[str, _AddressQueue]]"
"""Queues of addresses, by network; the next network is the first, and in it the next queue."""


class FairQueue:
    """At most ``at_once`` callers run; all others wait, in a separate queue for each address.

    Networks (:func:`actors.access.login_backoff.network_key`) are served in rotation, and so are
    the addresses of each network. A client with a thousand logins from one address, or one from
    each address of a network, delays only itself; a single login from elsewhere is next. Callers of
    each :class:`LoginRank` wait in separate queues, served when those before are empty.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._queues: list[_Queue] = [OrderedDict() for _ in LoginRank]

    @property
    def waiting(self) -> int:
        """Number of waiting callers."""
        return sum(
            len(lane)
            for queue in self._queues
            for queues in queue.values()
            for lane in queues.values()
        )

    async def enter(self, lane: str, rank: _Rank = lambda: LoginRank.NEW) -> None:
        """Wait for a turn; :meth:`leave` must follow, unless this is cancelled.

        ``lane`` is an address, or a name for callers without one. ``rank`` is called again at each
        turn: a caller whose rank got worse waits for those before it.
        """
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _add(self._queues[rank()], lane, turn, rank)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                for queue in self._queues:
                    _forget(queue, lane, turn)
            else:  # the turn came together with the cancellation
                self.leave()
            raise

    def leave(self) -> None:
        """End a turn; the next queue of the next network gets one."""
        for number, queue in enumerate(self._queues):
            while queue:
                name, turn, rank = _next(queue)
                now = rank()
                if now > number:
                    _add(self._queues[now], name, turn, rank)
                elif not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


def _add(queue: _Queue, name: str, turn: asyncio.Future[None], rank: _Rank) -> None:
    queue.setdefault(network_key(name), OrderedDict()).setdefault(name, {})[turn] = rank


def _next(queue: _Queue) -> tuple[str, asyncio.Future[None], _Rank]:
    """Remove and return the next caller; its network and its queue move to the end."""
    where, queues = queue.popitem(last=False)
    name, lane = queues.popitem(last=False)
    turn = next(iter(lane))
    rank = lane.pop(turn)
    if lane:
        queues[name] = lane
    if queues:
        queue[where] = queues
    return name, turn, rank


def _forget(queue: _Queue, name: str, turn: asyncio.Future[None]) -> None:
    where = network_key(name)
    queues = queue.get(where, OrderedDict())
    lane = queues.get(name)
    if lane is not None:
        lane.pop(turn, None)
        if not lane:
            del queues[name]
        if not queues:
            del queue[where]


class SingleFlight(Generic[T]):
    """Runs concurrent calls with the same key once.

    The call is cancelled when its last caller leaves.
    """

    def __init__(self) -> None:
        self._running: dict[bytes, _Running[T]] = {}

    async def do(self, key: bytes, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``work``, or of a running call with the same key."""
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
