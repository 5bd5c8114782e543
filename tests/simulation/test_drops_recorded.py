"""Drops of messages that were never recorded: their events name the topics."""

from collections.abc import Awaitable, Callable

import pytest
from harness import packets as p

from eventstore.format.events import MessageDropped
from simulation.checking import check_promises
from simulation.loop import simulate
from simulation.permission_worlds import OPEN, permit
from simulation.world import World, runs

BOUND = 20_000
DENIED = OPEN + "[[deny]]\npublish = ['secret/#']\n"


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with World(max_outbound_bytes=BOUND).running() as world:
            permit(world, DENIED)
            await scenario(world)
            await check_promises(world)

    simulate(whole)


def drops(world: World) -> list[MessageDropped]:
    return world.disk.events(MessageDropped)


@pytest.mark.parametrize("topic_filter", ["t/#", "$share/g/t/#"])
@runs(run)
async def test_drops_for_a_slow_reader_name_their_topics(
    world: World, *, topic_filter: str
) -> None:
    reader = await world.connect("r", filters=[(topic_filter, 0)])
    sender = await world.connect("s")
    reader.transport.stall()
    for number in range(60):
        sender.send(p.publish(f"t/{number % 2}", bytes(40_000), 0))
        await world.go(0.5)
    found = drops(world)
    assert {event.reason for event in found} == {"slow_reader"}
    assert {tuple(event.topics) for event in found} == {("t/0",), ("t/1",)}
    reader.transport.unstall()
    await world.go(5)


@runs(run)
async def test_drops_of_denied_publications_name_their_topics(world: World) -> None:
    permit(world, OPEN)
    sender = await world.connect("s", will=p.Will("secret/will", b"x", 1))
    await world.go(1)
    permit(world, DENIED)
    sender.send(p.publish("secret/a", b"x", 1, 1), p.publish("open", b"x", 1, 2))
    await world.go(1)
    sender.transport.drop()
    await world.go(2)
    assert {(event.reason, *event.topics) for event in drops(world)} == {
        ("not_permitted", "secret/a"),
        ("not_permitted", "secret/will"),
    }
