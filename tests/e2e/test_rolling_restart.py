"""The nodes of a cluster are restarted one after the other, as docs/cluster.md says.

With FOLDMQ_DRILL_FROM, the path of another version's ``foldmq``, the nodes begin with that version,
are upgraded, and then return to it.
"""

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from harness import forkserver
from harness.broker import environment
from harness.drill import ROUNDS, SEED, Drill
from harness.foldcluster import ClusterNode, Nodes, closings
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.system, pytest.mark.timeout(900)]

OTHER = os.environ.get("FOLDMQ_DRILL_FROM")
"""The command of another version."""
NODES = 2 if ROUNDS < 3 and not OTHER else 3
LEFT = 100
"""Records that a node may be behind while clients publish."""


def command(nats: Nats, *arguments: str) -> subprocess.CompletedProcess[str]:
    access = ["--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
    code, out, err = forkserver.run([*arguments, *access], environment(), 120)
    return subprocess.CompletedProcess(arguments, code, out.decode(), err.decode())


def printed(nats: Nats, *arguments: str) -> str:
    done = command(nats, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def starts(nats: Nats) -> list[dict[str, Any]]:
    """The starts of leaders, as the log has them."""
    text = printed(nats, "log", "--node=c1", "--json", "--type=BrokerStarted")
    return [json.loads(line) for line in text.splitlines()]


def caught_up(nats: Nats, node: ClusterNode) -> bool:
    """Whether a node follows and is not behind."""
    rows = map(json.loads, printed(nats, "nodes", "--cluster=c1", "--json").splitlines())
    return any(
        (row["node"], row["role"]) == (node.name, "following") and row["behind"] < LEFT
        for row in rows
    )


def restart(nats: Nats, node: ClusterNode, program: str | None) -> None:
    node.stop()
    node.program = program
    node.start()
    until(lambda: node.following, f"a follower:\n{node.log}")
    until(lambda: caught_up(nats, node), "a follower that has caught up", pause=0.25)


def move(nats: Nats, leader: ClusterNode, other: ClusterNode) -> None:
    said: list[str] = []

    def moved() -> bool:
        """The leader learns from the other node's next status that it follows."""
        done = command(nats, "nodes", "move", other.name, "--cluster=c1")
        said[:] = [done.stdout or done.stderr]
        return not done.returncode

    until(moved, "a move")
    assert said[0].startswith(f"node {other.name} (")
    until(lambda: leader.following and other.leads, "the other leader")


def test_nothing_is_lost_when_the_nodes_are_restarted_one_after_the_other(
    tmp_path: Path, nats: Nats
) -> None:
    key = tmp_path / "key"
    key.write_text("the key of this cluster\n")
    # Wills are published without a delay: the account expects them.
    config = (
        f"{ACCESS}cluster = 'c1'\ncluster_listen = '127.0.0.1:0'\n"
        f"cluster_key_file = '{key}'\nfailover_grace = 0\n"
    )
    forked = ROUNDS < 3 and not OTHER
    nodes = Nodes(tmp_path, [nats.port] * NODES, config, spread=True, forked=forked)
    for node in nodes.members:
        node.program = OTHER
    try:
        nodes.start()
        drill = Drill(
            cast("Any", nodes.balancer), SEED, lambda: closings(nodes.members, starts(nats))
        )
        drill.start()
        for program in (None, OTHER) if OTHER else (None,):
            leader = nodes.leader
            others = [node for node in nodes.members if node is not leader]
            for node in others:
                drill.strike(partial(restart, nats, node, program))
            drill.strike(partial(move, nats, leader, others[0]))
            drill.strike(partial(restart, nats, leader, program))
        drill.judge()
        causes = [one["cause"] for one in starts(nats)]
        assert causes == ["first", *["stopped"] * (2 if OTHER else 1)]
        assert "intact" in printed(nats, "log", "verify", "--node=c1")
        assert "equal" in printed(nats, "verify", "--node=c1")
    finally:
        nodes.clean_up()
        for node in nodes.members:
            print(f"{node.directory}:\n{node.log[-6000:]}")  # shown if the test failed
