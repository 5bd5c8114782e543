"""Section 1.5.3: UTF-8 encoded strings."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Will

ILL_FORMED = {
    "surrogate-first": b"\xed\xa0\x80",
    "surrogate-last": b"\xed\xbf\xbf",
    "surrogate-pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "lone-continuation": b"\x80",
    "cut-two-byte": b"\xc3",
    "cut-three-byte": b"\xe2\x82",
    "cut-four-byte": b"\xf0\x9f\x98",
    "overlong-slash": b"\xc0\xaf",
    "overlong-three-byte": b"\xe0\x80\xaf",
    "overlong-four-byte": b"\xf0\x80\x80\xaf",
    "above-10ffff": b"\xf4\x90\x80\x80",
    "never-a-byte": b"\xff",
}
NULL = {"null": b"\x00", "null-inside": b"a\x00b", "overlong-null": b"\xc0\x80"}

bad_strings = pytest.mark.parametrize(
    "bad", [*ILL_FORMED.values(), *NULL.values()], ids=[*ILL_FORMED, *NULL]
)
two_bad_strings = pytest.mark.parametrize("bad", [b"\xed\xa0\x80", b"a\x00b"])
"""One that is ill-formed and one with a null character: where strings are read like topic names."""


@two_bad_strings
@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.1.3-4", "MQTT-3.1.4-1")
def test_bad_client_identifier_closes(clients: Clients, bad: bytes) -> None:
    client = clients.raw()
    client.send(p.connect(b"id" + bad))
    client.expect_closed()


@two_bad_strings
@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.1.3-10", "MQTT-3.1.4-1")
def test_bad_will_topic_closes(clients: Clients, topic: str, bad: bytes) -> None:
    client = clients.raw()
    client.send(p.connect(topic, will=Will(topic.encode() + bad)))
    client.expect_closed()


@two_bad_strings
@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.1.3-11", "MQTT-3.1.4-1")
def test_bad_user_name_closes(clients: Clients, topic: str, bad: bytes) -> None:
    client = clients.raw()
    client.send(p.connect(topic, username=b"user" + bad, password=b"secret"))
    client.expect_closed()


@bad_strings
@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.3.2-1", "MQTT-4.7.3-2")
def test_bad_topic_name_closes(clients: Clients, topic: str, bad: bytes) -> None:
    client = clients.connect()
    client.send(p.publish(topic.encode() + bad, b"x", 1, 7))
    client.expect_closed()


@two_bad_strings
@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.8.3-1", "MQTT-4.7.3-2")
def test_bad_filter_in_subscribe_closes(clients: Clients, topic: str, bad: bytes) -> None:
    client = clients.connect()
    client.send(p.subscribe(1, (topic, 0), (topic.encode() + bad, 0)))
    client.expect_closed()


@two_bad_strings
@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-3.10.3-1", "MQTT-4.7.3-2")
def test_bad_filter_in_unsubscribe_closes(clients: Clients, topic: str, bad: bytes) -> None:
    client = clients.connect()
    client.send(p.unsubscribe(1, topic.encode() + bad))
    client.expect_closed()


@pytest.mark.mqtt("MQTT-1.5.3-3", "MQTT-4.7.3-4")
def test_zero_width_no_break_space_is_kept(clients: Clients, topic: str) -> None:
    marked = f"\ufeff{topic}/a\ufeffb\ufeff"
    plain = f"{topic}/ab"
    subscriber = clients.connect()
    assert subscriber.subscribe((marked, 0), (plain, 0)) == (0, 0)
    publisher = clients.connect()
    publisher.publish(marked, b"marked")
    publisher.publish(plain, b"plain")
    subscriber.expect_publish(marked, b"marked")
    subscriber.expect_publish(plain, b"plain")


@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-4.7.3-4")
def test_characters_of_every_length_pass_unchanged(clients: Clients, topic: str) -> None:
    name = f"{topic}/a é ߿ \u0800 \ud7ff \ue000 ￼ 😀 \U0010fffd"
    subscriber = clients.subscribed(name)
    clients.connect().publish(name, name.encode())
    subscriber.expect_publish(name, name.encode())


@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"\x00\x05abcd", b"\xff\xff" + b"a" * 100],
    ids=["no-length", "half-a-length", "one-byte-short", "far-too-short"],
)
def test_string_longer_than_its_packet_closes(clients: Clients, body: bytes) -> None:
    client = clients.connect()
    client.send(p.packet(p.PUBLISH, 0, body))
    client.expect_closed()
