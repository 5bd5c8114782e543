"""Random clients, random crashes: what was acknowledged is there, once, in order.

A failure names its seed; the same seed gives the same run. ``FOLDMQ_SEEDS=1000`` runs more.
"""

from __future__ import annotations

import os
import random

import pytest
from harness import packets as p

from simulation.actors_of_chaos import Device, DeviceConnection, check, check_retained
from simulation.world import World, simulate

SEEDS = int(os.environ.get("FOLDMQ_SEEDS", "40"))
STEPS = 150


def devices() -> list[Device]:
    return [
        Device("pub1", False, ["t/0", "t/1", "t/2", "r/1", "r/2"], [], with_will=True),
        Device("pub2", False, ["u/1", "u/2", "t/x1"], [("u/1", 1)], with_will=False),
        Device("pub3", True, ["u/c1", "u/c2"], [], with_will=True),
        Device("sub1", False, [], [("#", 2)], with_will=False),
        Device("sub2", False, [], [("t/#", 1), ("t/2", 2), ("r/#", 1)], with_will=False),
        Device("sub3", False, ["t/s2"], [("w", 2), ("u/#", 2), ("t/1", 0)], with_will=True),
        Device("noise", True, ["u/n1"], [("#", 1)], with_will=False),
    ]


class Chaos:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        self.lazy = chance.choice([0.0, 0.3, 0.8])
        self.world = World(
            delay=lambda: chance.choice([0.0001, 0.001, 0.02]),
            max_ack_pending=chance.choice([1, 3, 1024]),
            message_cache=chance.choice([1, 300, 1 << 20]),
            ack_wait=chance.choice([0.0, 0.05, 30.0]),
            jail_time=0.01,
        )
        self.devices = devices()
        self.trace: list[str] = []

    async def prepare(self) -> None:
        """Let everybody who is checked be subscribed before anything is published."""
        await self.world.start()
        for device in self.devices:
            if device.filters and not device.clean:
                self.connect(device)
        await self.world.go(0.5)
        assert all(one.subscribed for one in self.devices if one.filters and not one.clean)

    def connect(self, device: Device) -> None:
        device.connection = DeviceConnection(self.world, device, self.chance, self.lazy)

    async def step(self) -> None:
        chance, device = self.chance, self.chance.choice(self.devices)
        connection = device.connection
        roll = chance.random()
        if connection is None or (roll < 0.04 and not device.clean):
            self.note(f"connect {device.name}")
            self.connect(device)
        elif roll < 0.10:
            self.note(f"leave {device.name}")
            connection.leave()
        elif roll < 0.16:
            self.note(f"drop {device.name}")
            connection.drop()
        elif roll < 0.30:
            connection.pay()
        elif roll < 0.33:
            self.note("hold")
            self.world.log.hold()
        elif roll < 0.42:
            self.note("release")
            self.world.log.release()
        elif roll < 0.47:
            if self.world.log.held:
                self.world.log.commit(1)
        elif roll < 0.50:
            await self.crash()
        elif device.topics:
            self.note(f"publish {device.name}")
            connection.publish()
        # Often several things happen before anybody gets a turn.
        pause = chance.choice([None, None, 0, 0, 0.0005, 0.01, 0.1])
        if pause == 0:
            await self.world.calm()
        elif pause is not None:
            await self.world.go(pause)

    async def crash(self) -> None:
        keep = self.chance.randint(0, 2)
        self.note(f"crash, keep {keep}")
        await self.world.restart(keep)

    def note(self, what: str) -> None:
        self.trace.append(what)

    async def finish(self) -> None:
        """Let everybody come back and settle everything."""
        self.world.log.release()
        for _ in range(12):
            for device in self.devices:
                if device.connection is None and not device.clean:
                    self.connect(device)
                elif device.connection is not None:
                    device.connection.lazy = 0.0
                    device.connection.pay()
            await self.world.go(1.0)

    async def check(self) -> None:
        assert self.world.failure() is None
        left = {one.name: one.unfinished for one in self.devices if not one.clean}
        assert not any(left.values()), f"never acknowledged: {left}"
        check(self.devices)
        for name, state in self.world.broker.node.sessions.items():
            left_over = [*state.inflight, *state.releasing, state.queued]
            assert left_over == [0], f"{name}: {state}"
        reader = await self.world.connect("reader", clean=True)
        reader.send(p.subscribe(1, ("r/#", 0)))
        await self.world.go(1)
        kept = {
            one.topic: one.payload
            for one in reader.take()
            if isinstance(one, p.Publish) and one.retain
        }
        check_retained(self.devices, kept)

    async def run(self) -> list[str]:
        await self.prepare()
        for _ in range(STEPS):
            await self.step()
        await self.finish()
        await self.check()
        before = self.world.broker.node
        await self.world.broker.settled()
        await self.world.restart()
        assert set(self.world.broker.node.sessions) == {
            name for name, state in before.sessions.items() if not state.clean
        }
        await self.world.crash()
        return self.trace


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_run_keeps_every_promise(seed: int) -> None:
    chaos = Chaos(seed)
    try:
        simulate(chaos.run)
    except BaseException:
        print(f"seed {seed}:", "; ".join(chaos.trace[-40:]))
        raise


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        chaos = Chaos(7)
        simulate(chaos.run)
        runs.append((chaos.trace, chaos.world.disk.records))
    assert runs[0] == runs[1]
    assert any("crash" in step for step in runs[0][0])
