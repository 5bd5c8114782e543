"""Personal topics: their contents are sealed in the log, and erased by destroying their keys."""

from __future__ import annotations

import asyncio
import copy
import functools
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.packets import Publish
from harness.plainaudit import violations

from actors.bridge import bridge_supervisor
from actors.inspection import erasure
from actors.inspection.inspector import Refused
from actors.limits.bridge_options import BridgeOptions
from actors.maintenance import retention
from actors.session import content_sealing
from actors.session.content_sealing import ContentSealing
from eventstore.format.destination_events import ForwardLost
from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.events import InboundReplaced, MessageDropped
from eventstore.format.records import header_of
from eventstore.log.key_file import KeyDamaged, KeyFileError
from eventstore.log.shared_keys import Keys
from eventstore.nats.connection import ConnectionOptions
from projections.audit.rule_table import Rule
from projections.state import topic_keys
from projections.state.topic_keys import TopicKeys
from protocol.nats.mapping import Mapping
from simulation.bridged_clients import ACCESS
from simulation.checking import acknowledged, check_promises
from simulation.fold import compare
from simulation.inspection import ask, change
from simulation.log_cuts import publish_noise
from simulation.natsserver import SimLink, SimNatsServer
from simulation.sealed_disk import OpenDisk, without_threads
from simulation.world import SimLog, World, in_world

__all__ = ["without_threads"]

SECRET, OTHER, PLAIN = b"secret-of-alice", b"secret-of-bob", b"for-everybody"
ALICE, BOB = "home/alice/heart", "home/bob/heart"


class SealedWorld(World):
    """A broker with personal topics."""

    keys: Keys

    def __init__(self, **options: Any) -> None:
        super().__init__(personal_topics=("home/+/#",), **options)
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name, "keys")
        self.disk = OpenDisk(self.server.streams[0], lambda number: self.keys.key(number))

    def open_log(self) -> SimLog:
        log = super().open_log()
        if hasattr(self, "keys"):
            self.keys.close()
        self.keys = log.keys = Keys(self.path, "sim")
        return log

    def stored(self) -> bytes:
        """Everything that is stored, of the log and the projections, now and before."""
        log = self.server.streams[0].history
        return b"\n".join([*log.values(), *(data for _, _, data in self.keyed.history)])


in_sealed_world = functools.partial(in_world, SealedWorld)


async def publish(world: World, *messages: tuple[str, bytes], qos: int = 1, **more: Any) -> None:
    sender = await world.connect("sender", clean=True)
    for number, (topic, payload) in enumerate(messages, 1):
        sender.send(p.publish(topic, payload, qos, number, **more))
        await world.go(0.1)
        if qos == 2:
            sender.send(p.pubrel(number))
            await world.go(0.1)
    sender.send(p.disconnect())
    await world.go(0.5)


def events(world: World, kind: type) -> list[Any]:
    return world.disk.events(kind)


def restoring(world: SealedWorld) -> Callable[[], Awaitable[None]]:
    """Return a function that crashes the broker and starts it with the log as it is now."""
    stream, noted = copy.deepcopy(world.disk.stream), world.watermark.noted

    async def restore() -> None:
        await world.crash()
        world.server.streams = (stream,)
        world.disk.stream = stream
        world.watermark.noted = noted
        world.keyed.history.clear()
        await world.start()

    return restore


THREE = ((ALICE, SECRET), (BOB, OTHER), ("news", PLAIN))


@in_sealed_world()
async def test_what_is_stored_has_no_content_of_personal_topics(world: SealedWorld) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    await publish(world, *THREE, retain=True)
    assert await acknowledged(world, reader) == [SECRET, OTHER, PLAIN]
    await world.go(10)
    stored = world.stored()
    assert PLAIN in stored
    assert SECRET not in stored
    assert OTHER not in stored
    (first, second) = events(world, TopicsKeyed)
    assert [*first.topics, *second.topics] == [ALICE, BOB]
    await check_promises(world)
    back = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in back.received] == [SECRET, OTHER, PLAIN]


