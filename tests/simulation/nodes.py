"""Several nodes of one cluster in one simulation: they follow, take over, are killed and cut off.

Every node runs the real ``Standby``, ``Leader`` and ``Broker`` over a connection of its own, and
``Edges``, which pass clients on: a client connects to any node. Their messages to each other take
time and may be lost. A node that is cut off is not notified: its messages wait, as in an unplugged
cable, and arrive when it is plugged in again. It may be cut off from NATS, from the other nodes, or
from both.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from harness.anonymous import Anonymous

from actors.broker.broker import Broker
from actors.maintenance.cluster_hooks import ClusterHooks
from cluster.leader import Leader, Replaced
from cluster.members import Members
from cluster.peer_listener import PeerListener
from cluster.standby import FellBehind, Leadership, Standby
from cluster.status import NodeStatus, Role, decode_status
from eventstore.errors import Fenced, LogUnavailable
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import decode_record
from eventstore.nats.cluster_messages import LeaderAnswer
from protocol.errors import FoldmqError
from simulation.edges import KEY, PipeEnd, SimEdges
from simulation.fold import compare_index, compare_states, fold
from simulation.jetstream import Sent, SimMsg, SimNats
from simulation.loop import SimClock
from simulation.processes import Process, outside
from simulation.world import SimLog, SimWatermark, World, tasks_of

if TYPE_CHECKING:
    from simulation.network import SimClient

_NODES = 3
_DRAIN = 30.0
"""Seconds within which a node that hands over has written everything, or ends without that."""
_STRIKE = 0.002
"""Chance that a status is when a leader is cut off."""


class CutNats(SimNats):
    """A connection that can fall silent in both directions, unnoticed by both ends."""

    silent = False
    process = Process()
    """The one that has the connection; this one is never suspended."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._late: list[Sent] = []
        self._unheard: list[tuple[str, tuple[SimMsg, ...]]] = []

    def _send(self, message: Sent) -> None:
        if self.silent:
            self._late.append(message)
        else:
            with outside():
                super()._send(message)

    def deliver(self, inbox: str, message: SimMsg) -> None:
        if self.silent:
            self._unheard.append((inbox, (message,)))
        else:
            self.process.arrive(super().deliver, inbox, message)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109 - as in nats-py
        headers: dict[str, str] | None = None,
    ) -> SimMsg:
        if self.silent:
            await asyncio.sleep(timeout)
            raise TimeoutError
        return await super().request(subject, payload, timeout, headers)

    def restore(self) -> None:
        """Let everything arrive that waited."""
        self.silent = False
        late, self._late = self._late, []
        unheard, self._unheard = self._unheard, []
        if not self.dead and self.is_connected:
            for message in late:
                self._send(message)
            for inbox, messages in unheard:
                self.reply(inbox, *messages)


class CutLog(SimLog):
    """The log over such a connection."""

    nats: CutNats
    connection = CutNats


class SimMessages:
    """What ``NodeMessages`` does, between the nodes of one simulation."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._take: Callable[[bytes], None] | None = None
        self.leads = False
        self._unheard: list[bytes] = []

    @property
    def is_connected(self) -> bool:
        return self._node.log.nats.is_connected

    @property
    def _cut(self) -> bool:
        nats = self._node.log.nats
        return nats.silent or nats.dead or not nats.is_connected

    async def listen(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    async def answer(self, status: Callable[[], bytes]) -> None:
        """There are no commands here."""

    async def answer_as_leader(self, status: Callable[[], bytes]) -> None:
        self.leads = True

    async def publish(self, status: bytes) -> None:
        world = self._node.world
        world.may_strike(self._node)
        if self._cut:
            return
        with outside():
            world.tell(status)

    def hear(self, status: bytes) -> None:
        """Take a status that arrived, or will when the connection is back."""
        nats = self._node.log.nats
        if nats.silent and not nats.dead:
            self._unheard.append(status)
        elif self._take is not None and not self._cut:
            self._node.process.arrive(self._take, status)

    def restore(self) -> None:
        unheard, self._unheard = self._unheard, []
        for status in unheard:
            self.hear(status)

    async def ask_leader(self, seconds: float) -> LeaderAnswer:
        nodes = self._node.world.nodes
        there = [node for node in nodes if node.messages.leads and node.log.nats.is_connected]
        await asyncio.sleep(min(seconds, self._node.world.faults.delay()))
        if self._cut:
            await asyncio.sleep(seconds)
            return LeaderAnswer.SILENT
        if not there:
            return LeaderAnswer.NONE
        if any(not one.log.nats.silent and not one.process.suspended for one in there):
            return LeaderAnswer.HERE
        await asyncio.sleep(seconds)
        return LeaderAnswer.SILENT


class Moved(Exception):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A node has handed over the leadership, and starts its process again."""


