"""Session state (3.1.2.4, 3.1.2.11.2, 4.1), DISCONNECT (3.14) and levels side by side."""

import time

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.mqtt5_packets import Properties, Publish, Will
from harness.mqtt5_rawclient import Clients5, OwnBroker
from harness.packets import PUBACK, PUBCOMP, PUBREC, PUBREL

FOREVER = 0xFFFFFFFF


def expiry(seconds: int) -> Properties:
    return ((p.SESSION_EXPIRY, seconds),)


# ------------------------------------------------------------------- its end


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-1", "MQTT-4.1.0-2")
@pytest.mark.parametrize("properties", [(), expiry(0)], ids=["absent", "0"])
@pytest.mark.parametrize("ending", ["leave", "close", "reset"])
def test_session_without_an_expiry_ends_with_its_connection(
    clients: Clients5, topic: str, properties: Properties, ending: str
) -> None:
    watcher = clients.listening(topic)
    client = clients.five(topic, properties=properties, will=Will(topic, b"ended"))
    assert client.subscribe((f"{topic}/x", 1)) == (1,)
    getattr(client, ending)()
    if ending != "leave":
        watcher.expect_message(topic, b"ended")
    client = clients.five(topic, clean=False, session_present=False)
    client.publish(f"{topic}/x", b"", 1)
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-1", "MQTT-4.5.0-1", "MQTT-3.1.2-5")
@pytest.mark.parametrize("seconds", [100, FOREVER - 1, FOREVER])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("ending", ["leave", "close"])
def test_session_is_kept_until_it_expires(
    clients: Clients5, topic: str, seconds: int, ending: str, *, clean: bool
) -> None:
    """Clean Start begins a new session, which is kept all the same."""
    client = clients.five(topic, clean=clean, properties=expiry(seconds))
    assert client.subscribe((topic, 1)) == (1,)
    getattr(client, ending)()
    clients.five().publish(topic, b"kept", 1)
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"kept", 1))
    client.leave()
    clients.five(topic, clean=False, session_present=False)


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_session_ends_when_it_expires(clients: Clients5, topic: str) -> None:
    client = clients.five(topic, properties=expiry(1))
    assert client.subscribe((topic, 1)) == (1,)
    client.leave()
    time.sleep(2.2)
    client = clients.five(topic, clean=False, session_present=False, properties=expiry(1))
    client.publish(topic, b"nobody", 1)
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-4.1.0-1")
def test_session_does_not_expire_while_its_client_is_connected(
    clients: Clients5, topic: str
) -> None:
    client = clients.five(topic, properties=expiry(1))
    assert client.subscribe((topic, 1)) == (1,)
    client.expect_nothing(2.2)
    client.publish(topic, b"here", 1)
    client.acknowledge(client.expect_message(topic, b"here", 1))
    client.leave()
    client = clients.five(topic, clean=False, session_present=True, properties=expiry(1))
    client.expect_nothing(2.2)
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_the_expiry_of_the_last_connection_counts(clients: Clients5, topic: str) -> None:
    clients.five(topic, properties=expiry(100)).leave()
    clients.five(topic, clean=False, session_present=True, properties=expiry(0)).leave()
    clients.five(topic, clean=False, session_present=False, properties=expiry(1)).leave()
    clients.five(topic, clean=False, session_present=True, properties=expiry(100)).leave()
    time.sleep(2.2)
    clients.resumed(topic)


# --------------------------------------------- DISCONNECT with another expiry


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_disconnect_ends_the_session_with_an_expiry_of_0(clients: Clients5, topic: str) -> None:
    clients.five(topic, properties=expiry(100)).leave(0, expiry(0))
    clients.five(topic, clean=False, session_present=False)


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_disconnect_without_an_expiry_leaves_that_of_the_connect(
    clients: Clients5, topic: str
) -> None:
    for code, properties in ((None, None), (0, None), (0, ()), (0, ((p.REASON_STRING, "bye"),))):
        clients.five(topic, properties=expiry(100)).leave(code, properties)
        clients.resumed(topic).leave()


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_disconnect_lengthens_and_shortens_the_expiry(clients: Clients5, topic: str) -> None:
    clients.five(f"{topic}long", properties=expiry(1)).leave(0, expiry(100))
    clients.five(f"{topic}short", properties=expiry(100)).leave(0, expiry(1))
    time.sleep(2.2)
    clients.resumed(f"{topic}long")
    clients.five(f"{topic}short", clean=False, session_present=False)


