"""The clock of the machine is set: nothing expires because of it, and everything in its time."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from harness import mqtt5_packets
from harness import packets as p
from harness.plainaudit import violations

from actors.inspection.inspector import Refused
from actors.node.reload_outcome import ReloadOutcome
from eventstore.format.events import Expired, RetainedExpired, SessionExpired, WillFired
from eventstore.format.node_events import ClockJumped
from simulation.fold import compare
from simulation.inspection import ask, change
from simulation.world import SimClient, World, in_world

HOUR, DAY = 3600, 86_400
JUMPS = [365 * DAY, 3 * DAY, -3 * DAY, -365 * DAY]
ALL = Counter(RetainedExpired=1, SessionExpired=2, WillFired=1)
ENDS = (SessionExpired, Expired, RetainedExpired, WillFired)


def ends(world: World) -> Counter[str]:
    """What has expired, and the wills that were published."""
    return Counter(type(event).__name__ for event in world.disk.events() if isinstance(event, ENDS))


class FilledWorld(World):
    """A world with all that expires after an hour."""

    def __init__(self) -> None:
        super().__init__(session_expiry=HOUR, max_clock_gap=DAY)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with super().running():
            await fill(self)
            yield self


async def fill(world: World) -> None:
    reader = await world.connect("r", filters=[("q/#", 1)])
    reader.send(p.disconnect())
    leaver = SimClient(world, mqtt5=True)
    leaver.mqtt5 = False  # what follows is at level 5 already
    delay = ((mqtt5_packets.WILL_DELAY, HOUR),)
    will = mqtt5_packets.Will("w", b"gone", properties=delay)
    expiry = ((mqtt5_packets.SESSION_EXPIRY, HOUR),)
    leaver.send(mqtt5_packets.connect("l", will=will, properties=expiry))
    leaver.mqtt5 = True
    await world.go(0.1)
    sender = await world.connect("s", mqtt5=True)
    expiry = ((mqtt5_packets.MESSAGE_EXPIRY, HOUR),)
    sender.mqtt5 = False
    sender.send(
        mqtt5_packets.publish("q/a", b"queued", 1, 1, properties=expiry),
        mqtt5_packets.publish("k/a", b"kept", 1, 2, retain=True, properties=expiry),
    )
    sender.mqtt5 = True
    leaver.mqtt5 = False
    leaver.send(mqtt5_packets.disconnect(0x04))
    leaver.mqtt5 = True
    await world.go(5)


def check(world: World) -> None:
    """The log is in order: no guarantee is violated, and its steady time never runs backwards."""
    compare(world)
    records = world.disk.decoded()
    assert not violations(records)
    steady = [record.steady_ms for record in records]
    assert steady == sorted(steady)


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@in_world(FilledWorld)
async def test_nothing_expires_because_the_clock_is_set(
    world: World, jump: int, restarts: bool
) -> None:
    before = world.disk.decoded()[-1].time_ms
    if restarts:
        await world.crash()
        world.clock.set_ms += jump * 1000
        await world.start()
    else:
        world.clock.set_ms += jump * 1000
    await world.go(10)
    assert not ends(world)
    (event,) = world.disk.events(ClockJumped)
    assert event.seen == ("start" if restarts else "running")
    assert abs(event.ms - jump * 1000) < 20_000
    after = await world.connect("t", filters=[("k/#", 1)], mqtt5=True)
    await world.go(1)
    assert after.payloads() == [b"kept"]
    assert abs(world.disk.decoded()[-1].time_ms - before - jump * 1000) < 30_000
    check(world)
    await world.go(HOUR)
    publisher = Counter(SessionExpired=int(restarts))  # which the crash disconnected
    assert ends(world) == ALL + publisher
    check(world)


@in_world(FilledWorld)
async def test_small_differences_are_followed_and_are_no_jumps(world: World) -> None:
    for seconds in (1.5, -1.5):
        world.clock.set_ms += int(seconds * 1000)
        await world.go(30)
        assert world.broker.node.clock.ahead_ms() == 0
    assert not world.disk.events(ClockJumped)
    check(world)


@pytest.mark.parametrize("gap", [0, 7 * DAY])
@in_world(FilledWorld)
async def test_the_time_off_counts_as_configured(world: World, gap: int) -> None:
    await world.crash()
    world.options = replace(world.options, max_clock_gap=gap)
    world.clock.set_ms += 3 * DAY * 1000
    await world.start()
    await world.go(10)
    assert ends(world) == ALL
    assert not world.disk.events(ClockJumped)
    check(world)


@pytest.mark.parametrize(("lived", "expires"), [(0.2, True), (2.0, False)])
@in_world(FilledWorld)
async def test_a_clock_set_in_the_last_second_before_a_kill_is_time_off(
    world: World, lived: float, *, expires: bool
) -> None:
    world.clock.set_ms += 2 * HOUR * 1000
    await world.go(lived)
    assert not ends(world)
    await world.crash()
    await world.start()
    await world.go(10)
    assert ends(world) == (ALL if expires else Counter())
    check(world)


@pytest.mark.parametrize("jump", [3 * DAY, -3 * DAY])
@in_world(FilledWorld)
async def test_ages_in_the_status_do_not_jump(world: World, jump: int) -> None:
    await world.crash()
    last_ms = world.disk.decoded()[-1].time_ms
    world.clock.set_ms += 3 * DAY * 1000
    await world.start()
    begun_ms = world.clock.time_ms()
    node = world.broker.node
    node.reload = ReloadOutcome(node.clock.time_ms(), "invalid")
    off_ms = (await ask(world, "status"))["off_ms"]
    assert abs(off_ms - (begun_ms - last_ms)) < 2000
    world.clock.set_ms += jump * 1000
    await world.go(10)
    status = await ask(world, "status")
    assert status["off_ms"] == off_ms
    assert abs(status["time_ms"] - status["reload"]["time_ms"] - 10_000) < 2000


@in_world(FilledWorld)
async def test_a_start_on_a_copy_has_a_doubt_and_no_crash(world: World) -> None:
    await world.crash()
    last_ms = world.disk.decoded()[-1].time_ms
    world.watermark.noted = None
    world.clock.set_ms += 3 * DAY * 1000
    await world.start()
    status = await ask(world, "status")
    (doubt,) = status["log"]["not_proven"]
    assert doubt["from_ms"] == last_ms
    assert abs(doubt["seen_ms"] - world.clock.time_ms()) < 2000
    assert (status["crashed_ms"], status["off_ms"]) == (None, None)


def jumps(world: World) -> list[tuple[str, int]]:
    """Return the ClockJumped events of the log: what they were seen as, and days, rounded."""
    events = world.disk.events(ClockJumped)
    return [(event.seen, round(event.ms / 1000 / DAY)) for event in events]


async def session(world: World, client: str) -> bool:
    """Return whether a client's session exists."""
    return world.broker.node.state.sessions.get(client) is not None


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after another start"])
@in_world(FilledWorld)
async def test_an_operator_confirms_the_clock_of_a_start(world: World, again: bool) -> None:
    await world.crash()
    world.clock.set_ms += 3 * DAY * 1000
    await world.start()
    later = await world.connect("later", filters=[("q/#", 1)])
    later.send(p.disconnect())
    await world.go(10)
    if again:
        await world.crash()
        await world.start()
        await world.go(1)
    before = world.disk.decoded()[-1]
    status = await ask(world, "status")
    assert round(status["clock"]["held_ms"] / 1000 / DAY) == 3
    outcome = await change(world, "confirm_clock")
    assert round(outcome["held_ms"] / 1000 / DAY) == 3
    assert outcome["removed"] == 2  # r and l, but not s, which was connected, and not later
    await world.go(1)
    states = {name: await session(world, name) for name in ("r", "l", "later")}
    assert states == {"r": False, "l": False, "later": True}
    assert jumps(world) == [("start", 3), ("confirmed", 3)]
    after = world.disk.decoded()[-1]
    assert after.jumps.total_ms == before.jumps.total_ms
    assert after.time_ms - before.time_ms < HOUR * 1000
    status = await ask(world, "status")
    assert status["clock"]["held_ms"] == 0
    assert status["clock"]["last"] is None
    check(world)
    for _ in range(2):
        with pytest.raises(Refused, match="all time counts"):
            await change(world, "confirm_clock")
        await world.crash()
        await world.start()


@pytest.mark.parametrize(("start", "running", "held"), [(365, -364, 1), (-365, 367, 2)])
@in_world(FilledWorld)
async def test_a_clock_that_is_corrected_after_the_start_says_how_long_the_broker_was_off(
    world: World, start: int, running: int, held: int
) -> None:
    await world.crash()
    world.clock.set_ms += start * DAY * 1000
    await world.start()
    world.clock.set_ms += running * DAY * 1000
    await world.go(10)
    outcome = await change(world, "confirm_clock")
    assert round(outcome["held_ms"] / 1000 / DAY) == held
    assert outcome["removed"] == 2
    assert jumps(world) == [("start", start), ("running", running), ("confirmed", held)]
    check(world)


@in_world(FilledWorld)
async def test_there_is_nothing_to_confirm_unless_a_start_left_time_out(world: World) -> None:
    for ms in (0, 3 * DAY * 1000):
        world.clock.set_ms += ms
        await world.go(10)
        with pytest.raises(Refused, match="all time counts"):
            await change(world, "confirm_clock")
    await world.crash()
    world.clock.set_ms -= 9 * DAY * 1000
    await world.start()
    with pytest.raises(Refused, match="all time counts"):
        await change(world, "confirm_clock")
    assert not ends(world)
