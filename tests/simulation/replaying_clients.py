"""Clients that replay all logs of a node, lose their connections, and go on where they were.

``python tests/simulation/replaying_clients.py --seeds 200`` runs many worlds of several processes
with such clients.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from collections import Counter
from collections.abc import Iterator
from datetime import UTC

from harness import mqtt5_packets as p5

from eventstore.format.positions import Position, position
from eventstore.format.records import decode_record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import Message, MessageStore, StoredMessages
from eventstore.reading.position_text import parse_point
from eventstore.reading.publications import Publications, Releases, publications_in, with_content
from protocol.mqtt.replay_filters import REPLAY_STATE
from simulation.chaos import run_seed
from simulation.network import Client5
from simulation.partition_chaos import PartitionChaos
from simulation.partitions import name_in
from simulation.seeds import run_seeds

if TYPE_CHECKING:
    from simulation.devices import Device

_CATCHES_UP = 60
"""Seconds in which a client has everything at the end."""


def user(message: p5.Publish) -> dict[str, str]:
    """The user properties of a message, the first of each name."""
    pairs: list[Any] = [value for key, value in message.properties if key == p5.USER_PROPERTY]
    return dict(reversed(pairs))


def effects(world: Any) -> Iterator[Publications]:
    """Yield what took effect in a log, in order: from all records that it ever had."""
    turns, store = TurnAssembler(), MessageStore(1 << 62)
    for at, data in sorted(world.disk.stream.history.items()):
        for record in turns.take(decode_record(at, data))[1]:
            for item in publications_in(record):
                if isinstance(item, StoredMessages):
                    store.add(item)
                elif isinstance(item, Publications):
                    yield item
                else:
                    yield from released_messages(item, store)


def took_effect(world: Any) -> dict[Position, tuple[Position, bytes]]:
    """What took effect in a log, by position.

    With the position of its content, which may have been cut off.
    """
    payloads: dict[Position, tuple[Position, bytes]] = {}
    for effect in effects(world):
        refs = zip(effect.refs, effect.payloads, strict=True)
        rows = zip(effect.positions, effect.topics, refs, strict=True)
        payloads |= {at: ref for at, topic, ref in rows if not topic.startswith(b"$")}
    return payloads


def released_messages(releases: Releases, store: MessageStore) -> list[Publications]:
    messages: list[Message] = []
    for ref in releases.refs:
        message = store.get(ref)
        assert message is not None
        messages.append(message)
    return [*with_content(releases, messages)]


def place_of(text: str) -> tuple[str, Position]:
    """The short name of a log, and a position in it."""
    log, _, at = text.partition(":")
    point = parse_point(at, UTC)
    assert point is not None
    assert point.position is not None
    return log, point.position


class Gap(NamedTuple):
    """A part of a log that was cut off unread."""

    log: str
    first: Position
    last: Position


class Observer:
    """A client that replays everything; with each connection it goes on after its last message."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client: Client5 | None = None
        self.resume = "all"
        self.got: dict[str, dict[Position, bytes]] = {}
        """The messages by log and position, in the order in which they came."""
        self.gaps: list[Gap] = []
        self.floors: dict[str, Position] = {}
        """Where each log began when it asked for everything."""

    def connect(self, world: Any) -> None:
        """Connect anew."""
        self.take()
        if self.resume == "all":
            for number, other in enumerate(world.all):
                self.floors[f"p{number}"] = position(other.disk.stream.first, 0)
        self.client = Client5(world)
        expiry = ((p5.SESSION_EXPIRY, 0),)
        self.client.send(
            p5.connect(self.name, clean=True, properties=expiry),
            p5.subscribe(1, (REPLAY_STATE, 0), (f"$replay/{self.resume}/#", 0)),
        )

    def take(self) -> None:
        """Take what came."""
        if self.client is None:
            return
        messages, self.client.received = self.client.messages(), []
        for message in messages:
            if message.topic == REPLAY_STATE:
                self._add_gaps(json.loads(message.payload).get("gap", ""))
                continue
            properties = user(message)
            log, at = place_of(properties["foldmq-position"])
            places = self.got.setdefault(log, {})
            assert at not in places, f"{self.name} got {properties['foldmq-position']} twice"
            assert at > max(places, default=-1), f"{self.name}: {at} comes behind a later one"
            places[at] = message.payload
            self.resume = properties["foldmq-resume"]
            self._add_gaps(properties.get("foldmq-gap", ""))

    def _add_gaps(self, gaps: str) -> None:
        for gap in filter(None, gaps.split(",")):
            first, _, last = gap.partition("..")
            log, begins = place_of(first)
            self.gaps.append(Gap(log, begins, place_of(f"{log}:{last}")[1]))

    def check(
        self, log: str, first: Position, found: dict[Position, tuple[Position, bytes]]
    ) -> None:
        """Raise AssertionError where it does not have what took effect in a log.

        Content before ``first`` was cut off. That of a message at QoS 2 may have been when it was
        read.
        """
        got, floor = self.got.get(log, {}), self.floors[log]
        gaps = [gap for gap in self.gaps if gap.log == log]
        for at, (ref, payload) in found.items():
            if at >= floor and not any(gap.first <= at <= gap.last for gap in gaps):
                if ref < first and ref != at:
                    continue
                assert got.get(at) == payload, f"{self.name} lacks {log}:{at >> 20}.{at & 0xFFFFF}"
        for at, payload in got.items():
            stored = found.get(at)
            assert stored is not None, f"{self.name} got what {log} does not have"
            assert stored[1] == payload, f"{self.name} got what {log} does not have"


