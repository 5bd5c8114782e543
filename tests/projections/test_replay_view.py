"""How far replays have read, as rows, as text and as JSON."""

import pytest

from eventstore.display import clock
from eventstore.format.positions import MAX_INDEX, position
from projections.state.session import ReplayState, SessionState
from projections.views.differences import session_diff, session_facts
from projections.views.replay_view import replay_text, replay_view
from projections.views.session_fields import FIELDS
from projections.views.session_text import session_lines
from projections.views.session_view import session_from, session_view
from projections.views.vocabulary import json_object, plain

NOW_MS = 1_700_000_060_000
REPLAY = "$replay/10m/hall/#"


def replaying(**changes: object) -> SessionState:
    """A session with an ordinary subscription, and a replay one minute ago."""
    state = SessionState("c", connected=True, clean=False)
    ordinary, held = state.subscription("a"), state.subscription(REPLAY)
    ordinary.active = held.active = True
    held.qos = 1
    values: dict[str, object] = {
        "through": {"": position(900, 3)},
        "sent": 412,
        "left_out": {"not_permitted": 2},
        "reached_ms": NOW_MS - 60_000,
        **changes,
    }
    held.replay = ReplayState("hall/#", {}, **values)  # type: ignore[arg-type]
    state.own_replays()[REPLAY] = held
    return state


@pytest.mark.parametrize(
    ("through", "last", "lag"),
    [
        ({}, 1066, None),
        ({"": position(900, 3)}, None, None),
        ({"": position(900, 3)}, 1066, 167),
        ({"": position(900, MAX_INDEX)}, 1066, 166),
        ({"": position(1066, MAX_INDEX)}, 1066, 0),
        ({"": position(1070, 0)}, 1066, 0),
    ],
)
def test_records_that_a_replay_has_not_read(
    through: dict[str, int], last: int | None, lag: int | None
) -> None:
    assert replay_view(ReplayState("a", {}, through=through), 0, last).lag == lag


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("", "reads the past"),
        ("live", "live"),
        ("withheld", "waits, because the client may not read these messages (permissions)"),
        ("of_later", "of_later"),
    ],
)
def test_the_state_of_a_replay_as_text(state: str, text: str) -> None:
    replay = replaying(state=state).replays[REPLAY].replay
    assert replay is not None
    assert replay_text(replay_view(replay, last=1066), NOW_MS) == (
        f"replay: {text}, has read through 900.3, 167 records behind (1 min ago), "
        "412 messages sent (2 not permitted)"
    )


def test_a_session_shows_its_replays() -> None:
    lines = [*session_lines(session_view(replaying(state="live")), "1066.0", NOW_MS)]
    at = lines.index(f"    {REPLAY}  QoS 1")
    assert lines[at + 1] == (
        "      replay: live, has read through 900.3 (1 min ago), 412 messages sent "
        "(2 not permitted)"
    )
    assert "    a  QoS 0" in lines


def test_a_replay_that_has_read_nothing() -> None:
    view = replay_view(ReplayState("a", {}, reached_ms=NOW_MS), last=5)
    assert replay_text(view, NOW_MS).startswith("replay: reads the past, has read nothing (")


def test_only_replays_have_the_field_in_json() -> None:
    found = json_object(session_view(replaying(), last=1066))
    assert isinstance(found, dict)
    ordinary, replay = found["subscriptions"]["rows"]
    assert "replay" not in ordinary
    assert replay["replay"] == {
        "topic_filter": "hall/#",
        "state": "reading",
        "through": "900.3",
        "sent": 412,
        "left_out": {"not_permitted": 2},
        "reached_at": "2023-11-14T22:13:20.000Z",
        "lag": 167,
    }


def test_a_view_that_a_broker_sent_is_the_same() -> None:
    view = session_view(replaying(), last=1066)
    assert session_from(plain(view)) == view


def test_a_replay_that_went_on_differs() -> None:
    old, new = session_facts(replaying()), session_facts(replaying(sent=415, state="live"))
    assert [*session_diff(old, new)] == [
        f"~ replay {REPLAY} reading at 900.3, 412 sent -> live at 900.3, 415 sent"
    ]
    nothing = session_facts(replaying(through={}, sent=0))
    assert [*session_diff(nothing, old)] == [
        f"~ replay {REPLAY} reading at its beginning, 0 sent -> reading at 900.3, 412 sent"
    ]
    assert not [*session_diff(old, session_facts(replaying()))]


def test_a_replay_that_began_differs_as_a_subscription() -> None:
    lines = [*session_diff(session_facts(SessionState("c")), session_facts(replaying()))]
    assert f"+ subscription {REPLAY} QoS 1" in lines
    assert not any("~ replay" in line for line in lines)


def test_every_field_of_a_replay_is_compared() -> None:
    (compared,) = (one for one in FIELDS if one.name == "replays")
    state = replaying()
    (shown,) = compared.items(state)
    assert compared.show(shown, 0) == (
        f"{REPLAY}: hall/# through 900.3, 412 sent, not_permitted 2 left out, reads the past, "
        f"since {clock(NOW_MS - 60_000)}"
    )
    for other in (
        replaying(sent=1),
        replaying(until={"": 1}),
        replaying(through={}),
        replaying(start_ms=1),
        replaying(last=True),
        replaying(left_out={}),
        replaying(state="live"),
        replaying(reached_ms=1),
    ):
        assert compared.items(other) != compared.items(state)
        assert compared.count is not None
        assert compared.count(other) == 1
