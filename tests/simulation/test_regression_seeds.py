"""Defects that the random runs found, each in its smallest form."""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from harness import packets as p
from harness.packets import Publish

from eventstore.errors import EventStoreError, Fenced
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import GENESIS
from eventstore.log.journal import Journal
from eventstore.log.log_writer import LogWriter
from eventstore.log.pending_record import GatedOutput
from simulation.checking import acknowledged
from simulation.faults import Faults
from simulation.jetstream import SimNats, SimServer, SimStream
from simulation.loop import SimClock
from simulation.world import STREAM, SUBJECT, SimClient, World, in_world, simulate


class RecordingSink:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self.taken: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.taken.append(data)


def test_a_record_behind_one_that_was_refused_is_not_stored() -> None:
    """Another writer's append came first; the second of two records in flight fits behind it."""

    async def scenario() -> tuple[int, list[bytes], list[EventStoreError]]:
        stream = SimStream(STREAM, SUBJECT)
        nats = SimNats(SimServer(Faults(delay=lambda: 0.01), stream), lambda: None)
        failures: list[EventStoreError] = []
        writer = LogWriter(cast("Any", nats), STREAM, SUBJECT, SimClock(), failures.append)
        journal = Journal(
            writer, SimClock(), node="sim", sequence=0, link=GENESIS, max_record=1 << 20,
            parallel_from=0,
        )  # fmt: skip
        await writer.start(journal)
        world = World()
        await world.start()
        stream.store(world.disk.records[0])
        taker = RecordingSink()
        for number in b"12":
            journal.append(BrokerStarted("test"))
            journal.send_when_durable(taker, bytes([number]))
            journal.end_turn()
        await world.go(20)
        await writer.stop()
        await world.crash()
        return len(stream.messages), taker.taken, failures

    stored, acknowledged_, failures = simulate(scenario)
    assert (stored, acknowledged_) == (1, [])
    assert isinstance(failures[0], Fenced)


@in_world(session_expiry=10.0)
async def test_an_outage_of_the_log_does_not_let_a_session_expire_too_early(world: World) -> None:
    client = await world.connect("c")
    sender = await world.connect("d")
    world.log.hold()
    for number in (1, 2):
        sender.send(p.publish("a", b"x", 1, number))
        await world.calm()
    await world.go(8)
    client.drop()
    await world.go(1)
    world.log.release()
    await world.go(5)
    await world.connect("c", present=True)


@in_world()
async def test_a_will_at_qos_0_waits_for_the_disk(world: World) -> None:
    """A crash undoes it otherwise, and the successor publishes it again: at most once is broken."""
    watcher = await world.connect("c", filters=[("w", 0)])
    other = await world.connect("d", will=p.Will("w", b"gone", 0))
    world.log.hold()
    other.drop()
    await world.calm()
    assert watcher.take() == []
    world.log.release()
    await world.go(1)
    assert watcher.take() == [Publish("w", b"gone")]


@pytest.mark.mqtt("MQTT-4.6.0-6")
@in_world(max_ack_pending=1)
async def test_messages_in_the_queue_of_another_subscription_are_not_overtaken(
    world: World,
) -> None:
    receiver = await world.connect("r", filters=[("t/#", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("t/1", b"t", 1, 1), p.publish("t/1", b"t", 1, 2))
    await world.go(0.1)
    receiver.send(p.subscribe(9, ("+/#", 1)))
    await world.go(0.1)
    sender.send(p.publish("r/x", b"1", 1, 3))  # waits behind t/#
    await world.go(0.1)
    receiver.send(p.subscribe(10, ("r/#", 2)))
    await world.go(0.1)
    sender.send(p.publish("r/x", b"2", 1, 4))
    await world.go(0.1)
    assert await acknowledged(world, receiver) == [b"t", b"t", b"1", b"2"]


@contextlib.contextmanager
def congested(world: World) -> Iterator[None]:
    """Pause all input until the log has caught up."""
    journal = world.broker.node.journal
    most, journal._max_pending = journal._max_pending, -1
    yield
    journal._max_pending = most


@in_world()
async def test_clients_that_waited_for_room_in_the_log_are_read_in_the_order_in_which_they_came(
    world: World,
) -> None:
    clients = [await world.connect(f"c{number}") for number in range(10)][::-1]
    with congested(world):
        for client in clients:
            client.send(p.pingreq())
            await world.go(0.01)
            client.send(p.publish("t", b"", 1, 1))
    await world.go(1)
    published = [event.session for event in world.disk.events(MessagePublished)]
    assert published == [f"c{number}" for number in reversed(range(10))]


@in_world()
async def test_an_earlier_connection_of_a_client_does_not_take_over_a_later_one(
    world: World,
) -> None:
    """Half of its CONNECT came when input began to wait for the log."""
    with congested(world):
        earlier, later = SimClient(world), SimClient(world)
        earlier.send_cut(p.connect("c"), 5)
        await world.go(0.1)
        later.send(p.connect("c"))
        await world.go(0.1)
    await world.go(2)
    assert (earlier.open, later.open) == (False, True)


@in_world()
async def test_a_client_is_not_blamed_for_half_of_a_connect_that_waits_for_the_log(
    world: World,
) -> None:
    with congested(world):
        client = SimClient(world)
        client.send_cut(p.connect("c"), 5)
        await world.go(30)
    await world.go(2)
    assert client.open
