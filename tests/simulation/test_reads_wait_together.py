"""Reads of clients wait for each other: what that may change, and what it may not."""

import random
from typing import Any

import pytest
from harness import packets as p
from harness.packets import Connack, Puback, Pubcomp, Publish, Pubrec
from harness.plainaudit import violations

from actors.kernel.gathering import Gathering
from actors.kernel.kernel import Kernel
from simulation.fold import compare
from simulation.world import SimClient, World, in_world, simulate

DISK = 0.001
"""Seconds until a record is on disk in these worlds."""
TIMER = 0.001
"""Resolution of timers in seconds."""


class Publisher(SimClient):
    """Publishes at QoS 1 or 2, and knows how long each answer took."""

    def __init__(self, world: World, name: str, *, loops: bool = False) -> None:
        super().__init__(world)
        self.name, self.loops = name, loops
        self.done = 0
        self.longest = 0.0
        self.sent = 0
        self._since: dict[int, float] = {}
        self.send(p.connect(name))

    def publish(self, qos: int = 1) -> None:
        self.sent += 1
        pid = self.sent % 60_000 + 1
        self._since[pid] = self.world.clock.monotonic()
        self.send(p.publish(f"t/{self.name}", b"%d" % self.sent, qos, pid))

    def on_packet(self, packet: p.Packet) -> None:
        now = self.world.clock.monotonic()
        if isinstance(packet, Puback | Pubrec):
            self.longest = max(self.longest, now - self._since[packet.packet_id])
        if isinstance(packet, Pubrec):
            self._since[packet.packet_id] = now
            self.send(p.pubrel(packet.packet_id))
        elif isinstance(packet, Puback | Pubcomp):
            since = self._since.pop(packet.packet_id)
            self.longest = max(self.longest, now - since)
            self.done += 1
            if self.loops:
                self.publish()


class Reader(SimClient):
    """Acknowledges QoS 1 and 2, and keeps the order of what each publisher sent."""

    def __init__(self, world: World, *filters: tuple[str, int]) -> None:
        super().__init__(world)
        self.order: dict[str, list[int]] = {}
        self.send(p.connect("reader"), p.subscribe(1, *filters))

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, Publish):
            self.order.setdefault(packet.topic, []).append(int(packet.payload))
            answer = p.puback if packet.qos == 1 else p.pubrec
            self.send(answer(packet.packet_id or 0))
        elif isinstance(packet, p.Pubrel):
            self.send(p.pubcomp(packet.packet_id))


def records(world: World) -> int:
    return len(world.disk.stream.history)


async def at_rate(
    world: World, rate: float, seconds: float, *, seed: int = 0, clients: int = 20
) -> tuple[list[Publisher], Reader]:
    """Publish at a rate, independently of answers, with some bursts of single clients."""
    chance = random.Random(seed)
    reader = Reader(world, ("t/#", 2))
    publishers = [Publisher(world, str(number)) for number in range(clients)]
    await world.go(2)
    for _ in range(int(rate * seconds)):
        number = chance.randrange(clients)
        for _ in range(chance.choice([1, 1, 1, 3])):
            # Messages of different QoS have no order.
            publishers[number].publish(2 if number % 3 == 0 else 1)
        await world.go(chance.expovariate(rate))
    await world.go(1)
    return publishers, reader


@pytest.mark.parametrize(
    ("rate", "delay"), [(50, 0.0), (50, 0.05), (1000, 0.0), (1000, 0.003), (1000, 0.05)]
)
def test_order_and_time_with_every_delay(rate: int, delay: float) -> None:
    async def scenario() -> None:
        world = World(lambda: DISK, commit_delay=delay, ack_delay=1.0)
        async with world.running():
            publishers, reader = await at_rate(world, rate, 2.0)
            for publisher in publishers:
                assert publisher.done == publisher.sent
                # A record may be on its way when the wait ends.
                assert publisher.longest <= delay + 2 * DISK + 2 * TIMER
                assert reader.order[f"t/{publisher.name}"] == sorted(
                    reader.order[f"t/{publisher.name}"]
                )
                assert len(reader.order[f"t/{publisher.name}"]) == publisher.sent
            await world.go(1)
            compare(world)
            assert not violations(world.disk.decoded())

    simulate(scenario)


