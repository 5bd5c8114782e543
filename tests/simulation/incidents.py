"""Clients with incidents, and the truth about them: what each got, when, and what it did with it.

The truth is what the client saw and did, never what the broker says of itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness import packets as p

from actors.inspection.problems import RECENT_MS
from actors.limits.limit_options import LimitOptions
from simulation.network import SimClient

if TYPE_CHECKING:
    from simulation.world import World

WINDOW: Final = 8
QUEUE: Final = 40
ACK_WAIT: Final = 30.0
_SIZE: Final = 1000
UNREAD: Final = 4096
"""Bytes from which a client that does not read is a slow reader."""
OPTIONS: Final[dict[str, Any]] = {
    "max_ack_pending": WINDOW,
    "max_queued_messages": QUEUE,
    "ack_wait": ACK_WAIT,
    "bounds": LimitOptions(slow_reader_time=86_400.0),
}
RECENT: Final = RECENT_MS / 1000
PERMISSIONS: Final = "[[allow]]\nboth = ['#']\n[[deny]]\nboth = ['secret/#']\n"

SILENT = "does not acknowledge"
SLOW = "reads too slowly"
FULL = "loses messages: its queue is full"
FILLING = "will lose messages soon: its queue is filling"
LOST = "lost messages"
DENIED = "is denied what it asks for"
FLAPS = "connects again and again"
SHARED = "connects again and again while it is connected"
ALONE = "has no connected member"
SHARED_BEFORE = "connected again and again while it was connected; it no longer does"
WAS_DENIED = "was denied what it asked for"
FLAPPED = "connected again and again; it no longer does"
PAST = frozenset({FLAPPED, SHARED_BEFORE, WAS_DENIED})
"""Titles of what is over, which is no problem any more."""

_WINDOW_AFTER: Final = 10.0
"""Seconds from which a full window is a problem."""
_FLAPPING: Final = 60.0
_LASTS: Final = 60.0
"""Seconds after the last denial for which denials go on."""
_CALM: Final = 10.0
"""Seconds after the last of several failures or takeovers for which they go on."""
_CONNECTS, _TAKEOVERS = 4, 3
_NEAR: Final = 1.5
"""Seconds around a threshold in which either answer is true: times in the broker are those of
records, and a second of the client's passes between them."""


class Claims(NamedTuple):
    """What an answer must name about a subject, and what it may name."""

    must: frozenset[str]
    may: frozenset[str]


class _Claimed:
    """Collects what is true of a subject."""

    def __init__(self) -> None:
        self.must: set[str] = set()
        self.may: set[str] = set()

    def since(self, title: str, seconds: float, after: float) -> None:
        """Claim what is a problem from ``after`` seconds on, and lasts for ``seconds``."""
        if seconds >= after - _NEAR:
            self.may.add(title)
        if seconds >= after + _NEAR:
            self.must.add(title)

    def recent(self, title: str, seconds: float, until: float) -> None:
        """Claim what happened ``seconds`` ago, and counts as current ``until`` then."""
        if seconds <= until + _NEAR:
            self.may.add(title)
        if seconds <= until - _NEAR:
            self.must.add(title)

    def series(
        self,
        title: str,
        before: str,
        seconds: float,
        first: float,
        *lasts: float,
        counts: float = RECENT,
    ) -> None:
        """Claim a series of events that ``counts`` for seconds after its ``first`` one.

        Its last event was ``seconds`` ago: it is present for ``lasts`` seconds, then it is past;
        from the smallest to the largest of these either is true.
        """
        self.recent(title if seconds <= max(lasts) else before, first, counts)
        either = min(lasts) - 3 * _NEAR <= seconds <= max(lasts) + 3 * _NEAR
        if either and self.may & {title, before}:
            self.must -= {title, before}
            self.may |= {title, before}

    def all(self) -> Claims:
        return Claims(frozenset(self.must), frozenset(self.may))


class _Connection(SimClient):
    """One connection of a subject."""

    subject: Subject
    accepted = False
    """It got a CONNACK, which a client that is taken over again and again waits for."""

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Publish):
            self.subject.got(self, packet)
        self.accepted = self.accepted or isinstance(packet, p.Connack)


