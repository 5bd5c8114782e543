"""Helpers of the tests of connections to other brokers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.mosquitto import MOSQUITTO, Mosquitto
from harness.packets import Publish
from harness.rawclient import RawClient

from e2e.tools import run

needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path / "peer", "peer")
    broker.start()
    yield broker
    broker.end(signal.SIGKILL)


def connection(port: int, *lines: str, more: str = "") -> str:
    """The table of a connection `plant2` with short pauses between attempts."""
    topics = ", ".join(f"'{line}'" for line in lines)
    return (
        f'[connection.plant2]\naddresses = ["127.0.0.1:{port}"]\ntopic = [{topics}]\n'
        f'restart_timeout = "1 2"\n{more}'
    )


def subscribed(broker: Broker) -> bool:
    """Whether the bridge has a session at its own broker."""
    listed = run("sessions", "ls", "--data-dir", str(broker.data_dir))
    return "bridge.plant2" in listed.out


class Listener:
    """A client of a broker that keeps what it gets, at QoS 0."""

    def __init__(self, port: int, topic_filter: str, name: str = "listener") -> None:
        self.client = RawClient(port)
        self.client.connect(name)
        self.client.subscribe((topic_filter, 0))
        self.messages: list[Publish] = []

    def numbers(self) -> list[int]:
        received = self.client.receive_all(0.1)
        self.messages += [each for each in received if isinstance(each, Publish)]
        return [int(each.payload) for each in self.messages]


def publish(
    port: int, numbers: range, qos: int, topic: str = "sensors/a", *, retain: bool = False
) -> None:
    with RawClient(port) as client:
        client.connect("p")
        for number in numbers:
            client.publish(topic, str(number).encode(), qos, retain=retain)
        client.disconnect()
