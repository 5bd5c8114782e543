"""A cluster with several logs: each has a leader of its own, and any node takes all clients."""

import contextlib
import hmac
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from harness import drill as drills
from harness import forkserver
from harness import packets as p
from harness.broker import (
    Broker,
    children_of,
    environment,
    free_port,
    stand_still,
    wait_until_gone,
)
from harness.drill import ROUNDS, SEED, Drill
from harness.foldcluster import Balancer, ClusterNode, closings
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.packets import Puback, Publish
from harness.rawclient import RawClient
from harness.waiting import TIMEOUT, until
from nats.errors import Error

from actors.connection.pseudonyms import KEY_SIZE, pseudonym
from e2e.bridging import Visitor, received
from e2e.webclient import Page
from eventstore.partitions import partition_of

pytestmark = [pytest.mark.drill, pytest.mark.system, pytest.mark.timeout(900 + 120 * ROUNDS)]

STARTS = 180.0
"""Seconds in which all processes of a node have started, on a busy machine too."""
LOOK_EVERY = 0.25
"""Seconds between two looks at a cluster that starts or moves a log."""


def client_in(log: int, name: str) -> str:
    """A client identifier whose session belongs to a log of two."""
    return next(one for one in (f"{name}{n}" for n in range(100)) if partition_of(one, 2) == log)


def free_ports(count: int) -> int:
    """The first of several free ports in a row: the processes of a node have one each."""
    while True:
        found = [free_port() for _ in range(count)]
        if found[-1] - found[0] == count - 1:
            return found[0]


class Partitioned:
    """Two nodes and two logs on one NATS server, behind a balancer.

    Those of `make drills` are started as a user starts them, others are forked.
    """

    def __init__(
        self,
        folder: Path,
        nats: Nats,
        config: str = "",
        *,
        drill: bool = False,
        bridge: bool = False,
    ) -> None:
        key = folder / "key"
        key.write_text("the key of this cluster\n")
        self.nats = nats
        forked = ROUNDS < 3 or not drill
        self.settings = (
            f"{ACCESS}cluster = 'c1'\npartitions = 2\ncluster_listen = '127.0.0.1:0'\n"
            f"cluster_key_file = '{key}'\n{config}"
        )
        self.nodes = [
            ClusterNode(folder / f"node{number}", nats.port, self.settings, forked=forked)
            for number in range(2)
        ]
        for node in self.nodes:
            before, node.metrics = node.metrics, free_ports(3)
            text = node.config_file.read_text()
            text = text.replace(f"127.0.0.1:{before}", f"127.0.0.1:{node.metrics}")
            node.configure(text.replace("bridge = false", "bridge = true") if bridge else text)
        self.balancer = Balancer(self.nodes, spread=True)

    def start(self) -> None:
        """Start both nodes; return when each leads the log that it is to lead."""
        for node in self.nodes:
            node.start()
        self.settle()

    def settle(self) -> None:
        """Wait until every log has a leader and a follower, and both nodes take clients."""
        wanted = ["following"] * 2 + ["leading"] * 2
        until(lambda: all(node.ready for node in self.nodes), "both nodes", STARTS, LOOK_EVERY)
        until(lambda: sorted(self.roles().values()) == wanted, "all roles", STARTS, LOOK_EVERY)

    def start_again(self) -> None:
        """Start nodes that a test has stopped; return when both take clients."""
        for node in self.nodes:
            if not node.running:
                node.start()
        self.settle()

    def spread(self) -> None:
        """Wait until both nodes run, and each leads a log and follows the other one."""
        self.start_again()
        until(lambda: self.leader(0) is not self.leader(1), "two leaders", STARTS, LOOK_EVERY)
        self.settle()

    def roles(self) -> dict[tuple[str, int], str]:
        """The role of each node in each log; those that are no roles of a serving node too."""
        return {(row["node"], row["log"]): row["role"] for row in self.listed()}

    def listed(self) -> list[dict[str, Any]]:
        done = self.command("nodes", "--cluster=c1", "--json", check=False)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def leader(self, log: int) -> ClusterNode:
        """The node that leads a log."""
        found: list[str] = []

        def look() -> bool:
            roles = self.roles()
            found[:] = [
                node for (node, one), role in roles.items() if (one, role) == (log, "leading")
            ]
            return len(found) == 1

        until(look, f"one leader of log {log}", STARTS, LOOK_EVERY)
        return next(node for node in self.nodes if node.name == found[0])

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        access = ["--nats-url", self.nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
        # Forked, because some of them are asked until they say what is waited for.
        code, out, err = forkserver.run([*arguments, *access], environment(), 120)
        done = subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def starts(self) -> list[dict[str, Any]]:
        """The starts of leaders, as the logs have them."""
        command = "log", "--json", "--type=BrokerStarted"
        done = [self.command(*command, f"--node=c1-p{log}") for log in range(2)]
        return [json.loads(line) for one in done for line in one.stdout.splitlines()]

    @staticmethod
    def process(node: ClusterNode, log: int) -> int:
        """The process of a node for a log."""
        return int((node.data_dir / f"p{log}" / "foldmq.lock").read_text())

    def kill(self, node: ClusterNode) -> None:
        """SIGKILL to the main process of a node; its other processes end with it."""
        children = children_of(node.pid)
        node.kill()
        assert all(map(wait_until_gone, children))

    def clean_up(self) -> None:
        self.balancer.close()
        for node in self.nodes:
            node.clean_up()
            print(f"{node.directory}:\n{node.log[-6000:]}")  # shown if the test failed


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partitioned]:
    """A cluster for tests with clients of their own: `spread` or `start_again` prepares it."""
    server = Nats(tmp_path_factory.mktemp("nats"), sync_interval="2m")
    server.start()
    made = Partitioned(tmp_path_factory.mktemp("steady"), server, bridge=True)
    try:
        made.start()
        yield made
    finally:
        made.clean_up()
        server.kill()


