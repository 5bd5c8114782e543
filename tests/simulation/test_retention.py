"""The log is bounded, and no removed record is still needed."""

import asyncio
from collections.abc import Sequence

import pytest
from harness import packets as p

from actors.broker.message_loading import MessageLoader
from actors.maintenance import retention
from actors.maintenance.retention import Retention
from actors.session.session import Session
from eventstore.errors import CorruptLog
from eventstore.format.node_events import LogSalvaged, MessagesCarried
from eventstore.format.positions import Position
from projections.log_proof import lost_before_cut, statement
from projections.state.session import SessionState
from simulation.fold import compare, described, fold
from simulation.idle_broker import look_rarely
from simulation.log_cuts import cuts, publish_noise
from simulation.rebuilding import rebuilt_later
from simulation.world import World, in_world

BOUND = 40_000


@pytest.fixture(autouse=True)
def _small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)


def bounded(**options: float) -> World:
    return World(**{"keep": 0.0, "keep_bytes": BOUND, **options})


def size(world: World) -> int:
    return sum(map(len, world.disk.records))


@in_world(bounded)
async def test_endless_load_needs_bounded_space_and_loses_nothing(world: World) -> None:
    away = await world.connect("away", filters=[("old/#", 2)])
    away.drop()
    noisy = await world.connect("noisy")
    noisy.send(
        p.publish("old/1", b"first", 1, 1),
        p.publish("old/2", b"second", 2, 2),
        p.publish("kept", b"retained", 1, 3, retain=True),
        p.publish("later", b"not released", 2, 4, retain=True),
    )
    await world.go(0.1)
    noisy.send(p.pubrel(2))
    most = 0
    for _ in range(8):
        await publish_noise(world, noisy, 100)
        most = max(most, size(world))
    assert most < BOUND * 1.2
    first = world.disk.stream.first
    assert first > 100
    assert cuts(world)[-1].first == first
    compare(world)

    await world.restart()
    compare(world)
    away = await world.connect("away", present=True)
    assert away.payloads() == [b"first", b"second"]
    reader = await world.connect("reader", filters=[("#", 1)])
    await world.go(0.1)
    assert reader.payloads() == [b"retained"]
    noisy = await world.connect("noisy", present=True)
    noisy.send(p.pubrel(4))
    await world.go(0.1)
    assert reader.payloads() == [b"not released"]
    reader = await world.connect("reader2", filters=[("later", 1)])
    await world.go(0.1)
    assert reader.payloads() == [b"not released"]
    compare(world)


@pytest.mark.parametrize("lost", ["nothing", "the end", "everything"])
@in_world(bounded)
async def test_a_cut_log_is_enough(world: World, lost: str) -> None:
    """Without projections, or with those left by a power cut, the log gives the same state."""
    away = await world.connect("away", filters=[("old/#", 1)])
    away.drop()
    noisy = await world.connect("noisy", filters=[("nothing", 1)])
    noisy.send(p.publish("old/1", b"first", 1, 1, retain=True))
    noisy.send(p.publish("r/2", b"unreleased", 2, 2, retain=True))
    await publish_noise(world, noisy, 400)
    assert world.disk.stream.first > 1
    await world.go(5)
    before = described(world.broker.node.state)
    await world.crash()
    if lost == "the end":
        world.keyed.lose(3)
    elif lost == "everything":
        world.keyed.history.clear()
    await world.start()
    compare(world)
    after = described(world.broker.node.state)
    assert before["retained"] == after["retained"]
    assert before["not_released"] == after["not_released"]
    assert before["sessions"]["away"] == after["sessions"]["away"]
    away = await world.connect("away", present=True)
    assert away.payloads() == [b"first"]


@in_world(keep=800.0)
async def test_old_records_are_cut_and_recent_ones_stay(world: World) -> None:
    noisy = await world.connect("noisy")
    for _ in range(40):
        await publish_noise(world, noisy, 10)
        await world.go(50)
    records = world.disk.decoded()
    age = (records[-1].time_ms - records[0].time_ms) / 1000
    assert 800 <= age <= 800 * 1.3
    assert cuts(world)[-1].reason == "keep"
    compare(world)


@pytest.mark.slow
@in_world(keep=0.0)
async def test_nothing_is_cut_when_nothing_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 300)
    look_rarely(monkeypatch)
    await world.go(20_000)
    assert world.disk.stream.first == 1


