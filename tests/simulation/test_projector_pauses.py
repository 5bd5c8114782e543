"""The projections are written while the log grows slowly, or when much of it is not in them."""

import asyncio

import pytest
from harness import packets as p

from actors.maintenance import projector
from simulation.world import SimClient, World, in_world


@pytest.mark.parametrize("pause", [1.0, 1.02, 2.5])
@in_world()
async def test_a_pause_of_any_length_is_extended(
    world: World, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """Even if the last look is a moment after the one before."""
    monkeypatch.setattr(projector, "_FAST", 10)
    client = await world.connect("c")
    await world.go(1)
    own = world.broker.projector
    rest = asyncio.ensure_future(own._rest(pause))
    await publishes(world, client, 8, 4)
    assert not rest.done()
    await publishes(world, client, 3, 4)
    assert rest.done()  # after ten seconds


async def publishes(world: World, client: SimClient, seconds: float, count: int) -> None:
    """Publish ``count`` messages from a client every 0.25 seconds."""
    for _ in range(int(seconds * 4)):
        client.send(*(p.publish("t", b"x", 1, 1 + number) for number in range(count)))
        await world.go(0.25)


@pytest.mark.parametrize("tail", [100_000, 100])
@in_world()
async def test_while_the_log_grows_fast_the_projections_wait_within_bounds(
    world: World, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    monkeypatch.setattr(projector, "_FAST", 10)
    monkeypatch.setattr(projector, "_TAIL", tail)
    monkeypatch.setattr(projector, "_LATEST", 30.0)
    client = await world.connect("c")
    await world.go(5)
    written = world.broker.projector.marked
    await publishes(world, client, 12, 4)
    during = world.broker.projector.marked
    if tail < 12 * 16:
        assert during > written
    else:
        assert during - written < 10  # what began before they came
        await publishes(world, client, 22, 4)  # not for longer than half a minute
        assert world.broker.projector.marked > during + 10
    during = world.broker.projector.marked
    await publishes(world, client, 5, 1)
    assert world.broker.projector.marked > during
