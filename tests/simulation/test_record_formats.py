"""An older foldmq's log is continued in format 2: after any kill, and with records of both."""

import random

import pytest
from harness import packets as p
from harness.packets import Publish, Pubrel
from harness.plainaudit import violations

from eventstore.format.records import format_of
from simulation.fold import compare
from simulation.world import SimClient, World, in_world


class Reader(SimClient):
    """Acknowledges what it receives, and keeps it."""

    def __init__(self, world: World, got: list[bytes]) -> None:
        super().__init__(world)
        self._got = got

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, Publish):
            if not packet.dup:
                self._got.append(packet.payload)
            answer = p.puback if packet.qos == 1 else p.pubrec
            self.send(answer(packet.packet_id or 0))
        elif isinstance(packet, Pubrel):
            self.send(p.pubcomp(packet.packet_id))


@in_world(record_format=1)
async def test_a_process_with_older_siblings_writes_no_record_that_they_refuse(
    world: World,
) -> None:
    for _ in range(2):
        writer = await world.connect("w")
        writer.send(p.publish("t", b"x" * 200, 1, 1, retain=True))
        await world.go(1)
        await world.restart()
    assert {*map(format_of, world.disk.stream.history.values())} == {1}


@pytest.mark.parametrize("seed", range(6))
@in_world(ack_delay=0.01)
async def test_kills_between_formats_lose_nothing(world: World, seed: int) -> None:
    chance = random.Random(seed)

    async def life(world: World, record_format: int, got: list[bytes], first: int) -> None:
        """Deliver messages until the broker is killed with appends on their way."""
        world.broker.node.journal.record_format = record_format
        reader = Reader(world, got)
        reader.send(p.connect("r", clean=False), p.subscribe(1, ("#", 2)))
        senders = [await world.connect(f"s{at}") for at in range(5)]
        for number in range(first, first + 60):
            qos = 1 + number % 2
            sender = senders[number % 5]
            sender.send(p.publish(f"t/{number % 7}", b"%d" % number, qos, number, retain=True))
            if qos == 2:
                sender.send(p.pubrel(number))
            await world.go(chance.choice((0, 0, 0.0005, 0.002, 0.03)))
        await world.go(3)
        world.log.hold()
        senders[0].send(p.publish("t/last", b"%d" % (first + 60), 1, 900))
        await world.go(0.05)
        await world.restart(keep=chance.randint(0, 1))

    got: list[bytes] = []
    for number, record_format in enumerate((1, 2, 1, 2), 0):
        await life(world, record_format, got, 1 + 100 * number)
    Reader(world, got).send(p.connect("r", clean=False))
    await world.go(3)
    compare(world)
    assert violations(world.disk.decoded()) == []
    written = [data[3] for data in world.disk.stream.history.values()]
    assert {1, 2} == set(written)
    assert written != sorted(written)
    numbers = {int(payload) for payload in got}
    for number in range(4):
        assert set(range(1 + 100 * number, 61 + 100 * number)) <= numbers
