"""Whether a leader is steady: then it may hand over an idle log. The format that it writes."""

from types import SimpleNamespace
from typing import Any

from cluster.leader import Leader
from cluster.members import Members
from cluster.status import STATUS_EVERY, NodeStatus, Role


def test_a_leader_is_steady_only_some_seconds_after_an_outage() -> None:
    now = 0.0
    clock: Any = SimpleNamespace(monotonic=lambda: now, time_ms=lambda: 0)
    messages: Any = SimpleNamespace(is_connected=True)
    broker: Any = SimpleNamespace(
        stored=(1, b""), clients=0, prove=lambda _epoch: 1, write_format=lambda _format: None
    )
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


def test_a_leader_writes_the_format_that_all_nodes_read() -> None:
    now = 0.0
    written: list[int] = []
    clock: Any = SimpleNamespace(monotonic=lambda: now, time_ms=lambda: 0)
    broker: Any = SimpleNamespace(
        stored=(1, b""), clients=0, prove=lambda _epoch: 1, write_format=written.append
    )
    me = NodeStatus("me", Role.LEADING, 1, 1, "", 0)
    leader = Leader(
        SimpleNamespace(is_connected=True),  # type: ignore[arg-type]  # all that it uses
        Members("me", lambda: 0),
        clock,
        me,
        1,
        broker,
    )

    def written_at(seconds: float, *nodes: bytes) -> int:
        nonlocal now
        now = seconds
        for node in nodes:
            leader.take(node)
        leader.look()
        return written[-1]

    new = NodeStatus("new", Role.FOLLOWING, 1, 1, "", 0).encode()
    old = new.replace(b'"new"', b'"old"').replace(b'"reads":2,', b"")
    later = new.replace(b'"new"', b'"later"').replace(b'"reads":2', b'"reads":9')
    assert old != later != new
    assert written_at(1) == 1  # it may not have heard all
    assert written_at(59, new) == 1
    assert written_at(61, new, later) == 2
    assert written_at(62, old) == 1
    assert written_at(63, old.replace(b'"following"', b'"stopped"')) == 2