@pytest.mark.plain
@in_world(delay=lambda: DISK, commit_delay=0.01)
async def test_a_turn_that_takes_the_second_read_of_a_client_first_is_found(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_gathered = Kernel._run_gathered

    def reversed_reads(kernel: Kernel) -> None:
        kernel._gathered = kernel._gathered[: kernel._left] + kernel._gathered[kernel._left :][::-1]
        run_gathered(kernel)

    monkeypatch.setattr(Kernel, "_run_gathered", reversed_reads)
    publishers, reader = await at_rate(world, 1000, 1.0)
    assert any(
        reader.order[f"t/{publisher.name}"] != sorted(reader.order[f"t/{publisher.name}"])
        for publisher in publishers
    )


def cost(rate: int, delay: float) -> float:
    """Return records a message."""
    found = []

    async def scenario() -> None:
        async with World(lambda: DISK, commit_delay=delay, ack_delay=1.0).running() as world:
            Reader(world, ("t/#", 1))
            publishers = [Publisher(world, str(number)) for number in range(50)]
            await world.go(2)
            before = records(world)
            for number in range(2 * rate):
                publishers[number % 50].publish()
                await world.go(1 / rate)
            await world.go(1)
            found.append((records(world) - before) / (2 * rate))

    simulate(scenario)
    return found[0]


def test_messages_of_independent_clients_share_records() -> None:
    assert cost(1000, 0.0) > 0.9
    assert cost(1000, 0.003) < 0.45
    assert cost(1000, 0.01) < 0.15
    assert 0.9 < cost(200, 0.003) <= 1.05, "nobody would join"
    assert cost(200, 0.01) < 0.7


def closed_loops(clients: int, delay: float) -> int:
    """Return how many messages some clients send in two seconds, each after the last answer."""
    found = []

    async def scenario() -> None:
        async with World(lambda: 0.002, commit_delay=delay).running() as world:
            Reader(world, ("t/#", 1))
            publishers = [Publisher(world, str(number), loops=True) for number in range(clients)]
            await world.go(2)
            for one in publishers:
                one.publish()
            await world.go(2)
            found.append(sum(publisher.done for publisher in publishers))

    simulate(scenario)
    return found[0]


@pytest.mark.parametrize("clients", [1, 4])
def test_clients_that_wait_for_answers_keep_their_rate(clients: int) -> None:
    assert closed_loops(clients, 0.003) >= 0.98 * closed_loops(clients, 0.0)


@pytest.mark.plain
def test_a_wait_of_clients_that_wait_for_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = Gathering.joins

    def ignoring_closed_loops(gathering: Gathering, now: float, size: int, **rest: Any) -> bool:
        return joins(gathering, now, size, **rest | {"until": now + 1})

    monkeypatch.setattr(Gathering, "joins", ignoring_closed_loops)
    assert closed_loops(4, 0.003) < 0.9 * closed_loops(4, 0.0)


@in_world(delay=lambda: DISK, commit_delay=0.05)
async def test_a_read_that_waits_is_handled_before_other_input_of_its_client(world: World) -> None:
    noise = [Publisher(world, str(number)) for number in range(20)]
    reader = await world.connect("r", filters=[("x", 1)])
    leaver = await world.connect("leaver", will=p.Will("x", b"will", 1))
    for number in range(300):
        noise[number % 20].publish()
        await world.go(0.005)
    kernel = world.broker.kernel
    leaver.send(p.publish("x", b"1", 1, 1))
    leaver.send(p.publish("x", b"2", 1, 2))
    assert kernel._gathered, "it waits"
    assert not kernel.scheduled
    leaver.drop()
    await world.go(0.2)
    found = reader.payloads()
    assert found == [b"1", b"2", b"will"]


@in_world(delay=lambda: DISK, commit_delay=0.003)
async def test_what_waited_for_others_waits_for_the_disk(world: World) -> None:
    publishers, _ = await at_rate(world, 1000, 0.5)
    world.log.hold()
    done = [publisher.done for publisher in publishers]
    for number in range(100):
        publishers[number % 20].publish()
        await world.go(0.001)
    await world.go(0.1)
    assert [publisher.done for publisher in publishers] == done
    world.log.release()
    await world.go(0.1)
    assert all(publisher.done == publisher.sent for publisher in publishers)


@in_world(delay=lambda: 0.0, commit_delay=0.05)
async def test_a_connect_ends_the_wait(world: World) -> None:
    publishers, _ = await at_rate(world, 100, 3.0)
    publisher = publishers[0]
    await world.go(0.005)
    for one in publishers:
        one.publish()
        if world.broker.kernel._gathered:
            break
    assert world.broker.kernel._gathered
    newcomer = SimClient(world)
    newcomer.send(p.connect("new"))
    await world.go(0.01)
    assert isinstance(newcomer.take()[0], Connack)
    assert not world.broker.kernel._gathered
    assert publisher.done == publisher.sent
