"""``keep_bytes`` is a bound: input waits for the log's cut, but never for uncuttable records."""

import asyncio
import dataclasses
from typing import Any

import pytest
import structlog.testing
from harness import packets as p
from harness.anonymous import Anonymous

from actors.maintenance import retention
from actors.maintenance.projector import Projector
from actors.maintenance.retention import Retention
from eventstore.errors import LogUnavailable
from eventstore.format.record_size import STORED_OVERHEAD
from eventstore.log.jetstream_log import EventLog
from simulation.fold import compare
from simulation.jetstream import SimNats
from simulation.log_cuts import cuts
from simulation.world import SimClient, World, in_world, simulate

BOUND = 200_000


@pytest.fixture(autouse=True)
def _small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MIN", 5000)


def size(world: World) -> int:
    records = world.disk.records
    return sum(map(len, records)) + STORED_OVERHEAD * len(records)


class Load:
    """Publishes as fast as it is acknowledged, with some messages on their way."""

    def __init__(self, world: World, client: SimClient, pause: float = 0.05) -> None:
        self.acknowledged = 0
        self.longest = 0.0
        """Seconds for which nothing was acknowledged."""
        self.most = 0
        """Bytes of the log at its largest."""
        self._world = world
        self._client = client
        self._pause = pause
        self._next = 0

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        waiting, since = 0, loop.time()
        while loop.time() < until:
            while waiting < 10:
                self._next = self._next % 60_000 + 1
                self._client.send(p.publish("noise", bytes(500), 1, self._next))
                waiting += 1
            await self._world.go(self._pause)
            done = sum(isinstance(packet, p.Puback) for packet in self._client.take())
            if done:
                since = loop.time()
            self.longest = max(self.longest, loop.time() - since)
            self.acknowledged += done
            waiting -= done
            self.most = max(self.most, size(self._world))


def starved(monkeypatch: pytest.MonkeyPatch, seconds: float = 3.0) -> None:
    """Let the work of retention come to its turn late, and the projections too."""
    breathe, slices = Retention._yield_time, Projector._in_slices

    async def late(self: Retention, started: float) -> None:
        await asyncio.sleep(seconds)
        await breathe(self, started)

    async def slices_late(self: Projector, changed: dict[str, int], kind: int) -> None:
        await asyncio.sleep(seconds)
        await slices(self, changed, kind)

    monkeypatch.setattr(Retention, "_yield_time", late)
    monkeypatch.setattr(Projector, "_in_slices", slices_late)


def bounded(**options: Any) -> World:
    return World(**{"keep": 0.0, "keep_bytes": BOUND, **options})


def test_a_retention_that_is_starved_makes_input_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    starved(monkeypatch)

    async def scenario() -> None:
        async with bounded().running() as world:
            away = await world.connect("away", filters=[("old", 1)])
            away.drop()
            noisy = await world.connect("noisy")
            noisy.send(p.publish("old", b"first", 1, 65_000))
            load = Load(world, noisy)
            await load.run(120)
            assert load.most <= BOUND * 1.25
            assert load.acknowledged > 500
            assert len(cuts(world)) == 1
            assert world.disk.stream.first > 100
            await world.go(30)
            assert not world.broker.node.journal.full
            away = await world.connect("away", present=True)
            assert away.payloads() == [b"first"]
            compare(world)

    with structlog.testing.capture_logs() as lines:
        simulate(scenario)
    assert [line for line in lines if line["event"].startswith("the log has reached keep_bytes")]
    assert not [line for line in lines if "sessions and retained" in line["event"]]


def test_no_client_waits_if_cutting_keeps_up() -> None:
    async def scenario() -> None:
        async with bounded().running() as world:
            load = Load(world, await world.connect("noisy"), 0.5)
            await load.run(60)
            assert load.most <= BOUND * 1.1
            assert load.longest < 0.6

    with structlog.testing.capture_logs() as lines:
        simulate(scenario)
    assert not [line for line in lines if "keep_bytes" in line["event"]]


