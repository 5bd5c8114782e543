"""Messages that are read from the log: many sessions at once, and sessions with many records."""

from collections.abc import Iterable

import pytest
from harness import packets as p

from actors.broker import message_loading
from eventstore.format.records import Record
from simulation.world import SimClient, SimLog, World, in_world

RECEIVERS, MESSAGES = 12, 8


@in_world(message_cache=1)
async def test_sessions_that_need_messages_at_once_share_bounded_reads(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, sizes, running = SimLog.read_some, list[int](), [0]

    async def watched(log: SimLog, sequences: Iterable[int]) -> list[Record]:
        wanted = set(sequences)
        sizes.append(len(wanted))
        running[0] += 1
        assert running[0] == 1
        try:
            return await read(log, wanted)
        finally:
            running[0] -= 1

    monkeypatch.setattr(message_loading, "_RECORDS", 4)
    receivers = [await world.connect(f"r{n}", filters=[("t", 1)]) for n in range(RECEIVERS)]
    for receiver in receivers:
        receiver.send(p.disconnect())
    await world.go(1)
    sender = await world.connect("sender")
    sent = [b"%d" % number for number in range(MESSAGES)]
    for number, payload in enumerate(sent, 1):
        sender.send(p.publish("t", payload, 1, number))
        await world.go(0.1)
    monkeypatch.setattr(SimLog, "read_some", watched)
    receivers = [SimClient(world) for _ in range(RECEIVERS)]
    for number, receiver in enumerate(receivers):
        receiver.send(p.connect(f"r{number}", clean=False))
    await world.go(5)
    for receiver in receivers:
        assert receiver.payloads() == sent
    assert max(sizes) <= 4
    # All sessions need the same messages: the records are not read for each of them.
    assert sum(sizes) < RECEIVERS * MESSAGES / 2
