"""Input of new clients, and of clients with a rate, is read in small portions; none is lost."""

from harness import packets as p
from harness.packets import Pingresp, Publish, Will

from actors.limits.limit_options import LimitOptions, Quota
from eventstore.format.records import mentions
from simulation.logins import Slow
from simulation.world import SimClient, World, in_world

SLOW = LimitOptions(client=Quota(publish_rate=100))
MESSAGES = [p.publish("t", b"%d" % n + bytes(400), 0) for n in range(1000)]


def numbers(client: SimClient) -> list[int]:
    found = [packet for packet in client.received if isinstance(packet, Publish)]
    return [int(one.payload.rstrip(b"\0")) for one in found]


@in_world()
async def test_all_packets_of_a_new_client_arrive_in_order(world: World) -> None:
    reader = await world.connect("reader", filters=[("t", 0)])
    writer = SimClient(world)
    writer.send(p.connect("writer"), *MESSAGES)
    await world.go(2)
    assert numbers(reader) == list(range(1000))


@in_world(bounds=SLOW)
async def test_of_a_flood_no_more_is_taken_than_the_rate_allows(world: World) -> None:
    reader = await world.connect("reader", filters=[("t", 0)])
    writer = await world.connect("writer")
    await world.go(5)
    writer.send(b"".join(MESSAGES))
    await world.go(0.5)
    # A bite is some forty of them, and two seconds' worth may come at once.
    assert 200 <= len(numbers(reader)) <= 350
    await world.go(3)
    assert len(numbers(reader)) < 700
    await world.go(10)
    assert numbers(reader) == list(range(1000))


@in_world(bounds=SLOW)
async def test_a_client_with_a_rate_that_sends_one_message_at_a_time(world: World) -> None:
    """Its messages are decided with those of others, and bounded all the same."""
    reader = await world.connect("reader", filters=[("t", 0)])
    writer = await world.connect("writer")
    writer.send(p.publish("t", b"0", 0))
    await world.go(5)
    before = len(world.disk.records)
    for number in range(1, 1000):
        writer.send(p.publish("t", b"%d" % number, 1, number))
        await world.go(0.001)
    assert 200 <= len(numbers(reader)) <= 350
    assert any(mentions(data, [b'"TurnPublished"']) for data in world.disk.records[before:])
    await world.go(3)
    assert len(numbers(reader)) < 900
    await world.go(10)
    assert numbers(reader) == list(range(1000))


@in_world(bounds=SLOW)
async def test_a_disconnect_counts_although_it_was_not_read_yet(world: World) -> None:
    reader = await world.connect("reader", filters=[("t", 0), ("will", 0)])
    writer = await world.connect("writer", will=Will("will", b"7", 0))
    await world.go(5)
    writer.send(b"".join(MESSAGES) + p.disconnect())
    await world.go(0.1)
    writer.transport.drop()
    await world.go(1)
    assert numbers(reader) == list(range(1000))


@in_world(
    bounds=LimitOptions(
        client=Quota(publish_rate=10),
        throttle_timeout=2.0,
        max_faults_per_address=1,
        fault_backoff=60.0,
    )
)
async def test_no_packets_are_handled_after_a_flood_is_closed(world: World) -> None:
    reader = await world.connect("reader", filters=[("t", 0)])
    writer = await world.connect("writer")
    await world.go(5)
    for _ in range(3):
        writer.send(b"".join(MESSAGES))
    await world.go(60)
    assert not writer.open
    assert len(numbers(reader)) < 200
    assert world.broker.node.limits.refused.counts["publish_rate"] == 1
    # One fault, whatever it had sent: its address may come again.
    assert (await world.connect("writer")).open


@in_world()
async def test_packets_of_a_client_that_leaves_at_once_are_handled(world: World) -> None:
    reader = await world.connect("reader", filters=[("t", 0), ("will", 0)])
    for end in (b"", p.disconnect()):
        writer = SimClient(world)
        said = [p.connect("writer", will=Will("will", b"1000", 0)), *MESSAGES, end]
        writer.send(*said)
        writer.transport.drop()
        await world.go(2)
        expected = list(range(1000)) if end else [*range(1000), 1000]
        assert numbers(reader) == expected
        reader.take()


@in_world()
async def test_packets_during_the_password_check_stay_in_order(world: World) -> None:
    world.broker.admission.authenticator = Slow()
    reader = SimClient(world)
    reader.send(p.connect("reader", username="r"), p.subscribe(1, ("t", 0)))
    await world.go(3)
    writer = SimClient(world)
    writer.send(p.connect("writer", username="w"), *MESSAGES[:100])
    await world.go(0.2)
    writer.send(*MESSAGES[100:600])
    await world.go(0.78)
    for at in range(600, 1000, 10):
        writer.send(*MESSAGES[at : at + 10])
        await world.go(0.001)
    await world.go(3)
    assert numbers(reader) == list(range(1000))


@in_world(bounds=LimitOptions(max_unauthenticated_bytes=2**20))
async def test_unauthenticated_input_counts_before_it_is_handled(world: World) -> None:
    some = [SimClient(world) for _ in range(20)]
    for client in some:
        client.send(b"\x10\xff\xff\x13" + bytes(100_000))
    assert 5 <= sum(not client.connection.ended for client in some) <= 11


@in_world()
async def test_the_answer_to_a_ping_overtakes_nothing_that_came_before(world: World) -> None:
    client = await world.connect("c", filters=[("t", 0)])
    client.send(p.publish("t", b"1", 0))
    client.send(p.pingreq())
    await world.go(1)
    assert [type(packet) for packet in client.received] == [Publish, Pingresp]
