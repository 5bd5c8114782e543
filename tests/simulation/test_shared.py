"""Shared subscriptions: each message to one member, none lost when members or the broker end."""

from collections import Counter
from itertools import chain

import pytest
from harness import packets as p
from harness.packets import Puback, Publish, Suback

from eventstore.format.events import Assigned, Delivered, Queued, Returned, SessionExpired
from simulation.group_members import SHARED, members, numbers, prove, publish
from simulation.world import World, in_world, simulate


@in_world()
async def test_each_message_goes_to_one_member_in_turn(world: World) -> None:
    some = await members(world, "m1", "m2", "m3")
    sender = await world.connect("d")
    for number in range(1, 10):
        publish(sender, number)
        await world.go(0.1)
    shares = [numbers(member) for member in some]
    assert sorted(chain(*shares)) == [*range(1, 10)]
    assert [len(share) for share in shares] == [3, 3, 3]
    await world.go(0.1)
    prove(world)


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_a_batch_is_cut_into_one_piece_for_each_member(world: World, qos: int) -> None:
    some = await members(world, "m1", "m2", "m3", qos=qos)
    sender = await world.connect("d")
    publish(sender, *range(1, 31), qos=1 if qos else 0)
    await world.go(0.1)
    shares = [numbers(member) for member in some]
    assert shares == [[*range(1, 11)], [*range(11, 21)], [*range(21, 31)]]
    events = world.disk.events()
    assert len([event for event in events if isinstance(event, Assigned)]) == (3 if qos else 0)
    assert len([event for event in events if isinstance(event, Delivered)]) == (3 if qos else 0)
    await world.go(0.1)
    prove(world)


@in_world()
async def test_the_rest_of_a_batch_goes_to_each_member_in_turn(world: World) -> None:
    some = await members(world, "m1", "m2", "m3")
    sender = await world.connect("d")
    for begin in range(1, 13, 4):
        publish(sender, *range(begin, begin + 4))
        await world.go(0.1)
    assert [len(numbers(member)) for member in some] == [4, 4, 4]


@in_world(max_ack_pending=1)
async def test_qos_0_messages_do_not_wait_for_acknowledgements(world: World) -> None:
    (one,) = await members(world, "m1")
    sender = await world.connect("d")
    publish(sender, 1, 2)
    await world.go(0.1)
    assert numbers(one, ack=False) == [1]
    publish(sender, 3, 4, qos=0)
    await world.go(0.1)
    assert numbers(one, ack=False) == [3, 4]


