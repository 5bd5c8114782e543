"""The bridge with brokers and NATS servers that end, stand still, refuse or get false data."""

import contextlib
import itertools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import packets
from harness.broker import Broker, stand_still
from harness.fixtures import Clients, unique
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.packets import Puback, Pubcomp, Publish, Pubrec
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from e2e.bridging import Heard, Place, Visitor, Wire, mqtt_subscribed, received

ELSEWHERE = ACCESS.replace("nats_", "bridge_")
"""What lets the bridge in at a NATS of its own."""
OWN = ("foldmq.", "$", "_")


@pytest.fixture
def make_place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Makes brokers of the test's own whose embedded NATS is open, started."""
    made: list[Place] = []

    def make(config: str = "", *args: str, nats_listen: bool = True) -> Place:
        directory = tmp_path / f"place{len(made)}"
        made.append(Place(directory, config, *args, nats_listen=nats_listen))
        made[-1].broker.start()
        return made[-1]

    yield make
    for one in made:
        one.clients.close()
        one.broker.clean_up()
        with contextlib.suppress(OSError):  # it may stand still: then it does not end by itself
            pid = one.clients_nats
            if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        print(f"broker in {one.broker.directory}:\n{one.broker.log[-4000:]}")


@pytest.fixture
def stranger(external: Nats) -> Iterator[Visitor]:
    """A client of a NATS of the user's own, which finds it again when it is restarted."""
    options = {"allow_reconnect": True, "reconnect_time_wait": 0.1, "max_reconnect_attempts": -1}
    with Visitor(external.port, user=USER, password=PASSWORD, **options) as made:
        yield made


def exchanged(heard: list[Heard]) -> list[Heard]:
    """What is not the log's own traffic in its account."""
    return [message for message in heard if not message.subject.startswith(OWN)]


class Load:
    """Publishes numbers on two topics, at QoS 1 and 2, as fast as they are acknowledged."""

    def __init__(self, port: int, name: str, *, most: int = 1 << 30) -> None:
        self.name = name
        self.acknowledged = 0
        """Numbers below it were acknowledged, on both topics."""
        self._most = most
        self._over = threading.Event()
        self._client = Clients("127.0.0.1", port).connect(unique("load"), clean=False)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def after(self, count: int) -> None:
        """Return when this many more were acknowledged."""
        wanted = self.acknowledged + count
        until(lambda: self.acknowledged >= wanted, f"{count} more acknowledgements")

    def end(self) -> int:
        """Stop; how many were acknowledged on each of the two topics."""
        self._over.set()
        self._thread.join()
        self._client.close()
        return self.acknowledged

    def _run(self) -> None:
        client = self._client
        with contextlib.suppress(ConnectionClosedError, OSError):
            while not self._over.is_set() and self.acknowledged < self._most:
                numbers = range(self.acknowledged, self.acknowledged + 10)
                for at in numbers:
                    one, two = 2 * at % 60_000 + 1, 2 * at % 60_000 + 2
                    client.send(
                        packets.publish(f"{self.name}/1", b"%d" % at, 1, one)
                        + packets.publish(f"{self.name}/2", b"%d" % at, 2, two)
                    )
                left = 20
                while left:
                    answer = client.receive(20)
                    if isinstance(answer, Pubrec):
                        client.send(packets.pubrel(answer.packet_id))
                    elif isinstance(answer, Puback | Pubcomp):
                        left -= 1
                self.acknowledged = numbers.stop


def complete(heard: list[Heard], name: str, count: int, *, twice: bool) -> None:
    """All numbers came, in order, on both topics; what came twice with the same identifier."""
    for qos in (1, 2):
        mine = [message for message in heard if message.subject == f"{name}.{qos}"]
        first: dict[bytes, str] = {}
        for message in mine:
            identifier = message.headers["Nats-Msg-Id"]
            assert first.setdefault(message.data, identifier) == identifier
        numbers = [int(data) for data in first]
        jumps = [pair for pair in itertools.pairwise(numbers) if pair[1] != pair[0] + 1]
        assert not jumps, jumps
        assert len(numbers) >= count
        if not twice:
            assert len(mine) == len(first)


