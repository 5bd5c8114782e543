"""Publishers that wait for each other's receivers wait no longer than the documented bound."""

from collections.abc import Callable

import pytest
from harness import packets as p

from actors.node import backpressure
from actors.node.read_pause import ReadPause
from actors.session import delivery
from simulation.world import SimClient, World, in_world

_TICK = 0.01
_WAITS = ReadPause.BACKLOG | ReadPause.SLOW_READER


class Peer(SimClient):
    """Publishes to the next of a ring, and acknowledges what it gets from the one before.

    Its program has one thread: it reads when it has written all that it wants to.
    """

    def __init__(self, world: World, number: int, ring: int) -> None:
        super().__init__(world)
        self.got: list[bytes] = []
        self.longest = 0.0
        """Seconds for which it waited for receivers without a break."""
        self._topic = f"to/{(number + 1) % ring}"
        self._sent = 0
        self._since: float | None = None
        self.send(p.connect(f"c{number}"), p.subscribe(1, (f"to/{number}", 1)))

    def publish(self, qos: int, count: int) -> None:
        """Publish some more, in one piece."""
        numbers = range(self._sent + 1, self._sent + count + 1)
        self.send(
            *(
                p.publish(self._topic, b"%d" % number, qos, number if qos else None)
                for number in numbers
            )
        )
        self._sent += count

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Publish):
            self.got.append(packet.payload)
            if packet.qos:
                self.send(p.puback(packet.packet_id))

    def look(self, now: float, *, writing: bool) -> None:
        """See whether it waits, and let its program read or not."""
        if not self.connection.paused & _WAITS:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            self.longest = max(self.longest, now - self._since)
        if writing or self.transport.arrived:
            self.transport.stall()
        else:
            self.transport.unstall()


async def publish_in_a_ring(
    world: World, ring: int, qos: int, done: Callable[[Peer], bool]
) -> list[Peer]:
    """Let each publish much to the next one, until all that is to come has come."""
    peers = [Peer(world, number, ring) for number in range(ring)]
    await world.go(0.5)
    now = 0.0
    for round_ in range(12_000):
        if round_ < 100:
            for peer in peers:
                peer.publish(qos, 20)
        await world.go(_TICK)
        now += _TICK
        for peer in peers:
            peer.look(now, writing=round_ < 100)
        if round_ >= 100 and all(map(done, peers)):
            return peers
    raise AssertionError(f"they stand still: {[len(peer.got) for peer in peers]}")


@pytest.mark.parametrize("ring", [2, 3])
@in_world(max_ack_pending=4)
async def test_publishers_that_wait_for_each_others_backlogs_do_not_deadlock(
    world: World, ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "BACKLOG", 20)
    peers = await publish_in_a_ring(world, ring, 1, lambda one: len(one.got) == 2000)
    for peer in peers:
        assert peer.got == [b"%d" % number for number in range(1, 2001)]
        assert 0 < peer.longest <= backpressure._AT_MOST + 2 * _TICK
    assert not any(peer.connection.paused for peer in peers)


@pytest.mark.parametrize("ring", [2, 3])
@in_world(write_high=300)
async def test_publishers_that_wait_for_each_other_without_reading_do_not_deadlock(
    world: World, ring: int
) -> None:
    def done(peer: Peer) -> bool:
        return not peer.transport.arrived and not peer.transport.buffer

    peers = await publish_in_a_ring(world, ring, 0, done)
    for peer in peers:
        assert 0 < peer.longest <= backpressure._LONGEST + 2 * _TICK
        assert peer.got[-1:] == [b"2000"]
    assert not any(peer.connection.paused for peer in peers)