@in_world(max_ack_pending=2)
async def test_messages_wait_in_the_group_until_a_member_has_room(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    sender = await world.connect("d")
    publish(sender, *range(1, 11))
    await world.go(0.1)
    assert numbers(one, ack=False) == [1, 2]
    assert numbers(two) == [3, 4]
    queued = world.disk.events(Queued)
    assert {event.session for event in queued} == {SHARED}
    rest: list[int] = []
    for _ in range(5):
        await world.go(0.1)
        rest += numbers(two)
    assert rest == [5, 6, 7, 8, 9, 10]  # the first one does not acknowledge
    prove(world)


@in_world()
async def test_messages_wait_while_all_members_are_away_and_the_first_one_back_gets_them(
    world: World,
) -> None:
    one, two = await members(world, "m1", "m2")
    one.send(p.disconnect())
    two.send(p.disconnect())
    sender = await world.connect("d")
    publish(sender, 1, 2, 3)
    await world.go(5)  # the group is frozen, as the members are
    prove(world)
    back = await world.connect("m2", present=True)
    assert numbers(back) == [1, 2, 3]
    await world.go(0.1)
    prove(world)


@in_world()
async def test_unacknowledged_messages_go_to_others_in_order(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    sender = await world.connect("d")
    publish(sender, *range(1, 9))
    await world.go(0.1)
    assert numbers(one, ack=False) == [1, 2, 3, 4]
    assert numbers(two) == [5, 6, 7, 8]
    one.drop()
    await world.go(0.1)
    assert numbers(two) == [1, 2, 3, 4]
    returned = world.disk.events(Returned)
    assert [(event.session, event.filter) for event in returned] == [("m1", SHARED)]
    await world.go(0.1)
    again = await world.connect("m1", present=True)
    assert numbers(again) == []
    prove(world)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_member_is_closed_when_its_returned_messages_are_on_disk(*, in_memory: bool) -> None:
    async def scenario() -> None:
        async with World(message_cache=1_000_000 if in_memory else 1).running() as world:
            one, two = await members(world, "m1", "m2")
            sender = await world.connect("d")
            publish(sender, 1)
            await world.go(0.1)
            assert numbers(one, ack=False) == [1]
            publish(sender, 2, topic="b")  # the cache has the last record at least
            await world.go(0.1)
            world.log.hold()
            one.send(p.disconnect())
            await world.calm()
            assert one.open
            assert numbers(two) == []
            world.log.release()
            await world.go(0.1)
            assert not one.open
            assert numbers(two) == [1]
            prove(world)

    simulate(scenario)


@in_world()
async def test_messages_returned_by_several_members_are_in_order(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    sender = await world.connect("d")
    for number in range(1, 9):
        publish(sender, number)
        await world.go(0.1)
    assert numbers(one, ack=False) == [1, 3, 5, 7]
    assert numbers(two, ack=False) == [2, 4, 6, 8]
    two.send(p.disconnect())
    one.send(p.disconnect())
    await world.go(0.1)
    publish(sender, 9)
    await world.go(0.1)
    prove(world)
    await world.restart()
    (three,) = await members(world, "m3")
    assert numbers(three) == [*range(1, 10)]
    await world.go(0.1)
    prove(world)


@in_world()
async def test_qos_2_messages_stay_with_their_member(world: World) -> None:
    one, two = await members(world, "m1", "m2", qos=2)
    sender = await world.connect("d")
    for number in (1, 2):
        publish(sender, number, qos=2)
        sender.send(p.pubrel(number))
        await world.go(0.1)
    assert numbers(one) == [1]
    assert numbers(two) == [2]
    one.drop()
    await world.go(1)
    assert numbers(two) == []
    await world.restart()
    again = await world.connect("m1", present=True)
    (found,) = [packet for packet in again.take() if isinstance(packet, Publish)]
    assert (found.payload, found.qos, found.dup) == (b"1", 2, True)
    prove(world)


@in_world()
async def test_a_group_ends_with_its_last_member_and_can_start_again(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    assert SHARED in world.broker.node.state.sessions
    one.send(p.unsubscribe(3, SHARED))
    await world.go(0.1)
    assert SHARED in world.broker.node.state.sessions
    two.send(p.unsubscribe(3, SHARED))
    await world.go(0.1)
    assert SHARED not in world.broker.node.state.sessions
    ended = world.disk.events(SessionExpired)
    assert [(event.session, event.reason) for event in ended] == [(SHARED, "no_members")]
    sender = await world.connect("d")
    publish(sender, 1)
    await world.go(0.1)
    one.send(p.subscribe(4, (SHARED, 1)))
    await world.go(0.1)
    publish(sender, 2)
    await world.go(0.1)
    assert numbers(one) == [2]
    assert numbers(two) == []
    await world.go(0.1)
    prove(world)


@in_world()
async def test_a_group_goes_with_clean_sessions(world: World) -> None:
    one = await world.connect("m1", clean=True, filters=[(SHARED, 1)])
    (two,) = await members(world, "m2")
    sender = await world.connect("d")
    publish(sender, 1, 2)
    await world.go(0.1)
    assert numbers(one, ack=False) == [1]
    one.drop()
    await world.go(0.1)
    assert numbers(two) == [2, 1]
    two.send(p.disconnect())
    await world.go(0.1)
    (again,) = [await world.connect("m2", clean=True, present=False)]
    assert SHARED not in world.broker.node.state.sessions
    publish(sender, 3)
    await world.go(0.1)
    assert numbers(again) == []
    prove(world)


@pytest.mark.parametrize("how", ["lost", "kicked", "clean start"])
@in_world()
async def test_the_will_of_the_last_member_ends_nothing_but_its_group(
    world: World, how: str
) -> None:
    """The will is on its way to the group when that ends."""
    will = p.Will("a/9", b"9", 1, retain=False)
    keeper = await world.connect("keeper", filters=[("a/#", 1)])
    one = await world.connect("m1", clean=True, will=will, filters=[(SHARED, 1)])
    if how == "clean start":
        await world.connect("m1", clean=True)
    elif how == "kicked":
        one.send(b"\x36\x02\0\0")  # which is no packet
    else:
        one.drop()
    await world.go(0.1)
    assert numbers(keeper) == [9]
    assert SHARED not in world.broker.node.state.sessions
    prove(world)


@in_world()
async def test_the_last_member_publishes_to_its_group_and_leaves(world: World) -> None:
    one = await world.connect("m1", clean=True, filters=[(SHARED, 1)])
    one.send(p.publish("a/1", b"1", 1, 7) + p.disconnect())
    await world.go(0.1)
    assert Puback(7) in one.take()
    assert SHARED not in world.broker.node.state.sessions
    (two,) = await members(world, "m2")
    await world.go(0.1)
    assert numbers(two) == []  # it was published before
    prove(world)


@in_world()
async def test_the_will_of_the_last_member_is_due_after_a_crash(world: World) -> None:
    will = p.Will("a/9", b"9", 1, retain=False)
    keeper = await world.connect("keeper", filters=[("a/#", 1)])
    keeper.drop()
    await world.connect("m1", clean=True, will=will, filters=[(SHARED, 1)])
    await world.restart()
    assert SHARED not in world.broker.node.state.sessions
    again = await world.connect("keeper")
    await world.go(0.1)
    assert numbers(again) == [9]
    prove(world)


@pytest.mark.parametrize("restarts", [False, True])
@in_world()
async def test_a_passive_group_that_ends_matches_nothing(world: World, restarts: bool) -> None:
    keeper = await world.connect("keeper", filters=[("#", 1)])
    one = await world.connect("m1", clean=True, filters=[(SHARED, 1)])
    sender = await world.connect("d", clean=True)
    publish(sender, 1)
    await world.go(0.1)
    assert numbers(one) == numbers(keeper) == [1]
    await world.go(5)
    assert SHARED not in world.broker.node.state.sessions.live
    if restarts:
        await world.restart()
        keeper = await world.connect("keeper")
    else:
        one.drop()
    await world.go(0.1)
    assert SHARED not in world.broker.node.state.sessions
    publish(await world.connect("e"), 2)
    await world.go(0.1)
    assert numbers(keeper) == [2]
    prove(world)


@in_world(message_cache=0)
async def test_after_a_kill_unacknowledged_messages_go_to_the_first_member_back(
    world: World,
) -> None:
    one, two = await members(world, "m1", "m2")
    gone = await world.connect("m0", clean=True, filters=[(SHARED, 1)])
    sender = await world.connect("d")
    publish(sender, *range(1, 10))
    await world.go(0.1)
    assert [numbers(client, ack=False) for client in (gone, one, two)] == [
        [1, 2, 3],
        [4, 5, 6],
        [7, 8, 9],
    ]
    await world.restart()
    await world.go(1)
    back = await world.connect("m2", present=True)
    assert numbers(back) == [*range(1, 10)]
    await world.go(0.1)
    prove(world)


@in_world(shared_strategy="topic")
async def test_a_topic_stays_with_its_member_if_configured(world: World) -> None:
    some = await members(world, "m1", "m2", "m3")
    sender = await world.connect("d")
    topics = [f"a/{number}" for number in range(20)]
    for turn in range(3):
        for at, topic in enumerate(topics):
            publish(sender, turn * 20 + at + 1, topic=topic)
        await world.go(0.1)
    found = [
        [packet.topic for packet in member.take() if isinstance(packet, Publish)] for member in some
    ]
    assert Counter(chain(*found)) == dict.fromkeys(topics, 3)
    assert all(found)
    assert sum(len(set(each)) for each in found) == len(topics)
    prove(world)


@in_world()
async def test_a_member_gets_its_own_subscription_beside(world: World) -> None:
    one = await world.connect("m1", filters=[(SHARED, 1), ("a/b", 1)])
    sender = await world.connect("d")
    publish(sender, 1)
    await world.go(0.1)
    assert numbers(one) == [1, 1]
    await world.go(0.1)
    prove(world)


@in_world()
async def test_a_returning_member_is_not_sent_messages_of_others(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    sender = await world.connect("d")
    publish(sender, 1, 2)
    await world.go(0.1)
    assert numbers(one, ack=False) == [1]
    again = await world.connect("m1", present=True)
    assert sorted(numbers(again) + numbers(two)) == [1, 2]
    await world.go(0.1)
    prove(world)


@in_world(shared_for_mqtt3=False)
async def test_clients_below_level_5_share_only_where_they_may(world: World) -> None:
    client = await world.connect("m1")
    client.send(p.subscribe(1, (SHARED, 1)))
    await world.go(0.1)
    assert client.take() == [Suback(1, (0x80,))]
    assert SHARED not in world.broker.node.state.sessions


@in_world(max_ack_pending=100)
async def test_a_long_queue_is_divided_among_all_members(world: World) -> None:
    one, two = await members(world, "m1", "m2")
    one.send(p.disconnect())
    two.send(p.disconnect())
    sender = await world.connect("d")
    for begin in range(1, 2001, 100):
        publish(sender, *range(begin, begin + 100))
        await world.go(0.1)
    assert len([packet for packet in sender.take() if isinstance(packet, Puback)]) == 2000
    one, two = await world.connect("m1"), await world.connect("m2")
    shares: list[list[int]] = [[], []]
    for _ in range(100):
        shares[0] += numbers(one)
        shares[1] += numbers(two)
        await world.go(0.1)
    assert sorted(shares[0] + shares[1]) == [*range(1, 2001)]
    assert min(map(len, shares)) > 500
    prove(world)
