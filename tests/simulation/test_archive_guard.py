"""With ``keep_until_archived`` only records that an archive was reported to have are cut off."""

import asyncio
import dataclasses
from typing import Any

import pytest
from harness import packets as p
from structlog.testing import capture_logs

from actors.inspection.inspector import Refused
from actors.maintenance import log_quota, retention
from eventstore.errors import LogUnavailable
from eventstore.format.node_events import LogArchived, LogCut
from eventstore.format.records import decode_record
from eventstore.log.jetstream_log import EventLog
from simulation.fold import compare, described, fold
from simulation.idle_broker import MINUTE, look_rarely
from simulation.log_cuts import publish_noise
from simulation.world import World, in_world

BOUND = 40_000
PLACE = "/archive/node=sim"


@pytest.fixture(autouse=True)
def _small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)


def guarded(**options: float) -> World:
    return World(**{"keep": 0.0, "keep_bytes": BOUND, "keep_until_archived": True, **options})


def link_of_record(world: World, sequence: int) -> str:
    return decode_record(sequence, world.disk.stream.history[sequence]).link.hex()


async def tell(
    world: World, through: int, link: str | None = None, where: str = PLACE
) -> dict[str, Any]:
    """Say that an archive has the log up to a record."""
    request = {
        "do": "archived",
        "by": "cron@host",
        "through": through,
        "link": link_of_record(world, through) if link is None else link,
        "where": where,
    }
    return await world.broker.inspection.inspector.ask_for("change", request)


async def archive_all(world: World) -> int:
    through = world.broker.node.journal.durable
    await tell(world, through)
    return through


def size(world: World) -> int:
    return sum(map(len, world.disk.records))


def of(world: World, kind: type) -> list[Any]:
    return world.disk.events(kind)


def warnings(lines: list[Any]) -> list[Any]:
    return [line for line in lines if "exceeds keep" in line["event"]]


@in_world(guarded)
async def test_records_are_cut_only_after_they_are_archived(world: World) -> None:
    away = await world.connect("away", filters=[("old/#", 2)])
    away.drop()
    noisy = await world.connect("noisy")
    noisy.send(p.publish("old/1", b"first", 1, 1))
    await publish_noise(world, noisy, 400)
    assert world.disk.stream.first == 1
    assert size(world) > 1.5 * BOUND
    through = await archive_all(world)
    await world.go(5)
    assert size(world) < BOUND
    first = world.disk.stream.first
    assert 1 < first <= through + 1
    assert of(world, LogCut)[-1].reason == "archived"
    compare(world)

    # What was written since stays, also over a restart, until there is more archived.
    await publish_noise(world, noisy, 400)
    assert first < world.disk.stream.first <= through + 1
    await world.restart()
    noisy = await world.connect("noisy", present=True)
    await publish_noise(world, noisy, 100)
    assert world.disk.stream.first <= through + 1
    await archive_all(world)
    await world.go(5)
    assert world.disk.stream.first > through + 1
    compare(world)
    away = await world.connect("away", present=True)
    assert away.payloads() == [b"first"]


@in_world(keep=800.0, keep_until_archived=True)
async def test_archived_records_stay_within_keep(world: World) -> None:
    noisy = await world.connect("noisy")
    for _ in range(30):
        await publish_noise(world, noisy, 10)
        await world.go(50)
    assert world.disk.stream.first == 1
    await archive_all(world)
    await world.go(5)
    records = world.disk.decoded()
    assert world.disk.stream.first > 1
    age = (world.broker.node.clock.time_ms() - records[0].time_ms) / 1000
    assert 800 <= age <= 800 * 1.3
    compare(world)


@in_world(keep=0.0, keep_bytes=BOUND)
async def test_an_archive_alone_changes_nothing(world: World) -> None:
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 50)
    through = await archive_all(world)
    await publish_noise(world, noisy, 400)
    assert world.disk.stream.first > through + 1
    assert {one.reason for one in of(world, LogCut)} == {"keep_bytes"}
    assert size(world) < BOUND * 1.2
    # It was cut with the records before it: the log no longer has a report of an archive.
    assert world.broker.node.state.archived is None
    compare(world)


