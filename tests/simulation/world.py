"""The broker without sockets and without NATS: one seed, one run.

Everything runs on an event loop whose time is virtual: when nothing is ready, it jumps to the
next deadline. The log is a list that survives crashes; what is written to it is acknowledged
when the simulation says so. Transports hand bytes over at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from harness import packets as p

from actors.auth import Anonymous
from actors.broker import Broker
from actors.connection import Connection
from actors.options import Options
from eventstore.errors import CorruptLog, EventStoreError
from eventstore.events import Event
from eventstore.journal import Journal, Pending
from eventstore.log import LogTail
from eventstore.records import GENESIS, ChainChecker, Record, decode_record, link_of
from protocol.errors import FoldmqError

T = TypeVar("T")
EPOCH_MS = 1_800_000_000_000


class _NoTime(selectors.SelectSelector):
    """Waits for nothing: time passes at once."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that can never happen")
        self.loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next deadline instead of waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _NoTime()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def simulate(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run a scenario in virtual time; an exception in a callback or a task fails it."""
    problems: list[dict[str, Any]] = []

    async def run() -> T:
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: problems.append(context)
        )
        return await scenario()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(run())
    assert not problems, problems
    return result


class SimClock:
    """The loop's time, as the broker sees it."""

    def time_ms(self) -> int:
        return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Disk:
    """The records that survive a crash."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def decoded(self) -> list[Record]:
        """All records, checked as the broker checks them."""
        checker = ChainChecker()
        found = [decode_record(at, data) for at, data in enumerate(self.records, 1)]
        for record in found:
            checker.check(record)
        return found

    def events(self) -> list[Event]:
        """Everything that happened, void turns included."""
        return [event for record in self.decoded() for _, event in record.events()]


class SimLog:
    """EventLog and LogWriter in one, for one life of a broker.

    Records are stored and acknowledged in order. While ``held`` they wait; otherwise each takes
    ``delay()`` seconds. At a crash those that were not stored are gone, and whether those that
    were stored had been acknowledged is for chance.
    """

    def __init__(self, disk: Disk, delay: Callable[[], float]) -> None:
        self.disk = disk
        self.delay = delay
        self.watermark = None
        self.trouble: str | None = None
        self.trouble_since = 0.0
        self.waiting: deque[Pending] = deque()
        self.held = False
        self.dead = False
        self.fatal: EventStoreError | None = None
        self._journal: Journal | None = None

    async def tail(self) -> LogTail:
        records = self.disk.records
        return LogTail(len(records), link_of(records[-1]) if records else GENESIS)

    async def read(self, first: int, last: int) -> AsyncIterator[Record]:
        for sequence in range(first, min(last, len(self.disk.records)) + 1):
            await asyncio.sleep(0)
            yield decode_record(sequence, self.disk.records[sequence - 1])

    async def read_some(self, sequences: Iterable[int]) -> list[Record]:
        await asyncio.sleep(0.001)
        found = []
        for sequence in sorted(set(sequences)):
            if sequence > len(self.disk.records):
                raise CorruptLog(sequence, "is not in the stream")
            found.append(decode_record(sequence, self.disk.records[sequence - 1]))
        return found

    def writer(self, _clock: Any, _on_fatal: Callable[[EventStoreError], None]) -> SimLog:
        return self

    async def start(self, journal: Journal) -> None:
        self._journal = journal

    async def stop(self) -> None:
        self.dead = True

    def send(self, record: Pending) -> None:
        if self.dead:
            return
        assert record.sequence == len(self.disk.records) + len(self.waiting) + 1
        self.waiting.append(record)
        if not self.held:
            asyncio.get_running_loop().call_later(self.delay(), self._due)

    def _due(self) -> None:
        if self.waiting and not self.held and not self.dead:
            self.commit(1)

    def hold(self) -> None:
        """Acknowledge nothing until ``release``."""
        self.held = True

    def release(self) -> None:
        """Acknowledge what waits, and from now on everything."""
        self.held = False
        self.commit(len(self.waiting))

    def commit(self, count: int) -> None:
        """Store and acknowledge so many records."""
        for _ in range(min(count, len(self.waiting))):
            record = self.waiting.popleft()
            self.disk.records.append(record.data)
            assert self._journal is not None
            self._journal.committed(record.sequence)

    def crash(self, keep: int) -> None:
        """Lose what was not stored; ``keep`` records were stored and not acknowledged yet."""
        self.disk.records += [record.data for record in self.waiting][:keep]
        self.dead = True
        self.waiting.clear()


class SimTransport(asyncio.Transport):
    """Hands what the broker writes to a client, at once, unless the client does not read."""

    def __init__(self, client: SimClient, connection: Connection) -> None:
        super().__init__()
        self._client = client
        self._connection = connection
        self._closing = False
        self._unread: deque[bytes] = deque()
        self._high = 65_536
        self.reading = True
        self.stalled = False
        self.buffer = bytearray()
        self.arrived: deque[bytes] = deque()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else self._high

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def write(self, data: Any) -> None:
        assert not self._closing, "written behind the end"
        if self.stalled:
            before = len(self.buffer)
            self.buffer += data
            if before <= self._high < len(self.buffer):
                self._connection.pause_writing()
        else:
            self._client.receive(bytes(data))

    def stall(self) -> None:
        """Stop reading on the client's side."""
        self.stalled = True

    def unstall(self) -> None:
        """The client reads again."""
        self.stalled = False
        data, self.buffer = bytes(self.buffer), bytearray()
        self._client.receive(data)
        if len(data) > self._high and not self._closing:
            self._connection.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        asyncio.get_running_loop().call_soon(self.deliver)

    def deliver(self) -> None:
        """Give the broker what arrived, as long as it reads."""
        while self.arrived and self.reading and not self._closing:
            self._connection.data_received(self.arrived.popleft())

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.end(None)

    def abort(self) -> None:
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """Close, from either side."""
        if not self._closing:
            self._closing = True
            self._client.closed()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, error)

    def vanish(self) -> None:
        """The broker's process is gone: the connection ends, nobody there is told."""
        if not self._closing:
            self._closing = True
            self._client.closed()


