"""A NATS server for clients without a network, for the bridge: slow, away and back again."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from eventstore.nats.batch_transport import NatsMessage


class Got(NamedTuple):
    """A message as a NATS client gets it."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes


class SimNatsServer:
    """Passes messages between NATS clients and the bridge; it survives crashes of the broker."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.links: list[SimLink] = []
        self._clients: list[tuple[str, Callable[[Got], None]]] = []
        self.is_up = True
        self.slowest = 0.01
        """Seconds that something takes at most between a bridge and the server."""

    def subscribe(self, pattern: str, take: Callable[[Got], None]) -> None:
        """Have a NATS client take what is published on subjects."""
        self._clients.append((pattern, take))

    def publish(self, got: Got, link: SimLink | None = None) -> None:
        """Pass a message on; ``link``: the connection that published it, which does not get it."""
        found = False
        for pattern, take in self._clients:
            if _matches(pattern, got.subject):
                found = True
                take(got)
        for one in self.links:
            if one is not link and one.connected:
                found |= one.deliver(got)
        if not found and got.reply and link is not None:
            link.deliver(Got(got.reply, "", b"NATS/1.0 503\r\n\r\n", b""))

    def stop(self) -> None:
        """Close all connections."""
        self.is_up = False
        for link in self.links:
            link.lose()

    def start(self) -> None:
        """Let the connections come back."""
        self.is_up = True
        for link in self.links:
            link.come_back()

    def forget(self, *links: SimLink) -> None:
        """Drop the connections of a process that was killed; without any, all of them."""
        for link in links or [*self.links]:
            link.die()
            self.links.remove(link)


class SimLink:
    """The connection of one bridge, as ``BatchClient``; all passes in order, and takes time."""

    max_payload = 1 << 20
    unsent = 0

    def __init__(self, server: SimNatsServer, callbacks: dict[str, Callable[..., None]]) -> None:
        self._server = server
        self._callbacks = callbacks
        self._subjects: dict[int, str] = {}
        self._known: set[int] = set()
        """Subscriptions that the server has."""
        self._last = 0
        self._to_server: deque[Any] = deque()
        self._to_bridge: deque[Any] = deque()
        self._dead = False
        self.connected = True
        self.inbox = b"_INBOX.sim%d." % server.chance.getrandbits(64)
        self.inbox_sid = self.subscribe(self.inbox + b">")
        self._known.add(self.inbox_sid)
        server.links.append(self)

    # What the bridge calls.

    def write(self, data: bytes | list[bytes]) -> bool:
        if not self.connected:
            return False
        self._send(data if isinstance(data, bytes) else b"".join(data))
        return True

    def subscribe(self, subject: bytes) -> int:
        self._last = sid = self._last + 1
        self._subjects[sid] = subject.decode()
        if self.connected:
            self._later(self._to_server, sid, self._pass_to_server)
        return sid

    def unsubscribe(self, sid: int) -> None:
        del self._subjects[sid]
        self._known.discard(sid)

    def fence(self, done: Callable[[], object]) -> None:
        if self.connected:
            self._send(done)

    def pause_reading(self) -> None:
        """Never needed."""

    resume_reading = pause_reading

    async def close(self) -> None:
        self.die()

    # What happens.

    def deliver(self, got: Got) -> bool:
        """Pass a message to the bridge for each subscription that matches; False: none does."""
        sids = [
            sid
            for sid, pattern in self._subjects.items()
            if sid in self._known and _matches(pattern, got.subject)
        ]
        for sid in sids:
            message = NatsMessage(
                sid, got.subject.encode(), got.reply.encode(), got.headers, got.payload
            )
            self._later(self._to_bridge, message, self._pass_to_bridge)
        return bool(sids)

    def lose(self) -> None:
        """Lose the connection, and what is on its way."""
        if self.connected:
            self.connected = False
            self._to_server.clear()
            self._to_bridge.clear()
            self._callbacks["on_down"]()

    def come_back(self) -> None:
        if not self.connected and not self._dead:
            self.connected = True
            self._known = set(self._subjects)
            self._callbacks["on_up"]()

    def die(self) -> None:
        self._dead = True
        self.connected = False
        self._to_server.clear()
        self._to_bridge.clear()

    def _send(self, what: Any) -> None:
        self._later(self._to_server, what, self._pass_to_server)

    def _later(self, queue: deque[Any], what: Any, then: Callable[[], None]) -> None:
        queue.append(what)
        delay = self._server.chance.uniform(0, self._server.slowest)
        asyncio.get_running_loop().call_later(delay, then)

    def _pass_to_server(self) -> None:
        if not self._to_server:
            return
        what = self._to_server.popleft()
        if isinstance(what, int):
            if what in self._subjects:
                self._known.add(what)
            return
        if not isinstance(what, bytes):
            self._later(self._to_bridge, what, self._pass_to_bridge)
            return
        for got in _parsed(what):
            self._server.publish(got, self)

    def _pass_to_bridge(self) -> None:
        if self._to_bridge:
            what = self._to_bridge.popleft()
            if isinstance(what, NatsMessage):
                self._callbacks["on_messages"]([what])
            else:
                what()


def _parsed(data: bytes) -> list[Got]:
    """Return the messages of some protocol lines."""
    found = []
    while data:
        line, _, rest = data.partition(b"\r\n")
        verb, subject, *reply = line.split(b" ")
        size = int(reply.pop())
        head = int(reply.pop()) if verb == b"HPUB" else 0
        assert rest[size : size + 2] == b"\r\n", line
        said = reply[0].decode() if reply else ""
        found.append(Got(subject.decode(), said, rest[:head], rest[head:size]))
        data = rest[size + 2 :]
    return found


def _matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        one in ("*", token) for one, token in zip(wanted, tokens, strict=True)
    )
