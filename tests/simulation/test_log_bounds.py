"""Messages too large for the log: only their publisher is disconnected."""

import random

import pytest
from harness import packets as p

from eventstore.errors import RecordTooLarge
from eventstore.format.event_parsing import Event
from eventstore.format.events import Delivered, MessageDropped, MessagePublished, Queued
from simulation.fold import compare
from simulation.jetstream import SimNats
from simulation.world import SimClient, World, in_world, simulate

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _smallest_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's max_payload is NATS's default, the least that is accepted."""
    monkeypatch.setattr(SimNats, "max_payload", MIB)


def records_with(world: World, kind: type[Event], behind: int) -> set[int]:
    """The records behind that one in which there is an event of the kind."""
    return {
        record.sequence
        for record in world.disk.decoded()
        if record.sequence > behind and any(isinstance(one, kind) for _, one in record.events())
    }


async def goes_on(world: World, client: SimClient, number: int) -> None:
    """Another client's messages are recorded and acknowledged."""
    client.send(p.publish("others", b"x", 1, number))
    await world.go(0.2)
    assert p.Puback(number) in client.take()


@pytest.mark.parametrize(("qos", "retain"), [(0, True), (1, False), (1, True), (2, False)])
@in_world(max_record=MIB // 2)
async def test_only_the_publisher_of_a_message_too_large_for_the_log_is_closed(
    world: World, qos: int, retain: bool
) -> None:
    other = await world.connect("other", filters=[("big/#", 1)])
    sender = await world.connect("sender")
    sender.send(
        p.publish("big/before", b"fits", 1, 1),
        p.publish("big/1", bytes(2 * MIB), qos, 2, retain=retain),
        p.publish("big/after", b"not taken", 1, 3),
    )
    await world.go(0.2)
    assert not sender.open
    acknowledged = [packet for packet in sender.take() if isinstance(packet, p.Puback)]
    assert acknowledged == [p.Puback(1)]
    got = other.payloads()
    assert got == [b"fits"]
    assert world.broker.node.limits.refused.counts["message_too_large"] == 1
    await goes_on(world, other, 7)
    compare(world)


@in_world(max_record=MIB // 2)
async def test_unrecorded_messages_have_no_such_limit(world: World) -> None:
    other = await world.connect("other", filters=[("big", 1)])
    sender = await world.connect("sender")
    sender.send(p.publish("big", bytes(2 * MIB), 0))
    await world.go(0.2)
    assert sender.open
    assert [len(packet.payload) for packet in other.take() if isinstance(packet, p.Publish)] == [
        2 * MIB
    ]


@in_world(max_record=MIB // 2)
async def test_names_that_json_makes_long_are_no_failure(world: World) -> None:
    """With half of a record's bytes as payload, and names at their longest, it does not fit."""
    name = "\x01" * 65_535
    other = await world.connect("other")
    sender = await world.connect(name, filters=[(name, 1)])
    sender.send(p.publish(name, bytes(100), 1, 1))
    await world.go(0.2)
    assert p.Puback(1) in sender.take()
    sender.send(p.publish(name, bytes(MIB // 2 - 70_000), 1, 2))
    await world.go(0.2)
    assert not sender.open
    await goes_on(world, other, 1)
    assert not world.broker.node.rebuilding
    compare(world)


@pytest.mark.slow
def test_more_retained_messages_than_a_record_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As some were cleared, their positions are no runs."""
    monkeypatch.setattr(SimNats, "max_payload", MIB // 8)
    count, cleared = 40_000, random.Random(1).sample(range(40_000), 20_000)

    async def scenario() -> None:
        async with World(max_record=MIB // 16, max_ack_pending=10_000).running() as world:
            sender = await world.connect("sender")
            for numbers, payload in ((range(count), b"x"), (cleared, b"")):
                for at in range(0, len(numbers), 2000):
                    some = numbers[at : at + 2000]
                    sender.send(
                        *(
                            p.publish(f"kept/{one}", payload, 1, one + 1, retain=True)
                            for one in some
                        )
                    )
                    await world.go(0.05)
                    sender.take()
            for name in ("connected", "away"):
                before = world.disk.stream.last
                reader = await world.connect(name)
                reader.send(p.subscribe(1, ("kept/#", 1)))
                await world.go(0.5)
                if name == "away":
                    reader.drop()
                assert world.failure() is None
                assert not world.broker.node.rebuilding
                state = world.broker.node.state.sessions[name]
                assert state.queued + len(state.inflight) == count - len(cleared)
                reader = await world.connect(name, present=True)
                reader.send(p.unsubscribe(2, "kept/#"))
                await world.go(0.5)
                assert not world.broker.node.state.sessions[name].queued
                await goes_on(world, sender, 65_535)
                for kind in (Delivered, Queued, MessageDropped):
                    assert len(records_with(world, kind, before)) > 1
            compare(world)

    simulate(scenario)


def test_a_lowered_limit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is checked every ten seconds."""
    monkeypatch.setattr(SimNats, "max_payload", 4 * MIB)

    async def scenario() -> None:
        async with World(max_record=MIB // 2).running() as world:
            other = await world.connect("other")
            world.disk.stream.max_msg_size = 2 * MIB
            await world.go(15)
            sender = await world.connect("sender")
            sender.send(p.publish("big", bytes(3 * MIB), 1, 1))
            await world.go(0.2)
            assert not sender.open
            await goes_on(world, other, 1)

    simulate(scenario)


def test_a_record_that_is_refused_for_good_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker restarts from its log, and then disconnects only the publisher."""
    monkeypatch.setattr(SimNats, "max_payload", 4 * MIB)

    async def scenario() -> None:
        async with World(max_record=MIB // 2).running() as world:
            other = await world.connect("other", filters=[("#", 1)])
            sender = await world.connect("sender")
            await goes_on(world, sender, 1)
            world.disk.stream.max_msg_size = 2 * MIB
            big = p.publish("big", bytes(3 * MIB), 1, 2)
            sender.send(big)
            other.send(p.publish("others", b"y", 1, 3))
            await world.go(0.2)
            assert isinstance(world.failure(), RecordTooLarge)
            assert p.Puback(2) not in sender.take()
            await world.restart()
            other = await world.connect("other", present=True)
            sender = await world.connect("sender", present=True)
            sender.send(big)
            await world.go(0.2)
            assert not sender.open
            await goes_on(world, other, 3)
            published = world.disk.events(MessagePublished)
            assert {one.topics[0] for one in published} == {"others"}
            compare(world)

    simulate(scenario)


@pytest.mark.parametrize(
    ("code", "description"),
    [
        (10077, "maximum messages exceeded"),
        (10077, "maximum bytes exceeded"),
        (10077, "maximum messages per subject exceeded"),
        (10109, "invalid operation on sealed stream"),
        (10077, "no space left on device"),
        (10023, "insufficient resources"),
        (10047, "insufficient storage resources available"),
        (10002, "resource limits exceeded for account"),
        (10118, "stream is offline"),
        (10059, "stream not found"),
        (10097, "header size exceeds maximum allowed of 64k"),
        (10060, "expected stream does not match"),
    ],
)
@pytest.mark.slow
@in_world(max_record=MIB // 2)
async def test_a_stream_that_refuses_every_record_loses_nothing(
    world: World, code: int, description: str
) -> None:
    """However long it lasts: until then nothing is acknowledged, and the reason is reported."""
    one, two = await world.connect("one"), await world.connect("two", filters=[("a", 1)])
    world.server.refusal = {"err_code": code, "description": description}
    one.send(p.publish("a", b"waits", 1, 1))
    await world.go(20)
    assert one.open
    assert not one.take()
    assert any(description in line for line in world.broker.node.not_ready_reasons())
    world.server.refusal = None
    await world.go(5)
    assert p.Puback(1) in one.take()
    assert two.payloads() == [b"waits"]
    world.server.refusal = {"err_code": code, "description": description}
    one.send(p.publish("a", b"waits longer", 1, 2))
    await world.go(60)
    assert not one.open
    assert world.failure() is None
    world.server.refusal = None
    await world.go(5)
    two = await world.connect("two", present=True)
    await goes_on(world, two, 9)
    compare(world)
