"""Times on the web page in logs whose clock jumped."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from aiohttp.test_utils import make_mocked_request
from harness.logs import LogBuilder

from cli.logs.point_resolution import parse_point
from cli.web.pages import overview
from cli.web.pages.log import MergedLogPage
from cli.web.pages.overview import Pages
from cli.web.pages.time_axis_values import moment_of, notes_on_clocks
from cli.web.pages.timeline import TimePages
from cli.web.state_diffs import StateDiff
from cli.web.web_log_client import WebLogClient
from eventstore.display import iso
from eventstore.format.events import SessionClosed, SessionOpened
from eventstore.format.node_events import BrokerStopped
from eventstore.format.records import Record, decode_record
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from projections.state.node_state import NodeState
from projections.views.session_view import session_view

DAY_MS = 86_400_000


def source_of(log: LogBuilder) -> LogSource:
    async def some(sequences: Sequence[int]) -> list[Record]:
        return [decode_record(one, log.records[one - 1]) for one in sequences]

    return cast("Any", SimpleNamespace(begin=1, last=log.last, some=some))


async def test_times_of_a_session_are_those_of_the_clock() -> None:
    log = LogBuilder()
    log.jump(3 * DAY_MS)
    log.record(SessionOpened("c", resumed=False, clean=False, level=4))
    closed = log.record(SessionClosed("c", "disconnect"))
    source = source_of(log)
    as_of = await moment_of(source, LogPoint(closed))
    node = NodeState()
    for record in await source.some(range(1, closed + 1)):
        node.apply_record(record)
    state = node.sessions.peek("c")
    assert state is not None
    assert session_view(state, jumped_ms=as_of.jumped_ms).closed_ms == as_of.record_ms


async def test_questions_by_time_say_that_the_clock_jumped() -> None:
    log, steady = LogBuilder(), LogBuilder()
    for one in (log, steady):
        one.record(BrokerStopped())
    jumped = log.jump(-DAY_MS)
    log.record(BrokerStopped())
    (record,) = await source_of(log).some([1])
    moment = parse_point(iso(record.time_ms))
    (note,) = await notes_on_clocks({"": source_of(log)}, moment)
    assert note.startswith(f"the clock jumped back by 1 d at record {jumped}")
    sources = {"n1-0": source_of(log), "n1-1": source_of(steady)}
    assert await notes_on_clocks(sources, moment) == [f"log n1-0: {note}"]
    assert await notes_on_clocks(sources, parse_point("1")) == []
    assert await notes_on_clocks(sources, None) == []


class Link:
    """What pages read logs with."""

    epoch = 1
    names: ClassVar[list[str]] = []

    def __init__(self, source: LogSource) -> None:
        self.source = source

    async def check_log(self, _given: str | None) -> str:
        return ""

    async def logs(self) -> list[str]:
        return [""]

    @contextlib.asynccontextmanager
    async def log(self, _name: str = "") -> AsyncIterator[LogSource]:
        yield self.source

    sources = WebLogClient.sources


class FoundNothing:
    """The differences between two moments, and the sums of minutes."""

    activity = SimpleNamespace(totals=lambda _: defaultdict(int))

    async def find(self, *_: object) -> StateDiff:
        return StateDiff("")

    async def of(self, _log: str) -> FoundNothing:
        return self

    async def reach(self, *_: object) -> bool:
        return True


def part(_request: object, _template: str, *_: object, **values: Any) -> Any:
    return values


async def test_the_difference_of_two_moments_says_that_the_clock_jumped() -> None:
    log = LogBuilder()
    first = log.record(BrokerStopped())
    jumped = log.jump(-DAY_MS)
    last = log.record(BrokerStopped())
    source = source_of(log)
    nothing: Any = FoundNothing()
    pages = TimePages(
        cast("Any", Link(source)), cast("Any", SimpleNamespace(part=part)), nothing, nothing
    )
    times = [iso(record.time_ms) for record in await source.some([first, last])]

    async def compared(a: object, b: object) -> dict[str, Any]:
        request = make_mocked_request("GET", f"/time/diff?part=live&a={a}&b={b}")
        values: Any = await pages.difference(request)
        return cast("dict[str, Any]", values["asked"]["diff"])

    found = await compared(*times)
    assert found["clocks"][0].startswith(f"the clock jumped back by 1 d at record {jumped}")
    found = await compared(first, last)
    assert found["figures"] == []
    assert found["clocks"] == ["the clock jumped between A and B: figures of minutes are left out"]
    found = await compared(jumped, last)
    assert found["figures"]
    assert not found["clocks"]


async def test_the_page_of_the_log_says_that_the_clock_jumped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object, **__: object) -> MergedLogPage:
        return MergedLogPage([], None, False, [], [], False)

    monkeypatch.setattr(overview, "find_in_logs", nothing)
    log = LogBuilder()
    log.record(BrokerStopped())
    jumped = log.jump(-DAY_MS)
    source = source_of(log)
    pages = Pages(
        *(cast("Any", one) for one in (Link(source), SimpleNamespace(page=part), None, None))
    )
    (record,) = await source.some([1])
    for bound in ("from", "to"):
        request = make_mocked_request("GET", f"/log?{bound}={iso(record.time_ms)}")
        values: Any = await pages.log(request)
        (note,) = values["found"].notes
        assert note.startswith(f"the clock jumped back by 1 d at record {jumped}")
    values = await pages.log(make_mocked_request("GET", "/log?from=1"))
    assert values["found"].notes == []
