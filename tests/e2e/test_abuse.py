"""Clients that misbehave in ten ways beside regular clients, which must not notice."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import forkserver
from harness.broker import Broker, environment, free_port
from harness.certs import Authority
from harness.fixtures import Clients
from harness.waiting import until

ROOT = Path(__file__).parents[2]
USER = ("--user", "guest", "--password", "open sesame")
SETTINGS = """
log_format = "json"
index_bytes = 0
password_file = "{passwords}"
connect_timeout = "3s"
max_packet_size = "256 KiB"
max_subscriptions = 100
max_topic_levels = 32
max_wildcards = 8
publish_rate_per_client = 200
publish_bytes_per_client = "2 MiB"
slow_reader_time = "2s"
login_failures = 1
flapping_connects = 5

[[listen]]
address = "127.0.0.1:{port}"

[[listen]]
address = "tls://127.0.0.1:{tls_port}"
tls_cert = "{certificate}"
tls_key = "{key}"
"""
REACTIONS = {
    "silent and slow": ("not connected in time", ""),
    "garbage and giants": ("protocol error", ""),
    "login storm": ("logins slowed for a while after failed ones", ""),
    "flapping": ("clients refused or closed", "flapping"),
    "deep filters": ("clients refused or closed", "topic_levels"),
    "never reading": ("clients refused or closed", "slow_reader"),
}
"""What the broker says of them: the event, and the reason where one event has several."""
CLOSED = {
    "silent",
    "slow bytes",
    "garbage",
    "giant lengths",
    "TLS stalls",
    "login storm",
    "flapping",
}
"""Kinds that are not let go on and see that; others get 0x80 for what is too much."""


class Helper:
    """A program of bench/attacks that gets commands and answers with JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def helper(program: str, *arguments: object) -> Iterator[Helper]:
    """Runs a program of bench/attacks until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", f"bench.attacks.{program}", *map(str, arguments), *USER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            yield Helper(process)
        finally:
            process.kill()


@pytest.fixture
def guarded(make_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker with a user, TLS and tight bounds, started; `tls_port` is in its settings."""
    passwords = tmp_path / "passwords"
    command = ("passwd", str(passwords), USER[1], "--password-stdin")
    code, _, err = forkserver.run(command, environment(), 30, f"{USER[3]}\n".encode())
    assert code == 0, err
    pair = Authority(tmp_path / "certificates").server()
    broker = make_broker("")
    broker.configure(
        SETTINGS.format(
            passwords=passwords,
            port=broker.port,
            tls_port=free_port(),
            certificate=pair.certificate,
            key=pair.key,
        )
    )
    broker.start()
    return broker


def descriptors(broker: Broker) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def reacted(broker: Broker) -> set[str]:
    """The kinds of abuse that the broker reported."""
    said = {(line["event"], line.get("reason", "")) for line in broker.told("")}
    events = {event for event, _ in said}
    return {
        kind
        for kind, (event, reason) in REACTIONS.items()
        if (event, reason) in said or (not reason and event in events)
    }


def test_well_behaved_clients_do_not_notice_abusive_ones(guarded: Broker) -> None:
    (tls_port,) = re.findall(r"tls://127\.0\.0\.1:(\d+)", guarded.config_file.read_text())
    with helper("wellbehaved_clients", guarded.port, "--clients", 20, "--rate", 200) as good:
        assert good.receive() == {"ready": 20}
        before = descriptors(guarded)
        crowd = ("--tls-port", tls_port, "--count", 200, "--pause", 0.3)
        with helper("abusers", guarded.port, *crowd) as bad:
            until(lambda: reacted(guarded) == set(REACTIONS), "a reaction to each", 100)
            bad.send("end")
            abuse = bad.receive()
        assert len(abuse["opened"]) == 10
        assert set(abuse["closed"]) >= CLOSED
        until(lambda: descriptors(guarded) <= before, "nothing left of them")
        good.send("end")
        assert good.receive()["messages"] > 0
        end = good.receive()
        assert end["acknowledged"] > 0
        assert {what: end[what] for what in ("lost", "unacknowledged", "disconnects")} == {
            "lost": 0,
            "unacknowledged": 0,
            "disconnects": 0,
        }
    clients = Clients("127.0.0.1", guarded.port)
    clients.connect(username=USER[1], password=USER[3].encode()).disconnect()
    clients.close()
    guarded.stop()
    assert not [line for line in guarded.told("") if line["level"] == "error"]
    assert "Traceback" not in guarded.log
    assert USER[3] not in guarded.log