@pytest.mark.slow
@in_world(guarded)
async def test_an_unarchived_log_that_grows_is_reported(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noisy = await world.connect("noisy")
    with capture_logs() as lines:
        await publish_noise(world, noisy, 600)
    (warning,) = warnings(lines)
    assert warning["log_level"] == "warning"
    assert warning["event"].startswith("the log exceeds keep_bytes:")
    assert (warning["first"], warning["archived"]) == (1, 0)
    assert warning["bytes"] > BOUND
    with monkeypatch.context() as patch:
        look_rarely(patch)
        with capture_logs() as lines:
            await world.go(3700)
        assert len(warnings(lines)) == 1
        await archive_all(world)
        await world.go(MINUTE)
        with capture_logs() as lines:
            await world.go(10_000)
        assert warnings(lines) == []
    await world.go(MINUTE)
    # It is reported at once when that happens again.
    with capture_logs() as lines:
        await publish_noise(world, noisy, 600)
    assert len(warnings(lines)) == 1


@in_world(keep=8000.0, keep_until_archived=True)
async def test_an_unarchived_log_that_is_too_old_is_reported(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_quota, "_LATE", 30_000)  # days take long, also simulated ones
    noisy = await world.connect("noisy")
    with capture_logs() as lines:
        await publish_noise(world, noisy, 100)
        look_rarely(monkeypatch)
        await world.go(8_000 + log_quota._LATE - 10_000)
    assert warnings(lines) == []
    with capture_logs() as lines:
        await world.go(12_000)
    assert len(warnings(lines)) >= 1
    assert warnings(lines)[0]["event"].startswith("the log exceeds keep:")


@in_world(guarded)
async def test_the_last_report_counts(world: World) -> None:
    """A new archive has less than the previous one."""
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 20)
    await archive_all(world)
    await tell(world, 5, where="/another")
    archived = world.broker.node.state.archived
    assert archived is not None
    assert (archived.event.through, archived.event.where) == (5, "/another")
    await publish_noise(world, noisy, 400)
    assert world.disk.stream.first <= 6
    await tell(world, world.broker.node.journal.durable, where="/another")
    await world.go(5)
    assert world.disk.stream.first > 20


@in_world(guarded)
async def test_a_repeated_report_records_nothing(world: World) -> None:
    """An archive that is written again and again gives a log at rest nothing to archive."""
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 5)
    through = await archive_all(world)
    (said,) = of(world, LogArchived)
    assert said == LogArchived(through, link_of_record(world, through), "cron@host", PLACE)
    end = world.disk.stream.last
    for _ in range(3):
        answer = await tell(world, world.disk.stream.last)
        assert answer["through"] == through
    assert world.disk.stream.last == end
    await publish_noise(world, noisy, 1)
    answer = await tell(world, world.disk.stream.last)
    assert answer["through"] > end
    assert len(of(world, LogArchived)) == 2


@pytest.mark.parametrize("stored", [True, False])
@in_world(guarded)
async def test_it_is_known_in_the_next_life(world: World, *, stored: bool) -> None:
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    await archive_all(world)
    await world.go(10)
    known = world.broker.node.state.archived
    assert known is not None
    assert world.disk.stream.first > 1
    await world.crash()
    if not stored:
        world.keyed.history.clear()
    await world.start()
    assert world.broker.node.state.archived == known
    assert fold(world.disk.decoded()).archived == known
    status = await world.broker.inspection.inspector.ask_for("status")
    assert status["log"]["archived"] == known.event.through