@in_sealed_world()
async def test_a_queue_loses_exactly_what_was_erased(world: SealedWorld) -> None:
    reader = await world.connect("reader", filters=[("#", 2)])
    reader.drop()
    await world.go(1)
    await publish(world, *THREE, (ALICE, SECRET + b"2"))
    answer = await change(world, "erase", filter="home/alice/#")
    assert answer == {"keys": 1, "retained": 0, "erasures": [1]}
    await publish(world, (ALICE, b"after"))
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [OTHER, PLAIN, b"after"]
    dropped = events(world, MessageDropped)
    assert [(one.reason, one.count) for one in dropped] == [("erased", 1), ("erased", 1)]
    await check_promises(world)


@pytest.mark.parametrize("restarted", [False, True])
@in_sealed_world()
async def test_nothing_can_be_read_after_an_erasure(world: SealedWorld, *, restarted: bool) -> None:
    await publish(world, *THREE, retain=True)
    before = world.path.read_bytes()
    await change(world, "erase", filter=ALICE)
    if restarted:
        await world.restart()
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [OTHER, PLAIN]
    key = events(world, ErasureRequested)[0].keys[0]
    assert world.keys.key(key) is None
    assert world.keys.erasure(key) == 1
    found = [record for record in world.disk.decoded() if key in record.sealed.values()]
    assert found
    assert all(SECRET not in bytes(record.payload) for record in found)
    assert before[128 + 64 * (key - 1) :][:32] not in world.path.read_bytes()
    with pytest.raises(Refused, match="no topic with sealed contents"):
        await change(world, "erase", filter=ALICE)
    await check_promises(world)


@in_sealed_world()
async def test_an_erased_topic_gets_another_key(world: SealedWorld) -> None:
    await publish(world, (ALICE, SECRET))
    await change(world, "erase", filter=ALICE)
    await publish(world, (ALICE, b"again"), retain=True)
    first, second = events(world, TopicsKeyed)
    assert first.keys != second.keys
    assert first.checks != second.checks
    await world.restart()
    late = await world.connect("late", filters=[(ALICE, 1)])
    assert [packet.payload for packet in late.received] == [b"again"]
    assert b"again" not in world.stored()
    await change(world, "erase", filter="#")
    assert [event.erasure for event in events(world, Erased)] == [1, 2]
    await check_promises(world)


def kills() -> list[int]:
    return [*range(40)]


@pytest.mark.parametrize("fuse", kills())
@in_sealed_world()
async def test_an_erasure_survives_a_kill_at_any_step(world: SealedWorld, *, fuse: int) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    reader.drop()
    await publish(world, *THREE, retain=True)
    world.fuse = fuse
    erasing = asyncio.ensure_future(change(world, "erase", filter=ALICE))
    await world.go(2)
    world.fuse = None
    erasing.cancel()
    await world.restart()
    await world.go(1)
    requested = bool(events(world, ErasureRequested))
    assert len(events(world, Erased)) == requested
    key = events(world, TopicsKeyed)[0].keys[0]
    assert (world.keys.key(key) is None) is requested
    back = await world.connect("reader", present=True)
    got = await acknowledged(world, back)
    assert got == ([OTHER, PLAIN] if requested else [SECRET, OTHER, PLAIN])
    await check_promises(world)


@pytest.mark.parametrize("qos", [1, 2])
@in_sealed_world()
async def test_a_delivery_in_flight_is_not_repeated(world: SealedWorld, *, qos: int) -> None:
    reader = await world.connect("reader", filters=[("#", 2)])
    await publish(world, (ALICE, SECRET), (BOB, OTHER), qos=qos)
    sent = [packet for packet in reader.take() if isinstance(packet, Publish)]
    assert [one.payload for one in sent] == [SECRET, OTHER]
    await change(world, "erase", filter=ALICE)
    reader.drop()
    await world.go(1)
    await world.restart()
    back = await world.connect("reader", present=True)
    taken = back.take()
    again = [packet for packet in taken if isinstance(packet, Publish)]
    assert [one.payload for one in again] == [OTHER]
    pubrels = [packet for packet in taken if not isinstance(packet, Publish)]
    assert len(pubrels) == (qos == 2)
    if qos == 2:
        back.send(p.pubcomp(sent[0].packet_id))
    back.send(p.puback(again[0].packet_id) if qos == 1 else p.pubrec(again[0].packet_id))
    await world.go(0.1)
    if qos == 2:
        back.send(p.pubcomp(again[0].packet_id))
    await world.go(1)
    assert not world.broker.node.state.sessions.get("reader").inflight
    assert not world.broker.node.state.sessions.get("reader").releasing
    await check_promises(world)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@in_sealed_world()
