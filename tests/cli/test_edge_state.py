"""What the main process of a node with several logs says of them, and how it hears of leaders."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from simulation.world import simulate

from cli.serve.partitioned_node import EdgeState
from cluster.status import NodeStatus, Role


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
