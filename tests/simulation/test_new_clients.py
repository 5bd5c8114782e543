"""Input of new clients: its order is kept, whatever priority each part of it has."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from harness import packets as p
from harness.packets import Publish

from simulation.world import SimClient, World, in_world, simulate

SIZES = [1, 1, 100, 2500, 6000]
"""Bytes of payloads: some reads are large, some larger than what a new client may have waiting."""


def sent_by(number: int, chance: random.Random) -> Iterator[bytes]:
    """Messages of a new client, and subscriptions to topics to which it publishes from then on."""
    topics = ["all/0"]
    for at in range(1, 25):
        if chance.random() < 0.2:
            topics.append(f"own/{number}/{at}")
            yield p.subscribe(at, (topics[-1], 1))
        elif chance.random() < 0.2:
            yield p.pingreq()
        else:
            payload = b"%d %d " % (number, at)
            payload = payload.ljust(chance.choice(SIZES), b".")
            yield p.publish(topics[-1], payload, 1, at)
    yield p.disconnect()


def numbers(received: list[p.Packet], number: int) -> list[int]:
    """Give the numbers of the messages of a client."""
    payloads = [packet.payload.split() for packet in received if isinstance(packet, Publish)]
    return [int(which) for sender, which, *_ in payloads if int(sender) == number]


@pytest.mark.parametrize("cutting", [True, False], ids=["cut", "whole"])
@pytest.mark.parametrize("seed", range(6))
def test_packets_of_a_new_client_stay_in_order(seed: int, *, cutting: bool) -> None:
    async def send(world: World, number: int, chance: random.Random) -> SimClient:
        client = SimClient(world)
        parts = [p.connect(f"c{number}"), *sent_by(number, chance)]
        while parts:
            for _ in range(chance.choice([0, 1, 1, 3])):
                await asyncio.sleep(0)
            if chance.random() < 0.1:
                await asyncio.sleep(chance.choice([0.0005, 0.003]))
            count = chance.choice([1, 1, 1, 2])
            if len(parts) < 25 and not client.received and chance.random() < 0.8:
                await asyncio.sleep(0.01)  # the answer to the CONNECT is not waited for, at times
            client.send(*parts[:count])
            del parts[:count]
        return client

    async def scenario() -> None:
        world = World()
        world.cutting = cutting
        async with world.running():
            reader = await world.connect("r", filters=[("#", 0)])
            await world.go(2)
            chance = random.Random(seed)
            made = [
                send(world, number, random.Random(f"{seed} {number}"))
                for number in range(chance.choice([1, 2, 8]))
            ]
            clients = await asyncio.gather(*made)
            await world.go(5)
            got = reader.take()
            for number, client in enumerate(clients):
                parts = list(sent_by(number, random.Random(f"{seed} {number}")))
                assert not client.open
                found = numbers(got, number)
                assert found == sorted(found)
                assert len(found) == sum(part[0] >> 4 == 3 for part in parts)
                own = numbers(client.take(), number)
                assert own == sorted(own)

    simulate(scenario)


@in_world()
async def test_a_new_client_has_normal_priority_from_its_first_message_on(world: World) -> None:
    one, other, third = [await world.connect(name) for name in "abc"]
    one.send(p.subscribe(1, ("t", 1)))
    assert not one.connection.settled, "those of many clients share a record"
    other.send(p.publish("t", b"1"))
    assert not other.connection.settled, "another new client waits"
    await world.go(0.1)
    other.send(p.publish("t", b"2"), p.publish("t", b"2"))
    assert not other.connection.settled
    await world.go(0.1)
    third.send(p.publish("t", b"x" * 20_000))
    assert not third.connection.settled
    await world.go(0.1)
    for client in (one, other):
        client.send(p.publish("t", b"3"))
        assert client.connection.settled
