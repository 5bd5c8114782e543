"""Members of a shared subscription."""

from harness import packets as p
from harness.packets import Publish
from harness.plainaudit import violations

from simulation.fold import compare
from simulation.world import SimClient, World

SHARED = "$share/g/a/+"


def publish(client: SimClient, *numbers: int, topic: str = "a/b", qos: int = 1) -> None:
    client.send(
        *(p.publish(topic, b"%d" % number, qos, number if qos else None) for number in numbers)
    )


def numbers(client: SimClient, *, ack: bool = True) -> list[int]:
    """Take the messages that a client got, and acknowledge them."""
    found = [packet for packet in client.take() if isinstance(packet, Publish)]
    if ack and client.open:
        client.send(*(p.puback(one.packet_id) for one in found if one.packet_id and one.qos == 1))
    return [int(one.payload) for one in found]


async def members(world: World, *names: str, qos: int = 1) -> list[SimClient]:
    return [await world.connect(name, filters=[(SHARED, qos)]) for name in names]


def prove(world: World) -> None:
    """Compare the broker's state with the log, and audit the log."""
    compare(world)
    assert not violations(world.disk.decoded())