class Replaying(PartitionChaos):
    """A run with clients that replay all logs."""

    def __init__(self, seed: int, errors: list[str]) -> None:
        super().__init__(seed, errors)
        self.observers = [
            Observer(name_in(self.worlds, number, "obs")) for number in range(len(self.worlds))
        ]
        self.actions[self.observe] = 12.0
        if self.worlds[0].options.keep_bytes:
            # The content of a message at QoS 2 may be cut off before a replay reads its release.
            for device in self.devices:
                device.topics = [topic for topic in device.topics if not topic.endswith("2")]

    def observe(self, _device: Device) -> None:
        """Something happens to a client that replays."""
        observer = self.chance.choice(self.observers)
        world = self.worlds[self.observers.index(observer)]
        client = observer.client
        if client is None or not client.open:
            if world.has_entrance and world.up:
                self.note("a replay begins")
                observer.connect(world)
        elif client.transport.stalled:
            client.transport.unstall()
        elif self.chance.random() < 0.4:
            self.note("a replay is not read")
            client.transport.stall()
        elif self.chance.random() < 0.4:
            self.note("a replay loses its connection")
            client.drop()
        observer.take()

    async def _settle(self) -> None:
        await super()._settle()
        for _ in range(_CATCHES_UP):
            for observer, world in zip(self.observers, self.worlds, strict=True):
                client = observer.client
                if client is None or not client.open:
                    observer.connect(world)
                elif client.transport.stalled:
                    client.transport.unstall()
                observer.take()
            await self.worlds[0].go(1.0)
        self.look()

    async def _check(self) -> None:
        for number, world in enumerate(self.worlds):
            found, first = took_effect(world), position(world.disk.stream.first, 0)
            for observer in self.observers:
                observer.take()
                observer.check(f"p{number}", first, found)
        self.counts["replayed"] = sum(
            len(places) for observer in self.observers for places in observer.got.values()
        )
        for observer in self.observers:
            if observer.client is not None:
                observer.client.drop()
        await super()._check()


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and the last actions."""
    return run_seed(Replaying, seed)


if __name__ == "__main__":
    run_seeds(__doc__, run)
