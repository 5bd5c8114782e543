"""``foldmq serve`` as a process: banner, refusals, signals, users."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import free_port

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """A ``foldmq serve`` process; its stderr goes to a file."""

    def __init__(self, directory: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.data = directory / "data"
        self.stderr = directory / f"stderr-{self.port}"
        listen = ["--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self.data)]
        # Several run at the same time, which the default addresses are not for.
        listen += ["--metrics", "off", "--web", "off"]
        with self.stderr.open("ab") as sink:
            self.process = forkserver.start(
                ["serve", *listen, *arguments], os.environ, sink.fileno(), sink.fileno()
            )

    @property
    def output(self) -> str:
        return self.stderr.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until ``text`` was written so often; fails when the process ends first."""
        deadline = time.monotonic() + 60
        while self.output.count(text) < times:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def ended(self) -> int:
        return self.process.wait(60)

    def stop(self) -> int:
        self.process.terminate()
        return self.ended()

    def nats_runs(self) -> bool:
        pid = (self.data / "nats.pid").read_text().strip()
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.data).encode() in words


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start brokers that end with the test."""
    started: list[Served] = []

    def start(*arguments: str, port: int | None = None, ready: bool = True) -> Served:
        broker = Served(tmp_path, *arguments, port=port)
        started.append(broker)
        if ready:
            broker.wait_for("ready" if "json" in arguments else "  guarantee")
        return broker

    yield start
    for broker in started:
        if broker.process.poll() is None:
            broker.process.terminate()
            broker.process.wait(60)


def foldmq(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    code, out, err = forkserver.run(arguments, os.environ, 60, stdin)
    return subprocess.CompletedProcess(arguments, code, out, err)


def publish(broker: Served, *arguments: str) -> int:
    return foldmq("pub", "-p", str(broker.port), "-t", "a", "-m", "x", "-q1", *arguments).returncode


def test_banner_has_addresses_clients_and_guarantee(serve: Serve) -> None:
    broker = serve()
    for text in (
        f"process {broker.process.pid}",
        f"listening  127.0.0.1:{broker.port}",
        "clients    any client, without a password",
        f"data       {broker.data}",
        "embedded NATS",
        "guarantee  acknowledged messages are on disk",
    ):
        assert text in broker.output
    assert "WEAKER" not in broker.output


def test_the_banner_marks_the_weaker_mode(serve: Serve) -> None:
    assert "guarantee  WEAKER: " in serve("--sync", "2s").output


def test_json_log_is_json_from_the_first_line(serve: Serve) -> None:
    broker = serve("--log-format", "json")
    assert broker.stop() == 0
    lines = [json.loads(line) for line in broker.output.splitlines()]
    (ready,) = [line for line in lines if line["event"] == "ready"]
    assert ready["listening"] == [f"127.0.0.1:{broker.port}"]
    assert [line for line in lines if line["event"] == "log replayed"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_ends_nats(serve: Serve, number: signal.Signals) -> None:
    broker = serve()
    assert publish(broker) == 0
    assert broker.nats_runs()
    broker.process.send_signal(number)
    assert broker.ended() == 0
    assert broker.output.splitlines()[-1].endswith("stopped")
    assert not broker.nats_runs()
    assert "Traceback" not in broker.output


def test_port_taken(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = serve(port=port, ready=False)
        assert broker.ended() == 69
    assert broker.output == (
        f"foldmq: cannot listen on 127.0.0.1:{port}: another program is listening there; "
        "stop it or choose another --listen\n"
    )


def test_data_dir_of_another_broker(serve: Serve) -> None:
    first = serve()
    second = serve(ready=False)
    assert second.ended() == 75
    (line,) = second.output.splitlines()
    assert line.startswith(f"foldmq: data directory {first.data} is in use by another foldmq")
    assert str(first.process.pid) in line
    assert publish(first) == 0


def test_nats_that_is_not_there(serve: Serve) -> None:
    broker = serve("--nats-url", f"nats://127.0.0.1:{free_port()}", ready=False)
    assert broker.ended() == 69
    (line,) = broker.output.splitlines()
    assert line.startswith("foldmq: cannot connect to NATS at nats://127.0.0.1:")
    assert "connection refused" in line


def test_signal_while_starting_ends_well(serve: Serve) -> None:
    broker = serve("--nats-url", f"nats://127.0.0.1:{free_port()}", ready=False)
    deadline = time.monotonic() + 60
    # The lock file is written after the handlers are set and before NATS is waited for.
    while not (broker.data / "node").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    broker.process.terminate()
    assert broker.ended() == 0, broker.output
    assert "stopped while starting" in broker.output


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    foldmq("passwd", str(path), "ann", "--password-stdin", stdin=b"one\n")
    return path


def test_users(serve: Serve, users: Path) -> None:
    broker = serve("--password-file", str(users))
    assert f"clients    the one user of {users}" in broker.output
    assert publish(broker, "-u", "ann", "-P", "one") == 0
    assert publish(broker, "-u", "ann", "-P", "two") == 4
    assert publish(broker, "-u", "eve", "-P", "one") == 4
    assert publish(broker) == 5


def test_hangup_rereads_users_limits_and_log_level(
    serve: Serve, users: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'password_file = "{users}"\n')
    broker = serve("--config", str(config))
    foldmq("passwd", str(users), "ann", "--password-stdin", stdin=b"two\n")
    config.write_text(f'password_file = "{users}"\nlog_level = "error"\nevent_loop = "asyncio"\n')
    assert publish(broker, "-u", "ann", "-P", "one") == 0
    broker.process.send_signal(signal.SIGHUP)
    # Said at the old level; what comes after is at the new one.
    broker.wait_for("settings reloaded")
    assert "changed settings that need a restart settings=event_loop" in broker.output
    assert publish(broker, "-u", "ann", "-P", "one") == 4
    assert publish(broker, "-u", "ann", "-P", "two") == 0
    assert broker.stop() == 0
    assert "draining" not in broker.output


def test_hangup_with_bad_settings_keeps_the_old_ones(
    serve: Serve, users: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'password_file = "{users}"\n')
    broker = serve("--config", str(config))
    kept = "settings not reloaded, previous settings stay in effect"
    for number, bad in enumerate(["max_ack_pendig = 1\n", "allow_anonymous = false\n", "="], 1):
        config.write_text(bad)
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for(kept, number)
        assert publish(broker) == 5
        assert publish(broker, "-u", "ann", "-P", "one") == 0


def test_hangup_does_not_open_a_reachable_address(
    serve: Serve, users: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'password_file = "{users}"\n')
    port = str(free_port())
    broker = serve("--config", str(config), "--listen", f"0.0.0.0:{port}")
    # Alone, this would be right for loopback; the broker still listens everywhere.
    config.write_text("")
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for("settings not reloaded, previous settings stay in effect")
    assert publish(broker) == 5


def test_second_signal_stops_at_once(serve: Serve) -> None:
    broker = serve()
    nats = int((broker.data / "nats.pid").read_text())
    # A frozen NATS: the drain cannot end.
    os.kill(nats, signal.SIGSTOP)
    try:
        broker.process.terminate()
        broker.wait_for("draining")
        broker.process.terminate()
        assert broker.ended() == 128 + signal.SIGTERM
    finally:
        os.kill(nats, signal.SIGCONT)
    assert "stopping immediately" in broker.output


def test_records_that_cannot_be_written_end_the_drain(serve: Serve) -> None:
    broker = serve("--commit-timeout", "1s")
    nats = int((broker.data / "nats.pid").read_text())
    os.kill(nats, signal.SIGSTOP)
    try:
        broker.process.terminate()
        broker.wait_for("draining")
    finally:
        # NATS is ended after the drain has given up, and needs to run for that.
        time.sleep(2)
        os.kill(nats, signal.SIGCONT)
    assert broker.ended() == 74
    assert "no acknowledged message is lost" in broker.output
