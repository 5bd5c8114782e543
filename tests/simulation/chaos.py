"""One random run: devices, faults and crashes, all decided by one seed."""

import asyncio
import contextlib
import hashlib
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast

import pykka
import pytest
import structlog
from harness import packets as p
from harness.plainaudit import violations

from actors.access.rules_file import parse_rules
from actors.connection import input_actor
from actors.inspection.inspector import Refused
from actors.kernel import kernel
from actors.maintenance import retention
from actors.routing import router
from actors.session import packet_handler, publisher, subscription_handler
from eventstore.format.events import MessageDropped
from eventstore.format.node_events import LogArchived, LogCut
from eventstore.format.records import Record, decode_record
from eventstore.format.turn_parts import TurnAssembler
from simulation.attackers import ATTACKERS
from simulation.delivery_ledger import Account
from simulation.devices import Device, DeviceBehaviour, settled
from simulation.faults import Faults
from simulation.fold import compare, dropped
from simulation.loop import VirtualLoop, simulate
from simulation.network import SimClient
from simulation.random_runs import DeviceRun
from simulation.world import World

T_co = TypeVar("T_co", covariant=True)

STEPS = 120
_LONGEST = 2500.0
"""Seconds of virtual time that a run may take."""
_CLOCK_SEEN_WITHIN = 2.0
"""Seconds within which a broker sees that the clock was set."""
_TIMEOUT = 400
"""Seconds within which everything settles once nothing goes wrong any more."""


@dataclass(frozen=True)
class Outcome:
    """What a run was like."""

    seed: int
    counts: Counter[str]
    """How often what happened."""
    log: str
    """SHA-256 of all records."""
    transcripts: str
    """SHA-256 of all that clients received, and when."""


def delays_of(seed: int) -> dict[str, Any]:
    """Return options: for how long acknowledgements and reads may wait in a run."""
    chance = random.Random(f"delays {seed}")
    return {
        "ack_delay": chance.choice([0.01, 0.2, 1.0]),
        "commit_delay": chance.choice([0.0, 0.003, 0.01, 0.05]),
    }


