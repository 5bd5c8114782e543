"""Replays as an attack: a thousand of everything, which nobody reads."""

import asyncio
from typing import Any

import pytest
from harness import packets as p

from actors.limits.limit_options import LimitOptions
from actors.replay import log_reader
from actors.replay.replay import _AT_GATE
from actors.replay.selection import BYTES_AT_ONCE, MESSAGES_AT_ONCE
from simulation.network import SimClient
from simulation.test_bounded_steps import largest_step
from simulation.world import World, simulate

CLIENTS, EACH = 250, 4
MESSAGES, PAYLOAD = 400, 8_000
AHEAD, CACHED = 1024 * 1024, 512 * 1024
"""Bytes of records ahead of all replays, and of those shared by them, in this test."""
_RECORD = 3 * PAYLOAD


def held(world: World) -> int:
    """Bytes of decoded records in memory."""
    replays = world.broker.replays
    records = {id(record): record for record in replays.reader._records.values()}
    for replay in replays.connected:
        for log in replay.logs:
            records |= {id(one): one for one in log.ahead}
    return sum(record.size for record in records.values())


def unread(world: World) -> Any:
    """Bytes that wait for a client, at most."""
    connections: list[Any] = [replay.connection for replay in world.broker.replays.connected]
    return max(connection.gated + connection.unread for connection in connections if connection)


def test_a_thousand_replays_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_AHEAD", AHEAD)
    monkeypatch.setattr(log_reader, "_CACHED", CACHED)
    bounds = LimitOptions(max_replays=CLIENTS * EACH, max_replays_per_client=EACH)

    async def scenario() -> None:
        async with World(bounds=bounds).running() as world:
            sender = await world.connect("s")
            for number in range(MESSAGES):
                sender.send(p.publish(f"t/{number % 5}", bytes(PAYLOAD), 1, number + 1))
                await world.go(0.01)
            sender.take()
            attackers = [SimClient(world) for _ in range(CLIENTS)]
            most = 0

            async def attack() -> None:
                nonlocal most
                for number, client in enumerate(attackers):
                    begins = [number * EACH + part + 1 for part in range(EACH)]
                    filters = [(f"$replay/{at % MESSAGES}/#", 0) for at in begins]
                    client.send(p.connect(f"a{number}", clean=True), p.subscribe(1, *filters))
                    await asyncio.sleep(0)
                    client.transport.stall()
                for _ in range(100):
                    await world.go(0.05)
                    most = max(most, held(world))

            def replayed() -> int:
                return world.broker.node.counters.replayed

            at_once = await largest_step(replayed, attack(), monkeypatch)
            assert len(world.broker.replays) == CLIENTS * EACH
            assert replayed() > CLIENTS * EACH
            assert at_once <= MESSAGES_AT_ONCE
            assert most <= AHEAD + CACHED + CLIENTS * EACH * _RECORD
            assert unread(world) <= _AT_GATE + 2 * BYTES_AT_ONCE
            # Others are served meanwhile.
            reader = await world.connect("r", filters=[("t/#", 1)])
            sender.send(p.publish("t/1", b"now", 1, 900))
            await world.go(1)
            assert p.Puback(900) in sender.take()
            assert reader.payloads() == [b"now"]
            # Further ones are refused.
            late = await world.connect("late")
            late.send(p.subscribe(1, ("$replay/all/#", 0)))
            await world.go(0.5)
            (suback,) = late.take()
            assert isinstance(suback, p.Suback)
            assert list(suback.codes) == [0x80]
            for client in attackers:
                client.drop()
            await world.go(1)
            assert held(world) == 0

    simulate(scenario)
