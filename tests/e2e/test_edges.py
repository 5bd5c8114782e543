"""Clients of any node: a node that follows passes them on, and lets them wait for a leader."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import paho.mqtt.client as paho
import pytest
from harness import forkserver, packets
from harness.broker import environment, free_port, stand_still
from harness.certs import Authority
from harness.drill import FEW, ROUNDS, SEED, Drill
from harness.foldcluster import ClusterNode, Nodes, closings
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.packets import Connack, Puback, Publish, Will
from harness.rawclient import ConnectionClosedError, RawClient
from harness.waiting import TIMEOUT, until

from cluster.client_header import MAGIC, NONCE_SIZE, ForwardedClient, encode_client

pytestmark = [pytest.mark.drill, pytest.mark.system, pytest.mark.timeout(300 + 60 * ROUNDS)]

EDGES = f"{ACCESS}cluster = 'c1'\ncluster_listen = '127.0.0.1:0'\n"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("the key of this cluster\n")
    return file


def cluster_of(tmp_path: Path, nats: Nats, config: str, *, drill: bool = False) -> Nodes:
    """Two nodes; those of `make drills` are started as a user starts them, others are forked."""
    forked = ROUNDS < 3 or not drill
    return Nodes(tmp_path, [nats.port] * 2, f"{EDGES}{config}", spread=drill, forked=forked)


@pytest.fixture
def nodes(tmp_path: Path, nats: Nats, key: Path) -> Iterator[Nodes]:
    made = cluster_of(tmp_path, nats, f"cluster_key_file = '{key}'\n")
    try:
        made.start()
        yield made
    finally:
        made.clean_up()


def command(nats: Nats, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    access = ["--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
    code, out, err = forkserver.run([*arguments, *access], environment(), 60)
    assert code == 0 or not check, err.decode()
    return subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())


def logged(nats: Nats, kind: str) -> list[dict[str, Any]]:
    """The events of a type in the cluster's log."""
    lines = command(nats, "log", "--node=c1", "--json", f"--type={kind}").stdout.splitlines()
    return [json.loads(line) for line in lines]


def listed(nats: Nats) -> dict[str, dict[str, Any]]:
    """The nodes as `foldmq nodes` lists them, by name."""
    lines = command(nats, "nodes", "--cluster=c1", "--json").stdout.splitlines()
    return {row["node"]: row for row in map(json.loads, lines)}


def exchange(publisher: RawClient, subscriber: RawClient, payload: bytes) -> None:
    """Publish at QoS 1 and expect the acknowledgement, and the message elsewhere."""
    publisher.send(packets.publish("t/x", payload, 1, 7))
    assert isinstance(publisher.receive(TIMEOUT), Puback)
    found = subscriber.receive(TIMEOUT)
    assert isinstance(found, Publish)
    assert found.payload == payload


def test_clients_of_all_nodes_reach_each_other_and_their_node_is_recorded(
    nodes: Nodes, nats: Nats
) -> None:
    first, second = nodes.members
    with RawClient(first.port) as here, RawClient(second.port) as there:
        assert here.connect("here").code == there.connect("there").code == 0
        for client in (here, there):
            client.send(packets.subscribe(1, ("t/#", 1)))
            client.receive(TIMEOUT)
        there.send(packets.publish("t/x", b"1", 1, 7))
        found = [here.receive(TIMEOUT), there.receive(TIMEOUT), there.receive(TIMEOUT)]
        assert {type(one) for one in found} == {Publish, Puback}
        here.send(packets.publish("t/y", b"x" * 300_000, 0))
        got = there.receive(TIMEOUT)
        assert isinstance(got, Publish)
        assert len(got.payload) == 300_000
        rows = listed(nats)
        assert rows[first.name]["clients"] == 2
        assert rows[second.name]["clients"] == 1
        assert rows[second.name]["listen"] == [f"127.0.0.1:{second.port}"]
        assert second.state == {
            "ready": True,
            "reasons": [],
            "node": second.name,
            "role": "following",
            "leader": first.name,
        }
        port = there.socket.getsockname()[1]
        page = command(nats, "sessions", "show", "there", "--node=c1").stdout
        assert f"from 127.0.0.1:{port} via node {second.name} (" in page
        assert "leads in epoch 1" in command(nats, "status", "--node=c1").stdout
    opened = {one["session"]: one for one in logged(nats, "SessionOpened")}
    assert opened["there"]["via"] == second.name
    assert opened["there"]["address"] == f"127.0.0.1:{port}"
    assert not opened["here"].get("via")