def exchange(publisher: RawClient, subscriber: RawClient, payload: bytes) -> None:
    """Publish at QoS 1 and expect the acknowledgement, and the message elsewhere."""
    publisher.send(p.publish("t/x", payload, 1, 7))
    assert isinstance(publisher.receive(TIMEOUT), Puback)
    found = subscriber.receive(TIMEOUT)
    assert isinstance(found, Publish)
    assert found.payload == payload
    subscriber.send(p.puback(found.packet_id or 0))


def subscribed(port: int, client_id: str) -> RawClient:
    client = RawClient(port)
    assert client.connect(client_id, clean=False).code == 0
    client.send(p.subscribe(1, ("t/#", 1)))
    client.receive(TIMEOUT)
    return client


def test_leaders_spread_and_any_node_takes_the_clients_of_all_logs(steady: Partitioned) -> None:
    cluster = steady
    cluster.spread()
    names = [client_in(log, "client") for log in range(2)]
    for node in cluster.nodes:
        for sender in names:
            (reader,) = (one for one in names if one != sender)
            with subscribed(node.port, reader) as there, RawClient(node.port) as here:
                assert here.connect(sender, clean=True).code == 0
                exchange(here, there, f"{node.name} {sender}".encode())
    rows = cluster.command("nodes", "--cluster=c1").stdout.splitlines()
    assert rows[0].split()[:3] == ["LOG", "NODE", "ROLE"]
    assert [row.split()[0] for row in rows[1:]] == ["0", "0", "1", "1"]


@pytest.mark.parametrize("victim", [pytest.param("node", marks=pytest.mark.long), "process"])
def test_a_killed_leader_of_one_log_leaves_the_clients_of_the_other_alone(
    steady: Partitioned, victim: str
) -> None:
    cluster = steady
    cluster.spread()
    first, second = cluster.leader(0), cluster.leader(1)
    # If only the process of a log is killed, its node continues to pass clients on.
    edge = second if victim == "node" else first
    with subscribed(edge.port, client_in(1, "stays")) as stays:
        with subscribed(edge.port, client_in(0, "leaves")) as leaves:
            if victim == "node":
                cluster.kill(first)
            else:
                os.kill(cluster.process(first, 0), signal.SIGKILL)
            leaves.expect_closed()
        with RawClient(edge.port) as sender:
            assert sender.connect(client_in(0, "sender")).code == 0
            exchange(sender, stays, b"over the same connection")
    assert cluster.leader(0) is second
    if victim == "process":
        # As soon as it follows, it may be given the leadership back, to spread the leaders.
        back = {"following", "leading"}
        until(lambda: cluster.roles().get((first.name, 0)) in back, "it is back")


