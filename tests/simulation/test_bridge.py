"""The bridge in random runs: broker and NATS come and go, properties stay with their messages."""

import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from harness import mqtt5_packets as p5
from harness.plainaudit import violations

from actors.bridge import bridge_supervisor
from actors.limits.bridge_options import BridgeOptions
from eventstore.errors import NatsUnavailable
from eventstore.nats.connection import ConnectionOptions
from protocol.mqtt.message_properties import MessageProperties
from protocol.nats.headers import parse_headers
from protocol.nats.mapping import Mapping
from protocol.nats.property_headers import property_lines, read_properties
from simulation.bridged_clients import ACCESS, Client5
from simulation.inspection import ask, change
from simulation.natsserver import Got, SimLink, SimNatsServer
from simulation.world import World, simulate

EXPIRY = 10_000
"""Seconds; no run takes as long."""
TEXTS = ("unit", "°C", "", "a b", "Nats-TTL", "1\r\nNats-Rollup: all", "Foldmq-QoS", "%", "é")
WORDS = ("Nats-Rollup", "Nats-TTL", "Nats-Expected-Stream")


def some_properties(chance: random.Random) -> MessageProperties:
    """Properties that a NATS header can carry, or cannot."""
    user = tuple(
        (chance.choice(TEXTS), chance.choice(TEXTS)) for _ in range(chance.choice([0, 0, 1, 4]))
    )
    return MessageProperties(
        chance.choice([0, 1]),
        chance.choice([None, EXPIRY]),
        chance.choice([None, "text/plain", "é", ""]),
        None,
        chance.choice([None, b"\0\xff", b"id"]),
        user,
    )


def as_packet(properties: MessageProperties) -> p5.Properties:
    """What a client sends for them."""
    found: list[tuple[int, p5.Value]] = []
    for identifier, value in (
        (p5.PAYLOAD_FORMAT, properties.payload_format or None),
        (p5.MESSAGE_EXPIRY, properties.expiry),
        (p5.CONTENT_TYPE, properties.content_type),
        (p5.RESPONSE_TOPIC, properties.response_topic),
        (p5.CORRELATION_DATA, properties.correlation),
    ):
        if value is not None:
            found.append((identifier, value))
    return (*found, *((p5.USER_PROPERTY, pair) for pair in properties.user))


def lasting(properties: p5.Properties) -> list[str]:
    """What must stay as it is: all but the time left, which must not grow."""
    for identifier, value in properties:
        if identifier == p5.MESSAGE_EXPIRY:
            assert isinstance(value, int)
            assert 0 < value <= EXPIRY
    shown = [
        repr(pair) for pair in properties if pair[0] not in (p5.MESSAGE_EXPIRY, p5.USER_PROPERTY)
    ]
    user = [repr(pair) for pair in properties if pair[0] == p5.USER_PROPERTY]
    return sorted(shown) + user


