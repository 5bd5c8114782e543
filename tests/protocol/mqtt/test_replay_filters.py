"""The filters of replays are split into their parts, or refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.replay_filters import (
    ReplayFilter,
    is_replay_filter,
    replayed_filter,
    split_replay,
)
from protocol.mqtt.topics import MAX_TOPIC_BYTES, TopicError, validate_topic_filter


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("$replay/10m/hall/#", ReplayFilter("10m", "", "hall/#")),
        ("$replay/all/#", ReplayFilter("all", "", "#")),
        ("$replay/12.3..14.0/a/+/b", ReplayFilter("12.3", "14.0", "a/+/b")),
        ("$replay/p0:12.3,p1:7.0//a", ReplayFilter("p0:12.3,p1:7.0", "", "/a")),
        (
            "$replay/2026-11-29T09:30:00.250Z..0s/a",
            ReplayFilter("2026-11-29T09:30:00.250Z", "0s", "a"),
        ),
        ("$stream/any/a/#", ReplayFilter("new", "", "a/#", "any")),
        ("$stream/any", ReplayFilter("new", "", "", "any")),
    ],
)
def test_parts_of_a_filter(topic_filter: str, expected: ReplayFilter) -> None:
    assert is_replay_filter(topic_filter)
    assert split_replay(topic_filter) == expected
    assert replayed_filter(topic_filter) == expected.topic_filter


@pytest.mark.parametrize(
    ("offset", "start", "until"),
    [
        ("", "new", ""),
        ("latest", "new", ""),
        ("earliest", "all", ""),
        ("1764408600250999", "@1764408600.250", ""),
        ("7", "@0.000", ""),
        ("12.3", "12.3", ""),
        ("2h..1h", "2h", "1h"),
    ],
)
def test_where_a_stream_begins(offset: str, start: str, until: str) -> None:
    assert split_replay("$stream/s/a", offset) == ReplayFilter(start, until, "a", "s")


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("$replay/", "no filter"),
        ("$replay/10m", "no filter"),
        ("$replay/10m/", "no filter"),
        ("$replay//a", "no beginning"),
        ("$replay/..5/a", "no beginning"),
        ("$replay/5../a", "no end"),
        ("$replay/5/$share/g/a", "neither shared"),
        ("$replay/5/$replay/5/a", "neither shared"),
        ("$replay/5/$stream/s/a", "neither shared"),
        ("$stream//a", "no name"),
        ("$stream/", "no name"),
        ("$stream/s/", "no filter"),
        ("$stream/s/$replay/5/a", "neither shared"),
        (f"$replay/{'5' * 3000}/a", "too long"),
    ],
)
def test_reasons_of_a_refusal(topic_filter: str, reason: str) -> None:
    with pytest.raises(TopicError, match=reason):
        split_replay(topic_filter)


def test_the_offset_of_a_stream_is_bounded() -> None:
    with pytest.raises(TopicError, match="too long"):
        split_replay("$stream/s/a", "5" * 65_535)


@pytest.mark.parametrize("topic_filter", ["a", "$replay", "$replay/state", "$share/g/$replay/5/a"])
def test_other_filters_are_no_replays(topic_filter: str) -> None:
    assert not is_replay_filter(topic_filter)


LEVELS = st.text(st.sampled_from("ab+#$0./:é"), max_size=12)


@given(
    prefix=st.sampled_from(["$replay/", "$stream/"]),
    rest=st.one_of(LEVELS, st.builds("/".join, st.lists(LEVELS, max_size=4))),
    offset=st.text(max_size=8),
)
def test_any_legal_filter_is_split_or_refused(prefix: str, rest: str, offset: str) -> None:
    whole = prefix + rest
    try:
        validate_topic_filter(whole)
    except TopicError:
        return
    try:
        parts = split_replay(whole, offset)
    except TopicError:
        return
    assert parts.start
    assert replayed_filter(whole) == parts.topic_filter
    if parts.topic_filter:
        validate_topic_filter(parts.topic_filter)
        assert whole.endswith("/" + parts.topic_filter)
    else:
        assert parts.stream
    if prefix == "$replay/":
        dots = f"..{parts.until}" if parts.until else ""
        assert whole == f"$replay/{parts.start}{dots}/{parts.topic_filter}"
    assert len(whole.encode()) <= MAX_TOPIC_BYTES