def test_the_bridge_follows_the_leaders(steady: Partitioned) -> None:
    cluster = steady
    cluster.spread()
    first, edge = cluster.leader(0), cluster.leader(1)
    names = (f"bridged{at}" for at in range(100))
    topic = next(name for name in names if partition_of(name, 2) == 0)  # log 0 records it
    filters = (f"{topic}/#", 1)
    with (
        Visitor(cluster.nats.port, user=USER, password=PASSWORD) as visitor,
        RawClient(edge.port) as stays,
    ):

        def record(payload: bytes) -> bool:
            with contextlib.suppress(Error):  # without a leader there is no answer
                mark = payload.decode()
                said = visitor.recorded(f"{topic}.in", payload, timeout=2, Nats_Msg_Id=mark)
                return bool(said["stream"] == "FOLDMQ_LOG_c1-p0")
            return False

        assert stays.connect(client_in(1, "bridge-stays"), clean=False).code == 0
        assert stays.subscribe(filters) == (1,)
        with RawClient(edge.port) as leaves:
            assert leaves.connect(client_in(0, "bridge-leaves"), clean=False).code == 0
            assert leaves.subscribe(filters) == (1,)
            assert record(b"1")
            for client in (stays, leaves):
                assert received(client, 1) == [(f"{topic}/in", b"1", 1)]
            leaves.publish("other", b"", 1)  # its PUBACK: the acknowledgement above is recorded
            os.kill(int((first.data_dir / "p0" / "foldmq.lock").read_text()), signal.SIGKILL)
            leaves.expect_closed()
        until(lambda: record(b"2"), "the new leader records")
        ear = visitor.hear(f"{topic}.out")
        with RawClient(edge.port) as back:
            assert back.connect(client_in(0, "bridge-leaves"), clean=False).code == 0
            for client in (stays, back):
                assert received(client, 1) == [(f"{topic}/in", b"2", 1)]
            for log in range(2):
                with RawClient(edge.port) as sender:
                    assert sender.connect(client_in(log, "bridge-sender")).code == 0
                    sender.publish(f"{topic}/out", b"%d" % log, 1)
                for client in (stays, back):
                    assert received(client, 1) == [(f"{topic}/out", b"%d" % log, 1)]
        ear.after(2)
        assert sorted(ear.payloads) == [b"0", b"1"]
    back_again = {"following", "leading"}
    until(lambda: cluster.roles().get((first.name, 0)) in back_again, "it is back")


def test_commands_about_a_session_find_its_log(steady: Partitioned) -> None:
    cluster = steady
    cluster.start_again()
    node = cluster.nodes[0]
    reader, sender = client_in(0, "reader"), client_in(1, "sender")
    with subscribed(node.port, reader) as there, RawClient(cluster.nodes[1].port) as here:
        here.connect(sender, clean=False)
        exchange(here, there, b"1")
        config = ("--config", str(node.config_file))

        def run_without(*arguments: str) -> tuple[int, str]:
            done = cluster.command(*arguments, check=False)
            return done.returncode, done.stdout + done.stderr

        def run(*arguments: str) -> tuple[int, str]:
            return run_without(*arguments, *config)

        code, said = run("sessions", "show", reader)
        assert (code, "t/#" in said, f"via node {node.name}" in said) == (0, True, True), said
        code, said = run("why", "--client", reader, "--topic", "t/x")
        assert code == 0, said
        home, copy = said.split("\n\n")
        assert home.startswith("log c1-p1\n")
        assert f"published by {sender} as packet 7" in home
        assert copy.startswith("log c1-p0\n")
        code, said = run("replay", "--session", reader)
        assert (code, "t/#" in said) == (0, True), said
        for command in (["sessions", "ls"], ["status"], ["top", "--once", "--interval", "1"]):
            # With the settings, and without them: found on the NATS server.
            for done in (run(*command), run_without(*command)):
                assert done[0] == 0, done[1]
                assert all(log in done[1] for log in ("c1-p0", "c1-p1")), done[1]
            code, said = run(*command, "--node", "c1-p1")
            assert (code, "c1-p0  " in said) == (0, False), said
        # Also with a data directory in the settings, as on a real machine.
        for where in ([], ["--data-dir", str(node.data_dir)]):
            code, said = run("log", "--topic", "t/x", "--type", "MessagePublished", *where)
            assert (code, {" p0 ", " p1 "} <= {*re.findall(r" p\d ", said)}) == (0, True), said
            code, said = run("replay", *where)
            assert (code, said.startswith("state of 2 logs as of ")) == (0, True), said
        # Without the settings it is not known that the logs belong together.
        code, said = run_without("log", "-n", "1")
        assert (code, "give --node, one of c1-p0, c1-p1" in said) == (2, True), said
        code, said = run("log", "verify")
        assert code == 0, said
        # Other tests have sent some, too.
        found = r"log c1-p0: [1-9]\d* messages? of other logs had to be taken, all there"
        assert re.search(found, said), said


