"""Cuts of the log, and traffic that makes them."""

from harness import packets as p

from eventstore.format.node_events import LogCut
from simulation.world import SimClient, World


def cuts(world: World) -> list[LogCut]:
    return world.disk.events(LogCut)


async def publish_noise(world: World, client: SimClient, messages: int) -> None:
    """Publish messages of 200 bytes at QoS 1, one after the other."""
    for number in range(messages):
        client.send(p.publish("noise", bytes(200), 1, number % 65_535 + 1))
        await world.go(0.05)
        client.take()
