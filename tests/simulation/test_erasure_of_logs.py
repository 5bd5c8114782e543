"""Erasures with several logs: each seals its copies under keys of its own, and all erase."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness import packets as p

from actors.exchange import taken_erasures
from actors.exchange.effect_recorder import EffectRecorder
from actors.exchange.taken_messages import TakenMessages
from actors.inspection import erasure
from actors.inspection.inspector import Refused
from eventstore.format.erasure_events import COPIES, FOLLOWED, KEEP, REQUEST, ErasureRequested
from eventstore.format.node_events import Followed
from eventstore.format.positions import from_runs
from eventstore.log.key_file import KeyReader
from eventstore.log.message_store import messages_of
from eventstore.log.shared_keys import Keys
from eventstore.partitions import short_name
from simulation.inspection import change
from simulation.partitions import PartitionWorld, name_in
from simulation.sealed_disk import OpenDisk, without_threads
from simulation.two_logs import two
from simulation.world import SimLog, runs

__all__ = ["without_threads"]

SECRET, OTHER = b"secret-of-alice", b"secret-of-bob"
ALICE, BOB = "home/alice/heart", "home/bob/heart"
PERIOD = 60.0
"""Seconds, with ``personal_keep`` of 30 of them."""


class SealedPartition(PartitionWorld):
    """One of several brokers with personal topics; each has a key file."""

    keys: Keys

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, personal_topics=("home/+/#",), **options)
        self.folder = tempfile.TemporaryDirectory()
        self.disk = OpenDisk(self.server.streams[0], lambda number: self.keys.key(number))

    @property
    def path(self) -> Path:
        """The file with its keys, beside those of the others."""
        (first, *_) = self.all
        assert isinstance(first, SealedPartition)
        return Path(first.folder.name, f"keys-{short_name(self.name)}")

    def open_log(self) -> SimLog:
        log = super().open_log()
        if hasattr(self, "keys"):
            self.keys.close()
        self.keys = log.keys = Keys(self.path, self.name)
        return log

    def reader_of(self, other: PartitionWorld) -> SimLog:
        reader = super().reader_of(other)
        assert isinstance(other, SealedPartition)
        reader.key_reader = KeyReader(other.path, other.name)
        return reader

    def stored(self) -> bytes:
        return b"\n".join(self.server.streams[0].history.values())

    def readable(self) -> list[bytes]:
        """The payloads that can be read in the log."""
        found = [
            messages.payloads for record in self.disk.decoded() for messages in messages_of(record)
        ]
        return [payload for payloads in found for payload in payloads]

    def events(self, kind: type) -> list[Any]:
        return self.disk.events(kind)

    @property
    def causes(self) -> list[str]:
        return [event.cause for event in self.events(ErasureRequested)]


Scenario = Callable[[SealedPartition, SealedPartition], Awaitable[None]]


def in_two_logs(scenario: Scenario, **options: Any) -> None:
    two(scenario, kind=SealedPartition, **options)  # type: ignore[arg-type]


async def publish(
    world: SealedPartition, *messages: tuple[str, bytes], retain: bool = False
) -> None:
    sender = await world.connect(name_in(world.all, world.all.index(world)), clean=True)
    for number, (topic, payload) in enumerate(messages, 1):
        sender.send(p.publish(topic, payload, 1, number, retain=retain))
    await world.go(0.3)
    sender.send(p.disconnect())
    await world.go(0.3)


async def away(world: SealedPartition) -> str:
    """A client with a subscription that is offline."""
    name = name_in(world.all, world.all.index(world), "reader")
    reader = await world.connect(name, filters=[("home/#", 1)])
    reader.drop()
    await world.go(1)
    return name


async def received(world: SealedPartition, name: str) -> list[bytes]:
    reader = await world.connect(name)
    await world.go(1)
    return reader.payloads()


@pytest.mark.parametrize("retain", [False, True])
@runs(in_two_logs)
async def test_a_copy_is_sealed_and_erased_with_the_original(
    here: SealedPartition, there: SealedPartition, *, retain: bool
) -> None:
    name = await away(there)
    await publish(here, (ALICE, SECRET), (BOB, OTHER), retain=retain)
    await here.go(2)
    assert SECRET in here.readable()
    assert SECRET in there.readable()
    for world in (here, there):
        assert SECRET not in world.stored()
    await change(here, "erase", filter="home/alice/#")
    await here.go(2)
    assert (here.causes, there.causes) == ([REQUEST], [FOLLOWED])
    for world in (here, there):
        assert SECRET not in world.readable()
        assert OTHER in world.readable()
        assert (world.broker.node.state.retained.get(ALICE) is None) or not retain
    assert await received(there, name) == [OTHER]


@pytest.mark.parametrize("taken", [False, True])
@runs(in_two_logs)
async def test_a_log_that_is_away_erases_at_its_start(
    here: SealedPartition, there: SealedPartition, *, taken: bool
) -> None:
    name = await away(there)
    await publish(there, (ALICE, SECRET))
    if not taken:
        await there.crash()
    await publish(here, (ALICE, SECRET), (BOB, OTHER))
    await here.go(2)
    if taken:
        await there.crash()
    await change(here, "erase", filter="home/alice/#")
    await here.go(2)
    await there.start()
    await here.go(3)
    assert there.causes == [FOLLOWED]
    assert SECRET not in there.readable()
    assert await received(there, name) == [OTHER]
    erased = [ref for event in there.events(Followed) for ref in from_runs(event.erased)]
    assert len(erased) == (not taken)


@runs(in_two_logs)
async def test_topics_of_the_other_log_alone_are_erased_too(
    here: SealedPartition, there: SealedPartition
) -> None:
    await publish(here, (ALICE, SECRET))
    await publish(there, ("home/alice/other", SECRET))
    await change(here, "erase", filter="home/alice/#")
    await here.go(2)
    assert SECRET not in [*here.readable(), *there.readable()]
    await publish(there, ("home/alice/other", OTHER))  # what comes later is kept
    await here.go(2)
    assert OTHER in there.readable()


@pytest.mark.parametrize("seed", range(8))
@runs(in_two_logs)
async def test_what_was_published_before_an_erasure_is_readable_nowhere(
    here: SealedPartition, there: SealedPartition, *, seed: int
) -> None:
    chance = random.Random(seed)
    worlds = (here, there)
    for world in worlds:
        await away(world)
    senders = [await world.connect(name_in(worlds, at)) for at, world in enumerate(worlds)]
    number = 0

    async def send() -> None:
        nonlocal number
        number += 1
        sender = chance.choice(senders)
        sender.send(p.publish(ALICE, b"number %d" % number, 1, number))
        await here.go(chance.choice([0, 0.001, 0.01, 0.05]))

    for _ in range(40):
        await send()
    before = number
    await here.go(chance.choice([0.002, 0.02, 0.5]))
    await change(chance.choice(worlds), "erase", filter=ALICE)
    for _ in range(chance.choice([0, 10])):
        await send()
    if chance.random() < 0.5:
        victim = chance.choice(worlds)
        await victim.crash(chance.choice([0, 1]))
        await victim.start()
    await here.go(5)
    for world in worlds:
        left = [payload for payload in world.readable() if payload.startswith(b"number ")]
        assert all(int(payload[7:]) > before for payload in left), (world.causes, left)
    assert {*here.causes, *there.causes} <= {REQUEST, FOLLOWED, COPIES}


def deaf(world: SealedPartition) -> Callable[[], None]:
    """Keep a log from taking others; call the result to let it."""
    exchange: Any = world.broker.exchange
    hear, push, held = exchange.heard, exchange.pushed, []
    exchange.heard = lambda *announced: held.append((hear, announced))
    exchange.pushed = lambda *pushed: held.append((push, pushed))

    def listen() -> None:
        exchange.heard, exchange.pushed = hear, push
        for call, arguments in held:
            call(*arguments)

    return listen


@pytest.mark.parametrize("most", [1, 65_536])
def test_what_is_taken_between_two_erasures_is_erased_again(
    monkeypatch: pytest.MonkeyPatch, *, most: int
) -> None:
    async def scenario(here: SealedPartition, there: SealedPartition) -> None:
        name = await away(here)
        await publish(here, (ALICE, SECRET))
        await here.go(2)
        hears = [deaf(world) for world in (here, there)]
        await publish(there, (ALICE, SECRET), (BOB, OTHER))
        await change(here, "erase", filter="home/alice/#")
        assert SECRET not in here.readable()
        hears[0]()
        await here.go(0.5)
        exchange: Any = here.broker.exchange
        assert len(exchange._erasures._copies[there.name]) == min(2, most)
        assert SECRET in here.readable()  # it was published before, and is erased there later
        hears[1]()
        await here.go(2)
        assert (here.causes, there.causes) == ([REQUEST, COPIES], [FOLLOWED])
        assert SECRET not in [*here.readable(), *there.readable()]
        assert await received(here, name) == [OTHER]

    monkeypatch.setattr(taken_erasures, "_MOST", most)
    in_two_logs(scenario)


@runs(in_two_logs)
async def test_what_another_log_publishes_later_is_kept(
    here: SealedPartition, there: SealedPartition
) -> None:
    name = await away(here)
    await publish(there, (ALICE, SECRET))
    hears = deaf(there)
    await change(here, "erase", filter="home/alice/#")
    await publish(here, (ALICE, OTHER))
    hears()
    await here.go(2)
    assert here.causes == [REQUEST]  # nothing was taken in between
    assert await received(here, name) == [OTHER]


def test_a_key_of_several_periods_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event names a topic once for each of its keys."""

    async def scenario(here: SealedPartition, there: SealedPartition) -> None:
        await away(there)
        for _ in range(4):
            await publish(here, (ALICE, SECRET), ("home/alice/other", SECRET))
            await here.go(PERIOD)
        await change(here, "erase", filter="home/alice/#")
        await here.go(2)
        for world in (here, there):
            assert SECRET not in world.readable()
            keys = [
                key for event in world.events(ErasureRequested) for key in from_runs(event.keys)
            ]
            assert sorted(keys) == [*range(1, 9)]

    monkeypatch.setattr(erasure, "_KEYS", 3)
    in_two_logs(scenario, personal_keep=30 * PERIOD)


