"""Acknowledgements of clients that are not on disk yet: what comes again after a kill."""

import pytest
from harness import packets as p
from harness.packets import Publish, Pubrel
from harness.plainaudit import violations

from eventstore.log.journal import Journal
from simulation.fold import compare
from simulation.world import SimClient, World, in_world

DELAY = 1.0
SEEN = 0.1
"""Seconds within which an acknowledgement may be handled and be on disk."""


class Reader(SimClient):
    """Acknowledges what it receives at once, and knows when."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.acknowledged: dict[bytes, tuple[int, float]] = {}
        """Payload -> QoS and time of the acknowledgement that completed the delivery."""
        self.again: list[Publish] = []
        self._open: dict[int, Publish] = {}

    def on_packet(self, packet: p.Packet) -> None:
        now = self.world.clock.monotonic()
        if isinstance(packet, Publish):
            pid = packet.packet_id or 0
            if packet.payload in self.acknowledged:
                self.again.append(packet)
            if packet.qos == 1:
                self.send(p.puback(pid))
                self.acknowledged[packet.payload] = 1, now
            else:
                self._open[pid] = packet
                self.send(p.pubrec(pid))
        elif isinstance(packet, Pubrel):
            self.send(p.pubcomp(packet.packet_id))
            if packet.packet_id in self._open:
                payload = self._open.pop(packet.packet_id).payload
                self.acknowledged[payload] = 2, now


async def life(world: World, rest: float) -> tuple[Reader, int]:
    """Deliver messages now and then, kill the broker ``rest`` seconds after the last one and start
    it again; return the reader after its return, and how many deliveries were repeated.
    """
    reader = Reader(world)
    reader.send(p.connect("r", clean=False), p.subscribe(1, ("a/#", 2)))
    sender = await world.connect("s")
    for number in range(1, 9):
        topic, qos = f"a/{number}", number % 2 + 1
        sender.send(p.publish(topic, b"%d" % number, qos, number))
        await world.go(0.05)
        if qos == 2:
            sender.send(p.pubrel(number))
        # No record that is due for another reason follows the last ones.
        await world.go(0.4 if number < 7 else 0.05)
    assert len(reader.acknowledged) == 8
    await world.go(rest)
    killed_at = world.clock.monotonic()
    await world.restart()
    back = Reader(world)
    back.acknowledged = reader.acknowledged
    before = dict(reader.acknowledged)
    back.send(p.connect("r", clean=False))
    await world.go(3 * DELAY)
    for packet in back.again:
        qos, at = before[packet.payload]
        assert packet.dup
        assert qos == packet.qos == 1, "a QoS 2 message was delivered twice"
        assert killed_at - at <= DELAY + SEEN, "it was acknowledged long before the kill"
    return back, len(back.again)


@pytest.mark.parametrize("rest", [0.0, 0.01, 0.3, 0.8, 0.95, 1.1, 3.0])
@in_world(ack_delay=DELAY)
async def test_only_what_was_acknowledged_in_the_last_second_comes_again(
    world: World, rest: float
) -> None:
    _, repeated = await life(world, rest)
    assert repeated == (1 if rest <= 0.8 else 0)
    compare(world)
    assert not violations(world.disk.decoded())


@pytest.mark.plain
@in_world(ack_delay=DELAY)
async def test_acknowledgements_that_are_never_recorded_are_found(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Journal, "flush_deferred", lambda _journal: None)
    with pytest.raises(AssertionError, match="long before the kill"):
        await life(world, 3.0)


@in_world(ack_delay=DELAY)
async def test_messages_have_their_own_time_not_that_of_an_earlier_acknowledgement(
    world: World,
) -> None:
    Reader(world).send(p.connect("r", clean=False), p.subscribe(1, ("a", 1)))
    sender = await world.connect("s")
    sender.send(p.publish("a", b"1", 1, 1))
    await world.go(0.9)
    sent_ms = world.broker.node.clock.steady_ms()
    sender.send(p.publish("a", b"2", 1, 2))
    await world.go(0.1)
    record = world.disk.decoded()[-1]
    kinds = [type(event).__name__ for _, event in record.events()]
    assert "Acked" in kinds, "the record begins with the acknowledgement"
    assert record.steady_ms >= sent_ms


@in_world(ack_delay=60.0)
async def test_acknowledgements_are_on_disk_when_a_session_or_the_broker_ends(world: World) -> None:
    for number, end in enumerate(("connection", "broker")):
        reader = Reader(world)
        reader.send(p.connect("r", clean=False), p.subscribe(1, ("a", 1)))
        sender = await world.connect("s")
        sender.send(p.publish("a", b"%d" % number, 1, 1))
        await world.go(0.5)
        assert not world.broker.node.journal.idle, "the acknowledgement is in memory"
        if end == "connection":
            reader.send(p.disconnect())
            await world.go(0.1)
        else:
            await world.drain()
        assert world.broker.node.journal.idle
        compare(world)
    assert all(not held.inflight for _, held in world.broker.node.state.sessions.items())
