"""Section 3.3.1.3: retained messages."""

from collections.abc import Iterator

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Puback, Publish, Pubrec, Suback
from harness.rawclient import RawClient

QOS = [0, 1, 2]


@pytest.fixture
def publisher(clients: Clients, topic: str) -> Iterator[RawClient]:
    """Publishes below `topic`; what it left retained there is removed when the test ends."""
    client = clients.connect()
    yield client
    sweeper = clients.subscribed(f"{topic}/#", 0)
    for message in sweeper.receive_all(0.1):
        if isinstance(message, Publish) and message.retain:
            sweeper.send(p.publish(message.topic, b"", 0, retain=True))


@pytest.mark.mqtt("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-8", "MQTT-3.8.4-6", "MQTT-3.3.1-7")
@pytest.mark.parametrize("granted", QOS)
@pytest.mark.parametrize("published", QOS)
def test_retained_message_is_sent_to_a_new_subscription_at_the_lower_qos(
    clients: Clients, topic: str, publisher: RawClient, published: int, granted: int
) -> None:
    publisher.publish(topic, b"kept", published, retain=True)
    publisher.publish(f"{topic}/fence", b"", 1)
    for _ in range(2):
        subscriber = clients.subscribed(topic, granted)
        qos = min(published, granted)
        subscriber.acknowledge(subscriber.expect_publish(topic, b"kept", qos, retain=True))
        subscriber.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", QOS)
def test_established_subscription_sees_retain_0(
    clients: Clients, topic: str, publisher: RawClient, qos: int
) -> None:
    subscriber = clients.subscribed(topic, qos)
    publisher.publish(topic, b"live", qos, retain=True)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"live", qos, retain=False))
    subscriber.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.3.1-5", "MQTT-3.3.1-7")
@pytest.mark.parametrize("second", QOS)
@pytest.mark.parametrize("first", QOS)
def test_the_last_retained_message_replaces_the_one_before(
    clients: Clients, topic: str, publisher: RawClient, first: int, second: int
) -> None:
    publisher.publish(topic, b"first", first, retain=True)
    publisher.publish(topic, b"second", second, retain=True)
    publisher.publish(f"{topic}/fence", b"", 1)
    subscriber = clients.subscribed(topic, 2)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"second", second, retain=True))
    subscriber.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.3.1-10", "MQTT-3.3.1-11")
@pytest.mark.parametrize("qos", QOS)
def test_empty_retained_message_clears_and_is_passed_on(
    clients: Clients, topic: str, publisher: RawClient, qos: int
) -> None:
    publisher.publish(topic, b"kept", 1, retain=True)
    established = clients.subscribed(topic, 2)
    established.acknowledge(established.expect_publish(topic, b"kept", 1, retain=True))
    publisher.publish(topic, b"", qos, retain=True)
    established.acknowledge(established.expect_publish(topic, b"", qos, retain=False))
    clients.subscribed(topic, 2).expect_nothing()
    publisher.publish(topic, b"new", 1, retain=True)
    clients.subscribed(topic, 1).expect_publish(topic, b"new", 1, retain=True)


@pytest.mark.mqtt("MQTT-3.3.1-11")
def test_empty_retained_message_on_a_topic_without_one(
    clients: Clients, topic: str, publisher: RawClient
) -> None:
    publisher.publish(topic, b"", 1, retain=True)
    clients.subscribed(topic, 1).expect_nothing()


@pytest.mark.mqtt("MQTT-3.3.1-12")
@pytest.mark.parametrize("payload", [b"not kept", b""])
@pytest.mark.parametrize("qos", QOS)
def test_message_without_retain_touches_nothing_retained(
    clients: Clients, topic: str, publisher: RawClient, payload: bytes, qos: int
) -> None:
    publisher.publish(f"{topic}/empty", payload, qos)
    publisher.publish(f"{topic}/full", b"kept", 1, retain=True)
    publisher.publish(f"{topic}/full", payload, qos)
    publisher.publish(f"{topic}/fence", b"", 1)
    subscriber = clients.subscribed(f"{topic}/+", 1)
    subscriber.expect_publish(f"{topic}/full", b"kept", 1, retain=True)
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.3.1-6", "MQTT-3.8.4-3")
@pytest.mark.parametrize("qos", QOS)
def test_every_subscribe_brings_the_retained_message_again(
    clients: Clients, topic: str, publisher: RawClient, qos: int
) -> None:
    publisher.publish(topic, b"kept", 2, retain=True)
    subscriber = clients.connect()
    for _ in range(3):
        assert subscriber.subscribe((topic, qos)) == (qos,)
        subscriber.acknowledge(subscriber.expect_publish(topic, b"kept", qos, retain=True))
        subscriber.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.3.1-6")
