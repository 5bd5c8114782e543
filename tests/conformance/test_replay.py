"""Replays below MQTT 5: without positions, a session that stays keeps the place."""

import pytest
from harness.fixtures import Clients
from harness.packets import Publish
from harness.rawclient import RawClient

pytestmark = pytest.mark.usefixtures("foldmq_only")


def receive(client: RawClient, count: int) -> list[bytes]:
    """The payloads of the next messages, all acknowledged."""
    found = [client.expect_a(Publish) for _ in range(count)]
    for message in found:
        client.acknowledge(message)
    return [message.payload for message in found]


def publish(clients: Clients, topic: str, *payloads: bytes, qos: int = 1) -> None:
    sender = clients.connect()
    for payload in payloads:
        sender.publish(topic, payload, qos)
    sender.disconnect()


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_past_then_live(clients: Clients, topic: str, qos: int, level: int) -> None:
    publish(clients, topic, b"0", b"1", qos=2)
    client = clients.connect(protocol="MQIsdp" if level == 3 else "MQTT", level=level)
    assert client.subscribe((f"$replay/all/{topic}", qos)) == (qos,)
    assert receive(client, 2) == [b"0", b"1"]
    publish(clients, topic, b"2")
    assert receive(client, 1) == [b"2"]
    client.expect_nothing()


def test_a_session_that_stays_continues(clients: Clients, topic: str) -> None:
    publish(clients, topic, b"0")
    client = clients.connect("c" + topic, clean=False)
    client.subscribe((f"$replay/all/{topic}", 1))
    assert receive(client, 1) == [b"0"]
    client.expect_nothing()
    client.disconnect()
    publish(clients, topic, b"1")
    again = clients.connect("c" + topic, clean=False, session_present=True)
    assert receive(again, 1) == [b"1"]
    again.unsubscribe(f"$replay/all/{topic}")
    publish(clients, topic, b"2")
    again.expect_nothing()


def test_refusals(clients: Clients, topic: str) -> None:
    client = clients.connect()
    filters = [(one, 1) for one in ("$replay/never/a", f"$replay/all/{topic}", "$replay/x")]
    assert client.subscribe(*filters) == (0x80, 1, 0x80)