@pytest.mark.parametrize("needed", ["retained", "queued"])
@pytest.mark.slow
def test_needed_data_may_exceed_the_limit_and_is_reported(needed: str) -> None:
    """No client waits for the cut; the log is bounded nevertheless."""

    async def scenario() -> None:
        async with bounded().running() as world:
            away = await world.connect("away", filters=[("old/#", 1)] if needed == "queued" else ())
            away.drop()
            noisy = await world.connect("noisy")
            for number in range(1, 101):
                retain = needed == "retained"
                noisy.send(p.publish(f"old/{number}", bytes(3000), 1, number, retain=retain))
                await world.go(0.05)
                noisy.take()
            load = Load(world, noisy)
            await load.run(60)
            assert load.longest < 2
            assert 300_000 < load.most < 2_000_000
            compare(world)

    with structlog.testing.capture_logs() as lines:
        simulate(scenario)
    *_, said = [line for line in lines if line["event"].startswith("the log takes more than")]
    assert said["event"].endswith("sessions and retained messages need more than that")
    assert said["retained" if needed == "retained" else "queued"] > BOUND // 2
    assert said["queued" if needed == "retained" else "retained"] < BOUND // 2
    if needed == "queued":
        assert said["holders"][0].startswith("away: ")


def held_by_a_reader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.broker.retention, "_readers", 1)


def held_by_the_projections(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Projector) -> None:
        await asyncio.sleep(1e9)

    monkeypatch.setattr(Projector, "round", never)


def held_by_a_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.broker.node.rebuilding.add("away")


@pytest.mark.parametrize(
    "hold",
    [held_by_a_reader, held_by_the_projections, held_by_a_session],
    ids=lambda one: one.__name__,
)
@pytest.mark.slow
def test_a_blocked_cut_stops_no_client(hold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bounded().running() as world:
            away = await world.connect("away")
            away.drop()
            await world.go(5)
            hold(world, monkeypatch)
            load = Load(world, await world.connect("noisy"))
            await load.run(60)
            assert load.longest < 20
            assert load.acknowledged > 1000
            world.broker.node.rebuilding.clear()

    with structlog.testing.capture_logs() as lines:
        simulate(scenario)
    assert [line for line in lines if line["event"].startswith("the log grows beyond keep_bytes")]


@in_world(bounded, keep_until_archived=True)
async def test_unarchived_records_stop_no_client(world: World) -> None:
    load = Load(world, await world.connect("noisy"))
    await load.run(20)
    assert load.longest < 2
    assert load.most > 2 * BOUND


@pytest.mark.slow
@in_world(bounded, keep_bytes=10 * BOUND)
async def test_a_lowered_limit_stops_no_client_for_long(world: World) -> None:
    load = Load(world, await world.connect("noisy"))
    await load.run(40)
    assert load.most > 2 * BOUND
    options = dataclasses.replace(world.broker.node.options, keep_bytes=BOUND)
    world.broker.reload(options, Anonymous())
    await load.run(20)
    assert load.longest < 2
    load.most = 0
    await load.run(60)
    assert load.most <= BOUND * 1.25


@in_world(bounded)
async def test_a_log_that_cannot_be_purged_stops_no_client(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a user without permission: it is retried."""

    async def refused(self: EventLog, first: int) -> None:
        raise LogUnavailable("stream FOLDMQ_LOG_sim does not answer")

    monkeypatch.setattr(EventLog, "cut", refused)
    load = Load(world, await world.connect("noisy"))
    await load.run(100)
    assert load.longest < 10
    assert load.most > BOUND * 1.25


def test_a_message_too_large_to_be_repeated_stops_no_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A retained message came while records could be larger: the log is not cut, and says so."""

    async def scenario() -> None:
        async with bounded(keep_bytes=10 * BOUND).running() as world:
            sender = await world.connect("sender")
            sender.send(p.publish("kept", bytes(1_500_000), 1, 1, retain=True))
            await world.go(0.2)
            monkeypatch.setattr(SimNats, "max_payload", 1 << 20)
            await world.restart()
            load = Load(world, await world.connect("noisy"))
            await load.run(30)
            assert load.longest < 2
            assert world.failure() is None
            assert world.disk.stream.first == 1

    with structlog.testing.capture_logs() as lines:
        simulate(scenario)
    (said,) = [line for line in lines if "cannot be repeated" in line["event"]]
    assert said["log_level"] == "error"
