"""Checks of simulated clients' deliveries, and of the promises in the log."""

from harness import packets as p
from harness.packets import Publish
from harness.plainaudit import violations

from eventstore.format.records import decode_record
from simulation.fold import compare
from simulation.world import SimClient, World


async def acknowledged(world: World, receiver: SimClient) -> list[bytes]:
    """Acknowledge what comes until nothing more does; give the payloads in order."""
    got: list[bytes] = []
    for _ in range(60):
        arrived = [packet for packet in receiver.take() if isinstance(packet, Publish)]
        got += [one.payload for one in arrived]
        receiver.send(*(p.puback(one.packet_id or 0) for one in arrived))
        await world.go(0.1)
    return got


async def check_promises(world: World) -> None:
    """Raise AssertionError where the log, or what is made of it, is not as it must be."""
    await world.go(3)
    compare(world)
    history = world.disk.stream.history
    found = violations([decode_record(at, data) for at, data in sorted(history.items())])
    assert not found, found
    await world.restart()
    await world.go(1)
    compare(world)
