"""Clients that keep the rules of MQTT and remember the promises made to them.

A ``Device`` is a client identifier with the memory that the standard requires of a client: messages
that it published and that were not acknowledged, and QoS 2 messages that it received and that were
not released. It survives the broker's crashes; its connections (``DeviceConnection``) do not.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from harness import packets as p

from simulation.delivery_ledger import Account, Arrival, Message, Period
from simulation.network import SimClient
from simulation.world import World

MAX_UNFINISHED = 40
_LINGER = 5.0
"""Seconds after which a leader closes the connection of a client that has sent DISCONNECT, even if
its log is stuck."""
_OVERTAKES = 20.0
"""Seconds after which no connection that was passed on reaches the broker any more."""
_SLACK = 8.0
"""Seconds by which a session may expire too early, as its client sees it: a connection may be gone
for the broker while its client does not know yet, and a record is up to a second older than its
last event."""


@dataclass
class DeviceBehaviour:
    """How the devices of a run behave: probabilities."""

    lazy: float = 0.0
    """An acknowledgement is put off."""
    cut: float = 0.0
    """What is sent comes in two pieces."""
    clear: float = 0.2
    """A retained publication clears."""


@dataclass
class Device:
    """A client identifier and its memory."""

    name: str
    account: Account
    chance: random.Random
    habits: DeviceBehaviour
    clean: float
    """Probability with which it connects with a clean session."""
    topics: list[str]
    filters: list[tuple[str, int]]
    """What it subscribes to whenever its session is new."""
    pool: list[str]
    """What else it may subscribe to."""
    will: str | None
    expiry: float
    window: int
    latency: float
    unfinished: dict[int, Message] = field(default_factory=dict)
    """By packet identifier, in the order of publication."""
    held: set[int] = field(default_factory=set)
    """Packet identifiers of QoS 2 messages received and not released by the server."""
    identifiers: dict[int, bytes] = field(default_factory=dict)
    """Which payload came under which packet identifier in this session."""
    open: set[int] = field(default_factory=set)
    """Packet identifiers of what came and was not acknowledged."""
    done: set[int] = field(default_factory=set)
    """Packet identifiers of what came and was acknowledged."""
    connection: DeviceConnection | None = None
    sure: bool = False
    """The broker must have the session."""
    maybe: bool = False
    """The broker may have the session."""
    unsure_until: float = 0.0
    """Until when a connection that was never accepted may reach the broker."""
    clean_until: float = 0.0
    """Until when such a connection with a clean session may end the session of a later one."""
    stale: bool = False
    """What the device knows belongs to a session that it has asked to end."""
    cleans: int = 0
    """Number of its CONNECTs with a clean session."""
    memory: int = 0
    """How often it forgot everything."""
    left: float = 0.0
    """When the last connection that was accepted ended, in seconds."""
    next_pid: int = 0
    number: int = 0
    wills: int = 0
    connects: int = 0
    """How often it connected: it speaks MQTT 3.1.1 and MQTT 5 in turns."""
    accepted: int = 0
    """The last of its connections, counted from 1, that was accepted."""

    def connect(self, world: World) -> None:
        """Open a connection; if there is one, it is taken over.

        But CONNECT packets must not overtake each other.
        """
        if self.connection is not None and self.connection.sending:
            self.connection.drop()
        opened = DeviceConnection(world, self, clean=self.chance.random() < self.clean)
        self.connection = opened if opened.open else None

    def forget(self) -> None:
        """Start with a new session."""
        self.memory += 1
        self.unfinished.clear()
        self.held.clear()
        self.identifiers.clear()
        self.open.clear()
        self.done.clear()

    def pid(self) -> int:
        """Return the next packet identifier for what is sent."""
        self.next_pid += 1
        assert self.next_pid < 65_536
        return self.next_pid


class DeviceConnection(SimClient):
    """A device's network connection."""

    def __init__(self, world: World, device: Device, *, clean: bool) -> None:
        self.device = device
        self.account = device.account
        self.clean = clean
        self.lazy = device.habits.lazy
        self.owed: list[bytes] = []
        """Acknowledgements that were put off, in order."""
        self.accepted = self.leaving = False
        self.alone = True
        """No other connection of the device came since DISCONNECT was sent, or will."""
        self.requests: dict[int, tuple[str, list[Period]]] = {}
        self.closings = world.closings
        self.left_at = 0.0
        before = device.connection
        device.connects += 1
        self.number = device.connects
        if before is not None:
            before.alone = False
            before.may_overtake()
            self.alone = asyncio.get_running_loop().time() >= device.unsure_until
        self.will = self._will()
        if clean:
            device.account.session_ending(device.name)
            device.sure, device.stale = False, True
            device.cleans += 1
        else:
            device.maybe = True
        super().__init__(world, device.latency, mqtt5=device.connects % 2 == 0)
        self.cleans = device.cleans
        self.transmit(p.connect(device.name, clean=clean, will=self._will_packet()))

    def _will(self) -> Message | None:
        device = self.device
        if device.will is None:
            return None
        device.wills += 1
        payload = f"{device.name}~{device.wills}".encode()
        topic, qos = device.will, device.wills % 3
        retain = topic.startswith("r")
        now = self.account.now()
        return Message(device.name, payload, topic, qos, retain, device.wills, sent=now, will=True)

    def _will_packet(self) -> p.Will | None:
        if self.will is None:
            return None
        self.account.sent(self.will)
        return p.Will(self.will.topic, self.will.payload, self.will.qos, self.will.retain)

    @property
    def current(self) -> bool:
        """True if this is the device's latest connection."""
        return self.device.connection is self

    def transmit(self, *packets: bytes) -> None:
        """Send packets, in one or two pieces."""
        data = b"".join(packets)
        chance = self.device.chance
        if len(data) > 1 and chance.random() < self.device.habits.cut:
            self.send_cut(data, chance.randrange(1, len(data)))
        else:
            self.send_cut(data)

    # What the broker sends.

    def on_packet(self, packet: p.Packet) -> None:
        self.received.clear()
        device = self.device
        if isinstance(packet, p.Connack):
            self._connack(packet)
            return
        assert self.accepted, f"{packet} before CONNACK"
        if self.number < device.accepted or self.cleans != device.cleans:
            return  # The application has turned to a new connection, for good.
        if isinstance(packet, p.Publish):
            self._publish(packet)
        elif isinstance(packet, p.Puback | p.Pubcomp):
            message = device.unfinished.pop(packet.packet_id, None)
            if message is not None:
                assert message.qos == (1 if isinstance(packet, p.Puback) else 2)
                message.acked = self.account.now()
        elif isinstance(packet, p.Pubrec):
            message = device.unfinished.get(packet.packet_id)
            if message is not None:
                message.released = True
            self.answer(p.pubrel(packet.packet_id))
        elif isinstance(packet, p.Pubrel):
            device.held.discard(packet.packet_id)
            device.open.discard(packet.packet_id)
            self.answer(p.pubcomp(packet.packet_id))
        elif isinstance(packet, p.Suback):
            _, periods = self.requests.pop(packet.packet_id)
            assert packet.codes == tuple(period.qos for period in periods)
            self.account.subscribed(periods)
        elif isinstance(packet, p.Unsuback):
            _, periods = self.requests.pop(packet.packet_id)
            self.account.unsubscribed(periods)

    def _connack(self, packet: p.Connack) -> None:
        device, account = self.device, self.account
        assert not self.accepted
        if packet.code:
            assert packet.code == 3, packet
            assert not packet.session_present
            if self.will is not None:
                self.will.forbidden = True
            return
        self.accepted = True
        before, device.accepted = device.accepted, max(device.accepted, self.number)
        away = self.world.steady() - device.left
        expired = bool(device.expiry) and away >= device.expiry - _SLACK
        if before > self.number:
            return
        superseded = self.cleans != device.cleans  # a later CONNECT had a clean session
        unsure = asyncio.get_running_loop().time() < device.unsure_until
        if unsure and not self.clean:
            device.stale = True
        elif self.clean:
            assert not packet.session_present, "a clean session is present"
            device.maybe = not self.current
        elif packet.session_present:
            assert device.maybe, "a session is present that cannot be"
        else:
            assert not device.sure or expired, f"{device.name}: an acknowledged session is gone"
        ended = asyncio.get_running_loop().time() < device.clean_until  # perhaps, or soon
        device.sure = not self.clean and not superseded and not ended
        device.maybe = device.maybe or not self.clean
        if not packet.session_present:
            account.session_gone(device.name)
            device.forget()
        elif device.stale or expired:
            # It may be a new one, created by a CONNECT whose CONNACK was lost.
            account.session_ending(device.name)
            device.forget()
        device.stale = self.clean or superseded
        if not self.current:
            return
        again = list(device.unfinished.items())
        packets = [p.pubrel(pid) for pid, sent in again if sent.released]
        for pid, sent in again:
            if not sent.released:
                sent.transmissions += 1
                packets.append(
                    p.publish(sent.topic, sent.payload, sent.qos, pid, dup=True, retain=sent.retain)
                )
        receiver = account.receivers[device.name]
        missing = [pair for pair in device.filters if not receiver.holds(pair[0])]
        if missing:
            packets.append(self._subscribe(missing))
        if packets:
            self.transmit(*packets)

    def _publish(self, packet: p.Publish) -> None:
        device, pid = self.device, packet.packet_id
        taken = True
        if pid is not None:
            known = device.identifiers.setdefault(pid, packet.payload)
            assert known == packet.payload, f"packet identifier {pid}: {known!r}, now {packet!r}"
            taken = packet.qos == 1 or pid not in device.held
            if pid not in device.done:
                device.open.add(pid)
            filters = {period.filter for period in self.account.receivers[device.name].periods}
            assert len(device.open) <= device.window * len(filters), "more than the window"
        self.account.receivers[device.name].arrivals.append(
            Arrival(
                self.account.now(), packet.topic, packet.payload, packet.qos, pid,
                packet.dup, packet.retain, device.memory if taken else None,
            )
        )  # fmt: skip
        if pid is None:
            return
        if packet.qos == 1:
            self.answer(p.puback(pid))
        else:
            device.held.add(pid)
            self.answer(p.pubrec(pid))

    def answer(self, packet: bytes) -> None:
        """Acknowledge, now or later, in order."""
        self.owed.append(packet)
        if self.device.chance.random() >= self.lazy:
            self.pay()

    def pay(self) -> None:
        """Send the acknowledgements that were put off."""
        owed, self.owed = self.owed, []
        if owed:
            acked = {int.from_bytes(one[2:4], "big") for one in owed if one[0] >> 4 == p.PUBACK}
            self.device.open -= acked
            self.device.done |= acked
            self.transmit(*owed)

    # What the device does.

    def publish(self) -> None:
        """Publish one to three messages, in one piece."""
        device, chance = self.device, self.device.chance
        if not self.accepted or len(device.unfinished) >= MAX_UNFINISHED:
            return
        packets = []
        for _ in range(chance.randint(1, 3)):
            device.number += 1
            topic = chance.choice(device.topics)
            # Each topic has its QoS, so that its order is defined from end to end.
            qos, retain = int(topic[-1]), topic.startswith("r/")
            payload = f"{device.name}-{device.number}".encode()
            if retain and chance.random() < device.habits.clear:
                payload = b""
            elif chance.random() < 0.1:
                payload += b"." * chance.choice([40, 400, 4000])
            message = Message(
                device.name, payload, topic, qos, retain, device.number, self.account.now()
            )
            self.account.sent(message)
            pid = None
            if qos:
                pid = device.pid()
                device.unfinished[pid] = message
            packets.append(p.publish(topic, payload, qos, pid, retain=retain))
        self.transmit(*packets)

    def subscribe(self) -> None:
        """Subscribe to one or two filters, perhaps to what is subscribed to already."""
        chance, pool = self.device.chance, self.device.pool
        if self.accepted and pool:
            chosen = chance.sample(pool, min(len(pool), chance.randint(1, 2)))
            self.transmit(self._subscribe([(one, chance.randint(0, 2)) for one in chosen]))

    def _subscribe(self, filters: list[tuple[str, int]]) -> bytes:
        pid = self.device.pid()
        self.requests[pid] = ("subscribe", self.account.subscribing(self.device.name, filters))
        return p.subscribe(pid, *filters)

    def unsubscribe(self) -> None:
        """Unsubscribe from one of the filters that may be changed."""
        if self.accepted and self.device.pool:
            chosen = [self.device.chance.choice(self.device.pool)]
            pid = self.device.pid()
            periods = self.account.unsubscribing(self.device.name, chosen)
            self.requests[pid] = ("unsubscribe", periods)
            self.transmit(p.unsubscribe(pid, *chosen))

    def may_overtake(self) -> None:
        """Note that the CONNECT of this connection may still reach the broker, behind later ones.

        Only where clients connect to several nodes; then it is not known which session it meets.
        """
        if self.world.reorders and not self.accepted:
            self.device.unsure_until = asyncio.get_running_loop().time() + _OVERTAKES
            if self.clean:
                self.device.clean_until = self.device.unsure_until

    def leave(self) -> None:
        """End in good order."""
        if self.accepted and not self.leaving:
            self.leaving = True
            self.left_at = asyncio.get_running_loop().time()
            self.transmit(p.disconnect())

    def _is_answered(self) -> bool:
        """Return whether nothing but DISCONNECT has closed the connection.

        A node that loses its leader, or that its leader lets go, closes its clients just as in good
        order.
        """
        waited = asyncio.get_running_loop().time() - self.left_at
        return self.closings == self.world.closings and waited < _LINGER

    def closed(self, *, orderly: bool) -> None:
        super().closed(orderly=orderly)
        self.may_overtake()
        device, will = self.device, self.will
        now = self.account.now()
        if will is not None and self.accepted:
            if not self.leaving and not self.world.reorders:
                will.acked = now
            elif self.leaving and orderly and self.alone and self.current and not self.stopped:
                will.forbidden = not self.through_edge or self._is_answered()
        if self.current:
            device.connection = None
            if self.accepted:
                device.left = self.world.steady()
            if self.clean:
                self.account.session_ending(device.name)


def settled(device: Device) -> bool:
    """Return whether the device waits for nothing."""
    connection = device.connection
    if connection is None or not connection.accepted or connection.owed or connection.requests:
        return False
    return not device.unfinished and not device.held