@pytest.mark.mqtt5("MQTT-4.13.1-1", "MQTT-3.14.2-1", "MQTT-3.1.2-8")
@pytest.mark.parametrize("properties", [(), expiry(0)], ids=["absent", "0"])
def test_disconnect_cannot_set_an_expiry_where_there_was_none(
    clients: Clients5, topic: str, properties: Properties
) -> None:
    """It is no DISCONNECT then (3.14.2.2.2), so that the will is published."""
    watcher = clients.listening(topic)
    client = clients.five(topic, properties=properties, will=Will(topic, b"not gone well"))
    client.send(p.disconnect(0, expiry(10)))
    client.expect_ended(0x82)
    watcher.expect_message(topic, b"not gone well")
    clients.five(topic, clean=False, session_present=False)


# ---------------------------------------------------------------- DISCONNECT


@pytest.mark.mqtt5("MQTT-3.14.4-2", "MQTT-3.14.4-1", "MQTT-3.14.4-3", "MQTT-3.1.2-10")
@pytest.mark.parametrize("code", [None, 0])
def test_disconnect_discards_the_will(clients: Clients5, topic: str, code: int | None) -> None:
    watcher = clients.listening(topic)
    clients.five(will=Will(topic)).leave(code)
    watcher.expect_nothing()


CODES = [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.14.2-1", "MQTT-3.14.4-2")
@pytest.mark.parametrize("code", CODES)
def test_disconnect_with_any_other_code_publishes_the_will(
    clients: Clients5, topic: str, code: int
) -> None:
    watcher = clients.listening(topic)
    clients.five(will=Will(topic)).leave(code)
    watcher.expect_message(topic, b"gone")


@pytest.mark.mqtt5("MQTT-3.14.1-1", "MQTT-2.1.3-1", "MQTT-4.13.1-1", "MQTT-3.1.2-8")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_reserved_flags_of_a_disconnect(clients: Clients5, topic: str, flags: int) -> None:
    watcher = clients.listening(topic)
    client = clients.five(will=Will(topic))
    client.send(bytes((0xE0 | flags, 0)))
    client.expect_ended(0x81)
    watcher.expect_message(topic, b"gone")


@pytest.mark.mqtt5("MQTT-3.14.4-1", "MQTT-3.14.4-2")
def test_nothing_behind_a_disconnect_is_processed(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    client = clients.five()
    client.send(p.publish(topic, b"1"), p.disconnect(), p.publish(topic, b"2"), packets.pingreq())
    client.expect_closed()
    watcher.expect_message(topic, b"1")
    watcher.expect_nothing()


# ------------------------------------------------------------- sending again


@pytest.mark.mqtt5(
    "MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.2-3", "MQTT-2.2.1-5", "MQTT-4.3.2-1", "MQTT-4.3.2-2"
)
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_is_sent_again_after_a_reconnect(
    clients: Clients5, topic: str, qos: int
) -> None:
    client = clients.five(topic, properties=expiry(100))
    assert client.subscribe((topic, qos)) == (qos,)
    properties = ((p.CONTENT_TYPE, "text/plain"), (p.USER_PROPERTY, ("a", "b")))
    clients.five().publish(topic, b"x", qos, properties=properties)
    first = client.expect_message(topic, b"x", qos, properties=properties)
    client.reset()
    for _ in range(2):
        client = clients.five(topic, clean=False, session_present=True, properties=expiry(100))
        again = client.expect_message(topic, b"x", qos, dup=True, properties=properties)
        assert again.packet_id == first.packet_id
        client.reset()
    client = clients.resumed(topic)
    again = client.expect_message(topic, b"x", qos, dup=True, properties=properties)
    client.acknowledge(again)
    client.expect_alive()
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-4.4.0-1", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.3.3-4", "MQTT-2.2.1-5")
def test_pubrel_is_sent_again_after_a_reconnect(clients: Clients5, topic: str) -> None:
    client = clients.five(topic, properties=expiry(100))
    assert client.subscribe((topic, 2)) == (2,)
    clients.five().publish(topic, b"x", 2)
    number = client.expect_message(topic, b"x", 2).packet_id
    assert number is not None
    client.send(p.acknowledge(PUBREC, number))
    client.expect_answer(PUBREL, number)
    for _ in range(2):
        client.reset()
        client = clients.five(topic, clean=False, session_present=True, properties=expiry(100))
        client.expect_answer(PUBREL, number)
        client.expect_alive()
    client.send(p.acknowledge(PUBCOMP, number))
    client.expect_alive()
    client.reset()
    clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-4.4.0-1")
def test_nothing_is_sent_again_on_a_live_connection(own: OwnBroker, topic: str) -> None:
    """Also where messages are sent again to clients of MQTT 3.1.1."""
    _, clients = own('ack_wait = "0.3s"')
    client = clients.listening(topic, 2)
    clients.five().publish(topic, b"1", 1)
    clients.five().publish(topic, b"2", 2)
    one, two = client.expect_message(topic, b"1", 1), client.expect_message(topic, b"2", 2)
    client.expect_nothing(1.5)
    client.acknowledge(one)
    client.acknowledge(two)


@pytest.mark.mqtt5("MQTT-4.4.0-1", "MQTT-3.3.1-1")
def test_dup_only_on_redeliveries(clients: Clients5, topic: str) -> None:
    client = clients.five(topic, properties=expiry(100))
    assert client.subscribe((topic, 1)) == (1,)
    other = clients.five()
    other.publish(topic, b"sent", 1)
    client.expect_message(topic, b"sent", 1)
    client.leave()
    other.publish(topic, b"waiting", 1)
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"sent", 1, dup=True))
    client.acknowledge(client.expect_message(topic, b"waiting", 1))


