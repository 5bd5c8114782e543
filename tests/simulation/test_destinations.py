"""Destinations hold the log within their bounds; what they lose is an event; cursors survive."""

import dataclasses
from typing import Any

import pytest
from harness import packets as p
from harness.plainaudit import audit_plainly, checked_records

from actors.inspection.inspector import Refused
from actors.limits.bridge_options import BridgeOptions
from actors.limits.destination_options import DestinationOptions
from actors.maintenance import retention
from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
)
from eventstore.format.node_events import Bridged, LogCut, OperatorActed
from eventstore.format.positions import position
from protocol.nats.mapping import Mapping
from simulation.fold import compare, fold
from simulation.idle_broker import MINUTE, look_rarely
from simulation.inspection import ask, change
from simulation.log_cuts import cuts, publish_noise
from simulation.world import World, in_world

BOUND = 40_000
SHOWN = {
    **dict.fromkeys(("since_ms", "sent", "retries", "expired", "denied", "erased"), 0),
    "state": "sending",
    "error": "",
    "time_ms": 0,
    "waiting_ms": 0,
    "batch_seconds": 0.0,
}


@pytest.fixture(autouse=True)
def _small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)


def world_with(**options: Any) -> World:
    """A world with a small log and one destination."""
    limits = {name: options.pop(name) for name in ("max_behind", "when_full") if name in options}
    erp = DestinationOptions("erp", "http", ("noise",), "d1", **limits)
    return World(**{"keep": 0.0, "keep_bytes": BOUND, "destinations": (erp,), **options})


async def report(world: World, through: int, **more: Any) -> dict[str, Any]:
    """Report as the process of the outbox does."""
    run = world.broker.node.state.destinations["erp"].run
    request = {"to": "erp", "run": run, "through": through, "shown": SHOWN, **more}
    return await change(world, "forwarded", **request)


def end(world: World) -> int:
    """The last position that is on disk."""
    return position(world.broker.node.journal.durable + 1, 0) - 1


def losses(world: World) -> list[ForwardLost]:
    return world.disk.events(ForwardLost)


@in_world(world_with)
async def test_a_cut_beyond_a_cursor_is_an_event_before_it(world: World) -> None:
    client = await world.connect("c")
    for _ in range(6):
        await publish_noise(world, client, 100)
    history = checked_records(world.disk.stream.history)
    found = [each.record for each in history if each.record is not None]
    turns = [[event for _, event in record.events()] for record in found]
    cut = [events for events in turns if any(isinstance(each, LogCut) for each in events)]
    assert len(cut) > 1
    for events in cut:
        (loss,) = (each for each in events if isinstance(each, ForwardLost))
        (made,) = (each for each in events if isinstance(each, LogCut))
        assert events.index(loss) < events.index(made)
        assert (loss.until, loss.reason) == (position(made.first, 0) - 1, "keep_bytes")
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    compare(world)


@in_world(world_with)
async def test_a_cursor_that_keeps_up_loses_nothing(world: World) -> None:
    client = await world.connect("c")
    for _ in range(30):
        await publish_noise(world, client, 20)
        await report(world, end(world), number=20, count=20)
    assert cuts(world)
    assert losses(world) == []
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    kept = fold(world.disk.decoded()).destinations
    assert kept == world.broker.node.state.destinations
    await world.restart()
    assert world.broker.node.state.destinations == kept


@in_world(lambda: world_with(when_full="wait"))
async def test_publishers_wait_for_a_destination_that_must_not_lose(world: World) -> None:
    client = await world.connect("c")
    for number in range(600):
        client.send(p.publish("noise", bytes(200), 1, number + 1))
        await world.go(0.05)
    answered = sum(isinstance(each, p.Puback) for each in client.take())
    assert answered < 600
    assert losses(world) == []
    assert world.broker.node.journal.full
    before = answered
    for _ in range(40):
        await report(world, end(world))
        await world.go(5)
        answered += sum(isinstance(each, p.Puback) for each in client.take())
    assert before < answered == 600
    assert losses(world) == []


@in_world(lambda: world_with(keep=10 * MINUTE, keep_bytes=0, max_behind=100 * MINUTE))
async def test_a_longer_bound_keeps_the_log_and_then_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_rarely(monkeypatch)
    client = await world.connect("c")
    for _ in range(8):
        await publish_noise(world, client, 20)
        await world.go(10 * MINUTE)
    assert cuts(world) == []
    for _ in range(8):
        await publish_noise(world, client, 20)
        await world.go(10 * MINUTE)
    assert cuts(world)
    assert {each.reason for each in losses(world)} == {"max_behind"}


