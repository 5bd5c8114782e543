"""The bridge of a node that leads, and what its predecessor still sends to NATS."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from harness import packets as p
from harness.packets import Publish

from actors.bridge.bridge_supervisor import BridgeSupervisor
from actors.limits.bridge_options import BridgeOptions
from actors.limits.destination_options import DestinationOptions
from actors.maintenance import retention
from actors.maintenance.cluster_hooks import ClusterHooks
from actors.node.read_pause import ReadPause
from eventstore.format.destination_events import ForwardLost
from eventstore.nats.connection import ConnectionOptions
from protocol.nats.headers import constant_part, header_block
from protocol.nats.mapping import Mapping
from simulation.log_cuts import cuts, publish_noise
from simulation.natsserver import Got, SimLink, SimNatsServer
from simulation.world import World, simulate


@pytest.fixture
def nats(monkeypatch: pytest.MonkeyPatch) -> SimNatsServer:
    made = SimNatsServer(random.Random(0))

    async def open_link(_access: object, **callbacks: Callable[..., None]) -> SimLink:
        return SimLink(made, callbacks)

    monkeypatch.setattr("actors.bridge.bridge_supervisor.BatchClient.open", open_link)
    return made


@pytest.fixture
def got(nats: SimNatsServer) -> list[bytes]:
    """The payloads that NATS gets."""
    payloads: list[bytes] = []
    nats.subscribe("out.>", lambda one: payloads.append(one.payload))
    return payloads


async def bridged(*, several_nodes: bool, **options: Any) -> tuple[World, BridgeSupervisor]:
    """Return a world whose broker has a bridge that has started."""
    world = World(**options)
    world.bridge = BridgeOptions(Mapping(), several_nodes=several_nodes)
    await world.start()
    bridge = world.broker.bridge
    assert bridge is not None
    await bridge.start(ConnectionOptions(urls=("nats://sim",)))
    return world, bridge


@pytest.mark.parametrize("several_nodes", [False, True])
def test_messages_of_a_replaced_leader_are_not_published_again(
    several_nodes: bool, nats: SimNatsServer
) -> None:
    """Its log is that of the new leader, whose clients get its messages from there."""

    async def scenario() -> None:
        world, _ = await bridged(several_nodes=several_nodes)
        client = await world.connect("c", filters=[("in/#", 2)])
        await world.go(0.2)
        client.take()
        sent: list[int] = []
        for topic, node, qos in (
            ("in/x", "sim", 0),
            ("in/x", "sim", 2),
            ("in/y", "sim", 1),  # the headers of another message, copied
            ("in/x", "another", 1),
        ):
            number = len(sent) + 1
            constant = constant_part("in/x", qos, retain=False, client="c", node=node)
            headers = header_block(constant, number if qos else None)
            nats.publish(Got(topic.replace("/", "."), "", headers, b"%d" % number))
            await world.go(0.2)
            sent.append(number)
        got = [int(packet.payload) for packet in client.take() if isinstance(packet, Publish)]
        assert got == ([3, 4] if several_nodes else sent)
        nats.forget()
        await world.crash()

    simulate(scenario)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_leader_in_doubt_sends_nats_nothing_before_it_knows_that_it_leads(
    replaced: bool, nats: SimNatsServer, got: list[bytes]
) -> None:
    """What its clients sent to it before may be older than what NATS has from the new leader."""

    async def scenario() -> None:
        world, _ = await bridged(several_nodes=True)
        client = await world.connect("c")
        client.send(p.publish("out/x", b"before"))
        await world.go(0.2)
        assert got == [b"before"]
        world.log.hold()
        ClusterHooks(world.broker.node, world.broker.admission.connections).prove(1)
        client.send(p.publish("out/x", b"1", 1, 1), p.publish("out/x", b"2"))
        client.send(p.publish("out/y", b"3", retain=True))
        await world.go(0.2)
        assert got == [b"before"]
        if not replaced:
            world.log.release()
            await world.go(0.2)
            assert sorted(got[1:]) == [b"1", b"2", b"3"]
            client.send(p.publish("out/x", b"after"))
            await world.go(0.01)
            assert got[-1] == b"after"
        nats.forget()
        await world.crash()
        assert len(got) == (1 if replaced else 5)

    simulate(scenario)


@pytest.mark.parametrize("begins", ["before it fails", "while it is away"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_bridge_that_restarts_while_its_leader_is_in_doubt_sends_nothing_yet(
    begins: str, replaced: bool, nats: SimNatsServer, got: list[bytes]
) -> None:
    """Messages of QoS 0 wait for the proof, those from before the restart too."""

    async def scenario() -> None:
        world, bridge = await bridged(several_nodes=True)
        client = await world.connect("c")
        await world.go(0.2)
        world.log.hold()
        hooks = ClusterHooks(world.broker.node, world.broker.admission.connections)
        expected = [b"2"]
        if begins == "before it fails":
            hooks.prove(1)
            client.send(p.publish("out/x", b"1"))
            expected = [b"1", b"2"]
            await world.go(0.2)
        bridge.failed(RuntimeError("made up"))
        if begins == "while it is away":
            hooks.prove(1)
        await world.go(2)
        client.send(p.publish("out/x", b"2"))
        await world.go(0.2)
        assert got == []
        if not replaced:
            world.log.release()
            await world.go(0.2)
            assert got == expected
            client.send(p.publish("out/x", b"after"))
            await world.go(0.2)
            assert got == [*expected, b"after"]
        nats.forget()
        await world.crash()

    simulate(scenario)


def test_messages_that_a_failed_bridge_held_back_are_counted_as_dropped(
    nats: SimNatsServer,
) -> None:
    """If the leader knows that it leads before the bridge has restarted."""

    async def scenario() -> None:
        world, bridge = await bridged(several_nodes=True)
        client = await world.connect("c")
        await world.go(0.2)
        world.log.hold()
        ClusterHooks(world.broker.node, world.broker.admission.connections).prove(1)
        client.send(p.publish("out/x", b"1"), p.publish("out/x", b"2"))
        await world.go(0.2)
        bridge.failed(RuntimeError("made up"))
        world.log.release()
        await world.go(0.2)
        assert world.broker.node.dropped["bridge_unavailable"] == 2
        nats.forget()
        await world.crash()

    simulate(scenario)


def test_publishers_are_slowed_down_while_their_leader_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, nats: SimNatsServer
) -> None:
    """Messages that wait for the proof count as those that wait for NATS, until it gives up."""
    monkeypatch.setattr("actors.bridge.bridge._MUCH", 1000)

    async def scenario() -> None:
        world, _ = await bridged(several_nodes=True)
        client = await world.connect("c")
        (connection,) = world.broker.admission.connections
        await world.go(0.2)
        world.log.hold()
        ClusterHooks(world.broker.node, world.broker.admission.connections).prove(1)
        client.send(p.publish("out/x", bytes(2000)))
        await world.go(0.1)
        assert connection.paused & ReadPause.NATS
        world.log.release()
        await world.go(0.2)
        assert not connection.paused & ReadPause.NATS
        nats.forget()
        await world.crash()

    simulate(scenario)


def test_a_log_that_another_destination_holds_does_not_grow_by_cursors(
    nats: SimNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)

    async def scenario() -> None:
        away = DestinationOptions("erp", "http", ("#",), "d1", max_behind=1000.0)
        world, _ = await bridged(several_nodes=False, keep=5.0, keep_bytes=0, destinations=(away,))
        await publish_noise(world, await world.connect("c"), 60)
        await world.go(20.0)
        before = world.broker.node.journal.durable
        await world.go(60.0)
        assert not cuts(world)
        assert world.broker.node.journal.durable - before <= 2

    simulate(scenario)


def test_records_with_nothing_for_nats_are_cut_without_a_loss(
    nats: SimNatsServer, got: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor of an idle bridge would stay at its last message."""
    monkeypatch.setattr(retention, "_MIN", 2000)

    async def scenario() -> None:
        world, _ = await bridged(several_nodes=False, keep=0.0, keep_bytes=40_000)
        client = await world.connect("c")
        client.send(p.publish("out/x", b"1", 1, 1))
        await world.go(4.0)
        for _ in range(6):
            for _ in range(100):
                client.send(p.publish("noise", bytes(200), retain=True))
                await world.go(0.05)
        assert cuts(world)
        assert got == [b"1"]
        assert not world.disk.events(ForwardLost)
        await world.crash()

    simulate(scenario)