def test_one_client_identifier_at_two_nodes(nodes: Nodes, nats: Nats) -> None:
    first, second = nodes.members
    with RawClient(second.port) as old, RawClient(first.port) as new:
        assert old.connect("same", clean=False).code == 0
        assert new.connect("same", clean=False).code == 0
        with pytest.raises((ConnectionClosedError, OSError)):
            old.receive(TIMEOUT)
    assert [one["session"] for one in logged(nats, "SessionTakenOver")] == ["same"]


def strike_kill(nodes: Nodes, nats: Nats) -> None:
    leader = nodes.leader
    leader.kill()
    until(lambda: any(one.leads for one in nodes.members if one is not leader), "another leader")
    leader.start()
    until(lambda: leader.following, f"a follower:\n{leader.log}")


def strike_kill_edge(nodes: Nodes, nats: Nats) -> None:
    leader = nodes.leader
    (edge,) = (one for one in nodes.members if one is not leader)
    edge.kill()
    edge.start()
    until(lambda: edge.following, f"a follower:\n{edge.log}")


def strike_suspend(nodes: Nodes, nats: Nats) -> None:
    leader = nodes.leader
    leader.pause()
    until(lambda: any(one.leads for one in nodes.members if one is not leader), "another leader")
    leader.resume()
    until(lambda: leader.following, f"a follower:\n{leader.log}")


def strike_move(nodes: Nodes, nats: Nats) -> None:
    leader = nodes.leader
    (other,) = (one for one in nodes.members if one is not leader)
    said: list[str] = []

    def moved() -> bool:
        """The leader learns from the other node's next status that it follows."""
        done = command(nats, "nodes", "move", other.name, "--cluster=c1", check=False)
        said[:] = [done.stdout or done.stderr]
        return not done.returncode

    until(moved, "a move")
    assert said[0].startswith(f"node {other.name} (")
    until(lambda: leader.following and other.leads, "the other leader")


def strike_stop(nodes: Nodes, nats: Nats) -> None:
    leader = nodes.leader
    leader.stop()
    until(lambda: any(one.leads for one in nodes.members if one is not leader), "another leader")
    leader.start()
    until(lambda: leader.following, f"a follower:\n{leader.log}")


@pytest.mark.parametrize(
    "fault",
    [strike_kill, strike_move, strike_kill_edge, strike_suspend, strike_stop],
    ids=lambda one: one.__name__.removeprefix("strike_"),
)
def test_no_message_of_a_client_of_any_node_is_lost(
    tmp_path: Path, nats: Nats, key: Path, fault: Any
) -> None:
    if ROUNDS < 3 and fault not in (strike_kill, strike_move):
        pytest.skip("two faults are enough for make test; make drills has all")
    # Wills are published without a delay: the account expects them.
    config = f"cluster_key_file = '{key}'\nfailover_grace = 0\n"
    nodes = cluster_of(tmp_path, nats, config, drill=True)
    try:
        nodes.start()
        drill = Drill(
            cast("Any", nodes.balancer),
            SEED,
            lambda: closings(nodes.members, logged(nats, "BrokerStarted")),
        )
        drill.start()
        for _ in range(1 if ROUNDS < 3 else FEW):
            drill.strike(lambda: fault(nodes, nats))
            before = drill.account.totals()["acknowledged"]
            until(
                lambda before=before: drill.account.totals()["acknowledged"] > before + 100,  # type: ignore[misc]
                "acknowledgements",
            )
        drill.judge()
        through = {one.get("via", "") for one in logged(nats, "SessionOpened")}
        assert through & {one.name for one in nodes.members}, "no client came through an edge"
    finally:
        nodes.clean_up()


def test_a_hand_over_is_in_the_log_and_refused_where_it_cannot_be(nodes: Nodes, nats: Nats) -> None:
    first, second = nodes.members
    for wanted, reason in (
        ("elsewhere", "node elsewhere does not follow this leader"),
        (first.name, f"node {first.name} leads already"),
    ):
        refused = command(nats, "nodes", "move", wanted, "--cluster=c1", check=False)
        assert refused.returncode == 1
        assert refused.stderr == f"foldmq: {reason}\n"
    with (
        RawClient(first.port) as silent,
        RawClient(first.port) as here,
        RawClient(second.port) as there,
    ):
        assert here.connect("here").code == there.connect("there").code == 0
        strike_move(nodes, nats)
        for client in (here, there):
            with pytest.raises((ConnectionClosedError, OSError)):
                client.receive(TIMEOUT)
        # A client that has sent nothing yet notices nothing of the restart of its node.
        assert silent.connect("silent").code == 0
    # Both accept clients: the previous leader continues to listen.
    for node in (first, second):
        with RawClient(node.port) as client:
            assert client.connect("c").code == 0
    said = [json.loads(line) for line in first.log.splitlines() if "restarting to follow" in line]
    assert [one["level"] for one in said] == ["info"]
    (stopped,) = logged(nats, "BrokerStopped")
    assert stopped["to"] == second.name
    assert [one["cause"] for one in logged(nats, "BrokerStarted")] == ["first", "stopped"]