async def test_a_message_that_was_not_released_is_given_up(
    world: SealedWorld, *, retain: bool, restarted: bool
) -> None:
    reader = await world.connect("reader", filters=[("#", 2)])
    sender = await world.connect("sender")
    sender.send(p.publish(ALICE, SECRET, 2, 1, retain=retain))
    sender.send(p.publish(BOB, OTHER, 2, 2, retain=retain))
    await world.go(0.5)
    await change(world, "erase", filter=ALICE)
    if restarted:
        await world.restart()
        sender = await world.connect("sender", present=True)
        reader = await world.connect("reader", present=True)
    sender.take()
    sender.send(p.pubrel(1), p.pubrel(2))
    await world.go(0.5)
    assert len(sender.take()) == 2
    assert reader.payloads() == [OTHER]
    assert len(events(world, InboundReplaced)) == 1
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [OTHER] * retain
    await world.go(1)
    compare(world)


@pytest.mark.parametrize("restarted", [False, True])
@in_sealed_world()
async def test_an_erased_will_is_not_published(world: SealedWorld, *, restarted: bool) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    client = await world.connect("c", will=p.Will(ALICE, SECRET, 1, retain=True))
    await publish(world, (BOB, OTHER))
    await change(world, "erase", filter=ALICE)
    if restarted:
        await world.restart()
        reader = await world.connect("reader", present=True)
    else:
        client.drop()
    await world.go(1)
    assert SECRET not in await acknowledged(world, reader)
    assert [event.reason for event in events(world, MessageDropped)] == ["erased"]
    assert SECRET not in world.stored()
    await check_promises(world)


@in_sealed_world()
async def test_a_shared_subscription_loses_what_was_erased(world: SealedWorld) -> None:
    reader = await world.connect("reader", filters=[("$share/g/#", 1)])
    reader.drop()
    await world.go(1)
    await publish(world, *THREE)
    await change(world, "erase", filter=ALICE)
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [OTHER, PLAIN]
    await check_promises(world)


@in_sealed_world(keep=0.0, keep_bytes=40_000)
async def test_a_cut_log_keeps_contents_sealed(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)
    reader = await world.connect("reader", filters=[("home/#", 1), ("news", 1)])
    reader.drop()
    await publish(world, *THREE, ("home/carl", b"secret-of-carl"))
    await publish(world, (ALICE, SECRET), (BOB, OTHER), retain=True)
    await change(world, "erase", filter=ALICE)
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    await world.go(10)
    assert world.disk.stream.first > 1
    stored = world.stored()
    assert b"secret-of" not in stored
    assert PLAIN in stored
    await world.restart()
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [OTHER]
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [OTHER, PLAIN, b"secret-of-carl", OTHER]
    await change(world, "erase", filter="#")
    await check_promises(world)


@in_sealed_world()
async def test_a_restored_log_learns_what_was_erased(world: SealedWorld) -> None:
    await publish(world, *THREE, retain=True)
    restore = restoring(world)
    await change(world, "erase", filter=ALICE)
    await publish(world, ("home/new", b"n"))
    await restore()
    (requested,) = events(world, ErasureRequested)
    assert (requested.cause, requested.topics) == ("restored", [ALICE])
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [OTHER, PLAIN]


@in_sealed_world()
async def test_a_restored_log_does_not_use_keys_that_were_erased(world: SealedWorld) -> None:
    await publish(world, *THREE)
    restore = restoring(world)
    await publish(world, ("home/new/x", b"n"))
    await change(world, "erase", filter="home/new/x")
    await restore()
    await publish(world, ("home/other/x", OTHER), retain=True)
    await world.restart()
    late = await world.connect("late", filters=[("home/other/x", 1)])
    assert [packet.payload for packet in late.received] == [OTHER]
    await check_promises(world)


