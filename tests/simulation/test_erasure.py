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
from harness import packets as p
from harness.packets import Publish

from actors.bridge import bridge_supervisor
from actors.inspection.inspector import Refused
from actors.limits.bridge_options import BridgeOptions
from actors.maintenance import retention
from eventstore.format.destination_events import ForwardLost
from eventstore.format.erasure_events import Erased, ErasureRequested, TopicsKeyed
from eventstore.format.events import InboundReplaced, MessageDropped
from eventstore.format.records import header_of
from eventstore.log.key_file import KeyDamaged, KeyFile
from eventstore.nats.connection import ConnectionOptions
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

    keys: KeyFile

    def __init__(self, **options: Any) -> None:
        super().__init__(personal_topics=("home/+/#",), **options)
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name, "keys")
        self.disk = OpenDisk(self.server.streams[0], lambda number: self.keys.key(number))

    def open_log(self) -> SimLog:
        log = super().open_log()
        if hasattr(self, "keys"):
            self.keys.close()
        self.keys = log.keys = KeyFile(self.path, "sim")
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
    return [event for event in world.disk.events() if isinstance(event, kind)]


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
    assert [one.payload for one in back.received] == [SECRET, OTHER, PLAIN]


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
    assert [one.payload for one in late.received] == [OTHER, PLAIN]
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
    assert [one.payload for one in late.received] == [b"again"]
    assert b"again" not in world.stored()
    await change(world, "erase", filter="#")
    assert [one.erasure for one in events(world, Erased)] == [1, 2]
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
    sent = [one for one in reader.take() if isinstance(one, Publish)]
    assert [one.payload for one in sent] == [SECRET, OTHER]
    await change(world, "erase", filter=ALICE)
    reader.drop()
    await world.go(1)
    await world.restart()
    back = await world.connect("reader", present=True)
    taken = back.take()
    again = [one for one in taken if isinstance(one, Publish)]
    assert [one.payload for one in again] == [OTHER]
    pubrels = [one for one in taken if not isinstance(one, Publish)]
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
    assert [one.payload for one in reader.take() if isinstance(one, Publish)] == [OTHER]
    assert len(events(world, InboundReplaced)) == 1
    late = await world.connect("late", filters=[("#", 1)])
    assert [one.payload for one in late.received] == [OTHER] * retain
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
    assert [one.reason for one in events(world, MessageDropped)] == ["erased"]
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
    assert [one.payload for one in late.received] == [OTHER]
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
    assert [one.payload for one in late.received] == [OTHER, PLAIN]


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
    assert [one.payload for one in late.received] == [OTHER]
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
    assert [one.payload for one in late.received] == [OTHER]
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
    other = KeyFile(world.path, "sim")
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
    assert [one.payload for one in late.received] == [SECRET, OTHER, PLAIN]


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
    assert [one.payload for one in late.take() if isinstance(one, Publish)] == [
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
        reader.send(*(p.puback(one.packet_id) for one in reader.take()))
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
