"""One random run of several brokers that exchange messages; a seed decides everything.

``python tests/simulation/partition_chaos.py --seeds 200`` runs many.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.plainaudit import violations

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from collections.abc import AsyncIterator, Callable, Sequence

from harness import packets as p

from eventstore.format.records import Record, decode_record
from projections.audit.exchange_audit import audit_exchange
from projections.audit.exchange_check import ExchangeCheck
from projections.audit.rule_table import LogPlace, Violation, has_home, wrong_home
from simulation.chaos import delays_of, run_seed
from simulation.delivery_ledger import Account
from simulation.devices import Device, DeviceBehaviour, settled
from simulation.faults import Faults
from simulation.fold import compare, dropped
from simulation.network import SimClient
from simulation.partitions import PartitionWorld, name_in, world_of
from simulation.random_runs import DeviceRun, PartitionsRun
from simulation.seeds import run_seeds

if TYPE_CHECKING:
    from simulation.world import World

STEPS = 150
_TIMEOUT = 400
"""Seconds after the last message that a device gets; with a window of one message and slow logs, a
long queue takes longer in all."""


class PartitionChaos(DeviceRun, PartitionsRun):
    """One random run."""

    answer = 1.0
    """Seconds in which every request of a client is answered at the end."""

    def __init__(self, seed: int, errors: list[str]) -> None:
        super().__init__(errors)
        self.chance = chance = random.Random(f"partitions {seed}")
        self.settling = False
        self.account = Account()
        self.account.late = True
        delays = chance.choice([[0.0001, 0.001, 0.02], [0.001], [0.001, 0.3]])
        self.faults = Faults(chance, delay=lambda: chance.choice(delays))
        self.rates = chance.choice([0.0, 0.02, 0.1]), chance.choice([0.0, 0.05, 0.2])
        window = chance.choice([1, 3, 1024])
        self.worlds = self.make_worlds(
            chance.choice([2, 2, 3]),
            lost=chance.choice([0.0, 0.1, 0.9]),
            max_ack_pending=window,
            message_cache=chance.choice([1, 300, 1 << 20]),
            ack_wait=chance.choice([0.0, 2.0]),
            max_record=chance.choice([2048, 1 << 23, 1 << 23]),
            keep=0.0,
            keep_bytes=chance.choice([0, 40_000]),
            takeover_delay=0.01,
            **delays_of(seed),
        )
        for world in self.worlds:
            world.cutting = chance.random() < 0.3
        self.devices = self._population(window)
        self.actions: dict[Callable[[Device], None], float] = {
            self.publish: 40.0,
            self.pay: 15.0,
            self.connect: 8.0,
            self.drop: 5.0,
            self.leave: 4.0,
            self.subscribe: 6.0,
            self.unsubscribe: 3.0,
            self.crash: chance.choice([0.0, 2.0, 6.0]),
            self.fuse: chance.choice([0.0, 2.0, 6.0]),
            self.hold: 2.0,
        }

    def _population(self, window: int) -> list[Device]:
        chance, devices = self.chance, []
        habits = DeviceBehaviour(lazy=chance.choice([0.0, 0.3, 0.8]), cut=0.0)
        names = [
            name_in(self.worlds, number % len(self.worlds), kind)
            for kind in ("pub", "sub", "both")
            for number in range(2)
        ]
        for name in names:
            publishes, subscribes = name[:3] in ("pub", "bot"), name[:3] in ("sub", "bot")
            pool = ["#", "t/#", "r/#", "w/#", "+/+/a1", "t/+/a2", f"r/{names[0]}/a1", "+/#"]
            chance.shuffle(pool)
            fixed = chance.randint(1, 3) if subscribes else 0
            topics = [f"t/{name}/a{qos}" for qos in (0, 1, 1, 2, 2)]
            topics += [f"r/{name}/a{qos}" for qos in range(3)]
            devices.append(
                Device(
                    name,
                    self.account,
                    chance,
                    habits,
                    clean=chance.choice([0.0, 0.0, 0.2]),
                    topics=topics if publishes else [],
                    filters=[(one, chance.choice([1, 2, 2, 0])) for one in pool[:fixed]],
                    pool=pool[fixed : fixed + chance.choice([0, 3])] if subscribes else [],
                    will=chance.choice([None, f"w/{name}"]),
                    expiry=0.0,
                    window=window,
                    latency=0.0,
                )
            )
        return devices

    # Actions.

    def world(self, device: Device) -> Any:
        """Return the broker of a device."""
        return world_of(self.worlds, device.name)

    def connect(self, device: Device) -> None:
        """Connect, or take over."""
        if self.world(device).has_entrance:
            self.note("connect")
            device.connect(self.world(device))

    def crash(self, _device: Device) -> None:
        """Kill one of the brokers."""
        world = self.chance.choice(self.worlds)
        if world.up:
            self.note(f"crash of {world.name}")
            world.kill()

    def fuse(self, _device: Device) -> None:
        """Kill one of the brokers soon, at any step."""
        world = self.chance.choice(self.worlds)
        if world.up and world.fuse is None:
            world.fuse = self.chance.randint(0, 30)

    def hold(self, _device: Device) -> None:
        """A stream stores nothing for a while."""
        self.hold_one()

    # The run.

    async def run(self) -> Counter[str]:
        """Run; return how often what happened."""
        try:
            await self.start()
            self.faults.appends, self.faults.asks = self.rates
            for _ in range(STEPS):
                await self._step()
                self.look()
            await self._settle()
            await self._check()
        finally:
            for world in self.worlds:
                await world.crash()
        self.counts["messages"] = len(self.account.messages)
        self.counts.update(
            {f"killed: {what}": n for world in self.worlds for what, n in world.killed.items()}
        )
        return self.counts

    async def _step(self) -> None:
        chance = self.chance
        await self.repair()
        (action,) = chance.choices(list(self.actions), list(self.actions.values()))
        action(chance.choice(self.devices))
        pause = chance.choice([None, None, 0, 0.0005, 0.01, 0.1, 1.0])
        if pause is not None:
            await asyncio.sleep(pause)

    async def repair(self) -> None:
        """Start brokers again, some time after their end."""
        for world in self.worlds:
            if (not world.up or world.failure() is not None) and self.chance.random() < 0.3:
                await self._restart(world)

    async def _restart(self, world: PartitionWorld) -> None:
        if world.up:
            world.excuse()
        await world.crash()
        if self.chance.random() < 0.2:
            world.keyed.lose(min(3, len(world.keyed.history)))
        starting = asyncio.ensure_future(world.start_with_retries())
        try:
            while not starting.done():  # the others go on meanwhile
                if not self.settling:
                    self.publish(self.chance.choice(self.devices))
                await asyncio.sleep(self.chance.choice([0.0, 0.001, 0.02, 0.5]))
            await starting
        finally:
            starting.cancel()

    async def _settle(self) -> None:
        self.faults.off()
        self.settling = True
        for world in self.worlds:
            world.fuse, world.lost = None, 0.0
        got, since = 0, 0
        for seconds in itertools.count():
            await self.mend()
            for world in self.worlds:
                if world.log.held:
                    world.log.release()
            for device in self.devices:
                if device.connection is None:
                    device.connect(self.world(device))
                else:
                    device.connection.lazy = 0.0
                    device.connection.pay()
            await self.worlds[0].go(1.0)
            self.look()
            if seconds > 6 and self._settled():
                return
            receivers = self.account.receivers.values()
            before = got
            got = sum(len({came.payload for came in receiver.arrivals}) for receiver in receivers)
            since = seconds if got > before else since
            waiting = [device for device in self.devices if not settled(device)]
            assert seconds < since + _TIMEOUT, f"never settles: {waiting}"

    async def mend(self) -> None:
        """Let all brokers run."""
        for world in self.worlds:
            if not world.up or world.failure() is not None:
                await self._restart(world)

    def _settled(self) -> bool:
        return all(map(settled, self.devices)) and all(
            world.up
            and world.failure() is None
            and world.broker.exchange is not None
            and not any(world.broker.exchange.behind.values())
            and not any(
                state.inflight or state.releasing or state.queued
                for _, state in world.broker.node.state.sessions.items()
            )
            for world in self.worlds
        )

    async def _check(self) -> None:
        excused: dict[str, set[bytes]] = {}
        for world in self.worlds:
            excused |= dropped(world.disk)
        self.account.check(excused)
        for world in self.worlds:
            self.account.check_retained(await self._retained(world))
        await self.worlds[0].go(3.0)
        self.look()
        for world in self.worlds:
            await world.broker.wait_durable()
            compare(world)
            check_partition(world)
        await check_exchange(self.worlds)

    async def _retained(self, world: Any) -> dict[str, bytes]:
        """Return the retained messages that a new client of a broker gets."""
        number = self.worlds.index(world)
        reader = SimClient(world)
        reader.send(p.connect(name_in(self.worlds, number, "reader")))
        for pid, topic in enumerate(self.account.retained, 1):
            reader.send(p.subscribe(pid, (topic, 0)))
            await world.go(self.answer)
        packets = [
            packet for packet in reader.take() if isinstance(packet, p.Publish) and packet.retain
        ]
        reader.send(p.disconnect())
        await world.go(1.0)
        return {packet.topic: packet.payload for packet in packets}


def check_partition(world: World) -> None:
    """Raise AssertionError where a log breaks a rule of the audit, or of the exchange."""
    records = [decode_record(at, data) for at, data in sorted(world.disk.stream.history.items())]
    found = violations(records)
    assert not found, found
    problems: list[str] = []
    check = ExchangeCheck(lambda sequence, what: problems.append(f"{sequence}: {what}"))
    for record in records:
        check.take(record, record.events())
    assert not problems, problems


class _HistorySource:
    """The records of a log, those that were cut off too, for an audit."""

    begin = 1

    def __init__(self, world: World) -> None:
        self._history = world.disk.stream.history
        self.last = max(self._history, default=0)

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        """Yield records."""
        for sequence in range(first, last + 1):
            yield decode_record(sequence, self._history[sequence])


async def check_exchange(worlds: Sequence[Any]) -> None:
    """Raise AssertionError where a log lacks what its sessions should have got from another."""
    logs: dict[str, Any] = {world.name: _HistorySource(world) for world in worlds}
    names = tuple(logs)
    for number, world in enumerate(worlds):
        for name, state in world.broker.node.state.sessions.items():
            said = wrong_home(name, state, LogPlace(number, names)) if has_home(name) else None
            assert said is None, said
    for name in logs:
        wrong: list[Violation] = []
        ends = {other: source.last for other, source in logs.items()}
        found = await audit_exchange(name, logs, wrong.append, ends=ends)
        assert not wrong, (name, wrong[:10])
        assert not any(end.pending for end in found.ends), (name, found)


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and the last actions."""
    return run_seed(PartitionChaos, seed)


if __name__ == "__main__":
    run_seeds(__doc__, run)
