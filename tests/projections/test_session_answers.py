"""The answers of brokers of other versions about a session are read as they are."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.positions import position
from projections.state.session import InFlight, ReplayState, SessionState, Will
from projections.state.waiting_queue import WaitingQueue
from projections.views.session_view import MemberView, Part, session_from, session_view
from projections.views.vocabulary import plain

_OPTIONAL: Final = frozenset(
    {"members", "unsure", "topic", "size", "published_ms", "packet_id", "retain", "sent_ms", "lag"}
)
"""Fields that have a default everywhere."""


def answer_in_full() -> dict[str, Any]:
    """An answer with every kind of row."""
    state = SessionState("c", connected=True, user="u", level=5, last_pid=8, queued=2)
    state.will = Will("w", 1, True, position(1, 1), 5)
    held = state.subscription("a/+")
    held.queue = WaitingQueue()
    held.queue.extend([position(3, 0), position(3, 1)], 1)
    state.own_waiting()["a/+"] = held
    state.inflight[7] = InFlight(position(2, 0), 1, held, 1)
    state.own_releasing()[8] = InFlight(position(2, 1), 2, held, 1)
    state.own_inbound()[9] = position(4, 0)
    replay = state.subscription("$replay/x/a")
    replay.replay = ReplayState("a", {"": position(1, 0)}, left_out={"erased": 2})
    members = Part(1, [MemberView("m", True, 1, 0)])
    view = replace(session_view(state, last=9), members=members)
    answer: dict[str, Any] = json.loads(json.dumps(plain(view)))
    return answer


FULL: Final = answer_in_full()


def leaves(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of the values that are no lists or objects."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in items:
            yield from leaves(each, *path, name)
    else:
        yield path


LEAVES: Final = sorted(leaves(FULL), key=str)
OPTIONAL: Final = [path for path in LEAVES if path[-1] in _OPTIONAL and "will" not in path]
ROWS: Final = sorted(
    {path[:-1] for path in LEAVES if {"rows", "will"} & {*path} and "left_out" not in path}, key=str
)


def at(answer: Any, path: tuple[str | int, ...]) -> Any:
    for name in path:
        answer = answer[name]
    return answer


@given(
    st.dictionaries(
        st.sampled_from(LEAVES), st.sampled_from([None, True, 0, 1, -1, "", 2.5]), max_size=4
    )
)
def test_values_of_an_answer_are_not_judged(changes: dict[tuple[str | int, ...], Any]) -> None:
    answer = deepcopy(FULL)
    for path, value in changes.items():
        at(answer, path[:-1])[path[-1]] = value
    assert plain(session_from(answer)) == answer


@given(st.sets(st.sampled_from(ROWS), min_size=1, max_size=3))
def test_keys_of_a_later_version_are_left_out_of_rows(rows: set[tuple[str | int, ...]]) -> None:
    answer = deepcopy(FULL)
    for path in rows:
        at(answer, path)["of_later"] = {"x": [1]}
    assert plain(session_from({**answer, "of_later": 1})) == {**FULL, "of_later": 1}


@given(st.sets(st.sampled_from(OPTIONAL), max_size=3))
def test_an_answer_of_an_earlier_version_lacks_fields(paths: set[tuple[str | int, ...]]) -> None:
    answer = deepcopy(FULL)
    for path in paths:
        del at(answer, path[:-1])[path[-1]]
    known = session_from(answer)
    for path in paths:
        assert at(plain(known), path) in (None, 0, False, "")
