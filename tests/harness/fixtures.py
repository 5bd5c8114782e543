"""Fixtures shared by the conformance and end-to-end tests."""

import contextlib
import itertools
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.broker import Broker
from harness.drill import ROUNDS
from harness.nats import ACCESS, Nats
from harness.packets import Connack, Will
from harness.powercut import Cache, Disk, UnusableError
from harness.rawclient import RawClient

EXTERNAL = os.environ.get("FOLDMQ_TEST_BROKER")
_run = secrets.token_hex(3)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Address:
    """A broker that is already running, given by FOLDMQ_TEST_BROKER=host:port."""

    host: str
    port: int


class Clients:
    """Makes raw clients of one broker and closes them when the test ends."""

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.port = port
        self._open: list[RawClient] = []

    def raw(self) -> RawClient:
        """A TCP connection on which nothing was sent yet."""
        client = RawClient(self.port, self.address)
        self._open.append(client)
        return client

    def connect(
        self,
        client_id: str | None = None,
        *,
        clean: bool = True,
        keepalive: int = 0,
        will: Will | None = None,
        session_present: bool = False,
        username: str | None = None,
        password: bytes | None = None,
        protocol: str = "MQTT",
        level: int = 4,
    ) -> RawClient:
        """A connected client, by default with a new client identifier and a clean session.

        The CONNACK must be of code 0 and show `session_present`.
        """
        client = self.raw()
        connack = client.connect(
            unique("c") if client_id is None else client_id,
            clean=clean,
            keepalive=keepalive,
            will=will,
            username=username,
            password=password,
            protocol=protocol,
            level=level,
        )
        assert connack == Connack(0, session_present)
        return client

    def subscribed(
        self, topic_filter: str, qos: int = 0, client_id: str | None = None
    ) -> RawClient:
        """A connected client with one subscription, in a clean session."""
        client = self.connect(client_id)
        assert client.subscribe((topic_filter, qos)) == (qos,)
        return client

    def close(self) -> None:
        for client in self._open:
            client.close()


def unique(prefix: str) -> str:
    """A short name that no other test and no other run uses; letters and digits only."""
    return f"{prefix}{_run}n{next(_numbers)}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | Address]:
    """One broker with default settings for all tests that leave no trace others could see."""
    if EXTERNAL:
        host, _, port = EXTERNAL.rpartition(":")
        yield Address(host, int(port))
        return
    with Broker(tmp_path_factory.mktemp("shared")) as shared:
        yield shared
        shared.stop()


@pytest.fixture
def clients(broker: Broker | Address) -> Iterator[Clients]:
    """Clients of the shared broker."""
    made = Clients(broker.host if isinstance(broker, Address) else "127.0.0.1", broker.port)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    """A topic name that belongs to this test alone; levels may be added below it."""
    return unique("t")


@pytest.fixture
def foldmq_only() -> None:
    """For choices that the standard leaves open: not judged on another broker."""
    if EXTERNAL:
        pytest.skip("a documented choice of foldmq")


@pytest.fixture
def make_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Makes brokers of the test's own, not started; they share nothing.

    Those of `make drills` are started as a user starts them, the others are forked.
    """
    forked = ROUNDS < 3 or request.node.get_closest_marker("drill") is None
    if EXTERNAL:
        pytest.skip("needs to start its own foldmq")
    made: list[Broker] = []

    def make(config: str = "", *args: str) -> Broker:
        directory = tmp_path / f"broker{len(made)}"
        directory.mkdir()
        made.append(Broker(directory, args=args, config=config, forked=forked))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
        print(f"broker in {one.directory}:\n{one.log[-4000:]}")  # shown if the test failed


SMALL = 64 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 64 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(1 << 16))
    return filler


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[Cache], Disk]]:
    """Makes disks whose power can be cut; skips the test where there are none."""
    made: list[Disk] = []

    def make(cache: Cache) -> Disk:
        try:
            made.append(Disk(tmp_path / f"disk{len(made)}", cache))
        except UnusableError as error:
            pytest.skip(f"no disk whose power can be cut: {error}")
        return made[-1]

    yield make
    for disk in made:
        disk.close()


@pytest.fixture
def external(tmp_path: Path) -> Iterator[Nats]:
    """A NATS server that runs, with its store in a directory of the test's own."""
    folder = tmp_path / "nats"
    folder.mkdir()
    server = Nats(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def on_external(external: Nats, make_broker: Callable[..., Broker]) -> Callable[..., Broker]:
    """Makes brokers whose log is kept there, not started; all are the same node by default."""

    def make(config: str = "", node: str = "n1", url: str = "") -> Broker:
        broker = make_broker(ACCESS + config, "--nats-url", url or external.url)
        broker.data_dir.mkdir()
        (broker.data_dir / "node").write_text(f"{node}\n")
        return broker

    return make
