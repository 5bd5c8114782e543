"""Attacking clients, a small version of those in bench/abuse.py.

Each acts independently, with a clean session. They publish on topics that begin with ``$``, which
the filters of the devices do not match: the devices must not notice.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from harness import packets as p

from simulation.network import SimClient

if TYPE_CHECKING:
    from simulation.world import World

_LEVELS = 5
_BOMBS = ["$b/" + "/".join(levels) for levels in itertools.product("a+", repeat=_LEVELS)]
_CHURNED = [(f"$c/{number}/+", 1) for number in range(50)]
_MANY = [(f"$m/{number}", 0) for number in range(300)]
_TRICKLED = p.publish("$t", bytes(60))


class AttackClient(SimClient):
    """One connection; nothing of what comes is kept."""

    def on_packet(self, packet: p.Packet) -> None:
        self.received.clear()


class Attacker:
    """Attacks in each of its turns, over a connection that it reopens if necessary."""

    kind: ClassVar[str]
    keepalive: ClassVar[int] = 0

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.clients: list[AttackClient] = []
        self.number = 0

    def act(self) -> None:
        """Do the next thing."""
        client = self.connected(self.kind)
        if client.open:
            self.attack(client)

    def attack(self, client: AttackClient) -> None:
        """Do it, over a connection that has sent its CONNECT."""

    def connected(self, name: str) -> AttackClient:
        """Return the connection, which may have ended at once."""
        self.clients = [client for client in self.clients if client.open]
        return self.clients[0] if self.clients else self.connect(name)

    def connect(self, name: str) -> AttackClient:
        client = AttackClient(self.world)
        self.clients.append(client)
        client.send(p.connect(name, clean=True, keepalive=self.keepalive))
        return client

    def leave(self) -> None:
        """End all connections."""
        for client in self.clients:
            if client.open:
                client.drop()
        self.clients.clear()

    def next_pid(self) -> int:
        self.number = self.number % 60_000 + 1
        return self.number


class FilterBomb(Attacker):
    """Filters that overlap, and bursts of what they match, on new topics."""

    kind = "filter bomb"

    def attack(self, client: AttackClient) -> None:
        client.send(p.subscribe(self.next_pid(), *((one, 0) for one in _BOMBS)))
        publisher = self.clients[1] if len(self.clients) > 1 else self.connect("bomber")
        burst = []
        for _ in range(40):
            self.number += 1
            begin = "$b/" + "a/" * (_LEVELS - 1 + self.number % 3)
            burst.append(p.publish(f"{begin}q{self.number}", b""))
        publisher.send(*burst)


class FilterChurn(Attacker):
    """Subscribes to many filters and unsubscribes from them."""

    kind = "filter churn"

    def attack(self, client: AttackClient) -> None:
        names = [name for name, _ in _CHURNED]
        client.send(p.subscribe(self.next_pid(), *_CHURNED), p.unsubscribe(self.next_pid(), *names))


class LargeSubscribe(Attacker):
    """Sends SUBSCRIBE packets of many filters."""

    kind = "large subscribe"

    def attack(self, client: AttackClient) -> None:
        client.send(p.subscribe(self.next_pid(), *_MANY))


class TakeoverStorm(Attacker):
    """Connects with one identifier from many places, and uses each connection."""

    kind = "takeover storm"

    def act(self) -> None:
        self.clients = [client for client in self.clients if client.open]
        for _ in range(self.chance.randint(2, 6)):
            if self.world.up:
                self.connect(self.kind).send(p.pingreq())


class Trickle(Attacker):
    """Sends a packet byte by byte and never completes it."""

    kind = "trickle"
    keepalive = 1

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__(world, chance)
        self.begun: WeakKeyDictionary[AttackClient, int] = WeakKeyDictionary()
        """The number of the first byte of each connection."""

    def attack(self, client: AttackClient) -> None:
        self.number += 1
        at = self.begun.setdefault(client, self.number)
        client.send(_TRICKLED[self.number - at :][:1])


class Newcomers(Attacker):
    """Connections of garbage, of halves of a CONNECT, and of clients that leave at once."""

    kind = "newcomers"

    def act(self) -> None:
        self.clients = [client for client in self.clients if client.open][-20:]
        for _ in range(self.chance.randint(1, 5)):
            if not self.world.up:
                return
            client = AttackClient(self.world)
            self.clients.append(client)
            whole = p.connect(f"new{self.chance.randint(1, 3)}", clean=True)
            client.send(
                self.chance.choice(
                    [self.chance.randbytes(50), whole[:9], whole + p.disconnect(), whole]
                )
            )


class Flood(Attacker):
    """Publishes at QoS 0 and 1 without a pause, and takes nothing of what it subscribed to."""

    kind = "flood"

    def attack(self, client: AttackClient) -> None:
        client.transport.stall()
        several = [p.publish("$f/0", bytes(50)) for _ in range(10)]
        several += [p.publish("$f/1", bytes(50), 1, self.next_pid()) for _ in range(10)]
        client.send(p.subscribe(self.next_pid(), ("$f/0", 0), ("$f/1", 1)), *several)


class Releases(Attacker):
    """Publishes at QoS 2 and releases each message at once, so that no two packets are alike."""

    kind = "releases"

    def attack(self, client: AttackClient) -> None:
        pids = [self.next_pid() for _ in range(40)]
        client.send(
            *(part for pid in pids for part in (p.publish("$r", b"", 2, pid), p.pubrel(pid)))
        )


ATTACKERS: tuple[type[Attacker], ...] = (
    FilterBomb,
    FilterChurn,
    LargeSubscribe,
    TakeoverStorm,
    Trickle,
    Newcomers,
    Flood,
    Releases,
)
