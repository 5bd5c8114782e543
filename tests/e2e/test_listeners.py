"""Clients over every transport; certificates, proxies, reloads, and refused connections."""

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator

import pytest
from cryptography import x509
from harness import packets
from harness.certs import Authority
from harness.rawclient import RawClient
from harness.waiting import until
from websockets.exceptions import ConnectionClosedError, InvalidStatus, NegotiationError
from websockets.sync.client import connect as dial_websocket

from e2e.listening import TRANSPORTS, Client, Place

MIB = 1024 * 1024


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.long), 2],
    ids=["one-process", "two-processes"],
)
def place(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("listeners"), request.param)
    made.start()
    try:
        yield made
        made.broker.stop()
    finally:
        made.broker.clean_up()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_paho_over_every_transport(place: Place, transport: str) -> None:
    large = os.urandom(2 * MIB)  # more than a frame has room for before the CONNECT
    with Client(place, transport, f"{transport}-both") as client:
        for qos in (0, 1, 2):
            client.subscribe(f"{transport}/{qos}/#", qos)
            for number in range(5):
                client.publish(f"{transport}/{qos}/{number}", b"%d" % number, qos)
            for number in range(5):
                client.expect(f"{transport}/{qos}/{number}", b"%d" % number, qos)
        client.publish(f"{transport}/1/large", large)
        client.expect(f"{transport}/1/large", large)


def test_clients_of_all_transports_hear_each_other(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(Client(place, transport, f"{transport}-all"))
            for transport in TRANSPORTS
        ]
        for client in clients:
            client.subscribe("all/#")
        for client, transport in zip(clients, TRANSPORTS, strict=True):
            client.publish(f"all/{transport}", b"to everybody")
            for hearer in clients:
                hearer.expect(f"all/{transport}", b"to everybody")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_wait_for_a_client_that_comes_back(place: Place, transport: str) -> None:
    name = f"{transport}-away"
    with Client(place, transport, name, clean_session=False) as client:
        client.subscribe(f"away/{transport}")
    with Client(place, "tcp", f"{name}-sender") as sender:
        for number in range(10):
            sender.publish(f"away/{transport}", b"%d" % number)
    with Client(place, transport, name, clean_session=False) as client:
        for number in range(10):
            client.expect(f"away/{transport}", b"%d" % number)


def test_a_client_certificate_is_the_user(place: Place) -> None:
    alice = place.authority.client_context(place.authority.client("alice"))
    with Client(place, "mutual", "with-certificate", context=alice) as client:
        client.subscribe("mutual")
        client.publish("mutual", b"me")
        client.expect("mutual", b"me")


def test_certificates_that_are_not_accepted(place: Place) -> None:
    for context in (
        place.authority.client_context(),
        place.authority.client_context(place.revoked),
        place.authority.client_context(place.authority.client("late", expired=True)),
    ):
        # With TLS 1.3 a client learns of it when it reads.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            first_byte(place, context)


def first_byte(place: Place, context: ssl.SSLContext) -> bytes:
    """What a client with a certificate gets for a CONNECT."""
    with (
        socket.create_connection(("127.0.0.1", place.ports["mutual"]), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        tls.sendall(packets.connect("nobody"))
        got = tls.recv(1)
        if not got:
            raise ConnectionError("closed")
        return got


def test_the_wrong_protocol_for_a_listener_is_closed(place: Place) -> None:
    for name in ("tls", "ws", "wss", "proxied"):
        with RawClient(place.ports[name]) as client:
            client.send(packets.connect("lost"))
            client.expect_closed()
    with (
        socket.create_connection(("127.0.0.1", place.ports["tcp"]), 10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        place.authority.client_context().wrap_socket(plain, server_hostname="localhost")


def test_websocket_handshakes_that_are_refused(place: Place) -> None:
    at = f"ws://127.0.0.1:{place.ports['ws']}"
    with pytest.raises(InvalidStatus, match="404"):
        dial_websocket(f"{at}/elsewhere", subprotocols=["mqtt"])  # type: ignore[list-item]
    with pytest.raises((InvalidStatus, NegotiationError), match="400"):
        dial_websocket(f"{at}/mqtt")


def test_text_frames_and_giant_frames_close_a_websocket(place: Place) -> None:
    url = f"ws://127.0.0.1:{place.ports['ws']}/mqtt"
    for sent, code in (("MQTT", 1003), (bytes(512 * 1024), 1009)):
        with dial_websocket(url, subprotocols=["mqtt"]) as client:  # type: ignore[list-item]
            client.send(sent)
            with pytest.raises(ConnectionClosedError) as ended:
                client.recv(10)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == code


def test_packets_in_any_frames(place: Place) -> None:
    url = f"ws://127.0.0.1:{place.ports['ws']}/mqtt"
    sent = packets.connect("in-pieces") + packets.subscribe(1, ("in/pieces", 0))
    sent += packets.publish("in/pieces", b"once") + packets.publish("in/pieces", b"twice")
    expected = b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00"
    expected += packets.publish("in/pieces", b"once") + packets.publish("in/pieces", b"twice")
    for step in (1, 5, len(sent)):
        with dial_websocket(url, subprotocols=["mqttv3.1"]) as client:  # type: ignore[list-item]
            for at in range(0, len(sent), step):
                client.send(sent[at : at + step])
            came = b""
            while len(came) < len(expected):
                part = client.recv(10)
                assert isinstance(part, bytes)
                came += part
            assert came == expected


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 192.0.2.77 198.51.100.1 4321 1883\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x4d\xc6\x33\x64\x01\x10\xe1\x07\x5b",
    ],
)
def test_a_proxy_header_has_the_address_of_the_client(place: Place, header: bytes) -> None:
    before = len(place.broker.told("protocol error"))
    with RawClient(place.ports["proxied"]) as client:
        client.send(header, packets.connect("proxied"), b"\xff\xff")
        client.expect(packets.Connack(0))
        client.expect_closed()
    until(lambda: len(place.broker.told("protocol error")) > before, "the log line")
    assert place.broker.told("protocol error")[-1]["address"] == "192.0.2.77:4321"


def test_certificates_are_reloaded_and_clients_stay(place: Place) -> None:
    newer = Authority(place.broker.directory / "newer")
    old, fresh = place.server, newer.server()
    with Client(place, "tls", "stays") as client:
        client.subscribe("stays")
        for file, content in ((old.certificate, fresh.certificate), (old.key, fresh.key)):
            file.write_bytes(content.read_bytes())
        place.broker.hangup()
        until(lambda: shown_by(place) == fresh.x509.serial_number, "the new certificate")
        with Client(place, "tls", "new", context=newer.client_context()) as other:
            other.publish("stays", b"still there?")
        client.expect("stays", b"still there?")
        # Invalid files are refused, and the old ones stay in effect.
        old.key.write_bytes(place.revoked.key.read_bytes())
        place.broker.hangup()
        until(lambda: "does not belong to the certificate" in place.broker.log, "the log line")
        assert shown_by(place) == fresh.x509.serial_number
        client.publish("stays", b"yes")
        client.expect("stays", b"yes")
    place.server = place.authority.server()
    place.broker.hangup()
    until(lambda: shown_by(place) == place.server.x509.serial_number, "the old authority")


def shown_by(place: Place) -> int:
    """The serial number of the certificate that the broker shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", place.ports["tls"]), 10) as plain,
        context.wrap_socket(plain) as tls,
    ):
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der).serial_number
