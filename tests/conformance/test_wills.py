"""Section 3.1.2.5: will messages."""

import pytest
from harness import packets as p
from harness.fixtures import Clients, unique
from harness.packets import Puback, Publish, Will

QOS = [0, 1, 2]


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.2-9")
@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize("clean", [True, False])
def test_will_is_sent_when_the_connection_ends_without_disconnect(
    clients: Clients, topic: str, ending: str, *, clean: bool
) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect(unique("c"), clean=clean, will=Will(topic, b"gone"))
    watcher.expect_nothing(0.1)
    getattr(client, ending)()
    watcher.expect_publish(topic, b"gone")
    watcher.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.2-14", "MQTT-3.8.4-6", "MQTT-3.1.2-16")
@pytest.mark.parametrize("granted", QOS)
@pytest.mark.parametrize("qos", QOS)
def test_will_at_every_qos(clients: Clients, topic: str, qos: int, granted: int) -> None:
    watcher = clients.subscribed(topic, granted)
    clients.connect(will=Will(topic, b"gone", qos)).close()
    watcher.acknowledge(watcher.expect_publish(topic, b"gone", min(qos, granted)))
    clients.subscribed(topic, 2).expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.1.2-17", "MQTT-3.3.1-9", "MQTT-3.3.1-8")
@pytest.mark.parametrize("qos", QOS)
def test_retained_will(clients: Clients, topic: str, qos: int) -> None:
    watcher = clients.subscribed(topic, 2)
    clients.connect(will=Will(topic, b"gone", qos, retain=True)).close()
    watcher.acknowledge(watcher.expect_publish(topic, b"gone", qos, retain=False))
    late = clients.subscribed(topic, 2)
    late.acknowledge(late.expect_publish(topic, b"gone", qos, retain=True))
    clients.connect().publish(topic, b"", 1, retain=True)


@pytest.mark.mqtt("MQTT-3.1.2-16", "MQTT-3.3.1-12")
def test_will_without_retain_leaves_the_retained_message(clients: Clients, topic: str) -> None:
    publisher = clients.connect()
    publisher.publish(topic, b"kept", 1, retain=True)
    watcher = clients.subscribed(topic, 1)
    watcher.expect_publish(topic, b"kept", 1, retain=True)
    clients.connect(will=Will(topic, b"gone", 1)).close()
    watcher.expect_publish(topic, b"gone", 1)
    clients.subscribed(topic, 1).expect_publish(topic, b"kept", 1, retain=True)
    publisher.publish(topic, b"", 1, retain=True)


@pytest.mark.mqtt("MQTT-3.1.2-17", "MQTT-3.3.1-10", "MQTT-3.3.1-11")
def test_empty_retained_will_clears(clients: Clients, topic: str) -> None:
    publisher = clients.connect()
    publisher.publish(topic, b"online", 1, retain=True)
    watcher = clients.subscribed(topic, 1)
    watcher.expect_publish(topic, b"online", 1, retain=True)
    clients.connect(will=Will(topic, b"", 1, retain=True)).close()
    watcher.expect_publish(topic, b"", 1)
    clients.subscribed(topic, 1).expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-12")
def test_no_will_no_message(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(f"{topic}/#", 1)
    client = clients.connect(f"{topic}c", clean=False, will=Will(f"{topic}/will", b"gone"))
    client.disconnect()
    client = clients.connect(f"{topic}c", clean=False, session_present=True)
    client.reset()
    watcher.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-10", "MQTT-3.1.2-12")
def test_will_is_discarded_once_sent(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic, 1)
    client = clients.connect(f"{topic}c", clean=False, will=Will(topic, b"gone", 1))
    client.reset()
    watcher.acknowledge(watcher.expect_publish(topic, b"gone", 1))
    client = clients.connect(f"{topic}c", clean=False, session_present=True)
    client.reset()
    watcher.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "violation",
    [
        p.packet(0, 0),
        p.publish("a/+", b"x"),
        p.publish("a", b"x", 1, 0),
        p.subscribe(1, ("a/#/b", 0)),
        p.subscribe(1),
        p.packet(p.SUBSCRIBE, 0, p.u16(1) + p.text("a") + b"\0"),
    ],
    ids=["type-0", "wildcard", "identifier-0", "filter", "no-filter", "flags"],
)
def test_will_is_sent_after_a_protocol_violation(
    clients: Clients, topic: str, violation: bytes
) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect(will=Will(topic, b"violated"))
    client.send(violation)
    client.expect_closed()
    watcher.expect_publish(topic, b"violated")


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-4.5.0-1")
def test_will_is_stored_for_absent_clients(clients: Clients, topic: str) -> None:
    watcher = clients.connect(f"{topic}w", clean=False)
    watcher.subscribe((topic, 2))
    watcher.disconnect()
    barrier = clients.subscribed(topic, 2)
    clients.connect(will=Will(topic, b"gone", 2)).close()
    barrier.expect_publish(topic, b"gone", 2)
    watcher = clients.connect(f"{topic}w", clean=False, session_present=True)
    watcher.acknowledge(watcher.expect_publish(topic, b"gone", 2))
    watcher.expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.1.2-8")
def test_a_will_is_sent_after_the_messages_of_its_client(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic, 1)
    client = clients.connect(will=Will(topic, b"will", 1))
    client.send(*[p.publish(topic, b"%d" % n, 1, n + 1) for n in range(10)])
    for number in range(10):
        client.expect(Puback(number + 1))
    client.close()
    received = [watcher.expect_a(Publish).payload for _ in range(11)]
    assert received == [*[b"%d" % n for n in range(10)], b"will"]


@pytest.mark.mqtt("MQTT-3.1.2-8")
def test_client_may_receive_its_own_will_later(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False, will=Will(topic, b"mine", 1))
    client.subscribe((topic, 1))
    watcher = clients.subscribed(topic, 1)
    client.reset()
    watcher.expect_publish(topic, b"mine", 1)
    client = clients.connect(topic, clean=False, session_present=True)
    client.acknowledge(client.expect_publish(topic, b"mine", 1))


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.3.5-2")
@pytest.mark.usefixtures("foldmq_only")
def test_a_will_on_a_reserved_topic_is_not_delivered(clients: Clients, topic: str) -> None:
    """Either the CONNECT is refused, or the will is dropped; the broker lives on."""
    client = clients.raw()
    client.send(p.connect(topic, will=Will("$foldmq/log", b"forged", 1, retain=True)))
    answer = client.receive_all(1.0)
    assert answer in ([], [p.Connack(0)], [p.Connack(5)])
    client.close()
    clients.connect().expect_alive()