@pytest.mark.mqtt5("MQTT-4.3.3-10", "MQTT-4.1.0-1", "MQTT-4.3.3-11", "MQTT-4.3.3-12")
def test_received_identifiers_survive_a_reconnect(clients: Clients5, topic: str) -> None:
    subscriber = clients.listening(topic, 2)
    client = clients.five(topic, properties=expiry(100))
    client.send(p.publish(topic, b"once", 2, 6))
    client.expect_answer(PUBREC, 6)
    client.reset()
    client = clients.resumed(topic)
    client.publish(topic, b"once", 2, packet_id=6, dup=True)
    subscriber.acknowledge(subscriber.expect_message(topic, b"once", 2))
    subscriber.expect_nothing()


# ------------------------------------------------------- levels side by side


@pytest.mark.mqtt5("MQTT-3.1.2-5", "MQTT-4.5.0-1")
def test_one_session_at_levels_3_4_and_5(clients: Clients5, topic: str) -> None:
    old = clients.connect(topic, clean=False, protocol="MQIsdp", level=3)
    assert old.subscribe((topic, 1)) == (1,)
    old.disconnect()
    properties = ((p.CONTENT_TYPE, "text/plain"), (p.USER_PROPERTY, ("k", "v")))
    clients.five().publish(topic, b"1", 1, properties=properties)
    new = clients.five(topic, clean=False, session_present=True, properties=expiry(100))
    message = new.expect_message(topic, b"1", 1, properties=properties)
    new.leave()
    middle = clients.connect(topic, clean=False, session_present=True)
    received = middle.expect_publish(topic, b"1", 1, dup=True)
    assert received.packet_id == message.packet_id
    middle.acknowledge(received)
    middle.disconnect()
    clients.connect().publish(topic, b"2", 1)
    new = clients.resumed(topic)
    new.acknowledge(new.expect_message(topic, b"2", 1))
    new.leave()
    clients.connect(topic, clean=False, session_present=False)