@in_sealed_world()
async def test_keys_that_a_crash_left_incomplete_are_not_used(world: SealedWorld) -> None:
    await publish(world, *THREE)
    await world.crash()
    data = world.path.read_bytes()
    used = 128 + 64 * 2
    world.path.write_bytes(data[:used] + bytes(len(data) - used))
    await world.start()
    await publish(world, ("home/other/x", OTHER), retain=True)
    await world.restart()
    late = await world.connect("late", filters=[("home/other/x", 1)])
    assert [packet.payload for packet in late.received] == [OTHER]
    await check_promises(world)


@pytest.mark.parametrize("again", [False, True])
@in_sealed_world()
async def test_an_older_key_file_does_not_bring_back_what_was_erased(
    world: SealedWorld, *, again: bool
) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    reader.drop()
    await publish(world, *THREE)
    old = world.path.read_bytes()
    await change(world, "erase", filter=ALICE)
    if again:
        await publish(world, ("home/carl", b"c"))
        world.fuse = 1  # its request is on disk, and nothing else
        erasing = asyncio.ensure_future(change(world, "erase", filter="home/carl"))
        await world.go(2)
        world.fuse = None
        erasing.cancel()
    await world.crash()
    world.path.write_bytes(old)
    await world.start()
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [OTHER, PLAIN]
    assert world.keys.key(1) is None
    assert world.keys.key(2) is not None
    assert world.keys.last_erasure == len(events(world, ErasureRequested))
    await check_promises(world)


@in_sealed_world()
async def test_a_file_with_other_keys_is_refused(world: SealedWorld) -> None:
    await publish(world, *THREE)
    await world.crash()
    data = world.path.read_bytes()
    world.path.unlink()
    other = Keys(world.path, "sim")
    other.extend()
    other.close()
    with pytest.raises(KeyDamaged, match="key 2 is not the one that the log names"):
        await world.start()
    world.path.write_bytes(data)
    await world.start()


@in_sealed_world()
async def test_damage_where_a_key_is_named_does_not_prevent_a_start(world: SealedWorld) -> None:
    await publish(world, *THREE, retain=True)
    await world.go(30)  # the projections have it
    await world.restart()
    await world.go(30)
    await world.crash()
    records = world.disk.stream.messages
    at = next(at for at, data in reversed(records.items()) if b"TopicsKeyed" in header_of(data))
    records[at] = records[at][:-1] + bytes([records[at][-1] ^ 1])
    await world.start()
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [SECRET, OTHER, PLAIN]


@in_sealed_world()
async def test_a_damaged_key_is_not_an_erasure(world: SealedWorld) -> None:
    await publish(world, *THREE)
    await world.crash()
    data = bytearray(world.path.read_bytes())
    data[128 + 3] ^= 1
    world.path.write_bytes(bytes(data))
    with pytest.raises(KeyDamaged, match="1 of 2"):
        await world.start()
    data[128 + 3] ^= 1
    world.path.write_bytes(bytes(data))
    await world.start()


@in_sealed_world()
async def test_the_plan_of_an_erasure_names_its_topics(world: SealedWorld) -> None:
    await publish(world, *THREE, retain=True)
    answer = await ask(world, "erasures", filter="home/+/heart")
    assert (answer["total"], answer["topics"], answer["retained"]) == (2, [ALICE, BOB], 2)
    assert (await ask(world, "erasures", filter="news"))["total"] == 0
    with pytest.raises(Refused):
        await ask(world, "erasures", filter="a/#/b")


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("restarted", [False, True])
@in_sealed_world()
async def test_a_replay_leaves_out_what_was_erased(
    world: SealedWorld, *, restarted: bool, qos: int
) -> None:
    await publish(world, *THREE)
    await change(world, "erase", filter=ALICE)
    await publish(world, (ALICE, b"again"))
    if restarted:
        await world.restart()
    late = await world.connect("late", filters=[("$replay/all/#", qos)])
    await world.go(1)
    assert late.payloads() == [
        OTHER,
        PLAIN,
        b"again",
    ]
    await check_promises(world)


