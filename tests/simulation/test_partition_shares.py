"""Shared subscriptions with members in several logs: each message to one of them, none lost."""

import asyncio
import os
from collections import defaultdict
from itertools import chain
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.packets import Publish, Suback
from harness.plainaudit import violations

from actors.exchange.effect_recorder import EffectRecorder
from actors.exchange.followed_positions import FollowedPositions
from actors.inspection.inspector import NotReady
from actors.sharing.shared_delivery import SharedDelivery
from actors.sharing.shared_subscriptions import SharedSession, SharedSubscriptions
from cluster.standby import Follower
from eventstore.format.events import LOG_SESSION, Assigned, MessageDropped
from eventstore.partitions import partition_of
from protocol.errors import FoldmqError
from simulation.fold import compare_index
from simulation.group_members import numbers, publish
from simulation.network import SimClient
from simulation.partition_shares import run
from simulation.partitions import PartitionWorld, name_in
from simulation.permission_worlds import OPEN, permit
from simulation.two_logs import two
from simulation.world import SimLog, runs

COUNT = 2


def share_in(number: int, topic_filter: str = "a/+") -> str:
    """Return a shared subscription whose home is a log."""
    return next(
        name
        for name in (f"$share/g{at}/{topic_filter}" for at in range(100))
        if partition_of(name, COUNT) == number
    )


async def member(
    worlds: list[PartitionWorld], number: int, share: str, name: str = "m", qos: int = 1
) -> SimClient:
    """Return a member in a log, which got its SUBACK."""
    world = worlds[number]
    client = SimClient(world)
    client.send(p.connect(name_in(worlds, number, name), clean=False), p.subscribe(1, (share, qos)))
    for _ in range(100):
        await world.go(0.05)
        if any(isinstance(packet, Suback) for packet in client.received):
            return client
    raise AssertionError("no SUBACK")


async def sender(worlds: list[PartitionWorld], number: int, name: str = "s") -> SimClient:
    return await worlds[number].connect(name_in(worlds, number, name), clean=True)


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("qos", [0, 1, 2])
@runs(two)
async def test_each_message_goes_to_one_member_of_any_log(
    here: PartitionWorld, there: PartitionWorld, *, qos: int, home: int
) -> None:
    worlds, share = [here, there], share_in(home)
    members = [await member(worlds, at % 2, share, f"m{at}-", qos) for at in range(4)]
    await here.go(1)
    from_ = [await sender(worlds, at) for at in range(2)]
    for number in range(1, 41):
        publish(from_[number % 2], number, qos=qos)
        if qos == 2:
            await here.go(0.1)
            from_[number % 2].send(p.pubrel(number))
        await here.go(0.1)
    await here.go(2)
    shares = [numbers(one) for one in members]
    assert sorted(chain(*shares)) == [*range(1, 41)]
    assert [len(share) for share in shares] == [10, 10, 10, 10]
    await here.go(0.5)


@pytest.mark.parametrize("home", [0, 1])
@runs(two)
async def test_no_message_is_missed_after_the_first_suback(
    here: PartitionWorld, there: PartitionWorld, *, home: int
) -> None:
    worlds, share = [here, there], share_in(home)
    from_ = await sender(worlds, 0)
    client = SimClient(there)
    client.send(p.connect(name_in(worlds, 1)), p.subscribe(1, (share, 1)))
    while not any(isinstance(packet, Suback) for packet in client.received):
        await here.go(0.001)
    client.take()
    publish(from_, 1)
    await here.go(2)
    assert numbers(client) == [1]


@pytest.mark.parametrize("back", [True, False])
@runs(two)
async def test_the_first_member_waits_for_the_home_but_not_for_ever(
    here: PartitionWorld, there: PartitionWorld, *, back: bool
) -> None:
    worlds, share = [here, there], share_in(0)
    here.kill()
    client = SimClient(there)
    client.send(p.connect(name_in(worlds, 1)), p.subscribe(1, (share, 1)), p.pingreq())
    await there.go(5)
    (connack,) = client.take()
    assert isinstance(connack, p.Connack)
    if not back:
        await there.go(6)
    await here.crash()
    await here.start()
    await here.go(1)
    assert [type(packet) for packet in client.take()] == [Suback, p.Pingresp]
    publish(client, 1)
    await here.go(1)
    assert numbers(client) == [1]


