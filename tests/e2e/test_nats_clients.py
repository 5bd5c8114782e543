"""An embedded NATS that is open to NATS clients: admitted users, and inaccessible subjects."""

import json
import os
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import nats
import nats.errors
import pytest
from harness.broker import Broker, free_port
from harness.certs import Authority
from harness.fixtures import Clients
from harness.packets import Publish
from harness.waiting import until

from e2e.bridging import Visitor, mqtt_subscribed, received

USER, PASSWORD = "visitor", "rose:bud"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "nats-users"
    file.write_text(f"# who may\n{USER}:{PASSWORD}\n")
    file.chmod(0o600)
    return file


def opened(port: int, users: Path) -> str:
    """The configuration that lets the users in."""
    return f"nats_listen = '127.0.0.1:{port}'\nnats_users = '{users}'\n"


def retain(own: Broker, topic: str, payload: bytes) -> None:
    here = Clients("127.0.0.1", own.port)
    here.connect().publish(topic, payload, qos=1, retain=True)
    here.close()


def retained(own: Broker, *topics: str) -> list[bytes]:
    here = Clients("127.0.0.1", own.port)
    client = here.connect()
    found = []
    for topic in topics:
        client.subscribe((topic, 0))
        message = client.expect_a(Publish)
        assert (message.topic, message.retain) == (topic, True)
        found.append(message.payload)
    here.close()
    return found


def test_a_log_outlives_letting_clients_in_and_out(
    make_broker: Callable[..., Broker], users: Path
) -> None:
    own = make_broker()
    names: list[str] = []
    for lets_in in (False, True, False, True):
        own.configure(opened(free_port(), users) if lets_in else "")
        own.start()
        assert retained(own, *names) == [b"x"] * len(names)
        names.append(f"life/{len(names)}")
        retain(own, names[-1], b"x")
        own.stop()