@in_world(bounded)
async def test_an_idle_broker_writes_nothing(world: World) -> None:
    """Also if sessions need more than what may be kept: it is carried once, not for ever."""
    away = await world.connect("away", filters=[("old", 1)])
    away.drop()
    noisy = await world.connect("noisy")
    for number in range(1, 200):
        noisy.send(p.publish("old", bytes(500), 1, number))
        await world.go(0.05)
    await publish_noise(world, noisy, 100)
    await world.go(30)
    assert size(world) > BOUND
    before = world.disk.stream.last
    await world.go(300)
    assert world.disk.stream.last == before


@in_world(bounded)
async def test_a_message_is_carried_once_for_all_that_wait_for_it(world: World) -> None:
    for name in ("a1", "a2", "a3"):
        client = await world.connect(name, filters=[("old", 1)])
        client.drop()
    noisy = await world.connect("noisy")
    noisy.send(p.publish("old", b"for three", 1, 1))
    await publish_noise(world, noisy, 500)
    carried = world.disk.events(MessagesCarried)
    assert carried
    assert all(one.count == 1 for one in carried)
    for name in ("a1", "a2", "a3"):
        client = await world.connect(name, present=True)
        assert client.payloads() == [b"for three"]
        client.send(p.puback(1))
        await world.go(0.1)
    await publish_noise(world, noisy, 500)
    assert not world.disk.events(MessagesCarried)


@in_world(bounded)
async def test_a_will_that_was_armed_long_ago_is_still_sent(world: World) -> None:
    will = p.Will("w", b"it is gone", 1, retain=False)
    watched = await world.connect("watched", will=will)
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    assert world.disk.stream.first > 10
    await world.restart()
    watched = await world.connect("watched", will=will)
    reader = await world.connect("reader", filters=[("w", 1)])
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    watched.drop()
    await world.go(0.2)
    assert reader.payloads() == [b"it is gone"]


@in_world(bounded)
async def test_a_session_that_was_replaced_misses_nothing_that_was_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was reading its successor read, and needed no more: then the log may be cut."""
    may_read, load = asyncio.Event(), MessageLoader.load
    asked: list[Session] = []
    waiting: list[asyncio.Task[None]] = []

    def first_waits(loader: MessageLoader, session: Session, refs: Sequence[Position]) -> None:
        async def wait() -> None:
            await may_read.wait()
            load(loader, session, refs)

        asked.append(session)
        if len(asked) == 1:
            waiting.append(asyncio.create_task(wait()))
        else:
            load(loader, session, refs)

    reader = await world.connect("reader", filters=[("w", 1)])
    await world.connect("c", will=p.Will("w", b"it is gone", 1, retain=False))
    await world.go(5)
    reader.send(p.disconnect())
    await world.go(0.1)
    monkeypatch.setattr(MessageLoader, "load", first_waits)
    await world.restart()  # the will must be read
    assert asked == [world.broker.sessions.find_session("c")]
    world.broker.kernel.restart(asked[0])
    reader = await world.connect("reader", present=True)
    assert reader.payloads() == [b"it is gone"]
    reader.send(p.puback(1))
    noisy = await world.connect("noisy")
    while world.broker.node.log.first < 10:
        await publish_noise(world, noisy, 10)
    may_read.set()
    await world.go(5)
    assert world.failure() is None
    assert noisy.open
    compare(world)


@pytest.mark.parametrize("first", ["from", "to"])
@in_world(bounded, message_cache=1)
async def test_a_message_that_moves_during_the_search_is_carried(
    world: World, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Its receiver may have been examined before it arrived, its publisher after it left."""
    carry, breathe = Retention._carry, Retention._yield_time
    carrying: list[Position] = []
    if first == "from":
        sender = await world.connect("from")
    receiver = await world.connect("to", filters=[("old/#", 2)])
    if first == "to":
        sender = await world.connect("from")
    sender.send(p.publish("old/1", b"first", 1, 1), p.publish("old/2", b"second", 2, 2))
    noisy = await world.connect("noisy")

    async def in_small_steps(retention_: Retention, before: Position) -> None:
        carrying.append(before)
        monkeypatch.setattr(retention, "_SLICE", -1.0)
        await carry(retention_, before)
        monkeypatch.setattr(retention, "_SLICE", 0.002)

    async def released_meanwhile(retention_: Retention, started: float) -> None:
        await breathe(retention_, started)
        if carrying:
            sender.send(p.pubrel(2))
            await asyncio.sleep(0.1)

    monkeypatch.setattr(Retention, "_carry", in_small_steps)
    monkeypatch.setattr(Retention, "_yield_time", released_meanwhile)
    while world.broker.node.log.first == 1:
        await publish_noise(world, noisy, 10)
    assert receiver.payloads() == [b"first", b"second"]
    receiver.drop()
    await world.go(1)
    again = await world.connect("to", present=True)
    assert again.payloads() == [b"first", b"second"]
    compare(world)


