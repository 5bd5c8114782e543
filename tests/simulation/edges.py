"""Nodes of a simulation that pass clients on: what is between a node and its leader.

The real ``Edges`` and ``PeerListener`` meet here; a pair of pipes takes the place of a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from actors.connection.listener import ListenerOptions
from cluster.edge_client import EdgeClient, Upstream
from cluster.edge_listeners import Edges
from cluster.leader_link import LeaderPlace
from simulation.loop import SimClock
from simulation.processes import Process, outside

if TYPE_CHECKING:
    from typing import Protocol

    from cluster.peer_listener import PeerListener

    class PipeOwner(Protocol):
        """A process that has ends of connections between nodes."""

        name: str
        process: Process
        pipes: dict[PipeEnd, None]
        peer_listener: PeerListener | None

        @property
        def running(self) -> bool: ...

        @property
        def unplugged(self) -> bool: ...

        @property
        def world(self) -> Any: ...


KEY = b"the key of a simulated cluster"
LISTENER = "sim"


class PipeEnd(asyncio.Transport):
    """One end of a connection between two nodes; ``other`` is the other one."""

    other: PipeEnd

    def __init__(self, node: PipeOwner, latency: float) -> None:
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

    @property
    def cut(self) -> bool:
        """Whether nothing arrives at this end now."""
        return self.node.unplugged

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
        with outside():
            asyncio.get_running_loop().call_later(self._latency, self.other._arrive, data)

    def _arrive(self, data: bytes | None) -> None:
        self._arrived.append(data)
        self.node.process.arrive(self.deliver)

    def deliver(self) -> None:
        """Read what arrived, unless reading is paused or the cable is unplugged."""
        while self._arrived and self._reading and not self._gone and not self.cut:
            data = self._arrived.popleft()
            if data is None:
                self._lose(None)
                return
            self._unread -= len(data)
            if not self._closing:
                self.protocol.data_received(data)
            other = self.other
            other.node.process.arrive(other._has_room)

    def _has_room(self) -> None:
        if self._full and self.other._unread <= self._high // 4 and not self._gone:
            self._full = False
            self.protocol.resume_writing()

    def accepted(self, owner: PipeOwner) -> None:
        """Begin at the end of the process that listens, if it still does."""
        if owner.peer_listener is None:
            self.vanish()
            self.node.pipes.pop(self, None)
        else:
            self.protocol = owner.peer_listener.accept()
            self.protocol.connection_made(self)

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

    pipe = PipeEnd

    def __init__(self, sim_node: PipeOwner, logs: int = 1) -> None:
        options = sim_node.world.options
        self.sim_node = sim_node
        now = SimClock().monotonic
        limits, most = options.bounds, options.max_connections
        super().__init__(sim_node.name, KEY, None, limits, most, now, logs)
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

    def leading(self, client: EdgeClient, leader: LeaderPlace) -> PipeOwner:
        """Return the process that leads the log of a client."""
        nodes: list[PipeOwner] = self.sim_node.world.nodes
        return next(node for node in nodes if node.name == leader.node)

    async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
        """Connect two pipe ends, if the leader is there and no cable is unplugged."""
        here = self.sim_node
        world = here.world
        await asyncio.sleep(world.faults.delay())
        there = self.leading(client, leader)
        near, far = self.pipe(here, 0.0), self.pipe(there, 0.0)
        near.other, far.other = far, near
        if near.cut or far.cut:
            await asyncio.sleep(10.0)
        if there.peer_listener is None or not there.running:
            raise ConnectionRefusedError("no process listens there")
        near._latency = far._latency = world.faults.delay()
        upstream = Upstream(client)
        near.protocol = upstream
        here.pipes[near] = there.pipes[far] = None
        near.protocol.connection_made(near)
        there.process.arrive(far.accepted, there)
        world.faults.counts["passed on"] += 1
        return upstream
