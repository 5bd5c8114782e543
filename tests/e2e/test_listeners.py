"""Clients over every transport; certificates, proxies, reloads, and refused connections."""

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


def test_a_client_certificate_is_the_user(place: Place) -> None:
    alice = place.authority.client_context(place.authority.client("alice"))
    with Client(place, "mutual", "with-certificate", context=alice) as client:
        client.subscribe("mutual")
        client.publish("mutual", b"me")
        client.expect("mutual", b"me")


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
