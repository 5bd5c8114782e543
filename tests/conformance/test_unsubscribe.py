"""Section 3.10: UNSUBSCRIBE and UNSUBACK."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Publish, Pubrel, Unsuback


@pytest.mark.mqtt("MQTT-3.10.4-4", "MQTT-2.3.1-7", "MQTT-3.10.4-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_more_is_delivered(clients: Clients, topic: str, qos: int) -> None:
    client = clients.subscribed(topic, qos)
    client.send(p.unsubscribe(40_000, topic))
    client.expect(Unsuback(40_000))
    clients.connect().publish(topic, b"x", qos)
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.10.4-5", "MQTT-3.10.4-4")
def test_unknown_filter_is_acknowledged(clients: Clients, topic: str) -> None:
    client = clients.connect()
    client.send(p.unsubscribe(7, topic))
    client.expect(Unsuback(7))
    client.send(p.unsubscribe(7, topic, f"{topic}/#"))
    client.expect(Unsuback(7))


@pytest.mark.mqtt("MQTT-3.10.4-1", "MQTT-4.7.3-4")
@pytest.mark.parametrize("other", ["{0}/#", "{0}/+", "+/a", "{0}/A", "{0}/a/", "{0}", "{0}/a/#"])
def test_filters_are_compared_character_by_character(
    clients: Clients, topic: str, other: str
) -> None:
    client = clients.subscribed(f"{topic}/a", 1)
    client.unsubscribe(other.format(topic))
    clients.connect().publish(f"{topic}/a", b"still", 1)
    client.expect_publish(f"{topic}/a", b"still", 1)


@pytest.mark.mqtt("MQTT-3.10.4-1")
@pytest.mark.parametrize("wild", ["{0}/#", "{0}/+", "+/a"])
def test_filter_with_wildcards_is_deleted_as_such(clients: Clients, topic: str, wild: str) -> None:
    client = clients.connect()
    assert client.subscribe((wild.format(topic), 1), (f"{topic}/b/c", 1)) == (1, 1)
    client.unsubscribe(wild.format(topic))
    publisher = clients.connect()
    publisher.publish(f"{topic}/a", b"gone", 1)
    publisher.publish(f"{topic}/b/c", b"kept", 1)
    client.expect_publish(f"{topic}/b/c", b"kept", 1)


@pytest.mark.mqtt("MQTT-3.10.4-6")
def test_many_filters_get_one_answer(clients: Clients, topic: str) -> None:
    client = clients.connect()
    names = [f"{topic}/{letter}" for letter in "abcd"]
    client.subscribe(*[(name, 0) for name in names])
    client.unsubscribe(names[0], f"{topic}/unknown", names[2], names[3])
    publisher = clients.connect()
    for name in (*reversed(names), f"{topic}/b"):
        publisher.publish(name, b"x")
    client.expect_publish(names[1], b"x")
    client.expect_publish(names[1], b"x")
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.10.4-3")
def test_qos_1_message_in_flight_is_completed(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    clients.connect().publish(topic, b"started", 1)
    message = client.expect_publish(topic, b"started", 1)
    client.unsubscribe(topic)
    client.reset()
    client = clients.connect(topic, clean=False, session_present=True)
    client.expect(Publish(topic, b"started", 1, message.packet_id, dup=True))
    client.acknowledge(message)
    client.disconnect()
    clients.connect(topic, clean=False, session_present=True).expect_nothing()


@pytest.mark.mqtt("MQTT-3.10.4-3", "MQTT-4.3.3-1")
def test_qos_2_messages_in_flight_are_completed(clients: Clients, topic: str) -> None:
    client = clients.subscribed(topic, 2)
    publisher = clients.connect()
    publisher.publish(topic, b"received", 2)
    publisher.publish(topic, b"sent", 2)
    received = client.expect_publish(topic, b"received", 2)
    sent = client.expect_publish(topic, b"sent", 2)
    assert received.packet_id is not None
    client.send(p.pubrec(received.packet_id))
    client.expect(Pubrel(received.packet_id))
    client.unsubscribe(topic)
    client.send(p.pubcomp(received.packet_id))
    client.acknowledge(sent)
    client.expect_alive()


@pytest.mark.mqtt("MQTT-3.10.4-2", "MQTT-3.1.2-5")
def test_unsubscribed_filter_is_gone_from_the_stored_session(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1), (f"{topic}/kept", 1))
    client.unsubscribe(topic)
    client.disconnect()
    publisher = clients.connect()
    publisher.publish(topic, b"gone", 1)
    publisher.publish(f"{topic}/kept", b"kept", 1)
    client = clients.connect(topic, clean=False, session_present=True)
    client.acknowledge(client.expect_publish(f"{topic}/kept", b"kept", 1))
    client.expect_nothing()
