"""Section 4.8: a violation ends its own connection, and nothing else."""

import random

import pytest
from harness import packets as p
from harness.catalogue import BAD, Bad
from harness.fixtures import Clients, unique
from harness.packets import Connack, Publish


def expects_closed(entry: Bad) -> bool:
    """Whether a broker with default settings takes it for a violation, too."""
    return "too large" not in entry.name and entry.name != "connect level 5"


@pytest.mark.mqtt(
    "MQTT-3.1.2-1", "MQTT-3.1.2-3", "MQTT-3.1.3-8", "MQTT-3.1.3-9", "MQTT-3.1.4-1",
    "MQTT-3.2.2-6", "MQTT-3.3.1-4", "MQTT-3.8.3-4", "MQTT-4.7.1-1", "MQTT-4.8.0-1",
)  # fmt: skip
@pytest.mark.parametrize(
    "entry", [pytest.param(one, id=one.name) for one in BAD if expects_closed(one)]
)
def test_each_violation_closes_its_own_connection(clients: Clients, topic: str, entry: Bad) -> None:
    bystander = clients.subscribed(topic)
    offender = clients.connect() if entry.after else clients.raw()
    offender.send(entry.raw)
    if entry.connack is not None:
        offender.expect(Connack(entry.connack))
    offender.expect_closed()
    bystander.expect_alive()


@pytest.mark.mqtt("MQTT-4.8.0-1", "MQTT-4.1.0-1")
def test_violation_ends_the_connection_but_not_the_session(clients: Clients, topic: str) -> None:
    client = clients.connect(topic, clean=False)
    client.subscribe((topic, 1))
    publisher = clients.connect()
    publisher.publish(topic, b"in flight", 1)
    message = client.expect_publish(topic, b"in flight", 1)
    client.send(b"\0\0")
    client.expect_closed()
    publisher.publish(topic, b"queued", 1)
    client = clients.connect(topic, clean=False, session_present=True)
    client.expect(Publish(topic, b"in flight", 1, message.packet_id, dup=True))
    client.expect_publish(topic, b"queued", 1)


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_never_harm_the_broker(clients: Clients, topic: str, seed: int) -> None:
    """Each connection gets noise, after a CONNECT for every second one."""
    source = random.Random(seed)
    bystander = clients.subscribed(topic, 1)
    for number in range(25):
        client = clients.raw()
        noise = bytes(source.randrange(256) for _ in range(source.randrange(1, 200)))
        prefix = p.connect(unique("c")) if number % 2 else b""
        client.send(prefix + noise)
        client.reset()
    clients.connect().publish(topic, b"unharmed", 1)
    bystander.expect_publish(topic, b"unharmed", 1)


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize("cut", [1, 2, 5, 11, 13])
def test_connection_that_ends_inside_a_packet(clients: Clients, topic: str, cut: int) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect()
    client.send(p.publish(topic, b"never whole")[:cut])
    client.close()
    watcher.expect_nothing(0.1)
    half = clients.raw()
    half.send(p.connect(topic)[:cut])
    half.close()
    watcher.expect_alive()


@pytest.mark.mqtt("MQTT-4.8.0-1")
def test_client_that_never_reads_harms_no_other_client(clients: Clients, topic: str) -> None:
    """The deaf subscriber's bytes pile up; the other subscriber gets all of its own."""
    deaf = clients.subscribed(topic, 0)
    well = clients.subscribed(topic, 0)
    publisher = clients.connect()
    for number in range(60):
        publisher.send(p.publish(topic, b"%06d" % number + b"x" * 60_000))
        received = well.expect_a(Publish)
        assert received.payload[:6] == b"%06d" % number
    publisher.expect_alive()
    deaf.close()
