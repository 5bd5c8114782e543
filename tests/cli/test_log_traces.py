"""The trace of a topic in several logs: one order, and logs whose broker goes away and is back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from cli.commands import tail
from cli.logs import trace_client
from cli.logs.broker_client import LiveBroker, NoLiveBroker, Refused
from cli.logs.log_brokers import LogBrokers
from cli.logs.source_flags import SourceFlags
from cli.logs.trace_client import LogTraces, Portion, open_traces

LOGS = ["n-p0", "n-p1"]
TOPIC = {"topic": "a/+"}


def line(ms: int, said: str) -> dict[str, Any]:
    return {"ms": ms, "actor": "session:1", "kind": "new", "what": said}


class TracedBroker:
    """The broker of a log whose traces a test feeds."""

    where = "here"
    connected = True

    def __init__(self, log: str) -> None:
        self.node = log
        self.there = True
        self.refusal: Exception | None = None
        self.queue: asyncio.Queue[Portion | Exception] = asyncio.Queue()
        self.wanted: list[dict[str, Any]] = []
        self.open = 0

    async def ask(self, endpoint: str, /, **_: Any) -> dict[str, Any]:
        assert endpoint == "trace.stop"  # whether it is there, before a new trace
        if not self.there:
            raise NoLiveBroker(f"no broker of node {self.node} answers")
        raise Refused("there is no such trace: it has ended")

    def says(self, *lines: dict[str, Any], **about: Any) -> None:
        self.queue.put_nowait(Portion(list(lines), **about))

    def goes(self) -> None:
        self.queue.put_nowait(NoLiveBroker(f"the broker of node {self.node} is gone"))

    async def portions(self) -> AsyncIterator[Portion]:
        while True:
            portion = await self.queue.get()
            if isinstance(portion, Exception):
                self.there = False
                raise portion
            yield portion


class FedTrace:
    token = "t"

    def __init__(self, broker: TracedBroker) -> None:
        self.portions = broker.portions


@contextlib.asynccontextmanager
async def fed_trace(broker: LiveBroker, **wanted: Any) -> AsyncIterator[FedTrace]:
    fed = cast("TracedBroker", broker)
    if fed.refusal is not None:
        raise fed.refusal
    if not fed.there:
        raise NoLiveBroker(f"no broker of node {fed.node} answers")
    fed.wanted.append(wanted)
    fed.open += 1
    try:
        yield FedTrace(fed)
    finally:
        fed.open -= 1


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[TracedBroker]:
    monkeypatch.setattr(trace_client, "open_trace", fed_trace)
    monkeypatch.setattr(trace_client, "_RETRY_SECONDS", 0.01)
    return [TracedBroker(log) for log in LOGS]


def brokers_of(traced: list[TracedBroker]) -> LogBrokers:
    return LogBrokers([cast("LiveBroker", one) for one in traced], LOGS)


async def take(traces: LogTraces, count: int) -> list[tuple[str, str]]:
    """Return that many lines and notes: their log, and what they say."""
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        async for portion in traces.portions():
            found += [(one["log"], one["what"]) for one in portion.lines]
            if portion.skipped:
                found.append((portion.log, f"skipped {portion.skipped}"))
            if portion.cause is not None:
                found.append((portion.log, portion.cause))
            if len(found) >= count:
                break
    return found


async def test_lines_of_all_logs_are_in_the_order_of_time(traced: list[TracedBroker]) -> None:
    one, other = traced
    async with open_traces(brokers_of(traced), rate=7, **TOPIC) as traces:
        assert one.wanted == other.wanted == [{"topic": "a/+", "rate": 7}]
        other.says(line(15, "b"), line(25, "d"))
        one.says(line(10, "a"), line(20, "c"), skipped=3)
        one.says(line(30, "e"))
        assert await take(traces, 6) == [
            ("n-p0", "a"),
            ("n-p1", "b"),
            ("n-p0", "c"),
            ("n-p0", "skipped 3"),
            ("n-p1", "d"),
            ("n-p0", "e"),
        ]
    assert one.open == other.open == 0


async def test_a_clock_that_is_set_back_keeps_the_order_of_its_log(
    traced: list[TracedBroker],
) -> None:
    one, other = traced
    async with open_traces(brokers_of(traced), **TOPIC) as traces:
        one.says(line(50, "a"), line(10, "b"))
        other.says(line(20, "c"), line(60, "d"))
        assert [said for _, said in await take(traces, 4)] == ["c", "a", "b", "d"]


async def test_a_line_waits_for_earlier_ones_of_the_other_log(traced: list[TracedBroker]) -> None:
    one, other = traced
    async with open_traces(brokers_of(traced), **TOPIC) as traces:
        one.says(line(20, "later"))
        taking = asyncio.create_task(take(traces, 2))
        await asyncio.sleep(trace_client._HOLD_SECONDS / 5)
        other.says(line(10, "earlier"))
        assert [said for _, said in await taking] == ["earlier", "later"]


async def test_a_trace_continues_when_its_broker_is_back(traced: list[TracedBroker]) -> None:
    one, other = traced
    brokers = brokers_of(traced)
    async with open_traces(brokers, **TOPIC) as traces:
        other.says(line(10, "a"))
        other.goes()
        assert await take(traces, 2) == [("n-p1", "a"), ("n-p1", "away")]
        assert list(brokers.absent) == ["n-p1"]
        one.says(line(20, "b"))
        assert await take(traces, 1) == [("n-p0", "b")]
        other.there = True
        other.says(line(30, "c"))
        assert await take(traces, 2) == [("n-p1", "back"), ("n-p1", "c")]
        assert brokers.absent == {}
        assert len(other.wanted) == 2


async def test_a_broker_missing_at_the_start_is_reported(traced: list[TracedBroker]) -> None:
    one, other = traced
    other.there = False
    brokers = brokers_of(traced)
    async with open_traces(brokers, **TOPIC) as traces:
        assert [broker.node for broker in brokers.present] == ["n-p0"]
        one.says(line(10, "a"))
        assert await take(traces, 2) == [("n-p1", "away"), ("n-p0", "a")]
    one.there = False
    with pytest.raises(NoLiveBroker, match="no broker of node n-p0 answers"):
        async with open_traces(brokers_of(traced), **TOPIC):
            pass


async def test_the_trace_ends_with_the_last_broker(traced: list[TracedBroker]) -> None:
    one, other = traced
    async with open_traces(brokers_of(traced), **TOPIC) as traces:
        one.says(line(10, "a"))
        one.goes()
        other.goes()
        seen: list[str] = []

        async def read() -> None:
            async for portion in traces.portions():
                seen.extend(one["what"] for one in portion.lines)

        with pytest.raises(NoLiveBroker, match="is gone"):
            await read()
        assert seen == ["a"]


async def test_a_refusal_at_the_start_is_one(traced: list[TracedBroker]) -> None:
    traced[1].refusal = Refused("8 traces are already running: no more are allowed")
    with pytest.raises(Refused, match="8 traces"):
        async with open_traces(brokers_of(traced), **TOPIC):
            pass
    assert traced[0].open == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_the_output_names_the_logs_and_missing_lines(
    as_json: bool,
    traced: list[TracedBroker],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = traced

    async def feed() -> None:
        while not (one.wanted and other.wanted):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        other.says(line(10, "a"))
        other.goes()
        one.says(line(20, "b"), skipped=2)
        one.says(line(30, "c"))

    @contextlib.asynccontextmanager
    async def found(_flags: SourceFlags) -> AsyncIterator[LogBrokers]:
        feeding = asyncio.create_task(feed())
        yield brokers_of(traced)
        await feeding

    monkeypatch.setattr(tail, "open_brokers", found)
    with pytest.raises(NoLiveBroker) as missing:
        tail.run_tail(SourceFlags(), TOPIC, None, 3, as_json=as_json)
    assert str(missing.value) == "incomplete, without 1 of 2 logs: the broker of node n-p1 is gone"
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "foldmq: tracing topic a/+ in logs n-p0, n-p1",
        "foldmq: the broker of node n-p1 is gone; its lines are missing until it is back",
    ]
    lines = said.out.splitlines()
    if as_json:
        assert [one.partition('"kind"')[2].split('"')[1] for one in lines] == [
            *("new", "lost", "new", "skipped", "new")
        ]
        assert ['"log":"n-p1"' in one.replace(" ", "") for one in lines] == [True] * 2 + [False] * 3
    else:
        assert lines[1] == "... p1: its broker is gone"
        assert lines[3] == "... p0: skipped 2 lines above the rate limit"
        shown = [one.split(maxsplit=1)[1].split() for one in (lines[0], lines[2], lines[4])]
        assert shown == [
            [log, "session:1", "new", what] for log, what in (("p1", "a"), ("p0", "b"), ("p0", "c"))
        ]
