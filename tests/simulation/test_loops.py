"""Messages that come back over a ring of brokers are acknowledged in order, and not published."""

from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.plainaudit import audit_plainly, checked_records

from protocol.mqtt.loop_path import with_logs
from simulation.fold import compare
from simulation.network import Client5
from simulation.test_origins import bridged
from simulation.world import World, in_world

_STATE = "$SYS/broker/connection/{}/state"
_PATHS = ((), ("far", "sim"), ("sim",), ("far",), ("sim", "far"), (), ("far",))
"""The logs that messages have passed; the own log is ``sim``."""
_LOOPED = (1, 2, 4)


async def connected(world: World, client_id: str, will: str = "") -> Client5:
    client = Client5(world)
    last = p5.Will(will, b"0", 1, retain=True) if will else None
    client.send(p5.connect(client_id, will=last))
    await world.go(0.2)
    client.take()
    return client


async def publish(world: World, client: Client5, qos: int) -> None:
    """Publish a message with each path at once; at QoS 1 and 2, expect the answers in order."""
    blocks = [with_logs(b"", *path) if path else b"" for path in _PATHS]
    packets = [
        p5.publish("t", b"%d" % at, qos, at + 1 if qos else None, properties=block)
        for at, block in enumerate(blocks)
    ]
    client.send(b"".join(packets))
    await world.go(0.3)
    numbers = [*range(1, len(_PATHS) + 1)]
    answers: list[Any] = client.take()
    kinds = {1: p.PUBACK, 2: p.PUBREC}
    assert [each.packet_id for each in answers] == (numbers if qos else [])
    assert {(each.kind, each.code) for each in answers} == ({(kinds[qos], 0)} if qos else set())
    if qos == 2:
        client.send(b"".join(map(p.pubrel, numbers)))
        await world.go(0.3)
        answers = client.take()
        assert [each.packet_id for each in answers] == numbers
        assert {each.kind for each in answers} == {p.PUBCOMP}


async def received(world: World, reader: Client5) -> list[int]:
    await world.go(0.2)
    return [int(each.payload) for each in reader.take() if isinstance(each, p5.Publish)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kind", ["foldmq", "with its state as will"])
@in_world()
async def test_a_bridge_brings_nothing_back(world: World, *, kind: str, qos: int) -> None:
    reader = await connected(world, "r")
    reader.send(p5.subscribe(1, ("t", 0)))
    if kind == "foldmq":
        client = await bridged(world)
    else:
        client = await connected(world, "around", _STATE.format("around"))
    await publish(world, client, qos)
    expected = [at for at in range(len(_PATHS)) if at not in _LOOPED]
    assert await received(world, reader) == expected
    assert world.broker.node.dropped["bridge_loop"] == len(_LOOPED)
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    compare(world)


@pytest.mark.parametrize("will", ["", "lwt", _STATE.format("another")])
@in_world()
async def test_other_clients_may_publish_with_any_path(world: World, *, will: str) -> None:
    reader = await connected(world, "r")
    reader.send(p5.subscribe(1, ("t", 0)))
    await publish(world, await connected(world, "c", will), 1)
    assert await received(world, reader) == [*range(len(_PATHS))]
    assert not world.broker.node.dropped["bridge_loop"]