@in_sealed_world()
async def test_messages_of_several_clients_in_one_turn_are_sealed(world: SealedWorld) -> None:
    reader = await world.connect("reader", filters=[("home/+/x", 1), ("news", 1)])
    senders = [await world.connect(f"s{number}") for number in range(3)]
    await world.go(3)
    topics = ["home/alice/x", "home/bob/x", "news"]
    reader.take()
    for turn in range(4):
        reader.send(*(p.puback(packet.packet_id) for packet in reader.take()))
        for sender, topic in zip(senders, topics, strict=True):
            sender.send(p.publish(topic, b"secret" if topic != "news" else PLAIN, 1, turn + 1))
        await world.go(0.5)
    headers = b"".join(map(header_of, world.disk.records))
    assert b"TurnPublished" in headers
    assert b"secret" not in world.stored()
    assert PLAIN in world.stored()
    await world.restart()
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [b"secret", b"secret", PLAIN]
    await check_promises(world)


# ------------------------------------------------------------------------------- periods

PERIOD = 60.0
in_periods = functools.partial(in_sealed_world, personal_keep=30 * PERIOD)


async def played(world: SealedWorld) -> int:
    """Publish in three periods; return the time, in milliseconds, at which the second one ends."""
    start = await whole_period(world)
    await publish(world, (ALICE, b"first"), (BOB, OTHER), retain=True)
    await world.go(PERIOD)
    await publish(world, (ALICE, b"second"), retain=True)
    await world.go(PERIOD)
    await publish(world, (ALICE, b"third"))
    return start + 2 * 60_000


async def whole_period(world: SealedWorld) -> int:
    """Wait for the beginning of a period, and some seconds; return that beginning."""
    now_ms = world.broker.node.clock.time_ms()
    await world.go(PERIOD - now_ms % 60_000 / 1000 + 10)
    return world.broker.node.clock.time_ms() // 60_000 * 60_000


@in_periods()
async def test_a_topic_gets_a_key_for_each_period(world: SealedWorld) -> None:
    end = await played(world)
    keyed = events(world, TopicsKeyed)
    assert [one.topics for one in keyed] == [[ALICE], [BOB], [ALICE], [ALICE]]
    assert [one.ends_ms for one in keyed] == [
        end - 60_000,
        end - 60_000,
        end,
        end + 60_000,
    ]
    assert len({*map(str, (one.keys for one in keyed))}) == 4
    await world.restart()
    await publish(world, (ALICE, b"again"))
    assert len(events(world, TopicsKeyed)) == 4
    await check_promises(world)


@pytest.mark.parametrize("restarted", [False, True])
@in_periods()
async def test_an_erasure_of_older_contents_destroys_whole_periods(
    world: SealedWorld, *, restarted: bool
) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    reader.drop()
    await world.go(1)
    end = await played(world)
    plan = await ask(world, "erasures", filter=ALICE, before_ms=end - 1)
    assert (plan["total"], plan["keys"], plan["retained"]) == (1, 1, 0)
    assert (plan["left"], plan["left_until_ms"]) == (1, end)
    answer = await change(world, "erase", filter=ALICE, before_ms=end - 1)
    assert answer == {"keys": 1, "retained": 0, "erasures": [1]}
    plan = await ask(world, "erasures", filter="#", before_ms=end - 1)
    assert (plan["total"], plan["topics"]) == (1, [BOB])
    with pytest.raises(Refused, match="contents in a period that ended before matches"):
        await change(world, "erase", filter=ALICE, before_ms=end - 1)
    if restarted:
        await world.restart()
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [OTHER, b"second", b"third"]
    late = await world.connect("late", filters=[(ALICE, 1)])
    assert [packet.payload for packet in late.received] == [b"second"]
    (requested,) = events(world, ErasureRequested)
    assert (requested.topics, requested.keys, requested.before_ms) == ([ALICE], [1], end - 1)
    await check_promises(world)


@pytest.mark.parametrize("restarted", [False, True])
@in_periods()
async def test_a_retained_message_of_an_erased_period_goes(
    world: SealedWorld, *, restarted: bool
) -> None:
    end = await played(world)
    if restarted:
        await world.restart()
    answer = await change(world, "erase", filter="home/+/heart", before_ms=end)
    assert answer == {"keys": 3, "retained": 2, "erasures": [1]}
    late = await world.connect("late", filters=[("#", 1)])
    assert late.received == []
    await publish(world, (ALICE, b"again"), retain=True)
    assert late.payloads() == [b"again"]
    replayed = await world.connect("replayed", filters=[("$replay/all/#", 1)])
    await world.go(1)
    got = replayed.payloads()
    assert got == [b"third", b"again"]
    await check_promises(world)