def logs_are_ready(page: Page) -> bool:
    """Tell whether each log has a leader that answers: one may just be handed over."""
    rows = {row[0]: row[1] for row in page.good("/").columns(0, 1)}
    return (rows["c1-p0"], rows["c1-p1"]) == ("ready", "ready")


def test_the_page_of_each_node_shows_all_logs_and_pseudonyms(tmp_path: Path, nats: Nats) -> None:
    cluster = Partitioned(tmp_path, nats, "pseudonyms = true\n")
    ports = [free_port() for _ in cluster.nodes]
    for node, port in zip(cluster.nodes, ports, strict=True):
        node.configure(node.config_file.read_text() + f"web = '127.0.0.1:{port}'\n")
    secret = hmac.digest(b"the key of this cluster", b"foldmq pseudonyms", "sha256")
    names = [f"reader{number}" for number in range(8)]
    known = {name: pseudonym(name, secret[:KEY_SIZE]) for name in names}
    expected = {known[name]: f"p{partition_of(known[name], 2)}" for name in names}
    assert set(expected.values()) == {"p0", "p1"}
    try:
        cluster.start()
        for number, name in enumerate(names):
            with subscribed(cluster.nodes[number % 2].port, name) as client:
                client.disconnect()
        for node, port in zip(cluster.nodes, ports, strict=True):
            page = Page(port, node.data_dir)
            page.log_in()
            until(partial(logs_are_ready, page), "a leader of each log")
            sessions = {row[1]: row[0] for row in page.good("/sessions").columns(0, 1)}
            assert sessions == expected
            for name, log in expected.items():
                assert f"of log c1-{log}" in page.good("/session", client=name).shown
            places = [place for place, _ in page.good("/log", rows=500).columns(0, 1)]
            assert {place[:3] for place in places} == {"p0 ", "p1 "}
    finally:
        cluster.clean_up()


def test_nodes_with_another_number_of_logs_are_refused(steady: Partitioned, tmp_path: Path) -> None:
    cluster = steady
    for count in (1, 3):
        place = tmp_path / f"other{count}"
        place.mkdir()
        settings = cluster.settings.replace("partitions = 2", f"partitions = {count}")
        other = Broker(place, config=f"nats_url = '{cluster.nats.url}'\nbridge = false\n{settings}")
        said = other.refused(78)
        assert said.startswith(f"partitions = {count}: cluster c1 on NATS at")
        assert "has 2 logs: set partitions = 2" in said


def test_a_node_with_another_key_or_a_copied_directory_is_refused_in_one_line(
    steady: Partitioned, tmp_path: Path
) -> None:
    """Each of its processes would say it, and be started again."""
    cluster = steady
    cluster.start_again()
    (tmp_path / "key").write_text("the key of another cluster\n")
    for name in ("another key", "copy"):
        place = tmp_path / name
        place.mkdir()
        settings = cluster.settings
        if name == "another key":
            settings += f"cluster_key_file = '{tmp_path / 'key'}'\n"
            used = f"cluster_key_file = '{cluster.nodes[0].directory.parent / 'key'}'\n"
            assert used in settings
            settings = settings.replace(used, "")
        other = Broker(place, config=f"nats_url = '{cluster.nats.url}'\nbridge = false\n{settings}")
        if name == "copy":
            other.data_dir.mkdir(mode=0o700)
            shutil.copy(cluster.nodes[0].data_dir / "node", other.data_dir / "node")
        said = other.refused(75)
        wanted = "cluster c1 on" if name == "another key" else "node "
        assert said.startswith(wanted), said
        assert len(said.splitlines()) == 1, said


def test_one_log_moves_and_the_others_stay(steady: Partitioned) -> None:
    cluster = steady
    cluster.spread()
    first, second = cluster.leader(0), cluster.leader(1)
    with subscribed(first.port, client_in(1, "moves")) as mover:
        for arguments, code, reason in (
            (("nodes", "move"), 2, "give --log, 0 to 1"),
            (("nodes", "move", "--log", "2"), 2, "give --log, 0 to 1"),
            (("nodes", "move", first.name, "--log", "0"), 1, f"{first.name}-p0 leads already"),
        ):
            refused = cluster.command(*arguments, "--cluster=c1", check=False)
            assert refused.returncode == code
            assert reason in refused.stderr
        said = cluster.command("nodes", "move", second.name, "--log", "0", "--cluster=c1").stdout
        assert said.startswith(f"node {second.name} (")
        assert " leads log 0, epoch " in said
        assert cluster.leader(0) is second
        with RawClient(first.port) as sender:
            assert sender.connect(client_in(0, "sender")).code == 0
            exchange(sender, mover, b"still there")
            rows = {(row["node"], row["log"]): row for row in cluster.listed()}
            assert rows[second.name, 0]["clients"] == 1
            until(
                lambda: (
                    [row["clients"] for row in cluster.listed() if row["node"] == first.name]
                    == [1, 1]
                ),
                "the clients that the other node passes on",
            )
    second.stop()
    assert cluster.leader(0) is cluster.leader(1) is first
    with RawClient(first.port) as again:
        assert again.connect(client_in(1, "moves"), clean=False).session_present
    first.stop()


