"""Section 1.5: strings and numbers."""

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_rawclient import Clients5


@pytest.mark.mqtt5("MQTT-1.5.4-3", "MQTT-3.3.2-18", "MQTT-4.7.3-4")
@pytest.mark.parametrize("where", ["\ufeff{}", "{}\ufeff", "{}\ufeff{}"])
def test_the_bom_is_a_character(clients: Clients5, topic: str, where: str) -> None:
    name = where.replace("{}", topic)
    client, plain = clients.listening(name), clients.listening(topic)
    properties = ((p.CONTENT_TYPE, "\ufefft"), (p.USER_PROPERTY, ("\ufeff", "a\ufeff")))
    clients.five().publish(name, b"bom", properties=properties)
    client.expect_message(name, b"bom", properties=properties)
    plain.expect_nothing(0.1)


@pytest.mark.mqtt5("MQTT-1.5.4-1")
@pytest.mark.parametrize("text", ["é", "中", "\U0001f600", "\ufffe", "\U0010ffff", " ", "a b"])
def test_other_characters_are_passed_on(clients: Clients5, topic: str, text: str) -> None:
    client = clients.listening(topic + text)
    properties = ((p.CONTENT_TYPE, text), (p.USER_PROPERTY, (text, text)))
    clients.five(topic + text).publish(topic + text, b"x", properties=properties)
    client.expect_message(topic + text, b"x", properties=properties)


@pytest.mark.mqtt5("MQTT-1.5.4-1")
def test_the_longest_properties(clients: Clients5, topic: str) -> None:
    """Strings may have 65,535 bytes each, and a message has all of them."""
    longest = "x" * 65_535
    properties: p.Properties = (
        (p.CONTENT_TYPE, longest),
        (p.RESPONSE_TOPIC, longest),
        (p.CORRELATION_DATA, longest.encode()),
        (p.USER_PROPERTY, (longest, "y")),
    )
    client = clients.five(properties=((p.SESSION_EXPIRY, 100),))
    assert client.subscribe((topic, 1)) == (1,)
    clients.five().publish(topic, b"large", 1, properties=properties)
    found = client.expect_message(topic, b"large", 1, properties=None)
    assert sorted(found.properties) == sorted(properties)
    client.acknowledge(found)