@in_periods()
async def test_contents_are_erased_by_themselves(world: SealedWorld) -> None:
    await played(world)
    await world.go(26 * PERIOD)
    assert events(world, ErasureRequested) == []
    await world.go(6 * PERIOD)
    requested = events(world, ErasureRequested)
    assert [key for one in requested for key in one.keys] == [1, 2, 3, 4]
    assert {one.cause for one in requested} == {"keep"}
    assert len(events(world, Erased)) == len(requested)
    late = await world.connect("late", filters=[("#", 1)])
    assert late.received == []
    assert world.broker.node.state.keys.count == 0
    await check_promises(world)


@in_periods(keep=0.0, keep_bytes=40_000)
async def test_a_cut_log_keeps_the_keys_of_its_periods(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)
    reader = await world.connect("reader", filters=[("home/#", 1)])
    reader.drop()
    end = await played(world)
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    await world.go(10)
    assert world.disk.stream.first > 1
    await world.restart()
    await change(world, "erase", filter=ALICE, before_ms=end - 60_000)
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [OTHER, b"second", b"third"]
    await check_promises(world)


@pytest.mark.parametrize("fuse", range(20))
@in_periods()
async def test_an_erasure_of_a_period_survives_a_kill(world: SealedWorld, *, fuse: int) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    reader.drop()
    end = await played(world)
    world.fuse = fuse
    erasing = asyncio.ensure_future(change(world, "erase", filter=ALICE, before_ms=end))
    await world.go(2)
    world.fuse = None
    erasing.cancel()
    await world.restart()
    await world.go(1)
    requested = bool(events(world, ErasureRequested))
    assert len(events(world, Erased)) == requested
    assert [world.keys.key(number) is None for number in (1, 3)] == [requested] * 2
    assert world.keys.key(2) is not None
    back = await world.connect("reader", present=True)
    got = await acknowledged(world, back)
    assert got == ([OTHER] if requested else [b"first", OTHER, b"second"]) + [b"third"]
    await check_promises(world)


@in_periods()
async def test_a_restored_log_learns_which_periods_were_erased(world: SealedWorld) -> None:
    end = await played(world)
    restore = restoring(world)
    await change(world, "erase", filter=ALICE, before_ms=end - 60_000)
    await restore()
    (requested,) = events(world, ErasureRequested)
    assert (requested.cause, requested.topics, requested.keys) == ("restored", [ALICE], [1])
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [OTHER, b"second"]


# ---------------------------------------------------------------------- bounds and failures


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_periods(record_qos0=("home/#",))
async def test_a_topic_for_which_there_is_no_key_is_refused(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch, *, qos: int
) -> None:
    monkeypatch.setattr(content_sealing, "_MOST_KEYS", 2)
    reader = await world.connect("reader", filters=[("#", 1)])
    sender = await world.connect("sender", mqtt5=True)
    sender.mqtt5 = False  # what follows is at level 5 already
    await world.go(3)
    expected: list[bytes] = []
    got: list[bytes] = []
    topics = [ALICE, BOB, "home/carl/x", "news", ALICE, "home/dora/x"]
    for number, topic in enumerate(topics, 1):
        sender.send(p5.publish(topic, topic.encode(), qos, number if qos else None))
        await world.go(0.1)
        if qos == 2 and topic not in ("home/carl/x", "home/dora/x"):
            sender.send(p.pubrel(number))
            await world.go(0.1)
        expected += [topic.encode()] if topic in (ALICE, BOB, "news") else []
        got += [one.payload for one in drained(reader)]
        assert got == expected
    received = b"".join(data for _, data in sender.transcript)
    assert (b"\x00\x03\x97" in received) is (qos > 0)
    assert world.broker.node.dropped == {"personal_keys": 2}
    assert world.broker.node.limits.refused.counts["personal_keys"] == 2
    assert [event.reason for event in events(world, MessageDropped)] == [
        "personal_keys"
    ] * 2 * bool(qos)
    await change(world, "erase", filter=BOB)
    sender.send(p5.publish("home/carl/x", b"now", qos, 7 if qos else None))
    await world.go(0.1)
    if qos == 2:
        sender.send(p.pubrel(7))
    await world.go(1)
    assert [one.payload for one in drained(reader)] == [b"now"]
    await check_promises(world)


