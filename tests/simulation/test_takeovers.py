"""Two clients that compete for an identifier are slowed down; a client that flaps is not."""

import asyncio

import pytest
from harness import packets as p
from harness.packets import Connack

from actors.limits.limit_options import LimitOptions
from eventstore.format.events import SessionTakenOver
from simulation.world import SimClient, World, in_world

ACCEPTED = Connack(0, session_present=True)
HOSTS = [f"192.0.2.{number}" for number in range(1, 20)]


def come(world: World, host: str = HOSTS[0]) -> SimClient:
    client = SimClient(world, host=host)
    client.send(p.connect("c", clean=False))
    return client


async def use(world: World, client: SimClient) -> None:
    """Subscribe and ask for a PINGRESP."""
    client.send(p.subscribe(1, ("a", 1)), p.pingreq())
    await world.go(0.01)


def takeovers(world: World) -> int:
    return sum(isinstance(event, SessionTakenOver) for event in world.disk.events())


@in_world(takeover_delay=1.0)
async def test_a_client_that_takes_back_its_identifier_waits(world: World) -> None:
    first = await world.connect("c")
    second = come(world, HOSTS[1])
    await world.go(0.1)
    assert (first.open, second.take()) == (False, [ACCEPTED])
    await use(world, second)
    second.take()
    third = come(world)
    await world.go(0.8)
    assert (second.open, third.take()) == (True, [])
    await world.go(0.3)
    assert (second.open, third.take()) == (False, [ACCEPTED])


@in_world(takeover_delay=1.0)
async def test_a_waiting_client_does_not_take_over_a_later_connection(world: World) -> None:
    """A client that gave up waiting and connected once more keeps that connection."""
    await world.connect("c")
    second = come(world, HOSTS[1])
    await world.go(0.1)
    await use(world, second)
    waiting = come(world)
    await world.go(0.2)
    second.send(p.disconnect())
    await world.go(0.1)
    last = come(world)
    await world.go(2)
    assert (last.open, last.take()) == (True, [ACCEPTED])
    assert (waiting.open, waiting.take()) == (False, [Connack(3, session_present=False)])


@pytest.mark.parametrize(
    ("hosts", "used", "most"),
    [(HOSTS[:2], True, 13), (HOSTS[:2], False, 25), (HOSTS[:1], True, 25), (HOSTS[:1], False, 25)],
)
@in_world(takeover_delay=1.0)
async def test_two_clients_with_one_identifier_do_not_overload_the_broker(
    world: World, hosts: list[str], *, used: bool, most: int
) -> None:
    """In ten seconds, each coming back as soon as it was thrown out; 13 of them may be free."""
    fighters: list[SimClient | None] = [None, None]
    for _ in range(200):
        for at, fighter in enumerate(fighters):
            if fighter is None or not fighter.open:
                fighters[at] = come(world, hosts[at % len(hosts)])
            elif used and ACCEPTED in fighter.take():
                await use(world, fighter)
        await asyncio.sleep(0.05)
    assert 5 < takeovers(world) < most


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("gone", [True, False])
@in_world()
async def test_ten_connections_in_a_row_from_one_host_are_accepted_at_once(
    world: World, *, used: bool, gone: bool
) -> None:
    client = await world.connect("c")
    for _ in range(9):
        if gone:
            client.transport.stall()
        client = come(world)
        await world.go(0.01)
        assert client.take()[:1] == [ACCEPTED]
        if used:
            await use(world, client)
    assert client.open
    assert takeovers(world) == 9


@pytest.mark.parametrize("hosts", [HOSTS[:10], HOSTS[:2] * 5])
@in_world()
async def test_ten_connections_in_a_row_from_changing_hosts_are_accepted_at_once(
    world: World,
    hosts: list[str],
) -> None:
    """Each before is silent: its network is gone."""
    await world.connect("c")
    for host in hosts[1:]:
        client = come(world, host)
        await world.go(0.01)
        assert client.take() == [ACCEPTED]


@in_world()
async def test_an_active_client_that_changes_hosts_is_accepted_at_once(world: World) -> None:
    await world.connect("c")
    for host in HOSTS[1:10]:
        client = come(world, host)
        await world.go(0.01)
        assert client.take() == [ACCEPTED]
        await use(world, client)


@in_world()
async def test_a_client_that_reconnects_every_second_is_never_held_back(world: World) -> None:
    """Neither for taking over nor, by default, for flapping."""
    await world.connect("c")
    for _ in range(600):
        client = come(world)
        await world.go(1)
        assert client.take() == [ACCEPTED]
    assert world.broker.node.limits.refused.counts == {}


@in_world(takeover_delay=0.0, bounds=LimitOptions())
async def test_flapping_leaves_a_hundred_connections_in_a_row_alone(world: World) -> None:
    await world.connect("c")
    for _ in range(100):
        client = come(world)
        await world.go(0.01)
        assert client.take() == [ACCEPTED]