def test_other_logs_follow_an_erasure_although_another_one_was_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(here: SealedPartition, there: SealedPartition) -> None:
        await publish(here, (ALICE, SECRET), (BOB, OTHER))
        await publish(there, ("home/alice/other", SECRET))
        first = change(here, "erase", filter=BOB)
        await asyncio.gather(first, change(here, "erase", filter="home/#"))
        await here.go(2)
        assert SECRET not in [*here.readable(), *there.readable()]
        assert (here.causes, there.causes) == ([REQUEST] * 2, [FOLLOWED])

    monkeypatch.setattr(erasure, "_KEYS", 1)  # the last event has the filter
    in_two_logs(scenario)


@runs(in_two_logs)
async def test_an_erasure_that_finds_nothing_any_more_is_refused(
    here: SealedPartition, there: SealedPartition
) -> None:
    await publish(here, (ALICE, SECRET))
    await publish(there, ("home/alice/other", SECRET))
    both = [change(here, "erase", filter=name) for name in (ALICE, "home/#")]
    _, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(second, Refused)


@runs(in_two_logs, personal_keep=30 * PERIOD)
async def test_contents_are_erased_by_themselves_in_each_log(
    here: SealedPartition, there: SealedPartition
) -> None:
    """What one of them removes from the retained messages, the other one removes, too."""
    await there.go(0.5)
    await away(there)
    await publish(here, (ALICE, SECRET), retain=True)
    await here.go(33 * PERIOD)
    for world in (here, there):
        assert set(world.causes) == {KEEP}
        assert SECRET not in world.readable()
        assert world.broker.node.state.retained.get(ALICE) is None


@pytest.mark.parametrize(
    ("topic", "what"),
    [(ALICE, "as erased, but it was not"), ("news", "as erased, but it is not sealed")],
)
def test_a_message_that_is_wrongly_taken_for_erased_is_found(
    topic: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``foldmq log verify``."""

    def is_gone(self: EffectRecorder, _: str, taken: TakenMessages, at: int, __: int) -> bool:
        self.erased.append(taken.origins[at])
        return True

    async def scenario(here: SealedPartition, there: SealedPartition) -> None:
        await there.connect(name_in(there.all, 1), filters=[("#", 1)])
        await publish(here, (topic, SECRET))
        await here.go(2)

    monkeypatch.setattr(EffectRecorder, "_is_gone", is_gone)
    with pytest.raises(AssertionError, match=what):
        in_two_logs(scenario)
