"""Limits and options in the configuration, seen from a client."""

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
from harness import packets as p
from harness.broker import Broker
from harness.fixtures import Clients, unique
from harness.packets import (
    Connack,
    Packet,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from harness.rawclient import ConnectionClosedError, RawClient

WINDOW = "max_ack_pending = 10\nack_wait = 0\nmax_packet_size = 4000000\n"
IMPATIENT = """
ack_wait = 1.0
connect_timeout = 1.0
max_packet_size = 100000
max_queued_messages = 5
session_expiry = 1.0
"""
NO_QOS_2 = "reject_qos2_publish = true\ndowngrade_qos2_subscribe = true\n"


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Clients]]:
    """Clients of a broker with the given configuration, shared by the tests of this module."""
    brokers: dict[str, Broker] = {}
    made: list[Clients] = []

    def clients(config: str) -> Clients:
        if config not in brokers:
            brokers[config] = Broker(
                tmp_path_factory.mktemp("configured"), config=config, forked=True
            )
            brokers[config].start()
        made.append(Clients("127.0.0.1", brokers[config].port))
        return made[-1]

    yield clients
    for one in made:
        one.close()
    for one in brokers.values():
        one.clean_up()


def publish_many(clients: Clients, topic: str, count: int, qos: int) -> None:
    publisher = clients.connect()
    for number in range(count):
        publisher.publish(topic, b"%d" % number, qos)


# ----------------------------------------------------------- max_ack_pending


@pytest.fixture
def windowed(configured: Callable[[str], Clients]) -> Clients:
    return configured(WINDOW)


@pytest.mark.parametrize("qos", [1, 2])
def test_window_of_unacknowledged_messages(windowed: Clients, topic: str, qos: int) -> None:
    subscriber = windowed.subscribed(topic, qos)
    publish_many(windowed, topic, 30, 2)
    sent = [subscriber.expect_publish(topic, b"%d" % n, qos) for n in range(10)]
    subscriber.expect_nothing()
    for number in range(10, 30):
        subscriber.acknowledge(sent[number - 10])
        sent.append(subscriber.expect_publish(topic, b"%d" % number, qos))
    for message in sent[20:]:
        subscriber.acknowledge(message)
    subscriber.expect_nothing()


def test_each_subscription_has_a_window_of_its_own(windowed: Clients, topic: str) -> None:
    subscriber = windowed.connect()
    subscriber.subscribe((f"{topic}/a", 1), (f"{topic}/b", 1))
    publish_many(windowed, f"{topic}/a", 15, 1)
    publish_many(windowed, f"{topic}/b", 15, 1)
    received = [subscriber.expect_a(Publish) for _ in range(20)]
    subscriber.expect_nothing()
    assert len({m.packet_id for m in received}) == 20
    for letter in "ab":
        numbers = [int(m.payload) for m in received if m.topic == f"{topic}/{letter}"]
        assert numbers == list(range(10))


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-4.6.0-6")
def test_window_is_kept_over_a_reconnect(windowed: Clients, topic: str) -> None:
    subscriber = windowed.connect(topic, clean=False)
    subscriber.subscribe((topic, 1))
    publish_many(windowed, topic, 25, 1)
    sent = [subscriber.expect_publish(topic, b"%d" % n, 1) for n in range(10)]
    subscriber.acknowledge(sent[0])
    sent.append(subscriber.expect_publish(topic, b"10", 1))
    subscriber.reset()
    subscriber = windowed.connect(topic, clean=False, session_present=True)
    for message in sent[1:]:
        subscriber.expect(Publish(topic, message.payload, 1, message.packet_id, dup=True))
    subscriber.expect_nothing()
    for message in sent[1:]:
        subscriber.acknowledge(message)
    for number in range(11, 21):
        subscriber.expect_publish(topic, b"%d" % number, 1)
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.10.4-2", "MQTT-3.10.4-3")
def test_unsubscribe_with_a_full_window(windowed: Clients, topic: str) -> None:
    """What was held back may still come, in its order; nothing published later does."""
    subscriber = windowed.subscribed(topic, 1)
    publish_many(windowed, topic, 15, 1)
    sent = [subscriber.expect_a(Publish) for _ in range(10)]
    subscriber.unsubscribe(topic)
    windowed.connect().publish(topic, b"later", 1)
    for message in sent:
        subscriber.acknowledge(message)
    held = [m.payload for m in subscriber.receive_all() if isinstance(m, Publish)]
    assert held in ([], [b"%d" % number for number in range(10, 15)])