class Run:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World()
        self.world.bridge = BridgeOptions(Mapping())
        self.nats = SimNatsServer(self.chance)
        self.number = 0
        self.published: dict[int, MessageProperties] = {}
        self.acked: set[int] = set()
        """Messages of MQTT clients that the broker acknowledged."""
        self.to_nats: dict[int, list[Got]] = defaultdict(list)
        self.answered: set[int] = set()
        """Messages of NATS clients that the bridge acknowledged."""
        self.to_mqtt: dict[int, list[p5.Publish]] = defaultdict(list)
        self.answers = 0
        self.nats.subscribe("out.>", self._take)
        self.nats.subscribe("svc.>", self._serve)
        self.nats.subscribe("_INBOX.visitor.>", self._take_answer)

    def _take(self, got: Got) -> None:
        self.to_nats[int(got.payload)].append(got)

    def _serve(self, got: Got) -> None:
        if b"Foldmq-Response-Topic" in got.headers and ".a." in got.reply:
            self.nats.publish(Got(got.reply, "", b"", b"re " + got.payload))

    def _take_answer(self, got: Got) -> None:
        assert b"seq" in got.payload
        self.answered.add(int(got.subject.rsplit(".", 1)[1]))

    async def start(self) -> None:
        await self.world.start()
        bridge = self.world.broker.bridge
        assert bridge is not None
        await bridge.start(ACCESS)
        self.client = client = Client5(self.world)
        client.send(p5.connect("c", clean=False, properties=((0x11, 100_000),)))
        client.send(p5.subscribe(1, ("in/#", 1), ("re/#", 1)))
        await self.world.go(0.2)

    def collect(self) -> None:
        """Take what the client got."""
        self.acked |= {number for number in self.published if number & 0xFFFF in self.client.acked}
        for message in self.client.messages:
            if message.topic.startswith("in/"):
                self.to_mqtt[int(message.payload)].append(message)
            else:
                number = int(message.payload.removeprefix(b"re "))
                assert message.get(p5.CORRELATION_DATA) == b"\0%d" % number
                self.answers += 1
        self.client.messages.clear()

    async def crash(self) -> None:
        self.collect()
        self.nats.forget()
        await self.world.crash(self.chance.choice([0, 1, 5]))
        await self.start()

    def publish(self) -> None:
        """Publish a message of an MQTT client."""
        self.number += 1
        number, properties = self.number, some_properties(self.chance)
        self.published[number] = properties
        qos = self.chance.choice([1, 2])
        topic, payload = f"out/{qos}/{number % 3}", b"%d" % number
        self.client.send(p5.publish(topic, payload, qos, number, properties=as_packet(properties)))

    def publish_from_nats(self) -> None:
        """Publish a message of a NATS client."""
        self.number += 1
        number, properties = self.number, some_properties(self.chance)
        self.published[number] = properties
        lines = property_lines(properties).lines
        if properties.expiry is not None:
            lines += b"Foldmq-Message-Expiry: %d\r\n" % properties.expiry
        headers = b"NATS/1.0\r\nFoldmq-QoS: 1\r\n" + lines + b"\r\n"
        self.nats.publish(Got("in.x", f"_INBOX.visitor.{number}", headers, b"%d" % number))

    def ask(self) -> None:
        """Publish a request of an MQTT client."""
        self.number += 1
        properties: p5.Properties = (
            (p5.RESPONSE_TOPIC, "re/x"),
            (p5.CORRELATION_DATA, b"\0%d" % self.number),
        )
        self.client.send(p5.publish("svc/x", b"%d" % self.number, properties=properties))

    async def go(self) -> None:
        await self.start()
        for _ in range(60):
            await self.step()
        if not self.nats.is_up:
            self.nats.start()
        await self.world.go(20)
        for _ in range(3):
            self.ask()
            await self.world.go(0.2)
        self.collect()

    async def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.05:
            await self.crash()
        elif kind < 0.1:
            (self.nats.stop if self.nats.is_up else self.nats.start)()
        else:
            work: Callable[[], None] = self.chance.choice(
                [self.publish, self.publish, self.publish_from_nats, self.ask]
            )
            for _ in range(self.chance.randint(1, 5)):
                work()
        await self.world.go(self.chance.choice([0, 0.001, 0.01, 0.5, 4]))

    def check(self) -> None:
        """Check that nothing acknowledged is lost, and that nothing changed on the way."""
        assert not self.world.problems
        assert self.answers > 0
        missing = self.acked - self.to_nats.keys()
        assert not missing, f"not in NATS: {missing}"
        unsent = self.answered - self.to_mqtt.keys()
        assert not unsent, f"not at the client: {unsent}"
        first: dict[str, int] = {}
        for number, copies in self.to_nats.items():
            properties = self.published[number]
            for got in copies:
                headers = parse_headers(got.headers)
                found = read_properties(headers, got.payload)
                assert found.dropped == 0
                assert lasting(as_packet(found.properties)) == lasting(as_packet(properties))
                assert not any(headers.get(word) for word in WORDS)
                assert headers.get("Nats-Msg-Id") == parse_headers(copies[0].headers).get(
                    "Nats-Msg-Id"
                )
            assert first.get(copies[0].subject, 0) < number
            first[copies[0].subject] = number
        for number, messages in self.to_mqtt.items():
            for message in messages:
                wanted = as_packet(self.published[number])
                assert lasting(message.properties) == lasting(wanted)
        assert not violations(self.world.disk.decoded())


async def open_link(_access: ConnectionOptions, **callbacks: Callable[..., None]) -> SimLink:
    """Stand for ``BatchClient.open``."""
    return SimLink(running[0].nats, callbacks)


running: list[Run] = []


@pytest.mark.parametrize(
    "seed", [pytest.param(one, marks=[pytest.mark.long] if one >= 8 else []) for one in range(20)]
)
def test_nothing_acknowledged_is_lost_and_properties_stay(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_supervisor.BatchClient, "open", open_link)

    async def scenario() -> None:
        run = Run(seed)
        running[:] = [run]
        await run.go()
        run.check()
        run.nats.forget()
        await run.world.crash()

    simulate(scenario)


async def behind_ms(run: Run) -> int:
    """For how long the oldest message waits, as operators are told."""
    (row,) = (await ask(run.world, "destinations"))["rows"]
    return int(row["behind_ms"])


def test_the_age_of_what_waits_is_that_of_the_oldest_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge_supervisor.BatchClient, "open", open_link)

    async def scenario() -> None:
        run = Run(1)
        running[:] = [run]
        await run.start()
        run.publish()
        await run.world.go(10)
        assert await behind_ms(run) == 0
        run.nats.stop()
        await run.world.go(100)
        assert await behind_ms(run) == 0  # nothing waits
        run.publish()
        await run.world.go(50)
        run.publish()
        await run.world.go(50)
        assert 99_000 <= await behind_ms(run) <= 101_000
        run.nats.start()
        await run.world.go(10)
        assert await behind_ms(run) == 0
        run.nats.stop()
        run.publish()
        await run.world.go(60)
        await change(run.world, "skip_destination", to="nats")
        assert await behind_ms(run) == 0
        await run.world.go(10)
        run.publish()
        await run.world.go(60)
        assert 59_000 <= await behind_ms(run) <= 61_000
        run.nats.forget()
        await run.world.crash()

    simulate(scenario)


def test_messages_that_an_earlier_run_left_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_supervisor.BatchClient, "open", open_link)

    async def refuse(_access: ConnectionOptions, **_callbacks: Callable[..., None]) -> SimLink:
        raise NatsUnavailable("away")

    async def scenario() -> None:
        run = Run(1)
        running[:] = [run]
        await run.start()
        await run.world.go(10)
        run.nats.stop()
        run.publish()
        await run.world.go(30)
        run.nats.forget()
        monkeypatch.setattr(bridge_supervisor.BatchClient, "open", refuse)
        await run.world.crash()
        await run.start()
        await run.world.go(30)
        assert 59_000 <= await behind_ms(run) <= 63_000
        await run.world.crash()

    simulate(scenario)
