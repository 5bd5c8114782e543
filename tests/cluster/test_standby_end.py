"""A following node stops when it is asked to, and says when it cannot follow."""

import asyncio
from types import SimpleNamespace
from typing import Any

from simulation.loop import SimClock
from simulation.world import simulate

from cluster.members import Members
from cluster.standby import Standby
from cluster.status import NodeStatus, Role
from eventstore.errors import LogUnavailable
from eventstore.log.record_reader import LogTail
from eventstore.nats.cluster_messages import LeaderAnswer


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

    async def ask_leader(self, seconds: float) -> LeaderAnswer:
        """No answer arrives."""
        await asyncio.sleep(seconds)
        return LeaderAnswer.SILENT


class UnreadableLog:
    """A log over a NATS server that answers nothing, until it is mended."""

    watermark = None

    def __init__(self) -> None:
        self.mended = False

    async def tail(self) -> LogTail:
        await asyncio.sleep(2.5)
        raise LogUnavailable("stream S does not answer")


class UnansweredFollower(StubbornFollower):
    """Reads a log that cannot be read, until it is mended."""

    def __init__(self, log: UnreadableLog) -> None:
        super().__init__()
        self.log = log

    async def read_to(self, last: int) -> None:
        if not self.log.mended:
            await self.log.tail()
        self.sequence = last


LED = NodeStatus("b", Role.LEADING, 1, 5, "", 0)


def standby_of(log: Any) -> Standby:
    """Return a node of a cluster that follows a log, and hears no other node."""
    clock = SimClock()
    messages: Any = SilentMessages()
    starting = NodeStatus("a", Role.STARTING, 0, 0, "", 0)
    return Standby(log, messages, Members("a", clock.time_ms), clock, "c1", starting, lambda: None)


def test_a_node_says_why_it_does_not_follow() -> None:
    async def scenario() -> None:
        log = UnreadableLog()
        standby = standby_of(log)
        follower: Any = UnansweredFollower(log)
        standby._follower = follower
        task = asyncio.create_task(standby.lead(lambda _done, _total: None))
        unread = "the log cannot be followed: stream S does not answer"
        for _ in range(40):
            standby.take(LED.encode())
            await asyncio.sleep(0.1)
        assert standby.status().problem == unread
        log.mended = True
        for _ in range(40):
            standby.take(LED.encode())
            await asyncio.sleep(0.1)
        assert standby.status().problem == ""
        task.cancel()
        await asyncio.wait({task}, timeout=60.0)

    simulate(scenario)


def test_a_node_that_hears_no_leader_says_so() -> None:
    async def scenario() -> None:
        standby = standby_of(SimpleNamespace(watermark=None))
        standby.role = Role.FOLLOWING
        standby.take(LED.encode())
        await asyncio.sleep(1.0)
        assert standby.status().problem == ""
        await asyncio.sleep(30.0)
        assert standby.status().problem == "no leader was heard for 31 s"
        standby.take(LED.encode())
        assert standby.status().problem == ""

    simulate(scenario)


def test_a_node_that_reads_ends_although_a_cancellation_is_lost() -> None:
    async def scenario() -> None:
        standby = standby_of(SimpleNamespace(watermark=None))
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
