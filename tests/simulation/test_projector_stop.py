"""A broker that stops during a round of its projections leaves projections that are whole."""

from __future__ import annotations

import pytest
from harness import packets as p

from simulation.world import SimClient, World, simulate

MILLISECOND = 0.001


@pytest.mark.parametrize("before", range(0, 60, 2))
def test_a_stop_during_a_round_loses_no_session(before: int) -> None:
    """What the round has taken and not written is written by the last one."""

    async def scenario() -> None:
        async with World(delay=lambda: 8 * MILLISECOND).running() as world:
            await world.go(1 - before * MILLISECOND)  # the next round begins after a second
            client = SimClient(world)
            client.send(p.connect("c", clean=False))
            await world.go(20 * MILLISECOND)
            assert client.take() == [p.Connack(0, session_present=False)]
            await world.broker.drain()
            await world.restart()
            await world.connect("c", present=True)

    simulate(scenario)
