"""The retained index as a fold."""

from collections.abc import Sequence

import pytest
from specification import published

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessagePublished,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.positions import Position, position, to_runs
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState


class World:
    """A node's state, fed event by event."""

    def __init__(self) -> None:
        self.node = NodeState()
        self.sequence = 0

    def do(self, event: Event, payloads: Sequence[bytes] = ()) -> Position:
        self.sequence += 1
        at = position(self.sequence, 0)
        self.node.apply(event, at, self.sequence, payloads)
        return at

    def open(self, name: str = "c", *, resumed: bool = False, clean: bool = False) -> None:
        self.do(SessionOpened(name, resumed, clean, 4))

    def publish(
        self,
        qos: int,
        *messages: tuple[str, bytes],
        pids: Sequence[int] = (),
        name: str = "c",
        retain: bool = True,
        will: bool = False,
    ) -> Position:
        event: MessagePublished = published(
            qos, messages, pids, retain=retain, will=will, session=name
        )
        return self.do(event, [payload for _, payload in messages])

    def kept(self) -> dict[str, bytes]:
        return {found.topic: found.payload for found in self.node.retained.match("#")}


@pytest.fixture
def world() -> World:
    made = World()
    made.open()
    return made


@pytest.mark.mqtt("MQTT-3.3.1-5")
@pytest.mark.parametrize("qos", [0, 1])
def test_qos_0_and_1_take_effect_at_once(world: World, qos: int) -> None:
    at = world.publish(qos, ("a", b"1"), ("b", b"2"), ("a", b"33"), pids=[1, 2, 3][: 3 * qos])
    retained = world.node.retained
    assert retained.get("a") == RetainedMessage("a", b"33", qos, at + 2, publisher="c")
    assert retained.get("b") == RetainedMessage("b", b"2", qos, at + 1, publisher="c")
    assert (len(retained), retained.size) == (2, 3)


def test_only_retained_messages_are_kept(world: World) -> None:
    world.publish(1, ("a", b"1"), pids=[1], retain=False)
    assert world.kept() == {}


@pytest.mark.mqtt("MQTT-3.3.1-10", "MQTT-3.3.1-11")
def test_an_empty_payload_clears_and_is_not_kept(world: World) -> None:
    world.publish(0, ("a", b"1"), ("b", b"2"))
    world.publish(1, ("a", b""), ("never/set", b""), pids=[1, 2])
    retained = world.node.retained
    assert world.kept() == {"b": b"2"}
    assert (len(retained), retained.size, retained.get("a")) == (1, 1, None)


def test_set_clear_set_in_one_event(world: World) -> None:
    world.publish(0, ("a", b"1"), ("a", b""), ("a", b"22"))
    assert (world.kept(), len(world.node.retained), world.node.retained.size) == (
        {"a": b"22"},
        1,
        2,
    )


def test_matches_come_oldest_first(world: World) -> None:
    world.publish(0, ("z", b"1"), ("a", b"2"))
    world.publish(0, ("m", b"3"))
    world.publish(0, ("z", b"4"))
    assert [found.topic for found in world.node.retained.match("+")] == ["a", "m", "z"]


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_qos_2_takes_effect_when_it_is_released(world: World) -> None:
    world.publish(0, ("a", b"old"))
    at = world.publish(2, ("a", b"new"), ("b", b"x"), pids=[1, 2])
    assert world.kept() == {"a": b"old"}
    world.do(Released("c", [2], [at + 1]))
    assert world.kept() == {"a": b"old", "b": b"x"}
    world.do(Released("c", [1], [at]))
    assert world.node.retained.get("a") == RetainedMessage("a", b"new", 2, at, publisher="c")


def test_release_order_decides_which_message_stays(world: World) -> None:
    at = world.publish(2, ("a", b"first"), ("a", b"second"), pids=[1, 2])
    world.do(Released("c", [2, 1], to_runs([at + 1, at])))
    assert world.kept() == {"a": b"first"}


def test_pending_messages_of_one_session_are_not_released_by_another(world: World) -> None:
    at = world.publish(2, ("a", b"x"), pids=[1])
    world.open("d")
    world.do(Released("d", [1], [at]))
    assert world.kept() == {}


@pytest.mark.parametrize(
    "end",
    [
        [SessionOpened("c", resumed=False, clean=False, level=4)],
        [SessionClosed("c", "closed"), SessionExpired("c", "expired")],
    ],
)
def test_unreleased_messages_end_with_the_session(world: World, end: list[Event]) -> None:
    at = world.publish(2, ("a", b"x"), pids=[1])
    for event in end:
        world.do(event)
    world.open()
    world.do(Released("c", [1], [at]))
    assert world.kept() == {}


def test_unreleased_messages_end_with_a_clean_session() -> None:
    world = World()
    world.open(clean=True)
    at = world.publish(2, ("a", b"x"), pids=[1])
    world.do(SessionClosed("c", "closed"))
    assert not world.node.sessions
    world.open(clean=True)
    world.do(Released("c", [1], [at]))
    assert world.kept() == {}


def test_unreleased_messages_end_with_a_clean_session_whose_loaded_state_is_newer() -> None:
    """The projections have the closed session, of which only the will waits; the events follow."""
    world = World()
    world.node.load(SessionState("c", clean=True), position(5, 0))
    at = world.publish(2, ("a", b"x"), pids=[1])
    world.do(SessionClosed("c", "closed"))
    world.node.finish_loading()
    assert not world.node.retained.known("c", at)


def test_unreleased_messages_of_a_loaded_session_stay() -> None:
    world = World()
    state = SessionState("c")
    state.inbound = {1: position(1, 0)}
    world.node.load(state, position(5, 0))
    at = world.publish(2, ("a", b"x"), pids=[1])
    world.node.finish_loading()
    assert world.node.retained.known("c", at)


def test_unreleased_messages_survive_a_reconnect(world: World) -> None:
    at = world.publish(2, ("a", b"x"), pids=[1])
    world.do(SessionClosed("c", "closed"))
    world.open(resumed=True)
    world.do(Released("c", [1], [at]))
    assert world.kept() == {"a": b"x"}


def test_retained_messages_outlive_their_publisher() -> None:
    world = World()
    world.open(clean=True)
    world.publish(1, ("a", b"x"), pids=[1])
    world.do(SessionClosed("c", "closed"))
    assert (world.node.sessions.names(), world.kept()) == ([], {"a": b"x"})


@pytest.mark.mqtt("MQTT-3.1.2-17")
def test_a_will_of_any_qos_takes_effect_at_once(world: World) -> None:
    world.publish(2, ("w", b"gone"), will=True)
    assert world.kept() == {"w": b"gone"}


def test_all_includes_topics_that_wildcards_leave_out() -> None:
    world = World()
    world.open()
    world.publish(1, ("$own/x", b"1"), ("a", b"2"), ("a/b", b"3"), pids=[1, 2, 3])
    retained = world.node.retained
    assert [found.topic for found in retained.all()] == ["$own/x", "a", "a/b"]
    assert [found.topic for found in retained.match("#")] == ["a", "a/b"]
