"""The bridges of several logs: every message once on either side, whatever is lost or killed."""

import random
from collections import Counter, defaultdict
from typing import Any

import orjson
import pytest
from harness import mqtt5_packets as p5
from harness import packets as p

from actors.session.session_messages import Loaded
from eventstore.format.events import MessagePublished
from eventstore.partitions import partition_of
from protocol.nats.headers import parse_headers
from simulation.bridged_clients import Client5
from simulation.bridged_partitions import BridgedPartitions, bridged, payloads
from simulation.partitions import PartitionWorld, name_in


def level_of(home: int, count: int = 2, prefix: str = "in") -> str:
    """Return a first level whose topics have a home."""
    return next(
        name
        for name in (f"{prefix}{at}" for at in range(1000))
        if partition_of(name, count) == home
    )


# ------------------------------------------------------------------ from NATS


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_every_client_gets_a_message_from_nats_once(
    monkeypatch: pytest.MonkeyPatch, qos: int, count: int
) -> None:
    levels = [level_of(home, count) for home in range(count)]

    async def scenario(place: BridgedPartitions) -> None:
        clients = [await place.client(number, ("#", 2)) for number in range(count)]
        clients += [
            await place.client(number, (f"{levels[0]}/+", 2), ("+/a", 1), name="d")
            for number in range(count)
        ]
        for number in range(20):
            for level in levels:
                payload = f"{level} {number}".encode()
                place.publish(f"{level}.a", payload, "_INBOX.visitor.1", Foldmq_QoS=str(qos))
        await place.worlds[0].go(2.0)
        wanted = {f"{level} {number}".encode() for number in range(20) for level in levels}
        for client in clients:
            assert payloads(client) == dict.fromkeys(wanted, 1)
            for level in levels:
                got = [
                    message.payload for message in client.messages if message.topic == f"{level}/a"
                ]
                assert got == [f"{level} {number}".encode() for number in range(20)]
        answers = [orjson.loads(answer.payload) for answer in place.answers]
        streams = Counter(answer["stream"] for answer in answers)
        recorded = {f"FOLDMQ_LOG_{world.name}": 20 for world in place.worlds}
        assert streams == (recorded if qos else {})

    bridged(monkeypatch, scenario, count)


