"""What random runs have in common: counts, what devices do, and several brokers."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from simulation.devices import Device
from simulation.faults import Faults
from simulation.partitions import make_partitions


class RandomRun:
    """One random run, decided by a seed."""

    chance: random.Random

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        self.counts: Counter[str] = Counter()
        """How often what happened."""
        self.trace: list[str] = []

    def note(self, what: str) -> None:
        """Record an action for the account of a failure."""
        self.counts[what] += 1
        self.trace.append(f"{asyncio.get_running_loop().time():.4f} {what}")


class DeviceRun(RandomRun):
    """A run with devices that publish and subscribe."""

    devices: list[Device]

    def connect(self, device: Device) -> None:
        """Connect, or take over."""
        raise NotImplementedError

    def publish(self, device: Device) -> None:
        """Publish some messages."""
        if not device.topics:
            device = self.chance.choice([other for other in self.devices if other.topics])
        if device.connection is None:
            self.connect(device)
        else:
            self.note("publish")
            device.connection.publish()

    def pay(self, device: Device) -> None:
        """Send acknowledgements."""
        if device.connection is not None:
            device.connection.pay()

    def drop(self, device: Device) -> None:
        """Lose the connection."""
        if device.connection is not None:
            self.note("drop")
            device.connection.drop()

    def leave(self, device: Device) -> None:
        """Disconnect in order."""
        if device.connection is not None:
            self.note("leave")
            device.connection.leave()

    def subscribe(self, device: Device) -> None:
        """Subscribe."""
        if device.connection is not None and device.pool:
            self.note("subscribe")
            device.connection.subscribe()

    def unsubscribe(self, device: Device) -> None:
        """Unsubscribe."""
        if device.connection is not None and device.pool:
            self.note("unsubscribe")
            device.connection.unsubscribe()


class PartitionsRun(RandomRun):
    """A run with several brokers that exchange messages."""

    worlds: Sequence[Any]
    faults: Faults

    def make_worlds(self, count: int, **options: Any) -> Sequence[Any]:
        """Return the brokers."""
        return make_partitions(count, self.faults, **options)

    async def start(self) -> None:
        """Start all brokers."""
        for world in self.worlds:
            await world.start_with_retries()

    def look(self) -> None:
        """Stop as soon as a client finds something wrong or a broker reports an error."""
        for world in self.worlds:
            if world.problems:
                raise world.problems[0]
        assert not self.errors, self.errors[0]

    def hold_one(self) -> None:
        """A stream stores nothing for a while."""
        world = self.chance.choice(self.worlds)
        if world.up and not world.log.held:
            self.note("a stream stands still")
            world.log.hold()
            still = self.chance.choice([0.01, 0.5, 4.0])
            asyncio.get_running_loop().call_later(still, world.log.release)