def captured(visitor: Visitor, name: str) -> None:
    """Have a JetStream stream of all that is below a name."""
    jetstream = visitor.client.jetstream()
    visitor.do(jetstream.add_stream(name=name, subjects=[f"{name}.>"]))


def in_stream(visitor: Visitor, name: str, enough: Callable[[Counter[str]], bool]) -> list[Heard]:
    """What a stream has, in order, when it has enough on each subject."""

    def counts() -> Counter[str]:
        info = visitor.do(visitor.client.jetstream().stream_info(name, subjects_filter=">"))
        return Counter(info.state.subjects or {})

    until(lambda: enough(counts()), "what the stream is to have")
    ear = visitor.hear("_INBOX.replay")
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        deliver_subject="_INBOX.replay",
    )
    visitor.do(visitor.client.jetstream().add_consumer(name, config))
    total = sum(counts().values())
    return ear.after(total)


def reaches(count: int, name: str) -> Callable[[Counter[str]], bool]:
    return lambda counts: min(counts[f"{name}.1"], counts[f"{name}.2"]) >= count


# ------------------------------------------------------------------ brokers


def test_two_brokers_meet_in_one_nats(
    on_external: Callable[..., Broker], external: Nats, stranger: Visitor
) -> None:
    one, two = on_external(node="n1"), on_external(node="n2")
    for own in (one, two):
        own.start()
    here, there = Clients("127.0.0.1", one.port), Clients("127.0.0.1", two.port)
    name = unique("meet")
    mine = mqtt_subscribed(here, stranger, (f"{name}/#", 2))
    yours = mqtt_subscribed(there, stranger, (f"{name}/#", 2), ("#", 0))
    ear = stranger.hear(">")
    for publisher in (here.connect(), there.connect()):
        for qos in (0, 1, 2):
            publisher.publish(f"{name}/a", b"%d" % qos, qos)
            wanted = [(f"{name}/a", b"%d" % qos, qos)]
            assert received(mine, 1) == wanted
            assert received(yours, 1) == wanted
    stranger.publish(f"{name}.b", b"all", Foldmq_QoS="1", Foldmq_Retain="1")
    for client in (mine, yours):
        assert received(client, 1) == [(f"{name}/b", b"all", 1)]
    here.connect().publish(f"{name}/kept", b"kept", 1, retain=True)
    assert received(yours, 1) == [(f"{name}/kept", b"kept", 1)]
    there.subscribed(f"{name}/kept", 1).expect_publish(f"{name}/kept", b"kept", 1, retain=True)
    stranger.publish(f"{name}.end")
    assert received(mine, 2)[1:] == received(yours, 1) == [(f"{name}/end", b"", 0)]
    found = Counter(message.subject for message in exchanged(ear.heard))
    assert found == {f"{name}.a": 6, f"{name}.b": 1, f"{name}.kept": 1, f"{name}.end": 1}
    for own in (one, two):
        own.stop()
        assert "Traceback" not in own.log
    here.close()
    there.close()


def test_a_killed_broker_sends_pending_messages_to_nats(
    make_place: Callable[..., Place], external: Nats, stranger: Visitor
) -> None:
    place = make_place(ELSEWHERE, "--bridge-url", external.url, nats_listen=False)
    name = unique("killed")
    ear = stranger.hear(f"{name}.>")
    load = Load(place.broker.port, name)
    load.after(100)
    place.broker.kill()
    count = load.end()
    place.broker.start()
    # Some come twice, so their number does not tell.
    owed = {(f"{name}.{qos}", b"%d" % number) for qos in (1, 2) for number in range(count)}
    until(lambda: owed <= {(one.subject, one.data) for one in list(ear.heard)}, "what was owed")
    complete(ear.heard, name, count, twice=True)
    # an orderly end leaves nothing to say again
    other = unique("ended")
    again = stranger.hear(f"{other}.>")
    more = Load(place.broker.port, other, most=100)
    more.after(100)
    place.broker.restart()
    count = more.end()
    assert count == 100
    marker = unique("after")
    later = stranger.hear(marker)
    place.clients.connect().publish(marker, b"x", 1)
    later.after(1)
    complete(again.heard, other, count, twice=False)
    assert place.troubles == []


