"""Chapter 2: the fixed header, remaining length and packet identifiers."""

import pytest
from harness import packets as p
from harness.fixtures import Clients, unique
from harness.packets import Pingresp, Puback, Pubcomp, Pubrec, Suback, Unsuback


@pytest.mark.mqtt("MQTT-2.2.2-1", "MQTT-2.2.2-2", "MQTT-3.14.1-1", "MQTT-3.14.4-3")
def test_disconnect_with_wrong_flags_is_none_so_the_will_is_sent(
    clients: Clients, topic: str
) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect(will=p.Will(topic, b"violated"))
    client.send(p.packet(p.DISCONNECT, 1))
    client.expect_closed()
    watcher.expect_publish(topic, b"violated")


@pytest.mark.mqtt("MQTT-2.3.1-1", "MQTT-2.3.1-6", "MQTT-2.3.1-7", "MQTT-2.2.2-1")
@pytest.mark.parametrize("packet_id", [1, 255, 256, 32_768, 65_535])
def test_answers_carry_the_packet_identifier_of_the_request(
    clients: Clients, topic: str, packet_id: int
) -> None:
    client = clients.connect()
    client.send(p.subscribe(packet_id, (f"{topic}/sub", 0)))
    client.expect(Suback(packet_id, (0,)))
    client.publish(f"{topic}/x", b"", 1, packet_id=packet_id)
    client.publish(f"{topic}/x", b"", 2, packet_id=packet_id)
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
