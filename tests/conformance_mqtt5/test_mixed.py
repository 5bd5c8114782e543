"""Clients of levels 4 and 5 with all kinds of subscriptions, compared with a model."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.mqtt5_packets import Properties
from harness.mqtt5_rawclient import Clients5
from harness.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from harness.rawclient import RawClient
from harness.waiting import until

NO_LOCAL, AS_PUBLISHED = 0x04, 0x08
NAMES = ("a", "a/b", "a/c", "d")
FILTERS = {
    "a": ("a",),
    "a/#": ("a", "a/b", "a/c"),
    "a/+": ("a/b", "a/c"),
    "+": ("a", "d"),
    "a/b": ("a/b",),
    "#": NAMES,
}
Received: TypeAlias = (
    "tuple[str, bytes, int, frozenset[bool], Counter[int], Counter[int], Properties]"
)
"""Topic, payload, QoS, what RETAIN may be, the identifiers that must and that may be there, other
properties."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message and its publisher."""

    peer: int
    name: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


@dataclass(slots=True)
class Peer:
    """A client that publishes and subscribes, and answers all that comes."""

    client: RawClient
    number: int
    is_new: bool
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Options and identifier by filter."""
    waiting: set[int] = field(default_factory=set)
    """Packet identifiers of publications that are not acknowledged yet."""
    received: list[object] = field(default_factory=list)

    def answer(self, kind: int, packet_id: int) -> None:
        self.client.send(p.acknowledge(kind, packet_id))

    def take_all(self) -> None:
        """Receives what comes until nothing does, and does what a client has to."""
        with contextlib.suppress(TimeoutError):
            while True:
                self._take(self.client.receive(0.02))

    def _take(self, found: object) -> None:
        if isinstance(found, packets.Publish | p.Publish):
            self.received.append(found)
            if found.packet_id is not None:
                self.answer(PUBACK if found.qos == 1 else PUBREC, found.packet_id)
            return
        kind, packet_id = _kind(found)
        if kind == PUBREC:
            self.answer(PUBREL, packet_id)
        elif kind == PUBREL:
            self.answer(PUBCOMP, packet_id)
        else:
            assert kind in {PUBACK, PUBCOMP}, f"{found}"
            self.waiting.remove(packet_id)


def _kind(found: object) -> tuple[int, int]:
    if isinstance(found, p.Answer):
        assert not found.code, f"{found}"
        return found.kind, found.packet_id
    kinds = {packets.Puback: PUBACK, packets.Pubrec: PUBREC, packets.Pubrel: PUBREL,
             packets.Pubcomp: PUBCOMP}  # fmt: skip
    return kinds[type(found)], found.packet_id  # type: ignore[index,attr-defined]


def expected(peer: Peer, sent: Sent) -> Received | None:
    """What a peer gets of a message."""
    subscribed = [
        (options, identifier)
        for pattern, (options, identifier) in peer.subscriptions.items()
        if sent.name in FILTERS[pattern]
    ]
    own = sent.peer == peer.number
    matching = [one for one in subscribed if not (one[0] & NO_LOCAL and own)]
    if not matching:
        return None
    qos = min(sent.qos, max(options & 3 for options, _ in matching))
    # Of a message that waited foldmq no longer knows that the client published it itself.
    retain = {sent.retain and bool(options & AS_PUBLISHED) for options, _ in subscribed}
    identifiers = Counter(identifier for _, identifier in matching if identifier)
    allowed = Counter(identifier for _, identifier in subscribed if identifier)
    properties = tuple(one for one in sent.properties if one[0] != p.TOPIC_ALIAS)
    if not peer.is_new:
        identifiers, allowed, properties = Counter(), Counter(), ()
    return sent.name, sent.payload, qos, frozenset(retain), identifiers, allowed, properties


def _properties(chance: random.Random) -> Properties:
    kinds: list[Properties] = [
        (),
        (),
        ((p.CONTENT_TYPE, "text/plain"),),
        ((p.USER_PROPERTY, ("k", str(chance.random()))), (p.USER_PROPERTY, ("k", "2"))),
        ((p.MESSAGE_EXPIRY, 0xFFFFFFFF), (p.CORRELATION_DATA, b"\1")),
    ]
    return chance.choice(kinds)


def _burst(chance: random.Random, peer: Peer, root: str, aliases: dict[str, int]) -> list[Sent]:
    """Has a peer publish some messages in one piece."""
    data, made = [], []
    for _ in range(chance.randint(1, 12)):
        qos, retain = chance.choice((0, 0, 1, 1, 2)), chance.random() < 0.2
        name, properties = chance.choice(NAMES), _properties(chance) if peer.is_new else ()
        payload = b"%d/%d" % (peer.number, peer.client.next_id())
        number = peer.client.next_id() if qos else None
        if number is not None:
            peer.waiting.add(number)
        made.append(Sent(peer.number, name, payload, qos, retain, properties))
        if not peer.is_new:
            data.append(packets.publish(f"{root}/{name}", payload, qos, number, retain=retain))
            continue
        topic = f"{root}/{name}"
        if chance.random() < 0.4:
            known = name in aliases
            alias = aliases.setdefault(name, len(aliases) + 1)
            properties = (*properties, (p.TOPIC_ALIAS, alias))
            topic = "" if known else topic
        data.append(p.publish(topic, payload, qos, number, retain=retain, properties=properties))
    peer.client.send(*data)
    return made


def _check(peer: Peer, wanted: list[Received], root: str, qos_of: dict[bytes, int]) -> None:
    """Compare what came of each publisher, topic and published QoS, in order."""
    came: dict[bytes, object] = {one.payload: one for one in peer.received}  # type: ignore[attr-defined]
    assert len(came) == len(peer.received), "something came twice"
    assert sorted(came) == sorted(one[1] for one in wanted)
    order: dict[tuple[bytes, str, int], list[int]] = defaultdict(list)
    for one in peer.received:
        publisher, _, number = one.payload.partition(b"/")  # type: ignore[attr-defined]
        key = publisher, one.topic, qos_of[one.payload]  # type: ignore[attr-defined]
        order[key].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in order.values())
    for name, payload, qos, retain, identifiers, allowed, properties in wanted:
        found = came[payload]
        assert isinstance(found, packets.Publish | p.Publish)
        assert (found.topic, found.qos, found.dup) == (f"{root}/{name}", qos, False)
        assert found.retain in retain, f"{found}"
        if isinstance(found, p.Publish):
            assert identifiers <= found.identifier_counts <= allowed, f"{found}"
            rest = [one for one in found.properties if one[0] != p.SUBSCRIPTION_IDENTIFIER]
            assert sorted(map(_shown, rest)) == sorted(map(_shown, properties))


def _shown(one: tuple[int, p.Value]) -> str:
    return "expiry" if one[0] == p.MESSAGE_EXPIRY else repr(one)


@pytest.mark.mqtt5(
    "MQTT-3.3.4-2",
    "MQTT-3.3.4-3",
    "MQTT-3.3.4-4",
    "MQTT-3.8.3-3",
    "MQTT-3.3.1-12",
    "MQTT-3.3.1-13",
    "MQTT-4.6.0-5",
    "MQTT-4.6.0-6",
    "MQTT-3.3.2-17",
    "MQTT-4.5.0-1",
)
@pytest.mark.parametrize("seed", range(4))
def test_clients_of_all_versions_get_their_messages(
    clients: Clients5, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    peers: list[Peer] = []
    for number in range(6):
        is_new = number % 3 != 2
        properties = ((p.RECEIVE_MAXIMUM, chance.choice((1, 3, 65_535))),)
        client = clients.five(properties=properties) if is_new else clients.connect()
        peers.append(Peer(client, number, is_new))
        for index, pattern in enumerate(chance.sample([*FILTERS], chance.randint(1, 3))):
            options = chance.randrange(3)
            identifier = chance.choice((0, index + 1, 100)) if is_new else 0
            if is_new:
                options |= chance.choice((0, NO_LOCAL)) | chance.choice((0, AS_PUBLISHED)) | 0x20
            subscription = ((p.SUBSCRIPTION_IDENTIFIER, identifier),) if identifier else ()
            more = {"properties": subscription} if is_new else {}
            client.subscribe((f"{topic}/{pattern}", options), **more)  # type: ignore[arg-type]
            peers[-1].subscriptions[pattern] = options, identifier
    sent: list[Sent] = []
    aliases: dict[int, dict[str, int]] = defaultdict(dict)
    for _ in range(12):
        peer = chance.choice(peers)
        sent += _burst(chance, peer, topic, aliases[peer.number])
    due = [[found for one in sent if (found := expected(peer, one)) is not None] for peer in peers]

    def is_done() -> bool:
        for peer in peers:
            peer.take_all()
        return not any(
            peer.waiting or len(peer.received) < len(wanted)
            for peer, wanted in zip(peers, due, strict=True)
        )

    with contextlib.suppress(AssertionError):  # what is missing is found below
        until(is_done, "all that is due", 15.0)
    is_done()
    qos_of = {one.payload: one.qos for one in sent}
    for peer, wanted in zip(peers, due, strict=True):
        assert not peer.waiting
        _check(peer, wanted, topic, qos_of)
    for name in NAMES:
        clients.connect().publish(f"{topic}/{name}", retain=True)
