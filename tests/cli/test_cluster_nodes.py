"""Nodes of a cluster: handing over, passing on clients, and their list."""

import asyncio
import signal
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from simulation.world import simulate

from actors.kernel.clock import SystemClock
from cli.commands.node_list import cluster_access, rows
from cli.logs.source_flags import SourceFlags
from cli.serve.cluster_member import ClusterMember
from cli.serve.log_store import Store
from cli.serve.partitioned_node import EdgeState
from cli.serve.service import Service
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from cluster.status import NodeStatus, Role
from eventstore.errors import UsageError


def _member() -> ClusterMember:
    """A member with two other nodes that follow."""
    settings = Settings(cluster="c", nats_url="nats://127.0.0.1:1")
    store = cast("Store", SimpleNamespace(client=None))
    made = ClusterMember(settings, store, "c", "a", SystemClock())
    for node in ("b", "d"):
        status = NodeStatus(node, Role.FOLLOWING, 1, 3, "", 0)
        made._members.heard(status, made._clock.monotonic(), made._me)
    return made


def test_a_node_hands_over_to_one_node_only() -> None:
    member = _member()
    moved: list[str] = []
    member.on_move = moved.append
    answers: list[dict[str, Any]] = [
        orjson.loads(member._asked_to_move(wanted)) for wanted in (b"b", b"d", b"")
    ]
    assert answers[0] == {"to": "b", "from": "a"}
    assert answers[1] == answers[2] == {"error": "this node hands over to node b already"}
    assert moved == ["b"]


def test_a_node_that_is_stopped_while_it_hands_over_does_not_follow() -> None:
    settings = Settings()
    service = Service(settings, lambda: settings)
    service._on_move("b")
    assert service._restarts
    service._on_stop_signal(signal.SIGTERM)
    assert not service._restarts


class Edge:
    """The links of an edge to the leaders of two logs."""

    def __init__(self) -> None:
        self.links = [SimpleNamespace(number=number, leader=None) for number in range(2)]

    def heard(self, status: NodeStatus, log: int) -> None:
        if status.role is Role.LEADING:
            self.links[log].leader = status


class Server:
    """Counts the missing answers that are reported to it."""

    def __init__(self) -> None:
        self.missing = 0

    def answered(self) -> None:
        self.missing = 0

    async def unanswered(self) -> None:
        self.missing += 1


def status(node: str, role: Role, problem: str = "") -> bytes:
    return NodeStatus(node, role, 1, 5, "", 0, problem=problem).encode()


async def told(state: EdgeState, seconds: float, *statuses: tuple[int, bytes]) -> None:
    for _ in range(round(seconds / 0.5)):
        for log, data in statuses:
            state.take(log, data)
        await asyncio.sleep(0.5)


def scenario(body: Any) -> Coroutine[Any, Any, None]:
    async def run() -> None:
        state: EdgeState = EdgeState(Edge(), "a")  # type: ignore[arg-type]
        server: Any = Server()
        watching = asyncio.create_task(state.watch(server))
        await body(state, server)
        watching.cancel()

    return run()


def test_the_node_says_that_a_process_does_not_follow() -> None:
    async def body(state: EdgeState, _server: Server) -> None:
        leading = [(0, status("b-p0", Role.LEADING)), (1, status("a-p1", Role.LEADING))]
        follows = (0, status("a-p0", Role.FOLLOWING))
        await told(state, 5, *leading, follows)
        assert state.state == {
            "node": "a",
            "role": "edge",
            "leader_0": "b-p0",
            "leader_1": "a-p1",
        }
        await told(state, 5, *leading, (0, status("a-p0", Role.FOLLOWING, "no answer")))
        assert state.state["problem_0"] == "no answer"
        await told(state, 5, *leading, follows)
        await told(state, 50, *leading)
        assert state.state["problem_0"].startswith("its process was not heard over NATS for 5")
        assert "problem_1" not in state.state

    simulate(lambda: scenario(body))


def test_the_nats_server_is_watched_while_a_leader_is_not_heard() -> None:
    async def body(state: EdgeState, server: Server) -> None:
        first, second = (0, status("b-p0", Role.LEADING)), (1, status("c-p1", Role.LEADING))
        await told(state, 10, first, second)
        assert server.missing == 0
        await told(state, 10, first, (1, status("c-p1", Role.FOLLOWING)))
        assert server.missing > 3
        await told(state, 2, first, second)
        assert server.missing == 0

    simulate(lambda: scenario(body))


_HERE = SourceFlags({"nats_url": "nats://127.0.0.1:1"})


@pytest.mark.parametrize("name", ["*", "a.b", "a b", ">", "x" * 33])
def test_a_name_that_no_cluster_can_have(name: str) -> None:
    """As a part of a subject it would ask other clusters, or none."""
    with pytest.raises(ConfigError, match="must be a name of letters, digits, - and _"):
        cluster_access(_HERE, name)


def test_the_clock_of_a_node_is_compared_with_the_time_of_the_question() -> None:
    status = NodeStatus(
        node="n", role=Role.LEADING, epoch=1, sequence=3, link="", time_ms=5_000, host="h", pid=1,
        version="1", users="", permissions="",
    )  # fmt: skip
    (row,) = rows([status], asked_ms=4_000)
    assert (row["clock_off_ms"], row["behind"]) == (1_000, 0)


def test_a_cluster_and_its_server_are_needed() -> None:
    name, access = cluster_access(_HERE, "plant")
    assert (name, access.urls) == ("plant", ("nats://127.0.0.1:1",))
    for flags, cluster in ((_HERE, None), (SourceFlags(), "plant")):
        with pytest.raises(UsageError, match="give the cluster and its NATS server"):
            cluster_access(flags, cluster)