@pytest.mark.mqtt("MQTT-3.3.1-6")
def test_retained_replay_larger_than_the_window(windowed: Clients, topic: str) -> None:
    publisher = windowed.connect()
    for number in range(35):
        publisher.publish(f"{topic}/{number}", b"kept", 1, retain=True)
    subscriber = windowed.subscribed(f"{topic}/+", 1)
    topics = set()
    for _ in range(35):
        message = subscriber.expect_a(Publish)
        assert message.retain
        topics.add(message.topic)
        subscriber.acknowledge(message)
    assert len(topics) == 35
    subscriber.expect_nothing()


# ------------------------------------------- ack_wait, time limits, sizes


@pytest.fixture
def impatient(configured: Callable[[str], Clients]) -> Clients:
    return configured(IMPATIENT)


@pytest.mark.mqtt("MQTT-3.3.1-1", "MQTT-4.6.0-1", "MQTT-2.3.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_come_again_on_the_same_connection(
    impatient: Clients, topic: str, qos: int
) -> None:
    subscriber = impatient.subscribed(topic, qos)
    publish_many(impatient, topic, 4, qos)
    sent = [subscriber.expect_publish(topic, b"%d" % n, qos) for n in range(4)]
    subscriber.acknowledge(sent.pop(1))
    repeated = [Publish(topic, one.payload, qos, one.packet_id, dup=True) for one in sent]
    for _ in range(2):
        for again in repeated:
            subscriber.expect(again)

    def expect_unless_repeated(packet: Packet) -> None:
        """On a busy machine they may come a third time before they are acknowledged."""
        while (received := subscriber.receive()) in repeated:
            pass
        assert received == packet

    for packet_id in (one.packet_id or 0 for one in sent):
        subscriber.send(p.puback(packet_id) if qos == 1 else p.pubrec(packet_id))
        if qos == 2:
            expect_unless_repeated(Pubrel(packet_id))
            subscriber.send(p.pubcomp(packet_id))
    subscriber.send(p.pingreq())
    expect_unless_repeated(Pingresp())
    subscriber.expect_nothing(1.3)


@pytest.mark.mqtt("MQTT-4.3.3-1")
def test_publish_is_not_sent_again_after_pubrec(impatient: Clients, topic: str) -> None:
    subscriber = impatient.subscribed(topic, 2)
    publish_many(impatient, topic, 1, 2)
    packet_id = subscriber.expect_publish(topic, b"0", 2).packet_id
    assert packet_id is not None
    subscriber.send(p.pubrec(packet_id))
    subscriber.expect(Pubrel(packet_id))
    for _ in range(2):
        with contextlib.suppress(TimeoutError):
            assert subscriber.receive(1.3) == Pubrel(packet_id)
    subscriber.send(p.pubcomp(packet_id))
    subscriber.expect_alive()
    subscriber.expect_nothing(1.3)


def test_connection_without_connect_is_closed(impatient: Clients) -> None:
    connected = impatient.connect()
    silent, half = impatient.raw(), impatient.raw()
    half.send(p.connect(unique("c"))[:9])
    silent.expect_closed()
    half.expect_closed()
    connected.expect_alive()


@pytest.mark.parametrize("declared_only", [False, True])
def test_packet_above_the_limit_closes(
    impatient: Clients, topic: str, *, declared_only: bool
) -> None:
    watcher = impatient.subscribed(topic, 1)
    client = impatient.connect(will=Will(topic, b"violated", 1))
    client.publish(f"{topic}/fits", b"x" * 90_000, 1)
    if declared_only:
        client.send(b"\x30" + p.remaining_length(200_000_000) + b"\0\1a")
    else:
        client.send(p.publish(topic, b"x" * 110_000, 1, 99))
    client.expect_closed()
    watcher.acknowledge(watcher.expect_publish(topic, b"violated", 1))
    watcher.expect_nothing(0.1)


def test_queue_of_an_absent_client_is_bounded(impatient: Clients, topic: str) -> None:
    """Five are kept, in their order; which of the eight is foldmq's choice."""
    subscriber = impatient.connect(topic, clean=False)
    subscriber.subscribe((topic, 1))
    subscriber.disconnect()
    publish_many(impatient, topic, 8, 1)
    subscriber = impatient.connect(topic, clean=False, session_present=True)
    received = [int(subscriber.expect_a(Publish).payload) for _ in range(5)]
    assert received == sorted(set(received))
    subscriber.expect_nothing()