# ------------------------------------------------------------------ NATS


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_nats_for_clients_is_away_under_load(make_place: Callable[..., Place], how: str) -> None:
    place = make_place("max_outbound_bytes = 4000000\n")  # the bridge holds four times that
    name = unique("away")
    with Visitor(place.nats_port) as visitor:
        captured(visitor, name)
    mqtt = place.clients.subscribed(f"{name}/0")
    publisher = place.clients.connect()
    load = Load(place.broker.port, name)
    load.after(50)
    pid = place.clients_nats
    stand_still(pid)
    load.after(100)
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    large = bytes(1 << 20)
    for _ in range(40):
        publisher.publish(f"{name}/0", large)
        mqtt.expect_publish(f"{name}/0", large)
    load.after(100)
    if how == "stopped":
        until(lambda: "reason=bridge_slow" in place.broker.log, "a line about QoS 0")
        os.kill(pid, signal.SIGCONT)
    load.after(100)
    count = load.end()
    until(lambda: alive_on(place), "NATS for clients")
    with Visitor(place.nats_port) as visitor:
        heard = in_stream(visitor, name, reaches(count, name))
    complete(heard, name, count, twice=True)
    assert place.troubles == []


def alive_on(place: Place) -> bool:
    try:
        Wire(place.nats_port).socket.close()
    except OSError:
        return False
    return True


def test_a_foreign_nats_is_restarted_under_load(
    make_place: Callable[..., Place], external: Nats, stranger: Visitor
) -> None:
    place = make_place(ELSEWHERE, "--bridge-url", external.url, nats_listen=False)
    name = unique("restart")
    captured(stranger, name)
    mqtt = mqtt_subscribed(place.clients, stranger, (f"{name}/0", 1))
    load = Load(place.broker.port, name)
    for times in range(1, 3):
        load.after(100)
        external.kill()
        place.clients.connect().publish(f"{name}/0", b"lost")
        mqtt.expect_publish(f"{name}/0", b"lost")
        until(lambda: "reason=bridge_unavailable" in place.broker.log, "a line about QoS 0")
        load.after(100)
        external.start()
        back = "bridge: connected to NATS again"
        until(lambda: place.broker.log.count(back) == times, "a line that it is back")  # noqa: B023
    load.after(100)
    count = load.end()
    heard = in_stream(stranger, name, reaches(count, name))
    complete(heard, name, count, twice=True)
    stranger.publish(f"{name}.0", b"back", Foldmq_QoS="1")
    assert received(mqtt, 1) == [(f"{name}/0", b"back", 1)]
    assert place.troubles == []


def test_nats_sends_more_than_a_client_may(make_place: Callable[..., Place]) -> None:
    most = 100_000
    place = make_place(f"max_packet_size = {most}\n")
    name = unique("huge")
    with Visitor(place.nats_port) as visitor:
        mqtt = mqtt_subscribed(place.clients, visitor, (name, 1))
        for qos in ("0", "1", "2") * 2:
            visitor.publish(name, bytes(most + 1), Foldmq_QoS=qos)
        visitor.publish(name, bytes(most), Foldmq_QoS="1")
        assert received(mqtt, 1) == [(name, bytes(most), 1)]
    assert "reason=bridge_too_large" in place.broker.log
    assert place.troubles == []


# ------------------------------------------------------------------ lies


def test_hostile_subjects_and_headers_break_nothing(make_place: Callable[..., Place]) -> None:
    place = make_place()
    chance = random.Random(6)
    name = unique("hostile").encode()
    with Visitor(place.nats_port) as visitor, Wire(place.nats_port) as wire:
        everything = mqtt_subscribed(place.clients, visitor, ("#", 0), ("+/+", 2))
        reader = Reader(everything, b"end")
        for number in range(10_000):
            subject = hostile_subject(chance)
            if chance.random() < 0.5:
                wire.send(b"PUB %b %d\r\n%d\r\n" % (subject, len(b"%d" % number), number))
            else:
                reply = chance.choice([b"", b"_INBOX.x", b"$JS.API.INFO", b"foldmq.log.x"])
                wire.hpub(subject, hostile_headers(chance), b"%d" % number, reply)
            if number % 500 == 0:
                wire.pong()
        wire.hpub(name, b"NATS/1.0\r\n" + b"A: b\r\n" * 170_000 + b"\r\n", b"much")
        wire.hpub(name, b"NATS/1.0\r\nNats-Msg-Id: " + b"i" * 1_000_000 + b"\r\n\r\n", b"long")
        strange = [line for line in wire.pong() if not line.startswith(b"-ERR 'Invalid")]
        assert strange == []
        visitor.publish(name.decode(), b"end", Foldmq_QoS="1")
        reader.end()
        assert place.broker.running
        assert {b"much", b"long"} <= set(reader.payloads)
        assert len(reader.payloads) == len(set(reader.payloads))
    assert place.troubles == []
    place.broker.stop()


