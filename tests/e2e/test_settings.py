"""Limits and options in the configuration, seen from a client."""

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
from harness import packets as p
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import (
    Connack,
    Puback,
    Pubcomp,
    Pubrec,
)
from harness.rawclient import ConnectionClosedError, RawClient

NO_QOS_2 = "reject_qos2_publish = true\ndowngrade_qos2_subscribe = true\n"


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Clients]]:
    """Clients of a broker with the given configuration, shared by the tests of this module."""
    brokers: dict[str, Broker] = {}
    made: list[Clients] = []

    def clients(config: str) -> Clients:
        if config not in brokers:
            brokers[config] = Broker(
                tmp_path_factory.mktemp("configured"), config=config, forked=True
            )
            brokers[config].start()
        made.append(Clients("127.0.0.1", brokers[config].port))
        return made[-1]

    yield clients
    for one in made:
        one.close()
    for one in brokers.values():
        one.clean_up()


# --------------------------------------------------------------- QoS 2 limits


@pytest.fixture
def without_qos_2(configured: Callable[[str], Clients]) -> Clients:
    return configured(NO_QOS_2)


@pytest.mark.mqtt("MQTT-3.3.5-2")
def test_reject_qos2_publish(without_qos_2: Clients, topic: str) -> None:
    watcher = without_qos_2.subscribed(topic, 1)
    client = without_qos_2.connect()
    client.publish(topic, b"fine", 1)
    watcher.acknowledge(watcher.expect_publish(topic, b"fine", 1))
    client.send(p.publish(topic, b"refused", 2, 1))
    client.expect_closed()
    watcher.expect_nothing()


@pytest.mark.mqtt("MQTT-3.8.4-5", "MQTT-3.8.4-6")
def test_downgrade_qos2_subscribe(without_qos_2: Clients, topic: str) -> None:
    client = without_qos_2.connect()
    assert client.subscribe((f"{topic}/0", 0), (topic, 2), (f"{topic}/1", 1)) == (0, 1, 1)
    without_qos_2.connect().publish(topic, b"x", 1)
    client.expect_publish(topic, b"x", 1)


# ------------------------------------------------------------- how many of what


def refused(client: RawClient, client_id: str, *, clean: bool) -> None:
    """The CONNECT is refused, by CONNACK 0x03 or 0x05 or without one, and the connection ends."""
    with contextlib.suppress(ConnectionClosedError):  # as soon as it was accepted
        client.send(p.connect(client_id, clean=clean))
        received = client.receive_all(2.0)
        assert received in ([], [Connack(3)], [Connack(5)])
        client.expect_closed()


@pytest.mark.mqtt("MQTT-4.8.0-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_max_connections(make_broker: Callable[..., Broker]) -> None:
    own = make_broker("max_connections = 3\n")
    own.start()
    clients = Clients("127.0.0.1", own.port)
    connected = [clients.connect() for _ in range(3)]
    refused(clients.raw(), "fourth", clean=True)
    for client in connected:
        client.expect_alive()
    connected[0].disconnect()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionClosedError):
            late = clients.raw()
            late.send(p.connect("fourth"))
            if late.receive_all(0.5) == [Connack(0)]:
                break
    late.expect_alive()
    clients.close()
    own.stop()


@pytest.mark.mqtt("MQTT-4.8.0-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_max_sessions(make_broker: Callable[..., Broker]) -> None:
    own = make_broker("max_sessions = 2\n")
    own.start()
    clients = Clients("127.0.0.1", own.port)
    for name in ("one", "two"):
        clients.connect(name, clean=False).disconnect()
    refused(clients.raw(), "three", clean=False)
    clients.connect("one", clean=False, session_present=True).disconnect()
    clients.connect("two", clean=True).disconnect()
    clients.connect("three", clean=False, session_present=False).expect_alive()
    clients.close()
    own.stop()


def test_qos_2_dialogue_begun_before_a_limit_is_completed(
    make_broker: Callable[..., Broker],
) -> None:
    """A client mid-way through QoS 2 must be able to end it, whatever the setting is now."""
    own = make_broker()
    own.start()
    clients = Clients("127.0.0.1", own.port)
    publisher = clients.connect("publisher", clean=False)
    publisher.send(p.publish("t", b"x", 2, 1))
    publisher.expect(Pubrec(1))
    own.stop()
    own.configure(NO_QOS_2)
    own.start()
    watcher = clients.subscribed("t", 1)
    publisher = clients.connect("publisher", clean=False, session_present=True)
    publisher.send(p.pubrel(1))
    publisher.expect(Pubcomp(1))
    watcher.expect_publish("t", b"x", 1)
    publisher.send(p.publish("t", b"y", 1, 2))
    publisher.expect(Puback(2))
    clients.close()
    own.stop()
