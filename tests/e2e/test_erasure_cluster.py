"""foldmq erase in a cluster: its nodes share a directory with the keys."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import Broker, BrokerFailedError, environment
from harness.fixtures import Clients
from harness.foldcluster import ClusterNode, Nodes
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.packets import Publish, Will
from harness.waiting import until

from e2e.test_erasure import ALICE, ANNA, ERASED, KEPT, PLAIN, TOPICS, names_in, readable_in
from e2e.test_partitioned_cluster import Partitioned, client_in
from e2e.tools import Ran, refused, run

pytestmark = pytest.mark.timeout(300)
AT = ("--nats-url", "{url}", "--nats-user", USER, "--nats-password", PASSWORD, "--node", "c1")


def settings(keys: Path) -> str:
    return (
        f"{ACCESS}cluster = 'c1'\nfailover_grace = 0\npersonal_topics = ['home/+/#']\n"
        "personal_clients = ['phone-*']\npersonal_users = ['änna*']\n"
        f"personal_key_file = '{keys}'\n"
    )


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def nodes(tmp_path: Path, nats: Nats, shared: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "nodes", [nats.port] * 2, settings(shared / "keys"), forked=True)
    try:
        made.start()
        yield made
    finally:
        made.clean_up()


def at(nats: Nats) -> list[str]:
    return [word.format(url=nats.url) for word in AT]


def taken_over(nodes: Nodes, before: ClusterNode) -> None:
    def other_leads() -> bool:
        return any(node.leads for node in nodes.members if node is not before)

    until(other_leads, "another leader")


def run_until_answered(*arguments: str) -> Ran:
    """Run a command again while the leader changes."""
    ran: list[Ran] = []

    def answers() -> bool:
        code, out, err = forkserver.run(arguments, environment(), 90.0)
        ran[:] = [Ran(code, out.decode(), err.decode())]
        return code == 0

    until(answers, "an answer")
    return ran[0]


@pytest.mark.parametrize("struck", ["kill", "stop"])
def test_a_cluster_erases(
    tmp_path: Path, nats: Nats, nodes: Nodes, shared: Path, struck: str
) -> None:
    first = nodes.leader
    retained, queued, last_words, again = (one.encode() for one in ERASED)
    with contextlib.closing(Clients("127.0.0.1", first.port)) as clients:
        reader = clients.connect("panel", clean=False)
        reader.subscribe(("home/#", 1), ("news", 1))
        reader.disconnect()
        phone = clients.connect(ALICE, clean=False, username=ANNA)
        phone.subscribe(("news", 1))
        writer = clients.connect("writer", will=Will(f"{TOPICS}/will", last_words, 1))
        writer.publish(f"{TOPICS}/kept", retained, 1, retain=True)
        writer.publish(f"{TOPICS}/waiting", queued, 1)
        writer.publish(f"{TOPICS}/waiting", again, 1)
        writer.publish("home/bob/kept", KEPT.encode(), 1, retain=True)
        writer.publish("news", PLAIN.encode(), 1)
        writer.receive_all()
    places = [*(node.data_dir for node in nodes.members), nats.folder]
    assert readable_in(*places) == {PLAIN}
    assert names_in(*places, shared) == set()
    getattr(first, struck)()
    taken_over(nodes, first)
    with contextlib.closing(Clients("127.0.0.1", nodes.leader.port)) as clients:
        fresh = clients.connect("fresh")
        fresh.subscribe(("home/#", 1))
        texts: set[str] = set()

        def all_came() -> bool:
            packets = fresh.receive_all()
            texts.update(one.payload.decode() for one in packets if isinstance(one, Publish))
            return texts >= {KEPT, ERASED[0]}

        until(all_came, "retained messages, opened by the next leader")
    erased = run_until_answered("erase", "--topic", "home/alice/#", "--yes", *at(nats))
    assert "erased: " in erased.out
    assert "erased: client ~" in run("erase", "--client", ALICE, "--yes", *at(nats)).out
    assert "erased: user ~" in run("erase", "--user", ANNA, "--yes", *at(nats)).out
    first.start()
    until(lambda: first.following, f"a follower:\n{first.log}")
    second = nodes.leader
    getattr(second, struck)()
    taken_over(nodes, second)
    listed = run_until_answered("erase", "--list", "--json", *at(nats)).out.splitlines()
    assert [json.loads(line)["done"] is not None for line in listed] == [True] * 3
    with contextlib.closing(Clients("127.0.0.1", first.port)) as clients:
        reader = clients.connect("panel", clean=False, session_present=True)
        assert reader.expect_publish("home/bob/kept", KEPT.encode(), 1)
        assert reader.expect_publish("news", PLAIN.encode(), 1)
        clients.connect(ALICE, clean=False, username=ANNA, session_present=False)
    assert "intact" in run("log", "verify", *at(nats)).out
    assert "kept:" in run("audit", *at(nats)).out
    second.start()
    until(lambda: second.following, f"a follower:\n{second.log}")
    run("backup", str(tmp_path / "backup"), *at(nats))
    for node in nodes.members:
        node.stop()
    assert readable_in(*places, shared, tmp_path / "backup") == {PLAIN}
    assert names_in(*places, shared, tmp_path / "backup") == set()
    for text in (*ERASED, KEPT, ALICE, ANNA):
        assert not any(text in node.log for node in nodes.members)
    checked = run(
        "erase", "--check", ERASED[1], "--in", str(tmp_path / "backup"), *at(nats), code=74
    )
    assert "found nowhere that was searched" in checked.out
    goes_on_alone(tmp_path / "alone", tmp_path / "backup", shared / "keys")


def goes_on_alone(place: Path, backup: Path, keys: Path) -> None:
    """Check a single broker with a cluster's log, and with a copy of the keys as another node."""
    copied = keys.with_name("copied")
    files = ("--personal-key-file", str(keys), "--new-personal-key-file", str(copied))
    for path, more in ((keys, ()), (copied, ("--new-node", *files))):
        folder = place / path.name
        folder.mkdir(parents=True)
        own = ["--personal-topics", "home/+/#", "--personal-clients", "phone-*"]
        own += ["--personal-users", "änna*", "--personal-key-file", str(path)]
        alone = Broker(folder, args=own, forked=True)
        run("restore", str(backup), "--data-dir", str(alone.data_dir), *more)
        for _ in range(2):
            with alone:
                there = ("--data-dir", str(alone.data_dir))
                assert KEPT in run("retained", "get", "home/bob/kept", *there).out
                with contextlib.closing(Clients("127.0.0.1", alone.port)) as clients:
                    writer = clients.connect(ALICE)
                    writer.publish(f"{TOPICS}/kept", ERASED[0].encode(), 1, retain=True)
                    writer.receive_all()
                assert ERASED[0] in run("retained", "get", f"{TOPICS}/kept", *there).out
                assert "erased" in run("erase", "--topic", "home/alice/#", "--yes", *there).out


