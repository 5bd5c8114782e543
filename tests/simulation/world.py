"""The broker without sockets and without NATS: one seed, one run.

Everything runs on an event loop with virtual time. The broker, its journal, ``EventLog`` and
``LogWriter`` are the real ones; JetStream is in memory and survives crashes; transports pass bytes
on. ``World.kill`` is ``kill -9`` at any point, also in the middle of a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

from harness import packets as p
from harness.anonymous import Anonymous

from actors.access.rules import Permissions
from actors.broker.broker import Broker
from actors.limits.bridge_options import BridgeOptions
from actors.limits.broker_options import BrokerOptions
from actors.routing.router import Router
from eventstore.errors import Fenced, LogUnavailable
from eventstore.format.event_parsing import Event
from eventstore.format.records import GENESIS, ChainChecker, Record, decode_record
from eventstore.log.jetstream_log import EventLog
from eventstore.log.watermark import Watermark
from protocol.errors import FoldmqError
from simulation.compacted_stream import MemoryKeyedStore
from simulation.faults import Faults
from simulation.jetstream import SimNats, SimServer, SimStream
from simulation.loop import SimClock, simulate
from simulation.network import SimClient

__all__ = ["SimClient", "World", "in_world", "runs", "simulate"]

STREAM, SUBJECT = "FOLDMQ_LOG_sim", "foldmq.log.sim"


def ticking() -> Callable[[], float]:
    """Return a clock on which more than a millisecond passes between two looks at it."""
    ticks = itertools.count()
    return lambda: asyncio.get_running_loop().time() + next(ticks) * 0.0011


class Disk:
    """The records that survive a crash."""

    def __init__(self, stream: SimStream) -> None:
        self.stream = stream

    @property
    def records(self) -> list[bytes]:
        """All records as they are stored, oldest first."""
        return list(self.stream.messages.values())

    def decoded(self) -> list[Record]:
        """All records, checked as the broker checks them."""
        found = [decode_record(at, data) for at, data in self.stream.messages.items()]
        link = found[0].previous if found else GENESIS
        checker = ChainChecker(self.stream.first - 1, link)
        for record in found:
            checker.check(record)
        return found

    def events(self, *kinds: type) -> list[Any]:
        """Everything that happened, void turns included; or what is of one of these kinds."""
        events: list[Event] = [event for record in self.decoded() for _, event in record.events()]
        return [event for event in events if isinstance(event, kinds)] if kinds else events


class SimWatermark(Watermark):
    """A watermark in memory; it survives crashes."""

    def __init__(self) -> None:
        super().__init__(Path("watermark"), STREAM)
        self.noted: tuple[int, bytes] | None = None

    def read(self) -> tuple[int, bytes] | None:
        return self.noted

    def write(self, sequence: int, link: bytes) -> None:
        self.noted = (sequence, link)


class SimLog(EventLog):
    """The real EventLog over a simulated connection, for one life of a broker."""

    connection = SimNats

    def __init__(
        self,
        server: SimServer,
        watermark: Watermark,
        projections: MemoryKeyedStore,
        *,
        reads: bool = False,
    ) -> None:
        self.nats = self.connection(server, self.connection_lost, reads=reads)
        self._server = server
        super().__init__(
            cast("Any", self.nats),
            STREAM,
            SUBJECT,
            projections=cast("Any", projections),
            watermark=watermark,
            max_msg_size=server.streams[0].max_msg_size,
        )

    @property
    def waiting(self) -> bool:
        """True when appends wait for ``release``."""
        return bool(self._server.waiting)

    @property
    def held(self) -> bool:
        """True between ``hold`` and ``release``."""
        return self._server.held

    def hold(self) -> None:
        """Store and acknowledge nothing until ``release``."""
        self._server.held = True

    def commit(self, count: int) -> None:
        """Store and acknowledge this many appends."""
        self._server.commit(count)

    def release(self) -> None:
        """Store and acknowledge what waits, and from now on everything."""
        self._server.held = False
        self._server.commit(len(self._server.waiting))


class World:
    """A broker, its log and its clients.

    ``write_high`` is the number of unread bytes from which a client counts as slow (None: the
    broker's own choice). Acknowledgements are on disk soon, unless there is an ``ack_delay``: most
    tests compare the state with the log.
    """

    broker: Broker
    log: SimLog
    reorders = False
    """A connection may reach the broker before an earlier one of the same client, which may be back
    before the broker hears of its end: the log says when a will has to be published, the client
    does not know."""
    closings = 0
    """How often nodes may have closed clients by themselves, where there are several."""
    direct = False
    """Clients connect to the broker itself, where they could connect to other nodes."""
    meanwhile: Callable[[], None] | None = None
    """Called again and again while no node serves, where there are several."""

    @classmethod
    def more_options(cls, _seed: int) -> dict[str, Any]:
        """Return options of the broker that only this kind of world has in random runs."""
        return {}

    def __init__(
        self,
        delay: Callable[[], float] = lambda: 0.001,
        *,
        faults: Faults | None = None,
        write_high: int | None = None,
        **options: Any,
    ) -> None:
        self.faults = faults if faults is not None else Faults(delay=delay)
        stream = SimStream(STREAM, SUBJECT)
        self.server = SimServer(self.faults, stream)
        self.server.on_step = self.step
        self.disk = Disk(stream)
        self.watermark = SimWatermark()
        self.keyed = MemoryKeyedStore()
        """What the projections are kept in: it survives crashes."""
        self.clients: dict[SimClient, None] = {}
        self.problems: list[AssertionError] = []
        """What clients found wrong."""
        self.transcripts: list[list[tuple[float, bytes]]] = []
        self.options = BrokerOptions(node="sim", **{"ack_delay": 0.01} | options)
        self.permissions: Permissions | None = None
        self.bridge: BridgeOptions | None = None
        self.write_high = write_high
        self.clock = SimClock()
        """The clock of the machine: it can be set."""
        self.cutting = False
        """Every turn is cut wherever it can be."""
        self.on_cut: Callable[[], None] | None = None
        """Called each time when a turn was cut."""
        self.up = False
        """There is a broker, it has recovered, clients may connect."""
        self.fuse: int | None = None
        """After this many steps, counted down, the process is killed."""
        self.killed: Counter[str] = Counter()
        """How often the process was killed by the fuse, by the kind of step."""
        self._corpses: list[Broker] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """Start the broker, and end it at last."""
        await self.start()
        try:
            yield self
            assert not self.broker.node.failed.done(), self.broker.node.failed.result()
        finally:
            await self.crash()

    @property
    def has_entrance(self) -> bool:
        """Whether clients may connect."""
        return self.up

    def entrance(self) -> Any:
        """Return what a new client connects to; None: the broker's own listener."""
        return None

    def open_log(self) -> SimLog:
        """Return what a new broker reads and writes: here the log meets the simulation."""
        return SimLog(self.server, self.watermark, self.keyed)

    async def start(self) -> None:
        """Start a broker on what the disk holds."""
        self.log = self.open_log()
        await self.begin(lambda broker: broker.recover(lambda _done, _total: None))

    async def begin(self, how: Callable[[Broker], Awaitable[None]]) -> None:
        """Begin with a broker on the log, as it says how."""
        self.broker = Broker(
            self.options, self.log, Anonymous(), self.clock, self.bridge, self.permissions
        )
        if self.cutting:
            self.broker.kernel.turn_slice = 0.0
            self.cut_matching(self.broker.node.router)
            fast_path = self.broker.fast_path
            fast_path.delivered_at_once = fast_path.fan_out.step = 1
            # More than two reads in a turn are left for the next ones.
            self.broker.kernel.handle_gathered = lambda reads: fast_path.handle(reads[:2])
            self.broker.node.turn_work.at_once = 1
        self._corpses.append(self.broker)
        await how(self.broker)
        if self.cutting:
            self.cut_matching(self.broker.node.router)
            self.broker.node.journal.released_at_once = 1
            self._report_cuts(self.broker)
        self.up = not self.broker.node.failed.done() and not self.log.nats.dead

    def cut_matching(self, router: Router) -> None:
        """Make the router match in the smallest parts, if every turn is cut."""
        if self.cutting:
            router.routes.matched_at_once = 1
            router.evaluated_at_once = 1
            router.clock = ticking()

    def _report_cuts(self, broker: Broker) -> None:
        def turn_cut() -> None:
            broker.node.journal.split_turn()
            if self.on_cut is not None and broker is self.broker:
                self.on_cut()

        broker.kernel.turn_split = turn_cut

    async def start_with_retries(self) -> None:
        """Start, as a service manager would: again and again while the log is not available."""
        while not self.up:
            try:
                await self.start()
            except LogUnavailable:
                await self.crash()
            else:
                if not self.up:
                    if not self.log.nats.dead:  # else it was killed
                        self.excuse()
                    await self.crash()

    def excuse(self) -> None:
        """Accept that the broker stopped because a dead predecessor's append came in between. Any
        other reason is a failure.
        """
        failure = self.failure()
        assert isinstance(failure, Fenced), failure
        assert self.server.strays, failure
        self.server.strays = 0

    def steady(self) -> float:
        """Return seconds of the log's steady time, by which sessions expire.

        A clock that is set forward and a crash before the log says so are an absence to the next
        broker, unless it is longer than ``max_clock_gap``.
        """
        return self.broker.node.clock.steady_ms() / 1000

    def step(self, what: str) -> None:
        """Take note that the process does something that others see; the fuse may end it here."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                self.killed[what] += 1
                self.kill()

    def kill(self) -> None:
        """End the broker's process as by ``kill -9``, now."""
        self.up = False
        self.fuse = None
        self.log.nats.die()
        self._cancel()
        chance = self.faults.chance
        for client in list(self.clients):
            transport = client.transport
            transport.vanish(chance.randint(0, transport.flying) if transport.flying else 0)
        self.clients.clear()

    async def drain(self) -> None:
        """Stop the broker gracefully."""
        await self.broker.drain()

    async def crash(self, keep: int = 0) -> None:
        """Kill; of the appends that are held the first ones were stored, the others are lost."""
        self.kill()
        self.server.keep(keep)
        # What was killed in the middle of a turn ends that turn: nobody sees it. It may begin
        # something in it, hence twice.
        for _ in range(2):
            self._cancel()
            await asyncio.sleep(0)
        self._corpses.clear()

    def _cancel(self) -> None:
        """End what the dead would still do."""
        for broker in self._corpses:
            broker.node.timers._heap.clear()
            broker.kernel._gathered.clear()
            for task in tasks_of(broker):
                task.cancel()

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
        return self.broker.node.failed.result() if self.broker.node.failed.done() else None

    async def connect(
        self,
        name: str,
        *,
        clean: bool = False,
        keepalive: int = 0,
        will: p.Will | None = None,
        filters: Iterable[tuple[str, int]] = (),
        present: bool | None = None,
        mqtt5: bool = False,
    ) -> SimClient:
        """Connect, and subscribe if there are filters; wait for the answers and take those."""
        client = SimClient(self, mqtt5=mqtt5)
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
            taken = client.take()
            client.received = [packet for packet in taken if not isinstance(packet, p.Suback)]
            assert len(client.received) < len(taken)
        return client


def in_world(
    make: Callable[..., Any] = World, **options: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test in virtual time; its first argument is a world that runs, made with options."""

    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with make(**options).running() as world:
                await scenario(world)

        simulate(whole)

    return lambda scenario: _test_of(scenario, run, 1)


def runs(
    run: Callable[..., None], *arguments: Any, **options: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a scenario: its positional parameters are worlds, which ``run`` makes."""

    def decorated(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        parameters = inspect.signature(scenario).parameters.values()
        worlds = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters)
        return _test_of(scenario, lambda made: run(made, *arguments, **options), worlds)

    return decorated


def _test_of(
    scenario: Callable[..., Awaitable[None]], run: Callable[[Any], None], worlds: int
) -> Callable[..., None]:
    """Return a test with the parameters of a scenario behind the first ones, its worlds."""

    @functools.wraps(scenario)
    def test(**arguments: Any) -> None:
        run(functools.partial(scenario, **arguments))

    signature = inspect.signature(scenario)
    parameters = [*signature.parameters.values()][worlds:]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return test


def tasks_of(broker: Broker) -> list[asyncio.Task[None]]:
    found = [*broker.node.tasks, *broker._background]
    writer = getattr(broker, "writer", None)
    if writer is not None:
        found += writer._tasks
        if writer._recovering is not None:
            found.append(writer._recovering)
    if broker.bridge is not None:
        actor = broker.bridge._actor
        of_bridge = (broker.bridge._dialling, actor.recorded._task if actor is not None else None)
        found += [task for task in of_bridge if task is not None]
    return found
