"""Sections 3.12 to 3.14: PINGREQ, PINGRESP and DISCONNECT."""

import pytest
from harness import packets as p
from harness.fixtures import Clients
from harness.packets import Pingresp, Will


@pytest.mark.mqtt("MQTT-3.12.4-1")
def test_each_pingreq_is_answered(clients: Clients) -> None:
    client = clients.connect()
    client.send(p.pingreq() * 10)
    for _ in range(10):
        client.expect(Pingresp())
    client.expect_nothing()


@pytest.mark.mqtt("MQTT-3.14.4-1", "MQTT-3.14.4-2")
def test_disconnect_closes_the_connection(clients: Clients) -> None:
    client = clients.connect()
    client.send(p.disconnect())
    client.expect_closed()


@pytest.mark.mqtt("MQTT-3.14.4-2")
def test_nothing_after_disconnect_is_processed(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect()
    client.send(p.disconnect(), p.publish(topic, b"too late"), p.pingreq())
    client.expect_closed()
    watcher.expect_nothing()


@pytest.mark.mqtt("MQTT-3.14.4-3", "MQTT-3.1.2-8", "MQTT-3.1.2-10")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_disconnect_discards_the_will(
    clients: Clients, topic: str, qos: int, *, clean: bool
) -> None:
    watcher = clients.subscribed(topic, 2)
    client = clients.connect(topic, clean=clean, will=Will(topic, b"never", qos, retain=True))
    client.send(p.disconnect())
    client.expect_closed()
    watcher.expect_nothing()
    clients.subscribed(topic, 2).expect_nothing(0.1)


@pytest.mark.mqtt("MQTT-3.14.4-3")
def test_packets_before_disconnect_are_processed(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic, 1)
    client = clients.connect()
    client.send(p.publish(topic, b"0"), p.publish(topic, b"1", 1, 1), p.disconnect())
    watcher.expect_publish(topic, b"0", 0)
    watcher.expect_publish(topic, b"1", 1)
