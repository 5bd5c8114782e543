"""Random runs: what a replaying client gets is what took effect in the log, in that order."""

import asyncio
import random
from collections import Counter

import pytest
from harness import packets as p
from harness.plainaudit import violations

from eventstore.format.records import decode_record
from simulation.fold import compare
from simulation.replaying_clients import effects
from simulation.test_replay import Reader
from simulation.world import SimClient, World, simulate


def took_effect(world: World) -> list[bytes]:
    """The payloads on t/#, from the whole log, in the order of their effect."""
    return [
        payload
        for effect in effects(world)
        for topic, payload in zip(effect.topics, effect.payloads, strict=True)
        if topic.startswith(b"t/")
    ]


class Run:
    """One run: publishers, a reader with a session that stays, and crashes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.qos = self.chance.choice([1, 2])
        self.world = World(
            max_ack_pending=self.chance.choice([1, 3, 1024]),
            write_high=self.chance.choice([None, 200]),
            message_cache=self.chance.choice([0, 1 << 20]),
        )
        self.world.cutting = self.chance.random() < 0.3
        self.got: list[bytes] = []
        self.pending: dict[int, bytes] = {}
        self.reader: Reader | None = None
        self.senders: list[SimClient] = []
        self.number = 0
        self.published_at_qos_2: set[bytes] = set()

    async def play(self) -> None:
        async with self.world.running():
            for _ in range(120):
                await self._act()
            await self._revive()
            self._connect_reader()
            await self.world.go(20)
            payloads = took_effect(self.world)
            assert len(payloads) > 30
            assert list(dict.fromkeys(self.got)) == payloads
            again = {payload for payload, count in Counter(self.got).items() if count > 1}
            if self.qos == 2:
                assert not again & self.published_at_qos_2
            history = sorted(self.world.disk.stream.history.items())
            assert not violations([decode_record(at, data) for at, data in history])
            compare(self.world)

    async def _act(self) -> None:
        chance, world = self.chance, self.world
        what = chance.random()
        if not world.up:
            await self._revive()
        elif what < 0.65:
            self._publish()
        elif what < 0.75 and self.reader is not None and self.reader.open:
            transport = self.reader.transport
            if transport.stalled:
                transport.unstall()
            elif chance.random() < 0.5:
                transport.stall()
            else:
                self.reader.drop()
        elif what < 0.9:
            self._connect_reader()
        elif world.fuse is None:
            world.fuse = chance.randint(0, 30)
        await asyncio.sleep(chance.choice([0, 0.0003, 0.001, 0.01, 0.1]))

    def _publish(self) -> None:
        self.senders = [sender for sender in self.senders if sender.open]
        if len(self.senders) < 2:
            sender = SimClient(self.world)
            sender.send(p.connect(f"s{self.number}", clean=True))
            self.senders.append(sender)
        sender = self.chance.choice(self.senders)
        for _ in range(self.chance.choice([1, 1, 5, 40])):
            self.number += 1
            pid, qos = self.number % 60_000 + 1, self.chance.choice([1, 2])
            topic = self.chance.choice(["t/a", "t/b", "other"])
            sender.send(p.publish(topic, b"%d" % self.number, qos, pid))
            if qos == 2:
                self.published_at_qos_2.add(b"%d" % self.number)
                sender.send(p.pubrel(pid))

    def _connect_reader(self) -> None:
        if self.reader is not None and self.reader.open:
            if self.reader.transport.stalled:
                self.reader.transport.unstall()
            return
        self.reader = Reader(self.world)
        self.reader.got, self.reader.pending = self.got, self.pending
        self.reader.send(p.connect("r", clean=False), p.subscribe(1, ("$replay/all/t/#", self.qos)))

    async def _revive(self) -> None:
        self.world.fuse = None
        if not self.world.up:
            await self.world.crash()
            await self.world.start()


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 16))]
)
def test_a_replay_is_what_the_log_has(seed: int) -> None:
    simulate(Run(seed).play)