def test_levels_side_by_side_on_one_topic(clients: Clients5, topic: str) -> None:
    """What one level cannot say is left out for it; payload, topic and QoS are the same."""
    for qos in (0, 1, 2):
        name = f"{topic}/{qos}"
        new = [clients.listening(name, qos), clients.listening(name, qos | 0x08)]
        old = [clients.subscribed(name, qos), clients.subscribed(f"{topic}/+", qos)]
        oldest = clients.connect(protocol="MQIsdp", level=3)
        assert oldest.subscribe((name, qos)) == (qos,)
        properties: Properties = ((p.MESSAGE_EXPIRY, 100), (p.USER_PROPERTY, ("k", "v")))
        clients.five().publish(name, b"five", qos, properties=properties)
        for one in new:
            message = one.expect_message(name, b"five", qos, properties=None)
            assert message.user == [("k", "v")]
            one.acknowledge(message)
        for other in (*old, oldest):
            other.acknowledge(other.expect_publish(name, b"five", qos))
        clients.connect().publish(name, b"four", qos)
        for one in new:
            one.acknowledge(one.expect_message(name, b"four", qos))
        for other in (*old, oldest):
            other.acknowledge(other.expect_publish(name, b"four", qos))


def test_options_of_a_subscription_wait_for_their_level(clients: Clients5, topic: str) -> None:
    """An MQTT 3.1.1 client that resumes the session does not have them."""
    client = clients.five(topic, properties=expiry(100))
    identifier: Properties = ((p.SUBSCRIPTION_IDENTIFIER, 5),)
    assert client.subscribe((topic, 1 | 0x08), properties=identifier) == (1,)
    client.leave()
    publisher = clients.five()
    publisher.publish(topic, b"1", 1, retain=True)
    old = clients.connect(topic, clean=False, session_present=True)
    old.acknowledge(old.expect_publish(topic, b"1", 1, retain=False))  # [MQTT-3.3.1-9] of 3.1.1
    publisher.publish(topic, b"2", 1, retain=True)
    old.acknowledge(old.expect_publish(topic, b"2", 1, retain=False))
    old.disconnect()
    publisher.publish(topic, b"3", 1, retain=True)
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"3", 1, retain=True, properties=identifier))
    publisher.publish(topic, b"4", 1, retain=True)
    client.acknowledge(client.expect_message(topic, b"4", 1, retain=True, properties=identifier))
    publisher.publish(topic, retain=True)


# ------------------------------------------------------------------- restart


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2", "MQTT-4.3.2-4")
@pytest.mark.parametrize("kill", [False, True])
def test_sessions_expire_over_a_restart_too(own: OwnBroker, topic: str, *, kill: bool) -> None:
    broker, clients = own()
    for name, seconds in (("short", 1), ("long", 1000), ("ever", FOREVER), ("none", 0)):
        client = clients.five(name, properties=expiry(seconds))
        assert client.subscribe((topic, 1)) == (1,)
        if name != "ever":
            client.leave()
    clients.five().publish(topic, b"kept", 1, properties=((p.CONTENT_TYPE, "t"),))
    broker.restart(kill=kill)
    time.sleep(2.2)
    for name in ("long", "ever"):
        client = clients.resumed(name)
        message = client.receive()
        assert isinstance(message, Publish)
        assert (message.payload, message.properties) == (b"kept", ((p.CONTENT_TYPE, "t"),))
        client.acknowledge(message)
    for name in ("short", "none"):
        clients.five(name, clean=False, session_present=False)


@pytest.mark.mqtt5("MQTT-4.3.2-4", "MQTT-4.3.3-8")
def test_acknowledged_is_kept(own: OwnBroker, topic: str) -> None:
    """The receiver takes a message over before it acknowledges it."""
    broker, clients = own()
    client = clients.five(topic, properties=expiry(1000))
    assert client.subscribe((topic, 2)) == (2,)
    client.leave()
    publisher = clients.five("publisher", properties=expiry(1000))
    publisher.send(p.publish(topic, b"1", 1, 1), p.publish(topic, b"2", 2, 2))
    publisher.expect_answer(PUBACK, 1)
    publisher.expect_answer(PUBREC, 2)
    broker.restart(kill=True)
    publisher = clients.resumed("publisher")
    publisher.release(2)
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"1", 1))
    client.acknowledge(client.expect_message(topic, b"2", 2))