class SimHooks(ClusterHooks):
    """Those of a node of a simulation."""

    def __init__(self, world: NodesWorld, broker: Broker) -> None:
        super().__init__(broker.node, broker.admission.connections)
        self._world = world

    def refuse_clients(self, reason: str) -> None:
        self._world.closings += bool(reason)
        super().refuse_clients(reason)


class SimNode:
    """One node: a process that follows or leads, and starts again when it was replaced."""

    log: CutLog
    messages: SimMessages

    def __init__(self, world: NodesWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process()
        self.watermark = SimWatermark()
        self.standby: Standby | None = None
        self.broker: Broker | None = None
        self.clients: list[SimClient] = []
        self.edges: SimEdges | None = None
        """What passes clients on; None: the process does not run."""
        self.peer_listener: PeerListener | None = None
        """What accepts the connections of other nodes while this one leads."""
        self.pipes: dict[PipeEnd, None] = {}
        """Its ends of the connections with other nodes."""
        self.unplugged = False
        """Whether it is cut off from the other nodes."""
        self._moving: asyncio.Future[str] | None = None
        """Done when it is to hand over, with the node that is to lead."""
        self._task: asyncio.Task[None] | None = None
        self._leading: asyncio.Task[None] | None = None
        self._new_process()

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def spawn(self) -> None:
        """Start the process."""
        self.process = Process()
        with self.process.inside():
            self._task = asyncio.create_task(self._live(), name=self.name)

    def _new_process(self) -> None:
        world = self.world
        self.log = CutLog(world.server, self.watermark, world.keyed, reads=True)
        self.log.nats.process = self.process
        self.messages = SimMessages(self)

    async def _live(self) -> None:
        chance = self.world.faults.chance
        while True:
            self._new_process()
            try:
                await self._life()
            except (Fenced, Replaced, FellBehind, LogUnavailable, Moved) as error:
                self.world.ended[type(error).__name__] += 1
            self.end()
            await asyncio.sleep(chance.uniform(0.1, 1.0))

    async def _life(self) -> None:
        """Follow, lead, serve; raise the error that ends it."""
        world, clock = self.world, SimClock()
        members = Members(self.name, clock.time_ms)
        me = NodeStatus(self.name, Role.STARTING, 0, 0, "", 0, version="0")
        self.edges = self.make_edges()
        self.standby = standby = Standby(
            self.log,
            self.messages,  # type: ignore[arg-type]  # as NodeMessages
            members,
            clock,
            world.options.node,
            me,
            _nothing,
        )
        await self.messages.listen(partial(self._follow, standby))
        if self.edges is not None:
            self.edges.on_lost = lambda _log: standby.suspect()
        leadership: Leadership = await standby.lead(_nothing)
        await self.messages.answer_as_leader(bytes)
        await self.messages.publish(standby.status().encode())
        broker = Broker(
            world.options, self.log, Anonymous(), clock, world.bridge, world.permissions
        )
        self.broker = broker
        self.join(broker)
        world.led(self, leadership)
        await broker.adopt(leadership.followed)
        if broker.node.failed.done():
            raise broker.node.failed.result()
        led = SimHooks(world, broker)
        leader = Leader(self.messages, members, clock, me, leadership.epoch, led)  # type: ignore[arg-type]  # likewise
        await self.messages.listen(leader.take)
        self._leading = asyncio.create_task(leader.run())
        self._moving = moving = asyncio.get_running_loop().create_future()
        if broker.exchange is not None:
            await broker.exchange.catch_up()
        self.peer_listener = PeerListener(broker.node, broker.admission, KEY)
        leader.peers = f"{self.name}:1"
        if self.edges is not None:
            self.edges.heard(leader.status())
        world.serves(self)
        ends: set[asyncio.Future[Any]] = {broker.node.failed, self._leading, moving}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._leading.done():
            self._leading.result()
        if not broker.node.failed.done():
            await self._hand_over(broker, leader, moving.result())
        error: FoldmqError = broker.node.failed.result()
        raise error

    def _follow(self, standby: Standby, data: bytes) -> None:
        standby.take(data)
        status = decode_status(data)
        if self.edges is not None and status is not None and status.node != self.name:
            self.edges.heard(status)

    def make_edges(self) -> SimEdges | None:
        """Return what passes clients on; None: another process does that."""
        return SimEdges(self)

    def join(self, broker: Broker) -> None:
        """Let a new broker exchange messages with other logs: here there are none."""

    def move(self, to: str) -> bool:
        """Hand over to a node, if this one leads; an empty name: to any."""
        if self._moving is None or self._moving.done():
            return False
        self.world.closings += 1
        with self.process.inside():
            self._moving.set_result(to)
        return True

    async def _hand_over(self, broker: Broker, leader: Leader, to: str) -> None:
        """Stop in order, as ``Service`` does; raises Moved."""
        leader.to = to
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN):
                await broker.drain(to, leader.stopped)
        raise Moved

    def end(self) -> None:
        """End the process, as by ``kill -9``; the task continues if it is the one that ends it."""
        self.world.closings += 1
        self.log.nats.die()
        self.peer_listener = self._moving = None
        self.unplugged = False
        pipes, self.pipes = self.pipes, {}
        for end in pipes:
            end.vanish()
        broker, self.broker = self.broker, None
        if self._leading is not None:
            self._leading.cancel()
        if broker is not None:
            broker.node.timers._heap.clear()
            for task in tasks_of(broker):
                task.cancel()
            self.world.corpses.append(broker)
        lose_with_process(self.world, self.clients)
        edges, self.edges = self.edges, None
        if edges is not None:
            edges.vanish()

    def lose_clients(self) -> None:
        """Break the connections of all clients, as a node does that is killed while it follows."""
        for client in list(self.clients):
            client.transport.drop()
        self.clients.clear()

    def kill(self) -> None:
        """End the process, and do not start it again."""
        self.end()
        if self._task is not None:
            self._task.cancel()
        self.process.kill()

    def cut_off(self, seconds: float) -> None:
        """Cut the connection between this node and NATS for some time."""
        nats, messages = self.log.nats, self.messages
        nats.silent = True

        def restore() -> None:
            nats.restore()
            messages.restore()

        asyncio.get_running_loop().call_later(seconds, restore)

    def unplug(self, seconds: float) -> None:
        """Cut the connection between this node and the other nodes for some time."""
        self.unplugged = True

        def plug_in() -> None:
            self.unplugged = False
            deliver(self.pipes)

        asyncio.get_running_loop().call_later(seconds, plug_in)


