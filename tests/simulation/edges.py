"""Nodes of a simulation that pass clients on: what is between a node and its leader.

The real ``Edges`` and ``PeerListener`` meet here; a pair of pipes takes the place of a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from actors.connection import ListenerOptions
from cluster.edge import EdgeClient, Edges, LeaderPlace, Upstream
from simulation.loop import SimClock

if TYPE_CHECKING:
    from simulation.nodes import SimNode

KEY = b"the key of a simulated cluster"
LISTENER = "sim"


class PipeEnd(asyncio.Transport):
    """One end of a connection between two nodes; ``other`` is the other one."""

    other: PipeEnd

    def __init__(self, node: SimNode, latency: float) -> None:
        super().__init__()
        self.node = node
        self.protocol: Any = None
        self._latency = latency
        self._high = 65_536
        self._full = False
        self._closing = self._gone = False
        self._arrived: deque[bytes | None] = deque()
        """What this end has not read yet; None is the end."""
        self._unread = 0
        """Bytes on the way to this end."""
        self._reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("198.51.100.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return self.other._unread

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: Any) -> None:
        if self._closing:
            return
        other = self.other
        other._unread += len(data)
        self._send(bytes(data))
        if other._unread > self._high and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def _send(self, data: bytes | None) -> None:
        asyncio.get_running_loop().call_later(self._latency, self.other._arrive, data)

    def _arrive(self, data: bytes | None) -> None:
        self._arrived.append(data)
        self.deliver()

    def deliver(self) -> None:
        """Read what arrived, unless reading is paused or the cable is unplugged."""
        while self._arrived and self._reading and not self._gone and not self.node.unplugged:
            data = self._arrived.popleft()
            if data is None:
                self._lose(None)
                return
            self._unread -= len(data)
            if not self._closing:
                self.protocol.data_received(data)
            self.other._has_room()

    def _has_room(self) -> None:
        if self._full and self.other._unread <= self._high // 4 and not self._gone:
            self._full = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        asyncio.get_running_loop().call_soon(self.deliver)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(None)
            asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    def vanish(self) -> None:
        """Tell the other end only: the process of this one is gone."""
        if not self._gone:
            self._closing = self._gone = True
            self._send(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._gone:
            self._closing = self._gone = True
            self.node.pipes.pop(self, None)
            self.protocol.connection_lost(error)


class SimEdges(Edges):
    """The clients of a simulated node."""

    def __init__(self, sim_node: SimNode) -> None:
        options = sim_node.world.options
        self.sim_node = sim_node
        super().__init__(
            sim_node.name, KEY, None, options.bounds, options.max_connections, SimClock().monotonic
        )
        self.listen(ListenerOptions(LISTENER, options.max_packet_size, options.connect_timeout), [])

    def vanish(self) -> None:
        """Do nothing any more: the process is gone."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for link in self.links:
            link.close()
        self._clients.clear()

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new client, as a listener does."""
        return self._accept(LISTENER)

    async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
        """Connect two pipe ends, if the leader is there and no cable is unplugged."""
        here = self.sim_node
        world = here.world
        await asyncio.sleep(world.faults.delay())
        there = next(one for one in world.nodes if one.name == leader.node)
        if here.unplugged or there.unplugged:
            await asyncio.sleep(10.0)
        listener = there.peer_listener
        if listener is None or not there.running:
            raise ConnectionRefusedError("no process listens there")
        latency = world.faults.delay()
        near, far = PipeEnd(here, latency), PipeEnd(there, latency)
        near.other, far.other = far, near
        upstream = Upstream(client)
        near.protocol, far.protocol = upstream, listener.accept()
        for end in (near, far):
            end.node.pipes[end] = None
            end.protocol.connection_made(end)
        world.faults.counts["passed on"] += 1
        return upstream
