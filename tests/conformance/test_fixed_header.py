"""Chapter 2: the fixed header, remaining length and packet identifiers."""

import pytest
from harness import packets as p
from harness.fixtures import Clients, unique
from harness.packets import Pingresp, Puback, Pubcomp, Pubrec, Suback, Unsuback

BODIES = {
    p.CONNECT: p.connect("flags")[2:],
    p.PUBACK: p.u16(9),
    p.PUBREC: p.u16(9),
    p.PUBREL: p.u16(9),
    p.PUBCOMP: p.u16(9),
    p.SUBSCRIBE: p.u16(9) + p.text("flags/of/header") + b"\0",
    p.UNSUBSCRIBE: p.u16(9) + p.text("flags/of/header"),
    p.PINGREQ: b"",
    p.DISCONNECT: b"",
}
LEGAL_FLAGS = {p.PUBREL: 2, p.SUBSCRIBE: 2, p.UNSUBSCRIBE: 2}


def wrong_flags(kind: int) -> list[int]:
    return [flags for flags in range(16) if flags != LEGAL_FLAGS.get(kind, 0)]


@pytest.mark.mqtt(
    "MQTT-2.2.2-1",
    "MQTT-2.2.2-2",
    "MQTT-3.6.1-1",
    "MQTT-3.8.1-1",
    "MQTT-3.10.1-1",
    "MQTT-3.14.1-1",
    "MQTT-4.8.0-1",
)
@pytest.mark.parametrize(
    "kind", [kind for kind in BODIES if kind != p.CONNECT], ids=lambda kind: p.NAMES[kind]
)
def test_wrong_reserved_flags_close(clients: Clients, kind: int) -> None:
    for flags in wrong_flags(kind):
        client = clients.connect()
        client.send(p.packet(kind, flags, BODIES[kind]))
        client.expect_closed()


@pytest.mark.mqtt("MQTT-2.2.2-1", "MQTT-2.2.2-2", "MQTT-3.1.4-1")
def test_wrong_reserved_flags_of_connect_close(clients: Clients) -> None:
    for flags in wrong_flags(p.CONNECT):
        client = clients.raw()
        client.send(p.packet(p.CONNECT, flags, BODIES[p.CONNECT]))
        client.expect_closed()


@pytest.mark.mqtt("MQTT-2.2.2-1", "MQTT-2.2.2-2", "MQTT-3.14.1-1", "MQTT-3.14.4-3")
def test_disconnect_with_wrong_flags_is_none_so_the_will_is_sent(
    clients: Clients, topic: str
) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect(will=p.Will(topic, b"violated"))
    client.send(p.packet(p.DISCONNECT, 1))
    client.expect_closed()
    watcher.expect_publish(topic, b"violated")


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "data",
    [
        p.packet(0, 0),
        p.packet(15, 0),
        p.packet(p.CONNACK, 0, b"\0\0"),
        p.packet(p.SUBACK, 0, p.u16(1) + b"\0"),
        p.packet(p.UNSUBACK, 0, p.u16(1)),
        p.packet(p.PINGRESP, 0),
    ],
    ids=["type-0", "type-15", "CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"],
)
def test_packets_no_client_may_send_close(clients: Clients, data: bytes) -> None:
    client = clients.connect()
    client.send(data)
    client.expect_closed()


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize("kind", [p.PUBLISH, p.PINGREQ, p.SUBSCRIBE], ids=lambda k: p.NAMES[k])
def test_remaining_length_of_five_bytes_closes(clients: Clients, kind: int) -> None:
    client = clients.connect()
    client.send(bytes([kind << 4 | LEGAL_FLAGS.get(kind, 0)]) + b"\xff\xff\xff\xff\x7f")
    client.expect_closed()


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "data",
    [
        p.packet(p.PUBACK, 0, b"\0"),
        p.packet(p.PUBREC, 0),
        p.packet(p.PUBREL, 2, b"\0"),
        p.packet(p.PUBCOMP, 0, b"\1"),
        p.packet(p.SUBSCRIBE, 2, b"\0"),
        p.packet(p.SUBSCRIBE, 2, p.u16(1) + p.text("cut/before/the/qos")),
        p.packet(p.SUBSCRIBE, 2, p.u16(1) + p.text("whole") + b"\0" + b"\0\5cut"),
        p.packet(p.UNSUBSCRIBE, 2, b"\0"),
        p.packet(p.UNSUBSCRIBE, 2, p.u16(1) + b"\0\5cut"),
        p.packet(p.PUBLISH, 2, p.text("no/packet/identifier")),
        p.packet(p.PUBLISH, 4, p.text("half/a/packet/identifier") + b"\1"),
    ],
    ids=[
        "PUBACK-1-byte",
        "PUBREC-empty",
        "PUBREL-1-byte",
        "PUBCOMP-1-byte",
        "SUBSCRIBE-1-byte",
        "SUBSCRIBE-without-qos",
        "SUBSCRIBE-second-filter-cut",
        "UNSUBSCRIBE-1-byte",
        "UNSUBSCRIBE-filter-cut",
        "PUBLISH-without-identifier",
        "PUBLISH-half-an-identifier",
    ],
)
def test_packets_cut_short_close(clients: Clients, data: bytes) -> None:
    client = clients.connect()
    client.send(data)
    client.expect_closed()


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "data",
    [
        p.packet(p.PUBACK, 0, p.u16(1) + b"\0"),
        p.packet(p.PUBREC, 0, p.u16(1) + b"\0"),
        p.packet(p.PUBREL, 2, p.u16(1) + b"\0"),
        p.packet(p.PUBCOMP, 0, p.u16(1) + b"\0"),
        p.packet(p.PINGREQ, 0, b"\0"),
        p.packet(p.DISCONNECT, 0, b"\0"),
    ],
    ids=["PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "PINGREQ", "DISCONNECT"],
)
def test_packets_with_bytes_too_many_close(clients: Clients, data: bytes) -> None:
    client = clients.connect()
    client.send(data)
    client.expect_closed()