def test_a_client_that_connects_without_a_leader_waits_and_is_served(
    nodes: Nodes, nats: Nats
) -> None:
    first, second = nodes.members
    assert nats.process is not None
    # Without NATS no node can take over.
    stand_still(nats.pid)
    first.kill()
    with RawClient(second.port) as client:
        client.send(packets.connect("parked", clean=False))
        client.send(packets.publish("t", b"early", 1, 9))
        with pytest.raises(TimeoutError):
            client.receive(1.0)
        assert second.ready
        os.kill(nats.pid, signal.SIGCONT)
        connack = client.receive(TIMEOUT)
        assert isinstance(connack, Connack)
        assert connack.code == 0
        assert isinstance(client.receive(TIMEOUT), Puback)


def test_a_client_waits_no_longer_than_its_connect_timeout(
    tmp_path: Path, nats: Nats, key: Path
) -> None:
    nodes = cluster_of(tmp_path, nats, f"cluster_key_file = '{key}'\nconnect_timeout = 2\n")
    try:
        nodes.start()
        first, second = nodes.members
        stand_still(nats.pid)
        first.kill()
        with RawClient(second.port) as client:
            client.send(packets.connect("parked"))
            with pytest.raises((ConnectionClosedError, OSError)):
                client.receive(TIMEOUT)
        os.kill(nats.pid, signal.SIGCONT)
        until(lambda: second.told("not connected in time"), f"a line:\n{second.log}")
    finally:
        os.kill(nats.pid, signal.SIGCONT)
        nodes.clean_up()


def test_wills_wait_for_their_clients_when_the_leader_dies(
    tmp_path: Path, nats: Nats, key: Path
) -> None:
    nodes = cluster_of(tmp_path, nats, f"cluster_key_file = '{key}'\nfailover_grace = 3\n")
    try:
        nodes.start()
        first, second = nodes.members
        gone = RawClient(second.port)
        back = RawClient(second.port)
        fresh = RawClient(first.port)
        gone.connect("gone", clean=False, will=Will("will/gone", b"gone", 1))
        back.connect("back", clean=False, will=Will("will/back", b"back", 1))
        fresh.connect("fresh", clean=True, will=Will("will/fresh", b"fresh", 1))
        first.kill()
        with RawClient(second.port) as watcher:
            watcher.connect("watcher")
            watcher.send(packets.subscribe(1, ("will/#", 1)))
            watcher.receive(TIMEOUT)
            with RawClient(second.port) as again, RawClient(second.port) as anew:
                assert again.connect("back", clean=False).code == 0
                assert anew.connect("fresh", clean=True).code == 0
                until(lambda: second.leads, "the other leader")
                found = watcher.receive(TIMEOUT)
                assert isinstance(found, Publish)
                assert found.topic == "will/gone"
                again.disconnect()
                anew.disconnect()
            with pytest.raises(TimeoutError):
                watcher.receive(0.5)
        assert {one["session"] for one in logged(nats, "WillCancelled")} >= {"back", "fresh"}
        ended = [one for one in logged(nats, "SessionClosed") if one["session"] == "gone"]
        assert [one.get("grace") for one in ended] == [3]
        story = command(nats, "log", "--node=c1", "--session=gone").stdout
        assert "its will waits 3 s" in story
        assert "will fired" in story
    finally:
        nodes.clean_up()


