"""Several nodes that lead several logs, in one simulation.

Each node has a main process, which passes clients on, and a process for each log, which follows it
or leads it and then takes messages from the other logs. Processes are killed and suspended one by
one or with their node; nodes are cut off from NATS or from each other.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from actors.broker.broker import Broker
from actors.exchange.exchange import OtherLog
from cluster.edge_client import EdgeClient
from cluster.leader_link import LeaderPlace
from cluster.peer_listener import PeerListener
from cluster.status import NodeStatus, decode_status
from simulation.compacted_stream import MemoryKeyedStore
from simulation.edges import PipeEnd, SimEdges
from simulation.fold import compare_states, fold
from simulation.nodes import (
    CutLog,
    CutNats,
    NodesWorld,
    NoProcess,
    SimNode,
    deliver,
    lose_with_process,
)
from simulation.partitions import LOSSY, SimExchangeLink
from simulation.processes import Process, outside
from simulation.world import SimWatermark, tasks_of

if TYPE_CHECKING:
    from simulation.faults import Faults
    from simulation.network import SimClient


_FOLLOWS = 5.0
"""Seconds in which all nodes that follow a log have read a record."""


class MachinePipe(PipeEnd):
    """One end of a connection between processes, of one node or of two."""

    @property
    def cut(self) -> bool:
        ends: tuple[Any, Any] = self.node, self.other.node
        here, there = (end.machine for end in ends)
        return here is not there and (here.unplugged or there.unplugged)


class MachineEdges(SimEdges):
    """The clients of a node, whose main process passes them on."""

    sim_node: Machine
    pipe = MachinePipe

    def leading(self, client: EdgeClient, leader: LeaderPlace) -> Any:
        nodes = self.sim_node.worlds[client.log].nodes
        return next(node for node in nodes if node.name == leader.node)


class NodeExchangeLink(SimExchangeLink):
    """Messages of the process that leads a log to those that lead the others, over NATS."""

    def __init__(self, node: LogNode) -> None:
        super().__init__(node.world)  # type: ignore[arg-type]  # it has what is used of one
        self._node = node

    def _send(self, what: str, *said: Any, to: str = "") -> None:
        world = self._node.world
        if self.dead or (what in LOSSY and world.faults.chance.random() < world.lost):
            return
        self._node.post(lambda: self._spread(what, said, to))

    def _spread(self, what: str, said: tuple[Any, ...], to: str) -> None:
        world, loop = self._node.world, asyncio.get_running_loop()
        self._arrives = max(self._arrives, loop.time() + world.faults.delay())
        with outside():
            for other in world.others:
                if to and other.name != to:
                    continue
                for machine in world.machines:
                    node = machine.nodes[other.number]
                    loop.call_at(self._arrives, node.exchange_hears, what, said)


class LogNode(SimNode):
    """The process of a node for one log."""

    world: LogWorld
    machine: Machine

    def __init__(self, world: LogWorld, name: str) -> None:
        self._links: list[NodeExchangeLink] = []
        self._readers: list[CutLog] = []
        self._unsent: list[Callable[[], None]] = []
        """What waits for the connection to NATS, in both directions."""
        self.cut = False
        """Whether it is cut off from NATS."""
        super().__init__(world, name)

    def _new_process(self) -> None:
        super()._new_process()
        self.log.nats.silent = self.cut

    def make_edges(self) -> None:
        """Leave clients to the main process."""

    def join(self, broker: Broker) -> None:
        link = NodeExchangeLink(self)
        self._links.append(link)
        others = []
        for other in self.world.others:
            reader = CutLog(other.server, SimWatermark(), MemoryKeyedStore(), reads=True)
            reader.nats.process = self.process
            reader.nats.silent = self.cut
            self._readers.append(reader)
            others.append(OtherLog(other.name, reader))
        broker.join([one.name for one in self.world.all], others, link)

    def post(self, send: Callable[[], None]) -> None:
        """Send something over the connection to NATS, now or when it is back."""
        if self.cut:
            self._unsent.append(send)
        else:
            send()

    def exchange_hears(self, what: str, said: tuple[Any, ...]) -> None:
        """Take a message of the broker of another log, if a broker here takes any."""
        if self.cut:
            self._unsent.append(lambda: self.exchange_hears(what, said))
        else:
            self.process.arrive(self._take, what, said)

    def _take(self, what: str, said: tuple[Any, ...]) -> None:
        if self.broker is not None and self.broker.exchange is not None and not self.log.nats.dead:
            getattr(self.broker.exchange, what)(*said)

    @property
    def connections(self) -> list[CutNats]:
        """Its connections to NATS."""
        return [self.log.nats, *(reader.nats for reader in self._readers)]

    def silence(self) -> None:
        """Cut the process off from NATS."""
        self.cut = True
        for nats in self.connections:
            nats.silent = True

    def restore(self) -> None:
        """Let everything pass that waited."""
        self.cut = False
        for nats in self.connections:
            nats.restore()
        unsent, self._unsent = self._unsent, []
        for send in unsent:
            send()
        self.messages.restore()

    def end(self) -> None:
        for link in self._links:
            link.dead = True
        for reader in self._readers:
            reader.nats.die()
        self._links.clear()
        self._readers.clear()
        self._unsent.clear()
        super().end()

    def kill(self) -> None:
        world = self.world
        if world.serving is self:
            world.serving, world.up = None, False
        super().kill()


class Machine:
    """A node: its main process, and a process for each log."""

    peer_listener: PeerListener | None = None
    """Only clients connect to it."""

    def __init__(self, number: int, worlds: Sequence[LogWorld]) -> None:
        self.name = f"m{number}"
        self.worlds = worlds
        self.world = worlds[0]
        self.nodes = [cast("LogNode", world.nodes[number]) for world in worlds]
        for node in self.nodes:
            node.machine = self
        self.machine = self
        self.process = Process()
        self.edges: MachineEdges | None = None
        """The clients of the main process; None: it does not run."""
        self.pipes: dict[PipeEnd, None] = {}
        self.clients: list[SimClient] = []
        self.unplugged = False
        self.silent = False
        self._unheard: list[tuple[int, NodeStatus]] = []

    @property
    def running(self) -> bool:
        """Whether its main process runs."""
        return self.edges is not None

    @property
    def processes(self) -> list[Process]:
        """All of them, the main process first."""
        return [self.process, *(node.process for node in self.nodes)]

    def start(self) -> None:
        """Start the main process, and those of logs that do not run."""
        if self.edges is None:
            self.process = Process()
            with self.process.inside():
                self.edges = MachineEdges(self, len(self.worlds))
        for node in self.nodes:
            if not node.running:
                node.spawn()

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new client."""
        return _Accepted(self)

    def heard(self, log: int, status: NodeStatus) -> None:
        """Take the status of a node that follows or leads a log."""
        if self.silent:
            self._unheard.append((log, status))
        elif self.edges is not None:
            self.process.arrive(self.edges.heard, status, log)

    def kill(self) -> None:
        """Kill the main process; the others end with it."""
        for node in self.nodes:
            node.kill()
            node.cut = False
        edges, self.edges = self.edges, None
        if edges is not None:
            edges.vanish()
        self._unheard.clear()
        self.silent = False
        self.plug_in()
        pipes, self.pipes = self.pipes, {}
        for end in pipes:
            end.vanish()
        lose_with_process(self.world, self.clients)
        self.process.kill()
        self._unexpected()

    def silence(self) -> None:
        """Cut all its processes off from NATS."""
        self.silent = True
        for node in self.nodes:
            node.silence()

    def restore(self) -> None:
        """Give all its processes their connections to NATS back."""
        self._unexpected()
        self.silent = False
        for node in self.nodes:
            node.restore()
        unheard, self._unheard = self._unheard, []
        for log, status in unheard:
            self.heard(log, status)

    def plug_in(self) -> None:
        """Give it its connections to the other nodes back."""
        self._unexpected()
        self.unplugged = False
        deliver([*self.pipes, *(end for node in self.nodes for end in node.pipes)])

    def resume(self, processes: Sequence[Process]) -> None:
        """Let suspended processes go on."""
        self._unexpected()
        for process in processes:
            process.resume()

    def _unexpected(self) -> None:
        """Note that clients may be closed that have done nothing."""
        for world in self.worlds:
            world.closings += 1


