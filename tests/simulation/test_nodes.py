"""A node that reads the log while another one writes and cuts it, and clients of a dead node."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from harness import packets as p

from actors.maintenance.cluster_hooks import ClusterHooks
from cluster.failure_detector import SILENT_AFTER, Cause
from cluster.standby import Follower, take_over
from cluster.status import STATUS_EVERY
from eventstore.errors import CorruptLog, Fenced
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import GENESIS, decode_record, encode_record
from eventstore.log.jetstream_log import Appended
from simulation.chaos import errors_of_the_broker
from simulation.fold import compare_index
from simulation.jetstream import SimMsg
from simulation.loop import SimClock
from simulation.nodes import NodesWorld
from simulation.world import SimClient, SimLog, World, in_world, simulate


def append(world: World) -> int:
    """Append a record as another broker does that knows the end of the log."""
    stream = world.disk.stream
    link = decode_record(stream.last, stream.messages[stream.last]).link if stream.last else GENESIS
    started = BrokerStarted("0", epoch=1, leader="other", cause="silent")
    data = encode_record(
        previous=link, node="sim", time_ms=1, events=[started], payloads=[], part=0, last=True
    )
    return stream.store(data)


def replace(world: World) -> None:
    """Write to the log as another broker does, and cut all that this one has written."""
    world.disk.stream.purge(append(world))


def test_the_end_of_the_log_is_found_although_it_is_cut_meanwhile() -> None:
    """The last record is gone when it is read: there are newer ones."""

    async def scenario() -> None:
        world = World()
        append(world)
        log = SimLog(world.server, world.watermark, world.keyed, reads=True)
        request, cuts = log.nats.request, [1, 2]

        async def cut_before(subject: str, *arguments: Any, **more: Any) -> SimMsg:
            if ".DIRECT." in subject and cuts:
                cuts.pop()
                replace(world)
            return await request(subject, *arguments, **more)

        log.nats.request = cut_before  # type: ignore[method-assign]
        assert (await log.tail()).sequence == 3

    simulate(scenario)


def test_a_last_record_that_is_gone_is_damage() -> None:
    async def scenario() -> None:
        world = World()
        append(world)
        append(world)
        del world.disk.stream.messages[2]
        log = SimLog(world.server, world.watermark, world.keyed, reads=True)
        with pytest.raises(CorruptLog):
            await log.tail()

    simulate(scenario)


async def _reads_some(world: World) -> None:
    await world.log.read_some([1])


async def _reads(world: World) -> None:
    async for _ in world.log.read(1, world.broker.node.journal.durable):
        pass


@pytest.mark.parametrize("read", [_reads_some, _reads])
@in_world()
async def test_a_cut_by_another_broker_is_not_damage(
    world: World, read: Callable[[World], Any]
) -> None:
    """A replaced leader that reads the log learns that it was replaced."""
    await world.connect("c", filters=[("t", 1)])
    await world.go(1)
    replace(world)
    with pytest.raises(Fenced):
        await read(world)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_replaced_leader_ends_when_its_log_is_cut(seconds: float) -> None:
    """At once if it reads the log at its start, otherwise when it inspects the log."""

    async def scenario() -> None:
        with errors_of_the_broker() as errors:
            world = World()
            await world.start()
            await world.go(seconds)
            replace(world)
            await world.go(20)
            assert isinstance(world.failure(), Fenced)
            assert not errors
            await world.crash()

    simulate(scenario)


def test_records_that_are_gone_are_damage() -> None:
    """No other writer has appended to the log."""

    async def scenario() -> None:
        world = World()
        await world.start()
        await world.connect("c", filters=[("t", 1)])
        await world.go(1)
        world.disk.stream.purge(2)
        with pytest.raises(CorruptLog):
            await world.log.read_some([1])
        await world.go(20)
        assert isinstance(world.failure(), CorruptLog)
        await world.crash()

    simulate(scenario)


def test_a_node_that_took_over_is_not_replaced_by_a_third_one() -> None:
    """It has appended its start, and does not serve yet: the third one looks for the dead one."""

    async def scenario() -> None:
        world = World()
        append(world)
        logs = [SimLog(world.server, world.watermark, world.keyed) for _ in range(2)]
        followers = [Follower(log) for log in logs]
        outcomes = []
        for follower in followers:
            await follower.begin(lambda _done, _total: None)
        for number, (log, follower) in enumerate(zip(logs, followers, strict=True)):
            log.nats.write_from_now_on()
            outcome = await take_over(
                log,
                follower,
                SimClock(),
                name="sim",
                node=f"n{number}",
                software="0",
                cause=Cause.DEAD,
                replaces=1,
            )
            outcomes.append(outcome)
        assert outcomes == [Appended.STORED, Appended.REFUSED]
        assert world.disk.stream.last == 2

    simulate(scenario)


@in_world(NodesWorld)
async def test_an_edge_queries_the_leader_that_closes_a_connection(world: World) -> None:
    """It does not wait until the leader's status is overdue. The time is virtual."""
    await world.go(1)
    client = SimClient(world)
    while not client.through_edge:
        client = SimClient(world)
    client.send(p.connect("c"))
    await world.go(0.5)
    assert client.take()
    loop = asyncio.get_running_loop()
    killed_at, leader = loop.time(), world.serving
    world.kill()
    while not world.up:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)
    assert world.serving is not leader
    assert loop.time() - killed_at < SILENT_AFTER - STATUS_EVERY
    await world.stop()


