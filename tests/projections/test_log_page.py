"""Pages of the event log: no event is lost, whatever the filter, the order and the time limit."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playedlogs import MANY, FakeSource, as_source, played
from randomnode import NAMES

from cli.commands.log_events import Selection
from cli.logs.point_resolution import parse_point
from cli.web.pages import log
from cli.web.pages.log import (
    LogPage,
    MergedLogPage,
    Row,
    find_in_logs,
    find_page,
    merge_rows,
)
from eventstore.errors import CutOff
from eventstore.format.events import Queued, Subscribed
from eventstore.format.positions import Position, format_position, position, sequence_of
from eventstore.reading.position_text import PointSpec


def everything(fake: FakeSource) -> Iterator[tuple[Position, str, str | None]]:
    for sequence in range(fake.first, fake.last + 1):
        for index, event in fake.record(sequence).events():
            yield position(sequence, index), event.e, getattr(event, "session", None)


def ticking(step: float) -> Callable[[], float]:
    """A clock that advances at each reading."""
    ticks = itertools.count()
    return lambda: next(ticks) * step


async def all_pages(
    fake: FakeSource, wanted: Selection, count: int, *, backwards: bool, step: float = 0.0
) -> list[tuple[Position, str, str | None]]:
    found = []
    after: Position | None = None
    clock = ticking(step)
    for _ in range(2 * fake.last + 200):
        page = await find_page(
            as_source(fake),
            wanted,
            count,
            after,
            backwards=backwards,
            payload=False,
            clock=clock,
        )
        assert len(page.rows) <= count
        found += [(row.at, row.kind, row.session) for row in page.rows]
        if page.next is None:
            assert not page.timed_out
            return found
        assert page.timed_out or len(page.rows) == count
        after = page.next
    raise AssertionError("the pages do not end")


@given(
    steps=MANY,
    max_record=st.sampled_from([600, 1 << 20]),
    count=st.sampled_from([1, 2, 7, 1000]),
    backwards=st.booleans(),
    session=st.sampled_from([None, *NAMES[:2]]),
    kinds=st.sampled_from([(), (Queued,), (Queued, Subscribed)]),
    step=st.sampled_from([0.0, 0.5, 10.0]),
)
async def test_the_pages_together_are_the_log(
    steps: list[tuple[str, str, int]],
    max_record: int,
    count: int,
    *,
    backwards: bool,
    session: str | None,
    kinds: tuple[type, ...],
    step: float,
) -> None:
    fake = FakeSource(played(steps, max_record))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "_LOOK_BACK", 2)
        wanted = Selection(session=session, types=kinds)
        found = await all_pages(fake, wanted, count, backwards=backwards, step=step)
    names = {kind.__name__ for kind in kinds}
    expected = [
        one
        for one in everything(fake)
        if (session is None or one[2] == session) and (not names or one[1] in names)
    ]
    assert found == (expected[::-1] if backwards else expected)


@given(steps=MANY, backwards=st.booleans(), low=st.integers(0, 30), high=st.integers(0, 30))
async def test_nothing_outside_of_the_bounds_is_shown(
    steps: list[tuple[str, str, int]], *, backwards: bool, low: int, high: int
) -> None:
    fake = FakeSource(played(steps, 2000))
    places = [at for at, _, _ in everything(fake)]
    first, last = sorted(places[min(one, len(places) - 1)] for one in (low, high))
    start, end = (parse_point(format_position(one)) for one in (first, last))
    found = await all_pages(fake, Selection(start=start, end=end), 3, backwards=backwards)
    assert sorted(at for at, _, _ in found) == [at for at in places if first <= at <= last]


async def test_the_searched_range_is_shown() -> None:
    node = played([("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 40, 1 << 20)
    fake = FakeSource(node)
    wanted = Selection(session="nobody")
    page = await find_page(
        as_source(fake), wanted, 5, None, backwards=True, payload=False, clock=ticking(10.0)
    )
    assert page.timed_out
    assert page.rows == []
    assert page.looked == (sequence_of(page.next or 0), fake.last)


# ------------------------------------------------------------------------- several logs


async def all_pages_of_logs(
    fakes: dict[str, FakeSource], count: int, *, backwards: bool, step: float
) -> list[Row]:
    found: list[Row] = []
    after: str | None = None
    sources = {name: as_source(fake) for name, fake in fakes.items()}
    clock = ticking(step)
    for _ in range(4 * sum(fake.last for fake in fakes.values()) + 400):
        page = await find_in_logs(
            sources,
            Selection(),
            count,
            after,
            backwards=backwards,
            payload=False,
            clock=clock,
        )
        assert len(page.rows) <= count
        found += page.rows
        if page.next is None:
            return found
        after = page.next
    raise AssertionError("the pages do not end")


@pytest.mark.slow
@given(
    logs=st.lists(MANY, min_size=2, max_size=3),
    count=st.sampled_from([1, 7, 1000]),
    backwards=st.booleans(),
    step=st.sampled_from([0.0, 0.5, 10.0]),
)
async def test_pages_of_several_logs_are_complete_and_in_the_order_of_time(
    logs: list[list[tuple[str, str, int]]], count: int, *, backwards: bool, step: float
) -> None:
    fakes = {f"n-p{at}": FakeSource(played(steps, 600)) for at, steps in enumerate(logs)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "_LOOK_BACK", 2)
        found = await all_pages_of_logs(fakes, count, backwards=backwards, step=step)
    for name, fake in fakes.items():
        expected = [one[0] for one in everything(fake)]
        assert [row.at for row in found if row.log == name] == (
            expected[::-1] if backwards else expected
        )
    times = [row.time_ms for row in found]
    assert times == sorted(times, reverse=backwards)


async def page_of_logs(
    fakes: dict[str, FakeSource],
    after: str | None = None,
    wanted: Selection | None = None,
    *,
    count: int,
    backwards: bool = False,
) -> MergedLogPage:
    sources = {name: as_source(fake) for name, fake in fakes.items()}
    selection = wanted or Selection()
    found = find_in_logs(sources, selection, count, after, backwards=backwards, payload=False)
    return await found


async def test_a_log_that_was_cut_does_not_hide_the_events_of_the_others() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 10
    whole, cut = FakeSource(played(steps, 600)), FakeSource(played(steps, 600), 5)
    end = PointSpec("then", time_ms=whole.record(2).time_ms)
    assert end.time_ms is not None
    assert end.time_ms < cut.record(cut.first).time_ms
    cut.beginning = lambda: "the log begins with record 5"  # type: ignore[attr-defined]
    page = await page_of_logs({"n-p0": cut, "n-p1": whole}, None, Selection(end=end), count=1000)
    assert {row.log for row in page.rows} == {"n-p1"}
    assert page.notes == ["log n-p0: these records were deleted: the log begins with record 5"]
    with pytest.raises(CutOff):
        await page_of_logs({"n-p0": cut}, None, Selection(end=end), count=1000)


@pytest.mark.parametrize("backwards", [True, False])
async def test_events_that_are_added_meanwhile_keep_the_order_of_time(*, backwards: bool) -> None:
    """A log with older events only, or one that was at its end, grows between two pages."""
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)]
    long, short = FakeSource(played(steps * 10, 600)), FakeSource(played(steps * 5, 600))
    grown = FakeSource(played(steps * 15, 600))
    assert short.last < long.last < grown.last
    first = await page_of_logs(
        {"n-p0": long, "n-p1": short},
        count=1 if backwards else 2 * len(list(everything(short))),
        backwards=backwards,
    )
    assert first.next is not None
    second = await page_of_logs(
        {"n-p0": long, "n-p1": grown}, first.next, count=1000, backwards=backwards
    )
    rows = [*first.rows, *second.rows]
    times = [row.time_ms for row in rows]
    assert times == sorted(times, reverse=backwards)
    known = short if backwards else grown
    shown = [row.at for row in rows if row.log == "n-p1"]
    assert sorted(shown) == [one[0] for one in everything(known)]
    assert second.next is None


def rows_at(*times: int) -> LogPage:
    rows = [Row(position(1, at), ms, "E", None, "", "", False, 0) for at, ms in enumerate(times)]
    return LogPage(rows, None, False, (0, 0))


def test_rows_wait_for_a_log_in_which_the_time_ran_out() -> None:
    """That log was searched up to time 20: it may have rows at 25."""
    pages = {"a": rows_at(10, 30), "b": rows_at(15)}
    rows, taken = merge_rows(pages, 10, {"b": 20}, backwards=False)
    assert ([row.time_ms for row in rows], taken) == ([10, 15], {"a": 1, "b": 1})
    rows, _ = merge_rows(pages, 10, {}, backwards=False)
    assert [row.time_ms for row in rows] == [10, 15, 30]


def test_a_clock_that_was_set_back_does_not_keep_all_rows_waiting() -> None:
    pages = {"a": rows_at(10), "b": rows_at(12)}
    rows, _ = merge_rows(pages, 10, {"a": 9, "b": 8}, backwards=False)
    assert [row.time_ms for row in rows] == [10]
