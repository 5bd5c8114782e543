"""Moments as clients and programs write them."""

from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.display import iso
from eventstore.format.positions import MAX_INDEX, format_position, position
from eventstore.reading.moments import BadMoment, Moment, ends_before, parse_moment

NOW_MS = 1_764_408_600_250
"""2025-11-29T09:30:00.250Z"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", Moment("all")),
        ("new", Moment("new")),
        ("last", Moment("last")),
        ("30s", Moment(time_ms=NOW_MS - 30_000)),
        ("10m", Moment(time_ms=NOW_MS - 600_000)),
        ("2h", Moment(time_ms=NOW_MS - 7_200_000)),
        ("7d", Moment(time_ms=NOW_MS - 604_800_000)),
        ("0s", Moment(time_ms=NOW_MS)),
        ("999999999d", Moment(time_ms=0)),
        ("2025-11-29T09:30:00.250Z", Moment(time_ms=NOW_MS)),
        ("2025-11-29T09:30:00.25", Moment(time_ms=NOW_MS)),
        ("2025-11-29T10:30:00.250+01:00", Moment(time_ms=NOW_MS)),
        ("1969-01-01", Moment(time_ms=0)),
        ("@1764408600", Moment(time_ms=1_764_408_600_000)),
        ("@1764408600.25", Moment(time_ms=NOW_MS)),
        ("@1764408600.250999999", Moment(time_ms=NOW_MS)),
        ("12", Moment(positions={"": position(12, MAX_INDEX)})),
        ("12.3", Moment(positions={"": position(12, 3)})),
        ("p0:12.3,p1:7", Moment(positions={"p0": position(12, 3), "p1": position(7, MAX_INDEX)})),
    ],
)
def test_moments(text: str, expected: Moment) -> None:
    assert parse_moment(text, NOW_MS) == expected


def test_a_time_without_a_zone_is_in_the_given_one() -> None:
    zone = timezone(timedelta(hours=1))
    assert parse_moment("2025-11-29T10:30:00.250", NOW_MS, zone).time_ms == NOW_MS


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "5 ", "-5", "5.x", "1.9999999", "5w", "1.5h", "ago", "@", "@x", "@1.", "p0:"),
        *("p0:12.3,", "p0:12.3,p0:12.4", "p 0:1.0", "2026-13-01", "yesterday", "@999999999999"),
        ",".join(f"p{number}:1.0" for number in range(40)),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadMoment):
        parse_moment(text, NOW_MS)


def test_the_refusal_says_what_is_expected() -> None:
    with pytest.raises(BadMoment) as refusal:
        parse_moment("x" * 100, NOW_MS)
    assert str(refusal.value) == (
        f"not a moment: {'x' * 40}...; expected all, last, new, a position such as 12.3, an age "
        "such as 10m or a time such as 2026-11-20T09:30Z"
    )


def test_words_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(BadMoment):
        parse_moment("all", NOW_MS, words=frozenset())


@pytest.mark.parametrize(
    ("start", "until", "before"),
    [
        ("10m", "5m", False),
        ("5m", "10m", True),
        ("5m", "5m", False),
        ("12.3", "12.2", True),
        ("12.3", "12.3", False),
        ("12", "12.3", True),
        ("p0:12.3,p1:4.0", "p0:13.0,p1:3.0", True),
        ("p0:12.3", "p1:3.0", False),
        ("all", "12.3", False),
        ("10m", "12.3", False),
    ],
)
def test_an_end_before_the_beginning(start: str, until: str, before: bool) -> None:
    first, last = parse_moment(start, NOW_MS), parse_moment(until, NOW_MS)
    assert ends_before(first, last) is before


@given(st.integers(0, 1 << 40), st.integers(0, MAX_INDEX))
def test_a_position_is_read_as_it_is_shown(sequence: int, index: int) -> None:
    at = position(sequence, index)
    assert parse_moment(format_position(at), NOW_MS).positions == {"": at}


@given(st.integers(0, 4_102_444_800_000))
def test_a_time_is_read_as_it_is_shown(time_ms: int) -> None:
    assert parse_moment(iso(time_ms), NOW_MS).time_ms == time_ms
    unix = f"@{time_ms // 1000}.{time_ms % 1000:03}"
    assert parse_moment(unix, NOW_MS).time_ms == time_ms


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        moment = parse_moment(text, NOW_MS)
    except BadMoment:
        return
    given_fields = [bool(moment.word), moment.time_ms is not None, bool(moment.positions)]
    assert given_fields.count(True) == 1
    assert moment.time_ms is None or moment.time_ms >= 0
