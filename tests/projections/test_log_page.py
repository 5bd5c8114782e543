"""Pages of the event log: no event is lost, whatever the filter, the order and the time limit."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playedlogs import MANY, FakeSource, as_source, played
from randomnode import NAMES

from cli.history.log_events import Selection
from cli.logsource.point_resolution import parse_point
from cli.web.pages import log
from cli.web.pages.log import find_page
from eventstore.format import Queued, Subscribed, format_position, position, sequence_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.format import Position


def everything(fake: FakeSource) -> Iterator[tuple[Position, str, str | None]]:
    for sequence in range(fake.first, fake.last + 1):
        for index, event in fake.record(sequence).events():
            yield position(sequence, index), event.e, getattr(event, "session", None)


def ticking(step: float) -> Callable[[], float]:
    """A clock that goes on whenever it is looked at."""
    ticks = itertools.count()
    return lambda: next(ticks) * step


def all_pages(
    fake: FakeSource, wanted: Selection, count: int, *, backwards: bool, step: float = 0.0
) -> list[tuple[Position, str, str | None]]:
    found = []
    after: Position | None = None
    clock = ticking(step)
    for _ in range(2 * fake.last + 200):
        page = asyncio.run(
            find_page(
                as_source(fake),
                wanted,
                count,
                after,
                backwards=backwards,
                payload=False,
                clock=clock,
            )
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
def test_the_pages_together_are_the_log(
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
        found = all_pages(fake, wanted, count, backwards=backwards, step=step)
    names = {kind.__name__ for kind in kinds}
    expected = [
        one
        for one in everything(fake)
        if (session is None or one[2] == session) and (not names or one[1] in names)
    ]
    assert found == (expected[::-1] if backwards else expected)


@given(steps=MANY, backwards=st.booleans(), low=st.integers(0, 30), high=st.integers(0, 30))
def test_nothing_outside_of_the_bounds_is_shown(
    steps: list[tuple[str, str, int]], *, backwards: bool, low: int, high: int
) -> None:
    fake = FakeSource(played(steps, 2000))
    places = [at for at, _, _ in everything(fake)]
    first, last = sorted(places[min(one, len(places) - 1)] for one in (low, high))
    start, end = (parse_point(format_position(one)) for one in (first, last))
    found = all_pages(fake, Selection(start=start, end=end), 3, backwards=backwards)
    assert sorted(at for at, _, _ in found) == [at for at in places if first <= at <= last]


def test_what_was_looked_through_is_told() -> None:
    node = played([("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 40, 1 << 20)
    fake = FakeSource(node)
    wanted = Selection(session="nobody")
    page = asyncio.run(
        find_page(
            as_source(fake), wanted, 5, None, backwards=True, payload=False, clock=ticking(10.0)
        )
    )
    assert page.timed_out
    assert page.rows == []
    assert page.looked == (sequence_of(page.next or 0), fake.last)
