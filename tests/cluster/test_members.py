"""The members of a cluster: their roles, their order in a takeover, and their differences."""

import dataclasses

import pytest
from structlog.testing import capture_logs

from cluster.members import Members
from cluster.status import NodeStatus, Role

TIME = 1_700_000_000_000
ME = NodeStatus("me", Role.FOLLOWING, 2, 10, "", TIME, version="1", users="u", permissions="p")


def other(node: str, role: Role = Role.FOLLOWING, **changes: object) -> NodeStatus:
    base = dataclasses.replace(ME, node=node, role=role, host=f"host-{node}")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # fields of it


def members(*heard: NodeStatus, at: float = 0.0) -> Members:
    made = Members("me", lambda: TIME)
    for one in heard:
        made.heard(one, at, ME)
    return made


@pytest.mark.parametrize(
    ("heard", "now", "follow"),
    [
        ([], 0.0, None),
        ([other("a")], 0.5, True),
        ([other("a"), other("b")], 0.5, True),
        ([other("a", Role.STARTING)], 0.5, True),
        ([other("a")], 1.5, False),
        ([other("a"), other("b", Role.LEADING)], 0.5, False),
        ([other("a", epoch=3)], 0.5, False),
        ([other("a"), other("a", Role.STOPPED)], 0.5, None),
        ([other("a")], 100.0, None),
    ],
)
def test_whether_all_others_follow(
    heard: list[NodeStatus], now: float, follow: bool | None
) -> None:
    assert members(*heard).follow(2, now) is follow


def test_the_leader_is_that_of_the_highest_epoch() -> None:
    found = members(other("a", Role.LEADING, epoch=2), other("b", Role.LEADING, epoch=3))
    leader = found.leader(0.1)
    assert leader is not None
    assert leader.node == "b"


@pytest.mark.parametrize(
    ("heard", "wanted"),
    [
        ([], ["", "", ""]),
        ([other("a")], ["a", "", "a"]),
        ([other("z")], ["", "z", ""]),
        ([other("a"), other("z")], ["a", "", "z"]),
        # Only nodes that could take over now are preferred, and a start is awaited.
        ([other("a"), other("z", Role.LEADING)], ["a", "", ""]),
        ([other("a"), other("z", Role.STARTING)], ["", "", ""]),
    ],
)
def test_the_leaders_of_several_logs_spread(heard: list[NodeStatus], wanted: list[str]) -> None:
    assert [members(*heard).preferred(number, 0.1) for number in range(3)] == wanted


@pytest.mark.parametrize(
    ("heard", "now", "reason"),
    [
        (other("b"), 0.1, ""),
        (other("a"), 50.4, ": nothing was heard of it for 50 s"),
        (other("a", Role.STARTING), 0.1, ": it is starting"),
        (other("a", problem="no disk"), 0.1, ": no disk"),
    ],
)
def test_a_node_that_does_not_follow_gets_no_leadership(
    heard: NodeStatus, now: float, reason: str
) -> None:
    found = members(heard)
    assert found.successor("a", now) == f"node a does not follow this leader{reason}"
    if heard.node == "a":
        assert found.successor("", now) == "no other node follows this leader"


def test_nodes_that_have_folded_more_take_over_first() -> None:
    found = members(other("a", sequence=12), other("b", sequence=9))
    assert found.wait_before_takeover(10, 0.1) > 0
    assert found.wait_before_takeover(13, 0.1) == 0


def test_nodes_that_are_equal_do_not_take_over_at_the_same_time() -> None:
    names = [f"n{number}" for number in range(6)]
    waits = []
    for name in names:
        made = Members(name, lambda: TIME)
        for one in names:
            if one != name:
                made.heard(other(one), 0.0, ME)
        waits.append(made.wait_before_takeover(10, 0.1))
    assert len(set(waits)) == len(names)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "2"}, "runs foldmq 2, this one 1"),
        ({"users": "x"}, "has different users from this one"),
        ({"permissions": ""}, "has different permissions from this one"),
    ],
)
def test_a_difference_is_logged_once_by_name(change: dict[str, object], said: str) -> None:
    with capture_logs() as logs:
        found = members(other("a", **change))
        found.heard(other("a", **change), 0.1, ME)
    assert [said in line["event"] for line in logs] == [True]
    assert "node a (host-a)" in logs[0]["event"]


def test_a_node_with_another_authority_is_named_and_gets_no_leadership() -> None:
    me = dataclasses.replace(ME, authorities="aa,bb")
    made = Members("me", lambda: TIME)
    with capture_logs() as logs:
        for one in (other("same", authorities="bb"), other("old"), other("no", authorities="cc")):
            made.heard(one, 0.0, me)
    said = "node no (host-no) has another cluster_tls_ca than this one"
    assert [line["event"].startswith(said) for line in logs] == [True]
    for name in ("same", "old"):
        assert isinstance(made.successor(name, 0.1), NodeStatus)
    assert str(made.successor("no", 0.1)).startswith("node no has another cluster_tls_ca")
    alone = Members("me", lambda: TIME)
    alone.heard(other("no", authorities="cc"), 0.0, me)
    assert alone.successor("", 0.1) == "no other node follows this leader"


@pytest.mark.parametrize(("off", "way"), [(-3000, "ahead of"), (3000, "behind")])
def test_a_wrong_clock_is_logged_once(off: int, way: str) -> None:
    made = Members("me", lambda: TIME)
    leading = other("a", Role.LEADING, time_ms=TIME + off)
    with capture_logs() as logs:
        for number in range(60):
            made.heard(leading, number / 10, ME)
    assert [f"3.0 s {way} that of the leader, node a" in line["event"] for line in logs] == [True]


def test_a_status_that_was_late_makes_no_clock_wrong() -> None:
    made = Members("me", lambda: TIME)
    with capture_logs() as logs:
        for number in range(60):
            late = 5000 if number % 10 else 0
            made.heard(other("a", Role.LEADING, time_ms=TIME - late), number / 10, ME)
    assert logs == []


def test_statuses_that_arrive_together_after_a_standstill_make_no_clock_wrong() -> None:
    made = Members("me", lambda: TIME)
    with capture_logs() as logs:
        for number in range(80):  # sent in the last 8 s
            late = 8000 - number * 100
            made.heard(other("a", Role.LEADING, time_ms=TIME - late), 8.0, ME)
    assert logs == []
