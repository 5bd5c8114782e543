"""Copies of a log with sealed contents, of its keys, or of both: what they have, and what not."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
from harness.plainaudit import violations

from eventstore.format.erasure_events import ErasureRequested, TopicsKeyed
from eventstore.format.name_entries import CLIENT, parts_of
from eventstore.format.records import Record, decode_record
from eventstore.log.key_file import KeyDamaged
from simulation.checking import acknowledged, check_promises
from simulation.inspection import change
from simulation.sealed_disk import without_threads
from simulation.test_erasure import (
    ALICE,
    OTHER,
    PLAIN,
    SECRET,
    THREE,
    SealedWorld,
    events,
    in_sealed_world,
    publish,
    restoring,
)

__all__ = ["without_threads"]


def closed(world: SealedWorld) -> list[Record]:
    """The records as somebody without keys reads them."""
    history = world.disk.stream.history
    return [decode_record(at, data) for at, data in sorted(history.items())]


def opened(world: SealedWorld) -> list[Record]:
    records = closed(world)
    for record in records:
        record.open(world.keys.key, world.keys.cipher)
    return records


@pytest.mark.parametrize("erased", [False, True])
@in_sealed_world()
async def test_an_auditor_without_keys_finds_what_one_with_keys_does(
    world: SealedWorld, *, erased: bool
) -> None:
    reader = await world.connect("reader", filters=[("#", 1)])
    reader.drop()
    await publish(world, *THREE, retain=True)
    if erased:
        await change(world, "erase", filter=ALICE)
    back = await world.connect("reader", present=True)
    assert await acknowledged(world, back) == [SECRET, OTHER, PLAIN][erased:]
    assert violations(closed(world)) == violations(opened(world)) == []
    for one, two in pairwise(closed(world)):
        assert two.previous == one.link
    contents = b"".join(bytes(record.payload) for record in closed(world))
    assert PLAIN in contents
    assert SECRET not in contents
    assert OTHER not in contents


@in_sealed_world()
async def test_a_log_and_its_keys_from_before_an_erasure_have_the_contents(
    world: SealedWorld,
) -> None:
    """That is why older copies of the keys are to be destroyed."""
    await publish(world, *THREE, retain=True)
    await world.go(1)
    restore, keys = restoring(world), world.path.read_bytes()
    await change(world, "erase", filter=ALICE)
    assert SECRET not in world.stored()
    world.path.write_bytes(keys)
    await restore()
    assert not events(world, ErasureRequested)
    late = await world.connect("late", filters=[("#", 1)])
    assert sorted(packet.payload for packet in late.received) == sorted([SECRET, OTHER, PLAIN])
    await check_promises(world)


@in_sealed_world()
async def test_a_log_from_before_an_erasure_and_keys_from_before_the_log_are_refused(
    world: SealedWorld,
) -> None:
    await world.go(1)
    keys = world.path.read_bytes()
    await publish(world, *THREE)
    await world.crash()
    world.path.write_bytes(keys[:128])
    with pytest.raises(KeyDamaged, match="2 of 2"):
        await world.start()
    world.path.write_bytes(keys)
    await world.start()


def stream_of(record: Record, plain: bytes) -> list[bytes]:
    """The pieces of the key stream under which a content was sealed, wherever it is."""
    return [
        bytes(a ^ b for a, b in zip(bytes(record.stored[begin:end]), plain, strict=True))
        for begin, end in record.sealed
        if end - begin == len(plain)
    ]


@in_sealed_world(personal_clients=("phone-*",))
async def test_two_images_of_one_disk_share_no_key_stream_and_no_token(world: SealedWorld) -> None:
    """Both were in use after the same moment, so that the same keys seal different contents."""
    await publish(world, ("home/first", b"first"))
    await world.go(1)
    restore = restoring(world)
    images: list[dict[int, bytes]] = []
    contents = b"alice-was-at-home", b"bob-was-elsewhere"
    names = "phone-alice", "phone-robert"
    for name, content in zip(names, contents, strict=True):
        client = await world.connect(name)
        client.drop()
        await publish(world, ("home/new", content))
        images.append(copy.copy(world.disk.stream.history))
        if name == names[0]:
            await restore()
    streams: list[bytes] = []
    entries: list[Any] = []
    for image, content in zip(images, contents, strict=True):
        for at, data in image.items():
            record = decode_record(at, data)
            streams += stream_of(record, content)
            entries += [
                parts_of(topic)
                for _, event in record.events()
                if isinstance(event, TopicsKeyed)
                for topic in event.topics
                if parts_of(topic) is not None
            ]
    assert len(streams) == len(set(streams)) == 2
    assert [entry.kind for entry in entries] == [CLIENT] * 2
    assert entries[0].token != entries[1].token
