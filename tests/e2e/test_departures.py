"""Ends of connections as the network sees them: reasons arrive, clients that left do not count."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import mqtt5_packets as p
from harness.broker import Broker, free_port
from harness.packets import Connack
from harness.rawclient import RawClient

from e2e.listening import Place

MOST = 10
PIECE = b"\x30\x82\x80\x01\0\1t" + bytes(16_384 - 1)
"""A PUBLISH of 16 KiB; the broker does not read it any more."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("place"))
    found.broker.start()
    yield found
    found.broker.clean_up()


def connected(place: Place, kind: str) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", place.ports[kind]), timeout=10)
    if kind == "tcp":
        return plain
    context = ssl.create_default_context(cafile=place.authority.file)
    return context.wrap_socket(plain, server_hostname="localhost")


def read_to_end(client: socket.socket) -> bytes:
    """All bytes up to the end; a reset is an error."""
    found = b""
    while data := client.recv(65_536):
        found += data
    return found


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_client_that_goes_on_sending_reads_the_reason(place: Place, kind: str) -> None:
    with connected(place, kind) as client:
        client.sendall(p.connect("c"))
        client.recv(65_536)
        # A packet that only servers send, and what was under way when the broker answered it.
        client.sendall(b"\x20\x02\0\0" + PIECE)
        received = client.recv(65_536)
        assert received[:1] == b"\xe0"
        for _ in range(16):
            client.sendall(PIECE)
        assert read_to_end(client) == b""


def test_a_refused_client_that_goes_on_sending_reads_the_connack(place: Place) -> None:
    with connected(place, "tcp") as client:
        client.sendall(p.connect("c", level=9) + PIECE)
        received = client.recv(65_536)
        assert received == b"\x20\x02\0\1"
        for _ in range(16):
            client.sendall(PIECE)
        assert read_to_end(client) == b""


def test_clients_that_have_left_are_not_counted(tmp_path: Path) -> None:
    """Ten clients close, and ten connect at once, where ten are permitted."""
    port = free_port()
    config = f'[[listen]]\naddress = "127.0.0.1:{port}"\nmax_connections = {MOST}\n'
    with Broker(tmp_path, forked=True, config=config, port=port) as broker:
        clients: list[RawClient] = []
        for _ in range(20):
            for client in clients:
                client.close()
            clients = [RawClient(broker.port) for _ in range(MOST)]
            for number, client in enumerate(clients):
                assert client.connect(f"c{number}") == Connack(0)
        with RawClient(broker.port) as other:
            other.send(p.connect("other"))
            other.expect_closed()
