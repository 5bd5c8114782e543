"""Times on the web page in logs whose clock jumped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harness.logs import LogBuilder

from cli.logs.point_resolution import parse_point
from cli.web.pages.time_axis_values import moment_of, notes_on_clocks
from eventstore.display import iso
from eventstore.format.events import SessionClosed, SessionOpened
from eventstore.format.node_events import BrokerStopped
from eventstore.format.records import decode_record
from eventstore.reading.log_points import LogPoint
from projections.state.node_state import NodeState
from projections.views.session_view import session_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format.records import Record
    from eventstore.reading.log_source import LogSource

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
