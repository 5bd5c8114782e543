"""Erasures of periods with several logs: copies are as old as what they were made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from harness import packets as p

from actors.inspection.inspector import Refused
from eventstore.format.erasure_events import COPIES, FOLLOWED, KEEP, REQUEST, ErasureRequested
from eventstore.partitions import partition_of
from simulation.inspection import ask, change
from simulation.log_cuts import cuts, publish_noise
from simulation.network import SimClient
from simulation.partitions import name_in
from simulation.sealed_disk import without_threads
from simulation.test_erasure_of_logs import (
    ALICE,
    OTHER,
    PERIOD,
    SECRET,
    SealedPartition,
    away,
    in_two_logs,
    publish,
    received,
)
from simulation.world import runs

__all__ = ["without_threads"]

KEEPS = {"personal_keep": 30 * PERIOD}
PERIOD_MS = round(1000 * PERIOD)


def now_ms(world: SealedPartition) -> int:
    return world.broker.node.journal.event_ms()


async def to_next_period(world: SealedPartition) -> int:
    """Go to the middle of the next period; return where it began."""
    begins = (now_ms(world) // PERIOD_MS + 1) * PERIOD_MS
    await world.go((begins - now_ms(world)) / 1000 + PERIOD / 2)
    return begins + world.broker.node.clock.jumped_ms


async def erase_before(world: SealedPartition, before_ms: int) -> None:
    await change(world, "erase", filter="home/alice/#", before_ms=before_ms)


def deaf(world: SealedPartition) -> Callable[[], None]:
    """Keep a log from taking others, for however long; call the result to let it."""
    exchange: Any = world.broker.exchange
    followers = [*exchange._followers.values()]
    held: list[tuple[Any, str, tuple[Any, ...]]] = []

    def ignore(follower: Any, name: str) -> Callable[..., None]:
        return lambda *told: held.append((follower, name, told))

    for follower in followers:
        for name in ("heard", "heard_push"):
            setattr(follower, name, ignore(follower, name))

    def listen() -> None:
        for follower in followers:
            del follower.heard, follower.heard_push
        for follower, name, told in held:
            getattr(follower, name)(*told)

    return listen


def both(*worlds: SealedPartition) -> list[bytes]:
    return [payload for world in worlds for payload in world.readable()]


@pytest.mark.parametrize("retain", [False, True])
@runs(in_two_logs, **KEEPS)
async def test_periods_are_erased_in_all_logs(
    here: SealedPartition, there: SealedPartition, *, retain: bool
) -> None:
    name = await away(there)
    await publish(here, (ALICE, SECRET), retain=retain)
    before_ms = await to_next_period(here)
    await publish(here, (ALICE, OTHER))
    await here.go(1)
    with pytest.raises(Refused, match="in a period that ended before"):
        await erase_before(here, before_ms - PERIOD_MS)
    await erase_before(here, before_ms)
    await here.go(2)
    assert (here.causes, there.causes) == ([REQUEST], [FOLLOWED])
    (followed,) = there.events(ErasureRequested)
    assert followed.before_ms == before_ms - there.broker.node.clock.jumped_ms
    assert SECRET not in both(here, there)
    assert OTHER in there.readable()
    assert await received(there, name) == [OTHER]


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("later", [False, True])
@runs(in_two_logs, **KEEPS)
async def test_a_late_copy_is_as_old_as_the_message(
    here: SealedPartition, there: SealedPartition, *, crashed: bool, later: bool
) -> None:
    """The other log takes it in the next period, in which it may have a key already."""
    name = await away(there)
    hear = deaf(there)
    await publish(here, (ALICE, SECRET))
    before_ms = await to_next_period(here)
    if later:
        await publish(there, (ALICE, OTHER))
    hear()
    await here.go(2)
    await publish(there, (ALICE, b"newest"))
    assert SECRET in there.readable()
    if crashed:
        await there.crash()
        await there.start()
    plan = await ask(there, "erasures", filter=ALICE, before_ms=before_ms)
    assert plan["keys"] == 1
    await erase_before(here, before_ms)
    await here.go(2)
    assert there.causes == [FOLLOWED]
    assert SECRET not in both(here, there)
    kept = [*([OTHER] if later else []), b"newest"]
    assert await received(there, name) == kept


@runs(in_two_logs, **KEEPS)
async def test_what_is_taken_between_two_erasures_is_erased_by_its_period(
    here: SealedPartition, there: SealedPartition
) -> None:
    name = await away(here)
    await publish(here, (ALICE, SECRET))
    await here.go(2)
    hears = [deaf(world) for world in (here, there)]
    await publish(there, (ALICE, SECRET))
    before_ms = await to_next_period(here)
    await publish(here, (ALICE, OTHER))
    await erase_before(here, before_ms)
    hears[0]()
    await here.go(0.5)
    assert SECRET in here.readable()  # it was published before, and is erased there later
    hears[1]()
    await here.go(2)
    assert (here.causes, there.causes) == ([REQUEST, COPIES], [FOLLOWED])
    assert SECRET not in both(here, there)
    assert await received(here, name) == [OTHER]


@runs(in_two_logs, **KEEPS)
async def test_a_message_is_as_old_as_its_publish_packet(
    here: SealedPartition, there: SealedPartition
) -> None:
    """At QoS 2 its PUBREL, with which the other log takes it, may come later."""
    name = await away(there)
    sender = await here.connect(name_in(here.all, 0), clean=True)
    sender.send(p.publish(ALICE, SECRET, 2, 1))
    await here.go(0.3)
    before_ms = await to_next_period(here)
    sender.send(p.pubrel(1))
    sender.send(p.publish(ALICE, OTHER, 1, 2))
    await here.go(1)
    assert SECRET in there.readable()
    await erase_before(here, before_ms)
    await here.go(2)
    assert SECRET not in both(here, there)
    assert await received(there, name) == [OTHER]


@pytest.mark.parametrize("cut", [False, True])
def test_a_message_that_waited_for_a_member_is_as_old_as_its_publication(*, cut: bool) -> None:
    """A shared subscription assigns it later, perhaps after a cut that repeats it."""

    async def scenario(here: SealedPartition, there: SealedPartition) -> None:
        names = (f"$share/g{number}/home/#" for number in range(99))
        group = next(name for name in names if partition_of(name, 2) == 0)

        async def member(world: SealedPartition) -> SimClient:
            name = name_in(here.all, [here, there].index(world), "member")
            return await world.connect(name, filters=[(group, 1)])

        first = await member(here)
        await here.go(1)
        first.drop()
        await here.go(1)
        await publish(here, (ALICE, SECRET))
        before_ms = await to_next_period(here)
        if cut:
            noise = await here.connect(name_in(here.all, 0, "noise"), clean=True)
            while not cuts(here):
                await publish_noise(here, noise, 200)
        second = await member(there)
        await there.go(3)
        second.drop()
        await there.go(1)
        assert SECRET in there.readable()
        await erase_before(here, before_ms)
        await here.go(2)
        assert SECRET not in both(here, there)

    in_two_logs(scenario, **KEEPS, **({"keep": 0.0, "keep_bytes": 40_000} if cut else {}))


@runs(in_two_logs, **KEEPS)
async def test_copies_are_kept_no_longer_than_what_they_were_made_of(
    here: SealedPartition, there: SealedPartition
) -> None:
    await away(there)
    hear = deaf(there)
    await publish(here, (ALICE, SECRET))
    await here.go(20 * PERIOD)
    hear()
    await here.go(2)
    assert SECRET in there.readable()
    await here.go(12 * PERIOD)
    assert SECRET not in both(here, there)
    assert {*here.causes, *there.causes} == {KEEP}


@pytest.mark.parametrize("seed", range(8))
@runs(in_two_logs, **KEEPS)
async def test_what_was_published_in_periods_before_is_readable_nowhere(
    here: SealedPartition, there: SealedPartition, *, seed: int
) -> None:
    chance = random.Random(seed)
    worlds = (here, there)
    for world in worlds:
        await away(world)
    senders = [await world.connect(name_in(worlds, at)) for at, world in enumerate(worlds)]
    published: dict[bytes, int] = {}
    number = 0

    async def send(pauses: Iterable[float]) -> None:
        nonlocal number
        number += 1
        at = chance.randrange(2)
        payload = b"number %d" % number
        qos = chance.choice([1, 2])
        published[payload] = now_ms(worlds[at])
        senders[at].send(p.publish(ALICE, payload, qos, number))
        await here.go(chance.choice([*pauses]))
        if qos == 2:
            senders[at].send(p.pubrel(number))

    for _ in range(40):
        if chance.random() < 0.1:
            hear = deaf(chance.choice(worlds))
            await send([PERIOD / 3, PERIOD])
            hear()
        await send([0, 0.01, PERIOD / 20])
    await to_next_period(here)
    before_ms = chance.choice([*published.values()]) // PERIOD_MS * PERIOD_MS + PERIOD_MS
    if chance.random() < 0.5:
        victim = chance.choice(worlds)
        await victim.crash(chance.choice([0, 1]))
        await victim.start()
    try:
        await erase_before(chance.choice(worlds), before_ms)
    except Refused:  # the other log has older ones alone
        for world in worlds:
            plan = await ask(world, "erasures", filter=ALICE, before_ms=before_ms)
            if plan["keys"]:
                await erase_before(world, before_ms)
                break
    await here.go(5)
    old = {payload for payload, at_ms in published.items() if at_ms < before_ms - 500}
    new = {payload for payload, at_ms in published.items() if at_ms >= before_ms}
    left = {payload for payload in both(*worlds) if payload.startswith(b"number ")}
    assert not left & old
    assert new <= left
