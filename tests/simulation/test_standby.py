"""A standby that is disturbed while it follows the log."""

import asyncio

import pytest
from harness import packets as p

from actors.maintenance.state_reader import StateReader
from eventstore.errors import LogUnavailable
from eventstore.format.records import Record
from simulation.simulated_standby import StandbyWorld
from simulation.world import in_world


@pytest.mark.parametrize("error", [LogUnavailable, asyncio.CancelledError])
@in_world(StandbyWorld)
async def test_a_record_that_could_not_be_folded_is_read_again(
    world: StandbyWorld, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read from the log fails, or the task that follows is cancelled."""
    take, failures = StateReader.take, [3, 2, 1]

    async def fails(self: StateReader, record: Record) -> None:
        if failures:
            failures.pop()
            raise error("test")
        await take(self, record)

    client = await world.connect("c", filters=[("t", 1)])
    follower = world._follower
    assert follower is not None
    await world.go(5)
    monkeypatch.setattr(StateReader, "take", fails)
    client.send(p.publish("t", b"1", 1, 1))
    await world.go(0.001)
    last = world.broker.node.journal.durable
    while failures:
        with pytest.raises(error):
            await follower.read_to(last)
    client.drop()
    await world.go(5)
    await world.crash()
    await world.start()  # which compares what was followed with the log
    assert world.takeovers == 2
