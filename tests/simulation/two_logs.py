"""A scenario with two brokers that exchange messages."""

from collections.abc import Awaitable, Callable
from typing import Any

from simulation.fold import compare
from simulation.loop import simulate
from simulation.partition_chaos import check_exchange, check_partition
from simulation.partitions import PartitionWorld, make_partitions


def two(
    scenario: Callable[[PartitionWorld, PartitionWorld], Awaitable[None]], **options: Any
) -> None:
    """Run a scenario; then check states, logs and what each log took of the other."""

    async def both() -> None:
        here, there = make_partitions(2, **options)
        await here.start()
        await there.start()
        await here.go(0.1)
        try:
            await scenario(here, there)
            for world in (here, there):
                assert world.failure() is None, world.failure()
                await world.broker.wait_durable()
                compare(world)
                check_partition(world)
            await check_exchange([here, there])
        finally:
            await here.crash()
            await there.crash()

    simulate(both)