def test_a_reload_does_not_leave_the_way_round_by_nats_open(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    config = f"nats_listen = '127.0.0.1:{free_port()}'\nlog_format = 'json'\n"
    own = make_broker(config)
    own.start()
    own.configure(config + f"password_file = '{tmp_path}/passwords'\n")
    own.hangup()
    until(lambda: own.told("settings not reloaded"), "a line that they were not")
    (line,) = own.told("settings not reloaded")
    assert "although password_file restricts who may connect by MQTT" in line["reason"]
    own.stop()


# ------------------------------------------------------------------------ TLS


def exchanged(own: Broker, port: int, context: ssl.SSLContext) -> None:
    """A message each way, with a NATS client that speaks TLS."""
    here = Clients("127.0.0.1", own.port)
    with Visitor(port, user=USER, password=PASSWORD, tls=context) as visitor:
        reader = mqtt_subscribed(here, visitor, ("hall/+", 0))
        visitor.publish("hall.lamp", b"on")
        assert received(reader, 1) == [("hall/lamp", b"on", 0)]
        ear = visitor.hear("door.*")
        here.connect().publish("door/1", b"open", 1)
        # one from before a kill may come as well
        assert {message.subject for message in ear.after(1)} == {"door.1"}
    here.close()


def test_clients_speak_tls(make_broker: Callable[..., Broker], users: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    server = authority.server()
    port = free_port()
    own = make_broker(
        opened(port, users)
        + f"nats_tls_cert = '{server.certificate}'\nnats_tls_key = '{server.key}'\n"
    )
    own.start()
    assert f"127.0.0.1:{port} (TLS), for the one user" in own.log
    exchanged(own, port, authority.client_context())
    # clients without TLS or without trust in the authority cannot connect
    stranger = Authority(tmp_path / "others").client_context()
    for options in ({"tls": stranger}, {}):
        with pytest.raises(ssl.SSLCertVerificationError):
            Visitor(port, user=USER, password=PASSWORD, **options)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        lines = plain.makefile("rb")
        assert json.loads(lines.readline().removeprefix(b"INFO "))["tls_required"]
        plain.sendall(b'CONNECT {"user":"visitor","pass":"rose:bud"}\r\nPING\r\n')
        assert b"PONG" not in lines.read()
    own.restart(kill=True)
    exchanged(own, port, authority.client_context())
    own.stop()


def test_clients_show_a_certificate_and_the_bridge_has_its_own(
    make_broker: Callable[..., Broker], users: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "certificates")
    server, ann = authority.server(), authority.client("ann")
    port = free_port()
    own = make_broker(
        opened(port, users)
        + f"nats_tls_cert = '{server.certificate}'\nnats_tls_key = '{server.key}'\n"
        + f"nats_tls_client_ca = '{authority.file}'\n"
    )
    own.start()
    exchanged(own, port, authority.client_context(ann))
    with pytest.raises((nats.errors.Error, OSError)):
        Visitor(port, user=USER, password=PASSWORD, tls=authority.client_context())
    stranger = authority.client_context(Authority(tmp_path / "others").client("ann"))
    with pytest.raises((nats.errors.Error, OSError)):
        Visitor(port, user=USER, password=PASSWORD, tls=stranger)
    # the certificate does not stand for the user
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
        Visitor(port, tls=authority.client_context(ann))
    own.stop()
    assert "[warning" not in own.log


def shown(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that the server shows."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        greeting = b""
        while not greeting.endswith(b"\r\n"):
            greeting += plain.recv(1)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
            found = tls.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_renewed_certificates_are_taken_over_by_sighup(
    make_broker: Callable[..., Broker], users: Path, tmp_path: Path, processes: int
) -> None:
    authority = Authority(tmp_path / "certificates")
    server, ann = authority.server(), authority.client("ann")
    port = free_port()
    own = make_broker(
        opened(port, users)
        + f"nats_tls_cert = '{server.certificate}'\nnats_tls_key = '{server.key}'\n"
        + f"nats_tls_client_ca = '{authority.file}'\nlog_format = 'json'\n"
        + f"processes = {processes}\n"
    )
    own.start()
    context = authority.client_context(ann)
    assert shown(port, context) == server.x509.serial_number
    stays = Visitor(port, user=USER, password=PASSWORD, tls=context)
    renewed = authority.server()
    others = Authority(tmp_path / "others", "another authority")
    bob = others.client("bob")
    authority.file.write_bytes(authority.file.read_bytes() + others.file.read_bytes())
    own.hangup()
    until(lambda: shown(port, context) == renewed.x509.serial_number, "the new certificate")
    both = authority.client_context(bob)
    exchanged(own, port, both)
    stays.flush()
    stays.close()
    # the bridge connects again as well
    nats_pid = int((own.data_dir / "nats-clients" / "nats.pid").read_text())
    os.kill(nats_pid, signal.SIGKILL)
    until(
        lambda: len(own.told("bridge: connected to NATS again")) == processes,
        "a line that it is back",
    )
    exchanged(own, port, both)
    # and what is broken is not taken over
    server.key.write_text("broken")
    own.hangup()
    told = "settings not reloaded" + (" in the main process" if processes > 1 else "")
    until(lambda: own.told(told), "a line that it was not")
    (line,) = own.told(told)
    assert line["reason"].startswith("TLS of nats_listen (nats_tls_*): TLS file ")
    exchanged(own, port, both)
    own.stop()


# ------------------------------------------------------------------------ permissions


PERMITTED = """
users = [
  { user: plant, password: rose, permissions: {
      publish: { allow: ["plant.>", "_INBOX.>"], deny: "plant.secret.>" }
      subscribe: ["hall.>", "_INBOX.>"]
  } }
  { user: guest, password: bud, permissions: { publish: { deny: ">" } } }
  { user: root, password: leaf }
]
"""


def test_each_user_has_the_permissions_of_the_file(
    make_broker: Callable[..., Broker], users: Path
) -> None:
    users.write_text(PERMITTED)
    port = free_port()
    own = make_broker(opened(port, users))
    own.start()
    assert "for the 3 users of" in own.log
    here = Clients("127.0.0.1", own.port)
    with (
        Visitor(port, user="plant", password="rose") as plant,
        Visitor(port, user="guest", password="bud") as guest,
        Visitor(port, user="root", password="leaf") as root,
    ):
        reader = mqtt_subscribed(here, root, ("#", 0))
        plant.publish("plant.secret.key", b"no")
        plant.publish("hall.lamp", b"no")
        guest.publish("plant.a", b"no")
        plant.publish("plant.a", b"yes")
        root.publish("plant.secret.key", b"yes")
        assert sorted(received(reader, 2)) == [
            ("plant/a", b"yes", 0),
            ("plant/secret/key", b"yes", 0),
        ]
        ears = {
            name: visitor.hear("plant.>", "hall.>")
            for name, visitor in (("plant", plant), ("guest", guest), ("root", root))
        }
        publisher = here.connect()
        publisher.publish("plant/b", b"1", 1)
        publisher.publish("hall/b", b"2", 1)
        for name in ("guest", "root"):
            assert sorted(message.subject for message in ears[name].after(2)) == [
                "hall.b",
                "plant.b",
            ]
        plant.flush()
        assert [message.subject for message in ears["plant"].after(1)] == ["hall.b"]
    here.close()
    own.stop()