def drained(client: Any) -> list[Publish]:
    """Take and acknowledge what a client got."""
    got = [packet for packet in client.take() if isinstance(packet, Publish)]
    client.send(*(p.puback(packet.packet_id) for packet in got if packet.qos == 1))
    return got


@in_periods()
async def test_without_room_for_keys_a_key_is_used_for_longer(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_sealing, "_MOST_KEYS", 1)
    start = await whole_period(world)
    await publish(world, (ALICE, b"first"))
    await world.go(PERIOD)
    await publish(world, (ALICE, b"second"))
    first, second = events(world, TopicsKeyed)
    assert (first.keys, first.checks) == (second.keys, second.checks)
    assert second.ends_ms - first.ends_ms == 60_000
    with pytest.raises(Refused, match="contents in a period that ended"):
        await change(world, "erase", filter=ALICE, before_ms=start + 60_000)
    await world.restart()
    plan = await ask(world, "erasures", filter=ALICE, before_ms=start + 60_000)
    assert (plan["left"], plan["left_until_ms"]) == (1, start + 120_000)
    await world.go(PERIOD)
    await change(world, "erase", filter=ALICE, before_ms=start + 120_000)
    await check_promises(world)


@pytest.mark.plain
@in_sealed_world()
async def test_an_erasure_that_cannot_be_finished_is_shown(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(world, *THREE, retain=True)
    assert world.broker.inspection.status()["erasures"] == {"pending": 0, "keys": 2, "trouble": ""}

    def fail(*_: Any) -> None:
        raise KeyFileError("personal_key_file = k: cannot be written: I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(world.keys, "erase", fail)
        with pytest.raises(Refused, match=r"not erased yet, try again: .*I/O error"):
            await change(world, "erase", filter=ALICE)
    shown = world.broker.inspection.status()["erasures"]
    assert (shown["pending"], shown["keys"]) == (1, 1)
    assert "I/O error" in shown["trouble"]
    late = await world.connect("late", filters=[("#", 1)])
    assert [packet.payload for packet in late.received] == [OTHER, PLAIN]
    await change(world, "erase", filter=BOB)
    assert world.broker.inspection.status()["erasures"] == {"pending": 0, "keys": 0, "trouble": ""}
    assert [event.erasure for event in events(world, Erased)] == [1, 2]
    await check_promises(world)


@pytest.mark.plain
@in_sealed_world()
async def test_a_checkpoint_repeats_many_keys_in_several_turns(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_keys, "_AT_ONCE", 300)
    topics = [f"home/person-{number}/heart" for number in range(60)]
    await publish(world, *((topic, SECRET) for topic in topics))
    pauses, pause = 0, world.broker.retention._yield_time

    async def counted(started: float) -> None:
        nonlocal pauses
        pauses += 1
        await pause(started)

    monkeypatch.setattr(world.broker.retention, "_yield_time", counted)
    writing = asyncio.ensure_future(world.broker.retention.checkpoint())
    await world.go(10)
    assert writing.done()
    repeated = events(world, KeysSnapshot)
    assert len(repeated) > 5
    assert sorted(topic for one in repeated for topic in one.topics) == sorted(topics)
    assert pauses >= len(repeated) - 1
    await check_promises(world)


# ----------------------------------------------------------------------------- the audit finds


def sends_what_was_erased(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContentSealing, "is_erased", lambda _sealing, _ref, _message: False)


def keeps_what_was_retained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(erasure, "clear_topics", lambda *_: None)


def uses_a_key_for_ever(patch: pytest.MonkeyPatch) -> None:
    add = ContentSealing._add_keys

    def added(sealing: ContentSealing, topics: list[str]) -> None:
        add(sealing, [topic for topic in topics if not sealing._state().of(topic)])

    patch.setattr(ContentSealing, "_add_keys", added)


def changes_keys_in_a_period(patch: pytest.MonkeyPatch) -> None:
    numbers_of = ContentSealing._numbers_of

    def changed(sealing: ContentSealing, topics: list[str]) -> list[int]:
        with pytest.MonkeyPatch.context() as later:
            later.setattr(sealing, "_state", TopicKeys)
            sealing._add_keys([topic for topic in topics if sealing.is_personal(topic)])
        return numbers_of(sealing, topics)

    patch.setattr(ContentSealing, "_numbers_of", changed)


def destroys_the_key_in_use(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(erasure.Scope, "numbers", lambda _scope, _topic, keys: [keys[-1].number])


MUTANTS = [
    (sends_what_was_erased, Rule.ERASURE),
    (keeps_what_was_retained, Rule.ERASURE),
    (uses_a_key_for_ever, Rule.EVENT),
    (changes_keys_in_a_period, Rule.EVENT),
    (destroys_the_key_in_use, Rule.EVENT),
]


async def eventful(world: SealedWorld) -> set[Rule]:
    """Publish, erase and deliver in three periods; return the rules that the broker violates."""
    reader = await world.connect("reader", filters=[("home/#", 1)])
    reader.drop()
    await world.connect("c", will=p.Will(BOB, b"last words", 1))
    start = await whole_period(world)
    await publish(world, (ALICE, SECRET), retain=True)
    await world.go(2 * PERIOD)
    await publish(world, (ALICE, b"third"))
    await change(world, "erase", filter="home/+/heart", before_ms=start + 60_000)
    await publish(world, (ALICE, b"fourth"))
    back = await world.connect("reader", present=True)
    await acknowledged(world, back)
    await world.connect("c", clean=True)  # takes over: the will is due
    await world.go(1)
    return {Rule(violation.rule) for violation in violations(world.disk.decoded())}


@in_periods()
async def test_a_broker_that_keeps_its_promises_passes(world: SealedWorld) -> None:
    assert await eventful(world) == set()


@pytest.mark.plain
@pytest.mark.parametrize(("mutant", "rule"), MUTANTS, ids=[one.__name__ for one, _ in MUTANTS])
@in_periods()
async def test_a_broker_that_does_not_is_detected(
    world: SealedWorld,
    monkeypatch: pytest.MonkeyPatch,
    *,
    mutant: Callable[[pytest.MonkeyPatch], None],
    rule: Rule,
) -> None:
    monkeypatch.setattr("eventstore.log.shared_keys.Keys.erase", lambda *_: None)  # as if slow
    mutant(monkeypatch)
    assert rule in await eventful(world)


def with_bridge() -> SealedWorld:
    world = SealedWorld()
    world.bridge = BridgeOptions(Mapping())
    return world


@pytest.mark.parametrize("restarts", [False, True])
def test_what_nats_does_not_have_yet_is_given_up(
    monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    nats = SimNatsServer(random.Random(1))
    heard: list[bytes] = []
    nats.subscribe(">", lambda got: heard.append(got.payload))

    async def open_link(_access: ConnectionOptions, **callbacks: Callable[..., None]) -> SimLink:
        return SimLink(nats, callbacks)

    monkeypatch.setattr(bridge_supervisor.BatchClient, "open", open_link)

    async def connect(world: SealedWorld) -> None:
        bridge = world.broker.bridge
        assert bridge is not None
        await bridge.start(ACCESS)
        await world.go(10)

    @functools.partial(in_world, with_bridge)()
    async def scenario(world: SealedWorld) -> None:
        await connect(world)
        await publish(world, (ALICE, SECRET), (BOB, OTHER))
        await world.go(5)
        assert heard == [SECRET, OTHER]
        nats.stop()
        await publish(world, (ALICE, SECRET), (ALICE, SECRET), (BOB, OTHER), (ALICE, SECRET))
        await publish(world, (ALICE, SECRET), ("news", PLAIN), qos=2)
        assert await ask(world, "erasures.receivers", filter=ALICE) == {"receivers": ["nats"]}
        await change(world, "erase", filter=ALICE)
        if restarts:
            nats.forget()
            await world.restart()
        nats.start()
        if restarts:
            await connect(world)
        await world.go(20)
        assert heard == [SECRET, OTHER, OTHER, PLAIN]
        given_up = events(world, ForwardLost)
        assert sum(each.messages for each in given_up) == 4
        assert {each.reason for each in given_up} == {"erased"}
        nats.forget()
        await check_promises(world)

    scenario()
