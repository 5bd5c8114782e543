"""A standby beside the broker: it follows the log, and takes it over whenever the broker ends.

The world is the same as in all other runs. Instead of a broker that reads the log there is one that
adopts the state of a follower, which has to equal the state of the log.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from cluster.failure_detector import Cause
from cluster.standby import FellBehind, Follower, take_over
from eventstore.errors import LogUnavailable
from eventstore.log.jetstream_log import Appended
from simulation.fold import compare_index, compare_states, fold
from simulation.loop import SimClock
from simulation.world import SimLog, World

_AT_LEAST, _AT_MOST = 0.01, 2.0
"""Seconds between two reports of the end of the log to the standby."""


class StandbyWorld(World):
    """A broker, its standby, their log and the clients."""

    def __init__(self, delay: Callable[[], float] = lambda: 0.001, **options: Any) -> None:
        super().__init__(delay, **options)
        self._follower: Follower | None = None
        self._followed: SimLog
        self._following: asyncio.Task[None] | None = None
        self.takeovers = 0

    async def start(self) -> None:
        """Let the standby take the log over, and follow it with another one."""
        follower = self._follower
        if follower is None:
            follower = await self._new_follower()
        await self._stop_following()
        self.log = self._followed
        self.log.nats.write_from_now_on()
        self._follower = None
        while await self._try(follower) is not Appended.STORED:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)
        compare_states(follower.state, fold(self.disk.decoded()))
        self.takeovers += 1
        found = await follower.result()
        compare_index(found)
        self.cut_matching(found.router)
        await self.begin(lambda broker: broker.adopt(found))
        self._following = asyncio.create_task(self._follow())

    async def _try(self, follower: Follower) -> Appended:
        return await take_over(
            self.log, follower, SimClock(), name="sim", node="n1", software="0", cause=Cause.DEAD
        )

    async def _new_follower(self) -> Follower:
        self._followed = SimLog(self.server, self.watermark, self.keyed, reads=True)
        follower = Follower(self._followed)
        await follower.begin(lambda _done, _total: None)
        self._follower = follower
        return follower

    async def _follow(self) -> None:
        """Follow as far as the log is stored, now and then."""
        chance = self.faults.chance
        while True:
            try:
                follower = self._follower or await self._new_follower()
                await follower.read_to(self.broker.node.journal.durable)
            except LogUnavailable:
                pass
            except FellBehind:
                self._follower = None
            await asyncio.sleep(chance.uniform(_AT_LEAST, _AT_MOST))

    async def _stop_following(self) -> None:
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def drain(self) -> None:
        """Stop the broker gracefully; the standby takes over."""

        async def handed_over() -> None:
            pass

        await self.broker.drain("sim", handed_over)

    async def crash(self, keep: int = 0) -> None:
        """Kill the broker; the standby stays."""
        await self._stop_following()
        await super().crash(keep)
