"""MQTT 5 clients with packet limits, expiring messages, late releases, in random runs with crashes.

Their sessions must be what the log says, and the log must keep every promise to them.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness.plainaudit import violations

from simulation.fold import compare
from simulation.network import Client5
from simulation.world import World, simulate

TOPICS = ["a/b", "a/c", "a/b/c"]
FILTERS = ["a/b", "a/+", "a/#", "#", "+/b", "$share/g/a/#"]
READERS = "rst"


class Receiver(Client5):
    """An MQTT 5 client that acknowledges its messages by default."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.limit = 0
        """Its Maximum Packet Size; 0: none."""
        self.answering = True
        self.unanswered: list[Any] = []
        self.last_id = 0

    def parse(self, raw: bytes, first: int, body: bytes) -> Any:
        assert not self.limit or len(raw) <= self.limit
        return super().parse(raw, first, body)

    def on_packet(self, packet: Any) -> None:
        if self.answering:
            self._answer(packet)
        else:
            self.unanswered.append(packet)

    def answer_all(self) -> None:
        for packet in self.unanswered:
            self._answer(packet)
        self.unanswered.clear()

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def _answer(self, packet: Any) -> None:
        if isinstance(packet, p5.Publish) and packet.qos:
            kind = p5.PUBACK if packet.qos == 1 else p5.PUBREC
            self._send_later(p5.acknowledge(kind, packet.packet_id))
        elif isinstance(packet, p5.Answer) and packet.kind == p5.PUBREL:
            self._send_later(p5.acknowledge(p5.PUBCOMP, packet.packet_id))

    def _send_later(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(0.002, lambda: self.open and self.send(data))


class Run:
    """A random run: three clients that subscribe and come and go, and one that publishes."""

    def __init__(self, world: World, choice: random.Random) -> None:
        self.world = world
        self.choice = choice
        self.clients: dict[str, Receiver] = {}
        self.unreleased: list[int] = []
        """Packet identifiers of QoS 2 messages of the publisher that await their PUBREL."""
        self.count = 0

    async def connect(self, name: str) -> None:
        client, choose = Receiver(self.world), self.choice.choice
        client.limit = choose([0, 0, 40, 60, 150])
        client.answering = self.choice.random() < 0.7
        properties = [(p5.SESSION_EXPIRY, 10_000), (p5.RECEIVE_MAXIMUM, choose([1, 2, 5, 100]))]
        if client.limit:
            properties.append((p5.MAXIMUM_PACKET_SIZE, client.limit))
        client.send(p5.connect(name, clean=False, properties=tuple(properties)))
        self.clients[name] = client
        await self.world.go(0.05)

    def subscribe(self, client: Receiver) -> None:
        choose = self.choice.choice
        number = choose([0, 1, 1, 7, 300])
        identifier = ((p5.SUBSCRIPTION_IDENTIFIER, number),) if number else ()
        wanted = choose(FILTERS), choose([0, 1, 2]) | choose([0, 8])
        client.send(p5.subscribe(client.next_id(), wanted, properties=identifier))

    def publish(self) -> None:
        choose = self.choice.choice
        self.count += 1
        qos, pid = choose([0, 1, 2, 2]), None
        if qos:
            pid = next(one for one in range(1, 1000) if one not in self.unreleased)
        if qos == 2:
            self.unreleased.append(pid or 0)
        seconds = choose([0, 0, 1, 2, 5, 100])
        payload = (b"%d" % self.count).ljust(choose([1, 10, 40, 100]), b".")
        self.clients["sender"].send(
            p5.publish(
                *(choose(TOPICS), payload, qos, pid),
                retain=self.choice.random() < 0.3,
                properties=((p5.MESSAGE_EXPIRY, seconds),) if seconds else (),
            )
        )

    def release(self) -> None:
        self.choice.shuffle(self.unreleased)
        count = self.choice.choice([1, 3, 100])
        some, self.unreleased = self.unreleased[:count], self.unreleased[count:]
        self.clients["sender"].send(*(p5.acknowledge(p5.PUBREL, pid) for pid in some))

    async def step(self) -> None:
        name, act = self.choice.choice(READERS), self.choice.random()
        client = self.clients.get(name)
        here = client if client is not None and client.open else None
        if act < 0.08 and here:
            leave: Callable[[], object] = self.choice.choice(
                [lambda: here.send(p5.disconnect()), here.drop]
            )
            leave()
            del self.clients[name]
        elif act < 0.2 and client is None:
            await self.connect(name)
        elif act < 0.32 and here:
            self.subscribe(here)
        elif act < 0.36 and here:
            here.send(p5.unsubscribe(here.next_id(), self.choice.choice(FILTERS)))
        elif act < 0.75:
            self.publish()
        elif act < 0.85 and self.unreleased:
            self.release()
        elif act < 0.88:
            await self.world.crash()
            await self.world.start_with_retries()
            self.clients.clear()
            await self.connect("sender")
        elif act < 0.92 and here:
            here.answering = not here.answering
            if here.answering:
                here.answer_all()
        await self.world.go(self.choice.choice([0.0, 0.01, 0.1, 1.0, 3.0]))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.long] if seed >= 5 else []) for seed in range(60)],
)
def test_every_guarantee_is_kept(seed: int) -> None:
    async def scenario() -> None:
        world, choice = World(max_queued_messages=1000), random.Random(seed)
        world.cutting = choice.random() < 0.4
        async with world.running():
            run = Run(world, choice)
            for name in (*READERS, "sender"):
                await run.connect(name)
            for _ in range(120):
                await run.step()
            await world.go(5)
            compare(world)
            for name in READERS:
                await run.connect(name)
            await world.go(5)
            assert not world.problems
            assert not violations(world.disk.decoded())
            compare(world)

    simulate(scenario)
