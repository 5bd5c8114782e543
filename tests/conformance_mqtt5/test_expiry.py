"""Message Expiry Interval (3.3.2.3.3): live, in queues and retained, for every level."""

import time

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_packets import Properties, Publish
from harness.mqtt5_rawclient import Clients5, OwnBroker
from harness.packets import PUBCOMP, PUBREC, PUBREL

KEEP = ((p.SESSION_EXPIRY, 1000),)
OVER = 2.2
"""Seconds until a second has passed for the broker too, however it rounds."""


def for_seconds(seconds: int) -> Properties:
    return ((p.MESSAGE_EXPIRY, seconds),)


def left(message: Publish) -> int:
    found = message.get(p.MESSAGE_EXPIRY)
    assert isinstance(found, int), f"no expiry: {message}"
    return found


def away(clients: Clients5, name: str, topic: str, qos: int) -> None:
    """A session with a subscription, its client gone."""
    client = clients.kept(name, topic, qos)
    client.leave()


@pytest.mark.mqtt5("MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_message_keeps_its_expiry(clients: Clients5, topic: str, qos: int) -> None:
    client = clients.listening(topic, qos)
    for seconds in (100, 0x7FFFFFFF, 0xFFFFFFFF):
        clients.five().publish(topic, b"x", qos, properties=for_seconds(seconds))
        message = client.expect_message(topic, b"x", qos, properties=None)
        assert left(message) in {seconds, seconds - 1}
        client.acknowledge(message)


@pytest.mark.mqtt5("MQTT-3.3.2-5")
def test_an_expired_message_leaves_the_queue(clients: Clients5, topic: str) -> None:
    publisher = clients.five()
    topics = {qos: f"{topic}/{qos}" for qos in (1, 2)}
    for qos, name in topics.items():
        away(clients, f"{topic}{qos}", name, qos)
        publisher.publish(name, b"first", qos)
        publisher.publish(name, b"short", qos, properties=for_seconds(1))
        publisher.publish(name, b"long", qos, properties=for_seconds(100))
        publisher.publish(name, b"last", qos)
    time.sleep(OVER)
    for qos, name in topics.items():
        client = clients.resumed(f"{topic}{qos}")
        for payload in (b"first", b"long", b"last"):
            client.expect_message(name, payload, qos, properties=None)
        client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.2-6")
def test_expiry_counts_down_in_the_queue(clients: Clients5, topic: str) -> None:
    others = ((p.CONTENT_TYPE, "t"), (p.USER_PROPERTY, ("a", "b")))
    for qos in (1, 2):
        away(clients, f"{topic}{qos}", f"{topic}/{qos}", qos)
        properties = (*others, *for_seconds(100))
        clients.five().publish(f"{topic}/{qos}", b"x", qos, properties=properties)
    time.sleep(OVER)
    for qos in (1, 2):
        client = clients.resumed(f"{topic}{qos}")
        message = client.expect_message(f"{topic}/{qos}", b"x", qos, properties=None)
        assert 40 <= left(message) <= 98
        assert set(message.properties) - set(for_seconds(left(message))) == set(others)
        client.acknowledge(message)


@pytest.mark.mqtt5("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_expiry_counts_down_until_the_release(clients: Clients5, topic: str) -> None:
    """A message of QoS 2 waits until its PUBREL; if it expires before that, it is not delivered."""
    receivers = []
    for qos in (0, 1, 2):
        client, old = clients.listening(topic, qos), clients.connect()
        assert old.subscribe((topic, qos)) == (qos,)
        receivers.append((qos, client, old))
    publisher = clients.five()
    for number, seconds in ((1, 1), (2, 100)):
        publisher.send(
            p.publish(topic, b"x%d" % seconds, 2, number, properties=for_seconds(seconds))
        )
        publisher.expect_answer(PUBREC, number)
    time.sleep(OVER)
    for number in (1, 2):
        publisher.release(number)
    for qos, client, old in receivers:
        message = client.expect_message(topic, b"x100", qos, properties=None)
        assert 40 <= left(message) <= 98
        client.acknowledge(message)
        client.expect_nothing()
        old.expect_publish(topic, b"x100", qos)


@pytest.mark.mqtt5("MQTT-3.3.2-5")
def test_a_message_expires_for_level_4_too(clients: Clients5, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    assert client.subscribe((topic, 1)) == (1,)
    client.disconnect()
    publisher = clients.five()
    publisher.publish(topic, b"short", 1, properties=for_seconds(1))
    publisher.publish(topic, b"long", 1, properties=for_seconds(100))
    time.sleep(OVER)
    client = clients.connect(topic, clean=False, session_present=True)
    client.acknowledge(client.expect_publish(topic, b"long", 1))
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.2-5", "MQTT-3.3.4-9")
def test_a_message_that_waits_for_the_receive_maximum_expires(
    clients: Clients5, topic: str
) -> None:
    client = clients.listening(topic, 1, properties=((p.RECEIVE_MAXIMUM, 1),))
    publisher = clients.five()
    publisher.publish(topic, b"sent", 1)
    first = client.expect_message(topic, b"sent", 1)
    publisher.publish(topic, b"short", 1, properties=for_seconds(1))
    publisher.publish(topic, b"long", 1, properties=for_seconds(100))
    client.expect_nothing(OVER)
    client.acknowledge(first)
    message = client.expect_message(topic, b"long", 1, properties=None)
    assert left(message) <= 98
    client.acknowledge(message)
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.2-6", "MQTT-3.3.2-5")
def test_retained_messages_count_down_and_expire(clients: Clients5, topic: str) -> None:
    publisher = clients.five()
    publisher.publish(f"{topic}/short", b"s", retain=True, properties=for_seconds(1))
    publisher.publish(
        f"{topic}/long", b"l", 1, retain=True, properties=((p.CONTENT_TYPE, "t"), *for_seconds(100))
    )
    time.sleep(OVER)
    clients.subscribed(f"{topic}/+").expect_publish(f"{topic}/long", b"l", retain=True)
    client = clients.listening(f"{topic}/+")
    message = client.expect_message(f"{topic}/long", b"l", retain=True, properties=None)
    assert 40 <= left(message) <= 98
    assert message.get(p.CONTENT_TYPE) == "t"
    client.expect_nothing()
    publisher.publish(f"{topic}/long", retain=True)


@pytest.mark.mqtt5("MQTT-3.3.1-5", "MQTT-3.3.2-5")
def test_the_last_retained_message_decides_when_it_expires(clients: Clients5, topic: str) -> None:
    publisher = clients.five()
    publisher.publish(topic, b"short", retain=True, properties=for_seconds(1))
    publisher.publish(topic, b"for ever", retain=True)
    publisher.publish(f"{topic}/x", b"for ever", retain=True)
    publisher.publish(f"{topic}/x", b"short", 1, retain=True, properties=for_seconds(1))
    time.sleep(OVER)
    clients.listening(topic).expect_message(topic, b"for ever", retain=True)
    clients.listening(f"{topic}/x").expect_nothing()
    publisher.publish(topic, retain=True)


@pytest.mark.mqtt5("MQTT-4.3.3-7", "MQTT-4.3.3-13", "MQTT-4.4.0-1")
def test_expiry_does_not_end_an_exchange_that_was_begun(clients: Clients5, topic: str) -> None:
    client = clients.kept(topic, topic, 2)
    publisher = clients.five()
    publisher.publish(topic, b"1", 2, properties=for_seconds(1))
    publisher.publish(topic, b"2", 2, properties=for_seconds(1))
    one = client.expect_message(topic, b"1", 2, properties=None)
    two = client.expect_message(topic, b"2", 2, properties=None)
    assert one.packet_id is not None
    assert two.packet_id is not None
    client.send(p.acknowledge(PUBREC, one.packet_id))
    client.expect_answer(PUBREL, one.packet_id)
    client.expect_nothing(OVER)
    client.reset()
    client = clients.resumed(topic, KEEP)
    received = [client.receive(), client.receive()]
    again = [one for one in received if isinstance(one, p.Publish)]
    assert [(one.payload, one.dup, one.packet_id) for one in again] == [(b"2", True, two.packet_id)]
    (release,) = (one for one in received if isinstance(one, p.Answer))
    assert (release.kind, release.packet_id, release.code) == (PUBREL, one.packet_id, 0)
    client.send(p.acknowledge(PUBCOMP, one.packet_id))
    client.acknowledge(again[0])
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.3.2-5", "MQTT-3.3.2-6")
@pytest.mark.parametrize("kill", [False, True])
def test_expiry_continues_over_a_restart(own: OwnBroker, topic: str, *, kill: bool) -> None:
    broker, clients = own()
    away(clients, topic, f"{topic}/#", 1)
    publisher = clients.five()
    publisher.publish(f"{topic}/1", b"short", 1, retain=True, properties=for_seconds(1))
    publisher.publish(f"{topic}/2", b"long", 1, retain=True, properties=for_seconds(100))
    broker.restart(kill=kill)
    time.sleep(OVER)
    client = clients.resumed(topic)
    message = client.expect_message(f"{topic}/2", b"long", 1, properties=None)
    assert left(message) <= 98
    client.acknowledge(message)
    client = clients.listening(f"{topic}/#")
    message = client.expect_message(f"{topic}/2", b"long", retain=True, properties=None)
    assert left(message) <= 98
    client.expect_nothing()
