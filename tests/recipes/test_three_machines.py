"""The recipe for three machines: each of them has an address of its own here."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.passwordfiles import add_user
from e2e.tools import run
from harness.broker import environment, foldmq, free_port
from harness.packets import Connack, Publish
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until

from recipes.natsservers import NETWORK, NatsServer, address, reachable
from recipes.recipefiles import PASSWORD, RECIPES, adapted, program

FILES = RECIPES / "three-machines"


class Machine:
    """A NATS server and a node of foldmq."""

    def __init__(self, folder: Path, shared: Path, number: int) -> None:
        self.number = number
        self.folder = folder
        folder.mkdir()
        config = (FILES / "nats-server.conf").read_text("utf-8")
        mine = {
            "machine1": f"machine{number}",
            "listen: 10.0.0.1": f"listen: 10.0.0.{number}",
            "/var/lib/nats": str(folder / "nats"),
        }
        self.nats = NatsServer(folder, number, adapted(adapted(config, mine), {"10.0.0": NETWORK}))
        settings = (FILES / "foldmq.toml").read_text("utf-8")
        for name in ("cluster_listen = ", "listen = [", "metrics = "):
            settings = adapted(settings, {f'{name}"10.0.0.1': f'{name}"10.0.0.{number}'})
        self.config = folder / "foldmq.toml"
        self.config.write_text(adapted(settings, {"10.0.0": NETWORK, "/etc/foldmq": str(shared)}))
        self._log = folder / "foldmq.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node; return when it accepts clients."""
        command = [foldmq(), "serve", "--config", str(self.config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self.folder / "data")],
                env=environment(),
                stdout=log,
                stderr=log,
            )
        until(lambda: self.role is not None or not self.running, "a node")
        assert self.running, self._log.read_text()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def role(self) -> str | None:
        """What it is, if it accepts clients."""
        try:
            url = f"http://{address(self.number)}:18831/readyz"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return str(json.load(answer)["role"])
        except (OSError, urllib.error.HTTPError, ValueError):
            return None

    def kill(self) -> None:
        """Lose the machine."""
        self.nats.kill()
        self.end()

    def end(self) -> None:
        """Lose the node."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machine]]:
    folder = tmp_path_factory.mktemp("plant")
    shared = folder / "foldmq"
    shared.mkdir()
    add_user(shared / "users", "ann", PASSWORD)
    for name, secret in (("cluster.key", "0123456789abcdef" * 4), ("nats-password", "change-this")):
        file = shared / name
        file.touch(0o600)
        file.write_text(f"{secret}\n")
    made = [Machine(folder / f"machine{number}", shared, number) for number in (1, 2, 3)]
    try:
        for machine in made:
            machine.nats.start()
        for machine in made:
            machine.nats.wait()
        for machine in made:
            machine.start()
        until(lambda: sorted(str(one.role) for one in made)[:2] == ["following"] * 2, "followers")
        yield made
    finally:
        for machine in made:
            machine.kill()


def connected(host: str, port: int, name: str, *, present: bool) -> RawClient:
    """A client with a persistent session, as soon as there is a leader."""
    clients: list[RawClient] = []

    def attempt() -> bool:
        client = RawClient(port, host)
        try:
            answer = client.connect(
                name, clean=False, username="ann", password=PASSWORD.encode(), keepalive=60
            )
        except (ConnectionClosedError, OSError):
            client.close()
            return False
        assert answer == Connack(0, present)
        clients.append(client)
        return True

    until(attempt, f"{name} is connected")
    return clients[0]


def test_the_balancer_finds_nodes_that_accept_clients(
    machines: list[Machine], tmp_path: Path
) -> None:
    """Before a machine is lost: only a node ends here, and is started again."""
    command = program("haproxy")
    port = free_port()
    text = (FILES / "haproxy.cfg").read_text("utf-8")
    file = tmp_path / "haproxy.cfg"
    file.write_text(adapted(text, {"10.0.0": NETWORK, "bind :1883": f"bind 127.0.0.1:{port}"}))
    process = subprocess.Popen([command, "-db", "-f", str(file)])
    try:
        until(lambda: reachable("127.0.0.1", port), "HAProxy")
        reader = connected("127.0.0.1", port, "watcher", present=False)
        assert reader.subscribe(("hall", 1)) == (1,)
        (leader,) = (one for one in machines if one.role == "leading")
        leader.end()
        with pytest.raises((ConnectionClosedError, OSError)):
            reader.receive(60)
        reader = connected("127.0.0.1", port, "watcher", present=True)
        with connected("127.0.0.1", port, "speaker", present=False) as writer:
            writer.publish("hall", b"after", 1)
        message = reader.expect_a(Publish)
        assert message.payload == b"after"
        reader.close()
        leader.start()
    finally:
        process.kill()
        process.wait()


def test_a_lost_machine_loses_nothing(machines: list[Machine]) -> None:
    """And ``foldmq nodes``, as the page has it, lists the nodes."""
    arguments = ["nodes", "--cluster", "plant", "--nats-url", f"nats://{address(1)}:4222"]
    secret = machines[0].folder.with_name("foldmq") / "nats-password"
    arguments += ["--nats-user", "foldmq", "--nats-password-file", str(secret)]
    lines = run(*arguments).lines
    assert len(lines) == 4
    assert sum("leading" in line for line in lines) == 1
    (leader,) = (machine for machine in machines if machine.role == "leading")
    others = [one for one in machines if one is not leader]
    through = connected(address(others[0].number), 1883, "reader", present=False)
    assert through.subscribe(("hall", 1)) == (1,)
    through.disconnect()
    with connected(address(others[1].number), 1883, "writer", present=False) as writer:
        writer.publish("hall", b"acknowledged", 1)  # which waits for the acknowledgement
    leader.kill()
    reader = connected(address(others[1].number), 1883, "reader", present=True)
    reader.acknowledge(reader.expect_publish("hall", b"acknowledged", 1))
    reader.close()