@runs(two)
async def test_a_client_that_leaves_while_waiting_for_the_home_releases_its_session(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    here.kill()
    client = SimClient(there)
    client.send(p.connect(name_in(worlds, 1), clean=False), p.subscribe(1, (share, 1)))
    await there.go(1)
    client.drop()
    await there.go(1)
    again = SimClient(there)
    again.send(p.connect(name_in(worlds, 1), clean=False), p.pingreq())
    await there.go(1)
    assert [type(packet) for packet in again.take()] == [p.Connack, p.Pingresp]
    taking_over = SimClient(there)
    again.send(p.subscribe(1, (share, 1)))
    await there.go(1)
    taking_over.send(p.connect(name_in(worlds, 1), clean=False), p.pingreq())
    await there.go(1)
    assert [type(packet) for packet in taking_over.take()] == [p.Connack, p.Pingresp]
    await here.crash()
    await here.start()
    await here.go(1)


@pytest.mark.parametrize("home", [0, 1])
@runs(two)
async def test_the_index_of_a_follower_has_no_members_in_other_logs(
    here: PartitionWorld, there: PartitionWorld, *, home: int
) -> None:
    """A node that begins to follow a log with a part, or a home, finds its session frozen."""
    worlds, share = [here, there], share_in(home)
    for at in range(2):
        await member(worlds, at, share)
    await here.go(8)  # the projections have it
    for world in worlds:
        log = SimLog(world.server, world.watermark, world.keyed, reads=True)
        follower = Follower(log)
        await follower.begin(lambda _done, _total: None)
        compare_index(await follower.result())


@pytest.mark.parametrize("home", [0, 1])
@runs(two, shared_strategy="topic")
async def test_a_topic_stays_with_its_member_whatever_the_log(
    here: PartitionWorld, there: PartitionWorld, *, home: int
) -> None:
    worlds, share = [here, there], share_in(home)
    members = [await member(worlds, at % 2, share, f"m{at}-") for at in range(5)]
    await here.go(1)
    from_ = await sender(worlds, 0)
    owner: dict[str, set[int]] = defaultdict(set)
    got: dict[str, list[int]] = defaultdict(list)
    for number in range(1, 201):
        publish(from_, number, topic=f"a/{number % 20}")
        if number % 7 == 0:
            await here.go(0.1)
            for at, one in enumerate(members):
                found = [packet for packet in one.take() if isinstance(packet, Publish)]
                for packet in found:
                    owner[packet.topic].add(at)
                    got[packet.topic].append(int(packet.payload))
                    one.send(p.puback(packet.packet_id))
    await here.go(2)
    for at, one in enumerate(members):
        for packet in one.take():
            if isinstance(packet, Publish):
                owner[packet.topic].add(at)
                got[packet.topic].append(int(packet.payload))
                one.send(p.puback(packet.packet_id))
    assert all(len(some) == 1 for some in owner.values())
    assert len(set(chain(*owner.values()))) >= 4
    assert all(packet == sorted(packet) for packet in got.values())
    assert sorted(chain(*got.values())) == [*range(1, 201)]
    await here.go(0.5)


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("leaves", ["drop", "unsubscribe", "clean"])
@runs(two)
async def test_unacknowledged_messages_of_the_last_member_of_a_log_go_to_others(
    here: PartitionWorld, there: PartitionWorld, *, home: int, leaves: str
) -> None:
    worlds, share = [here, there], share_in(home)
    one = await member(worlds, 0, share)
    await here.go(1)
    from_ = await sender(worlds, 0)
    publish(from_, *range(1, 9))
    await here.go(1)
    other = await member(worlds, 1, share)
    assert numbers(one, ack=False) == [*range(1, 9)]
    if leaves == "unsubscribe":
        one.send(p.unsubscribe(2, share))
        await here.go(0.5)
        one.send(p.puback(1), p.puback(2))  # they stay with it: it was sent them
        await here.go(0.5)
        assert numbers(other) == []
        one.drop()
        await here.go(1)
        return
    if leaves == "clean":
        again = SimClient(here)
        again.send(p.connect(name_in(worlds, 0, "m"), clean=True))
    else:
        one.drop()
    await here.go(2)
    assert numbers(other) == [*range(1, 9)]
    publish(from_, 9)
    await here.go(1)
    assert numbers(other) == [9]


@runs(two, max_ack_pending=4)
async def test_returned_messages_come_before_waiting_ones(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    one = await member(worlds, 1, share)
    await here.go(1)
    from_ = await sender(worlds, 0)
    publish(from_, *range(1, 31))
    await here.go(1)
    assert numbers(one, ack=False) == [1, 2, 3, 4]
    one.drop()
    await here.go(2)
    other = await member(worlds, 0, share)
    found: list[int] = []
    for _ in range(40):
        await here.go(0.1)
        found += numbers(other)
    assert found == [*range(1, 31)]


@runs(two, max_ack_pending=3)
async def test_a_slow_member_of_another_log_gets_no_more_than_its_window(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    slow = await member(worlds, 1, share)
    await here.go(1)
    from_ = await sender(worlds, 0)
    for number in range(1, 101):
        publish(from_, number)
        await here.go(0.05)
    assert numbers(slow, ack=False) == [1, 2, 3]
    (part,) = [
        state
        for name, state in there.broker.node.state.sessions.items()
        if name.startswith("$share/")
    ]
    assert part.queued == 0
    assert here.broker.node.state.sessions[share].queued == 97
    quick = await member(worlds, 0, share)
    found: list[int] = []
    for _ in range(60):
        await here.go(0.1)
        found += numbers(quick)
    assert found == [*range(4, 101)]


@pytest.mark.parametrize("back", [0, 1])
@runs(two)
async def test_messages_wait_for_the_first_member_that_is_back(
    here: PartitionWorld, there: PartitionWorld, *, back: int
) -> None:
    worlds, share = [here, there], share_in(0)
    members = [await member(worlds, at, share) for at in range(2)]
    for one in members:
        one.send(p.disconnect())
    await here.go(1)
    from_ = await sender(worlds, 1)
    publish(from_, 1, 2, 3)
    await here.go(5)
    for world in worlds:
        await world.crash()
        await world.start()
    await here.go(2)
    client = await worlds[back].connect(name_in(worlds, back, "m"), present=True)
    await here.go(2)
    assert numbers(client) == [1, 2, 3]
    await here.go(0.5)


@runs(two)
async def test_qos_2_messages_stay_with_their_member_of_another_log(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    one = await member(worlds, 1, share, qos=2)
    await here.go(1)
    from_ = await sender(worlds, 0)
    publish(from_, 1, qos=2)
    from_.send(p.pubrel(1))
    await here.go(1)
    assert numbers(one) == [1]
    other = await member(worlds, 0, share, qos=2)
    one.drop()
    await here.go(1)
    await there.crash()
    await there.start()
    await here.go(1)
    assert numbers(other) == []
    again = await there.connect(name_in(worlds, 1, "m"), present=True)
    await here.go(1)
    (found,) = [packet for packet in again.take() if isinstance(packet, Publish)]
    assert (found.payload, found.qos, found.dup) == (b"1", 2, True)


@runs(two)
async def test_filters_that_denote_logs_cannot_be_shared(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    client = await here.connect(name_in([here, there], 0))
    client.send(p.subscribe(1, (f"$share/g/{LOG_SESSION}{there.name}", 1), ("a", 1)))
    await here.go(1)
    (answer,) = client.take()
    assert isinstance(answer, Suback)
    assert answer.codes == (0x80, 1)


@runs(two)
async def test_the_group_ends_with_its_last_member_in_any_log(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    one, other = [await member(worlds, at, share) for at in range(2)]
    one.send(p.unsubscribe(2, share))
    await here.go(1)
    assert share in here.broker.node.state.sessions
    other.send(p.unsubscribe(2, share))
    await here.go(1)
    for world in worlds:
        assert share not in world.broker.node.state.sessions
        assert share not in world.broker.node.router.groups


@runs(two)
async def test_messages_assigned_to_a_log_that_is_down_wait_for_it(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    await member(worlds, 1, share)
    await here.go(1)
    from_ = await sender(worlds, 0)
    there.kill()
    publish(from_, *range(1, 11))
    await here.go(1)
    assigned = here.disk.events(Assigned)
    assert {one.member for one in assigned} == {LOG_SESSION + there.name}
    await here.go(5)  # it is silent
    publish(from_, *range(11, 21))
    other = await member(worlds, 0, share)
    await here.go(1)
    assert numbers(other) == [*range(11, 21)]
    await there.crash()
    await there.start()
    await here.go(2)  # its member is not back
    assert numbers(other) == [*range(1, 11)]


@runs(two)
async def test_messages_that_no_member_of_a_log_may_read_go_to_another_log(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    denied = name_in(worlds, 1, "m")
    for world in worlds:
        permit(world, OPEN + f"[[deny]]\nclients = ['{denied}']\nsubscribe = ['a/secret']\n")
    one = await member(worlds, 1, share)
    other = await member(worlds, 0, share)
    await here.go(1)
    from_ = await sender(worlds, 0)
    for number in range(1, 21):
        publish(from_, number, topic="a/secret" if number % 2 else "a/open")
        await here.go(0.1)
    await here.go(1)
    found, secret = numbers(one), numbers(other)
    assert sorted([*found, *secret]) == [*range(1, 21)]
    assert set(range(1, 21, 2)) <= set(secret)
    assert found
    other.drop()
    await here.go(1)
    publish(from_, 21, topic="a/secret")
    await here.go(1)
    assert numbers(one) == []
    drops = here.disk.events(MessageDropped)
    assert [(drop.session, drop.reason, drop.count) for drop in drops] == [
        (share, "not_permitted", 1)
    ]


@runs(two, max_ack_pending=3)
async def test_expired_messages_are_removed_from_the_refused_ones(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    denied = name_in(worlds, 1, "m")
    for world in worlds:
        permit(world, OPEN + f"[[deny]]\nclients = ['{denied}']\nsubscribe = ['a/secret']\n")
    await member(worlds, 1, share)
    await member(worlds, 0, share)  # it acknowledges nothing
    await here.go(1)
    from_ = await here.connect(name_in(worlds, 0, "s"), mqtt5=True)
    publish(from_, *range(1, 4), topic="a/secret")
    await here.go(2)
    from_.mqtt5 = False  # the packets are as they are
    for number in range(4, 8):
        expiring = ((p5.MESSAGE_EXPIRY, 5),)
        from_.send(p5.publish("a/secret", b"%d" % number, 1, number, properties=expiring))
    await here.go(1)
    from_.mqtt5 = True
    group, state = here.broker.node.router.groups.find(share), here.broker.node.state
    assert group.refused
    await here.go(10)
    publish(from_, 8, topic="a/open")
    await here.go(2)
    shared = state.sessions.get(share)
    assert shared is not None
    assert not shared.queued
    assert not group.refused


@runs(two)
async def test_expired_messages_that_a_member_returns_are_dropped(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    one = await member(worlds, 1, share)  # it acknowledges nothing
    await here.go(1)
    from_ = await here.connect(name_in(worlds, 0, "s"), mqtt5=True)
    from_.mqtt5 = False  # the packet is as it is
    expiring = ((p5.MESSAGE_EXPIRY, 3),)
    from_.send(p5.publish("a/b", b"1", 1, 1, properties=expiring))
    await here.go(1)
    assert numbers(one, ack=False) == [1]
    other = await member(worlds, 0, share)
    await here.go(10)
    one.drop()
    await here.go(2)
    assert numbers(other) == []
    for world in worlds:
        assert not violations(world.disk.decoded())


@runs(two)
async def test_messages_too_large_for_the_members_of_a_log_go_to_another_log(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds, share = [here, there], share_in(0)
    limit = ((p5.MAXIMUM_PACKET_SIZE, 60),)
    client = SimClient(there)
    client.send(p5.connect(name_in(worlds, 1, "m"), properties=limit))
    client.send(p5.subscribe(1, (share, 1)))
    await here.go(2)
    other = await member(worlds, 0, share)
    from_ = await sender(worlds, 0)
    for number in range(1, 5):
        from_.send(p.publish("a/b", b"." * (100 + number), 1, number))
        await here.go(0.2)
    await here.go(2)
    found = [len(packet.payload) for packet in other.take() if isinstance(packet, Publish)]
    assert sorted(found) == [101, 102, 103, 104]


SEEDS = range(300, 300 + max(8, int(os.environ.get("FOLDMQ_SEEDS", "0")) // 5))
AT_EVERY_SAVE = 3
"""``make check`` runs this many of them, too."""


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if number >= AT_EVERY_SAVE else [])
        for number, seed in enumerate(SEEDS)
    ],
)
def test_a_random_run_with_groups_keeps_every_guarantee(seed: int) -> None:
    counts = run(seed)
    assert counts["acked"]


MAX_SEEDS = 60
"""Runs within which each mutant is caught."""
TELLING = (2, 9, 32, 59, 90, 92)
"""Short runs that together catch all mutants are tried first."""


def _forgets_what_is_returned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDelivery, "give_back", lambda _self: None)


def _takes_assigned_messages_in_a_turn_of_their_own(patch: pytest.MonkeyPatch) -> None:
    record = FollowedPositions.record

    def later(self: FollowedPositions, name: str, through: int, link: str) -> None:
        self._through[name] = through, link
        self._recorded[name] = through

        def recorded() -> None:
            record(self, name, through, link)
            self._node.kernel.wake()

        asyncio.get_running_loop().call_later(0.001, recorded)

    patch.setattr(FollowedPositions, "record", later)


def _drops_what_comes_for_a_part_that_has_ended(patch: pytest.MonkeyPatch) -> None:
    receiver = SharedSubscriptions.receiver

    def there(self: SharedSubscriptions, name: str) -> SharedSession | None:
        return receiver(self, name) if name in self._node.state.sessions else None

    patch.setattr(SharedSubscriptions, "receiver", there)


def _takes_messages_twice(patch: pytest.MonkeyPatch) -> None:
    take = EffectRecorder._take_assigned

    def twice(self: EffectRecorder, *what: Any) -> None:
        take(self, *what)
        take(self, *what)

    patch.setattr(EffectRecorder, "_take_assigned", twice)


def _cuts_what_was_assigned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowedPositions, "is_taken", lambda _self, _through: True)


MUTANTS = [
    _forgets_what_is_returned,
    _takes_assigned_messages_in_a_turn_of_their_own,
    pytest.param(_drops_what_comes_for_a_part_that_has_ended, marks=pytest.mark.long),
    _takes_messages_twice,
    pytest.param(_cuts_what_was_assigned, marks=pytest.mark.long),
]


@pytest.mark.plain
@pytest.mark.parametrize("mutate", MUTANTS)
def test_sharing_between_logs_that_violates_a_rule_is_detected(
    mutate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)

    def many() -> None:
        for seed in (*TELLING, *range(MAX_SEEDS)):
            run(seed)

    with pytest.raises((AssertionError, FoldmqError)):
        many()


@runs(two)
async def test_sessions_that_stand_for_other_logs_are_not_those_of_clients(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    name, stands = name_in([here, there], 0), LOG_SESSION + there.name
    client = SimClient(here)
    client.send(p.connect(name, clean=False), p.subscribe(1, ("a/#", 1)))
    publish(await sender([here, there], 1), 1)  # which the first log takes
    await here.go(1)
    inspector = here.broker.inspection.inspector
    for more in ({}, {"top": {"by": "queued", "count": 9}}):
        found = await inspector.ask_for("sessions", more)
        assert ({row["session"] for row in found["rows"]}, found["total"]) == (
            {name, stands},
            2,
        )
        found = await inspector.ask_for("sessions", {**more, "without_logs": True})
        assert ([row["session"] for row in found["rows"]], found["total"]) == ([name], 1)
    status = await inspector.ask_for("status")
    assert (status["sessions"]["total"], status["sessions"]["logs"]) == (2, 1)
    change = {"do": "remove_sessions", "by": "ann@desk", "clients": [stands]}
    answer = await inspector.ask_for("change", change)
    assert answer["refused"] == [[stands, "represents another log, not a client"]]
    publish(client, 2)
    await here.go(1)


@runs(two)
async def test_retained_messages_are_listed_when_those_of_other_logs_are_there(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    client = await sender([here, there], 1)
    await here.crash()
    client.send(p.publish("r/1", b"kept", 1, 1, retain=True))
    await there.go(0.1)
    there.log.hold()  # of which the first log gets nothing then
    await here.start()
    inspector = here.broker.inspection.inspector
    for endpoint, request in (("retained", {}), ("retained.get", {"topic": "r/1"})):
        with pytest.raises(NotReady, match="does not have all retained messages yet"):
            await inspector.ask_for(endpoint, request)
    there.log.release()
    await here.go(1)
    (row,) = (await inspector.ask_for("retained", {}))["rows"]
    assert row["topic"] == "r/1"
