"""Clients that keep the rules of MQTT and remember what they were promised, and a checker.

A ``Device`` is a client identifier with the memory that the standard asks of a client: what it
published and was not acknowledged, what it received at QoS 2 and was not released. It survives
the broker's crashes; its connections (``DeviceConnection``) do not.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from harness import packets as p

from simulation.world import SimClient, World


@dataclass
class Sent:
    """One publication and what became of it."""

    payload: bytes
    topic: str
    qos: int
    retain: bool
    released: bool = False
    """PUBREC came."""
    acked: bool = False
    """PUBACK or PUBCOMP came."""
    given_up: bool = False
    """Forgotten with a clean session."""


@dataclass
class ArmedWill:
    """A will that was left with a CONNECT."""

    payload: bytes
    qos: int
    accepted: bool = False
    cancelled: bool = False
    """DISCONNECT was sent."""
    ended: bool = False
    """The connection is no more."""


@dataclass
class Device:
    """A client identifier and its memory."""

    name: str
    clean: bool
    topics: list[str]
    filters: list[tuple[str, int]]
    with_will: bool
    sent: list[Sent] = field(default_factory=list)
    unfinished: dict[int, Sent] = field(default_factory=dict)
    """By packet identifier, in the order of publication."""
    wills: list[ArmedWill] = field(default_factory=list)
    received: list[tuple[str, bytes, int]] = field(default_factory=list)
    """Topic, payload and QoS of every message taken: QoS 2 once for each packet identifier.

    Without those that came as retained, as often as the device subscribed."""
    held: dict[int, bytes] = field(default_factory=dict)
    """QoS 2 messages received and not released by the server."""
    identifiers: dict[int, bytes] = field(default_factory=dict)
    """Which payload came under which packet identifier in this session."""
    connection: DeviceConnection | None = None
    subscribed: bool = False
    next_pid: int = 0
    number: int = 0


class DeviceConnection(SimClient):
    """A device's network connection."""

    def __init__(self, world: World, device: Device, chance: random.Random, lazy: float) -> None:
        self.device = device
        self.chance = chance
        self.lazy = lazy
        """Probability with which an acknowledgement is put off."""
        self.owed: list[bytes] = []
        """Acknowledgements that were put off, in order."""
        self.accepted = False
        self.will: ArmedWill | None = None
        super().__init__(world)
        will = None
        if device.with_will:
            payload = f"will of {device.name} {len(device.wills)}".encode()
            self.will = ArmedWill(payload, 1 + len(device.wills) % 2)
            device.wills.append(self.will)
            will = p.Will("w", payload, self.will.qos)
        self.send(p.connect(device.name, clean=device.clean, will=will))

    def on_packet(self, packet: p.Packet) -> None:
        device = self.device
        if isinstance(packet, p.Connack):
            self._accepted(packet)
        elif isinstance(packet, p.Suback):
            device.subscribed = True
        elif isinstance(packet, p.Publish):
            self._publish(packet)
        elif isinstance(packet, (p.Puback, p.Pubcomp)):
            sent = device.unfinished.pop(packet.packet_id, None)
            if sent is not None:
                sent.acked = True
        elif isinstance(packet, p.Pubrec):
            sent = device.unfinished.get(packet.packet_id)
            if sent is not None:
                sent.released = True
            self.answer(p.pubrel(packet.packet_id))
        elif isinstance(packet, p.Pubrel):
            device.held.pop(packet.packet_id, None)
            self.answer(p.pubcomp(packet.packet_id))

    def _accepted(self, packet: p.Connack) -> None:
        device = self.device
        assert packet.code == 0
        assert not self.accepted
        self.accepted = True
        if self.will is not None:
            self.will.accepted = True
        if device.subscribed and not device.clean:
            assert packet.session_present, "an acknowledged session is gone"
        if not packet.session_present:
            device.held.clear()
            device.identifiers.clear()
        if device.clean:
            for sent in device.unfinished.values():
                sent.given_up = True
            device.unfinished.clear()
        again = list(device.unfinished.items())
        packets = [p.pubrel(pid) for pid, sent in again if sent.released]
        packets += [
            p.publish(sent.topic, sent.payload, sent.qos, pid, dup=True, retain=sent.retain)
            for pid, sent in again
            if not sent.released
        ]
        if device.filters:
            packets.append(p.subscribe(1, *device.filters))
        self.send(*packets)

    def _publish(self, packet: p.Publish) -> None:
        device = self.device
        pid = packet.packet_id
        if pid is None:
            self._take(packet)
            return
        known = device.identifiers.setdefault(pid, packet.payload)
        assert known == packet.payload, f"packet identifier {pid}: {known!r}, now {packet!r}"
        if packet.qos == 1:
            self._take(packet)
            self.answer(p.puback(pid))
            return
        if pid not in device.held:
            device.held[pid] = packet.payload
            self._take(packet)
        self.answer(p.pubrec(pid))

    def _take(self, packet: p.Publish) -> None:
        if not packet.retain:
            self.device.received.append((packet.topic, packet.payload, packet.qos))

    def answer(self, packet: bytes) -> None:
        """Acknowledge, now or later, in order."""
        self.owed.append(packet)
        if self.chance.random() >= self.lazy:
            self.pay()

    def pay(self) -> None:
        """Send the acknowledgements that were put off."""
        owed, self.owed = self.owed, []
        if owed:
            self.send(*owed)

    def publish(self) -> None:
        """Publish one to three messages, in one piece."""
        device, chance = self.device, self.chance
        if not self.accepted:
            return
        packets = []
        for _ in range(chance.randint(1, 3)):
            device.number += 1
            topic = chance.choice(device.topics)
            # Each topic has its QoS, so that its order is defined from end to end.
            qos, retain = int(topic[-1]), topic.startswith("r/")
            sent = Sent(f"{device.name}-{device.number}".encode(), topic, qos, retain)
            device.sent.append(sent)
            pid = None
            if qos:
                device.next_pid = pid = device.next_pid % 65_535 + 1
                device.unfinished[pid] = sent
            packets.append(p.publish(topic, sent.payload, qos, pid, retain=retain))
        self.send(*packets)

    def leave(self) -> None:
        """End in good order."""
        if self.accepted:
            if self.will is not None:
                self.will.cancelled = True
            self.send(p.disconnect())

    def closed(self) -> None:
        super().closed()
        if self.will is not None:
            self.will.ended = True
        if self.device.connection is self:
            self.device.connection = None