class Reader:
    """Reads and acknowledges what comes up to a payload, in a thread of its own."""

    def __init__(self, client: RawClient, last: bytes) -> None:
        self.payloads: list[bytes] = []
        self._client = client
        self._last = last
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Return when the last payload has come."""
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        client = self._client
        while self._last not in self.payloads[-5:]:
            message = client.receive(30)
            if isinstance(message, Publish):
                self.payloads.append(message.payload)
                if message.qos == 1:
                    client.send(packets.puback(message.packet_id))
                elif message.qos == 2:
                    client.send(packets.pubrec(message.packet_id))
            elif isinstance(message, packets.Pubrel):
                client.send(packets.pubcomp(message.packet_id))


def hostile_subject(chance: random.Random) -> bytes:
    """A subject that a server takes, more or less."""
    kinds = [
        lambda: bytes(chance.choice(LEGAL) for _ in range(chance.randint(1, 30))),
        lambda: b".".join(chance.choice(TOKENS) for _ in range(chance.randint(1, 6))),
        lambda: b"a" * chance.choice([3_799, 3_800, 3_801, 3_900]),
        lambda: b".".join([b"b"] * chance.choice([100, 1_500, 1_900])),
        lambda: "/".join(chance.choice("é温🌡\u202e\u0085") for _ in range(4)).encode(),
    ]
    return chance.choice(kinds)()


LEGAL = [byte for byte in range(1, 256) if byte not in b" \t\r\n\x0c"]
TOKENS = [
    b"a",
    b"/",
    b"//",
    b"/20",
    b"/2",
    b"/zz",
    b"/00",
    b"*",
    b">",
    b"$SYS",
    b"\xff",
    b"/2E",
    b"\0",
]
VALUES = [
    b"1",
    b"2",
    b"3",
    b"-1",
    b"9" * 400,
    b"\x00",
    b"0x1",
    b" 1 ",
    "\u0661".encode(),
    b"1\r\nFoldmq-Retain: 1",
    b"\xff\xfe",
    b"",
]


def hostile_headers(chance: random.Random) -> bytes:
    """Something where headers should be."""
    keys = [
        b"Foldmq-QoS",
        b"foldmq-qos",
        b"Foldmq-Retain",
        b"Nats-Msg-Id",
        b"",
        b"\x00",
        b":",
        b"X",
    ]
    lines = [
        chance.choice(keys) + chance.choice([b":", b": ", b" ", b"::"]) + chance.choice(VALUES)
        for _ in range(chance.randint(0, 5))
    ]
    begin = chance.choice([b"NATS/1.0\r\n"] * 5 + [b"NATS/1.0 503\r\n", b"\r\n", b"", b"\x00" * 20])
    end = chance.choice([b"\r\n\r\n"] * 5 + [b"\r\n", b"", b"\n\n"])
    return begin + chance.choice([b"\r\n", b"\r\n", b"\n"]).join(lines) + end


# ------------------------------------------------------------------ settings


def test_without_a_bridge_nothing_crosses(make_place: Callable[..., Place]) -> None:
    place = make_place("", "--no-bridge")
    name = unique("off")
    mqtt = place.clients.subscribed("#")
    with Visitor(place.nats_port) as visitor:
        ear = visitor.hear(">")
        visitor.publish(name, b"x")
        place.clients.connect().publish(name, b"y", 2)
        assert received(mqtt, 1) == [(name, b"y", 0)]
        visitor.flush()
        assert ear.payloads.count(b"y") == 0
    assert "  bridge     off\n" in place.broker.log


# ------------------------------------------------------------------ Sparkplug
