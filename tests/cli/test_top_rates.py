"""The rates of ``foldmq top``, and their format: pure functions."""

import math
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from topsamples import status

from cli.top import number_format
from cli.top.base_view import wrapped
from cli.top.columns import (
    ACTORS,
    TOPICS,
    as_glob,
    fitting,
    holding,
    top_table,
    topic_rows,
)
from cli.top.figures import WIDE, area, charts, spark, top_summary
from cli.top.rates import between, between_all, difference, percentile
from cli.top.watched_broker import Frame, History

BOUNDS = (0.001, 0.002, 0.004, 0.008, 0.5)
SHARES = (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)

counts = st.lists(st.integers(0, 50), min_size=len(BOUNDS) + 1, max_size=len(BOUNDS) + 1)
values = st.lists(st.floats(0.00001, 2.0), min_size=1, max_size=60)


def lines_of(renderable: RenderableType, width: int) -> list[str]:
    """The lines of a renderable on a terminal of this width."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return [line.rstrip() for line in capture.get().splitlines()]


def histogram(of: list[float]) -> list[int]:
    found = [0] * (len(BOUNDS) + 1)
    for value in of:
        found[bisect_left(BOUNDS, value)] += 1
    return found


# ------------------------------------------------------------------- percentiles


@given(counts.filter(any))
def test_a_higher_percentile_is_never_lower(added: list[int]) -> None:
    found = [percentile(BOUNDS, added, share) for share in SHARES]
    assert found == sorted(found)
    assert all(value >= 0 for value in found)


@given(values, st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_is_within_the_bounds_of_its_bucket(of: list[float], share: float) -> None:
    exact = sorted(of)[max(0, math.ceil(share * len(of)) - 1)]
    place = bisect_left(BOUNDS, exact)
    found = percentile(BOUNDS, histogram(of), share)
    if place == len(BOUNDS):
        assert math.isinf(found)
    else:
        low = BOUNDS[place - 1] if place else 0.0
        assert low <= found <= BOUNDS[place] * (1 + 1e-12)


@given(counts, values)
def test_only_what_came_between_two_polls_counts(before: list[int], of: list[float]) -> None:
    added = histogram(of)
    after = [old + new for old, new in zip(before, added, strict=True)]
    assert difference(before, after) == added
    first, second = status(commit=before), status(commit=after, seconds=2)
    found = between(first, second)
    assert found is not None
    assert found.commit is not None
    assert found.commit.count == len(of)
    assert found.commit.p50 == percentile(BOUNDS, added, 0.5)
    assert found.commit.p99 == percentile(BOUNDS, added, 0.99)


def test_without_commits_there_are_no_percentiles() -> None:
    found = between(status(commit=[5, 0, 0, 0, 0, 0]), status(commit=[5, 0, 0, 0, 0, 0], seconds=1))
    assert found is not None
    assert found.commit is None


def test_values_are_spread_evenly_between_two_bounds() -> None:
    assert percentile(BOUNDS, [0, 0, 10, 0, 0, 0], 0.5) == pytest.approx(0.003)
    assert percentile(BOUNDS, [10, 0, 10, 0, 0, 0], 0.5) == pytest.approx(0.001)
    assert percentile(BOUNDS, [0, 0, 0, 0, 0, 3], 0.5) == math.inf


def test_a_histogram_that_was_reset_has_no_difference() -> None:
    assert difference([3, 4], [3, 3]) is None
    assert difference([3, 4], [3, 4, 0]) is None


# ------------------------------------------------------------------- rates


def test_rates_are_per_second_of_the_broker() -> None:
    before = status(received=[10, 20, 0], sent=[5, 5, 5], bytes_in=1000, records=10, events=100)
    after = status(
        received=[30, 120, 1], sent=[5, 10, 5], bytes_in=6000, records=20, events=400, seconds=4
    )
    found = between(before, after)
    assert found is not None
    assert found.seconds == 4
    assert found.messages_in == (5, 25, 0.25)
    assert found.messages_out == (0, 1.25, 0)
    assert found.bytes_in == 1250
    assert (found.records, found.events) == (2.5, 75)
    assert found.dropped == {}


def test_rates_of_several_logs_are_added_up() -> None:
    one = (
        status(node="n-p0", received=[0, 10, 0], commit=[1, 0, 0, 0, 0, 0]),
        status(node="n-p0", received=[0, 30, 0], commit=[1, 9, 0, 0, 0, 0], seconds=2),
    )
    other = (
        status(node="n-p1", dropped={"queue_full": 3}),
        status(
            node="n-p1",
            sent=[4, 0, 0],
            commit=[0, 0, 0, 0, 1, 0],
            dropped={"queue_full": 11},
            seconds=4,
        ),
    )
    found = between_all([one, other])
    assert found is not None
    assert found.messages_in == (0, 10, 0)
    assert found.messages_out == (1, 0, 0)
    assert found.dropped == {"queue_full": 2}
    assert found.commit is not None
    # Of the values of both: nine below 2 ms, and one far above.
    assert found.commit.count == 10
    assert found.commit.p50 < 0.002
    assert 0.008 < found.commit.p99 <= 0.5
    restarted = (other[0], {**other[1], "pid": 99})
    assert between_all([one, restarted]) == between(*one)
    assert between_all([restarted]) is None
    assert between_all([]) is None


def test_drops_are_shown_by_reason_also_for_a_new_reason() -> None:
    before = status(dropped={"queue_full": 3})
    after = status(dropped={"queue_full": 3, "slow_reader": 8}, seconds=2)
    found = between(before, after)
    assert found is not None
    assert found.dropped == {"slow_reader": 4}


@pytest.mark.parametrize(
    "changed",
    [
        {"started_ms": 5000},
        {"pid": 99},
        {"node": "other"},
        {"received": [1, 0, 0]},
        {"bytes_in": 9},
        {"dropped": {"queue_full": 1}},
        {"seconds": 0},
        {"seconds": -1},
    ],
)
def test_counters_that_were_reset_give_no_rates(changed: dict[str, Any]) -> None:
    before = status(received=[5, 5, 5], bytes_in=10, dropped={"queue_full": 2})
    usual: dict[str, Any] = {
        "received": [6, 5, 5],
        "bytes_in": 10,
        "dropped": {"queue_full": 2},
        "seconds": 2,
    }
    assert between(before, status(**usual)) is not None
    assert between(before, status(**{**usual, **changed})) is None


small = st.integers(0, 1000)
three = st.tuples(small, small, small).map(list)
drops = st.dictionaries(st.sampled_from(["a", "b"]), small)
statuses = st.builds(status, received=three, sent=three, bytes_in=small, dropped=drops)


@given(statuses, statuses, st.integers(1, 100))
def test_no_rate_is_ever_negative(
    before: dict[str, Any], after: dict[str, Any], seconds: int
) -> None:
    found = between(before, {**after, "time_ms": before["time_ms"] + 1000 * seconds})
    if found is not None:
        assert min(*found.messages_in, *found.messages_out, found.bytes_in) >= 0
        assert all(rate > 0 for rate in found.dropped.values())


def test_a_broker_that_recovers_has_no_log_yet() -> None:
    recovering = {**status(), "log": None, "commit": None, "ready": False, "trouble": ["recovers"]}
    found = between(recovering, status(seconds=2, records=10))
    assert found is not None
    assert found.commit is None
    lines = lines_of(top_summary(Frame(recovering, None, History()), 80), 80)
    assert "is being read" in lines[-1]


# ------------------------------------------------------------------- curves


def test_a_curve_ends_at_the_right_and_the_highest_value_fills_the_line() -> None:
    assert spark([0.0, 1.0, 4.0, 8.0], 6) == "   ▁▄█"
    assert spark([9.0, 8.0, 1.0], 2) == "█▁"
    assert spark([], 3) == "   "
    assert spark([1.0], 0) == ""


def test_a_moment_without_an_answer_is_a_dot() -> None:
    assert spark([8.0, None, 0.0, 8.0], 4) == "█· █"


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=40), st.integers(0, 30), st.integers(1, 6))
def test_an_area_has_its_size(curve: list[float | None], width: int, height: int) -> None:
    lines = area(curve, width, height)
    assert [len(line) for line in lines] == [width] * height


def test_an_area_is_filled_from_below() -> None:
    assert area([1.0, 2.0], 2, 2) == [" █", "██"]


@pytest.mark.parametrize(("width", "number"), [(40, 1), (80, 2), (200, 4)])
def test_as_many_curves_as_fit(width: int, number: int) -> None:
    lines = lines_of(charts(History(), width, 5, 2.0), 300)
    assert len(lines) == 5
    assert lines[0].count("most") == number
    assert all(cell_len(line) <= width for line in lines)


def test_history_keeps_the_latest_polls() -> None:
    history = History(kept=3)
    before = status()
    for second in (1, 2, 3):
        after = status(received=[second * 10, 0, 0], seconds=second)
        history.add(after, between(before, after))
        before = after
    history.skip()
    assert history.curve("in") == [10.0, 10.0, None]
    assert history.curve("gate") == [None, None, None], "nothing was measured"


# ------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.01, "<0.1"),
        (0.5, "0.5"),
        (7, "7"),
        (9.96, "10"),
        (1234.4, "1,234"),
        (9999.4, "9,999"),
        (9999.6, "10.0k"),
        (99949, "99.9k"),
        (123456, "123k"),
        (999499, "999k"),
        (999500, "1.00M"),
        (1.5e9, "1.50G"),
    ],
)
def test_counts(value: float | None, shown: str) -> None:
    assert number_format.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.00042, "0.42 ms"),
        (0.0123, "12.3 ms"),
        (0.25, "250 ms"),
        (0.9999, "1.00 s"),
        (12.0, "12.0 s"),
        (math.inf, "beyond"),
    ],
)
def test_spans(value: float | None, shown: str) -> None:
    assert number_format.figure_duration(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1023 * 1024, "1.00 MiB")],
)
def test_sizes(value: float | None, shown: str) -> None:
    assert number_format.figure_size(value) == shown


@given(st.floats(0, 1e13))
def test_figures_are_short(value: float) -> None:
    assert len(number_format.count(value)) <= 6
    assert len(number_format.figure_size(value)) <= 8
    assert len(number_format.percent(min(value, 100))) <= 6
    assert len(number_format.figure_duration(min(value, 9999))) <= 7


# ------------------------------------------------------------------- lines and columns


@given(st.text(st.characters(codec="utf-8"), max_size=300), st.integers(1, 60))
def test_wrapped_lines_fit_and_nothing_is_lost(text: str, width: int) -> None:
    shown = "".join(letter for letter in text if letter.isprintable())
    lines = wrapped(shown, width)
    assert all(cell_len(line) <= max(width, 20) for line in lines)
    assert "".join("".join(lines).split()) == "".join(shown.split())


ROW = {
    "id": "subscription:1234567",
    "name": "x" * 70_000,
    "client": "\x1b[31m[red]\u202e",
    "state": "running",
    "mailbox": 3,
    "high_water": 120_000,
    "handled": 12_345_678,
    "busy_us": 1_234_567,
    "recent_us_per_s": 412_000.0,
    "recent_per_s": 12_345.6,
    "last_active_ms": 1_000,
    "now_ms": 61_000,
}


@given(st.integers(40, 250))
def test_a_row_fits_the_width_and_shows_what_matters_most(width: int) -> None:
    lines = lines_of(top_table(ACTORS, [ROW], "recent", width), 300)
    assert len(lines) == 2
    assert all(cell_len(line) <= width for line in lines)
    assert "ACTOR" in lines[0]
    if width >= 55:
        assert "BUSY▼" in lines[0]
        assert "41%" in lines[1]


def test_all_columns_are_shown_where_there_is_room() -> None:
    assert [column.title for column, _ in fitting(ACTORS, 170)] == [one.title for one in ACTORS]
    narrow = [column.title for column, _ in fitting(ACTORS, 60)]
    assert narrow == ["ACTOR", "NAME", "BUSY", "MSG/S", "BOX"]


def test_names_chosen_by_clients_are_harmless_in_a_row() -> None:
    _, row = lines_of(top_table(ACTORS, [ROW], "recent", 200), 200)
    assert row.isprintable()
    assert "\\u001b[31m[red]\\u202e" in row


@pytest.mark.parametrize("width", [72, 79, 80, 100, 120, WIDE - 1, WIDE, 200, 250])
def test_figures_fit_the_width(width: int) -> None:
    before = status()
    after = status(received=[10**6, 10**7, 5], commit=[0, 5, 5, 5, 5, 1], seconds=2)
    history = History()
    history.add(after, between(before, after))
    lines = lines_of(top_summary(Frame(after, between(before, after), history), width), 300)
    assert len(lines) == (5 if width >= WIDE else 9)
    assert all(cell_len(line) <= width for line in lines)
    shown = "\n".join(lines)
    assert "p99 beyond" in shown
    assert "5.50M/s" in shown


def test_topics_and_their_share() -> None:
    rows = topic_rows([["b", 75.0], ["a", 25.0]], 100.0)
    assert [row["share"] for row in rows] == [0.75, 0.25]
    assert topic_rows([["a", 5.0]], None)[0]["share"] is None
    assert lines_of(top_table(TOPICS, rows, "rate", 40), 40)[1].split() == ["b", "75", "75%"]


def test_a_filter_is_a_part_of_the_name_or_a_pattern() -> None:
    rows = topic_rows([["plant/a/temp", 1.0], ["plant/b/temp", 1.0], ["other", 1.0]], None)
    assert [row["topic"] for row in holding(rows, "a/t")] == ["plant/a/temp"]
    assert [row["topic"] for row in holding(rows, "plant/*")] == ["plant/a/temp", "plant/b/temp"]
    assert holding(rows, "") == rows
    assert as_glob("pump") == "*pump*"
    assert as_glob("pump-?") == "pump-?"
