"""Whether a leader is steady: then it may hand over an idle log."""

from types import SimpleNamespace
from typing import Any

from cluster.leader import Leader
from cluster.members import Members
from cluster.status import STATUS_EVERY, NodeStatus, Role


def test_a_leader_is_steady_only_some_seconds_after_an_outage() -> None:
    now = 0.0
    clock: Any = SimpleNamespace(monotonic=lambda: now, time_ms=lambda: 0)
    messages: Any = SimpleNamespace(is_connected=True)
    broker: Any = SimpleNamespace(stored=(1, b""), clients=0, prove=lambda _epoch: 1)
    me = NodeStatus("me", Role.LEADING, 1, 1, "", 0)
    leader = Leader(messages, Members("me", lambda: 0), clock, me, 1, broker)

    def steady_after(seconds: float) -> bool:
        nonlocal now
        end = now + seconds
        while now < end:
            now += STATUS_EVERY
            leader.look()
        return leader.steady

    assert not steady_after(20)  # it does not serve yet
    leader.listen = ["a:1"]
    assert steady_after(0.2)
    messages.is_connected = False
    assert not steady_after(0.2)
    messages.is_connected = True
    assert not steady_after(2)
    assert steady_after(20)
