"""Frozen sessions are activated in steps."""

from __future__ import annotations

from itertools import count

import pytest

from actors.node import activation
from actors.node.activation import Activation

NAMES = [f"s{number}" for number in range(10)]


class Sessions:
    """Counts which sessions are activated; each takes 0.4 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.activated: list[str] = []
        self.activation = Activation(self.activate, lambda: self.now)

    def activate(self, name: str) -> None:
        self.now += 0.0004
        self.activated.append(name)


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


def test_few_sessions_are_activated_in_one_turn(sessions: Sessions) -> None:
    assert sessions.activation.activate([(b"a", NAMES[:3])]) == 1
    assert sessions.activated == NAMES[:3]
    assert not sessions.activation.is_pending()


def test_few_sessions_that_take_long_are_activated_in_several_turns(sessions: Sessions) -> None:
    assert not sessions.activation.activate([(b"a", NAMES[:5])])
    assert sessions.activated == NAMES[:3]
    assert sessions.activation.activate([(b"a", NAMES[:5])]) == 1
    assert sessions.activated == NAMES[:5]
    assert not sessions.activation.is_pending()


def test_many_sessions_are_activated_for_a_short_time_in_each_turn(sessions: Sessions) -> None:
    activation = sessions.activation
    assert not activation.activate([(b"a", NAMES)])
    for number in (3, 6, 9):
        assert sessions.activated == NAMES[:number]
        assert activation.is_pending()
        assert activation.goes_on(b"a") is (number < 9)
    assert sessions.activated == NAMES
    assert not activation.is_pending()
    assert not activation.goes_on(b"a")


def test_one_session_is_activated_however_long_it_takes() -> None:
    seconds, activated = count(), list[str]()
    slow = Activation(activated.append, lambda: float(next(seconds)))
    assert not slow.activate([(b"a", NAMES)])
    assert len(activated) == 1
    assert slow.activate([(b"b", ["one"]), (b"c", ["two"])]) == 1
    assert activated[1:] == ["one"]


def test_topics_for_which_there_is_no_time_wait(sessions: Sessions) -> None:
    wanted = [(b"%d" % number, [f"s{number}"]) for number in range(5)]
    assert sessions.activation.activate(wanted) == 3
    assert sessions.activated == NAMES[:3]


def test_few_topics_are_begun_and_abandoned_ones_make_room(sessions: Sessions) -> None:
    begun = sessions.activation
    for number in range(activation._BEGUN):
        assert not begun.activate([(b"%d" % number, NAMES)])
    before = len(sessions.activated)
    assert not begun.activate([(b"late", NAMES)])
    assert len(sessions.activated) == before
    assert begun.activate([(b"small", NAMES[:1])])
    sessions.now += 2 * activation._ABANDONED
    assert not begun.activate([(b"late", NAMES)])
    assert begun.goes_on(b"late")
    assert not begun.goes_on(b"0")
