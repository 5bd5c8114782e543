"""Access to a broker's inner state: only with the NATS credentials."""

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.broker import Broker, environment, foldmq
from harness.fixtures import Clients
from harness.nats import PASSWORD, USER, Nats

from e2e.tools import refused, run

QUIET = ("--metrics", "off", "--web", "off")
COMMANDS = (
    ("actors", "ls"),
    ("actors", "tree"),
    ("actors", "show", "screen"),
    ("actors", "kick", "screen", "--yes"),
    ("actors", "restart", "session:3", "--yes"),
    ("sessions", "ls"),
    ("sessions", "show", "screen"),
    ("sessions", "kick", "screen", "--yes"),
    ("sessions", "rm", "screen", "--yes"),
    ("sessions", "purge", "--match", "*", "--yes"),
    ("retained", "ls"),
    ("retained", "get", "lamp"),
    ("retained", "rm", "lamp", "--yes"),
    ("subscriptions", "--topic", "lamp"),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("access"), args=QUIET, forked=True) as broker:
        yield broker


def port_of(broker: Broker) -> int:
    port: int = json.loads((broker.data_dir / "nats.conf").read_text())["port"]
    return port


def said_to(port: int, login: object, subject: str) -> bytes:
    """All output of a NATS server for this login and a request on a subject."""
    lines = [] if login is None else [f"CONNECT {json.dumps(login)}"]
    lines += ["SUB answers 1", f"PUB {subject} answers 2", "{}", "PING", ""]
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65536):
                heard += data
                if b"-ERR" in heard or (b"PONG" in heard and heard.endswith(b"}\r\n")):
                    break
    return heard


@pytest.mark.parametrize("subject", ["foldmq.inspect.{node}.status", "$SRV.INFO.foldmq"])
def test_without_credentials_there_is_no_answer(running: Broker, subject: str) -> None:
    node = (running.data_dir / "node").read_text().strip()
    subject = subject.format(node=node)
    known = json.loads((running.data_dir / "nats.credentials").read_text())
    allowed = {"verbose": False, "user": known["user"], "pass": known["password"]}
    # That is how an answer looks; without it the rest would prove nothing.
    heard = said_to(port_of(running), allowed, subject)
    assert b"MSG answers 1 " in heard
    assert node.encode() in heard
    for login in (
        None,
        {"verbose": False},
        {"verbose": False, "user": known["user"], "pass": ""},
        {"verbose": False, "user": known["user"], "pass": known["password"][:-1]},
        {"verbose": False, "user": "admin", "pass": known["password"]},
        {"verbose": False, "auth_token": known["password"]},
    ):
        heard = said_to(port_of(running), login, subject)
        assert b"-ERR 'Authorization Violation'" in heard, login
        assert b"\r\nMSG " not in heard  # not the identifier of the server
        assert b"PONG" not in heard


def test_a_tool_without_credentials_is_refused(running: Broker) -> None:
    url = f"nats://127.0.0.1:{port_of(running)}"
    for command in COMMANDS:
        said = refused(*command, "--nats-url", url, code=69)
        assert "the server rejects our credentials" in said
    said = refused(
        *("actors", "ls", "--nats-url", url, "--nats-user", "foldmq", "--nats-password", "guess"),
        code=69,
    )
    assert "the server rejects our credentials" in said
    assert "guess" not in said


def test_another_user_of_the_machine_is_refused(running: Broker) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    command = [foldmq(), "actors", "ls", "--data-dir", str(running.data_dir)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment(), user=65534
        )
    except PermissionError:
        pytest.skip("others cannot run the foldmq of this environment")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        f"foldmq: data directory {running.data_dir} cannot be read: run this command "
        "as the user of the broker\n"
    )


def test_another_listener_on_the_port_gets_no_password(tmp_path: Path) -> None:
    """Another process may use the port of an embedded NATS server when the broker is gone."""
    broker = Broker(tmp_path, args=QUIET, forked=True)
    broker.start()
    broker.stop()
    with socket.create_server(("127.0.0.1", port_of(broker))) as other:
        said = refused("actors", "ls", "--data-dir", str(broker.data_dir), code=69)
        assert "no broker is running on" in said
        other.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while True:
                connection, _ = other.accept()
                with connection:
                    assert connection.recv(65536) == b""


def test_the_node_is_chosen_on_a_foreign_nats(
    external: Nats, on_external: Callable[..., Broker], tmp_path: Path
) -> None:
    access = ("--nats-url", external.url, "--nats-user", USER, "--nats-password", PASSWORD)
    assert "no broker answers on NATS at " in refused("actors", "ls", *access, code=69)
    first = on_external("metrics = 'off'\nweb = 'off'\n", node="n1")
    first.start()
    (row, *_) = run("actors", "ls", *access, "--json").objects
    assert (row["type"], row["name"]) == ("broker", "n1")
    second = on_external("metrics = 'off'\nweb = 'off'\n", node="n2")
    second.start()
    said = refused("sessions", "ls", *access, code=2)
    assert said.startswith("there are 2 brokers on NATS at ")
    assert said.endswith(": give --node, one of n1, n2")
    for node in ("n1", "n2"):
        (row, *_) = run("actors", "ls", *access, "--json", "--node", node).objects
        assert row["name"] == node
    data_dir = str(second.data_dir)
    ran = run("actors", "ls", *access, "--json", "--data-dir", data_dir, "--verbose")
    assert ran.objects[0]["name"] == "n2"
    assert ran.err.startswith("foldmq: connected to the broker of node n2 on NATS at ")
    said = refused("actors", "ls", *access, "--node", "n3", code=69)
    assert said.startswith("no broker of node n3 answers on NATS at ")
    assert "not a valid node name" in refused("actors", "ls", *access, "--node", "a.b", code=2)
    said = refused("actors", "ls", "--data-dir", data_dir, code=69)
    assert said == f"the broker on {data_dir} uses an external NATS server: give --nats-url"
    second.stop()
    assert "no broker is running on" in refused("actors", "ls", "--data-dir", data_dir, code=69)
    said = refused("actors", "ls", *access, "--node", "n2", code=69)
    assert said.startswith("no broker of node n2 answers")


def test_answers_fit_into_a_nats_message(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    """A client with long filters makes answers larger than the 4 MiB of this NATS server."""
    access = ("--nats-url", external.url, "--nats-user", USER, "--nats-password", PASSWORD)
    broker = on_external("metrics = 'off'\nweb = 'off'\n")
    broker.start()
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        wide = clients.connect("wide")
        filters = [f"{number}/" + "f" * 60_000 for number in range(90)]
        for one in filters:
            wide.subscribe((one, 1))
        (found,) = run("sessions", "show", "wide", *access, "--full", "--json").objects
        assert [one["filter"] for one in found["subscriptions"]["rows"]] == filters
        assert "  subscriptions: 90\n" in run("actors", "show", "wide", *access).out
        (row, *_) = run(
            *("actors", "ls", *access, "--json", "--type", "subscription"),
            *("--sort", "handled", "--limit", "200"),
        ).objects
        assert row["name"] in filters
