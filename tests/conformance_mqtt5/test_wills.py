"""Wills: their properties, their delay, and the end of the delay (3.1.2.5, 3.1.3.2)."""

import time

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_packets import Properties, Will
from harness.mqtt5_rawclient import Clients5, OwnBroker

PROPERTIES: Properties = (
    (p.PAYLOAD_FORMAT, 1),
    (p.CONTENT_TYPE, "text/plain"),
    (p.RESPONSE_TOPIC, "answers/here"),
    (p.CORRELATION_DATA, b"\0\xff"),
    (p.USER_PROPERTY, ("b", "1")),
    (p.USER_PROPERTY, ("a", "2")),
    (p.USER_PROPERTY, ("b", "1")),
)


def expiry(seconds: int) -> Properties:
    return ((p.SESSION_EXPIRY, seconds),)


def delayed(topic: str, seconds: int, payload: bytes = b"gone") -> Will:
    return Will(topic, payload, properties=((p.WILL_DELAY, seconds),))


# ---------------------------------------------------------------- properties


@pytest.mark.mqtt5(
    "MQTT-3.1.3-10", "MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-20"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_of_a_will_are_published(clients: Clients5, topic: str, qos: int) -> None:
    watcher = clients.listening(topic, qos)
    old = clients.subscribed(topic, qos)
    client = clients.five(will=Will(topic, b"gone", qos, properties=PROPERTIES))
    client.close()
    message = watcher.expect_message(topic, b"gone", qos, properties=None)
    assert message.user == [("b", "1"), ("a", "2"), ("b", "1")]
    assert dict(message.properties) == dict(PROPERTIES)
    watcher.acknowledge(message)
    old.acknowledge(old.expect_publish(topic, b"gone", qos))


@pytest.mark.mqtt5("MQTT-3.3.2-6", "MQTT-3.1.2-8")
def test_expiry_of_a_will_begins_when_it_is_published(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    properties: Properties = ((p.MESSAGE_EXPIRY, 50),)
    client = clients.five(will=Will(topic, b"gone", properties=properties))
    client.expect_nothing(2.2)
    client.close()
    left = watcher.expect_message(topic, b"gone", properties=None).get(p.MESSAGE_EXPIRY)
    assert left in {49, 50}


@pytest.mark.mqtt5("MQTT-3.1.2-14", "MQTT-3.1.2-15", "MQTT-3.1.2-7")
@pytest.mark.parametrize("retain", [False, True])
def test_will_retain(clients: Clients5, topic: str, *, retain: bool) -> None:
    watcher = clients.listening(topic)
    as_published = clients.listening(topic, 0x08)
    client = clients.five(will=Will(topic, b"gone", retain=retain, properties=PROPERTIES))
    client.close()
    watcher.expect_message(topic, b"gone", properties=None)
    as_published.expect_message(topic, b"gone", retain=retain, properties=None)
    late = clients.listening(topic)
    if retain:
        message = late.expect_message(topic, b"gone", retain=True, properties=None)
        assert dict(message.properties) == dict(PROPERTIES)
        clients.five().publish(topic, retain=True)
    else:
        late.expect_nothing()


# --------------------------------------------------------------------- delay


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.1.2-10")
def test_will_is_published_when_its_delay_is_over(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    client = clients.five(topic, properties=expiry(100), will=delayed(topic, 1))
    client.close()
    watcher.expect_nothing(0.5)
    watcher.expect_message(topic, b"gone")
    again = clients.resumed(topic)
    again.leave()
    watcher.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.3-9", "MQTT-3.1.2-10")
def test_client_that_is_back_in_time_has_no_will_published(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    clients.five(topic, properties=expiry(100), will=delayed(topic, 1)).close()
    back = clients.five(topic, clean=False, session_present=True, properties=expiry(100))
    watcher.expect_nothing(2.0)
    back.close()  # this connection had no will
    watcher.expect_nothing(1.5)


@pytest.mark.mqtt5("MQTT-3.1.3-9", "MQTT-3.1.2-8")
def test_each_connection_has_a_will_of_its_own(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    clients.five(topic, properties=expiry(100), will=delayed(topic, 1, b"first")).close()
    back = clients.five(
        topic,
        clean=False,
        session_present=True,
        properties=expiry(100),
        will=Will(topic, b"second"),
    )
    back.close()
    watcher.expect_message(topic, b"second")
    watcher.expect_nothing(2.0)


@pytest.mark.mqtt5("MQTT-3.1.3-9")
def test_a_client_of_level_4_is_back_in_time_too(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    clients.five(topic, properties=expiry(100), will=delayed(topic, 1)).close()
    clients.connect(topic, clean=False, session_present=True)
    watcher.expect_nothing(2.0)


@pytest.mark.mqtt5("MQTT-3.1.2-8")
@pytest.mark.parametrize("properties", [(), expiry(0)], ids=["absent", "0"])
def test_delay_ends_with_a_session_that_ends_at_once(
    clients: Clients5, topic: str, properties: Properties
) -> None:
    watcher = clients.listening(topic)
    clients.five(topic, properties=properties, will=delayed(topic, 1000)).close()
    watcher.expect_message(topic, b"gone")


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-4.1.0-2")
def test_delay_ends_with_a_session_that_expires(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    clients.five(topic, properties=expiry(1), will=delayed(topic, 1000)).close()
    watcher.expect_nothing(0.5)
    watcher.expect_message(topic, b"gone")
    clients.five(topic, clean=False, session_present=False)


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.1.2-4")
def test_delay_ends_with_a_session_that_clean_start_discards(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    clients.five(topic, properties=expiry(100), will=delayed(topic, 1000)).close()
    watcher.expect_nothing(0.5)
    clients.five(topic, clean=True)
    watcher.expect_message(topic, b"gone")


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.1.4-3")
@pytest.mark.parametrize(
    ("seconds", "clean", "published"),
    [(100, False, False), (100, True, True), (0, True, True), (0, False, True)],
    ids=["goes-on", "clean-start", "no-expiry-clean", "no-expiry"],
)
def test_takeover_and_a_will_with_a_delay(
    clients: Clients5, topic: str, seconds: int, *, clean: bool, published: bool
) -> None:
    """The note of section 3.1.4: it is published where the old session ends."""
    watcher = clients.listening(topic)
    old = clients.five(topic, properties=expiry(seconds), will=delayed(topic, 1000))
    new = clients.raw5()
    assert new.connect(topic, clean=clean).code == 0
    old.expect_ended(0x8E)
    if published:
        watcher.expect_message(topic, b"gone")
    else:
        watcher.expect_nothing(0.5)


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.1.4-3")
def test_takeover_and_a_will_without_a_delay(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    old = clients.five(topic, properties=expiry(100), will=Will(topic))
    clients.resumed(topic)
    old.expect_ended(0x8E)
    watcher.expect_message(topic, b"gone")


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.14.4-3", "MQTT-3.1.2-10")
def test_disconnect_and_a_will_with_a_delay(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    clients.five(properties=expiry(100), will=delayed(topic, 1, b"normal")).leave(0)
    clients.five(properties=expiry(100), will=delayed(topic, 1, b"with will")).leave(0x04)
    watcher.expect_message(topic, b"with will")
    clients.five(properties=expiry(100), will=delayed(topic, 1000, b"ends")).leave(0x04, expiry(0))
    watcher.expect_message(topic, b"ends")
    watcher.expect_nothing()


def test_a_delayed_will_reaches_its_own_session_by_a_subscription_without_no_local(
    clients: Clients5, topic: str
) -> None:
    """It used to be lost where another subscription with a higher QoS has No Local."""
    name = f"own-{topic}"
    will = Will(topic, b"mine", 1, properties=((p.WILL_DELAY, 1),))
    client = clients.five(name, properties=expiry(1000), will=will)
    assert client.subscribe((f"{topic}/#", 2 | 0x04)) == (2,)
    assert client.subscribe((topic, 1)) == (1,)
    client.close()
    time.sleep(1.5)
    again = clients.resumed(name)
    again.acknowledge(again.expect_message(topic, b"mine", 1))
    again.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.2-8", "MQTT-3.1.2-7", "MQTT-3.1.2-10")
@pytest.mark.parametrize("kill", [False, True])
def test_delayed_wills_survive_a_restart(own: OwnBroker, topic: str, *, kill: bool) -> None:
    broker, clients = own()
    watcher = clients.five("watcher", properties=expiry(1000))
    assert watcher.subscribe((topic, 1)) == (1,)
    for name, delay in (("soon", 1), ("late", 1000)):
        will = Will(topic, name.encode(), 1, properties=((p.WILL_DELAY, delay), *PROPERTIES))
        clients.five(name, properties=expiry(1000), will=will).close()
    normal = clients.five("normal", properties=expiry(1000), will=delayed(topic, 1, b"never"))
    normal.leave()
    watcher.leave()
    broker.restart(kill=kill)
    time.sleep(1.5)
    watcher = clients.resumed("watcher")
    message = watcher.expect_message(topic, b"soon", 1, properties=None)
    assert dict(message.properties) == dict(PROPERTIES)
    watcher.acknowledge(message)
    clients.resumed("late").leave()
    watcher.expect_nothing(0.5)