class SimClient:
    """One network connection of a client: raw packets in and out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.open = True
        self.received: list[p.Packet] = []
        self._partial = bytearray()
        self.connection = world.broker._accept()
        self.transport = SimTransport(self, self.connection)
        world.clients.append(self)
        self.connection.connection_made(self.transport)

    def send(self, *packets: bytes) -> None:
        """Send packets in one piece."""
        if self.open:
            self.transport.arrived.append(b"".join(packets))
            self.transport.deliver()

    def drop(self) -> None:
        """Let the connection end without a DISCONNECT."""
        self.transport.end(ConnectionResetError("dropped"))

    def receive(self, data: bytes) -> None:
        self._partial += data
        while (found := p.split(self._partial)) is not None:
            first, body, size = found
            del self._partial[:size]
            packet = p.parse(first, body)
            self.received.append(packet)
            self.on_packet(packet)

    def take(self) -> list[p.Packet]:
        """Give what was received since the last time."""
        taken, self.received = self.received, []
        return taken

    def on_packet(self, packet: p.Packet) -> None:
        """React; a plain client does nothing by itself."""

    def closed(self) -> None:
        self.open = False


class World:
    """A broker, its log and its clients."""

    broker: Broker
    log: SimLog

    def __init__(self, delay: Callable[[], float] = lambda: 0.001, **options: Any) -> None:
        self.disk = Disk()
        self.clients: list[SimClient] = []
        self.options = Options(node="sim", **options)
        self._delay = delay

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """Start the broker, and end it at last."""
        await self.start()
        try:
            yield self
            assert not self.broker.failed.done(), self.broker.failed.result()
        finally:
            await self.crash()

    async def start(self) -> None:
        """Start a broker on what the disk holds."""
        self.log = SimLog(self.disk, self._delay)
        clock = SimClock()
        self.broker = Broker(self.options, cast("Any", self.log), Anonymous(), clock)
        await self.broker.recover(lambda _done, _total: None)

    async def crash(self, keep: int = 0) -> None:
        """End the broker as by ``kill -9``."""
        self.log.crash(keep)
        for task in self.broker._tasks:
            task.cancel()
        self.broker.timers._heap.clear()
        for client in self.clients:
            client.transport.vanish()
        self.clients = []
        await asyncio.sleep(0)

    async def restart(self, keep: int = 0) -> None:
        """Crash and start again."""
        await self.crash(keep)
        await self.start()

    async def calm(self) -> None:
        """Let everything happen that needs no time and no acknowledgement of the log."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def go(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)
        await self.calm()

    def failure(self) -> FoldmqError | None:
        """Why the broker gave up, if it did."""
        return self.broker.failed.result() if self.broker.failed.done() else None

    async def connect(
        self,
        name: str,
        *,
        clean: bool = False,
        keepalive: int = 0,
        will: p.Will | None = None,
        filters: Iterable[tuple[str, int]] = (),
        present: bool | None = None,
    ) -> SimClient:
        """Connect, and subscribe if there are filters; wait for the answers and take them."""
        client = SimClient(self)
        client.send(p.connect(name, clean=clean, keepalive=keepalive, will=will))
        await self.go(0.1)
        first, *rest = client.take()
        assert isinstance(first, p.Connack)
        assert first.code == 0
        assert present is None or first.session_present is present
        client.received = rest
        wanted = list(filters)
        if wanted:
            client.send(p.subscribe(9, *wanted))
            await self.go(0.1)
            assert any(isinstance(one, p.Suback) for one in client.take())
        return client
