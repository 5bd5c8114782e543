"""Several nodes that lead several logs: killed, suspended, cut off and moved, at random.

A failure names its seed: ``python tests/simulation/cluster_chaos.py --first SEED --seeds 1`` runs
it, or ``cluster_shares.py``.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import pytest
from harness import packets as p

from actors.exchange.followed_positions import FollowedPositions
from actors.exchange.log_follower import LogFollower
from actors.exchange.qos0_exchange import Qos0Exchange
from eventstore.format.node_events import Followed
from eventstore.format.positions import Position
from eventstore.log.journal import Journal
from simulation import cluster_shares, node_faults
from simulation.broken_clusters import (
    Patch,
    follows_without_folding_every_record,
    writes_on_although_another_node_leads,
)
from simulation.cluster_chaos import run
from simulation.faults import Faults
from simulation.loop import simulate
from simulation.partitioned_nodes import LogWorld, make_cluster
from simulation.partitions import name_in
from simulation.processes import Process, ProcessLoop
from simulation.world import runs

_ASKED = int(os.environ.get("FOLDMQ_SEEDS", "0"))
SEEDS = range(400, 400 + max(8, _ASKED))
SHARES_SEEDS = range(1000, 1000 + max(6, _ASKED // 5))
_MAX_SEEDS = 20
"""Runs within which each mutant is caught."""
AT_EVERY_SAVE = 2
"""``make check`` runs this many of them, too."""


@cache
def counts(seed: int) -> Counter[str]:
    """How often what happened in a run; it runs once, for all tests that ask for it."""
    return run(seed)


def marks_of(number: int) -> list[pytest.MarkDecorator]:
    """The first run is made as plain Python, too."""
    if number >= AT_EVERY_SAVE:
        return [pytest.mark.slow]
    return [] if number else [pytest.mark.twice]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=marks_of(number)) for number, seed in enumerate(SEEDS)]
)
def test_a_random_run_of_several_nodes_and_logs_keeps_every_guarantee(seed: int) -> None:
    counts(seed)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if number else [])
        for number, seed in enumerate(SHARES_SEEDS)
    ],
)
def test_a_random_run_with_a_shared_subscription_keeps_every_guarantee(seed: int) -> None:
    assert cluster_shares.run(seed)["acked"]


@pytest.mark.slow
def test_a_clean_session_may_begin_after_a_later_session_of_its_client() -> None:
    """A CONNECT at one node reaches the leader behind a later one at another node, and ends its
    session."""
    counts(1124)


@pytest.mark.long
def test_a_long_queue_may_be_delivered_slowly() -> None:
    """For twelve minutes, one message after the other goes to a member of another log."""
    assert cluster_shares.run(92)["acked"]


@pytest.mark.long
def test_everything_happened_to_nodes() -> None:
    # In run 88 an append of a replaced leader is refused, which is rare.
    seen = sum((counts(seed) for seed in (*range(400, 400 + max(45, _ASKED)), 88)), Counter[str]())
    wanted = (
        "node m0 killed", "a leader killed", "a follower killed", "a leader suspended",
        "a follower suspended", "a main process suspended", "a node suspended",
        "a leader cut off from NATS", "a follower cut off from NATS", "a node cut off from NATS",
        "a node cut off from the others", "a leader hands over", "replaced while it served",
        "Replaced", "Moved", "killed: before an append",
    )  # fmt: skip
    assert not [what for what in wanted if not seen[what]]


# Runs that are not random.


def in_cluster(scenario: Callable[[LogWorld, LogWorld], Awaitable[None]]) -> None:
    """Run a scenario with two nodes and two logs."""

    async def both() -> None:
        worlds = make_cluster(2, 2, Faults())
        machines = worlds[0].machines
        try:
            for machine in machines:
                machine.start()
            while not all(world.up for world in worlds):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
            await scenario(*worlds)
        finally:
            for machine in machines:
                machine.kill()
            for world in worlds:
                await world.crash()

    simulate(both, ProcessLoop)


async def away(world: LogWorld) -> Process:
    """Suspend the leader of a log; return its process."""
    assert world.serving is not None
    process = world.serving.process
    process.suspend()
    await asyncio.sleep(0)
    return process


async def replaced(world: LogWorld, process: Process) -> None:
    """Wait until another process leads a log."""
    while world.serving is None or world.serving.process is process:  # noqa: ASYNC110 - likewise
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("waits", [True, False])
def test_qos_0_of_a_replaced_leader_does_not_overtake(
    *, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """It reads what a client sent before the client went to the new leader.

    It passes nothing on before it knows that it leads. If it does, the receiver drops it.
    """
    if not waits:
        monkeypatch.setattr(Qos0Exchange, "await_proof", lambda _exchange: None)

    async def scenario(here: LogWorld, there: LogWorld) -> None:
        worlds = [here, there]
        reader = await here.connect(name_in(worlds, 0), filters=[("t", 1)])
        sender = await there.connect(name_in(worlds, 1))
        old = await away(there)
        sender.send(p.publish("t", b"1"))
        await here.go(0.1)
        await replaced(there, old)
        sender = await there.connect(name_in(worlds, 1))
        sender.send(p.publish("t", b"2"))
        await here.go(1)
        assert reader.payloads() == [b"2"]
        old.resume()
        await here.go(1)
        assert reader.payloads() == []
        dropped = [world.broker.node.dropped["exchange_replaced"] for world in worlds]
        assert dropped == [int(not waits), 0]

    in_cluster(scenario)


@pytest.mark.parametrize("cut", [False, True], ids=["suspended", "cut off from NATS"])
@runs(in_cluster)
async def test_a_replaced_leader_acknowledges_nothing(
    here: LogWorld, there: LogWorld, *, cut: bool
) -> None:
    name = name_in([here, there], 1)
    sender = await there.connect(name)
    leader = there.serving
    assert leader is not None
    if cut:
        leader.silence()  # type: ignore[attr-defined]
    else:
        await away(there)
    sender.send(p.publish("t", b"1", 1, 1), p.publish("t", b"2", 2, 2), p.subscribe(3, ("t", 1)))
    await replaced(there, leader.process)
    if cut:
        leader.restore()  # type: ignore[attr-defined]
    else:
        leader.process.resume()
    await here.go(5)
    assert not sender.open
    assert not sender.take()
    again = await there.connect(name)
    again.send(p.publish("t", b"1", 1, 1))
    await here.go(1)
    assert again.take() == [p.Puback(1)]


@runs(in_cluster)
async def test_a_leader_that_was_suspended_proves_that_it_leads_before_it_sends_anything(
    here: LogWorld, there: LogWorld
) -> None:
    """It was not replaced meanwhile, and does not know that."""
    worlds = [here, there]
    sender = await there.connect(name_in(worlds, 1))
    reader = await there.connect(name_in(worlds, 1, "r"), filters=[("t", 0)])
    other = await here.connect(name_in(worlds, 0, "o"), filters=[("t", 0)])
    process = await away(there)
    there.log.hold()
    sender.send(p.pingreq(), p.publish("t", b"1"))
    await here.go(1)
    process.resume()
    await here.go(0.5)
    assert (sender.take(), reader.take(), other.take()) == ([], [], [])
    there.log.release()
    await here.go(0.5)
    assert (sender.take(), reader.take()) == ([p.Pingresp()], [p.Publish("t", b"1")])
    assert other.take() == [p.Publish("t", b"1")]


def test_a_suspended_process_does_nothing() -> None:
    """The simulation: what is due waits, what arrives waits behind it, and then timers."""
    done: list[str] = []

    async def scenario() -> None:
        process, loop = Process(), asyncio.get_running_loop()

        async def work() -> None:
            while True:
                done.append(f"{loop.time():.1f}")
                await asyncio.sleep(1.0)

        with process.inside():
            task = asyncio.create_task(work())
        await asyncio.sleep(0.5)
        process.suspend()
        with process.inside():
            loop.call_soon(done.append, "due")
            loop.call_later(0.1, done.append, "cancelled").cancel()
        await asyncio.sleep(5.0)
        process.arrive(done.append, "arrived")
        assert done == ["0.0"]
        process.resume()
        await asyncio.sleep(1.0)
        assert done == ["0.0", "due", "arrived", "5.5"]
        process.kill()
        process.arrive(done.append, "too late")
        task.cancel()
        await asyncio.wait({task})
        assert len(done) == 4

    simulate(scenario, ProcessLoop)


# Clusters that break a rule.


def acknowledges_before_the_record_is_stored(patch: Patch) -> None:
    patch.setattr(Journal, "send_when_durable", lambda _journal, sink, data: sink.write(data))


def a_new_leader_takes_other_logs_from_their_end(patch: Patch) -> None:
    begin = LogFollower._begin

    async def late(follower: LogFollower, taken: int, link: str) -> Any:
        found = await begin(follower, taken, link)
        if not taken:
            return found
        tail = await follower._log.tail()
        (record,) = await follower._log.read_some([tail.sequence])
        return await begin(follower, tail.sequence, record.link.hex())

    patch.setattr(LogFollower, "_begin", late)


def records_the_position_in_another_turn(patch: Patch) -> None:
    def later(
        positions: FollowedPositions, name: str, through: Position, link: str, *_: object
    ) -> None:
        positions._through[name] = through, link
        positions._recorded[name] = through
        node = positions._node
        asyncio.get_running_loop().call_later(
            0.001, lambda: (node.emit(Followed(name, through, link)), node.kernel.wake())
        )

    patch.setattr(FollowedPositions, "record", later)


@pytest.mark.plain
@pytest.mark.parametrize(
    "mutant",
    [
        # simulation/test_nodes_mutations.py has it with one log.
        pytest.param(writes_on_although_another_node_leads, marks=pytest.mark.long),
        follows_without_folding_every_record,
        acknowledges_before_the_record_is_stored,
        a_new_leader_takes_other_logs_from_their_end,
        records_the_position_in_another_turn,
    ],
)
@pytest.mark.slow
def test_a_cluster_with_several_logs_that_violates_a_rule_is_detected(
    mutant: Callable[[Patch], None],
) -> None:
    for seed in range(_MAX_SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node_faults, "LONGEST", 800.0)
            mutant(patch)
            try:
                run(seed)
            except Exception as error:  # noqa: BLE001 - any shows that something is wrong
                print(f"caught by seed {seed}: {type(error).__name__}: {str(error)[:500]}")
                return
    pytest.fail(f"the cluster that {mutant.__name__} passes {_MAX_SEEDS} seeds")
