"""`foldmq serve` as a service: start, end, refusals, reload."""

import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import forkserver
from harness import packets as p
from harness.broker import (
    Broker,
    BrokerFailedError,
    alive,
    environment,
    foldmq,
    free_port,
    nats_server,
    wait_until_gone,
)
from harness.fixtures import Clients
from harness.packets import Puback


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `foldmq` to its end."""
    code, out, err = forkserver.run(args, environment(), 30, stdin.encode())
    return subprocess.CompletedProcess(args, code, out.decode(), err.decode())


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


def test_port_taken(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own.port = taken.getsockname()[1]
        result = run(*own.command()[1:])
    assert result.returncode not in (0, None)
    assert "Traceback" not in result.stderr
    line_with(result.stdout + result.stderr, str(own.port))


def test_data_dir_used_by_another_broker(make_broker: Callable[..., Broker]) -> None:
    first, second = make_broker(), make_broker()
    first.start()
    client = Clients("127.0.0.1", first.port).connect()
    second.data_dir = first.data_dir
    line_with(refusal(second), str(first.data_dir))
    client.expect_alive()
    client.publish("t", b"x", 1)
    second.data_dir = second.directory / "data"
    first.stop()


def test_data_dir_that_is_a_file(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.data_dir.write_text("not a directory")
    line_with(refusal(own), str(own.data_dir))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("max_ack_pendin = 5\n", ("max_ack_pendin", "max_ack_pending")),
        ("conect_timeout = 5\n", ("conect_timeout", "connect_timeout")),
        ('max_ack_pending = "many"\n', ("max_ack_pending", "many")),
        ("max_ack_pending = -3\n", ("max_ack_pending", "-3")),
        ("max_ack_pending = 70000\n", ("max_ack_pending", "70000")),
        ("max_ack_pending = \n", ("foldmq.toml",)),
    ],
    ids=["unknown", "unknown-2", "type", "negative", "above-65535", "not-toml"],
)
def test_bad_configuration_is_named(
    make_broker: Callable[..., Broker], config: str, words: tuple[str, ...]
) -> None:
    line_with(refusal(make_broker(config)), *words)


def test_configuration_file_missing(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.config_file.unlink()
    line_with(refusal(own), str(own.config_file))


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "127.0.0.1:"])
def test_bad_listen_address(tmp_path: Path, foldmq_only: None, listen: str) -> None:
    result = run("serve", "--listen", listen, "--data-dir", str(tmp_path / "data"))
    assert result.returncode not in (0, None)
    assert "Traceback" not in result.stderr
    line_with(result.stdout + result.stderr, listen)


def test_open_address_without_users_is_refused(tmp_path: Path, foldmq_only: None) -> None:
    listen = f"0.0.0.0:{free_port()}"
    result = run("serve", "--listen", listen, "--data-dir", str(tmp_path / "data"))
    assert result.returncode not in (0, None)
    assert "Traceback" not in result.stderr
    text = (result.stdout + result.stderr).replace("-", "_")
    line_with(text, "allow_anonymous")


def test_unknown_option(foldmq_only: None) -> None:
    result = run("serve", "--no-such-option")
    assert result.returncode == 2
    line_with(result.stderr, "--no-such-option")


# ------------------------------------------------------------------ life and end


def test_banner_has_addresses_and_guarantee(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.start()
    Clients("127.0.0.1", own.port).connect().publish("t", b"x", 1)
    line_with(own.log, f"127.0.0.1:{own.port}")
    line_with(own.log, str(own.data_dir))
    line_with(own.log.lower(), "disk")
    own.stop()


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


def test_sighup_rereads_limits(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.start()
    clients = Clients("127.0.0.1", own.port)
    connected = clients.connect()
    own.configure("max_packet_size = 2000\n")
    own.hangup()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        probe = clients.connect()
        probe.send(p.publish("t", b"x" * 5000, 1, 1))
        if probe.receive_all(0.3) == []:
            break
    probe.expect_closed()
    connected.expect_alive()
    own.stop()


def test_sighup_with_a_bad_file_keeps_the_broker_running(
    make_broker: Callable[..., Broker],
) -> None:
    own = make_broker()
    own.start()
    client = Clients("127.0.0.1", own.port).connect()
    own.configure("max_ack_pendin = 5\n")
    own.hangup()
    deadline = time.monotonic() + 10
    while not re.search(r"max_ack_pendin\b", own.log):
        assert time.monotonic() < deadline, f"the bad setting was not reported:\n{own.log}"
        time.sleep(0.05)
    client.publish("t", b"x", 1)
    assert "Traceback" not in own.log
    own.stop()


def test_store_is_private(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.start()
    assert own.data_dir.stat().st_mode & 0o077 == 0
    assert "nats" in _command_line(own.nats_pid)
    own.stop()


def _command_line(pid: int) -> str:
    return subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True
    ).stdout


# -------------------------------------------------------------- foldmq pub and sub


def test_foldmq_pub_and_sub(make_broker: Callable[..., Broker]) -> None:
    own = make_broker()
    own.start()
    port = ["-p", str(own.port)]
    assert run("pub", *port, "-t", "kept", "-m", "retained", "-q", "1", "-r").returncode == 0
    command = [foldmq(), "sub", *port, "-t", "kept", "-t", "live/#", "-q", "2", "-C", "3", "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as sub:
        assert sub.stdout is not None
        assert sub.stdout.readline() == "kept retained\n"
        for qos in ("1", "2"):
            assert run("pub", *port, "-t", "live/x", "-m", qos, "-q", qos).returncode == 0
        assert sub.stdout.read() == "live/x 1\nlive/x 2\n"
        assert sub.wait(10) == 0
    own.stop()


def test_foldmq_pub_reports_a_missing_broker(foldmq_only: None) -> None:
    port = free_port()
    result = run("pub", "-p", str(port), "-t", "t", "-m", "x")
    assert result.returncode not in (0, None)
    assert "Traceback" not in result.stderr
    line_with(result.stderr, str(port))