@in_world(world_with)
async def test_a_report_is_recorded_once_and_only_forward(world: World) -> None:
    client = await world.connect("c")
    await publish_noise(world, client, 3)
    done = end(world)
    refused = [[[position(5, 0)], "no", 422]]
    answer = await report(world, done, number=3, count=2, refused=refused)
    assert (answer["through"], answer["number"], answer["paused"]) == (done, 3, False)
    before = end(world)
    assert (await report(world, done))["through"] == done
    assert (await report(world, done - 1, count=1))["through"] == done
    assert (await report(world, done, run=1, count=1))["through"] == done
    assert end(world) == before
    with pytest.raises(Refused, match="behind the end of the log"):
        await report(world, end(world) + (9 << 20))
    with pytest.raises(Refused, match="no destination 'other'; destinations: 'erp'"):
        await change(world, "pause_destination", to="other")
    events = world.disk.events()
    (row,) = (await ask(world, "destinations"))["rows"]
    assert (row["refused"], row["state"]) == (1, "sending")
    assert ForwardRefused("erp", [position(5, 0)], "no", code=422) in events
    assert sum(isinstance(each, Forwarded) for each in events) == 1


@in_world(world_with)
async def test_a_pause_survives_a_crash_and_a_cut(world: World) -> None:
    client = await world.connect("c")
    await change(world, "pause_destination", to="erp")
    with pytest.raises(Refused, match="already paused"):
        await change(world, "pause_destination", to="erp")
    await world.restart()
    client = await world.connect("c")
    await publish_noise(world, client, 500)
    assert cuts(world)
    assert fold(world.disk.decoded()).destinations["erp"].paused
    assert (await report(world, end(world)))["paused"]
    await change(world, "resume_destination", to="erp")
    assert not (await report(world, end(world)))["paused"]


@in_world(world_with)
async def test_an_operator_skips_what_waits(world: World) -> None:
    client = await world.connect("c")
    await publish_noise(world, client, 3)
    answer = await change(world, "skip_destination", to="erp")
    (loss,) = losses(world)
    assert (loss.after, loss.until) == (answer["after"], answer["until"])
    assert loss.reason == "skip"
    with pytest.raises(Refused, match="has all its messages"):
        await change(world, "skip_destination", to="erp", until=answer["until"])
    acted = world.disk.events(OperatorActed)
    assert [(each.action, each.target) for each in acted] == [("skip_destination", "erp")]
    assert (await report(world, 1))["through"] == loss.until
    assert world.broker.node.state.destinations["erp"].losses == 0  # it was wanted


@in_world(world_with)
async def test_lost_and_erased_messages_are_events(world: World) -> None:
    client = await world.connect("c")
    await publish_noise(world, client, 10)
    await world.go(0.5)
    first = position(world.broker.node.journal.durable, 0) - 1
    lost = [[first, first + 998, 998, "cut"], [first + 1005, first + 1006, 2, "erased"]]
    with pytest.raises(Refused, match="lost must be a list of at most 1000"):
        await report(world, end(world), lost=lost * 501)
    for wrong in ([first, first, 1, "cut"], [first, first + 1, 1, "bored"], [first, first + 1]):
        with pytest.raises(Refused, match="lost must have a range of positions"):
            await report(world, end(world), lost=[wrong])
    await report(world, end(world), lost=lost)
    assert [[each.after, each.until, each.messages, each.reason] for each in losses(world)] == lost
    assert world.broker.node.state.destinations["erp"].losses == 1  # an erasure is none
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []


@in_world(world_with)
async def test_refused_messages_wait_until_they_were_sent_again(world: World) -> None:
    client = await world.connect("c")
    await publish_noise(world, client, 3)
    await world.go(0.5)
    last = world.broker.node.journal.durable
    refs = [position(last - 1, 0), position(last, 0)]
    state = world.broker.node.state.destinations
    await report(world, end(world), refused=[[refs, "no", 400]])
    await change(world, "retry_messages", to="erp", refs=refs)
    assert (await report(world, end(world)))["retry"] == refs
    await world.restart()
    state = world.broker.node.state.destinations
    assert (state["erp"].refused, (await report(world, end(world)))["retry"]) == (2, refs)
    again = await report(world, end(world), retried=refs[:1], count=1)
    assert (again["retry"], state["erp"].refused) == (refs[1:], 1)
    again = await report(world, end(world), refused=[[refs[1:], "no", 400]])
    assert (again["retry"], state["erp"].refused) == ([], 1)
    await change(world, "retry_messages", to="erp", refs=refs[1:])
    again = await report(world, end(world), retried=refs[1:], count=1)
    assert (again["retry"], state["erp"].refused) == ([], 0)
    many = list(range(end(world) + 1, end(world) + 10_000))
    answer = await change(world, "retry_messages", to="erp", refs=(full := [*refs, *many[1:]]))
    assert (answer["taken"], answer["left"]) == (10_000, 0)
    answer = await change(world, "retry_messages", to="erp", refs=[*refs, many[0]])
    assert (answer["taken"], answer["left"]) == (0, 1)
    await report(world, end(world), retried=full)
    for wrong in ("x", [0], [True, "x"], [1] * 10_001):
        with pytest.raises(Refused, match="refs must be a list of at most 10000 positions"):
            await change(world, "retry_messages", to="erp", refs=wrong)
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    assert fold(world.disk.decoded()).destinations == state


