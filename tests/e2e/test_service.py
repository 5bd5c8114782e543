"""`foldmq serve` as a service: start, end, refusals, reload."""

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import packets as p
from harness.broker import (
    Broker,
    BrokerFailedError,
    alive,
    free_port,
    nats_server,
    wait_until_gone,
)
from harness.fixtures import Clients
from harness.packets import Puback


def refusal(own: Broker) -> str:
    """Starts a broker that must refuse to; returns what it said."""
    with pytest.raises(BrokerFailedError, match="at start"):
        own.start()
    assert "Traceback" not in own.log
    assert own.log.strip(), "it ended without a word"
    return own.log


def line_with(text: str, *words: str) -> str:
    """The one line that holds all the words."""
    lines = [line for line in text.splitlines() if all(word in line for word in words)]
    assert lines, f"no line with {words} in:\n{text}"
    return lines[0]


# --------------------------------------------------------------- refused at start


def test_configuration_file_missing(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.config_file.unlink()
    line_with(refusal(own), str(own.config_file))


# ------------------------------------------------------------------ life and end


def test_sigterm_ends_all_with_exit_0(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.start()
    clients = Clients("127.0.0.1", own.port)
    connected = [clients.connect(keepalive=60) for _ in range(5)]
    half_open = clients.raw()
    nats = own.nats_pid
    assert alive(nats)
    own.stop()
    for client in [*connected, half_open]:
        client.expect_closed()
    assert wait_until_gone(nats)
    with pytest.raises(OSError, match="refused"):
        clients.raw()
    assert "Traceback" not in own.log


def test_messages_sent_just_before_sigterm_are_not_lost(
    make_broker: Callable[..., Broker],
) -> None:
    own = make_broker()
    own.start()
    clients = Clients("127.0.0.1", own.port)
    absent = clients.connect("absent", clean=False)
    absent.subscribe(("t", 1))
    absent.disconnect()
    publisher = clients.connect()
    publisher.send(*[p.publish("t", b"%d" % n, 1, n + 1) for n in range(200)])
    own.restart()
    acknowledged = [m for m in publisher.receive_all() if isinstance(m, Puback)]
    absent = clients.connect("absent", clean=False, session_present=True)
    messages = [absent.receive() for _ in acknowledged]
    received = []
    for message in (*messages, *absent.receive_all()):
        assert isinstance(message, p.Publish)
        received.append(int(message.payload))
    assert received == list(range(len(received)))
    own.stop()


def test_nats_server_killed_clients_stay_and_nothing_is_lost(
    make_broker: Callable[..., Broker],
) -> None:
    own = make_broker()
    own.start()
    clients = Clients("127.0.0.1", own.port)
    subscriber = clients.subscribed("t", 1)
    publisher = clients.connect()
    publisher.publish("t", b"before", 1)
    old = own.kill_nats()
    assert wait_until_gone(old)
    publisher.send(p.publish("t", b"during", 1, 500))
    assert publisher.receive(25.0) == Puback(500)
    publisher.publish("t", b"after", 1)
    for payload in (b"before", b"during", b"after"):
        subscriber.acknowledge(subscriber.expect_publish("t", payload, 1))
    assert own.nats_pid != old
    assert alive(own.nats_pid)
    own.stop()


def test_broker_killed_leaves_no_nats_server_in_the_way(
    make_broker: Callable[..., Broker],
) -> None:
    own = make_broker()
    own.start()
    old = own.nats_pid
    own.restart(kill=True)
    assert wait_until_gone(old)
    assert own.nats_pid != old
    Clients("127.0.0.1", own.port).connect().publish("t", b"x", 1)
    own.stop()


@pytest.mark.mqtt("MQTT-4.8.0-2")
def test_log_that_cannot_be_written_closes_the_clients(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """A foreign NATS server goes away: no acknowledgement, and in the end no connection."""
    port = free_port()
    settings = tmp_path / "nats.conf"
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{tmp_path}/js", sync: always }}\n'
    )
    server = subprocess.Popen(
        [nats_server(), "-c", str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        own = make_broker("commit_timeout = 1.0\n", "--nats-url", f"nats://127.0.0.1:{port}")
        own.start()
        client = Clients("127.0.0.1", own.port).connect()
        client.publish("t", b"x", 1)
        server.kill()
        server.wait()
        client.send(p.publish("t", b"never acknowledged", 1, 99))
        client.expect_closed(20.0)
    finally:
        server.kill()
        server.wait()
    own.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the NATS server did not start")


# -------------------------------------------------------------- foldmq pub and sub
