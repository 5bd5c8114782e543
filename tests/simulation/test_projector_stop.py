"""A broker that stops during a round of its projections leaves projections that are whole."""

import asyncio
from collections.abc import Sequence

import pytest
from harness import packets as p

from simulation.world import SimClient, World, in_world

MILLISECOND = 0.001


@pytest.mark.parametrize("before", range(0, 60, 2))
@in_world(delay=lambda: 8 * MILLISECOND)
async def test_a_stop_during_a_round_loses_no_session(world: World, before: int) -> None:
    """What the round has taken and not written is written by the last one."""
    await world.go(1 - before * MILLISECOND)  # the next round begins after a second
    client = SimClient(world)
    client.send(p.connect("c", clean=False))
    await world.go(20 * MILLISECOND)
    assert client.take() == [p.Connack(0, session_present=False)]
    await world.broker.drain()
    await world.restart()
    await world.connect("c", present=True)


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("before", range(28, 48, 4))
@in_world(delay=lambda: 8 * MILLISECOND)
async def test_a_stop_during_a_round_leaves_a_session_of_several_parts_whole(
    world: World, before: int, *, grows: bool
) -> None:
    few = [(f"few/{number}", 0) for number in range(2)]
    many = [(f"many/{number}/" + "x" * 1000, 0) for number in range(150)]
    client = await world.connect("c", filters=few)
    if not grows:
        await subscribe(world, client, many)
    await round_ended(world)
    await world.go(1 - before * MILLISECOND)
    if grows:
        client.send(p.subscribe(7, *many))
    else:
        client.send(p.unsubscribe(7, *(one for one, _ in many)))
    await world.go(20 * MILLISECOND)
    await world.broker.drain()
    await world.restart()
    assert world.broker.projector.marked
    await world.connect("c", present=True)
    state = world.broker.node.state.sessions["c"]
    assert len(state.subscriptions) == (152 if grows else 2)


async def subscribe(world: World, client: SimClient, filters: Sequence[tuple[str, int]]) -> None:
    for number in range(0, len(filters), 20):
        client.send(p.subscribe(8, *filters[number : number + 20]))
        await world.go(20 * MILLISECOND)


async def round_ended(world: World) -> None:
    """Wait until the projections reflect the whole log, and a millisecond at most."""
    own, journal = world.broker.projector, world.broker.node.journal
    while (  # noqa: ASYNC110 - nothing tells
        journal.last_closed is None or own.marked < journal.last_closed[0]
    ):
        await asyncio.sleep(MILLISECOND)


async def cut_off(world: World) -> None:
    """Cancel the round."""
    (task,) = (one for one in world.broker._background if one.get_name() == "projections")
    task.cancel()
    await asyncio.wait({task})


@in_world()
async def test_an_interrupted_round_during_a_rebuild_keeps_its_changes(world: World) -> None:
    node = world.broker.node
    await world.go(0.5)
    for name in ("a", "x"):
        SimClient(world).send(p.connect(name, clean=False))
    await world.go(0.1)
    node.rebuilding.add("x")  # as when it has failed
    while node.state.dirty:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(MILLISECOND)
    await asyncio.sleep(MILLISECOND)
    await cut_off(world)
    node.rebuilding.discard("x")
    await world.broker.projector.finish()
    await world.restart()
    assert world.broker.projector.marked
    assert set(world.broker.node.state.sessions) == {"a", "x"}


@pytest.mark.parametrize("stored", [True, False])
@in_world()
async def test_a_message_that_is_cut_off_while_it_is_sent_may_arrive(
    world: World, *, stored: bool
) -> None:
    own = world.broker.projector
    await world.go(0.5)
    SimClient(world).send(p.connect("a", clean=False))
    await world.go(0.1)
    put, sends = own._store.put, asyncio.Event()

    async def slow(key: str, data: bytes, *, gone: bool = False) -> None:
        if stored:
            await put(key, data, gone=gone)
        sends.set()
        await asyncio.sleep(1)

    own._store.put = slow
    await sends.wait()
    await cut_off(world)
    own._store.put = put
    await own.finish()
    await world.restart()
    assert world.broker.projector.marked
    assert set(world.broker.node.state.sessions) == {"a"}