class Chaos(DeviceRun):
    """One random run."""

    def __init__(self, seed: int, errors: list[str], make_world: type[World] = World) -> None:
        super().__init__(errors)
        self.seed = seed
        self.chance = random.Random(seed)
        self.account = Account()
        chance = self.chance
        delays = chance.choice([[0.0001, 0.001, 0.02], [0.001], [0.001, 0.3]])
        travels = chance.choice([[0.0], [0.0], [0.0005, 0.002], [0.0, 0.05]])
        self.faults = Faults(
            chance,
            delay=lambda: chance.choice(delays),
            travel=lambda: chance.choice(travels),
            strays=True,
        )
        self.rates = (
            chance.choice([0.0, 0.0, 0.02, 0.1, 0.3]),
            chance.choice([0.0, 0.05, 0.3]),
        )
        self.habits = DeviceBehaviour(
            lazy=chance.choice([0.0, 0.3, 0.8, 1.0]),
            cut=chance.choice([0.0, 0.0, 0.3]),
        )
        # The archiver also acts at random: it may be late, or start a new archive.
        self.archivist = random.Random(f"archivist {seed}")
        self.archiving = self.archivist.choice([0.0, 0.0, 0.02, 0.2])
        guarded = self.archivist.random() < 0.3
        self.set_at = -math.inf
        """When the clock was last set."""
        window = chance.choice([1, 2, 3, 8, 16, 1024])
        self.expiry = chance.choice([0.0, 0.0, 0.0, 60.0])
        self.world = make_world(
            faults=self.faults,
            write_high=chance.choice([None, 300, 3000]),
            max_ack_pending=window,
            message_cache=chance.choice([1, 300, 1 << 20]),
            ack_wait=chance.choice([0.0, 0.05, 2.0, 30.0]),
            max_queued_messages=chance.choice([5, 1_000_000, 1_000_000, 1_000_000]),
            max_outbound_bytes=chance.choice([1000, 1 << 24, 1 << 24]),
            max_record=chance.choice([2048, 1 << 23, 1 << 23]),
            commit_timeout=chance.choice([3.0, 30.0]),
            session_expiry=self.expiry,
            keep=0.0,
            keep_bytes=chance.choice([0, 40_000]),
            keep_until_archived=guarded,
            takeover_delay=0.01,
            **delays_of(seed),
            **make_world.more_options(seed),
        )
        # Every second run cuts turns and works in the smallest parts there are.
        self.world.cutting = random.Random(f"cut {seed}").random() < 0.5
        self.devices = self._population(window)
        # Clients that come while no node of a cluster leads wait at one that follows.
        self.newcomer = random.Random(f"newcomer {seed}")
        self.world.meanwhile = self.come_early
        # Each run does some things often and others hardly ever.
        self.actions = {
            action: weight * chance.choice([0.0, 1.0, 1.0, 3.0])
            for action, weight in _WEIGHTS.items()
        }
        self.actions[Chaos.publish] = 40.0
        self.pauses = chance.choice([_HASTY, _HASTY, _SLOW])
        # An operator of its own mind: what the others do stays the same with and without one.
        self.operator = random.Random(f"operator {seed}")
        self.meddling = self.operator.choice([0.0, 0.0, 0.05, 0.2])
        self.asked: set[asyncio.Task[None]] = set()
        # Bursts and attacks come from elsewhere too.
        self.burster = random.Random(f"burst {seed}")
        self.bursting = self.burster.choice([0.02, 0.1, 0.3])
        # In some of the runs that cut turns much happens between their parts.
        self.intruder = random.Random(f"meanwhile {seed}")
        self.intruding = self.intruder.choice([0.0, 0.0, 0.01, 0.05])
        self.world.on_cut = self.turn_cut
        # Some brokers are stopped now and then, others are only killed.
        self.stopper = random.Random(f"stop {seed}")
        self.stopping = 0.0
        if not make_world.reorders:  # one node, or with a standby
            self.stopping = self.stopper.choice([0.0, 0.0, 0.01, 0.05])
        self.mallory = random.Random(f"attack {seed}")
        self.attacking = self.mallory.choice([0.0, 0.0, 0.1, 0.3])
        kinds = self.mallory.sample(ATTACKERS, self.mallory.choice([1, 2, len(ATTACKERS)]))
        self.attackers = [kind(self.world, self.mallory) for kind in kinds]

    def _population(self, window: int) -> list[Device]:
        chance = self.chance
        names = ["pub1", "pub2", "pub3", "sub1", "sub2", "sub3", "both"]
        latencies = chance.choice([[0.0], [0.0], [0.0, 0.0, 0.001, 0.05]])
        devices = []
        for name in names:
            publishes, subscribes = name[:3] in ("pub", "bot"), name[:3] in ("sub", "bot")
            pool = [
                "#", "t/#", "r/#", "w/#", "rw/+", "+/pub1/#", "+/+/a1", "t/+/a2", "t/pub2/+",
                "t/pub2/a1", "r/pub1/a1", "r/pub1/a2", "+/#",
            ]  # fmt: skip
            chance.shuffle(pool)
            fixed = chance.randint(1, 3) if subscribes else 0
            topics = [f"t/{name}/a0", f"t/{name}/a1", f"t/{name}/b1", f"t/{name}/a2"]
            topics += [f"r/{name}/a{qos}" for qos in range(3)]
            devices.append(
                Device(
                    name,
                    self.account,
                    chance,
                    self.habits,
                    clean=chance.choice([0.0, 0.0, 0.0, 0.2, 1.0]),
                    topics=topics if publishes else [],
                    filters=[(one, chance.choice([1, 2, 2, 0])) for one in pool[:fixed]],
                    pool=pool[fixed : fixed + chance.choice([0, 3])] if subscribes else [],
                    will=chance.choice([None, f"w/{name}", f"rw/{name}"]),
                    expiry=self.expiry,
                    window=window,
                    latency=chance.choice(latencies),
                )
            )
        return devices

    # Steps.

    async def step(self) -> None:
        chance, world = self.chance, self.world
        if not world.up:
            await self.restart()
        elif world.failure() is not None:
            world.excuse()
            self.note("fenced by an append of a dead predecessor")
            await self.restart()
        elif self.stopper.random() < self.stopping:
            await self.stop()
        else:
            (action,) = chance.choices(list(self.actions), list(self.actions.values()))
            if world.fuse is None and chance.random() < 0.01:
                world.fuse = chance.randint(0, 30)
            action(self, chance.choice(self.devices))
            if self.operator.random() < self.meddling:
                self.operate()
            if self.archivist.random() < self.archiving:
                self.archive()
            if self.burster.random() < self.bursting:
                self.burst()
            if self.mallory.random() < self.attacking and world.up:
                self.attack()
        # Often several things happen before anybody gets a turn.
        pause = chance.choice(self.pauses)
        if pause == 0:
            for _ in range(chance.randint(1, 12)):
                await asyncio.sleep(0)
        elif pause is not None:
            await asyncio.sleep(pause)

    async def restart(self) -> None:
        """Start the broker again, perhaps with another crash while it recovers."""
        world, chance = self.world, self.chance
        await world.crash()
        if chance.random() < 0.3:
            # A power cut: the projections are not synced.
            lost = chance.choice([1, 1, 3, 10, 1000])
            self.note("the last projections are lost")
            world.keyed.lose(min(lost, len(world.keyed.history)))
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 5.0]))
        if chance.random() < 0.2:
            self.note("crash while it recovers")
            world.fuse = chance.choice([None, 0, 1, 2])
            start = asyncio.create_task(world.start_with_retries())
            await asyncio.wait({start}, timeout=chance.choice([0.001, 0.1, 1.0]))
            world.fuse = None
            if start.done():
                start.result()
                return
            world.kill()
            while not start.done():
                start.cancel()
                await asyncio.sleep(0)
            await world.crash()
            return
        await world.start_with_retries()
        if chance.random() < 0.3 and world.broker.node.journal.idle:
            self.note("live state compared with the log after a restart")
            compare(world)

    async def stop(self) -> None:
        """Stop the broker as a service manager does; kill it if that takes too long."""
        world = self.world
        world.up = False  # it accepts no more clients
        for client in world.clients:
            client.stopped = True
        drain = asyncio.create_task(world.drain())
        await asyncio.wait({drain}, timeout=self.stopper.choice([0.001, 0.1, 5.0, 5.0]))
        if drain.done():
            drain.result()
            if world.failure() is not None:
                world.excuse()
            self.note("stopped")
        else:
            self.note("killed while it stops")
        world.kill()
        while not drain.done():
            drain.cancel()
            await asyncio.sleep(0)

    def crash(self, _device: Device) -> None:
        self.note("crash")
        self.world.kill()

    def set_clock(self, _device: Device) -> None:
        """The clock of the machine is set, or corrected by a little."""
        seconds = self.chance.choice([1, 3600, 3 * 86_400])
        self.note("clock set")
        self.set_at = self.world.clock.monotonic()
        self.world.clock.set_ms += self.chance.choice([1000, -1000]) * seconds

    def connect(self, device: Device) -> None:
        connection = device.connection
        if connection is None or self.chance.random() < 0.2:
            self.note("connect" if connection is None else "take over")
            device.connect(self.world)

    def connect_all(self, _device: Device) -> None:
        for device in self.devices:
            if device.connection is None:
                self.note("connect")
                device.connect(self.world)

    def come_early(self) -> None:
        """A client connects, or breaks its connection, while no node serves."""
        device = self.newcomer.choice(self.devices)
        if self.newcomer.random() < 0.1 and self.world.has_entrance:
            self.note("connects while no node serves")
            device.connect(self.world)

    def burst(self) -> None:
        """Several packets of several clients come in one wake-up, subscriptions among them."""
        chance = self.burster
        connected = [device for device in self.devices if device.connection is not None]
        for device in chance.sample(connected, min(len(connected), 3)):
            connection = device.connection
            if connection is None:
                continue
            deeds = [connection.publish] if device.topics else []
            if device.pool:
                deeds += [connection.subscribe, connection.unsubscribe, connection.pay]
            for _ in range(chance.randint(1, 3) if deeds else 0):
                chance.choice(deeds)()
        self.note("burst")

    def attack(self) -> None:
        """One of the attackers attacks."""
        attacker = self.mallory.choice(self.attackers)
        self.note(f"attack: {attacker.kind}")
        attacker.act()

    def stall(self, device: Device) -> None:
        if device.connection is not None:
            self.note("client stops reading")
            device.connection.transport.stall()

    def read(self, device: Device) -> None:
        if device.connection is not None:
            transport = device.connection.transport
            if self.chance.random() < 0.5:
                transport.take(self.chance.randint(1, 200))
            else:
                transport.unstall()

    def lose_connection(self, _device: Device) -> None:
        """The connection to NATS is lost, for a moment or for long."""
        if self.world.log.nats.is_connected:
            self.note("connection to NATS lost")
            self.world.log.nats.disconnect()
            away = self.chance.choice([0.001, 0.05, 1.0, 8.0, 40.0])
            asyncio.get_running_loop().call_later(away, self.world.log.nats.reconnect)

    def hold(self, _device: Device) -> None:
        """The server stores nothing for a while."""
        if not self.world.log.held:
            self.note("JetStream stands still")
            self.world.log.hold()
            still = self.chance.choice([0.01, 0.5, 4.0, 12.0])
            asyncio.get_running_loop().call_later(still, self.world.log.release)

    def fail_projections(self, _device: Device) -> None:
        """The projections cannot be written, or can again."""
        self.note("projections cannot be written, or can again")
        self.world.keyed.fail = not self.world.keyed.fail

    def operate(self) -> None:
        """An operator asks, kicks a client or restarts an actor."""
        chance, broker = self.operator, self.world.broker
        actor = chance.choice(list(broker.kernel)).actor_urn
        endpoint, request = chance.choice(
            [
                ("status", {"topics": True}),
                ("actors", {"top": {"by": "recent", "count": 3}}),
                ("sessions", {}),
                ("session", {"client": chance.choice(self.devices).name}),
                ("subscriptions", {"topic": "t/pub1/a1"}),
                ("change", {"do": "kick", "client": chance.choice(self.devices).name, "by": "o"}),
                ("change", {"do": "restart", "actor": actor, "by": "o"}),
                ("change", {"do": "restart", "actor": actor, "by": "o"}),
            ]
        )
        self.note(f"operator: {request.get('do', endpoint)}")
        if endpoint == "change":
            # What closes a connection may come before the DISCONNECT that is on its way.
            for device in self.devices:
                if device.connection is not None:
                    device.connection.alone = False
        self._begin_to_ask(endpoint, request)

    def archive(self) -> None:
        """An archive reports its progress to the broker; sometimes that is wrong or outdated."""
        chance, disk = self.archivist, self.world.disk
        if not disk.stream.history:
            return
        through = chance.choice([disk.stream.last, chance.randint(1, disk.stream.last)])
        told = decode_record(through, disk.stream.history[through])
        link = told.link if chance.random() < 0.9 else told.previous
        self.note("archived")
        self._begin_to_ask(
            "change",
            {
                "do": "archived",
                "by": "a",
                "through": through,
                "link": link.hex(),
                "where": chance.choice(["/a", "/b"]),
            },
        )

    def _begin_to_ask(self, endpoint: str, request: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(endpoint, request))
        self.asked.add(task)
        task.add_done_callback(self.asked.discard)

    async def _ask(self, endpoint: str, request: dict[str, Any]) -> None:
        with contextlib.suppress(Refused, pykka.ActorDeadError):
            answer = await self.world.broker.inspection.inspector.ask_for(endpoint, request)
            if "done" in answer:
                self.counts[f"operator: {request['do']} done"] += len(answer["done"])

    def turn_cut(self) -> None:
        """A turn was split: perhaps something else happens before it continues."""
        if self.intruder.random() < self.intruding:
            # Due work runs before the rest of the turn, which is scheduled after it.
            asyncio.get_running_loop().call_soon(self.intrude)

    def intrude(self) -> None:
        """A message between two parts of a turn."""
        world, chance = self.world, self.intruder
        if not world.up or world.failure() is not None:
            return
        what, deed = chance.choice(
            [
                ("take over or connect", lambda one: one.connect(world)),
                ("drop", lambda one: self.drop(one)),
                ("leave", lambda one: self.leave(one)),
                ("publish", lambda one: self.publish(one)),
                ("unsubscribe", lambda one: self.unsubscribe(one)),
                ("operator", lambda _: self.operate()),
                ("other permissions", lambda _: self.permit(chance.choice(_PERMISSIONS))),
                ("other permissions", lambda _: self.permit(chance.choice(_PERMISSIONS))),
            ]
        )
        if world.broker.kernel.between:
            self.note(f"between parts: {what}")
        deed(chance.choice(self.devices))

    def permit(self, permissions: str) -> None:
        """Let the broker read other permissions, as SIGHUP does."""
        world, broker = self.world, self.world.broker
        world.permissions = parse_rules(Path("rules.toml"), permissions)
        broker.reload(broker.node.options, broker.admission.authenticator, world.permissions)

    # From the beginning to the end.

    async def run(self) -> Outcome:
        world, faults = self.world, self.faults
        cast("VirtualLoop", asyncio.get_running_loop()).limit = _LONGEST
        await world.start()
        self.connect_all(self.devices[0])
        await world.go(1.0)
        faults.appends, faults.asks = self.rates
        for _ in range(STEPS):
            await self.step()
            self.look()
        await self.finish()
        await self.check()
        await world.crash()
        self.counts += faults.counts
        self.counts += Counter({f"killed {what}": n for what, n in world.killed.items()})
        self.counts["cuts"] = sum(isinstance(event, LogCut) for event in world.disk.events())
        self.counts["withheld"] = sum(
            isinstance(event, MessageDropped) and event.reason == "not_permitted"
            for event in world.disk.events()
        )
        self.counts["records"] = len(world.disk.stream.history)
        self.counts["messages"] = len(self.account.messages)
        return Outcome(self.seed, self.counts, *self.digests())

    async def finish(self) -> None:
        """Let nothing go wrong any more, everybody come back and everything settle."""
        world = self.world
        for task in self.asked:
            task.cancel()
        for attacker in self.attackers:
            attacker.leave()
        self.intruding = 0.0
        self.faults.off()
        world.fuse = None
        world.permissions = parse_rules(Path("rules.toml"), _PERMISSIONS[0])
        if world.up and world.failure() is None:
            self.permit(_PERMISSIONS[0])
        if world.log.held:
            world.log.release()
        world.keyed.fail = False
        world.log.nats.reconnect()
        for seconds in range(_TIMEOUT):
            if not world.up or world.failure() is not None:
                if world.up:
                    world.excuse()
                await world.crash()
                await world.start_with_retries()
            for device in self.devices:
                connection = device.connection
                if connection is None:
                    device.connect(world)
                else:
                    connection.lazy = 0.0
                    connection.transport.unstall()
                    connection.pay()
            await world.go(1.0)
            self.look()
            if seconds > 2 and self.settled():
                return
        raise AssertionError(
            f"never settles: {[device for device in self.devices if not settled(device)]}"
        )

    def look(self) -> None:
        """Stop as soon as a client finds something wrong or the broker reports an error."""
        if self.world.problems:
            raise self.world.problems[0]
        assert not self.errors, self.errors[0]
        clock = self.world.broker.node.clock
        if self.world.up and self.world.clock.monotonic() > self.set_at + _CLOCK_SEEN_WITHIN:
            assert abs(clock.ahead_ms()) < 3000, "the broker does not see that the clock was set"

    def settled(self) -> bool:
        """Return whether neither clients nor broker wait for anything."""
        world = self.world
        return (
            world.up
            and world.failure() is None
            and world.broker.node.journal.idle
            and all(settled(device) for device in self.devices)
            and not any(
                state.inflight or state.releasing or state.queued
                for _, state in world.broker.node.state.sessions.items()
            )
        )

    async def _all_durable(self) -> None:
        """Wait until everything is on disk, also if another node has just taken over."""
        for _ in range(20):
            broker = self.world.broker
            await broker.wait_durable()
            if broker is self.world.broker and broker.node.journal.idle:
                return
            await self.world.go(1.0)

    async def check(self) -> None:
        world = self.world
        broker = world.broker
        assert world.failure() is None
        assert broker.sessions.attached == sum(
            one.connected for one in broker.node.state.sessions.live.values()
        )
        world.direct = True
        reader = SimClient(world)
        reader.send(p.connect("reader"))
        # One topic after the other: at QoS 0 what is too much at once is dropped.
        for pid, topic in enumerate(self.account.retained, 1):
            reader.send(p.subscribe(pid, (topic, 0)))
            await world.go(1.0)
            for _ in range(60):  # a full log takes input when it has been cut
                if not world.broker.node.journal.congested:
                    break
                await world.go(1.0)
            await world.go(0.1)
        packets = [
            packet for packet in reader.take() if isinstance(packet, p.Publish) and packet.retain
        ]
        kept = {packet.topic: packet.payload for packet in packets}
        assert len(kept) == len(packets), "a topic is retained twice"
        self.account.check_retained(kept)
        reader.send(p.disconnect())
        self.account.check(dropped(world.disk))
        await world.go(1.0)
        await self._all_durable()
        compare(world)
        await world.crash()
        await world.start()
        await self._all_durable()
        compare(world)
        disk = world.disk
        history = [decode_record(at, data) for at, data in sorted(disk.stream.history.items())]
        for records in (history, disk.decoded()):
            wrong = violations(records)
            assert not wrong, wrong
        check_archived(history, guarded=world.options.keep_until_archived)
        self.look()

    def digests(self) -> tuple[str, str]:
        """Return digests of the log and of what clients received."""
        log, transcripts = hashlib.sha256(), hashlib.sha256()
        for data in self.world.disk.stream.history.values():
            log.update(data)
        for transcript in self.world.transcripts:
            transcripts.update(repr(transcript).encode())
        return log.hexdigest(), transcripts.hexdigest()