class Subject:
    """A client that subscribes at QoS 1 to a topic of its own, or is a member of a share."""

    def __init__(self, world: World, name: str, topic: str, topic_filter: str = "") -> None:
        self.world = world
        self.name = name
        self.topic = topic
        self.filter = topic_filter or topic
        self.link: _Connection | None = None
        self.silent = False
        """It acknowledges nothing."""
        self.open: dict[int, float] = {}
        """What it has not acknowledged: packet identifier -> when it came on this connection."""
        self.left: list[float] = []
        """For how long messages were unacknowledged on its connections since it last acknowledged
        one, in seconds."""
        self.known: set[bytes] = set()
        """What has come to it."""
        self.acknowledged: set[bytes] = set()
        self.sent: list[bytes] = []
        """What was published on its topic."""
        self.lost: set[bytes] = set()
        """What its full queue had no room for."""
        self.lost_at = self.denied_at = self.left_at = float("-inf")
        self.connects: list[float] = []
        self.takeovers: list[float] = []
        self.failures: list[float] = []
        """When connections ended without a DISCONNECT, and without another connection."""
        self._payloads: dict[int, bytes] = {}
        self._unseen: set[bytes] = set()
        """What was sent to it on connections that ended before it read that."""

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def connected(self) -> bool:
        return self.link is not None and self.link.open

    @property
    def unread(self) -> int:
        """Bytes that it does not read."""
        return len(self.link.transport.buffer) if self.link is not None and self.connected else 0

    @property
    def waiting(self) -> int:
        """Messages in its queue."""
        return len(self.sent) - len(self.lost) - len(self.delivered)

    @property
    def delivered(self) -> set[bytes]:
        """What was sent to it, whether or not it has come."""
        return self.known | self.on_the_way | self._unseen

    @property
    def on_the_way(self) -> set[bytes]:
        """What was sent to it and it has not read yet."""
        link = self.link
        data = bytes(link.transport.buffer) if link is not None and self.connected else b""
        return {payload for payload in self.sent if payload in data} if data else set()

    def got(self, link: _Connection, packet: p.Publish) -> None:
        """Take a message, and acknowledge it if it does so."""
        if link is not self.link or packet.packet_id is None:
            return
        self.known.add(packet.payload)
        if self.silent:
            self.open.setdefault(packet.packet_id, self.now)
            self._payloads[packet.packet_id] = packet.payload
        else:
            self.left.clear()
            self.acknowledged.add(packet.payload)
            link.send(p.puback(packet.packet_id))

    async def connect(self, host: str = "192.0.2.1") -> None:
        """Connect, whether or not it is connected."""
        self._unseen |= self.on_the_way
        if self.connected:
            self.takeovers.append(self.now)
        self._end()
        link = self.link = _Connection(self.world, host=host)
        link.subject = self
        self.connects.append(self.now)
        link.send(p.connect(self.name, clean=False))
        await self.world.go(0.05)
        while not link.accepted:
            await self.world.go(0.5)
        if len(self.connects) == 1:
            link.send(p.subscribe(1, (self.filter, 1)))
            await self.world.go(0.05)

    def leave(self, *, orderly: bool = False) -> None:
        """End the connection."""
        self._unseen |= self.on_the_way
        if self.link is not None and self.connected:
            if orderly:
                self.link.send(p.disconnect())
                self.left_at = self.now
            else:
                self.link.drop()
                self.failures.append(self.now)
        self._end()

    def _end(self) -> None:
        if self.open:
            self.left.append(self._oldest)
        self.open.clear()

    @property
    def _oldest(self) -> float:
        return self.now - min(self.open.values())

    def answer(self) -> None:
        """Acknowledge again, and all that is open."""
        self.silent = False
        left, self.open = [*self.open], {}
        if left and self.connected:
            self.left.clear()
        self.acknowledged |= {self._payloads[pid] for pid in left}
        if self.link is not None:
            self.link.send(*(p.puback(pid) for pid in left))

    def _claim_failures(self, found: _Claimed) -> None:
        """Claim that it connects again and again, or did until a short while ago."""
        if len(self.connects) < _CONNECTS or len(self.failures) < _CONNECTS - 1:
            return
        ago = self.now - self.failures[-1]
        first = self.now - min(self.connects[-_CONNECTS], self.failures[1 - _CONNECTS])
        if self.left_at > self.failures[-1]:  # the last time in order
            found.recent(FLAPPED, first, _FLAPPING)
        else:
            near = (_FLAPPING + _NEAR, _FLAPPING - _NEAR)
            recent = ([at for at in self.failures if self.now - at < most] for most in near)
            lasts = map(_lasting, recent)
            found.series(FLAPS, FLAPPED, ago, first, *lasts, counts=_FLAPPING)

    def denied(self) -> None:
        """Publish what is forbidden."""
        if self.link is not None and self.connected:
            self.link.send(p.publish("secret/x", b"", 1, 99))
            self.denied_at = self.now

    def claims(self) -> Claims:
        """Return what is true of it now."""
        now, found = self.now, _Claimed()
        if self.connected and self.open:
            oldest = self._oldest
            if len(self.open) >= WINDOW:
                found.since(SILENT, oldest, _WINDOW_AFTER)
            found.since(SILENT, oldest, ACK_WAIT + 1)
            in_all = oldest + sum(self.left)
            if abs(in_all - ACK_WAIT - 1) < (1 + len(self.left)) * _NEAR:
                found.may.add(SILENT)
            elif in_all > ACK_WAIT:
                found.since(SILENT, oldest, 0 if len(self.left) > 1 else _WINDOW_AFTER)
        if self.unread:  # what it does not read it does not acknowledge
            found.may.add(SILENT)
        if self.unread > UNREAD:
            found.must.add(SLOW)
        if self.waiting >= QUEUE:
            found.must.add(FULL)
        elif self.waiting >= 0.8 * QUEUE:
            found.must.add(FILLING)
        if self.waiting < QUEUE and self.lost:
            found.recent(LOST, now - self.lost_at, RECENT)
        found.series(DENIED, WAS_DENIED, now - self.denied_at, now - self.denied_at, _LASTS)
        times = [at for at in self.takeovers if at > now - RECENT - _NEAR]
        if len(times) >= _TAKEOVERS:
            ago = now - times[-1], now - times[-_TAKEOVERS]
            if self.connected:
                surely = [at for at in times if at > now - RECENT + _NEAR]
                found.series(SHARED, SHARED_BEFORE, *ago, *map(_lasting, (times, surely)))
            else:  # both have ended
                found.recent(SHARED_BEFORE, ago[1], RECENT)
        self._claim_failures(found)
        if {SHARED, SHARED_BEFORE} & found.may:  # it connects again and again for that reason
            found.must -= {FLAPS, FLAPPED}
        return found.all()