class _Accepted(asyncio.Protocol):
    """A client of a node, whose main process accepts it, or will after a suspension."""

    def __init__(self, machine: Machine) -> None:
        self._process = machine.process
        self._machine = machine
        self._protocol: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process.arrive(self._accept, transport)

    def _accept(self, transport: asyncio.BaseTransport) -> None:
        if self._machine.edges is not None:
            self._protocol = self._machine.edges.accept()
            self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._pass("data_received", data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pass("connection_lost", exc)

    def pause_writing(self) -> None:
        self._pass("pause_writing")

    def resume_writing(self) -> None:
        self._pass("resume_writing")

    def _pass(self, what: str, *arguments: Any) -> None:
        self._process.arrive(lambda: getattr(self._protocol, what)(*arguments))


class LogWorld(NodesWorld):
    """One of the logs, and the processes that follow it or lead it."""

    all: Sequence[LogWorld]
    machines: Sequence[Machine] = ()

    def __init__(self, number: int, nodes: int, **options: Any) -> None:
        self.number = number
        self.name = f"c-p{number}"
        self.lost: float = options.pop("lost", 0.0)
        self._count = nodes
        super().__init__(**options)
        self.options = dataclasses.replace(self.options, node=self.name)

    def make_nodes(self) -> list[SimNode]:
        return [LogNode(self, f"m{one}-p{self.number}") for one in range(self._count)]

    @property
    def others(self) -> list[LogWorld]:
        """The other logs."""
        return [one for one in self.all if one is not self]

    @property
    def has_entrance(self) -> bool:
        return any(machine.running for machine in self.machines)

    def entrance(self) -> Any:
        running = [machine for machine in self.machines if machine.running]
        self.entered = cast("Any", self.faults.chance.choice(running)) if running else None
        return self.entered or NoProcess()

    def tell(self, status: bytes) -> None:
        super().tell(status)
        decoded = decode_status(status)
        assert decoded is not None
        for machine in self.machines:
            delay = self.faults.delay()
            asyncio.get_running_loop().call_later(delay, machine.heard, self.number, decoded)

    def may_strike(self, node: SimNode) -> None:
        """Do nothing: a run decides when something happens to a node."""

    async def compare_followers(self) -> None:
        """Raise AssertionError where a node that follows has another state than the log there."""
        last = self.disk.stream.last
        await self.go(_FOLLOWS)
        for node in self.nodes:
            if node.peer_listener is None and node.standby is not None:
                follower = node.standby._follower
                at = follower.sequence
                assert at >= last, f"{node.name} is behind"
                before = [record for record in self.disk.decoded() if record.sequence <= at]
                compare_states(follower.state, fold(before))

    async def crash(self, keep: int = 0) -> None:
        for node in self.nodes:
            node.kill()
        self.server.keep(keep)
        for _ in range(3):
            for broker in self._corpses:
                broker.node.timers._heap.clear()
                for task in tasks_of(broker):
                    task.cancel()
            await asyncio.sleep(0)
        self._corpses.clear()


def make_cluster(logs: int, nodes: int, faults: Faults, **options: Any) -> list[LogWorld]:
    """Return the logs of a cluster; each knows its nodes as ``machines``."""
    worlds = [LogWorld(number, nodes, faults=faults, **options) for number in range(logs)]
    machines = [Machine(number, worlds) for number in range(nodes)]
    for world in worlds:
        world.all, world.machines = worlds, machines
    return worlds
