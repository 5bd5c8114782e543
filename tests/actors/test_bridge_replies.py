"""Requests from NATS that MQTT clients may answer: time limit of a minute, and reply tokens."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.bridge.replies import Replies


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def replies(time: Time) -> Replies:
    numbers = itertools.count()
    return Replies(time, lambda: f"t{next(numbers)}")


def test_a_token_is_valid_for_a_minute(replies: Replies, time: Time) -> None:
    token = replies.expect(b"_INBOX.a")
    other = replies.expect(b"_INBOX.b")
    assert replies.subject(token) == b"_INBOX.a"
    time.now += 59.9
    assert replies.subject(token) == b"_INBOX.a"
    assert replies.subject(other) == b"_INBOX.b"
    time.now += 0.1
    assert replies.subject(token) is None


def test_unissued_tokens_are_invalid(replies: Replies) -> None:
    replies.expect(b"_INBOX.a")
    for token in ("", "t1", "T0", "t0 ", "+", "#", "\0"):
        assert replies.subject(token) is None


def test_the_oldest_requests_are_dropped_at_the_limit(replies: Replies) -> None:
    tokens = [replies.expect(b"_INBOX.%d" % number) for number in range(16_384)]
    assert replies.subject(tokens[0]) == b"_INBOX.0"
    last = replies.expect(b"_INBOX.last")
    assert replies.subject(tokens[0]) is None
    assert replies.subject(tokens[1]) == b"_INBOX.1"
    assert replies.subject(last) == b"_INBOX.last"


def test_messages_that_are_no_requests_take_no_room_from_requests(replies: Replies) -> None:
    request = replies.expect(b"_INBOX.a")
    offered = [replies.expect(b"_INBOX.%d" % number, asked=False) for number in range(16_385)]
    assert replies.subject(request) == b"_INBOX.a"
    assert replies.subject(offered[0]) is None
    assert replies.subject(offered[-1]) == b"_INBOX.16384"


@given(st.lists(st.one_of(st.just(None), st.floats(0, 90)), max_size=60))
def test_only_requests_younger_than_a_minute_are_answered(happenings: list[float | None]) -> None:
    time = Time()
    numbers = itertools.count()
    replies = Replies(time, lambda: str(next(numbers)))
    asked: dict[str, float] = {}
    for seconds in happenings:
        if seconds is None:
            asked[replies.expect(b"_INBOX.%d" % len(asked))] = time.now
        else:
            time.now += seconds
        for token, at in asked.items():
            wanted = b"_INBOX.%b" % token.encode() if time.now < at + 60.0 else None
            assert replies.subject(token) == wanted
