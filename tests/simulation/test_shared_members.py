"""Shared subscriptions with many members: bounds, permissions, and members that leave."""

from dataclasses import replace
from itertools import chain

import pytest
from harness import packets as p
from harness.packets import Publish, Suback

from actors.limits.limit_options import LimitOptions
from actors.sharing import shared_delivery
from actors.sharing.member_choice import Assignment, BalancedChoice, Rows
from simulation.group_members import SHARED, members, numbers, prove
from simulation.permission_worlds import permit
from simulation.world import World, in_world, simulate

RULES = """
[[allow]]
both = ['#']
[[deny]]
clients = [{denied}]
subscribe = ['a/secret']
"""


@in_world(bounds=LimitOptions(max_shared_members=2))
async def test_a_group_has_so_many_members(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    three = await world.connect("m3")
    three.send(p.subscribe(1, (SHARED, 1), ("$share/other/a/+", 1), ("a/b", 1)))
    await world.go(0.1)
    assert three.take() == [Suback(1, (0x80, 1, 1))]
    assert world.broker.node.limits.refused.counts["shared_members"] == 1
    one.send(p.subscribe(2, (SHARED, 2)))  # it is a member already
    await world.go(0.1)
    assert one.take() == [Suback(2, (2,))]
    two.send(p.unsubscribe(3, SHARED))
    three.send(p.subscribe(4, (SHARED, 1)))
    await world.go(0.1)
    assert three.take() == [Suback(4, (1,))]
    prove(world)


@pytest.mark.parametrize("strategy", ["balanced", "topic"])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_batch_is_divided_in_steps_among_members_that_may_not_have_all(
    qos: int, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message goes once to a member that may have it, in as many steps as it takes."""
    monkeypatch.setattr(shared_delivery, "_SERVED_AT_ONCE", 4)

    async def scenario() -> None:
        async with World(shared_strategy=strategy).running() as world:
            names = [f"m{number}" for number in range(16)]
            permit(world, RULES.format(denied=", ".join(f"'{name}'" for name in names[::2])))
            some = await members(world, *names)
            sender = await world.connect("d")
            topics = ["a/secret" if number % 3 else "a/open" for number in range(1, 101)]
            sender.send(
                *(
                    p.publish(topic, b"%d" % number, qos, number if qos else None)
                    for number, topic in enumerate(topics, 1)
                )
            )
            await world.go(0.5)
            shares: list[list[tuple[str, int]]] = []
            for member in some:
                got = [packet for packet in member.take() if isinstance(packet, Publish)]
                shares.append([(packet.topic, int(packet.payload)) for packet in got])
                member.send(*(p.puback(packet.packet_id) for packet in got if packet.packet_id))
            assert sorted(number for _, number in chain(*shares)) == [*range(1, 101)]
            for share in shares[::2]:
                assert all(topic != "a/secret" for topic, _ in share)
            await world.go(0.1)
            prove(world)

    simulate(scenario)


@pytest.mark.plain
@pytest.mark.parametrize("qos", [0, 1])
@in_world()
async def test_comparisons_in_a_turn_are_bounded(
    world: World, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that may not have all messages, times topics; however many batches come in it."""
    monkeypatch.setattr(shared_delivery, "_SERVED_AT_ONCE", 8)
    monkeypatch.setattr(shared_delivery, "_COMPARED_AT_ONCE", 64)
    steps: list[tuple[int, int]] = []
    assign = BalancedChoice.assign

    def counted(self: BalancedChoice, topics: list[bytes], rows: Rows) -> Assignment:
        kernel = world.broker.kernel
        turn = kernel.turns + kernel.parts
        steps.append((turn, len(rows.rooms) * len({*rows.alike})))
        return assign(self, topics, rows)

    names = [f"m{number:02}" for number in range(16)]
    permit(world, RULES.format(denied=", ".join(f"'{name}'" for name in names[1:])))
    some = await members(world, *names, qos=qos)
    senders = [await world.connect(f"d{number}") for number in range(4)]
    await world.go(2)
    monkeypatch.setattr(BalancedChoice, "assign", counted)
    for sender in senders:
        sender.send(
            *(p.publish(f"a/{at}", b"%d" % at, qos, at if qos else None) for at in (1, 2)),
            *(p.publish("a/secret", b"%d" % at, qos, at if qos else None) for at in (3, 4)),
            *(p.publish(f"a/{at}", b"%d" % at, qos, at if qos else None) for at in (5, 6)),
        )
    await world.go(0.5)
    got = sorted(number for member in some for number in numbers(member))
    assert got == sorted([*range(1, 7)] * len(senders))
    await world.go(0.1)
    prove(world)
    turns = [turn for turn, _ in steps]
    assert max(compared for _, compared in steps) <= 64
    assert len(turns) == len(set(turns))


@in_world(max_ack_pending=1, shared_strategy="topic")
async def test_a_message_that_waits_for_a_member_goes_to_another_when_that_leaves(
    world: World,
) -> None:
    """The first one may have it and has no room; it leaves with a QoS 2 message."""
    one, two = await members(world, "m1", "m2", qos=2)
    sender = await world.connect("d")
    for number in (1, 2):
        sender.send(p.publish("a/b", b"%d" % number, 2, number), p.pubrel(number))
        await world.go(0.1)
    holder, other = (one, two) if one.received else (two, one)
    assert numbers(holder) == [1]
    assert numbers(other) == []
    holder.drop()
    await world.go(0.1)
    assert numbers(other) == [2]
    prove(world)


@in_world(shared_strategy="balanced")
async def test_another_strategy_applies_after_a_reload(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    sender = await world.connect("d")

    async def shares(first: int) -> list[int]:
        pids = range(first, first + 6)
        sender.send(*(p.publish("a/b", b"%d" % pid, 1, pid) for pid in pids))
        await world.go(1)
        return sorted(len(numbers(member)) for member in (one, two))

    assert await shares(1) == [3, 3]
    broker = world.broker
    options = replace(broker.node.options, shared_strategy="topic")
    broker.reload(options, broker.admission.authenticator)
    assert await shares(7) == [0, 6]


@in_world()
async def test_a_busy_group_serves_members_in_larger_pieces_and_alike(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_delivery, "_BUSY", 400)
    some = await members(world, *(f"m{number}" for number in range(5)))
    sender = await world.connect("d")
    got = [0] * len(some)
    pieces: list[int] = []
    for begin in range(0, 4000, 200):
        pids = range(begin + 1, begin + 201)
        sender.send(*(p.publish("a/x", b"%d" % pid, 1, pid) for pid in pids))
        await world.go(0.005)
        for at, member in enumerate(some):
            came = [packet for packet in member.take() if isinstance(packet, Publish)]
            got[at] += len(came)
            if begin >= 800 and came:
                pieces.append(len(came))
            if came:
                member.send(*(p.puback(one.packet_id or 0) for one in came))
    assert sum(got) == 4000
    assert min(pieces) >= 50
    assert max(got) - min(got) <= 100
    prove(world)
