"""The last events of a log are found without reading other records."""

import itertools
import tempfile
from pathlib import Path

import pytest
from harness.logs import LogBuilder
from hypothesis import given
from hypothesis import strategies as st
from indexedlogs import IndexedSource, as_log, build, listed, node_of, use
from playedlogs import MANY, played
from randomnode import NAMES

from cli.commands.log_events import Selection
from cli.web.pages.log import find_page
from eventstore.format.events import (
    Expired,
    MessagePublished,
    Queued,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.positions import position
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.log_points import LogPoint
from projections.past.event_reader import EventFilter, EventReader
from projections.past.message_search import find_stories

_OWN = 400
_LATER = 400
_FEW = 60


@pytest.fixture
def source(tmp_path: Path) -> IndexedSource:
    """A log whose later half has nothing of the client, and whose last records have no index."""
    log = LogBuilder("n")
    log.record(SessionOpened("c", False, True, 4))
    for number in range(_OWN // 2):
        log.record(Subscribed("c", [(f"t/{number}", 1)]))
        log.record(Unsubscribed("c", [f"t/{number}"]))
    log.record(Subscribed("c", [("bench/#", 1)]))
    log.record(SessionClosed("c", "disconnect"))
    for number in range(_LATER):
        log.record(
            MessagePublished("p", 1, False, [f"bench/{number % 7}"], [], [1], 1, 0, 1),
            payloads=[b"x"],
        )
    for number in range(_LATER):
        log.record(Queued("d", "#", 1, [log.at(_OWN + 4 + number, 0)], 1))
        log.record(Expired("d", "#", [log.at(_OWN + 4 + number, 0)], 1))
    found = IndexedSource(node_of(log.records))
    use(found, build(found, tmp_path, found.last - 9, 50))
    found.asked, found.read = [], 0
    return found


def cost(source: IndexedSource) -> int:
    """Number of records that were read."""
    return len(source.asked) + source.read


async def test_the_last_events_of_a_session(source: IndexedSource) -> None:
    reader = EventReader(as_log(source), EventFilter((), "c"))
    turns = TurnAssembler(anywhere=True)
    found = await reader.latest(2, LogPoint(source.last), turns, ended=True)
    assert [entry.event.e for entry in found] == ["Subscribed", "SessionClosed"]
    assert cost(source) <= _FEW


async def test_a_page_of_the_last_events_of_a_session(source: IndexedSource) -> None:
    wanted = Selection(session="c")
    page = await find_page(as_log(source), wanted, 3, None, backwards=True, payload=False)
    assert len(page.rows) == 3
    assert cost(source) <= _FEW


async def test_a_page_of_a_topic_ends_in_time(source: IndexedSource) -> None:
    """Each look at the clock takes a second; all 400 messages are on topics of the filter."""
    ticks = itertools.count()
    page = await find_page(
        as_log(source),
        Selection(topic="bench/#"),
        1000,
        None,
        backwards=False,
        payload=False,
        clock=lambda: float(next(ticks)),
    )
    assert page.timed_out
    assert cost(source) <= 2 * _FEW + 9


async def test_the_last_session_of_a_client(source: IndexedSource) -> None:
    (story,) = await find_stories(as_log(source), topic_filter="bench/3", client="c")
    assert story.subscriber is not None
    assert story.subscriber.earlier is not None
    assert story.subscriber.earlier.at == position(_OWN + 3, 0)
    assert story.subscriber.earlier.filters == ["bench/#"]
    assert cost(source) <= _OWN // 2


@given(
    steps=MANY,
    max_record=st.sampled_from([600, 1 << 20]),
    session=st.sampled_from([None, *NAMES[:2]]),
    count=st.sampled_from([1, 3, 50]),
    share=st.sampled_from([0, 0.5, 1]),
)
async def test_the_last_events_are_those_of_the_whole_log(
    steps: list[tuple[str, str, int]],
    max_record: int,
    session: str | None,
    count: int,
    share: float,
) -> None:
    selected = EventFilter((), session)
    source = IndexedSource(played(steps, max_record))
    whole = await listed(source, selected, 1)
    with tempfile.TemporaryDirectory() as directory:
        files = build(source, Path(directory) / "index", round(share * source.last), 3)
        use(source, files)
        turns = TurnAssembler(anywhere=True)
        last = await EventReader(as_log(source), EventFilter((), session)).latest(
            count, LogPoint(source.last), turns, ended=True
        )
    assert [(one.at, one.time_ms, one.event, one.void) for one in last] == whole[-count:]
