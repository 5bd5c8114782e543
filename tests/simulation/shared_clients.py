"""Clients that share a subscription, under random crashes: an account of every message."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from harness import packets as p
from harness.plainaudit import violations

from simulation.faults import Faults
from simulation.fold import compare, dropped
from simulation.network import SimClient
from simulation.world import World

_FILTER = "$share/g/t/#"
_STEPS = 80


class Member:
    """A client identifier that shares a subscription; it remembers as the standard asks."""

    def __init__(self, name: str, *, clean: bool, lazy: float, chance: random.Random) -> None:
        self.name = name
        self.clean = clean
        self.lazy = lazy
        self.chance = chance
        self.client: SimClient | None = None
        self.held: set[int] = set()
        """Packet identifiers of QoS 2 messages that came and were not released."""
        self.received: list[bytes] = []
        self.session = False
        self.subscribed = False
        """Whether its subscription was acknowledged on any of its connections."""

    def connect(self, world: World, *, clean: bool | None = None) -> None:
        clean = self.clean if clean is None else clean
        self.client = SimClient(world)
        self.client.send(p.connect(self.name, clean=clean))

    @property
    def open(self) -> bool:
        return self.client is not None and self.client.open

    def handle(self, *, lazy: bool = True) -> None:
        """Take what came, acknowledge some of it in order."""
        client = self.client
        if client is None:
            return
        for packet in client.take():
            if isinstance(packet, p.Connack):
                if not packet.session_present:
                    self.held.clear()
                client.send(p.subscribe(1, (_FILTER, 2)))
            elif isinstance(packet, p.Publish):
                self._take(client, packet, ignore=lazy and self.chance.random() < self.lazy)
            elif isinstance(packet, p.Pubrel):
                self.held.discard(packet.packet_id)
                if client.open:
                    client.send(p.pubcomp(packet.packet_id))
            elif isinstance(packet, p.Suback):
                self.subscribed = True

    def _take(self, client: SimClient, packet: p.Publish, *, ignore: bool) -> None:
        pid = packet.packet_id
        if packet.qos == 2 and pid is not None:
            if pid not in self.held:
                self.held.add(pid)
                self.received.append(packet.payload)
        else:
            self.received.append(packet.payload)
        if ignore or pid is None or not client.open:
            return
        client.send(p.puback(pid) if packet.qos == 1 else p.pubrec(pid))


class Sender:
    """A client that sends each message until it is acknowledged."""

    at_once = True
    """Whether messages are sent in one piece."""

    def __init__(self, name: str = "sender", begin: int = 0) -> None:
        self.name = name
        self.begin = begin
        self.client: SimClient | None = None
        self.pending: dict[int, tuple[bytes, int, bool]] = {}
        self.acked: dict[bytes, int] = {}
        self.number = 0

    def connect(self, world: World) -> None:
        self.client = SimClient(world)
        self.client.send(p.connect(self.name, clean=False))
        for pid, (payload, qos, released) in self.pending.items():
            if released:
                self.client.send(p.pubrel(pid))
            else:
                topic = f"t/{self.topic_of(payload)}"
                self.client.send(p.publish(topic, payload, qos, pid, dup=True))

    @staticmethod
    def topic_of(payload: bytes) -> int:
        return int(payload) % 5

    def publish(self, count: int, qos: int) -> None:
        if self.client is None or not self.client.open:
            return
        packets = []
        for _ in range(count):
            self.number += 1
            payload = b"%d" % (self.begin + self.number)
            self.pending[self.number] = payload, qos, False
            topic = f"t/{self.topic_of(payload)}"
            packets.append(p.publish(topic, payload, qos, self.number))
        if self.at_once:
            self.client.send(*packets)
        else:
            for packet in packets:
                self.client.send(packet)

    def handle(self) -> None:
        if self.client is None:
            return
        for packet in self.client.take():
            if isinstance(packet, p.Puback | p.Pubcomp):
                payload, qos, _ = self.pending.pop(packet.packet_id, (b"", 0, False))
                if payload:
                    self.acked[payload] = qos
            elif isinstance(packet, p.Pubrec) and packet.packet_id in self.pending:
                payload, qos, _ = self.pending[packet.packet_id]
                self.pending[packet.packet_id] = payload, qos, True
                if self.client.open:
                    self.client.send(p.pubrel(packet.packet_id))


class Run:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        options: dict[str, Any] = {
            "max_ack_pending": chance.choice([1, 3, 16, 1024]),
            "message_cache": chance.choice([1, 300, 1 << 20]),
            "max_record": chance.choice([2048, 1 << 23]),
            "shared_strategy": chance.choice(["balanced", "topic"]),
            "keep": 0.0,
            "keep_bytes": chance.choice([0, 40_000]),
            "ack_wait": 0.0,
            "takeover_delay": 0.01,
        }
        faults = Faults(chance, delay=lambda: chance.choice([0.0001, 0.02]))
        self.world = World(faults=faults, **options)
        self.world.cutting = chance.random() < 0.5
        lazy = chance.choice([0.0, 0.3, 0.8])
        # The first one never ends its session, so that the group is there to the end.
        self.members = [
            Member(f"m{at}", clean=bool(at) and chance.random() < 0.4, lazy=lazy, chance=chance)
            for at in range(5)
        ]
        self.sender = Sender()

    async def play(self) -> None:
        world = self.world
        await world.start()
        self.members[0].connect(world)
        await world.go(0.2)
        self.members[0].handle()
        await world.go(0.2)
        for _ in range(_STEPS):
            if not world.up:
                await world.crash()
                await world.start_with_retries()
                self.counts["restarts"] += 1
            self._act(self.chance.choice(self.members))
            await world.go(self.chance.choice([0.0, 0.001, 0.05, 3.0]))
            self._handle()
        await self._settle()
        self.counts["acked"] = len(self.sender.acked)
        check(world, self.members, self.sender)
        await world.crash()

    def _handle(self) -> None:
        for one in (*self.members, self.sender):
            one.handle()

    def _act(self, one: Member) -> None:
        chance, world, sender = self.chance, self.world, self.sender
        actions = ["publish", "publish", "publish", "member", "leave", "drop", "kill"]
        action = chance.choice(actions)
        if action == "publish":
            if sender.client is None or not sender.client.open:
                sender.connect(world)
            sender.publish(chance.choice([1, 1, 5, 30]), chance.choice([1, 2]))
        elif action == "member" and not one.open:
            one.connect(world)
        elif action == "kill" and chance.random() < 0.4:
            world.fuse = chance.randint(0, 20)
        elif one.client is not None and one.open:
            if action == "drop":
                one.client.drop()
                self.counts["dropped"] += 1
            elif action == "leave" and one is not self.members[0]:
                one.client.send(p.unsubscribe(7, _FILTER))
                self.counts["unsubscribed"] += 1

    async def _settle(self) -> None:
        """Let everything be delivered and acknowledged that is left."""
        world = self.world
        world.fuse = None
        if not world.up:
            await world.crash()
            await world.start_with_retries()
        self.sender.connect(world)
        for count in range(3000):
            if count > 60 and not (self.sender.pending or self._unfinished()):
                break
            for member in self.members:
                member.lazy = 0.0
                # What was ignored is acknowledged when it comes again.
                if count == 20 or not member.open:
                    member.connect(world)
            await world.go(0.2)
            self._handle()
        await world.go(1)

    def _unfinished(self) -> bool:
        sessions = self.world.broker.node.state.sessions
        states = [
            sessions.peek(name) for name in (_FILTER, *(member.name for member in self.members))
        ]
        return any(
            state.queued or state.inflight or state.releasing
            for state in states
            if state is not None
        )


def check_received(members: Sequence[Member], senders: Iterable[Sender]) -> None:
    """Raise AssertionError where an acknowledged message was lost, or came too often."""
    received = Counter(payload for member in members for payload in member.received)
    # A QoS 2 message ends with the session of its member; a clean one may have taken it along.
    persistent = all(not member.clean for member in members)
    for payload, qos in (pair for sender in senders for pair in sender.acked.items()):
        if qos == 1 or persistent:
            assert received[payload] >= 1, f"{payload!r} at QoS {qos} was lost"
        if qos == 2:
            assert received[payload] <= 1, f"{payload!r} came {received[payload]} times"


def check(world: World, members: list[Member], sender: Sender) -> None:
    lost = dropped(world.disk).get(_FILTER, set())
    assert not lost
    check_received(members, [sender])
    assert not sender.pending
    state = world.broker.node.state.sessions[_FILTER]
    assert state.queued == 0
    compare(world)
    assert not violations(world.disk.decoded())
