"""Section 4.3.3: exactly once."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Pubcomp, Publish, Pubrec, Pubrel

# -------------------------------------------------------- broker as receiver


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-2.3.1-6")
@pytest.mark.parametrize("packet_id", [1, 300, 65_535])
def test_the_whole_dialogue(clients: Clients, topic: str, packet_id: int) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    publisher.publish(topic, b"x", 2, packet_id=packet_id)
    publisher.expect_nothing()
    subscriber.acknowledge(subscriber.expect_publish(topic, b"x", 2))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-2")
@pytest.mark.parametrize("dup", [False, True])
def test_publish_again_before_pubrel_is_not_delivered_twice(
    clients: Clients, topic: str, *, dup: bool
) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    publisher.send(p.publish(topic, b"once", 2, 4))
    publisher.expect(Pubrec(4))
    for _ in range(3):
        publisher.send(p.publish(topic, b"once", 2, 4, dup=dup))
        publisher.expect(Pubrec(4))
    publisher.release(4)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"once", 2))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_pubrel_again_is_completed_again_and_delivers_once(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    publisher.publish(topic, b"once", 2)
    for _ in range(2):
        publisher.release(1)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"once", 2))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_pubrel_for_an_unknown_identifier_is_completed(clients: Clients) -> None:
    client = clients.connect()
    client.release(4711)


@pytest.mark.mqtt("MQTT-4.3.3-2")
@pytest.mark.parametrize("dup", [False, True])
def test_identifier_used_again_after_pubcomp_is_a_new_publication(
    clients: Clients, topic: str, *, dup: bool
) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    for payload in (b"same", b"same", b"other"):
        publisher.publish(topic, payload, 2, packet_id=8, dup=dup)
        subscriber.acknowledge(subscriber.expect_publish(topic, payload, 2))


@pytest.mark.mqtt("MQTT-4.3.3-2")
@pytest.mark.usefixtures("foldmq_only")
def test_message_is_passed_on_at_pubrel(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    publisher.send(p.publish(topic, b"held", 2, 3))
    publisher.expect(Pubrec(3))
    subscriber.expect_nothing()
    publisher.release(3)
    subscriber.expect_publish(topic, b"held", 2)


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-4.6.0-3")
def test_dialogues_that_overlap(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    identifiers = [5, 3, 65_535, 1, 9]
    publisher.send(*[p.publish(topic, b"%d" % one, 2, one) for one in identifiers])
    for one in identifiers:
        publisher.expect(Pubrec(one))
    publisher.send(*[p.pubrel(one) for one in identifiers])
    for one in identifiers:
        publisher.expect(Pubcomp(one))
    for one in identifiers:
        message = subscriber.expect_a(Publish)
        assert (message.payload, message.qos, message.dup) == (b"%d" % one, 2, False)


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-4.1.0-1", "MQTT-3.1.2-4")
def test_received_identifiers_survive_a_reconnect(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect(topic, clean=False)
    publisher.send(p.publish(topic, b"once", 2, 6))
    publisher.expect(Pubrec(6))
    publisher.reset()
    publisher = clients.connect(topic, clean=False, session_present=True)
    publisher.publish(topic, b"once", 2, packet_id=6, dup=True)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"once", 2))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-3.1.2-4")
def test_pubrel_may_come_after_a_reconnect(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect(topic, clean=False)
    publisher.send(p.publish(topic, b"late", 2, 6))
    publisher.expect(Pubrec(6))
    publisher.disconnect()
    publisher = clients.connect(topic, clean=False, session_present=True)
    publisher.release(6)
    subscriber.acknowledge(subscriber.expect_publish(topic, b"late", 2))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.2-6", "MQTT-4.3.3-2")
def test_clean_session_forgets_received_identifiers(clients: Clients, topic: str) -> None:
    publisher = clients.connect(topic, clean=False)
    publisher.send(p.publish(topic, b"forgotten", 2, 6))
    publisher.expect(Pubrec(6))
    publisher.disconnect()
    publisher = clients.connect(topic, clean=True)
    subscriber = clients.subscribed(topic, 2)
    publisher.publish(topic, b"new", 2, packet_id=6)
    subscriber.expect_publish(topic, b"new", 2)


# ---------------------------------------------------------- broker as sender


@pytest.mark.mqtt("MQTT-4.3.3-1", "MQTT-2.3.1-6", "MQTT-2.3.1-4")
def test_pubrel_carries_the_identifier_and_frees_it_at_pubcomp(
    clients: Clients, topic: str
) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    publisher.publish(topic, b"half done", 2)
    half = subscriber.expect_publish(topic, b"half done", 2)
    assert half.packet_id is not None
    subscriber.send(p.pubrec(half.packet_id))
    subscriber.expect(Pubrel(half.packet_id))
    for number in range(50):
        publisher.publish(topic, b"%d" % number, 2)
        message = subscriber.expect_publish(topic, b"%d" % number, 2)
        assert message.packet_id != half.packet_id
        subscriber.acknowledge(message)
    subscriber.send(p.pubcomp(half.packet_id))
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-1")
def test_pubrec_again_is_answered_by_pubrel_again(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    clients.connect().publish(topic, b"x", 2)
    packet_id = subscriber.expect_publish(topic, b"x", 2).packet_id
    assert packet_id is not None
    for _ in range(2):
        subscriber.send(p.pubrec(packet_id))
        subscriber.expect(Pubrel(packet_id))
    subscriber.send(p.pubcomp(packet_id))
    subscriber.expect_alive()


@pytest.mark.mqtt("MQTT-4.3.3-1", "MQTT-4.6.0-4")
def test_pubrels_come_in_the_order_of_the_pubrecs(clients: Clients, topic: str) -> None:
    subscriber = clients.subscribed(topic, 2)
    publisher = clients.connect()
    for number in range(4):
        publisher.publish(topic, b"%d" % number, 2)
    identifiers = [subscriber.expect_a(Publish).packet_id or 0 for _ in range(4)]
    assert len(set(identifiers)) == 4
    subscriber.send(*[p.pubrec(one) for one in identifiers])
    for one in identifiers:
        subscriber.expect(Pubrel(one))
    subscriber.send(*[p.pubcomp(one) for one in reversed(identifiers)])
    subscriber.expect_alive()


@pytest.mark.mqtt("MQTT-4.3.3-1", "MQTT-4.4.0-1", "MQTT-3.3.1-1")
def test_publish_is_sent_again_until_pubrec_and_pubrel_until_pubcomp(
    clients: Clients, topic: str
) -> None:
    subscriber = clients.connect(topic, clean=False)
    subscriber.subscribe((topic, 2))
    clients.connect().publish(topic, b"x", 2)
    packet_id = subscriber.expect_publish(topic, b"x", 2).packet_id
    assert packet_id is not None
    subscriber.reset()
    subscriber = clients.connect(topic, clean=False, session_present=True)
    subscriber.expect(Publish(topic, b"x", 2, packet_id, dup=True))
    subscriber.send(p.pubrec(packet_id))
    subscriber.expect(Pubrel(packet_id))
    for _ in range(2):
        subscriber.reset()
        subscriber = clients.connect(topic, clean=False, session_present=True)
        subscriber.expect(Pubrel(packet_id))
        subscriber.expect_nothing(0.1)
    subscriber.send(p.pubcomp(packet_id))
    subscriber.expect_alive()
    subscriber.reset()
    subscriber = clients.connect(topic, clean=False, session_present=True)
    subscriber.expect_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-1")
def test_unknown_pubrec_and_pubcomp_are_ignored(clients: Clients, topic: str) -> None:
    """A client that lost its state may answer what the broker has long forgotten."""
    client = clients.subscribed(topic, 2)
    client.send(p.pubcomp(999))
    client.expect_alive()
    client.send(p.pubrec(998))
    client.expect(Pubrel(998))
    client.send(p.pubcomp(998))
    client.expect_alive()