def check_archived(history: Iterable[Record], *, guarded: bool) -> None:
    """Raise AssertionError where more was cut off than was archived, or said by another log."""
    links: dict[int, str] = {}
    turns = TurnAssembler()
    through = 0
    for record in history:
        links[record.sequence] = record.link.hex()
        _, whole = turns.take(record)
        for _, event in (event for part in whole for event in part.events()):
            if isinstance(event, LogArchived):
                assert links[event.through] == event.link
                through = event.through
            elif isinstance(event, LogCut):
                assert (event.reason == "archived") is guarded
                assert event.first <= through + 1 or not guarded, (event, through)


_PERMISSIONS = [
    "[[allow]]\nboth = ['#']\n" + deny
    for deny in (
        "",
        "[[deny]]\nclients = ['sub1', 'both']\nsubscribe = ['t/pub1/a1', 't/pub1/a2']\n",
        "[[deny]]\nsubscribe = ['t/pub2/a2', 'r/pub2/a1', 't/pub3/a0', 't/pub3/b1']\n",
    )
]
"""What clients may do. No rule refuses a filter that a device subscribes to."""

_WEIGHTS: dict[Callable[[Chaos, Device], None], float] = {
    Chaos.pay: 15.0,
    Chaos.connect: 8.0,
    Chaos.connect_all: 2.0,
    Chaos.leave: 4.0,
    Chaos.drop: 5.0,
    Chaos.subscribe: 4.0,
    Chaos.unsubscribe: 3.0,
    Chaos.stall: 3.0,
    Chaos.read: 6.0,
    Chaos.crash: 1.5,
    Chaos.lose_connection: 1.5,
    Chaos.hold: 2.0,
    Chaos.fail_projections: 1.0,
    Chaos.set_clock: 0.5,
}
_HASTY = [None, None, None, 0, 0, 0.0005, 0.01, 0.1]
_SLOW = [None, None, 0, 0, 0.01, 0.1, 1.0, 7.0]


