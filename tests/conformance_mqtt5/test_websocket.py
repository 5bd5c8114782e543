"""Chapter 6: MQTT over WebSocket."""

from collections.abc import Callable, Iterator

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.broker import Broker, free_port
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as dial
from websockets.typing import Subprotocol


@pytest.fixture
def url(make_broker: Callable[..., Broker]) -> Iterator[str]:
    """Where a broker takes WebSocket connections."""
    port = free_port()
    broker = make_broker()
    broker.configure(
        f'[[listen]]\naddress = "127.0.0.1:{broker.port}"\n'
        f'[[listen]]\naddress = "ws://127.0.0.1:{port}"\n'
    )
    broker.start()
    yield f"ws://127.0.0.1:{port}/mqtt"
    broker.stop()


def open_at(url: str) -> ClientConnection:
    return dial(url, subprotocols=[Subprotocol("mqtt")])


def read(client: ClientConnection, count: int) -> bytes:
    """This many bytes, all in binary frames."""
    came = b""
    while len(came) < count:
        part = client.recv(10)
        assert isinstance(part, bytes)
        came += part
    return came


@pytest.mark.mqtt("MQTT-6.0.0-3", "MQTT-6.0.0-4")
@pytest.mark.mqtt5("MQTT-6.0.0-3", "MQTT-6.0.0-4")
def test_the_server_chooses_the_subprotocol(url: str) -> None:
    with dial(url, subprotocols=[Subprotocol("other"), Subprotocol("mqtt")]) as client:
        assert client.subprotocol == "mqtt"


@pytest.mark.mqtt("MQTT-6.0.0-1")
@pytest.mark.mqtt5("MQTT-6.0.0-1")
@pytest.mark.parametrize("connect", [None, packets.connect("x"), p.connect("x")])
def test_text_frames_close_the_connection(url: str, connect: bytes | None) -> None:
    with open_at(url) as client:
        if connect is not None:
            client.send(connect)
            assert read(client, 4)[0] == 0x20
        client.send("text")
        with pytest.raises(ConnectionClosedError):
            client.recv(10)


@pytest.mark.mqtt("MQTT-6.0.0-1", "MQTT-6.0.0-2")
@pytest.mark.mqtt5("MQTT-6.0.0-1", "MQTT-6.0.0-2")
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_packets_and_frames_need_not_begin_together(url: str, level: int, step: int) -> None:
    module = packets if level == 4 else p
    sent = module.subscribe(1, ("in/pieces", 0))
    messages = module.publish("in/pieces", b"once") + module.publish("in/pieces", b"twice")
    expected = b"\x90\x03\0\1\0" if level == 4 else b"\x90\x04\0\1\0\0"
    with open_at(url) as client:
        client.send(module.connect("in-pieces"))
        assert client.recv(10)[:1] == b"\x20"
        data = sent + messages
        for at in range(0, len(data), step):
            client.send(data[at : at + step])
        assert read(client, len(expected + messages)) == expected + messages
