"""Clients of several logs share a subscription, under random crashes: an account of every message.

``python tests/simulation/partition_shares.py --seeds 200`` runs many.
"""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from harness import packets as p

from simulation.chaos import delays_of, run_seed
from simulation.faults import Faults
from simulation.fold import compare, dropped
from simulation.partition_chaos import check_exchange, check_partition
from simulation.partitions import PartitionWorld, name_in, world_of
from simulation.random_runs import PartitionsRun
from simulation.seeds import run_seeds
from simulation.shared_clients import Member, Sender, check_received

_STEPS = 100
_TIMEOUT = 2000
"""Looks at which no member has got another message; with a window of one message and slow logs, a
long queue may take thousands in all."""
_QUIET = 15
"""Looks at which nothing is left: what was just assigned is in no queue until it was taken."""
SHARED = "$share/g/t/#"


class PartitionSender(Sender):
    """A client of one of the logs that sends each message until it is acknowledged."""

    at_once = False


class PartitionShares(PartitionsRun):
    """One random run of several brokers, with members and senders in each log."""

    def __init__(self, seed: int, errors: list[str]) -> None:
        super().__init__(errors)
        self.chance = chance = random.Random(f"shares of partitions {seed}")
        delays = chance.choice([[0.0001, 0.001, 0.02], [0.001], [0.001, 0.3]])
        self.faults = Faults(chance, delay=lambda: chance.choice(delays))
        self.rates = chance.choice([0.0, 0.02]), chance.choice([0.0, 0.05])
        self.worlds = self.make_worlds(
            chance.choice([2, 2, 3]),
            lost=chance.choice([0.0, 0.1, 0.9]),
            max_ack_pending=chance.choice([1, 3, 16, 1024]),
            message_cache=chance.choice([1, 300, 1 << 20]),
            max_record=chance.choice([2048, 1 << 23]),
            shared_strategy=chance.choice(["balanced", "topic"]),
            ack_wait=0.0,
            keep=0.0,
            keep_bytes=chance.choice([0, 40_000]),
            takeover_delay=0.01,
            **delays_of(seed),
        )
        for world in self.worlds:
            world.cutting = chance.random() < 0.3
        lazy = chance.choice([0.0, 0.3, 0.8])
        # The first one never ends its session, so that the group is there to the end. Where there
        # are few members, the last one of a log often leaves while messages wait for it.
        self.members = [
            Member(
                name_in(self.worlds, at % len(self.worlds), f"m{at}-"),
                clean=bool(at) and chance.random() < 0.4,
                lazy=lazy,
                chance=chance,
            )
            for at in range(chance.choice([2, 3, 4, 6]))
        ]
        self.senders = [
            PartitionSender(name_in(self.worlds, at, "s"), at * 1_000_000)
            for at in range(len(self.worlds))
        ]
        self.crashes = chance.choice([0.0, 0.4, 0.8])

    def world(self, one: Member | PartitionSender) -> Any:
        """Return the broker of a client."""
        return world_of(self.worlds, one.name)

    async def run(self) -> Counter[str]:
        """Run; return how often what happened."""
        try:
            await self.start()
            await self._join()
            self.faults.appends, self.faults.asks = self.rates
            for _ in range(_STEPS):
                await self.repair()
                self._act()
                await self.worlds[0].go(self.chance.choice([0.0, 0.001, 0.05, 1.0]))
                self._handle()
                self.look()
            await self._settle()
            await self._check()
        finally:
            for world in self.worlds:
                await world.crash()
        self.counts["acked"] = sum(len(sender.acked) for sender in self.senders)
        return self.counts

    async def _join(self) -> None:
        first = self.members[0]
        first.connect(self.world(first))
        for _ in range(200):
            await self.worlds[0].go(0.1)
            first.handle()
            if first.subscribed:
                return
        raise AssertionError("the first member gets no SUBACK")

    def _handle(self) -> None:
        for one in (*self.members, *self.senders):
            one.handle()

    def _act(self) -> None:
        chance = self.chance
        one, sender = chance.choice(self.members), chance.choice(self.senders)
        actions = [*["publish"] * 4, "member", "member", "leave", "drop", "kill", "hold"]
        action = chance.choice(actions)
        if action == "publish":
            gone = sender.client is None or not sender.client.open
            if gone and self.world(sender).has_entrance:
                sender.connect(self.world(sender))
            sender.publish(chance.choice([1, 1, 5, 30]), chance.choice([1, 2]))
        elif action == "member" and not one.open and self.world(one).has_entrance:
            self.note(f"connect {one.name}")
            one.connect(self.world(one))
        elif action == "kill" and chance.random() < self.crashes:
            self.kill()
        elif action == "hold":
            self.hold_one()
        elif one.client is not None and one.open:
            if action == "drop":
                self.note(f"drop {one.name}")
                one.client.drop()
            elif action == "leave" and one is not self.members[0]:
                self.note(f"unsubscribe {one.name}")
                one.client.send(p.unsubscribe(7, SHARED))

    def kill(self) -> None:
        """Kill a broker soon, at any step."""
        self.chance.choice(self.worlds).fuse = self.chance.randint(0, 30)

    async def repair(self) -> None:
        """Start brokers again, some time after their end."""
        for world in self.worlds:
            if world.up and world.failure() is None:
                continue
            if self.chance.random() < 0.5:
                continue
            self.note(f"restart of {world.name}")
            if world.up:
                world.excuse()
            await world.crash()
            await world.start_with_retries()

    async def _settle(self) -> None:
        """Let everything be delivered and acknowledged that is left."""
        self.faults.off()
        for world in self.worlds:
            world.fuse, world.lost = None, 0.0
        quiet, got, since = 0, 0, 0
        for count in itertools.count():
            await self.mend()
            for world in self.worlds:
                if world.log.held:
                    world.log.release()
            for one in (*self.members, *self.senders):
                if count == 20 or one.client is None or not one.client.open:
                    one.connect(self.world(one))
            for member in self.members:
                member.lazy = 0.0
            await self.worlds[0].go(0.2)
            self._handle()
            self.look()
            quiet = 0 if self._unfinished() else quiet + 1
            if count > 60 and quiet > _QUIET:
                return
            before, got = (
                got,
                len({payload for member in self.members for payload in member.received}),
            )
            since = count if got > before else since
            assert count < since + _TIMEOUT, f"never settles: {self._unfinished()}"

    async def mend(self) -> None:
        """Let all brokers run."""
        for world in self.worlds:
            if not world.up or world.failure() is not None:
                if world.up:
                    world.excuse()
                await world.crash()
                await world.start_with_retries()

    def _unfinished(self) -> list[str]:
        left = [
            f"{sender.name} has unacknowledged messages"
            for sender in self.senders
            if sender.pending
        ]
        for world in self.worlds:
            exchange = world.broker.exchange
            if exchange is None or any(exchange.behind.values()):
                left.append(f"{world.name} has not taken all")
            left += [
                f"{name} in {world.name}: {state.queued} queued, {len(state.inflight)} in flight"
                for name, state in world.broker.node.state.sessions.items()
                if state.queued or state.inflight or state.releasing
            ]
        return left

    async def _check(self) -> None:
        check_received(self.members, self.senders)
        for world in self.worlds:
            await world.broker.wait_durable()
            lost = dropped(world.disk).get(SHARED, set())
            assert not lost, (world.name, lost)
            compare(world)
            check_partition(world)
        await check_exchange(self.worlds)


def run(
    seed: int, use: Callable[[list[PartitionWorld]], object] = lambda _worlds: None
) -> Counter[str]:
    """Run a seed, then ``use`` its brokers; an error names it and the last actions."""
    return run_seed(PartitionShares, seed, use=lambda shares: use(shares.worlds))


if __name__ == "__main__":
    run_seeds(__doc__, run)