def acknowledged_again(drill: Drill) -> None:
    before = drill.account.totals()["acknowledged"]
    until(lambda: drill.account.totals()["acknowledged"] > before + 50, "acknowledgements", STARTS)


def replaced(cluster: Partitioned, victim: ClusterNode, logs: Iterable[int]) -> None:
    """Returns when the other node leads the logs that a node led."""
    for log in logs:
        until(lambda log=log: cluster.leader(log) is not victim, "another leader", STARTS)  # type: ignore[misc]


def strike_kill(cluster: Partitioned, drill: Drill, victim: ClusterNode) -> None:
    cluster.kill(victim)
    replaced(cluster, victim, range(2))
    victim.start()


@contextlib.contextmanager
def watched(victim: ClusterNode, logs: Iterable[int]) -> Iterator[Callable[[], None]]:
    """Clients whose logs a node leads, connected to it; yields what sends their messages.

    At the end these messages are not acknowledged, and the connections are closed.
    """
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(victim.port)) for _ in logs]
        for log, client in zip(logs, clients, strict=True):
            assert client.connect(client_in(log, "watcher")).code == 0

        def publish() -> None:
            for client in clients:
                client.send(p.publish("watched", b"x", 1, 1))

        yield publish
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.expect_closed()


def strike_suspend(cluster: Partitioned, drill: Drill, victim: ClusterNode) -> None:
    """All processes of a node stand still, or those of the logs that it leads do."""
    logs = [log for log in range(2) if cluster.leader(log) is victim]
    leaders = [cluster.process(victim, log) for log in logs]
    whole = drill.random.random() < 0.5
    with watched(victim, logs) as publish:
        chosen = [victim.pid, *children_of(victim.pid)] if whole else leaders
        for pid in chosen:
            stand_still(pid)
        drill.notes.append("all its processes" if whole else "the leaders alone")
        publish()
        replaced(cluster, victim, logs)
        acknowledged_again(drill)
        for pid in chosen:
            os.kill(pid, signal.SIGCONT)


def strike_cut_off(cluster: Partitioned, drill: Drill, victim: ClusterNode) -> None:
    """A node is cut off from NATS; clients still reach it."""
    logs = [log for log in range(2) if cluster.leader(log) is victim]
    with watched(victim, logs) as publish:
        victim.link.silence()
        publish()
        replaced(cluster, victim, logs)
        acknowledged_again(drill)
        victim.link.restore()


STRIKES = strike_kill, strike_suspend, strike_cut_off


def test_nothing_is_lost_when_a_node_is_killed_suspended_or_cut_off(
    tmp_path: Path, nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was replaced while it was away acknowledges nothing when it is back."""
    # Publishers go on while a node starts: one subscriber gets all of it in the end.
    monkeypatch.setattr(drills, "SETTLE", 600.0)
    # Wills are published without a delay: the account expects them.
    cluster = Partitioned(tmp_path, nats, "failover_grace = 0\n", drill=True)
    try:
        cluster.start()
        drill = Drill(
            cast("Any", cluster.balancer),
            SEED,
            lambda: closings(cluster.nodes, cluster.starts()),
        )
        drill.start()

        def strike(blow: Callable[[Partitioned, Drill, ClusterNode], None]) -> None:
            victim = cluster.leader(drill.random.randrange(2))
            drill.notes.append(f"{blow.__name__} of node {victim.name}")
            blow(cluster, drill, victim)
            cluster.settle()

        for number in range(max(ROUNDS, len(STRIKES))):
            drill.strike(partial(strike, STRIKES[number % len(STRIKES)]))
        drill.judge()
        done = cluster.command("log", "verify", "--config", str(cluster.nodes[0].config_file))
        assert "log c1-p1: " in done.stdout
    finally:
        cluster.clean_up()
