"""Frozen sessions are equal to the original ones."""

from specification import snapshot

from eventstore.format.events import (
    Delivered,
    Queued,
    SessionClosed,
    SessionOpened,
    Subscribed,
    WillArmed,
)
from eventstore.format.positions import position
from projections.state.node_state import NodeState
from projections.state.session import SessionState
from projections.state.snapshot import (
    PART_BYTES,
    decode_session,
    encode_session,
    expand_runs,
    reference_runs,
)

AT = position(9, 0)


def node_with(*names: str) -> NodeState:
    node = NodeState()
    for number, name in enumerate(names, 1):
        at = position(number, 0)
        node.apply(SessionOpened(name, resumed=False, clean=False, level=4), at, 1)
        node.apply(Subscribed(name, [("a/+", 1), ("b", 2)]), at + 1, 1)
        node.apply(Queued(name, "a/+", 1, [[at, 5, 1]], 50), at + 2, 2)
        node.apply(Delivered(name, "b", 2, [1], [at], queued=-1), at + 7, 3)
        node.apply(SessionClosed(name, "closed"), at + 8, 4)
    return node


def test_frozen_and_thawed_it_is_the_same() -> None:
    node = node_with("c")
    table = node.sessions
    before = snapshot(table["c"])
    thawed: list[SessionState] = []
    table.on_thaw = thawed.append
    assert table.freeze("c", AT) is not None
    assert (len(table), list(table), "c" in table, table.live) == (1, ["c"], True, {})
    peeked = table.peek("c")
    assert peeked is not None
    assert snapshot(peeked) == before
    assert [snapshot(state) for state in table.values()] == [before]
    assert not thawed, "to look is not to thaw"
    assert snapshot(table["c"]) == before
    assert thawed == [table["c"]]
    assert table["c"].saved == AT
    assert table.frozen("c") is None


def test_an_event_thaws_its_session_alone() -> None:
    node = node_with("c", "d")
    node.sessions.freeze("c", AT)
    node.sessions.freeze("d", AT)
    node.apply(SessionOpened("d", resumed=True, clean=False, level=4), position(10, 0), 5)
    assert list(node.sessions.live) == ["d"]
    assert node.sessions["d"].queued == 5


def test_the_messages_needed_by_frozen_sessions_are_known() -> None:
    node = node_with("c", "d")
    for name in ("c", "d"):
        node.sessions.freeze(name, AT)
    table = node.sessions
    assert [name for name in table if table.holds(name, position(2, 0))] == ["c"]
    assert [name for name in table if table.holds(name, position(3, 0))] == ["c", "d"]
    table["c"].queued = 5  # thawed: looked at as it is now
    assert table.holds("c", position(2, 0))
    table.discard("c")
    assert not table.holds("c", position(2, 0))


def test_a_will_is_needed_too() -> None:
    node = node_with("c")
    at = position(20, 3)
    node.apply(WillArmed("c", "w", 1, True, 3, 0), at, 5)
    assert at in set(expand_runs(reference_runs(node.sessions["c"]), at + 1))
    assert at not in set(expand_runs(reference_runs(node.sessions["c"]), at))


def test_a_large_state_is_in_parts_and_is_not_frozen() -> None:
    state = SessionState("c", clean=False)
    for number in range(20_000):
        held = state.subscription(f"some/long/filter/of/a/client/{number}")
        held.active, held.qos = True, number % 3
    parts = encode_session(state)
    assert len(parts) > PART_BYTES // 100_000
    assert snapshot(decode_session("c", parts)) == snapshot(state)
    node = NodeState()
    node.sessions["c"] = state
    assert node.sessions.freeze("c", AT) is None
    assert node.sessions.live == {"c": state}
