"""Erasures in a cluster: its nodes share the keys, and whoever leads completes an erasure."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness import packets as p

from actors.inspection import erasure
from actors.inspection.inspector import Refused
from actors.maintenance.sealing_start import begin_sealing
from cluster.standby import Leadership
from eventstore.format.erasure_events import Erased, ErasureRequested
from eventstore.format.name_entries import CLIENT
from eventstore.log.key_file import KeyDamaged, KeyFileError, KeyReader
from eventstore.log.message_store import messages_of
from eventstore.log.shared_keys import Keys, open_keys
from simulation.inspection import change
from simulation.loop import simulate
from simulation.network import SimClient
from simulation.nodes import NodesWorld, SimNode
from simulation.processes import ProcessLoop
from simulation.sealed_disk import OpenDisk, without_threads
from simulation.test_personal_names import forms
from simulation.world import SimLog, runs

__all__ = ["without_threads"]

SECRET, OTHER = b"secret-of-alice", b"secret-of-bob"
ALICE, BOB = "home/alice/heart", "home/bob/heart"
PHONE = "phone-alice-7f3a"


class SealedNode(SimNode):
    def _new_process(self) -> None:
        super()._new_process()
        world = self.world
        assert isinstance(world, SealedNodes)
        self.log.key_reader = KeyReader(world.path, world.options.node)


class SealedNodes(NodesWorld):
    """Nodes with personal topics and clients; their keys are in a directory that they share."""

    def __init__(self, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name, "keys")
        self.opened: list[Keys] = []
        """What leaders opened: the files of those that were killed, too."""
        options |= {"personal_topics": ("home/+/#",), "personal_clients": ("phone-*",)}
        super().__init__(**options)
        self.disk = OpenDisk(self.server.streams[0], self.key)

    def key(self, number: int) -> bytes | None:
        """A key as a follower reads it."""
        return KeyReader(self.path, self.options.node).key(number)

    def make_nodes(self) -> list[SimNode]:
        return [SealedNode(self, f"n{number}") for number in range(3)]

    def led(self, node: SimNode, leadership: Leadership) -> None:
        super().led(node, leadership)
        node.log.keys = Keys(self.path, self.options.node, leadership.epoch, is_shared=True)
        self.opened.append(node.log.keys)

    def stored(self) -> bytes:
        """Everything that is stored, of the log and the projections, and the files of keys."""
        log = self.server.streams[0].history.values()
        keyed = [data for _, _, data in self.keyed.history]
        return b"\n".join([*log, *keyed, *(file.read_bytes() for file in self.files)])

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.parent.iterdir())

    def readable(self) -> set[bytes]:
        found = [
            messages.payloads for record in self.disk.decoded() for messages in messages_of(record)
        ]
        return {bytes(payload) for payloads in found for payload in payloads}

    def events(self, kind: type) -> list[Any]:
        return self.disk.events(kind)

    async def replaced(self, leader: SimNode | None) -> None:
        """Wait until another node serves."""
        while self.serving is leader or not self.up:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)
        await self.go(1)


def in_sealed_nodes(scenario: Callable[[SealedNodes], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        world = SealedNodes(**options)
        world.direct = True
        await world.start()
        await world.go(1)
        try:
            await scenario(world)
        finally:
            await world.stop()
            for keys in world.opened:
                keys.close()

    simulate(whole, ProcessLoop)


async def publish(world: SealedNodes, *messages: tuple[str, bytes], retain: bool = False) -> None:
    sender = await world.connect("sender", clean=True)
    for number, (topic, payload) in enumerate(messages, 1):
        sender.send(p.publish(topic, payload, 1, number, retain=retain))
    await world.go(0.5)
    sender.send(p.disconnect())
    await world.go(0.3)


async def received(client: SimClient, world: SealedNodes) -> list[bytes]:
    await world.go(1)
    return client.payloads()


@pytest.mark.parametrize("killed", [False, True])
@runs(in_sealed_nodes)
async def test_the_next_leader_has_the_keys(world: SealedNodes, *, killed: bool) -> None:
    leader = world.serving
    assert leader is not None
    reader = await world.connect("reader", filters=[("home/#", 1)])
    reader.drop()
    await publish(world, (ALICE, SECRET), (BOB, OTHER), retain=True)
    if killed:
        leader.kill()
    else:
        leader.move("")
    await world.replaced(leader)
    assert SECRET not in world.stored()
    back = await world.connect("reader", filters=[])
    assert await received(back, world) == [SECRET, OTHER]
    fresh = await world.connect("fresh", filters=[("home/#", 1)])
    assert sorted(await received(fresh, world)) == [SECRET, OTHER]
    await change(world, "erase", filter="home/alice/#")
    assert world.readable() >= {OTHER}
    assert SECRET not in world.readable()
    await publish(world, (ALICE, b"newer"))
    assert b"newer" in world.readable()


@pytest.mark.parametrize("fault", ["kill", "suspend", "cut_off", "move"])
@pytest.mark.parametrize("is_name", [False, True])
@pytest.mark.parametrize("step", ["before", "after"])
@runs(in_sealed_nodes)
async def test_an_erasure_goes_on_with_the_next_leader(
    world: SealedNodes, *, fault: str, step: str, monkeypatch: pytest.MonkeyPatch, is_name: bool
) -> None:
    """The leader ends before it has destroyed the keys, or before the log says so."""
    struck: list[SimNode] = []

    async def strike(work: Any, *arguments: Any) -> Any:
        world = worlds[0]
        leader = world.serving
        if struck or leader is None or work.__name__ != "erase":
            return work(*arguments)
        struck.append(leader)
        if step == "after":
            work(*arguments)
        if fault == "kill":
            leader.kill()
        elif fault == "suspend":
            leader.process.suspend()
        elif fault == "cut_off":
            leader.cut_off(20)
        else:
            leader.move("")
        await asyncio.sleep(0.001)
        return work(*arguments)

    worlds: list[SealedNodes] = []
    worlds.append(world)
    phone = await world.connect(PHONE)
    phone.drop()
    await publish(world, (ALICE, SECRET), (BOB, OTHER), retain=True)
    kept = world.events(ErasureRequested)
    assert not kept
    monkeypatch.setattr(erasure, "in_thread", strike)
    scope = {"kind": CLIENT, "name": PHONE} if is_name else {"filter": "home/alice/#"}
    asking = asyncio.ensure_future(change(world, "erase", **scope))
    while not struck:  # noqa: ASYNC110 - likewise
        await asyncio.sleep(0.01)
    leader = struck[0]
    await world.replaced(leader)
    asking.cancel()
    if fault == "suspend":
        await publish(world, ("home/carl/heart", b"meanwhile"))
        leader.process.resume()
    await world.go(25)
    (asked,) = world.events(ErasureRequested)
    (done,) = world.events(Erased)
    assert asked.erasure == done.erasure == 1
    assert all(world.key(number) is None for number in asked.keys)
    assert (SECRET in world.readable()) == is_name
    assert OTHER in world.readable()
    if fault == "suspend":
        assert b"meanwhile" in world.readable()
    if is_name:
        assert not any(form in world.stored() for form in forms(PHONE))
        assert [*world.broker.node.state.sessions.names()] == []


@runs(in_sealed_nodes)
async def test_a_replaced_leader_makes_no_keys_that_others_use(world: SealedNodes) -> None:
    first = world.serving
    assert first is not None
    old = first.log.keys
    assert isinstance(old, Keys)
    first.process.suspend()
    await world.replaced(first)
    await publish(world, (ALICE, SECRET))
    before = [file.read_bytes() for file in world.files[1:]]
    old.extend()
    assert [file.read_bytes() for file in world.files[1:]] == before
    assert SECRET in world.readable()
    first.process.resume()
    await world.go(5)


@runs(in_sealed_nodes)
async def test_a_node_that_was_away_has_nothing_of_an_erased_content(world: SealedNodes) -> None:
    leader = world.serving
    away = next(node for node in world.nodes if node is not leader)
    await publish(world, (ALICE, SECRET), (BOB, OTHER), retain=True)
    away.kill()
    await change(world, "erase", filter="home/alice/#")
    away.spawn()
    await world.go(3)
    assert leader is not None
    leader.move(away.name)
    await world.replaced(leader)
    assert world.serving is away
    fresh = await world.connect("fresh", filters=[("home/#", 1)])
    assert await received(fresh, world) == [OTHER]


@runs(in_sealed_nodes)
async def test_a_log_that_is_read_without_the_file_of_a_leader_is_damaged(
    world: SealedNodes,
) -> None:
    await publish(world, (ALICE, SECRET))
    (file,) = world.files
    hidden = file.rename(file.with_name("hidden"))
    log = SimLog(world.server, world.watermark, world.keyed, reads=True)
    log.key_reader = KeyReader(world.path, world.options.node)
    with pytest.raises((KeyFileError, KeyDamaged)):
        async for _ in log.read(1, world.disk.stream.last):
            pass
    hidden.rename(file)


@pytest.mark.parametrize("seed", range(6))
@runs(in_sealed_nodes)
async def test_what_is_not_erased_is_readable_through_all_takeovers(
    world: SealedNodes, *, seed: int
) -> None:
    chance = random.Random(seed)
    kept: dict[str, bytes] = {}
    erased: set[bytes] = set()
    for number in range(24):
        topic = f"home/person{chance.randrange(6)}/heart"
        payload = b"number %d" % number
        await publish(world, (topic, payload), retain=True)
        if payload in world.readable():
            kept[topic] = payload
        leader = world.serving
        assert leader is not None
        strike = chance.choice(["", "", "kill", "move", "suspend"])
        if chance.random() < 0.3:
            try:
                await change(world, "erase", filter=topic)
            except Refused:
                pass
            else:
                erased.add(payload)
                kept.pop(topic, None)
        if strike == "kill":
            leader.kill()
            await world.replaced(leader)
            leader.spawn()
        elif strike == "move":
            leader.move("")
            await world.replaced(leader)
        elif strike == "suspend":
            leader.process.suspend()
            await world.replaced(leader)
            leader.process.resume()
        await world.go(2)
    assert not world.readable() & erased
    assert world.readable() >= {*kept.values()}
    fresh = await world.connect("fresh", filters=[("home/#", 1)])
    assert {*kept.values()} == {*await received(fresh, world)}


@runs(in_sealed_nodes)
async def test_a_single_broker_goes_on_with_the_log_of_a_cluster(world: SealedNodes) -> None:
    await publish(world, (ALICE, SECRET))
    assert world.serving is not None
    node = world.serving.broker.node
    shared, number = node.log.keys, node.state.keys.number_of(ALICE)
    for continues in (True, False):
        node.log.keys = open_keys(world.path, world.options.node, None)
        try:
            await begin_sealing(node, continues=continues)
            assert node.sealing is not None
            assert node.log.keys.key(number) is not None
        finally:
            node.log.keys.close()
    (file,) = world.files
    file.rename(file.with_suffix(".away"))
    node.log.keys = open_keys(world.path, world.options.node, None)
    with pytest.raises(KeyDamaged, match=r"keys\.e\d+: is missing: restore it"):
        await begin_sealing(node, continues=True)
    node.log.keys = shared
