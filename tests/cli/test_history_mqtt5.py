"""``foldmq replay`` and ``foldmq diff`` with MQTT 5."""

from typing import Any

from eventstore.format.event_parsing import Event
from eventstore.format.events import SessionOpened, Subscribed, WillArmed
from eventstore.format.positions import position
from projections.past.replay import Origins
from projections.state.node_state import NodeState
from projections.views.differences import (
    StateFacts,
    diff_object,
    session_diff,
    session_facts,
    state_facts,
)


def opened(expiry: int) -> SessionOpened:
    return SessionOpened(session="c", resumed=True, clean=False, level=5, expiry=expiry)


def subscribed(**more: Any) -> Subscribed:
    return Subscribed(session="c", filters=[("x/#", 1)], **more)


def folded(*events: Event) -> NodeState:
    node = NodeState(1)
    for sequence, event in enumerate(events, 1):
        node.apply(event, position(sequence, 0), 0, (b"bye",))
    return node


def facts(node: NodeState) -> StateFacts:
    return state_facts(node, None, Origins().of)


def test_a_difference_names_options_identifier_expiry_and_will() -> None:
    before = folded(opened(60), subscribed(options=(8,), identifier=7))
    will = WillArmed(session="c", topic="w", qos=1, retain=True, size=3, at=0, delay=5)
    after = folded(opened(120), subscribed(identifier=9), will)
    old, new = (session_facts(node.sessions.live["c"]) for node in (before, after))
    assert list(session_diff(old, new)) == [
        "~ subscription x/# QoS 1 retain as published, identifier 7 -> QoS 1, identifier 9",
        "will w QoS 1 retained, 5 s after the connection ends",
        "session expiry 60 s -> 120 s",
    ]


def test_a_difference_in_the_qos_alone_is_shown_briefly() -> None:
    before = folded(opened(60), subscribed(identifier=7))
    after = folded(opened(60), Subscribed(session="c", filters=[("x/#", 2)], identifier=7))
    old, new = (session_facts(node.sessions.live["c"]) for node in (before, after))
    assert list(session_diff(old, new)) == ["~ subscription x/# QoS 1 -> 2"]


def test_json_has_the_options_beside_the_qos() -> None:
    before = facts(folded(opened(60), subscribed(options=(8,), identifier=7)))
    after = facts(folded(opened(60), subscribed()))
    changed: Any = diff_object(before, after)["sessions_changed"]
    assert changed["c"]["from"]["subscriptions"] == {"x/#": 1}
    assert changed["c"]["from"]["subscription_options"] == {"x/#": {"options": 8, "identifier": 7}}
    assert changed["c"]["to"]["subscription_options"] == {}
