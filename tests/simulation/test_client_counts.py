"""Counters of clients outlive the broker: drops, connects, takeovers, ends, denials."""

from collections.abc import Callable
from typing import Any

import pytest
from harness import packets as p

from actors.inspection.views import history_fields
from eventstore.format.events import MessageDropped
from eventstore.format.positions import position
from projections.state.client_history import ClientHistories, add_to_history
from projections.state.format import GONE, HISTORY, MARK, decode_entry, version_tag
from projections.state.node_state import NodeState
from simulation.loop import simulate
from simulation.permission_worlds import OPEN, permit
from simulation.simulated_standby import StandbyWorld
from simulation.world import World, in_world

DENIED = OPEN + "[[deny]]\npublish = ['secret/#']\nsubscribe = ['hidden/#']\n"
NOT_COMPARED = ("rate_in", "rate_out")


def counts(world: World, client: str) -> dict[str, Any]:
    found = history_fields(client, None, world.broker.node)
    return {name: value for name, value in found.items() if name not in NOT_COMPARED}


def histories(world: World) -> set[str]:
    """The clients whose histories are stored."""
    latest = {key: decode_entry(data) for _, key, data in world.keyed.history}
    return {one.name for one in latest.values() if one.kind == HISTORY}


def forget_histories(world: World) -> None:
    """Leave what an earlier version would have stored."""
    kept = {key: (at, key, data) for at, key, data in world.keyed.history}
    digest = 0
    for at, key, data in sorted(kept.values()):
        entry = decode_entry(data)
        if entry.kind == HISTORY:
            del kept[key]
        elif entry.kind == MARK:
            entry.digest = digest
            kept[key] = at, key, entry.encode()
        elif entry.kind != GONE:
            digest ^= version_tag(key, entry.version)
    world.keyed.history = sorted(kept.values())


async def something_happens(world: World) -> None:
    """A client is taken over, loses queued messages, and is denied something."""
    permit(world, DENIED)
    await world.connect("r", filters=[("t", 1)])
    reader = await world.connect("r", present=True)
    reader.send(p.subscribe(7, ("hidden/x", 1)))
    await world.go(0.1)
    reader.drop()
    writer = await world.connect("w")
    for number in range(1, 6):
        writer.send(p.publish("t", b"x", 1, number))
    writer.send(p.publish("secret/a", b"x", 1, 9))
    await world.go(0.1)


@pytest.mark.parametrize("world_of", [World, StandbyWorld])
@pytest.mark.parametrize("rest", [0.0, 5.0])
@pytest.mark.parametrize("killed", [True, False])
def test_counters_continue_after_a_start(
    world_of: Callable[..., World], rest: float, *, killed: bool
) -> None:
    """Whether the projections have them (after some seconds) or the log alone."""

    async def scenario() -> None:
        async with world_of(max_queued_messages=2).running() as world:
            await world.go(5)
            await something_happens(world)
            await world.go(rest)
            before, writes = counts(world, "r"), counts(world, "w")
            assert (before["connects"], before["takeovers"], before["dropped"]) == (2, 1, 3)
            assert (before["denied"], before["last_close"]) == (1, "error")
            assert (writes["dropped_by"], writes["denied"]) == ({"not_permitted": 1}, 1)
            if not killed:
                await world.drain()
            await world.restart()
            assert counts(world, "r") == before
            after = counts(world, "w")
            end = "broker_restarted" if killed else "broker_stopped"
            assert after["last_close"] == end
            assert {**after, "last_close": None, "last_close_ms": None} == writes
            assert world.broker.node.clients.find("r").denied == {"subscribe hidden/x": 1}
            assert world.broker.node.clients.find("w").denied == {"publish secret/a": 1}
            await world.connect("r", present=True)
            assert counts(world, "r")["connects"] == 3
            assert counts(world, "r")["counted_since_ms"] == before["counted_since_ms"]
            await world.go(5)
            await world.restart()
            assert counts(world, "r")["connects"] == 3

    simulate(scenario)


@pytest.mark.parametrize("rounds", [0.0, 0.3, 1.1, 2.5])
@in_world(max_queued_messages=2)
async def test_stored_counters_and_newer_events_equal_the_log(world: World, rounds: float) -> None:
    """Rounds of the projections come anywhere between the events."""
    for _ in range(4):
        await something_happens(world)
        await world.go(rounds)
        await world.restart()
    whole = NodeState()
    whole.clients = ClientHistories()
    for record in world.disk.decoded():
        whole.apply_record(record)
    await world.restart()
    known = world.broker.node.clients
    for name, history in whole.clients.items():
        if name not in world.broker.node.state.sessions:
            continue
        found, wanted = known.find(name), history
        assert (found.connects, found.takeovers) == (wanted.connects, wanted.takeovers)
        assert (found.dropped, found.since_ms) == (wanted.dropped, wanted.since_ms)
        assert (found.denied, found.denied_count) == (wanted.denied, wanted.denied_count)


@in_world(max_queued_messages=2)
async def test_projections_without_histories_are_read(world: World) -> None:
    """An earlier version wrote them: the counters begin with the records behind their mark."""
    await something_happens(world)
    await world.go(5)
    await world.crash()
    assert histories(world) == {"r", "w"}
    forget_histories(world)
    assert not histories(world)
    await world.start()
    assert world.broker.projector.marked
    assert counts(world, "r")["counted_since_ms"] is None
    await world.connect("r", present=True)
    assert counts(world, "r")["connects"] == 1
    assert counts(world, "r")["counted_since_ms"] > 0


@in_world()
async def test_only_histories_of_clients_with_a_session_are_stored(world: World) -> None:
    gone = await world.connect("gone", clean=True)
    await world.connect("stays")
    await world.go(5)
    assert histories(world) == {"gone", "stays"}
    gone.drop()
    await world.go(5)
    assert histories(world) == {"stays"}
    assert counts(world, "gone")["connects"] == 1  # it is remembered until the end


@pytest.mark.plain
@in_world()
async def test_a_bounded_number_of_clients_is_remembered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.state.client_history.MAX_CLIENTS", 2)
    for name in "abc":
        await world.connect(name)
        await world.go(5)
    assert histories(world) == {"b", "c"}
    assert counts(world, "a")["counted_since_ms"] is None
    await world.restart()
    assert len(world.broker.node.clients) == 2


def test_an_event_that_the_loaded_history_counts_is_not_added_again() -> None:
    clients, dropped = ClientHistories(), MessageDropped("c", "slow_reader", 2, topics=["t"])
    add_to_history(clients, dropped, position(3, 0), 70)
    again = ClientHistories()
    again.load("c", clients.find("c"), position(3, 1))
    add_to_history(again, dropped, position(3, 0), 70)
    assert again.find("c").dropped == {"slow_reader": 2}
    add_to_history(again, dropped, position(4, 0), 71)
    assert again.find("c").dropped == {"slow_reader": 4}
    again.finish_loading()
    assert not again.counts("c", 0)
