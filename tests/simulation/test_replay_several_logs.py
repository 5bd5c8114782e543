"""Replays of a node with several logs: all of them, merged by time, live without a gap."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.packets import Suback

from actors.exchange.skipped_records import HELD_SECONDS
from actors.replay.log_cursor import LogCursor
from actors.replay.log_reader import LogReader
from eventstore.errors import LogUnavailable
from eventstore.format.events import ReplayOpened, ReplayReached
from eventstore.format.positions import format_position
from eventstore.format.records import Record
from simulation.chaos import small_checkpoints
from simulation.log_cuts import cuts
from simulation.network import Client5, SimClient
from simulation.partitions import PartitionWorld, name_in
from simulation.replaying_clients import user
from simulation.two_logs import two
from simulation.world import runs

FILTER = "$replay/all/t/#"
Scenario = Callable[[PartitionWorld, PartitionWorld], Awaitable[None]]


def reader(world: PartitionWorld, name: str, *filters: str, qos: int = 0) -> Client5:
    """Connect a client with a session that stays, and subscribe."""
    client = Client5(world)
    expiry = ((p5.SESSION_EXPIRY, 3600),)
    client.send(p5.connect(name, clean=False, properties=expiry))
    if filters:
        client.send(p5.subscribe(1, *((name, qos) for name in filters)))
    return client


async def senders(here: PartitionWorld, there: PartitionWorld) -> tuple[SimClient, SimClient]:
    """Connect a publisher to each log."""
    names = [name_in([here, there], number, "s") for number in range(2)]
    return await here.connect(names[0]), await there.connect(names[1])


async def publish(
    both: Sequence[SimClient], numbers: range, qos: int = 1, pause: float = 0.003
) -> list[bytes]:
    """Publish, in both logs in turn; return the payloads."""
    for number in numbers:
        sender = both[number % 2]
        sender.send(p.publish(f"t/{number % 3}", b"%d" % number, qos, number + 1))
        if qos == 2:
            sender.send(p.pubrel(number + 1))
        await asyncio.sleep(pause)
    return [b"%d" % number for number in numbers]


def own_name(here: PartitionWorld, there: PartitionWorld, number: int = 0) -> str:
    return name_in([here, there], number, "r")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("number", [0, 1])
@runs(two)
async def test_the_past_of_all_logs_by_time_and_then_live(
    here: PartitionWorld, there: PartitionWorld, *, number: int, qos: int
) -> None:
    both = await senders(here, there)
    sent = await publish(both, range(40), qos)
    await here.go(1)
    world = (here, there)[number]
    client = reader(world, own_name(here, there, number), FILTER)
    await here.go(1)
    assert client.payloads() == sent
    sent += await publish(both, range(40, 60), qos, pause=0.05)
    await here.go(1)
    assert client.payloads() == sent


@pytest.mark.parametrize("before", range(0, 60, 6))
@runs(two)
async def test_the_seam(here: PartitionWorld, there: PartitionWorld, *, before: int) -> None:
    """Nothing is missing and nothing comes twice, at each moment; each log in its own order."""
    both = await senders(here, there)
    task = asyncio.create_task(publish(both, range(60), pause=0.002))
    await asyncio.sleep(before * 0.002 + 0.0005)
    client = reader(here, own_name(here, there), FILTER)
    sent = await task
    await here.go(2)
    got = client.payloads()
    for log in range(2):
        own = [payload for payload in got if int(payload) % 2 == log]
        assert own == [payload for payload in sent if int(payload) % 2 == log]
    assert len(got) == len(sent)


@pytest.mark.parametrize("at", [0, 1, 17, 38])
@runs(two)
async def test_a_client_goes_on_after_any_message_that_it_has(
    here: PartitionWorld, there: PartitionWorld, *, at: int
) -> None:
    both = await senders(here, there)
    sent = await publish(both, range(40))
    await here.go(2 * HELD_SECONDS)
    first = reader(here, own_name(here, there), FILTER)
    await here.go(1)
    properties = user(first.messages()[at])
    log = at % 2
    assert properties["foldmq-position"].startswith(f"p{log}:")
    resume = properties["foldmq-resume"]
    assert resume.startswith(properties["foldmq-position"] + f",p{1 - log}:")
    again = reader(there, own_name(here, there, 1), f"$replay/{resume}/t/#")
    await here.go(1)
    assert again.payloads() == sent[at + 1 :]


@runs(two)
async def test_what_is_granted_and_refused(here: PartitionWorld, there: PartitionWorld) -> None:
    await publish(await senders(here, there), range(4))
    client = reader(
        *(here, own_name(here, there), FILTER, "$replay/p0:3/t/#", "$replay/3/t/#"),
        *("$replay/p0:3,p2:3/t/#", "$replay/p0:3,p1:99999/t/#", "$replay/p0:0,p1:0/t/#"),
        qos=1,
    )
    await here.go(1)
    suback = next(answer for answer in client.answers() if answer.codes)
    assert list(suback.codes) == [0, 0x8F, 0x8F, 0x8F, 0x8F, 0]
    assert sorted(client.payloads()) == sorted(2 * [b"0", b"1", b"2", b"3"])
    opened = here.disk.events(ReplayOpened)
    assert [set(event.start) for event in opened] == [set(), {"", there.name}]


@runs(two)
async def test_a_client_of_mqtt_3_gets_the_granted_qos(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    client = await here.connect(own_name(here, there))
    client.send(p.subscribe(1, (FILTER, 2), ("t/#", 2)))
    await here.go(0.1)
    (suback,) = [packet for packet in client.take() if isinstance(packet, Suback)]
    assert list(suback.codes) == [0, 2]


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("fuse", range(0, 30, 3))
@runs(two)
async def test_after_a_kill_nothing_comes_twice_and_a_resumed_client_has_all(
    here: PartitionWorld, there: PartitionWorld, *, killed: int, fuse: int
) -> None:
    both = await senders(here, there)
    sent = await publish(both, range(12))
    name = own_name(here, there)
    first = reader(here, name, FILTER)
    await here.go(0.004)
    victim = (here, there)[killed]
    victim.fuse = fuse
    await here.go(0.05)
    victim.fuse = None
    if victim.up:
        victim.kill()
    await victim.crash()
    await victim.start()
    await here.go(1)
    parts = [first]
    if not first.open:  # the SUBSCRIBE may be lost; a second one continues
        parts.append(reader(here, name, FILTER))
        await here.go(1)
    both = await senders(here, there)
    sent += await publish(both, range(12, 24))
    await here.go(2)
    payloads = [payload for part in parts for payload in part.payloads()]
    assert len(set(payloads)) == len(payloads)
    reached = here.disk.events(ReplayReached)
    assert sum(event.sent for event in reached) == len(sent)
    if killed:
        assert sorted(payloads, key=int) == sent
    resume = user(first.messages()[-1])["foldmq-resume"] if first.messages() else "all"
    again = reader(there, own_name(here, there, 1), f"$replay/{resume}/t/#")
    await here.go(2)
    assert sorted(first.payloads() + again.payloads(), key=int) == sent


@runs(two)
async def test_the_last_message_of_each_topic_is_the_latest_of_all_logs(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    both = await senders(here, there)
    await publish(both, range(12), pause=0.02)
    await here.go(2 * HELD_SECONDS)
    client = reader(here, own_name(here, there), "$replay/last/t/#")
    await here.go(1)
    assert client.payloads() == [b"9", b"10", b"11"]
    await publish(both, range(12, 15), pause=0.02)
    await here.go(1)
    assert client.payloads()[3:] == [b"12", b"13", b"14"]


@pytest.mark.parametrize("bound", ["time", "positions"])
@runs(two)
async def test_it_ends_in_all_logs(
    here: PartitionWorld, there: PartitionWorld, *, bound: str
) -> None:
    both = await senders(here, there)
    sent = await publish(both, range(10))
    await here.go(1)
    ends = [world.broker.node.journal.durable for world in (here, there)]
    until = ",".join(f"p{number}:{end}" for number, end in enumerate(ends))
    if bound == "time":
        until = f"@{here.broker.node.clock.time_ms() // 1000 + 1}"
    await here.go(5)
    later = await publish(both, range(10, 20))
    client = reader(here, own_name(here, there), f"$replay/all..{until}/t/#")
    await here.go(20)
    assert client.payloads() == sent, later
    reached = here.disk.events(ReplayReached)
    assert reached[-1].state == "ended"
    assert here.broker.replays.states() == {"ended": 1}


@runs(two)
async def test_an_own_message_does_not_wait_for_a_log_that_cannot_be_read(
    here: PartitionWorld, there: PartitionWorld, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_from = LogReader._read_from
    broken = False

    async def fails(self: LogReader, first: int, *, fruitless: bool) -> None:
        if broken and hasattr(self, "name"):
            raise LogUnavailable("no answer")
        await read_from(self, first, fruitless=fruitless)

    monkeypatch.setattr(LogReader, "_read_from", fails)
    both = await senders(here, there)
    client = reader(here, own_name(here, there), FILTER)
    await publish(both, range(4))
    await here.go(1)
    assert len(client.payloads()) == 4
    broken = True
    await publish(both, range(4, 8), pause=0.1)
    assert [int(payload) for payload in client.payloads()[4:]] == [4, 6]
    broken = False
    await here.go(2)
    assert sorted(map(int, client.payloads())) == list(range(8))


def test_a_part_of_another_log_that_was_cut_off_unread_is_reported() -> None:
    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        both = await senders(here, there)
        await publish(both, range(4))
        name = own_name(here, there)
        first = reader(here, name, FILTER)
        await here.go(1)
        assert len(first.payloads()) == 4
        first.drop()
        await here.go(0.2)
        both[1].send(p.publish("t/lost", b"5", 1, 5))
        for number in range(300):
            both[1].send(p.publish("noise", bytes(200), 1, number + 1000))
            await here.go(0.05)
        await here.go(20)
        before = [cut.first - 1 for cut in cuts(there)]
        assert before
        both[1].send(p.publish("t/1", b"7", 1, 7))
        second = reader(here, name, FILTER)
        await here.go(2)
        (message,) = second.messages()
        assert message.payload == b"7"
        reached = here.disk.events(ReplayReached)
        (gap,) = [event.gap[there.name] for event in reached if there.name in event.gap]
        assert gap[1] >> 20 in [*before, *(cut.first - 1 for cut in cuts(there))]
        assert f"p1:{format_position(gap[0])}.." in user(message)["foldmq-gap"]

    with small_checkpoints():
        two(scenario, keep=0.0, keep_bytes=20_000)


@pytest.mark.parametrize("pause", [0.0005, 0.01])
@runs(two)
async def test_slow_reading_of_the_other_log(
    here: PartitionWorld, there: PartitionWorld, *, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    decoded = LogReader._decoded

    async def slowly(self: LogReader, record: Record) -> Any:
        await asyncio.sleep(pause if hasattr(self, "name") else 0)
        return await decoded(self, record)

    monkeypatch.setattr(LogReader, "_decoded", slowly)
    both = await senders(here, there)
    sent = await publish(both, range(40), 2)
    client = reader(here, own_name(here, there), FILTER)
    sent += await publish(both, range(40, 100), 2, pause=0.005)
    await here.go(5)
    assert client.payloads()[:40] == sent[:40]
    assert sorted(client.payloads()) == sorted(sent)


@pytest.mark.parametrize("more", [-1, 1])
def test_the_audit_finds_a_wrong_count_of_another_log(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    take_news = LogCursor.take_news

    def mutant(self: LogCursor, session: str, topic_filter: str) -> ReplayReached | None:
        event = take_news(self, session, topic_filter)
        if event is not None and self.log and event.sent:
            event.sent += more
        return event

    monkeypatch.setattr(LogCursor, "take_news", mutant)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        both = await senders(here, there)
        await publish(both, range(10))
        reader(here, own_name(here, there), FILTER)
        await here.go(1)

    with pytest.raises(AssertionError, match=r"messages on t/# from .* of log n-p1, \d+ were sent"):
        two(scenario)