def deliver(pipes: Iterable[PipeEnd]) -> None:
    """Let what waits at either end of some connections arrive."""
    for end in [*pipes, *(pipe.other for pipe in pipes)]:
        end.node.process.arrive(end.deliver)


def lose_with_process(world: World, clients: list[SimClient]) -> None:
    """End the connections of the clients of a process that was killed."""
    chance = world.faults.chance
    for client in clients:
        flying = client.transport.flying
        client.transport.vanish(chance.randint(0, flying) if flying else 0)
        client.world.clients.pop(client, None)
    clients.clear()


class NoProcess(asyncio.Protocol):
    """The machine of a node whose process does not run: it refuses connections."""

    def accept(self) -> asyncio.BaseProtocol:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class _Clients(dict[Any, None]):
    """The clients of a world, which knows the node of each one."""

    def __init__(self, world: NodesWorld) -> None:
        super().__init__()
        self._world = world

    def __setitem__(self, client: Any, value: None) -> None:
        super().__setitem__(client, value)
        entered = self._world.entered or self._world.serving
        if entered is not None:
            entered.clients.append(client)


class NodesWorld(World):
    """A cluster, its log and its clients; ``broker`` is that of the node that took over last."""

    reorders = True

    @classmethod
    def more_options(cls, seed: int) -> dict[str, Any]:
        return {"will_grace": random.Random(f"grace {seed}").choice([0.0, 2.0, 5.0])}

    def __init__(self, delay: Callable[[], float] = lambda: 0.001, **options: Any) -> None:
        super().__init__(delay, **options)
        self.serving: SimNode | None = None
        """The node that clients connect to."""
        self.clients = _Clients(self)
        self.corpses: list[Broker] = self._corpses
        self.nodes = self.make_nodes()
        self.epoch = 0
        """That of the last leader."""
        self._newest: SimNode | None = None
        self._served = False
        """Whether a node has ever served."""
        self.entered: SimNode | None = None
        """The node that the newest client is connected to."""

    def make_nodes(self) -> list[SimNode]:
        """Return the nodes."""
        return [SimNode(self, f"n{number}") for number in range(_NODES)]

    def tell(self, status: bytes) -> None:
        """Pass the status of a node to all."""
        loop = asyncio.get_running_loop()
        for node in self.nodes:
            loop.call_later(self.faults.delay(), node.messages.hear, status)

    @property
    def ended(self) -> Any:
        """How often processes ended by themselves, and why."""
        return self.faults.counts

    async def start(self) -> None:
        """Start the nodes that were killed, and wait until one serves."""
        for node in self.nodes:
            if not node.running:
                node.spawn()
        while not self.up:
            await asyncio.sleep(0.05)
            self._look()
            if self.meanwhile is not None:
                self.meanwhile()

    start_with_retries = start

    def _look(self) -> None:
        """Fail when a node ended that should not."""
        for node in self.nodes:
            task = node._task
            if task is not None and task.done() and not task.cancelled():
                task.result()

    def led(self, node: SimNode, leadership: Leadership) -> None:
        """Note that a node leads, before it serves."""
        self.closings += 1
        if leadership.followed.tail.sequence != self.disk.stream.last:
            # Another one took over before this one heard that it leads: it does no longer.
            self.faults.counts["replaced before it knew that it led"] += 1
            return
        assert leadership.epoch > self.epoch
        compare_states(leadership.followed.state, fold(self.disk.decoded()))
        compare_index(leadership.followed)
        started = [one.epoch for one in self.history() if isinstance(one, BrokerStarted)]
        assert started == list(range(1, leadership.epoch + 1))
        self.epoch, self._newest = leadership.epoch, node

    def history(self) -> list[Event]:
        """Return all that was ever stored, also what was cut off."""
        stored = sorted(self.disk.stream.history.items())
        return [event for at, data in stored for _, event in decode_record(at, data).events()]

    def serves(self, node: SimNode) -> None:
        """Let clients connect to a node from now on."""
        assert node.broker is not None
        if node is not self._newest:
            return
        if self.serving not in (None, node):
            self.faults.counts["replaced while it served"] += 1
        self.serving, self.broker, self.log = node, node.broker, node.log
        if self.cutting:
            self._report_cuts(self.broker)
        self.up = self._served = True

    @property
    def _following(self) -> list[SimNode]:
        """The nodes that pass clients on."""
        return [
            node for node in self.nodes if node.edges is not None and node.peer_listener is None
        ]

    @property
    def has_entrance(self) -> bool:
        return self.up or (self._served and bool(self._following))

    def entrance(self) -> SimEdges | NoProcess | None:
        """Return what a new client connects to; None: the broker's own listener."""
        there = self._following if not self.direct else []
        if self.up and self.serving is not None and self.serving.edges is not None:
            there.append(self.serving)
        self.entered = self.faults.chance.choice(there) if there else None
        if self.entered is None:
            return NoProcess()
        if self.entered.peer_listener is not None:
            return None
        self.faults.counts["client of a node that follows"] += 1
        return self.entered.edges

    def may_strike(self, node: SimNode) -> None:
        """Cut off a node that leads, now and then; and others from their leader, or kill them."""
        self._may_strike_edges(node)
        chance = self.faults.chance
        if self.faults.asks and node is self.serving and chance.random() < _STRIKE * 10:
            self.faults.counts["leader cut off"] += 1
            node.cut_off(chance.choice([0.3, 1.0, 3.0, 10.0]))

    def _may_strike_edges(self, node: SimNode) -> None:
        chance = self.faults.chance
        if not self.faults.asks or node.peer_listener is not None or chance.random() >= _STRIKE:
            return
        if chance.random() < 0.5:
            self.faults.counts["cut off from the other nodes"] += 1
            node.unplug(chance.choice([0.1, 1.0, 5.0]))
        elif node.edges is not None:
            self.faults.counts["clients of a node that follows lost"] += 1
            asyncio.get_running_loop().call_soon(node.lose_clients)

    def failure(self) -> FoldmqError | None:
        """Nothing that a balancer does not see: it finds the node that serves."""
        return None

    def kill(self) -> None:
        """Kill the node that serves."""
        self.up = False
        self.fuse = None
        node, self.serving = self.serving, None
        if node is not None:
            node.kill()

    async def crash(self, keep: int = 0) -> None:
        self.kill()
        self.server.keep(keep)
        for _ in range(2):
            for broker in self._corpses:
                broker.node.timers._heap.clear()
                for task in tasks_of(broker):
                    task.cancel()
            await asyncio.sleep(0)
        self._corpses.clear()

    async def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()
            if node._task is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    await node._task


def _nothing(*_: object) -> None:
    """Do nothing."""
