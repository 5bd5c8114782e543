"""Two nodes on one NATS server: one leads, the other follows and takes over.

Whatever happens to the leader, no acknowledged message is lost, and a replaced leader acknowledges
nothing. Clients connect through a balancer that polls `/readyz`.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from harness import forkserver, packets
from harness.broker import environment, free_port
from harness.certs import Authority
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.foldcluster import ClusterNode, Nodes, closings
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.natscluster import Member, NatsCluster
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import until

from e2e import webclient
from e2e.pasting import run_as_pasted
from e2e.tools import run
from e2e.webclient import web

pytestmark = [pytest.mark.drill, pytest.mark.system, pytest.mark.timeout(300 + 60 * ROUNDS)]

# Wills are published without a delay: the account expects them.
CLUSTER = f"{ACCESS}cluster = 'c1'\nfailover_grace = 0\n"


@pytest.fixture
def nodes(tmp_path: Path, nats: Nats, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Two nodes; those of `make drills` are started as a user starts them, others are forked."""
    forked = ROUNDS < 3 or "fault" not in request.fixturenames
    made = Nodes(tmp_path, [nats.port] * 2, CLUSTER, forked=forked)
    try:
        made.start()
        yield made
    finally:
        made.clean_up()


def command(nats: Nats | Member, *arguments: str) -> str:
    access = ["--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
    code, out, err = forkserver.run([*arguments, *access], environment(), 60)
    assert code == 0, err.decode()
    return out.decode()


def listed(nats: Nats) -> list[dict[str, Any]]:
    """The nodes as `foldmq nodes` lists them."""
    lines = command(nats, "nodes", "--cluster=c1", "--json").splitlines()
    return [json.loads(line) for line in lines]


def starts(nats: Nats | Member) -> list[dict[str, Any]]:
    """The starts of leaders, as the log has them."""
    lines = command(nats, "log", "--node=c1", "--json", "--type=BrokerStarted").splitlines()
    return [json.loads(line) for line in lines]


def cluster_metrics(node: ClusterNode) -> dict[str, float]:
    """Its metrics of a cluster, by what follows `foldmq_cluster_` in their names."""
    address = f"http://127.0.0.1:{node.metrics}/metrics"
    with urllib.request.urlopen(address, timeout=10.0) as answer:
        text = answer.read().decode()
    found = re.findall(r"^foldmq_cluster_(\w+)(?:{.*})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def drill_of(nodes: Nodes, nats: Nats | Member) -> Drill:
    return Drill(cast("Any", nodes.balancer), SEED, lambda: closings(nodes.members, starts(nats)))


def acknowledged_again(drill: Drill) -> None:
    before = drill.account.totals()["acknowledged"]
    until(lambda: drill.account.totals()["acknowledged"] > before + 100, "acknowledgements")


def others(nodes: Nodes, leader: ClusterNode) -> list[ClusterNode]:
    return [one for one in nodes.members if one is not leader]


def replaced(nodes: Nodes, leader: ClusterNode) -> None:
    """Returns when another node takes clients."""
    until(lambda: any(one.leads for one in others(nodes, leader)), "another leader")


def rejoined(node: ClusterNode) -> None:
    until(lambda: node.following, f"a follower:\n{node.log}")


def kill(nodes: Nodes, drill: Drill) -> None:
    leader = nodes.leader
    leader.kill()
    replaced(nodes, leader)
    acknowledged_again(drill)
    leader.start()
    rejoined(leader)


def suspend(nodes: Nodes, drill: Drill) -> None:
    leader = nodes.leader
    leader.pause()
    replaced(nodes, leader)
    acknowledged_again(drill)
    leader.resume()
    rejoined(leader)


def cut_off(nodes: Nodes, drill: Drill) -> None:
    leader = nodes.leader
    leader.link.silence()
    replaced(nodes, leader)
    until(lambda: leader.reasons, "a leader that takes no clients any more")
    acknowledged_again(drill)
    leader.link.restore()
    rejoined(leader)


def stop(nodes: Nodes, drill: Drill) -> None:
    leader = nodes.leader
    leader.stop()
    replaced(nodes, leader)
    acknowledged_again(drill)
    leader.start()
    rejoined(leader)


IN_DRILLS = pytest.mark.skipif(
    ROUNDS < 3, reason="one fault is enough for make test, as is a kill in test_edges.py"
)


@pytest.mark.parametrize(
    "fault",
    [suspend, *(pytest.param(one, marks=IN_DRILLS) for one in (kill, cut_off, stop))],
    ids=lambda one: one.__name__,
)
def test_another_node_takes_over(nodes: Nodes, nats: Nats, fault: Any) -> None:
    drill = drill_of(nodes, nats)
    drill.start()
    count = 1 if ROUNDS < 3 else FEW
    for _ in range(count):
        drill.strike(lambda: fault(nodes, drill))
    drill.judge()
    found = starts(nats)
    assert [one["epoch"] for one in found] == list(range(1, len(found) + 1))
    assert len(found) > count
    assert found[0]["cause"] == "first"


@pytest.mark.slow
def test_a_machine_is_lost(tmp_path: Path) -> None:
    """Three machines: a NATS server and a node on each; the one that leads both is lost."""
    if ROUNDS < 3:
        pytest.skip("one NATS server is enough for make test; make drills has three")
    cluster = NatsCluster(tmp_path / "nats")
    made = Nodes(tmp_path, [one.port for one in cluster.members], CLUSTER)
    try:
        cluster.start()
        made.start()
        drill = drill_of(made, cluster.members[0])
        drill.start()

        def lose() -> None:
            leader = made.leader
            machine = cluster.members[made.members.index(leader)]
            leader.kill()
            machine.kill()
            replaced(made, leader)
            acknowledged_again(drill)
            machine.start()
            cluster.wait_until_healthy()
            leader.start()
            rejoined(leader)

        for _ in range(FEW):
            drill.strike(lose)
        drill.judge()
        for node in made.members:
            node.stop()
        assert cluster.check_replicas("FOLDMQ_LOG_c1") > 50
    finally:
        made.clean_up()
        cluster.close()


def test_nodes_are_listed_with_their_roles(nodes: Nodes, nats: Nats) -> None:
    first, second = nodes.members
    assert second.reasons == [f"following node {first.name}"]
    leading, following = listed(nats)
    assert (leading["node"], leading["role"]) == (first.name, "leading")
    assert (following["node"], following["role"]) == (second.name, "following")
    assert leading["listen"] == [f"127.0.0.1:{first.port}"]
    assert leading["epoch"] == following["epoch"] == 1
    clients = {"edge_clients": 0, "parked_clients": 0}
    assert cluster_metrics(first) == {"leader": 1, "epoch": 1, "behind_records": 0, **clients}
    assert cluster_metrics(second) == {"leader": 0, "epoch": 1, "behind_records": 0, **clients}


def test_a_leader_that_is_cut_off_closes_its_clients_and_acknowledges_nothing(
    nodes: Nodes,
) -> None:
    leader = nodes.leader
    with RawClient(leader.port) as client:
        client.connect("there")
        leader.link.silence()
        client.send(packets.publish("t", b"x", 1, 1))
        with pytest.raises((ConnectionClosedError, OSError)):
            client.receive(30.0)
    until(lambda: leader.reasons, "a leader that takes no clients")
    leader.link.restore()


def test_a_node_with_another_key_is_refused(tmp_path: Path, nats: Nats) -> None:
    keys = []
    for number in range(2):
        keys.append(tmp_path / f"key{number}")
        keys[-1].write_text(f"key number {number} of a cluster\n")
    made = [
        ClusterNode(
            tmp_path / f"n{n}", nats.port, f"{CLUSTER}cluster_key_file = '{key}'\n", forked=True
        )
        for n, key in enumerate(keys)
    ]
    try:
        made[0].start()
        until(lambda: made[0].ready, "a leader")
        line = made[1].refused(75)
        assert line.startswith("cluster c1 on NATS at nats://127.0.0.1:")
        assert "its key is different" in line
        made[1].configure(made[1].config_file.read_text().replace("key1", "key0"))
        made[1].start()
        rejoined(made[1])
    finally:
        for node in made:
            node.clean_up()


def test_a_follower_reports_its_certificates_and_its_reloads(
    tmp_path: Path, nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Authority(tmp_path / "certificates").server(expired=True)
    made = Nodes(tmp_path, [nats.port] * 2, CLUSTER, forked=True)
    access = ["--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
    try:
        second = made.members[1]
        tls = f"tls_cert = '{server.certificate}'\ntls_key = '{server.key}'\n"
        own = second.config_file.read_text()
        tls += f"[[listen]]\naddress = '127.0.0.1:{second.port}'\n"
        tls += f"[[listen]]\naddress = 'mqtts://127.0.0.1:{free_port()}'\n"
        second.configure(own + tls)
        made.start()
        problems = [json.loads(one) for one in run("doctor", *access, "--json", code=1).lines]
        (expired,) = [one for one in problems if one["title"] == "has expired"]
        assert expired["subject"].endswith(f" at node {second.name}")
        assert "--cluster c1 --nats-url" in expired["next"]
        assert second.name in command(nats, "nodes", "--cluster", "c1")
        shown = " ".join(run("status", *access).out.split())
        assert f"node {second.name}: the certificate of tls://127.0.0.1:" in shown
        with urllib.request.urlopen(f"http://127.0.0.1:{second.metrics}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'foldmq_certificate_expiry_timestamp_seconds{listener="tls://127' in metrics
        assert "foldmq_reload_failed 0.0" in metrics
        second.configure(own + "keep_bytes = 1\n" + tls)
        second.hangup()
        until(lambda: f"node {second.name} did not take" in diagnosis(access), "the reload")
        assert f"node {second.name}: settings not reloaded" in run("status", *access).out
        data_dir = made.members[0].data_dir
        monkeypatch.setattr(
            webclient, "environment", lambda: {**environment(), "FOLDMQ_CLUSTER": "c1"}
        )
        with web(data_dir, "--data-dir", str(data_dir), *access) as (page, _):
            page.log_in()
            problems_page = page.good("/problems")
        shown = problems_page.shown
        assert f"node {second.name} did not take its new settings" in shown
        assert f"{expired['subject']} has expired" in shown
        suggested = problems_page.suggested
        assert all("nodes --cluster c1 --nats-url" in one for one in suggested)
        run_as_pasted(suggested, tmp_path, FOLDMQ_NATS_PASSWORD=PASSWORD)
        second.configure(own + tls)
        second.hangup()
        until(lambda: "did not take" not in diagnosis(access), "the reload")
    finally:
        made.clean_up()


def diagnosis(access: list[str]) -> str:
    """The output of ``foldmq doctor``, whatever its exit code."""
    _, out, _ = forkserver.run(["doctor", *access], environment(), 60)
    return out.decode()
