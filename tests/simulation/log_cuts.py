"""Cuts of the log, and what makes it grow."""

from harness import packets as p

from eventstore.format.node_events import LogCut
from simulation.world import SimClient, World


def cuts(world: World) -> list[LogCut]:
    return [event for event in world.disk.events() if isinstance(event, LogCut)]


async def traffic(world: World, client: SimClient, messages: int) -> None:
    """Publish, one message at a time."""
    for number in range(messages):
        client.send(p.publish("noise", bytes(200), 1, number % 65_535 + 1))
        await world.go(0.05)
        client.take()