@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("/#", {"", "/", "/a", "/a/b", "/a/b/c", "/d"}),
        ("/+", {"/", "/a", "/d"}),
        ("/a/#", {"/a", "/a/b", "/a/b/c"}),
        ("/+/b", {"/a/b"}),
        ("/a/+/c", {"/a/b/c"}),
        ("/nothing/#", set()),
    ],
)
def test_all_matching_retained_messages_are_sent(
    clients: Clients, topic: str, publisher: RawClient, topic_filter: str, expected: set[str]
) -> None:
    for name in ("", "/", "/a", "/a/b", "/a/b/c", "/d"):
        publisher.publish(topic + name, name.encode() + b"!", 1, retain=True)
    subscriber = clients.subscribed(topic + topic_filter, 0)
    received = [subscriber.expect_a(Publish) for _ in expected]
    assert {m.topic.removeprefix(topic) for m in received} == expected
    assert all(m.retain and m.payload[:-1].decode() in m.topic for m in received)
    subscriber.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.3.1-6", "MQTT-3.8.4-4")
def test_each_filter_of_one_subscribe_brings_its_retained_messages(
    clients: Clients, topic: str, publisher: RawClient
) -> None:
    for name in "abc":
        publisher.publish(f"{topic}/{name}", b"kept", 1, retain=True)
    subscriber = clients.connect()
    assert subscriber.subscribe((f"{topic}/a", 0), (f"{topic}/c", 1)) == (0, 1)
    received = {(m.topic, m.qos) for m in (subscriber.expect_a(Publish) for _ in range(2))}
    assert received == {(f"{topic}/a", 0), (f"{topic}/c", 1)}
    subscriber.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.3.1-6", "MQTT-3.1.2-4")
def test_resumed_session_gets_no_retained_message_without_a_subscribe(
    clients: Clients, topic: str, publisher: RawClient
) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    publisher.publish(topic, b"kept", 1, retain=True)
    client.acknowledge(client.expect_publish(topic, b"kept", 1))
    client.disconnect()
    client = clients.connect(topic, clean=False, session_present=True)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.3.1-8", "MQTT-4.4.0-1", "MQTT-3.3.1-1")
def test_replayed_message_in_flight_is_sent_again(
    clients: Clients, topic: str, publisher: RawClient
) -> None:
    publisher.publish(topic, b"kept", 1, retain=True)
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    message = client.expect_publish(topic, b"kept", 1, retain=True)
    client.reset()
    client = clients.connect(topic, clean=False, session_present=True)
    client.expect(Publish(topic, b"kept", 1, message.packet_id, dup=True, retain=True))
    client.acknowledge(message)


@pytest.mark.mqtt("MQTT-3.3.1-5", "MQTT-4.3.3-2")
def test_qos_2_message_repeated_before_pubrel_is_retained_once(
    clients: Clients, topic: str
) -> None:
    client = clients.connect()
    client.send(p.publish(topic, b"kept", 2, 1, retain=True))
    client.expect(Pubrec(1))
    client.publish(topic, b"kept", 2, packet_id=1, retain=True, dup=True)
    clients.subscribed(topic, 2).expect_publish(topic, b"kept", 2, retain=True)
    client.publish(topic, b"", retain=True)


@pytest.mark.mqtt("MQTT-3.3.1-6")
def test_many_retained_messages_are_all_replayed(clients: Clients, topic: str) -> None:
    publisher = clients.connect()
    names = [f"{topic}/{number}" for number in range(500)]
    publisher.send(*[p.publish(n, b"kept", 1, i + 1, retain=True) for i, n in enumerate(names)])
    for index in range(500):
        publisher.expect(Puback(index + 1))
    subscriber = clients.connect()
    subscriber.send(p.subscribe(1, (f"{topic}/+", 0)))
    subscriber.expect(Suback(1, (0,)))
    assert sorted(subscriber.expect_a(Publish).topic for _ in names) == sorted(names)
    publisher.send(*[p.publish(name, b"", 0, retain=True) for name in names])
    publisher.expect_alive()
    clients.subscribed(f"{topic}/+", 1).expect_nothing()