@pytest.mark.parametrize("how", [pytest.param("key", marks=pytest.mark.long), "certificates"])
def test_tls_websocket_and_certificates_through_a_node_that_follows(
    tmp_path: Path, nats: Nats, key: Path, how: str
) -> None:
    """The leader has plain TCP only; the options of the other node's listeners count there."""
    authority = Authority(tmp_path / "authority")
    server, node = authority.server(), authority.node("node")
    between = (
        f"cluster_key_file = '{key}'\n"
        if how == "key"
        else f"cluster_tls_cert = '{node.certificate}'\ncluster_tls_key = '{node.key}'\n"
        f"cluster_tls_ca = '{authority.file}'\n"
    )
    nodes = cluster_of(tmp_path, nats, between)
    first, second = nodes.members
    tls, wss = free_port(), free_port()
    path = tmp_path / "s"
    second.configure(
        f"{second.config_file.read_text()}tls_cert = '{server.certificate}'\n"
        f"tls_key = '{server.key}'\n"
        f"[[listen]]\naddress = '127.0.0.1:{second.port}'\n"
        f"[[listen]]\naddress = 'tls://127.0.0.1:{tls}'\ntls_client_certs = 'required'\n"
        f"tls_client_ca = '{authority.file}'\ntls_identity = 'cn'\nallow_anonymous = false\n"
        f"[[listen]]\naddress = 'wss://127.0.0.1:{wss}'\n"
        f"[[listen]]\naddress = 'unix:{path}'\n"
    )
    try:
        nodes.start()
        pump = authority.client("pump-7")
        found = {}
        for name, transport, context in (
            ("tls", "tcp", authority.client_context(pump)),
            ("wss", "websockets", authority.client_context()),
            ("unix", "unix", None),
        ):
            client = paho.Client(
                paho.CallbackAPIVersion.VERSION2, name, transport=cast("Any", transport)
            )
            if context is not None:
                client.tls_set_context(context)
            if transport == "websockets":
                client.ws_set_options(path="/mqtt")
            if name == "unix":
                client.connect(str(path))
            else:
                client.connect("localhost", {"tls": tls, "wss": wss}[name])
            client.loop_start()
            info = client.publish("t", b"x" * 500_000, 1)
            info.wait_for_publish(TIMEOUT)
            assert info.is_published(), name
            rows = command(nats, "sessions", "show", name, "--node=c1", "--json")
            found[name] = json.loads(rows.stdout)["connection"]
            client.disconnect()
            client.loop_stop()
        assert found["tls"]["user"] == "pump-7"
        assert found["tls"]["tls"].startswith("TLSv1")
        assert found["wss"]["user"] is None
        assert found["unix"]["address"].startswith("unix:uid=")
        assert {one["via"] for one in found.values()} == {second.name}
        assert "connection to cluster_listen refused" not in first.log
    finally:
        nodes.clean_up()


def peers_of(nodes: Nodes, nats: Nats) -> int:
    """The port at which the leader accepts the connections of other nodes."""
    return int(listed(nats)[nodes.leader.name]["peers"].rpartition(":")[2])


def test_connections_without_the_key_get_nothing_from_the_listener_for_nodes(
    nodes: Nodes, nats: Nats
) -> None:
    port = peers_of(nodes, nats)
    greetings = set()
    for header in (
        lambda _nonce: packets.connect("c"),
        lambda nonce: encode_client(ForwardedClient(None, "n", "l"), nonce, b"another key"),
        lambda _nonce: encode_client(
            ForwardedClient(None, "n", "l"), bytes(NONCE_SIZE), b"the key of this cluster"
        ),
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as peer:
            greeting = peer.recv(len(MAGIC) + NONCE_SIZE, socket.MSG_WAITALL)
            greetings.add(greeting)
            peer.sendall(header(greeting[len(MAGIC) :]) + packets.connect("c"))
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
    assert len(greetings) == 3, "a nonce was used twice"
    until(lambda: nodes.leader.told("connection to cluster_listen refused"), "a line")


def test_connections_with_the_key_are_accepted(nodes: Nodes, nats: Nats) -> None:
    """The counterpart of the test above: it is the key that was missing there."""
    with socket.create_connection(("127.0.0.1", peers_of(nodes, nats)), timeout=TIMEOUT) as peer:
        greeting = peer.recv(len(MAGIC) + NONCE_SIZE, socket.MSG_WAITALL)
        client = ForwardedClient(("192.0.2.9", 5), "n", "l", anonymous=True)
        nonce = greeting[len(MAGIC) :]
        peer.sendall(encode_client(client, nonce, b"the key of this cluster"))
        assert peer.recv(1) == b"\x01"
        peer.sendall(packets.connect("c"))
        assert peer.recv(4, socket.MSG_WAITALL) == b"\x20\x02\x00\x00"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            "cluster_listen = '0.0.0.0:7883'\ncluster_advertise = '127.0.0.1:7883'\n",
            (
                "cluster_listen = 0.0.0.0:7883 can be reached from other machines: set "
                "cluster_key_file, or cluster_tls_cert, cluster_tls_key and cluster_tls_ca"
            ),
        ),
        ("cluster_advertise = '127.0.0.1:1'\n", "cluster_advertise also needs cluster_listen"),
        (
            "cluster_listen = '127.0.0.1:0'\ncluster_tls_cert = '/nowhere'\n",
            "cluster_tls_cert, cluster_tls_key and cluster_tls_ca are needed together",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, nats: Nats, config: str, line: str
) -> None:
    node = ClusterNode(tmp_path / "n", nats.port, f"{ACCESS}cluster = 'c1'\n{config}")
    try:
        assert node.refused(78) == line
    finally:
        node.clean_up()
