"""Section 1.5: strings and numbers."""

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_packets import Will
from harness.mqtt5_rawclient import Clients5

ILL_FORMED = {
    "surrogate-first": b"\xed\xa0\x80",
    "surrogate-last": b"\xed\xbf\xbf",
    "surrogate-pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "continuation": b"\x80",
    "cut-two": b"\xc3",
    "cut-four": b"\xf0\x9f\x98",
    "overlong": b"\xc0\xaf",
    "above-10ffff": b"\xf4\x90\x80\x80",
    "never-a-byte": b"\xff",
    "null": b"a\x00b",
}
bad_strings = pytest.mark.parametrize("bad", ILL_FORMED.values(), ids=ILL_FORMED)
two_bad_strings = pytest.mark.parametrize("bad", [b"\xed\xa0\x80", b"a\x00b"])
"""One that is ill-formed and one with a null character: where strings are read like filters."""
STRINGS = (b"client", b"will", b"user", b"content", b"response", b"name", b"value", b"method")


@two_bad_strings
@pytest.mark.mqtt5(
    "MQTT-1.5.4-1",
    "MQTT-1.5.4-2",
    "MQTT-1.5.7-1",
    "MQTT-3.1.3-4",
    "MQTT-3.1.3-11",
    "MQTT-3.1.3-12",
    "MQTT-3.1.4-1",
    "MQTT-4.7.3-2",
)
@pytest.mark.parametrize("where", STRINGS)
def test_bad_string_in_a_connect(clients: Clients5, topic: str, bad: bytes, where: bytes) -> None:
    texts = {one: one + bad if one == where else one for one in STRINGS}
    client = clients.raw5()
    will = Will(
        topic.encode() + texts[b"will"],
        properties=p.prop(p.CONTENT_TYPE, texts[b"content"])
        + p.prop(p.RESPONSE_TOPIC, texts[b"response"]),
    )
    pair = p.packets.text(texts[b"name"]) + p.packets.text(texts[b"value"])
    properties = bytes((p.USER_PROPERTY,)) + pair
    if where == b"method":
        properties += p.prop(p.AUTHENTICATION_METHOD, texts[b"method"])
    client.send(
        p.connect(
            topic.encode() + texts[b"client"],
            will=will,
            username=texts[b"user"],
            properties=properties,
        )
    )
    client.expect_refused(0x81)


@two_bad_strings
@pytest.mark.mqtt5(
    "MQTT-1.5.4-1",
    "MQTT-1.5.4-2",
    "MQTT-1.5.7-1",
    "MQTT-3.3.2-1",
    "MQTT-3.3.2-13",
    "MQTT-3.3.2-19",
    "MQTT-4.7.3-2",
    "MQTT-4.13.1-1",
)
@pytest.mark.parametrize("where", ["topic", "content", "response", "name", "value"])
def test_bad_string_in_a_publish(clients: Clients5, topic: str, bad: bytes, where: str) -> None:
    name, block = topic.encode(), b""
    if where == "topic":
        name += bad
    elif where in {"content", "response"}:
        block = p.prop(p.CONTENT_TYPE if where == "content" else p.RESPONSE_TOPIC, b"x" + bad)
    else:
        pair = (b"k" + bad, b"v") if where == "name" else (b"k", b"v" + bad)
        block = bytes((p.USER_PROPERTY,)) + b"".join(p.packets.text(one) for one in pair)
    client = clients.five()
    client.send(p.publish(name, b"x", 1, 1, properties=block))
    client.expect_ended(0x81)


@bad_strings
@pytest.mark.mqtt5(
    "MQTT-1.5.4-1",
    "MQTT-1.5.4-2",
    "MQTT-3.8.3-1",
    "MQTT-3.10.2-1",
    "MQTT-4.7.3-2",
    "MQTT-4.13.1-1",
)
@pytest.mark.parametrize("unsubscribe", [False, True])
def test_bad_filter(clients: Clients5, topic: str, bad: bytes, *, unsubscribe: bool) -> None:
    name = topic.encode() + bad
    client = clients.five()
    client.send(p.unsubscribe(1, name) if unsubscribe else p.subscribe(1, (name, 0)))
    client.expect_ended(0x81)


@two_bad_strings
@pytest.mark.mqtt5("MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-4.13.1-1")
def test_bad_reason_strings(clients: Clients5, bad: bytes) -> None:
    block = p.prop(p.REASON_STRING, b"because" + bad)
    for data in (p.acknowledge(p.packets.PUBACK, 1, 0, block), p.disconnect(0, block)):
        client = clients.five()
        client.send(data)
        client.expect_ended(0x81)


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