@pytest.mark.parametrize("seed", range(5))
def test_a_client_misses_nothing_after_its_suback(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.nats.slowest = 0.2
        for home in (0, 1):
            client = await place.connect(0, f"c{home}")
            topic = level_of(home)
            client.send(p5.subscribe(1, (f"{topic}/#", 1)))
            while not client.granted:
                await place.worlds[0].go(0.0001)
            place.publish(f"{topic}.a", b"1", f"_INBOX.visitor.{home}", Foldmq_QoS="1")
            await place.worlds[0].go(3.0)
            assert payloads(client) == {b"1": 1}
        assert len(place.answers) == 2

    bridged(monkeypatch, scenario, seed=seed)


def one_filter(place: BridgedPartitions, topic: str) -> Counter[bool]:
    """Return how often the filters of a topic began (True) and ended in the first log."""
    bridge = place.worlds[0].broker.bridge
    assert bridge is not None
    told, tell = Counter[bool](), bridge.interest.on_change

    def noted(topic_filter: str, begun: bool) -> None:
        told[begun] += topic_filter.startswith(topic)
        tell(topic_filter, begun)

    bridge.interest.on_change = noted
    return told


@pytest.mark.parametrize("first", [True, False])
def test_a_client_that_leaves_while_it_waits_does_not_end_the_filter_of_another(
    monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.nats.slowest = 0.5
        topic = level_of(1)
        told = one_filter(place, topic)
        leaving = Client5(place.worlds[0])
        leaving.send(p5.connect(name_in(place.worlds, 0, "leaving")))
        staying = await place.connect(0, "staying")
        for client in (leaving, staying) if first else (staying, leaving):
            client.send(p5.subscribe(1, (f"{topic}/#", 1)))
        await place.worlds[0].go(0.01)
        assert not leaving.granted
        leaving.drop()
        await place.worlds[0].go(0.01)
        assert not staying.granted
        await place.until(lambda: staying.granted == 1)
        place.publish(f"{topic}.a", b"1", "_INBOX.visitor.1", Foldmq_QoS="1")
        await place.worlds[0].go(3.0)
        assert payloads(staying) == {b"1": 1}
        assert told == {True: 1}
        staying.send(p5.unsubscribe(2, f"{topic}/#"))
        await place.worlds[0].go(3.0)
        assert told == {True: 1, False: 1}

    bridged(monkeypatch, scenario)


def test_filters_that_were_announced_end_when_the_session_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.nats.slowest = 0.5
        topic = level_of(1)
        told = one_filter(place, topic)
        client = await place.connect(0)
        client.send(p5.subscribe(1, *((f"{topic}/{number}", 1) for number in range(100))))
        await place.worlds[0].go(0.01)
        assert told == {True: 100}
        broker = place.worlds[0].broker
        session = broker.sessions.session(name_in(place.worlds, 0, "c"))
        broken: Any = None
        broker.kernel.tell(session, Loaded(broken))
        await place.worlds[0].go(1.0)
        assert told == {True: 100, False: 100}

    bridged(monkeypatch, scenario)


def test_subscriptions_are_confirmed_after_nats_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.nats.slowest = 0.5
        client = await place.connect(0)
        client.send(p5.subscribe(1, (f"{level_of(1)}/#", 1)))
        await place.worlds[0].go(0.05)
        place.nats.stop()
        place.nats.start()
        await place.until(lambda: client.granted == 1, 5.0)

    bridged(monkeypatch, scenario)


def test_a_suback_comes_before_the_retained_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        writer = await place.client(0, name="w")
        for home in (0, 1):
            writer.send(p5.publish(f"{level_of(home)}/a", b"old", retain=True))
        await place.worlds[0].go(1.0)
        for home in (0, 1):
            client = await place.client(0, (f"{level_of(home)}/#", 1), name=f"c{home}")
            await place.worlds[0].go(0.1)
            assert client.kinds == [p.CONNACK, p.SUBACK, p.PUBLISH]

    bridged(monkeypatch, scenario)


def test_a_suback_does_not_wait_for_a_broker_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.kill(place.worlds[1])
        await place.worlds[0].go(3.0)
        client = await place.connect(0)
        client.send(p5.subscribe(1, ("a/#", 1)))
        await place.worlds[0].go(0.05)
        assert client.granted == 1
        await place.restart(place.worlds[1])

    bridged(monkeypatch, scenario)


def test_acknowledged_messages_wait_for_a_broker_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        topic = level_of(0)
        await place.client(1, (f"{topic}/#", 1))
        place.kill(place.worlds[1])
        await place.worlds[0].go(2.0)
        place.publish(f"{topic}.a", b"1", "_INBOX.visitor.1", Foldmq_QoS="1")
        await place.worlds[0].go(1.0)
        assert len(place.answers) == 1
        await place.restart(place.worlds[1])
        client = await place.connect(1)
        await place.worlds[0].go(2.0)
        assert payloads(client) == {b"1": 1}

    bridged(monkeypatch, scenario)


def test_a_home_that_restarts_learns_the_filters_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        topic = level_of(0)
        client = await place.client(1, (f"{topic}/#", 1))
        place.kill(place.worlds[0])
        await place.worlds[1].go(2.0)
        place.publish(f"{topic}.a", b"missed", "_INBOX.visitor.1", Foldmq_QoS="1")
        place.publish(f"{topic}.a", b"volatile")
        await place.worlds[1].go(1.0)
        assert not place.answers  # nothing was acknowledged
        assert payloads(client) == {b"volatile": 1}
        await place.restart(place.worlds[0])
        await place.worlds[1].go(1.0)
        place.publish(f"{topic}.a", b"there", "_INBOX.visitor.2", Foldmq_QoS="1")
        await place.worlds[1].go(1.0)
        assert len(place.answers) == 1
        assert payloads(client) == {b"volatile": 1, b"there": 1}

    bridged(monkeypatch, scenario)


def subjects_of(place: BridgedPartitions, number: int) -> int:
    """Return the number of subscriptions that a broker has in NATS."""
    bridge = place.worlds[number].broker.bridge
    assert bridge is not None
    return bridge.interest.subjects


@pytest.mark.parametrize("lost", [0.0, 0.7])
def test_the_home_subscribes_as_long_as_a_client_of_any_log_does(
    monkeypatch: pytest.MonkeyPatch, lost: float
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        here, there = level_of(0), level_of(1)
        one = await place.client(1, (f"{here}/a", 1), (f"{there}/a", 1), ("+/b", 0))
        other = await place.client(0, (f"{here}/a", 1))
        await place.until(lambda: subjects_of(place, 0) == 2, 200)
        assert subjects_of(place, 1) == 3
        other.send(p5.unsubscribe(2, f"{here}/a"))
        await place.worlds[0].go(20.0)
        assert subjects_of(place, 0) == 2
        one.send(p5.unsubscribe(2, f"{here}/a", "+/b"))
        await place.until(lambda: subjects_of(place, 0) == 0, 200)
        assert subjects_of(place, 1) == 1

    bridged(monkeypatch, scenario, lost=lost)


def test_filters_of_sessions_that_ended_with_their_broker_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        topic = level_of(0)
        await place.client(1, (f"{topic}/kept", 1))
        client = Client5(place.worlds[1])
        client.send(p5.connect(name_in(place.worlds, 1, "clean")))
        client.send(p5.subscribe(1, (f"{topic}/gone", 1)))
        await place.until(lambda: subjects_of(place, 0) == 2)
        place.kill(place.worlds[1])
        await place.worlds[0].go(5.0)
        assert subjects_of(place, 0) == 2  # what the sessions of that log miss, they get later
        await place.restart(place.worlds[1])
        await place.until(lambda: subjects_of(place, 0) == 1)

    bridged(monkeypatch, scenario)


def test_retained_messages_from_nats_are_in_all_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        for home in (0, 1):
            for qos in (0, 1):
                subject = f"{level_of(home)}.{qos}"
                place.publish(subject, b"old", Foldmq_QoS=str(qos), Foldmq_Retain="1")
                place.publish(subject, b"new", Foldmq_QoS=str(qos), Foldmq_Retain="1")
        await place.worlds[0].go(1.0)
        for number in (0, 1):
            client = await place.client(number, ("#", 1))
            await place.worlds[0].go(0.5)
            topics = [f"{level_of(home)}/{qos}" for home in (0, 1) for qos in (0, 1)]
            assert sorted(message.topic for message in client.messages) == sorted(topics)
            assert payloads(client) == {b"new": 4}
            assert all(message.retain for message in client.messages)

    bridged(monkeypatch, scenario, bridge={"always": ("+/0", "+/1")})


def test_a_birth_from_nats_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        clients = [await place.client(number, ("spBv1.0/#", 0)) for number in (0, 1)]
        place.publish("spBv1//0.g.NBIRTH.n", b"born")
        await place.worlds[0].go(1.0)
        assert [payloads(client) for client in clients] == [{b"born": 1}] * 2
        for number in (0, 1):
            late = await place.client(number, ("$sparkplug/certificates/#", 0), name="late")
            await place.worlds[0].go(0.5)
            assert [message.topic for message in late.messages] == [
                "$sparkplug/certificates/spBv1.0/g/NBIRTH/n"
            ]
        published = [
            sum(
                isinstance(event, MessagePublished) and event.session == "$nats"
                for event in world.disk.events()
            )
            for world in place.worlds
        ]
        assert sorted(published) == [0, 1]

    bridged(monkeypatch, scenario)


# ------------------------------------------------------------------ to NATS


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nats_and_every_client_get_a_publication_once(
    monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.hear(">")
        readers = [await place.client(number, ("#", 2)) for number in (0, 1)]
        writers = [await place.client(number, name="w") for number in (0, 1)]
        for number in range(1, 30):
            for at, writer in enumerate(writers):
                payload = b"%d %d" % (at, number)
                pid = number if qos else None
                writer.send(p5.publish(f"{level_of(1 - at)}/x", payload, qos, pid))
            await place.worlds[0].go(0.005)
        await place.worlds[0].go(2.0)
        wanted = {b"%d %d" % (at, number): 1 for at in (0, 1) for number in range(1, 30)}
        assert Counter(got.payload for got in place.heard) == wanted
        for reader in readers:
            assert payloads(reader) == wanted
        for at in (0, 1):
            of = [got for got in place.heard if got.subject == f"{level_of(1 - at)}.x"]
            assert [got.payload for got in of] == [b"%d %d" % (at, one) for one in range(1, 30)]
            assert {parse_headers(got.headers).get("Foldmq-Node") for got in of} == {f"n-p{at}"}

    bridged(monkeypatch, scenario)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_reads_its_log_sends_nothing_of_other_logs(
    monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        place.hear(">")
        await place.client(1, ("#", 2))
        writer = await place.client(0, name="w")
        place.publish("b.c", b"from NATS", "_INBOX.visitor.1", Foldmq_QoS=str(qos))
        await place.worlds[0].go(1.0)
        assert len(place.answers) == 1
        place.heard.clear()
        place.nats.stop()
        for number in range(1, 10):
            writer.send(p5.publish("a/b", b"%d" % number, qos, number))
        await place.worlds[0].go(2.0)
        for world in place.worlds:
            place.kill(world)
        place.nats.start()
        for world in place.worlds:
            await place.restart(world)
        await place.worlds[0].go(20.0)
        assert Counter(got.payload for got in place.heard) == {
            b"%d" % number: 1 for number in range(1, 10)
        }
        nodes = {parse_headers(got.headers).get("Foldmq-Node") for got in place.heard}
        assert nodes == {"n-p0"}

    bridged(monkeypatch, scenario)


@pytest.mark.parametrize("home", [0, 1])
def test_a_copy_that_a_nats_client_publishes_elsewhere_arrives(
    monkeypatch: pytest.MonkeyPatch, home: int
) -> None:
    topic = level_of(home)

    async def scenario(place: BridgedPartitions) -> None:
        there = f"{topic}.d"
        place.nats.subscribe("a.b", lambda got: place.nats.publish(got._replace(subject=there)))
        clients = [await place.client(number, (f"{topic}/#", 1)) for number in (0, 1)]
        writer = await place.client(0, name="w")
        writer.send(p5.publish("a/b", b"1", 1, 1, retain=True))
        await place.worlds[0].go(1.0)
        assert [payloads(client) for client in clients] == [{b"1": 1}] * 2
        assert not any(message.retain for client in clients for message in client.messages)
        assert place.worlds[home].broker.node.state.retained.get(f"{topic}/d") is None

    bridged(monkeypatch, scenario)


# ------------------------------------------------------------------ requests


class Answering(Client5):
    """A client that answers requests from NATS."""

    def answer(self) -> int:
        """Answer what arrived; return the number of requests."""
        count = 0
        for message in self.messages:
            kind, *_ = message.topic.split("/")
            if kind == "$nats":
                token = message.topic.split("/")[2]
                self.send(p5.publish(f"$nats/reply/{token}", b"re " + message.payload))
                count += 1
        self.messages.clear()
        return count


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("reads", [False, True])
def test_a_client_of_any_log_answers_requests_from_nats(
    monkeypatch: pytest.MonkeyPatch, qos: int, home: int, *, reads: bool
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        service = level_of(home)
        if reads:  # so that the home records the request
            for number in (0, 1):
                await place.client(number, (f"{service}/#", 1))
        client = await place.connect(1, "service")
        client.__class__ = Answering
        assert isinstance(client, Answering)
        client.send(p5.subscribe(1, (f"$nats/request/+/{service}/#", 1)))
        await place.worlds[0].go(0.5)
        place.publish(f"{service}.add", b"1", "_INBOX.visitor.1", Foldmq_QoS=str(qos))
        await place.worlds[0].go(0.5)
        assert client.answer() == 1
        await place.worlds[0].go(0.5)
        assert [answer.payload for answer in place.answers] == [b"re 1"]

    bridged(monkeypatch, scenario)


def test_no_broker_subscribes_to_requests_for_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        client = await place.client(1, (f"$nats/request/+/{level_of(0)}/#", 0))
        await place.worlds[0].go(1.0)
        assert [subjects_of(place, number) for number in (0, 1)] == [0, 2]
        client.drop()
        await place.worlds[0].go(1.0)
        assert [subjects_of(place, number) for number in (0, 1)] == [0, 0]

    bridged(monkeypatch, scenario)


@pytest.mark.parametrize("qos", [0, 1])
def test_an_answer_reaches_the_subscribers_of_all_logs_once(
    monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        def serve(got: Any) -> None:
            if b"Foldmq-Response-Topic" in got.headers:
                headers = f"NATS/1.0\r\nFoldmq-QoS: {qos}\r\n\r\n".encode()
                place.nats.publish(
                    got._replace(
                        subject=got.reply, reply="", headers=headers, payload=b"re " + got.payload
                    )
                )

        place.nats.subscribe("svc.>", serve)
        readers = [await place.client(number, ("re/#", 1)) for number in (0, 1)]
        for number in (0, 1):
            writer = await place.client(number, name="w")
            properties = ((p5.RESPONSE_TOPIC, "re/x"), (p5.CORRELATION_DATA, b"7"))
            writer.send(p5.publish("svc/x", b"%d" % number, properties=properties))
            await place.worlds[0].go(1.0)
        for reader in readers:
            assert payloads(reader) == {b"re 0": 1, b"re 1": 1}
            assert all(message.get(p5.CORRELATION_DATA) == b"7" for message in reader.messages)

    bridged(monkeypatch, scenario)


# ------------------------------------------------------------------ random runs


class Chaos:
    """One random run: messages both ways, while brokers, NATS and reports are lost."""

    def __init__(self, place: BridgedPartitions) -> None:
        self.place = place
        self.chance = place.chance
        self.count = len(place.worlds)
        self.levels = [level_of(home, self.count) for home in range(self.count)]
        self.number = 0
        self.clients: list[Client5] = []
        self.sent: list[dict[int, int]] = [{} for _ in place.worlds]
        """Messages by packet identifier, of the present connection of each client."""
        self.acked: set[bytes] = set()
        """Messages of MQTT clients that were acknowledged."""
        self.got: list[dict[str, list[bytes]]] = [defaultdict(list) for _ in place.worlds]
        """Messages of each client by topic."""
        place.hear("out.>")

    async def begin(self) -> None:
        for number in range(self.count):
            filters = [(f"{level}/#", 1) for level in self.levels]
            self.clients.append(await self.place.client(number, *filters, ("+/every", 1)))

    async def run(self) -> None:
        place, chance = self.place, self.chance
        await self.begin()
        for _ in range(60):
            await self.step()
            await place.worlds[0].go(chance.choice([0, 0.001, 0.01, 0.5, 4]))
        for world in place.worlds:
            world.lost = 0.0
        if not place.nats.is_up:
            place.nats.start()
        for world in place.worlds:
            await self.look_after(world)
        await place.worlds[0].go(30)
        for world in place.worlds:
            await self.look_after(world)
        await place.worlds[0].go(5)
        for number in range(self.count):
            self.collect(number)

    async def step(self) -> None:
        place, chance = self.place, self.chance
        kind, world = chance.random(), chance.choice(place.worlds)
        if kind < 0.06 and world.up:
            self.collect(place.worlds.index(world))
            place.kill(world)
        elif kind < 0.09:
            (place.nats.stop if place.nats.is_up else place.nats.start)()
        elif kind < 0.11 and world.up:
            world.fuse = chance.randint(0, 30)
        elif kind < 0.5:
            for _ in range(chance.randint(1, 5)):
                self.publish(chance.randrange(self.count))
        else:
            for _ in range(chance.randint(1, 5)):
                self.publish_from_nats()
        for one in place.worlds:
            if not one.up and chance.random() < 0.2:
                await self.look_after(one)

    async def look_after(self, world: PartitionWorld) -> None:
        """Start a broker again that was killed, and connect its client."""
        number = self.place.worlds.index(world)
        if not world.up:
            self.collect(number)
            await self.place.restart(world)
        if not self.clients[number].open:
            self.collect(number)
            self.clients[number] = await self.place.connect(number)

    def publish(self, number: int) -> None:
        client = self.clients[number]
        if client.open:
            self.number += 1
            pid = self.number & 0xFFFF
            self.sent[number][pid] = self.number
            qos = self.chance.choice([1, 2])
            client.send(p5.publish(f"out/{number}/{qos}", b"%d" % self.number, qos, pid))

    def publish_from_nats(self) -> None:
        self.number += 1
        number = b"%d" % self.number
        subject = f"{self.chance.choice(self.levels)}.{self.chance.choice(['a', 'every'])}"
        reply = f"_INBOX.visitor.{self.number}"
        self.place.publish(subject, number, reply, Foldmq_QoS=self.chance.choice("12"))

    def collect(self, number: int) -> None:
        """Note what a client got."""
        client = self.clients[number]
        self.acked |= {b"%d" % self.sent[number][pid] for pid in client.acked}
        client.acked.clear()
        for message in client.messages:
            self.got[number][message.topic].append(message.payload)
        client.messages.clear()

    def check(self) -> None:
        """Check that nothing acknowledged is lost, and that the order is kept."""
        heard: dict[str, list[bytes]] = defaultdict(list)
        identifiers: dict[bytes, set[str | None]] = defaultdict(set)
        for got in self.place.heard:
            heard[got.subject].append(got.payload)
            identifiers[got.payload].add(parse_headers(got.headers).get("Nats-Msg-Id"))
        found = {payload for of in heard.values() for payload in of}
        assert not self.acked - found, "not in NATS"
        assert all(len(names) == 1 for names in identifiers.values())
        answered = {b"%d" % int(packet.subject.rsplit(".", 1)[1]) for packet in self.place.answers}
        assert answered
        for of_client in self.got:
            received = {payload for got in of_client.values() for payload in got}
            assert not answered - received, "not at a client"
        for lists in (heard, *self.got):
            for of in lists.values():
                first = list(dict.fromkeys(of))
                assert first == sorted(first, key=int), "out of order"


@pytest.mark.parametrize(
    "seed", [pytest.param(one, marks=[pytest.mark.long] if one >= 6 else []) for one in range(30)]
)
def test_nothing_acknowledged_is_lost_in_random_runs(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    async def scenario(place: BridgedPartitions) -> None:
        chaos = Chaos(place)
        await chaos.run()
        chaos.check()

    lost = random.Random(seed).choice([0.0, 0.1, 0.5])
    bridged(monkeypatch, scenario, 2 + seed % 2, seed, lost=lost)
