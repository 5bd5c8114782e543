"""What a leader does about requests to hand over."""

import signal
from types import SimpleNamespace
from typing import Any, cast

import orjson

from actors.kernel.clock import SystemClock
from cli.serve.cluster_member import ClusterMember
from cli.serve.log_store import Store
from cli.serve.service import Service
from cli.settings.settings import Settings
from cluster.status import NodeStatus, Role


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