@in_world(world_with)
async def test_the_settings_open_change_and_close_destinations(world: World) -> None:
    client = await world.connect("c")
    await publish_noise(world, client, 3)
    await report(world, done := end(world), number=3, count=3)
    changed = DestinationOptions("erp", "http", ("other",), "d2")
    late = DestinationOptions("new", "http", ("#",), "d3", begin="oldest")
    world.options = dataclasses.replace(world.options, destinations=(changed, late))
    await world.restart()
    await world.go(1)
    states = world.broker.node.state.destinations
    assert states["erp"].after == states["erp"].through == done
    assert (states["erp"].number, states["new"].after) == (0, position(1, 0) - 1)
    world.options = dataclasses.replace(world.options, destinations=())
    await world.restart()
    await world.go(1)
    assert world.broker.node.state.destinations == {}
    events = world.disk.events()
    causes = [each.cause for each in events if isinstance(each, DestinationOpened)]
    assert causes == ["first", "changed", "first"]
    closed = [each.to for each in events if isinstance(each, DestinationClosed)]
    assert closed == ["erp", "new"]
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []


def bridged_world(**options: Any) -> World:
    """A world with a bridge that is not connected."""
    world = World(**options)
    world.bridge = BridgeOptions(Mapping())
    return world


def opened_for_nats(world: World) -> list[DestinationOpened]:
    events = world.disk.events()
    return [each for each in events if isinstance(each, DestinationOpened) and each.to == "nats"]


@in_world(bridged_world)
async def test_the_bridge_is_a_destination_and_its_end_is_an_event(world: World) -> None:
    await world.go(0.5)
    (opened,) = opened_for_nats(world)
    with pytest.raises(Refused, match="the bridge to NATS refuses no messages"):
        await change(world, "retry_messages", to="nats", refs=[position(1, 0)])
    assert (opened.kind, opened.cause, opened.filters) == ("nats", "first", ["#"])
    await world.restart()
    await world.go(0.5)
    assert opened_for_nats(world) == [opened]
    world.bridge = None
    await world.restart()
    await world.go(0.5)
    assert DestinationClosed("nats", "removed") in world.disk.events()
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []


@pytest.mark.parametrize("goes_on", [False, True])
@in_world(World)
async def test_the_bridge_of_an_old_log_goes_on_at_its_position_or_ends(
    world: World, goes_on: bool
) -> None:
    world.broker.node.emit(Bridged(position(1, 0)))
    world.broker.node.kernel.wake()
    await world.go(0.5)
    world.bridge = BridgeOptions(Mapping()) if goes_on else None
    await world.restart()
    await world.go(0.5)
    assert [each.after for each in opened_for_nats(world)] == [position(1, 0)] * goes_on
    bridged = [each.through for each in world.disk.events(Bridged)]
    assert bridged == [position(1, 0)] + [0] * (not goes_on)
    assert ("nats" in world.broker.node.state.destinations) == goes_on
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    compare(world)


@in_world(lambda: bridged_world(keep=0.0, keep_bytes=BOUND))
async def test_what_nats_did_not_get_before_a_cut_is_an_event(world: World) -> None:
    client = await world.connect("c")
    for _ in range(6):
        await publish_noise(world, client, 100)
    assert cuts(world)
    assert {each.to for each in losses(world)} == {"nats"}
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []


@in_world(lambda: World(keep=0.0, keep_bytes=BOUND))
async def test_without_destinations_the_log_has_none_of_these_events(world: World) -> None:
    client = await world.connect("c")
    await publish_noise(world, client, 500)
    assert cuts(world)
    kinds = (DestinationOpened, DestinationClosed, Forwarded, ForwardLost)
    assert not [each for each in world.disk.events() if isinstance(each, kinds)]