def _lasting(times: list[float]) -> float:
    """Return the seconds after the last of several events for which they go on."""
    pauses = [after - before for before, after in pairwise(times)]
    return max(_CALM, 3 * max(pauses[-3:], default=0))


class Writer:
    """Publishes to subjects, and counts what their queues have no room for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._link: SimClient | None = None
        self._count = 0

    async def connect(self) -> None:
        """Connect."""
        self._link = await self._world.connect("writer")

    async def publish(self, subject: Subject) -> bytes:
        """Publish a message to a subject; return its payload, which ends in a percent sign."""
        self._count += 1
        payload = f"{subject.name} {self._count}%".rjust(_SIZE).encode()
        full = subject.waiting >= QUEUE
        subject.sent.append(payload)
        assert self._link is not None
        self._link.send(p.publish(subject.topic, payload, 1, self._count % 60_000 + 1))
        await self._world.go(0.02)
        if full and payload not in subject.known:
            subject.lost.add(payload)
            subject.lost_at = subject.now
        return payload


class Incident(NamedTuple):
    """What happens to a subject: at its begin, at each step while it lasts, and at its end."""

    name: str
    begin: Callable[[Subject], object]
    step: Callable[[Subject], object]
    end: Callable[[Subject], object]


def _nothing(_subject: Subject) -> None:
    """Do nothing."""


def _become_silent(subject: Subject) -> None:
    subject.silent = True


def _stall(subject: Subject) -> None:
    if subject.link is not None and subject.connected:
        subject.link.transport.stall()


def _unstall(subject: Subject) -> None:
    if subject.link is not None and subject.connected:
        subject.link.transport.unstall()


async def _flap(subject: Subject) -> None:
    subject.leave()
    await subject.world.go(0.05)
    await subject.connect()


async def _visit(subject: Subject) -> None:
    """Connect for a moment, as a job does that runs again and again."""
    await _come_back(subject)
    await subject.world.go(0.05)
    subject.leave(orderly=True)


async def _reconnect(subject: Subject) -> None:
    """Connect anew without a failure, as a client that is restarted."""
    subject.leave(orderly=True)
    await subject.world.go(0.05)
    await subject.connect()


async def _contend(subject: Subject) -> None:
    await subject.connect("192.0.2.2" if len(subject.connects) % 2 else "192.0.2.1")


async def _come_back(subject: Subject) -> None:
    if not subject.connected:
        await subject.connect()


INCIDENTS: Final = (
    Incident("nothing", _nothing, _nothing, _nothing),
    Incident("does not acknowledge", _become_silent, _nothing, Subject.answer),
    Incident("restarts, acknowledges nothing", _become_silent, _reconnect, Subject.answer),
    Incident("reads slowly", _stall, _nothing, _unstall),
    Incident("is denied", Subject.denied, _nothing, _nothing),
    Incident("flaps", _flap, _flap, _come_back),
    Incident("visits", _visit, _visit, _come_back),
    Incident("shares its identifier", _contend, _contend, _nothing),
    Incident("is away", Subject.leave, _nothing, _come_back),
)