@in_world(bounded, message_cache=1)
async def test_messages_of_a_failed_session_are_carried_when_it_is_rebuilt(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What made the session fail may have spoilt its state."""
    may_rebuild, carry = rebuilt_later(monkeypatch), Retention._carry
    spoilt: list[SessionState] = []
    away = await world.connect("away", filters=[("old", 1)])
    away.drop()
    noisy = await world.connect("noisy")
    noisy.send(p.publish("old", b"first", 1, 1))

    async def after_a_failure(retention_: Retention, before: Position) -> None:
        if not spoilt:
            session = world.broker.sessions.session("away")
            spoilt.append(session.state)
            session.state.waiting.clear()
            world.broker.kernel.restart(session)
            await world.calm()
            asyncio.get_running_loop().call_later(1.0, may_rebuild.set)
        await carry(retention_, before)

    monkeypatch.setattr(Retention, "_carry", after_a_failure)
    while world.broker.node.log.first == 1:
        await publish_noise(world, noisy, 10)
    assert len(spoilt) == 1
    await world.go(5)
    again = await world.connect("away", present=True)
    assert again.payloads() == [b"first"]
    compare(world)


@pytest.mark.parametrize(
    "steps",
    [pytest.param(one, marks=[pytest.mark.long] if one % 4 else []) for one in range(40)],
)
@pytest.mark.slow
@in_world(bounded)
async def test_killed_at_any_step_of_a_checkpoint_or_a_cut(world: World, steps: int) -> None:
    """Whatever was done until then, the next run continues, and nothing is lost."""
    away = await world.connect("away", filters=[("old/#", 2)])
    away.drop()
    noisy = await world.connect("noisy")
    noisy.send(p.publish("old/1", b"first", 1, 1), p.publish("k", b"kept", 1, 2, retain=True))
    while world.broker.node.log.first == 1:
        await publish_noise(world, noisy, 10)
    first = world.broker.node.log.first
    await publish_noise(world, noisy, 60)
    world.fuse = steps * 8
    for _ in range(400):
        if not world.up:
            break
        await publish_noise(world, noisy, 1)
    if world.up:
        world.kill()
    await world.crash()
    await world.start_with_retries()
    compare(world)
    noisy = await world.connect("noisy", present=True)
    await publish_noise(world, noisy, 300)
    assert world.disk.stream.first > first
    compare(world)
    await world.restart()
    compare(world)
    away = await world.connect("away", present=True)
    assert away.payloads() == [b"first"]
    assert described(fold(world.disk.decoded()))["retained"][0][1] == b"kept"


@in_world(bounded)
async def test_removed_records_are_detected(world: World) -> None:
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    await world.go(5)
    await world.crash()
    world.disk.stream.purge(world.disk.stream.last)
    world.keyed.history.clear()
    with pytest.raises(CorruptLog, match="gone: the log begins with record"):
        await world.start()
    await world.crash()


@in_world(bounded)
async def test_a_cut_keeps_what_salvages_gave_up_before_it(world: World) -> None:
    """The event about a salvage is removed; each later cut says what it said, within a bound."""
    noisy = await world.connect("noisy")
    node = world.broker.node
    node.emit(LogSalvaged(2, 3, "", 2, 90, 3, "/old", "root@h", "1", begins_ms=7, ends_ms=9))
    node.state.reach(node.journal.last + 1)  # later records are those of this broker
    await publish_noise(world, noisy, 400)
    lost = [2, 3, 2, 7, 9]
    assert world.disk.stream.first > 10
    assert cuts(world)[-1].lost == [lost]
    await world.restart()
    assert world.broker.node.state.proof.doubts == []
    noisy = await world.connect("noisy", present=True)
    before = cuts(world)[-1].first
    await publish_noise(world, noisy, 400)
    assert cuts(world)[-1].first > before
    assert cuts(world)[-1].lost == [lost]
    (doubt,) = lost_before_cut(cuts(world)[-1].lost)
    assert "foldmq salvage gave up records 2 to 3 (2 records)" in statement(doubt)
