"""Brokers of several logs, each with a bridge, and NATS clients on the other side."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness import mqtt5_packets as p5

from actors.bridge import bridge_supervisor
from actors.limits.bridge_options import BridgeOptions
from eventstore.nats.connection import ConnectionOptions
from protocol.nats.mapping import Mapping
from simulation.bridged_clients import ACCESS, Client5
from simulation.faults import Faults
from simulation.fold import compare
from simulation.loop import simulate
from simulation.natsserver import Got, SimLink, SimNatsServer
from simulation.partition_chaos import check_exchange, check_partition
from simulation.partitions import PartitionWorld, make_partitions, name_in


class BridgedPartitions:
    """The brokers of a node, their NATS server, and what its clients got."""

    def __init__(self, count: int, chance: random.Random, **options: Any) -> None:
        bridge: dict[str, Any] = options.pop("bridge", {})
        self.chance = chance
        self.nats = SimNatsServer(chance)
        self.worlds = make_partitions(count, Faults(chance), **options)
        self.links: dict[str, SimLink] = {}
        for world in self.worlds:
            world.bridge = BridgeOptions(Mapping(), **bridge)
        self.heard: list[Got] = []
        self.answers: list[Got] = []
        self.nats.subscribe("_INBOX.visitor.>", self.answers.append)

    def hear(self, pattern: str) -> None:
        """Subscribe with a NATS client."""
        self.nats.subscribe(pattern, self.heard.append)

    async def start(self, world: PartitionWorld) -> None:
        """Start a broker and its bridge."""
        await world.start_with_retries()
        bridge = world.broker.bridge
        assert bridge is not None
        _running[:] = [self]
        await bridge.start(ACCESS)
        self.links[world.name] = self.nats.links[-1]

    async def start_all(self) -> None:
        """Start all brokers; return when they know each other's filters."""
        for world in self.worlds:
            await self.start(world)
        await self.worlds[0].go(1.0)

    def kill(self, world: PartitionWorld) -> None:
        """Kill a broker."""
        self._forget(world)
        world.kill()

    def _forget(self, world: PartitionWorld) -> None:
        link = self.links.pop(world.name, None)
        if link is not None:
            self.nats.forget(link)

    async def restart(self, world: PartitionWorld) -> None:
        """Start a broker that was killed."""
        self._forget(world)
        await world.crash()
        await self.start(world)

    async def client(self, number: int, *filters: tuple[str, int], name: str = "c") -> Client5:
        """Return a client of a broker, with its subscriptions when they are granted."""
        client = await self.connect(number, name)
        if filters:
            client.send(p5.subscribe(1, *filters))
            await self.until(lambda: client.granted >= 1)
        return client

    async def connect(self, number: int, name: str = "c") -> Client5:
        """Return a client of a broker with its session."""
        world = self.worlds[number]
        client = Client5(world)
        client.send(
            p5.connect(
                name_in(self.worlds, number, name),
                clean=False,
                properties=((p5.SESSION_EXPIRY, 100_000),),
            )
        )
        await world.go(0.01)
        return client

    async def until(self, true: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait, in simulated time, until a condition holds."""
        left = int(seconds / 0.01)
        while not true():
            left -= 1
            assert left > 0, "it never happens"
            await self.worlds[0].go(0.01)

    def publish(self, subject: str, payload: bytes, reply: str = "", **headers: str) -> None:
        """Publish as a NATS client; names of headers have ``_`` for ``-``."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""
        self.nats.publish(Got(subject, reply, head, payload))

    async def check(self) -> None:
        """Check states and logs, and what each log took of the others."""
        await self.worlds[0].go(3.0)
        for world in self.worlds:
            assert not world.problems, world.problems
            assert world.failure() is None, world.failure()
            await world.broker.wait_durable()
            compare(world)
            check_partition(world)
        await check_exchange(self.worlds)

    async def end(self) -> None:
        """End all brokers."""
        self.nats.forget()
        for world in self.worlds:
            await world.crash()


_running: list[BridgedPartitions] = []


async def _open_link(_access: ConnectionOptions, **callbacks: Callable[..., None]) -> SimLink:
    """Stand for ``BatchClient.open``."""
    return SimLink(_running[0].nats, callbacks)


def bridged(
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[BridgedPartitions], Awaitable[None]],
    count: int = 2,
    seed: int = 1,
    **options: Any,
) -> None:
    """Run a scenario with brokers that run; then check their logs."""
    monkeypatch.setattr(bridge_supervisor.BatchClient, "open", _open_link)

    async def run() -> None:
        place = BridgedPartitions(count, random.Random(f"bridged {seed}"), **options)
        try:
            await place.start_all()
            await scenario(place)
            await place.check()
        finally:
            await place.end()

    simulate(run)


def payloads(client: Client5) -> Counter[bytes]:
    """Return how often a client got each payload."""
    return Counter(message.payload for message in client.messages)
