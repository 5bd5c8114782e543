"""The words of ``foldmq diff`` and of the page for the changes of a session."""

from dataclasses import replace
from typing import Any

import pytest

from projections.views.differences import NO_SESSION, SessionFacts, session_diff

BEFORE = SessionFacts(True, {}, frozenset({(1, 4), (2, 5)}), (0, 0, {}), frozenset(), None, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"in_flight": frozenset({(1, 4)})}, "in flight 2 -> 1 messages (1 completed)"),
        (
            {"in_flight": frozenset({(1, 4), (3, 6)})},
            "in flight 2 -> 2 messages (1 sent, 1 completed)",
        ),
        ({"expiry": None}, "session expiry 2 s -> the broker's setting (session_expiry)"),
    ],
)
def test_changes_of_a_session(change: dict[str, Any], said: str) -> None:
    assert list(session_diff(BEFORE, replace(BEFORE, **change))) == [said]


def test_deliveries_of_a_session_that_ended() -> None:
    (line,) = (line for line in session_diff(BEFORE, NO_SESSION) if "in flight" in line)
    assert line == "in flight 2 -> 0 messages (2 ended with the session)"