def check(devices: list[Device]) -> None:
    """Compare what receivers got with what publishers were promised."""
    for receiver in devices:
        if receiver.filters and not receiver.clean:
            for publisher in devices:
                _check_deliveries(receiver, publisher)
            _check_wills(receiver, devices)


def _granted(receiver: Device, topic: str) -> int | None:
    """The QoS at which a receiver gets a topic; filters here are topics, ``#`` or ``x/#``."""
    found = [
        qos
        for topic_filter, qos in receiver.filters
        if topic_filter in (topic, "#") or topic_filter == topic.partition("/")[0] + "/#"
    ]
    return max(found, default=None)


def _check_deliveries(receiver: Device, publisher: Device) -> None:
    by_topic: dict[str, list[bytes]] = defaultdict(list)
    for topic, payload, _ in receiver.received:
        if payload.startswith(publisher.name.encode() + b"-"):
            by_topic[topic].append(payload)
    for topic in publisher.topics:
        granted = _granted(receiver, topic)
        sent = [one for one in publisher.sent if one.topic == topic]
        got = by_topic[topic]
        where = f"{publisher.name} -> {receiver.name}, {topic}"
        if granted is None:
            assert not got, f"{where}: not subscribed"
            continue
        assert set(got) <= {one.payload for one in sent}, where
        qos = min(granted, int(topic[-1]))
        first = list(dict.fromkeys(got))
        order = [one.payload for one in sent if one.payload in set(got)]
        assert first == order, f"{where}: order {first}"
        if qos:
            missing = [one.payload for one in sent if one.acked and one.payload not in set(got)]
            assert not missing, f"{where}: acknowledged and lost: {missing}"
        if qos == 2:
            assert len(got) == len(first), f"{where}: QoS 2 twice: {got}"


def _check_wills(receiver: Device, devices: list[Device]) -> None:
    granted = _granted(receiver, "w")
    got = [payload for topic, payload, _ in receiver.received if topic == "w"]
    for device in devices:
        for will in device.wills:
            count = got.count(will.payload)
            where = f"{will} at {receiver.name}: {count} times"
            if granted is not None and will.accepted and will.ended and not will.cancelled:
                assert count >= 1, where
            if granted == 2 and will.qos == 2:
                assert count <= 1, where


def check_retained(devices: list[Device], kept: dict[str, bytes]) -> None:
    """The retained message is the last acknowledged one of its topic, or a later one."""
    for device in devices:
        for topic in device.topics:
            if topic.startswith("r/"):
                sent = [one for one in device.sent if one.topic == topic]
                acked = [at for at, one in enumerate(sent) if one.acked]
                if acked:
                    allowed = {one.payload for one in sent[acked[-1] :]}
                    assert kept.get(topic) in allowed, f"{topic}: {kept.get(topic)!r}"
