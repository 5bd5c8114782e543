"""A node that reads the log while another one writes and cuts it, and clients of a dead node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from harness import packets as p

from eventstore.errors import CorruptLog, Fenced
from eventstore.format import GENESIS, BrokerStarted, decode_record, encode_record
from simulation.chaos import errors_of_the_broker
from simulation.jetstream import SimMsg
from simulation.nodes import NodesWorld
from simulation.world import SimClient, SimLog, World, simulate

if TYPE_CHECKING:
    from collections.abc import Callable


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
def test_what_another_broker_has_cut_is_not_damage(read: Callable[[World], Any]) -> None:
    """A replaced leader that reads the log learns that it was replaced."""

    async def scenario() -> None:
        async with World().running() as world:
            await world.connect("c", filters=[("t", 1)])
            await world.go(1)
            replace(world)
            with pytest.raises(Fenced):
                await read(world)

    simulate(scenario)


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
    """Nobody else has written to the log."""

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


def test_a_machine_without_a_process_refuses_connections() -> None:
    """The simulation of several nodes: a client may not reach a broker that has ended."""

    async def scenario() -> None:
        world = NodesWorld()
        await world.start()
        serving = world.serving
        assert serving is not None
        world.direct = True
        serving.end()
        client = SimClient(world)
        assert not client.open
        client.send(p.connect("c"))
        await world.stop()
        await asyncio.sleep(0)

    simulate(scenario)