def test_a_node_that_does_not_share_the_keys_says_so(
    tmp_path: Path, nats: Nats, shared: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    nodes = Nodes(tmp_path / "nodes", [nats.port], settings(shared / "keys"), forked=True)
    other = ClusterNode(tmp_path / "other", nats.port, settings(own / "keys"), forked=True)
    lost = ClusterNode(
        tmp_path / "lost", nats.port, settings(tmp_path / "none" / "keys"), forked=True
    )
    try:
        nodes.start()
        other.start()
        said = "the leader's keys are not in the directory of personal_key_file"
        until(lambda: other.told(said), "an error")
        with pytest.raises(BrokerFailedError, match="exit 78") as ended:
            lost.start()
        assert "on a file system that all nodes of the cluster share" in str(ended.value)
    finally:
        nodes.clean_up()
        other.clean_up()
        lost.clean_up()


@pytest.mark.timeout(600)
def test_a_cluster_with_several_logs_erases(tmp_path: Path, nats: Nats, shared: Path) -> None:
    """A node is killed; a log without a leader erases a name when it has one again."""
    more = settings(shared / "keys").partition("failover_grace")
    cluster = Partitioned(tmp_path, nats, more[1] + more[2])
    phones = [client_in(log, ALICE) for log in range(2)]
    try:
        cluster.start()
        port = cluster.nodes[0].port
        with contextlib.closing(Clients("127.0.0.1", port)) as clients:
            for log in range(2):
                reader = clients.connect(client_in(log, "reader"), clean=False)
                reader.subscribe(("home/#", 1))
                reader.disconnect()
                clients.connect(phones[log], clean=False, username=ANNA)
            writer = clients.connect("writer")
            writer.publish(f"{TOPICS}/kept", ERASED[0].encode(), 1, retain=True)
            writer.publish("home/bob/kept", KEPT.encode(), 1, retain=True)
            writer.publish("news", PLAIN.encode(), 1)
            writer.receive_all()
        access = ["--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
        whole = ["--config", str(cluster.nodes[0].config_file)]
        one_log = refused("erase", "--user", ANNA, "--yes", *access, "--node", "c1-p0", code=2)
        assert "the broker has 2 logs, which all have names" in one_log
        assert "in all logs" in run("erase", "--topic", "home/alice/#", "--yes", *whole).out
        cluster.kill(cluster.nodes[1])
        erased = run_until_answered("erase", "--user", ANNA, "--yes", *whole)
        assert "erased in c1-p" in erased.out

        def no_token() -> bool:
            words = ["erase", "--user", ANNA, "--yes", *whole]
            return "has no token" in forkserver.run(words, environment(), 90.0)[2].decode()

        until(no_token, "both logs")
        run_until_answered("erase", "--client", phones[1], "--yes", *whole)
        cluster.start_again()
        listed = run_until_answered("erase", "--list", "--json", *whole).out.splitlines()
        rows = [json.loads(line) for line in listed]
        assert {row["log"] for row in rows} == {"c1-p0", "c1-p1"}
        assert all(row["done"] for row in rows)
        with contextlib.closing(Clients("127.0.0.1", port)) as clients:
            for log in range(2):
                name = client_in(log, "reader")
                reader = clients.connect(name, clean=False, session_present=True)
                assert reader.expect_publish("home/bob/kept", KEPT.encode(), 1)
        for log in range(2):
            one = [*access, "--node", f"c1-p{log}"]
            assert "intact" in run("log", "verify", *one).out
            run("backup", str(tmp_path / f"backup-{log}"), *one)
        assert "kept:" in run("audit", *whole).out
        for node in cluster.nodes:
            node.stop()
        places = [*(node.data_dir for node in cluster.nodes), nats.folder, shared]
        places += [tmp_path / "backup-0", tmp_path / "backup-1"]
        assert readable_in(*places) == {PLAIN}
        assert names_in(*places, names=(ALICE, ANNA)) == set()
        for text in (ERASED[0], KEPT, ALICE, ANNA):
            assert not any(text in node.log for node in cluster.nodes)
    finally:
        cluster.clean_up()