@in_world()
async def test_the_index_of_a_follower_is_that_of_its_state(world: World) -> None:
    """Sessions that subscribe, unsubscribe and end while the log is followed."""
    log = SimLog(world.server, world.watermark, world.keyed, reads=True)
    follower = Follower(log)
    await world.connect("before", filters=[("a/#", 1), ("b/+", 0)])
    await world.go(5)  # the projections have it
    await follower.begin(lambda _done, _total: None)
    for number in range(200):
        client = await world.connect(f"c{number}", filters=[(f"t/{number}", 1), ("all", 2)])
        if number % 2:
            client.send(p.unsubscribe(5, "all"))
        if number % 3 == 0:
            client.send(p.disconnect())
            await world.connect(f"c{number}", clean=True, filters=[("new", 1)])
        elif number % 5 == 0:
            client.drop()
        await follower.read_to(world.broker.node.journal.durable)
    again = await world.connect("before")
    again.send(p.unsubscribe(5, "a/#"))
    again.send(p.subscribe(6, ("b/+", 2), ("$share/g/x", 1)))
    await world.go(1)
    await follower.read_to(world.broker.node.journal.durable)
    found = await follower.result()
    assert len(found.router.active_sessions()) > 100
    compare_index(found)


@in_world(NodesWorld)
async def test_a_machine_without_a_process_refuses_connections(world: World) -> None:
    """The simulation of several nodes: a client may not reach a broker that has ended."""
    serving = world.serving
    assert serving is not None
    world.direct = True
    serving.end()
    client = SimClient(world)
    assert not client.open
    client.send(p.connect("c"))
    await world.stop()
    await asyncio.sleep(0)


@in_world()
async def test_clients_of_a_leader_in_doubt_wait(world: World) -> None:
    """As they wait while no leader is known; those that wait too long are closed."""
    node = world.broker.node
    hooks = ClusterHooks(node, world.broker.admission.connections)
    hooks.refuse_clients("it cannot prove that it leads")
    impatient = SimClient(world)
    impatient.send(p.connect("impatient"))
    await world.go(node.options.connect_timeout - 1)
    client = SimClient(world)
    client.send(p.connect("c"))
    await world.go(2)
    assert (impatient.take(), client.take()) == ([], [])
    assert (impatient.open, client.open) == (False, True)
    hooks.refuse_clients("")
    await world.go(1)
    assert client.take() == [p.Connack(0)]


@in_world(NodesWorld)
async def test_a_client_waits_for_its_connect_timeout_once(world: World) -> None:
    """First where it has connected, then at the leader."""
    await world.go(1)
    client = SimClient(world)
    while not client.through_edge:
        client = SimClient(world)
    node = world.broker.node
    timeout = node.options.connect_timeout
    node.unsure = "it cannot prove that it leads"
    client.send(p.connect("c")[:3])
    await world.go(timeout - 2)
    open_then = [client.open]
    node.unsure = ""
    await world.go(1)
    assert len(world.broker.admission.connections) == 1
    open_then.append(client.open)
    await world.go(2)
    open_then.append(client.open)
    assert open_then == [True, True, False]
    await world.stop()


@in_world()
async def test_a_leader_in_doubt_is_not_overloaded_because_nothing_is_stored(world: World) -> None:
    """It would refuse clients; they are to wait."""
    admission = world.broker.admission
    hooks = ClusterHooks(world.broker.node, admission.connections)
    world.log.hold()
    hooks.prove(1)
    found = []
    for reason in ("it cannot prove that it leads", ""):
        world.broker.node.unsure = reason
        for _ in range(200):
            await world.go(0.1)
            admission.sample(0.0)
        found.append(admission.limits.overload.reason)
    assert found == [None, "commit_latency"]
    world.log.release()
    await world.go(5)


@pytest.mark.parametrize("returns", [True, False])
def test_wills_of_clients_that_a_leader_in_doubt_closed_wait_for_them(*, returns: bool) -> None:
    """They have ``failover_grace`` from the moment when they can connect again."""

    async def scenario() -> None:
        grace = 5.0
        async with World(will_grace=grace).running() as world:
            hooks = ClusterHooks(world.broker.node, world.broker.admission.connections)
            watcher = SimClient(world)
            watcher.send(p.connect("watcher", clean=False) + p.subscribe(1, ("will", 1)))
            client = SimClient(world)
            client.send(p.connect("c", will=p.Will("will", b"gone", qos=1)))
            await world.go(1)
            hooks.refuse_clients("it cannot prove that it leads")
            await world.go(2 * grace)
            assert (client.open, watcher.open) == (False, False)
            hooks.refuse_clients("")
            watcher = SimClient(world)
            watcher.send(p.connect("watcher", clean=False))
            await world.go(grace - 1)
            if returns:
                client = SimClient(world)
                client.send(p.connect("c"))
            await world.go(2)
            wills = [packet for packet in watcher.take() if isinstance(packet, p.Publish)]
            assert [packet.payload for packet in wills] == ([] if returns else [b"gone"])

    simulate(scenario)


@pytest.mark.parametrize("size", [0, 3])
@in_world(NodesWorld)
async def test_clients_without_an_answer_wait_for_the_next_leader_at_a_hand_over(
    world: World, size: int
) -> None:
    """Those whose CONNECT comes during the hand-over, all of it or the rest of it."""
    await world.go(1)
    leader = world.serving
    assert leader is not None
    client = SimClient(world)
    while not client.through_edge:
        client = SimClient(world)
    connect = p.connect("c", level=4)
    world.log.hold()
    client.send(connect[:size])
    await world.go(0.01)
    other = next(node.name for node in world.nodes if node is not leader)
    assert leader.move(other)
    await world.go(0.01)
    client.send(connect[size:])
    await world.go(0.01)
    world.log.release()
    await world.go(3)
    assert world.serving is not leader
    assert (client.open, client.take()) == (True, [p.Connack(0)])
    await world.stop()