def test_idle_session_expires(impatient: Clients, topic: str) -> None:
    idle = impatient.connect(f"{topic}idle", clean=False)
    idle.subscribe((topic, 1))
    busy = impatient.connect(f"{topic}busy", clean=False)
    idle.disconnect()
    time.sleep(3.0)
    busy.expect_alive()
    busy.disconnect()
    impatient.connect(f"{topic}busy", clean=False, session_present=True)
    impatient.connect(f"{topic}idle", clean=False, session_present=False).expect_nothing()


# --------------------------------------------------------------- QoS 2 limits


@pytest.fixture
def without_qos_2(configured: Callable[[str], Clients]) -> Clients:
    return configured(NO_QOS_2)


@pytest.mark.mqtt("MQTT-3.3.5-2")
def test_reject_qos2_publish(without_qos_2: Clients, topic: str) -> None:
    watcher = without_qos_2.subscribed(topic, 1)
    client = without_qos_2.connect()
    client.publish(topic, b"fine", 1)
    watcher.acknowledge(watcher.expect_publish(topic, b"fine", 1))
    client.send(p.publish(topic, b"refused", 2, 1))
    client.expect_closed()
    watcher.expect_nothing()


@pytest.mark.mqtt("MQTT-3.8.4-5", "MQTT-3.8.4-6")
def test_downgrade_qos2_subscribe(without_qos_2: Clients, topic: str) -> None:
    client = without_qos_2.connect()
    assert client.subscribe((f"{topic}/0", 0), (topic, 2), (f"{topic}/1", 1)) == (0, 1, 1)
    without_qos_2.connect().publish(topic, b"x", 1)
    client.expect_publish(topic, b"x", 1)


# ------------------------------------------------------------- how many of what


def refused(client: RawClient, client_id: str, *, clean: bool) -> None:
    """The CONNECT is refused, by CONNACK 0x03 or 0x05 or without one, and the connection ends."""
    with contextlib.suppress(ConnectionClosedError):  # as soon as it was accepted
        client.send(p.connect(client_id, clean=clean))
        received = client.receive_all(2.0)
        assert received in ([], [Connack(3)], [Connack(5)])
        client.expect_closed()


@pytest.mark.mqtt("MQTT-4.8.0-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_max_connections(make_broker: Callable[..., Broker]) -> None:
    own = make_broker("max_connections = 3\n")
    own.start()
    clients = Clients("127.0.0.1", own.port)
    connected = [clients.connect() for _ in range(3)]
    refused(clients.raw(), "fourth", clean=True)
    for client in connected:
        client.expect_alive()
    connected[0].disconnect()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionClosedError):
            late = clients.raw()
            late.send(p.connect("fourth"))
            if late.receive_all(0.5) == [Connack(0)]:
                break
    late.expect_alive()
    clients.close()
    own.stop()


@pytest.mark.mqtt("MQTT-4.8.0-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_max_sessions(make_broker: Callable[..., Broker]) -> None:
    own = make_broker("max_sessions = 2\n")
    own.start()
    clients = Clients("127.0.0.1", own.port)
    for name in ("one", "two"):
        clients.connect(name, clean=False).disconnect()
    refused(clients.raw(), "three", clean=False)
    clients.connect("one", clean=False, session_present=True).disconnect()
    clients.connect("two", clean=True).disconnect()
    clients.connect("three", clean=False, session_present=False).expect_alive()
    clients.close()
    own.stop()


def test_qos_2_dialogue_begun_before_a_limit_is_completed(
    make_broker: Callable[..., Broker],
) -> None:
    """A client mid-way through QoS 2 must be able to end it, whatever the setting is now."""
    own = make_broker()
    own.start()
    clients = Clients("127.0.0.1", own.port)
    publisher = clients.connect("publisher", clean=False)
    publisher.send(p.publish("t", b"x", 2, 1))
    publisher.expect(Pubrec(1))
    own.stop()
    own.configure(NO_QOS_2)
    own.start()
    watcher = clients.subscribed("t", 1)
    publisher = clients.connect("publisher", clean=False, session_present=True)
    publisher.send(p.pubrel(1))
    publisher.expect(Pubcomp(1))
    watcher.expect_publish("t", b"x", 1)
    publisher.send(p.publish("t", b"y", 1, 2))
    publisher.expect(Puback(2))
    clients.close()
    own.stop()
