"""The connection to NATS is lost and restored."""

import pytest
from harness import packets as p

from simulation.world import SimClient, World, in_world


@pytest.mark.parametrize("seconds", [0.1, 3.0, 20.0])
@in_world()
async def test_messages_are_stored_as_soon_as_there_is_a_connection_again(
    world: World, seconds: float
) -> None:
    """The wait for room, which a full disk needs, and the growing pauses do not delay them."""
    client = SimClient(world)
    client.send(p.connect("c"))
    await world.go(1)
    world.log.nats.disconnect()
    client.send(p.publish("a", b"x", 1, 1))
    await world.go(seconds)
    world.log.nats.reconnect()
    await world.go(0.2)
    assert client.take() == [p.Connack(0), p.Puback(1)]
