"""Several brokers of one node, each with a log of its own, that exchange messages."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from actors.broker.broker import Broker
from actors.exchange.exchange import OtherLog
from eventstore.partitions import partition_of
from simulation.compacted_stream import MemoryKeyedStore
from simulation.faults import Faults
from simulation.world import SimLog, SimWatermark, World

LOSSY = frozenset({"heard", "pushed", "reported_topics"})
"""What may be lost or doubled."""


class SimExchangeLink:
    """Messages of one broker to the others: in order, late, sometimes lost; of records, doubled."""

    largest = 1 << 20

    def __init__(self, world: PartitionWorld) -> None:
        self._world = world
        self._arrives = 0.0
        self.dead = False

    def announce(self, log: str, sequence: int, record: bytes) -> None:
        self._send("heard", log, sequence, record)

    def push(self, to: str, records: bytes) -> bool:
        if len(records) > self.largest:
            return False
        self._send("pushed", self._world.name, records, to=to)
        return True

    def report_topics(self, to: str, topics: bytes) -> None:
        if len(topics) > self.largest:
            return
        self._send("reported_topics", self._world.name, topics, to=to)

    def pass_on(self, batch: bytes) -> bool:
        self._send("arrived", self._world.name, batch)
        return True

    def report(self, members: bytes) -> bool:
        if self._world.faults.chance.random() >= self._world.lost:
            self._send("reported", self._world.name, members)
        return True

    def report_filters(self, filters: bytes) -> bool:
        if self._world.faults.chance.random() >= self._world.lost:
            self._send("reported_filters", self._world.name, filters)
        return True

    def _send(self, what: str, *said: Any, to: str = "") -> None:
        world = self._world
        if self.dead:
            return
        loop = asyncio.get_running_loop()
        if what in LOSSY and world.faults.chance.random() < world.lost:
            return
        self._arrives = max(self._arrives, loop.time() + world.faults.delay())
        for other in world.others:
            if to and other.name != to:
                continue
            loop.call_at(self._arrives, self._deliver, other, what, said)
            if what in LOSSY and world.faults.chance.random() < world.lost / 4:
                later = self._arrives + world.faults.delay()
                loop.call_at(later, self._deliver, other, what, said)

    @staticmethod
    def _deliver(other: PartitionWorld, what: str, said: tuple[Any, ...]) -> None:
        if other.listens:
            getattr(other.broker.exchange, what)(*said)


class PartitionWorld(World):
    """One of the brokers; ``others`` are the rest."""

    def __init__(self, name: str, **options: Any) -> None:
        self.lost = options.pop("lost", 0.0)
        super().__init__(**options)
        self.name = name
        self.options = dataclasses.replace(self.options, node=name)
        self.all: Sequence[PartitionWorld] = (self,)
        self._links: list[SimExchangeLink] = []
        self._readers: list[SimLog] = []

    @property
    def others(self) -> list[PartitionWorld]:
        """The other brokers."""
        return [one for one in self.all if one is not self]

    @property
    def listens(self) -> bool:
        """Whether the broker hears the others: also while it recovers."""
        return bool(self._links) and self.broker.exchange is not None

    async def start(self) -> None:
        self.log = self.open_log()
        await self.begin(self._join)

    def reader_of(self, other: PartitionWorld) -> SimLog:
        """The log of another broker."""
        return SimLog(other.server, SimWatermark(), MemoryKeyedStore(), reads=True)

    async def _join(self, broker: Broker) -> None:
        link = SimExchangeLink(self)
        self._links.append(link)
        others = []
        for other in self.others:
            reader = self.reader_of(other)
            self._readers.append(reader)
            others.append(OtherLog(other.name, reader))
        broker.join([one.name for one in self.all], others, link)
        await broker.recover(lambda _done, _total: None)

    def kill(self) -> None:
        for link in self._links:
            link.dead = True
        for reader in self._readers:
            reader.nats.die()
        self._links.clear()
        self._readers.clear()
        super().kill()


def make_partitions(
    count: int,
    faults: Faults | None = None,
    kind: type[PartitionWorld] = PartitionWorld,
    **options: Any,
) -> list[PartitionWorld]:
    """Return the brokers of a node."""
    found = [kind(f"n-p{number}", faults=faults, **options) for number in range(count)]
    for one in found:
        one.all = found
    return found


def world_of(worlds: Sequence[PartitionWorld], client: str) -> PartitionWorld:
    """Return the broker that a client belongs to."""
    return worlds[partition_of(client, len(worlds))]


def name_in(worlds: Sequence[PartitionWorld], number: int, prefix: str = "c") -> str:
    """Return a client identifier that belongs to a broker."""
    return next(
        name
        for name in (f"{prefix}{at}" for at in range(1000))
        if partition_of(name, len(worlds)) == number
    )