@pytest.mark.mqtt("MQTT-2.3.1-1")
@pytest.mark.parametrize(
    "data",
    [
        p.publish("identifier/zero", b"x", 1, 0),
        p.publish("identifier/zero", b"x", 2, 0),
        p.subscribe(0, ("identifier/zero", 0)),
        p.unsubscribe(0, "identifier/zero"),
    ],
    ids=["PUBLISH-1", "PUBLISH-2", "SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_packet_identifier_zero_closes(clients: Clients, data: bytes) -> None:
    client = clients.connect()
    client.send(data)
    client.expect_closed()


@pytest.mark.mqtt("MQTT-2.3.1-1", "MQTT-2.3.1-6", "MQTT-2.3.1-7", "MQTT-2.2.2-1")
@pytest.mark.parametrize("packet_id", [1, 255, 256, 32_768, 65_535])
def test_answers_carry_the_packet_identifier_of_the_request(
    clients: Clients, topic: str, packet_id: int
) -> None:
    client = clients.connect()
    client.send(p.subscribe(packet_id, (f"{topic}/sub", 0)))
    client.expect(Suback(packet_id, (0,)))
    client.send(p.publish(f"{topic}/x", b"", 1, packet_id))
    client.expect(Puback(packet_id))
    client.send(p.publish(f"{topic}/x", b"", 2, packet_id))
    client.expect(Pubrec(packet_id))
    client.send(p.pubrel(packet_id))
    client.expect(Pubcomp(packet_id))
    client.send(p.unsubscribe(packet_id, f"{topic}/sub"))
    client.expect(Unsuback(packet_id))


@pytest.mark.mqtt("MQTT-2.3.1-5", "MQTT-4.3.1-1")
@pytest.mark.parametrize("published", [0, 1, 2])
def test_qos_0_delivery_carries_no_packet_identifier(
    clients: Clients, topic: str, published: int
) -> None:
    subscriber = clients.subscribed(topic, 0)
    clients.connect().publish(topic, b"\0\1payload", published)
    subscriber.expect_publish(topic, b"\0\1payload", 0)


@pytest.mark.mqtt("MQTT-3.3.2-1")
@pytest.mark.parametrize("length", [127, 128, 16_383, 16_384, 200_000])
def test_every_size_of_the_remaining_length(clients: Clients, topic: str, length: int) -> None:
    subscriber = clients.subscribed(topic, 1)
    payload = bytes(index % 251 for index in range(length - len(topic) - 4))
    clients.connect().publish(topic, payload, 1)
    received = subscriber.expect_publish(topic, payload, 1)
    subscriber.acknowledge(received)


@pytest.mark.mqtt("MQTT-7.1.1-1", "MQTT-3.1.0-1")
def test_packets_that_arrive_byte_by_byte(clients: Clients, topic: str) -> None:
    client = clients.raw()
    client.send_slowly(p.connect(unique("c")))
    client.expect(p.Connack(0))
    client.send_slowly(p.subscribe(1, (topic, 1)))
    client.expect(Suback(1, (1,)))
    client.send_slowly(p.publish(topic, b"slow" * 40, 2, 2))
    client.expect(Pubrec(2))
    client.send_slowly(p.pubrel(2))
    received = {type(client.receive()) for _ in range(2)}
    assert received == {Pubcomp, p.Publish}
    client.send_slowly(p.pingreq())
    client.expect(Pingresp())


@pytest.mark.mqtt("MQTT-7.1.1-1", "MQTT-3.2.0-1", "MQTT-3.1.4-4")
def test_many_packets_in_one_read(clients: Clients, topic: str) -> None:
    client = clients.raw()
    messages = [p.publish(topic, b"%d" % number, 1, number) for number in range(2, 102)]
    client.send(p.connect(unique("c")), p.subscribe(1, (topic, 0)), *messages, p.pingreq())
    client.expect(p.Connack(0))
    client.expect(Suback(1, (0,)))
    received = [client.receive() for _ in range(201)]
    assert [r.packet_id for r in received if isinstance(r, Puback)] == list(range(2, 102))
    assert [r.payload for r in received if isinstance(r, p.Publish)] == [
        b"%d" % number for number in range(2, 102)
    ]
    assert Pingresp() in received


@pytest.mark.mqtt("MQTT-4.8.0-1")
def test_good_packets_before_a_violation_are_served(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic, 1)
    client = clients.connect()
    client.send(p.publish(topic, b"good", 0), p.packet(0, 0), p.publish(topic, b"too late", 0))
    client.expect_closed()
    watcher.expect_publish(topic, b"good")
    watcher.expect_nothing()
