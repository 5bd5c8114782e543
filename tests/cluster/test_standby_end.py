"""A following node stops when it is asked to, even if nats-py loses a cancellation."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from simulation.loop import SimClock
from simulation.world import simulate

from cluster.members import Members
from cluster.standby import Standby
from cluster.status import NodeStatus, Role


class StubbornFollower:
    """Reads for ever; the first cancellation is lost, as with an answer that comes with it."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(epoch=1)
        self.sequence = 0
        self.link = b""
        self.reading = asyncio.Event()
        self.lost = 0

    async def begin(self, _progress: object) -> None:
        """The log is already read."""

    async def read_to(self, _last: int) -> None:
        self.reading.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.lost += 1
            if self.lost > 1:
                raise


class SilentMessages:
    """Messages that are discarded."""

    async def publish(self, _status: bytes) -> None:
        """Discard it."""


def test_a_node_that_reads_ends_although_a_cancellation_is_lost() -> None:
    async def scenario() -> None:
        clock = SimClock()
        standby = Standby(
            SimpleNamespace(watermark=None),  # type: ignore[arg-type]
            SilentMessages(),  # type: ignore[arg-type]
            Members("a", clock.time_ms),
            clock,
            "c1",
            NodeStatus("a", Role.STARTING, 0, 0, "", 0),
            lambda: None,
        )
        follower: Any = StubbornFollower()
        standby._follower = follower
        task = asyncio.create_task(standby.lead(lambda _done, _total: None))
        standby.take(NodeStatus("b", Role.LEADING, 1, 5, "00", 0).encode())
        await follower.reading.wait()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=60.0)
        assert done
        assert task.cancelled()
        assert follower.lost == 1

    simulate(scenario)
