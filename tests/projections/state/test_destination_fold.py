"""The fold of destinations: cursors, refusals, losses, pauses, and their repetition."""

import pytest

from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import OperatorActed
from eventstore.format.positions import position
from projections.state.destinations import PAUSE, RESUME, RETRY, Destinations
from projections.state.node_state import NodeState

OPENED = DestinationOpened("erp", "http", position(2, 0), ["a/#"], "d1", "first", "settings")


def folded(*events: Event) -> Destinations:
    state = NodeState()
    for number, event in enumerate(events, 10):
        state.apply(event, position(number, 0), 0)
    return state.destinations


def test_a_destination_begins_where_it_was_opened() -> None:
    state = folded(OPENED)["erp"]
    assert (state.run, state.after, state.through) == (position(10, 0), position(2, 0), 2 << 20)


def test_the_cursor_follows_forwarded_and_lost() -> None:
    moved = Forwarded("erp", position(5, 0), received=position(6, 0), number=7, count=7)
    refused = ForwardRefused("erp", [[position(4, 0), 2, 1]], "no", 422)
    lost = ForwardLost("erp", position(5, 0), position(9, 0), "max_behind")
    state = folded(OPENED, moved, refused, lost)["erp"]
    assert (state.through, state.received, state.number) == (position(9, 0), position(9, 0), 7)
    assert (state.refused, state.losses) == (2, 1)


@pytest.mark.parametrize("reason", ["skip", "erased"])
def test_what_an_operator_wanted_is_no_loss(reason: str) -> None:
    given_up = ForwardLost("erp", position(5, 0), position(9, 0), reason)
    state = folded(OPENED, given_up)["erp"]
    assert (state.losses, state.through) == (0, position(9, 0))


def test_a_changed_selection_begins_a_new_run_and_keeps_the_pause() -> None:
    pause = OperatorActed(PAUSE, "ann", "erp")
    changed = DestinationOpened("erp", "http", position(5, 0), ["b"], "d2", "changed", "settings")
    refused = ForwardRefused("erp", [position(4, 0)], "no")
    state = folded(OPENED, refused, pause, changed)["erp"]
    assert (state.run, state.filters, state.number) == (position(13, 0), ["b"], 0)
    assert (state.paused, state.refused) == (True, 1)


@pytest.mark.parametrize("target", ["erp", "other"])
def test_an_operator_pauses_and_resumes(target: str) -> None:
    pause = OperatorActed(PAUSE, "ann", target)
    assert folded(OPENED, pause)["erp"].paused == (target == "erp")
    assert not folded(OPENED, pause, OperatorActed(RESUME, "ann", target))["erp"].paused


def test_what_bridges_brought_is_kept_for_each_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("projections.state.destinations._MOST_TAKEN", 2)
    events = [OriginTaken(name, "far", 7, at, 9, [1], [at]) for at, name in enumerate("abacd", 1)]
    state = folded(*events)
    left = {name: each.through for name, each in state.taken.items()}
    assert left == {"c": 4, "d": 5}
    assert folded(*state.repeated()).taken == state.taken
    other = Destinations()
    other.load(state.marks())
    assert other.taken == state.taken


def test_a_checkpoint_repeats_the_whole_state() -> None:
    pause = OperatorActed(PAUSE, "ann", "erp")
    refused = ForwardRefused("erp", [position(4, 0)], "no")
    retry = OperatorActed(RETRY, "ann", "erp", refs=[position(4, 0)])
    known = folded(OPENED, Forwarded("erp", position(5, 0), number=3), refused, pause, retry)
    assert known["erp"].retry == [position(4, 0)]
    assert folded(*known.repeated()) == known
    assert folded(*known.repeated(), *known.repeated()) == known


def test_the_mark_of_the_projections_has_the_whole_state() -> None:
    known = folded(OPENED, Forwarded("erp", position(5, 0), number=3))
    loaded = Destinations()
    loaded.load(known.marks())
    assert loaded == known


def test_a_closed_destination_is_gone_and_later_events_of_it_change_nothing() -> None:
    closed = DestinationClosed("erp", "removed")
    late = (
        Forwarded("erp", position(5, 0)),
        ForwardRefused("erp", [position(4, 0)], "no"),
        ForwardLost("erp", 0, 1, "skip"),
        closed,
    )
    assert folded(OPENED, closed, *late) == {}


def test_what_was_erased_is_no_loss_and_any_destination_of_a_topic_may_have_contents() -> None:
    traces = DestinationOpened("traces", "otlp", 0, ["#"], "d2", "first", "settings")
    erased = ForwardLost("erp", position(5, 0), position(9, 0), "erased", messages=3)
    destinations = folded(OPENED, traces, erased)
    assert (destinations["erp"].losses, destinations["erp"].through) == (0, position(9, 0))
    assert destinations.receivers("a/b") == ["erp"]
    assert destinations.receivers("b") == []
