"""Section 4.3.2: at least once."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Puback, Publish

# -------------------------------------------------------- broker as receiver


@pytest.mark.mqtt("MQTT-4.3.2-2", "MQTT-2.3.1-6")
@pytest.mark.parametrize("dup", [False, True])
def test_identifier_used_again_after_puback_is_a_new_publication(
    clients: Clients, topic: str, *, dup: bool
) -> None:
    subscriber = clients.subscribed(topic, 1)
    publisher = clients.connect()
    for payload in (b"one", b"two", b"three"):
        publisher.publish(topic, payload, 1, packet_id=9, dup=dup)
        subscriber.acknowledge(subscriber.expect_publish(topic, payload, 1))


@pytest.mark.mqtt("MQTT-4.3.2-2", "MQTT-4.6.0-2")
def test_pubacks_come_in_the_order_of_the_messages(clients: Clients, topic: str) -> None:
    publisher = clients.connect()
    identifiers = [*range(200, 100, -1), 65_535, 1, 32_768]
    publisher.send(*[p.publish(topic, b"x", 1, packet_id) for packet_id in identifiers])
    for packet_id in identifiers:
        publisher.expect(Puback(packet_id))


@pytest.mark.mqtt("MQTT-4.3.2-2")
def test_puback_does_not_wait_for_the_subscriber(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 1)
    publisher = clients.connect()
    for number in range(5):
        publisher.publish(topic, b"%d" % number, 1)
    for number in range(5):
        subscriber.expect_publish(topic, b"%d" % number, 1)


# ---------------------------------------------------------- broker as sender


@pytest.mark.mqtt("MQTT-2.3.1-4", "MQTT-4.3.2-1")
def test_identifier_in_use_is_not_given_to_another_message(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 1)
    publisher = clients.connect()
    publisher.publish(topic, b"kept", 1)
    kept = subscriber.expect_publish(topic, b"kept", 1)
    for number in range(200):
        publisher.publish(topic, b"%d" % number, 1)
        received = subscriber.expect_publish(topic, b"%d" % number, 1)
        assert received.packet_id != kept.packet_id
        subscriber.acknowledge(received)


@pytest.mark.mqtt("MQTT-4.3.2-1")
def test_acknowledgements_in_any_order_are_taken(clients: Clients, topic: str) -> None:
    subscriber = clients.connect(topic, clean=False)
    subscriber.subscribe((topic, 1))
    publisher = clients.connect()
    for number in range(5):
        publisher.publish(topic, b"%d" % number, 1)
    received = [subscriber.expect_publish(topic, b"%d" % number, 1) for number in range(5)]
    for message in (received[3], received[0], received[4], received[1]):
        subscriber.acknowledge(message)
    subscriber.expect_alive()
    subscriber.disconnect()
    subscriber = clients.connect(topic, clean=False, session_present=True)
    subscriber.expect(Publish(topic, b"2", 1, received[2].packet_id, dup=True))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.2-1")
def test_acknowledgement_of_an_unknown_identifier_is_ignored(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 1)
    clients.connect().publish(topic, b"x", 1)
    message = subscriber.expect_publish(topic, b"x", 1)
    subscriber.acknowledge(message)
    subscriber.acknowledge(message)
    subscriber.send(p.puback(54_321))
    subscriber.expect_alive()