_EXPECTED = {
    "log cannot be written: clients are disconnected until it can",
    "clients are disconnected until this node knows again that it leads the cluster",
}


@contextlib.contextmanager
def errors_of_the_broker() -> Iterator[list[str]]:
    """Collect only the errors that the broker logs; it continues after most of them."""
    errors: list[str] = []

    def collect(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
        if event["event"] not in _EXPECTED:
            structlog.processors.format_exc_info(_logger, _method, event)
            errors.append(str(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[collect],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
    try:
        yield errors
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def small_checkpoints() -> Iterator[None]:
    """Let the log be cut although it is short."""
    before = retention._MIN
    retention._MIN = 2000
    try:
        yield
    finally:
        retention._MIN = before


@contextlib.contextmanager
def small_parts(*, wanted: bool) -> Iterator[None]:
    """Let longer work come in the smallest parts there are."""
    with pytest.MonkeyPatch.context() as patch:
        if wanted:
            patch.setattr(kernel, "LATER_SLICE", 0.0)
            patch.setattr(subscription_handler, "_FILTERS_AT_ONCE", 1)
            patch.setattr(packet_handler, "_RELEASED_AT_ONCE", 1)
            patch.setattr(subscription_handler, "_RETAINED_AT_ONCE", 1)
            patch.setattr(publisher, "_ENOUGH", 0.0)
            patch.setattr(input_actor, "_PACKETS_AT_ONCE", 1)
            patch.setattr(input_actor, "_LARGE", 40)
            patch.setattr(router, "_REMOVED_AT_ONCE", 1)
        yield


class SeededRun(Protocol[T_co]):
    """A random run; ``trace`` says what happened in it."""

    trace: list[str]

    async def run(self) -> T_co:
        """Run; return what happened."""


def run_seed(
    make: Callable[[int, list[str]], SeededRun[T_co]],
    seed: int,
    loop: type[VirtualLoop] = VirtualLoop,
    use: Callable[[Any], object] = lambda _run: None,
) -> T_co:
    """Run a seed, then ``use`` the run; an error names the seed and says what happened last.

    ``make`` is called with the seed and with a list for errors that the broker logs.
    """
    with small_checkpoints(), errors_of_the_broker() as errors:
        made = make(seed, errors)
        try:
            result = simulate(made.run, loop)
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(made.trace[-40:]))
            raise
        use(made)
        return result


def run(seed: int, make_world: type[World] = World) -> Outcome:
    """Run a seed; an error names it and the last actions."""
    with small_checkpoints(), errors_of_the_broker() as errors:
        chaos = Chaos(seed, errors, make_world)
        try:
            with small_parts(wanted=chaos.world.cutting):
                return simulate(chaos.run)
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(chaos.trace[-40:]))
            raise