@in_world(guarded, keep_until_archived=False)
async def test_reports_are_cut_with_the_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the records themselves cannot be removed yet: all who read the log agree."""

    async def unavailable(_log: EventLog, _first: int) -> None:
        raise LogUnavailable("the stream does not answer")

    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 10)
    await archive_all(world)
    monkeypatch.setattr(EventLog, "cut", unavailable)
    await publish_noise(world, noisy, 400)
    assert of(world, LogCut)
    assert world.disk.stream.first == 1
    assert world.broker.node.state.archived is None
    await world.go(5)
    compare(world)
    await world.restart()
    compare(world)


@in_world(guarded)
async def test_the_archive_of_another_log_is_refused(world: World) -> None:
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    last = world.broker.node.journal.durable
    for through, link, why in (
        (7, link_of_record(world, 8), r"record 7 differs from the one in '/archive"),
        (last + 9, "ab" * 32, rf"no record {last + 9}: the log ends with {last}"),
        (0, "", "record 0 was deleted: the log begins with 1"),
    ):
        with pytest.raises(Refused, match=why):
            await tell(world, through, link)
    for wrong in ({"where": 7}, {"link": None}, {"where": "x" * 5000}, {"through": -1}):
        with pytest.raises(Refused):
            await world.broker.inspection.inspector.ask_for(
                "change",
                {
                    "do": "archived",
                    "by": "cron@host",
                    "through": 7,
                    "link": link_of_record(world, 7),
                    "where": PLACE,
                    **wrong,
                },
            )
    assert of(world, LogArchived) == []
    await archive_all(world)
    await world.go(5)
    # The last record that was cut off is still known by its link, those before it are not.
    first = world.disk.stream.first
    assert (await tell(world, first - 1, where="/slow"))["through"] == first - 1
    with pytest.raises(Refused, match="differs from the one"):
        await tell(world, first - 1, where="/slower", link="00" * 32)
    with pytest.raises(Refused, match="was deleted"):
        await tell(world, first - 2, where="/slower")


@in_world(keep=0.0, keep_bytes=0)
async def test_a_cut_that_was_decided_before_is_given_up(world: World) -> None:
    """Settings and archive are checked again when the cut is recorded."""
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 100)
    broker = world.broker
    await broker.retention.checkpoint()
    await publish_noise(world, noisy, 10)
    options = dataclasses.replace(broker.node.options, keep_until_archived=True)
    broker.reload(options, broker.admission.authenticator)
    (checkpoint,) = broker.node.state.checkpoints
    await broker.retention.cut(checkpoint, "keep_bytes")
    assert of(world, LogCut) == []
    assert world.disk.stream.first == 1
    await archive_all(world)
    await broker.retention.cut(checkpoint, "archived")
    assert world.disk.stream.first > 1
    compare(world)


@pytest.mark.parametrize(
    "steps",
    [pytest.param(one, marks=[pytest.mark.long] if one % 4 else []) for one in range(24)],
)
@pytest.mark.slow
@in_world(guarded)
async def test_killed_at_any_step_no_unarchived_record_is_lost(world: World, steps: int) -> None:
    away = await world.connect("away", filters=[("old", 1)])
    away.drop()
    noisy = await world.connect("noisy")
    noisy.send(p.publish("old", b"first", 1, 1))
    await publish_noise(world, noisy, 200)
    told = 0
    world.fuse = steps * 9
    for _ in range(60):
        if not world.up:
            break
        await publish_noise(world, noisy, 4)
        if world.up:
            # A report may count from its event on. A dead broker reports nothing.
            told = world.broker.node.journal.durable
            asked = asyncio.create_task(tell(world, told))
            await world.go(0.1)
            assert asked.done() or not world.up
            asked.cancel()
        assert world.disk.stream.first <= told + 1
    if world.up:
        world.kill()
    await world.crash()
    await world.start_with_retries()
    archived = world.broker.node.state.archived
    assert (archived.event.through if archived is not None else 0) <= told
    assert world.disk.stream.first <= told + 1
    compare(world)
    noisy = await world.connect("noisy", present=True)
    await publish_noise(world, noisy, 300)
    assert world.disk.stream.first <= told + 1
    through = await archive_all(world)
    await world.go(5)
    assert 1 < world.disk.stream.first <= through + 1
    compare(world)
    assert described(fold(world.disk.decoded()))["sessions"].keys() == {"away", "noisy"}
    away = await world.connect("away", present=True)
    assert away.payloads() == [b"first"]
