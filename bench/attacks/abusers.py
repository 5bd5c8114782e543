"""Misbehaving clients, in the ten ways of KINDS, many at a time.

A process of its own: it opens ``--count`` connections, as many of each kind, keeps them open as
long as the broker lets it, and opens another one a while after each that was closed. A line on
stdin ends it. Then it says as JSON what became of its connections.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import random
import socket
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from bench.brokers.mqtt_client import connect, packet, publish, subscribe, text
from bench.processes.helper_process import run_as_attacker, stdin

_TICK = 1.0
"""Seconds after which each connection does something again."""
_LARGEST = b"\xff\xff\xff\x7f"
"""Remaining Length of the largest possible packet."""
_LARGEST_CONNECT = b"\xe0\xff\x13"
"""Approximate Remaining Length of the largest CONNECT."""
_LARGEST_PUBLISH = b"\xe0\xff\xff\x07"
"""Approximate Remaining Length of the largest PUBLISH that foldmq accepts by default."""
_LONGEST_FILTER = "+/" * 32_000 + "#"
_FLOOD = 8 * 2**20
"""Maximum bytes that a client that never reads publishes to itself."""


@dataclass
class Target:
    """The broker to attack, and the identity of the attacker."""

    port: int
    tls_port: int
    user: str | None
    password: str
    seed: int
    opened: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


class Abuser(asyncio.Protocol):
    """A connection; each kind defines what it does first, and after each second."""

    kind: ClassVar[str]

    def __init__(self, target: Target, number: int) -> None:
        self.target = target
        self.number = number
        self.chance = random.Random(f"{target.seed} {self.kind} {number}")
        self.transport: asyncio.Transport
        self.closed = asyncio.get_running_loop().create_future()
        self.open = False
        self.ticks = 0

    @property
    def port(self) -> int:
        """The port that it connects to."""
        return self.target.port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.open = True
        self.target.opened[self.kind] += 1
        self.begin()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.open = False
        self.target.closed[self.kind] += 1
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, _data: bytes) -> None:
        self.answered()

    def begin(self) -> None:
        """Do the first step."""

    def tick(self) -> None:
        """Do the step of every second."""

    def answered(self) -> None:
        """Continue after the broker sent something."""

    def send(self, data: bytes) -> None:
        """Send data, unless the broker has not read the previous data."""
        if self.open and self.transport.get_write_buffer_size() < 2**18:
            self.transport.write(data)

    def send_connect(self, name: str, *, password: str | None = None) -> None:
        """Send a CONNECT; valid unless another password is given."""
        shown = self.target.password if password is None else password
        self.send(connect(name, clean=True, user=self.target.user, password=shown))


class Silent(Abuser):
    """Connects and sends nothing."""

    kind = "silent"


class SlowBytes(Abuser):
    """Sends its CONNECT byte by byte, one a second."""

    kind = "slow bytes"

    def begin(self) -> None:
        """Send the next byte."""
        whole = connect(f"slow-{self.number}" + "x" * 500, clean=True)
        self.send(whole[self.ticks % len(whole) :][:1])

    tick = begin


class Garbage(Abuser):
    """Sends bytes that are not MQTT."""

    kind = "garbage"

    def begin(self) -> None:
        """Send more of them."""
        self.send(self.chance.randbytes(self.chance.randrange(1, 4096)))

    tick = begin


class GiantLength(Abuser):
    """Announces packets of the largest possible or permitted size, and sends them slowly."""

    kind = "giant lengths"

    def begin(self) -> None:
        """Announce one: a CONNECT, or a PUBLISH behind one."""
        largest, behind_connect = divmod(self.number // len(KINDS) % 4, 2)
        first, length = 0x10, _LARGEST_CONNECT
        if behind_connect:
            self.send_connect(f"giant-{self.number}")
            first, length = 0x30, _LARGEST_PUBLISH
        begin = text("MQTT") + b"\x04\x02"
        self.send(bytes([first]) + (_LARGEST if largest else length) + begin)

    def tick(self) -> None:
        """Send another part."""
        self.send(bytes(16_384))


class NeverReads(Abuser):
    """Subscribes to its own messages and never reads them."""

    kind = "never reads"

    def begin(self) -> None:
        """Subscribe and stop reading."""
        self.transport.pause_reading()
        # A large receive buffer of the system would hide that it does not read.
        end = self.transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.send_connect(f"deaf-{self.number}")
        self.send(subscribe(f"deaf/{self.number}", qos=0))

    def tick(self) -> None:
        """Publish to itself."""
        if self.ticks * 2**20 < _FLOOD:
            topic = text(f"deaf/{self.number}")
            self.send(packet(0x30, topic + bytes(2**16)) * 16)


class TlsStall(Abuser):
    """Begins a TLS handshake and does not finish it."""

    kind = "TLS stalls"

    @property
    def port(self) -> int:
        """The port of the TLS listener."""
        return self.target.tls_port

    def begin(self) -> None:
        """Send a ClientHello, or half of one."""
        hello = client_hello()
        self.send(hello if self.number % 2 else hello[: len(hello) // 2])


class LoginStorm(Abuser):
    """Tries passwords."""

    kind = "login storm"

    def begin(self) -> None:
        """Try one."""
        guess = self.chance.randbytes(6).hex()
        shown = connect(f"login-{self.number}", clean=True, user="mallory", password=guess)
        self.send(shown)


class Flapping(Abuser):
    """Connects and disconnects, again and again, as the same client."""

    kind = "flapping"

    def begin(self) -> None:
        """Connect."""
        self.send_connect(f"flap-{self.number}")

    def answered(self) -> None:
        """Disconnect."""
        self.send(b"\xe0\x00")


class SubscriptionBomb(Abuser):
    """Subscribes to more and more."""

    kind = "subscription bombs"

    def begin(self) -> None:
        """Connect and subscribe."""
        self.send_connect(f"bomb-{self.number}")
        self.tick()

    def tick(self) -> None:
        """Subscribe to more."""
        first = self.ticks * 500
        self.send(subscribe(*(f"bomb/{self.number}/{at}" for at in range(first, first + 500))))


class WildcardBomb(Abuser):
    """Subscribes with as many wildcards as fit, and publishes to what they match."""

    kind = "wildcard bombs"

    def begin(self) -> None:
        """Connect and subscribe."""
        self.send_connect(f"wild-{self.number}")
        self.tick()

    def tick(self) -> None:
        """Subscribe to other combinations and publish to a topic that all of them match."""
        combinations = []
        for _ in range(50):
            levels = (self.chance.choice("+a") for _ in range(100))
            combinations.append("wild/" + "/".join(levels) + "/#")
        self.send(subscribe(*combinations, _LONGEST_FILTER, qos=0))
        self.send(publish("wild/" + "/".join("a" * 100), b"boom", 1))


KINDS: tuple[type[Abuser], ...] = (
    Silent,
    SlowBytes,
    Garbage,
    GiantLength,
    NeverReads,
    TlsStall,
    LoginStorm,
    Flapping,
    SubscriptionBomb,
    WildcardBomb,
)


@functools.cache
def client_hello() -> bytes:
    """Return the first bytes that a TLS client sends."""
    context = ssl.create_default_context()
    sent = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="broker.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


async def abuse(target: Target, kind: type[Abuser], number: int, pause: float) -> None:
    """Keep a connection open; open another one some time after it was closed."""
    loop = asyncio.get_running_loop()
    chance = random.Random(f"{target.seed} {kind.kind} {number} pauses")
    # Each kind has a few addresses of its own.
    source = f"127.1.{KINDS.index(kind) + 1}.{number % 20 + 1}"
    await asyncio.sleep(chance.uniform(0, pause))
    while True:
        abuser = kind(target, number)
        try:
            await loop.create_connection(
                lambda abuser=abuser: abuser,  # type: ignore[misc]
                "127.0.0.1",
                abuser.port,
                local_addr=(source, 0),
            )
        except OSError:
            target.refused[kind.kind] += 1
        else:
            await _until_closed(abuser)
        await asyncio.sleep(chance.uniform(0, 2 * pause))


async def _until_closed(abuser: Abuser) -> None:
    try:
        while True:
            done, _ = await asyncio.wait({abuser.closed}, timeout=_TICK)
            if done:
                return
            abuser.ticks += 1
            abuser.tick()
    finally:
        if abuser.open:
            abuser.transport.abort()


async def run(arguments: argparse.Namespace) -> None:
    """Run until stdin ends."""
    loop = asyncio.get_running_loop()
    tls_port = arguments.tls_port or arguments.port
    target = Target(arguments.port, tls_port, arguments.user, arguments.password, arguments.seed)
    begun = time.monotonic()
    kinds = [kind for kind in KINDS if arguments.only in (None, kind.kind)]
    work = [
        loop.create_task(abuse(target, kinds[number % len(kinds)], number, arguments.pause))
        for number in range(arguments.count)
    ]
    await (await stdin()).readline()
    for task in work:
        task.cancel()
    closed = dict(target.closed)
    await asyncio.wait(work)
    failed = [task.exception() for task in work if not task.cancelled()]
    if failed:
        raise failed[0] or RuntimeError("an abusive client ended")
    opened = dict(target.opened)
    refused = dict(target.refused)
    seconds = round(time.monotonic() - begun, 1)
    report = {"seconds": seconds, "opened": opened, "closed": closed, "refused": refused}
    print(json.dumps(report), flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--tls-port", type=int, default=0, help="default: the same")
    parser.add_argument("--count", type=int, default=5000, help="connections at a time")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds from close to open, mean")
    parser.add_argument("--only", choices=[kind.kind for kind in KINDS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--user")
    parser.add_argument("--password", default="")
    arguments = parser.parse_args()
    run_as_attacker(run(arguments), arguments.count + 100)


if __name__ == "__main__":
    main()
