"""The topics $SYS/broker/... of a real broker, for a real client, beside a real Mosquitto."""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from harness import packets as p
from harness.broker import Broker, free_port
from harness.fixtures import Clients
from harness.rawclient import RawClient
from harness.waiting import until

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
MOSQUITTO_SUB = shutil.which("mosquitto_sub")

SHAPES = {
    "version": r"\w+ version \d+(\.\w+)+",
    "uptime": r"\d+ seconds",
    "load": r"\d+\.\d\d",
}
"""What a payload looks like, by the first level below $SYS/broker; all others are numbers."""


@pytest.fixture
def own(make_broker: Callable[..., Broker]) -> Broker:
    made = make_broker("sys_interval = 1\n")
    made.start()
    return made


@contextmanager
def mosquitto(directory: Path) -> Iterator[int]:
    """A Mosquitto that updates its $SYS every second; gives its port."""
    assert MOSQUITTO is not None
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nsys_interval 1\n")
    process = subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL)

    def accepts() -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(accepts, "a Mosquitto that listens")
        yield port
    finally:
        process.terminate()
        process.wait(20)


def told(client: RawClient) -> dict[str, str]:
    """The values that a new subscription to all gives at once, without the root."""
    client.subscribe(("$SYS/#", 0))
    found: dict[str, str] = {}
    while True:
        received = client.expect_a(p.Publish)
        if not received.retain:
            return found
        assert received.qos == 0
        found[received.topic.removeprefix("$SYS/broker/")] = received.payload.decode()


def looks_right(name: str, value: str) -> bool:
    return re.fullmatch(SHAPES.get(name.split("/")[0], r"\d+"), value) is not None


@pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")
def test_names_and_shapes_are_those_of_mosquitto(own: Broker, tmp_path: Path) -> None:
    with mosquitto(tmp_path) as port:
        theirs = told(Clients("127.0.0.1", port).connect())
    ours = told(Clients("127.0.0.1", own.port).connect())
    assert [item for item in theirs.items() if not looks_right(*item)] == []
    assert [item for item in ours.items() if not looks_right(*item)] == []
    assert len(theirs) > 40
    # Which ones Mosquitto has told yet depends on what has happened there.
    assert not set(theirs) - set(ours)
    assert int(ours["heap/maximum"]) >= int(ours["heap/current"]) > 1 << 20
    assert ours["version"] != theirs["version"]


@pytest.mark.skipif(MOSQUITTO_SUB is None, reason="the clients of Mosquitto are not installed")
def test_a_client_of_mosquitto_sees_it(own: Broker) -> None:
    assert MOSQUITTO_SUB is not None
    done = subprocess.run(
        [MOSQUITTO_SUB, "-p", str(own.port), "-t", "$SYS/broker/clients/#", "-v", "-C", "7"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.decode().splitlines()
    assert "$SYS/broker/clients/connected 1" in lines
    assert "$SYS/broker/clients/maximum 1" in lines
