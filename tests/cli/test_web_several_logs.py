"""The web page where there are several logs: lists, changes and activity of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from nats.aio.client import Client

from cli.logs import reconnecting_client
from cli.logs.broker_client import LiveBroker, NoLiveBroker, Refused, TooLarge
from cli.logs.log_brokers import LogBrokers
from cli.logs.source_flags import SourceFlags
from cli.web import web_log_client
from cli.web.activity import Activity, ActivityOfLogs
from cli.web.activity_reader import ActivityReader, ReadersOfLogs
from cli.web.paged_lists import PAGE_ROWS, Listings, Order
from cli.web.pages.responses import Site
from cli.web.planned_change import plan_change
from cli.web.time_axis import TimeWindow
from cli.web.tokens import Grant, Role
from cli.web.web_log_client import WebLogClient
from eventstore.errors import UsageError
from eventstore.format.events import LOG_SESSION, MessagePublished, SessionOpened
from eventstore.format.records import decode_record
from eventstore.format.records import encode_record as encoded
from eventstore.partitions import partition_of

if TYPE_CHECKING:
    from aiohttp import web

LOGS = ["n-p0", "n-p1"]
NOW_MS = 1_800_000_000_000
Answers = dict[str, Any]


class AnsweringBroker(LiveBroker):
    """Answers with what the test says, or raises it."""

    answer: Callable[[str, str, Answers], Answers]

    def __init__(self, log: str, answer: Callable[[str, str, Answers], Answers]) -> None:
        super().__init__(log, "here", cast("Client", None), log)
        object.__setattr__(self, "answer", answer)

    @property
    def connected(self) -> bool:
        return True

    async def ask(self, endpoint: str, /, **request: Any) -> Answers:
        return self.answer(self.node, endpoint, request)


class Link(WebLogClient):
    """The connection of the page to brokers that answer as the test says."""

    def __init__(self, answer: Callable[[str, str, Answers], Answers], count: int = 2) -> None:
        super().__init__(SourceFlags())
        self.brokers = [AnsweringBroker(log, answer) for log in LOGS[:count]]
        self._find = self._found_brokers

    @contextlib.asynccontextmanager
    async def _found_brokers(self) -> AsyncIterator[LogBrokers]:
        yield LogBrokers(self.brokers, LOGS if len(self.brokers) > 1 else [])


class PageRequest(dict[str, Any]):
    """A request for a page."""

    path = raw_path = "/"
    query: ClassVar[dict[str, str]] = {}

    @property
    def rel_url(self) -> PageRequest:
        return self

    def update_query(self, **_query: str) -> str:
        return self.path


def client_of(number: int) -> str:
    return next(name for name in map(str, range(100)) if partition_of(name, 2) == number)


def page(*rows: Answers, total: int | None = None, cursor: str | None = None) -> Answers:
    number = len(rows) if total is None else total
    return {"rows": list(rows), "total": number, "more": cursor is not None, "cursor": cursor}


# --------------------------------------------------------------------------------- lists


async def test_a_list_has_the_rows_of_all_logs_and_pages_of_each() -> None:
    def answer(log: str, endpoint: str, request: Answers) -> Answers:
        start = int(request.get("cursor", 0))
        rows = [{"client": f"{log} {at:04}"} for at in range(start, min(start + 90, 180))]
        more = str(start + 90) if start + 90 < 180 else None
        assert endpoint == ("page" if start else "sessions")
        return page(*rows, total=180, cursor=more)

    lists = Listings(Link(answer))
    order = Order("client", lambda row: str(row["client"]))
    first = await lists.find("sessions", {}, order, None, 0)
    assert first.about["total"] == 360
    assert {row["log"] for row in first.rows} == {"n-p0"}
    seen = [*first.rows]
    for number in range(1, 4):
        seen += (await lists.find("sessions", {}, order, first.id, number)).rows
    assert [row["client"] for row in seen] == sorted(
        f"{log} {at:04}" for log in LOGS for at in range(180)
    )
    assert all(row["client"].startswith(row["log"]) for row in seen)


async def test_the_highest_rows_are_those_of_all_logs() -> None:
    def answer(log: str, _endpoint: str, request: Answers) -> Answers:
        assert request["top"]["by"] == "queued"
        if request["top"]["count"] > fits:
            raise TooLarge("the answer is too large")
        figures = ((9, 1) if log == "n-p1" else (5, 4))[: request["top"]["count"]]
        return page(*({"client": f"{log}{one}", "queued": one} for one in figures), total=2)

    fits, link = 500, Link(answer)
    found = await Listings(link).find("sessions", {}, "queued", None, 0)
    rows = [(row["log"], row["queued"]) for row in found.rows]
    assert rows == [("n-p1", 9), ("n-p0", 5), ("n-p0", 4), ("n-p1", 1)]
    assert found.about["total"] == 4
    fits = 1  # the second highest of a log may be above the highest of the other
    found = await Listings(link).find("sessions", {}, "queued", None, 0)
    assert [(row["log"], row["queued"]) for row in found.rows] == [("n-p1", 9)]


async def test_retained_messages_are_those_of_one_log() -> None:
    def answer(log: str, endpoint: str, _request: Answers) -> Answers:
        if log == "n-p0":
            raise NoLiveBroker("n-p0 hangs")
        assert endpoint == "retained"
        return {**page({"topic": "a"}), "bytes": 5}

    found = await Listings(Link(answer)).find("retained", {}, None, None, 0)
    assert found.rows == [{"topic": "a", "log": "n-p1"}]
    assert (found.about["total"], found.about["bytes"]) == (1, 5)


async def test_the_retained_message_of_a_topic_names_its_log() -> None:
    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        return {**page({"client": log}), "published_qos": 1, "retained": {"ref": len(log)}}

    found = await Listings(Link(answer)).find("subscriptions", {"topic": "a"}, None, None, 0)
    assert found.about["retained"] == {"ref": 4, "log": "n-p0"}
    assert found.about["published_qos"] == 1
    assert [row["log"] for row in found.rows] == LOGS


async def test_a_list_without_its_broker_has_a_notice() -> None:
    gone: list[str] = []

    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        if log in gone:
            raise NoLiveBroker(f"{log} is gone")
        return page(*({"client": f"{log}{at}"} for at in range(80)), total=500, cursor="c")

    lists = Listings(Link(answer))
    first = await lists.find("actors", {}, None, None, 0)
    assert (len(first.rows), first.more) == (PAGE_ROWS, True)
    gone.append("n-p0")
    second = await lists.find("actors", {}, None, first.id, 1)
    assert "expired" in (second.problem or "")


# ---------------------------------------------------------------------------- the brokers


async def test_a_broker_that_does_not_answer_is_named_while_others_do() -> None:
    def answer(log: str, endpoint: str, _request: Answers) -> Answers:
        if log == "n-p0":
            raise NoLiveBroker("n-p0 hangs")
        return {"endpoint": endpoint}

    def asked(log: str, endpoint: str, request: Answers) -> Answers:
        questions.append((log, endpoint))
        return answer(log, endpoint, request)

    questions: list[tuple[str, str]] = []
    link = Link(asked)
    assert await link.logs() == LOGS
    assert await link.ask_each("status") == [("n-p1", {"endpoint": "status"})]
    assert link.absent == ["n-p0"]
    await link.ask_each("actors")
    assert questions == [("n-p0", "status"), ("n-p1", "status"), ("n-p1", "actors")]
    assert await link.ask_any("retained.get") == ("n-p1", {"endpoint": "retained.get"})
    with pytest.raises(NoLiveBroker):
        await link.ask_log("n-p0", "status")
    assert link.epoch == 1, "the connection to the others is kept"


async def test_no_broker_counts_as_failed_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that was started a moment ago."""
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    link = Link(lambda *_: {})
    assert await link.logs() == LOGS
    assert link.absent == []


async def test_a_broker_that_hangs_delays_only_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class HangingBroker(AnsweringBroker):
        async def ask(self, endpoint: str, /, **request: Any) -> Answers:
            await asyncio.sleep(3600 if asked else 0)
            asked.append(endpoint)
            raise NoLiveBroker("no reply")

    monkeypatch.setattr(reconnecting_client, "_LATE_SECONDS", 0.01)
    monkeypatch.setattr(web_log_client, "_PASSED_OVER_SECONDS", -1.0)
    asked: list[str] = []
    link = Link(lambda log, *_: {"log": log})
    link.brokers[0] = HangingBroker(LOGS[0], lambda *_: {})
    async with asyncio.timeout(60):
        for _ in range(3):
            assert (await link.ask_any("retained"))[0] == "n-p1"
    assert len(asked) == 1


async def test_the_login_form_does_not_reveal_which_brokers_answer() -> None:
    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        if log == "n-p0":
            raise NoLiveBroker("n-p0 hangs")
        return {}

    link = Link(answer)
    await link.ask_each("status")

    def shown(grant: Grant | None) -> str:
        request = cast("web.Request", PageRequest(grant=grant))
        page = Site(link).page(request, "login.html", problem=None, following="/", file="web.token")
        return page.text or ""

    assert "No answer from" not in shown(None)
    assert "No answer from n-p0" in shown(Grant("ann", Role.VIEW, "mark"))


async def test_the_log_of_a_session_is_that_of_its_client() -> None:
    link = Link(lambda *_: {})
    assert await link.log_of(client_of(1)) == "n-p1"
    assert await link.log_of("$share/g/a", "n-p0") == "n-p0"
    assert await link.check_log("n-p1") == "n-p1"
    assert await link.check_log("other") == ""
    with pytest.raises(UsageError):
        await link.log_of("$log/n-p0")


async def test_a_single_log_has_no_name() -> None:
    link = Link(lambda *_: page({"client": "a"}), count=1)
    assert await link.logs() == [""]
    assert await link.log_of("$share/g/a") == ""
    assert link.names == []
    ((log, answer),) = await link.ask_each("sessions")
    assert (log, answer["rows"]) == ("", [{"client": "a", "log": ""}])
    assert (await link.ask_any("retained"))[0] == ""


# -------------------------------------------------------------------------------- changes


async def test_a_change_goes_to_the_broker_that_has_the_session() -> None:
    def answer(log: str, endpoint: str, request: Answers) -> Answers:
        assert endpoint == "session"
        if request["client"] != client_of(LOGS.index(log)):
            raise Refused("no such session")
        return {"connection": "connection:1", "connected": True}

    for number, log in enumerate(LOGS):
        client = client_of(number)
        found = await plan_change(Link(answer), {"do": "kick", "client": client})
        assert found.requests == [(log, {"do": "kick", "client": client})]


async def test_sessions_of_all_logs_are_purged_by_their_brokers() -> None:
    def answer(log: str, endpoint: str, request: Answers) -> Answers:
        if endpoint == "page":
            return page({"session": f"{log} late", "closed_ms": 9, "members": None})
        assert request["without_logs"]
        more = "c" if log == "n-p0" else None
        return page({"session": f"{log} a", "closed_ms": 5, "members": None}, cursor=more)

    found = await plan_change(Link(answer), {"do": "purge", "match": "*"})
    assert found.typed == "3"
    assert {(log, *request["clients"]) for log, request in found.requests} == {
        ("n-p0", "n-p0 a", "n-p0 late"),
        ("n-p1", "n-p1 a"),
    }
    assert {request["offline_before_ms"] for _, request in found.requests} == {5, 9}


async def test_retained_messages_are_removed_in_the_log_that_listed_them() -> None:
    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        if log == "n-p0":
            raise NoLiveBroker("n-p0 hangs")
        return page({"topic": "a", "size": 1})

    found = await plan_change(Link(answer), {"do": "clear_retained", "filter": "a"})
    assert found.requests == [("n-p1", {"do": "clear_retained", "topics": ["a"]})]


# ------------------------------------------------------------------------------- activity


def activity(*events: Any, at_ms: int = NOW_MS) -> Activity:
    data = encoded(previous=b"\0" * 32, node="n", time_ms=at_ms, events=events, payloads=[b"12345"])
    found = Activity()
    found.take(decode_record(1, data), len(data))
    return found


def published(session: str) -> MessagePublished:
    return MessagePublished(session, 1, False, ["a/b"], [], [1], 5, 0, 1)


def test_a_message_that_another_log_took_is_counted_once() -> None:
    one = activity(SessionOpened("ann", False, True, 4), published("ann"))
    opened = SessionOpened(f"{LOG_SESSION}n-p0", False, False, 4)
    other = activity(opened, published(opened.session), at_ms=NOW_MS + 5)
    both = ActivityOfLogs([one, other])
    window = TimeWindow(NOW_MS - 60_000, NOW_MS + 60_000)
    totals = both.totals(window)
    assert (totals["published"], totals["published_bytes"], totals["connect"]) == (1, 5, 1)
    assert totals["log_bytes"] == sum(
        ActivityOfLogs([log]).totals(window)["log_bytes"] for log in (one, other)
    )
    branch = both.branches("a", NOW_MS, [])["b"]
    assert (branch.messages, branch.topics, branch.publisher) == (1, 1, "ann")
    alone = ActivityOfLogs([one]).branches("a", NOW_MS, [])["b"]
    assert branch.size > alone.size, "the bytes are those in each log"
    assert both.disk_use().records == 2
    assert both.disk_use().clients[f"{LOG_SESSION}n-p0"] > 0


class Reader:
    """A reader that has come as far as the test says."""

    problem: str | None = None

    def __init__(self, since_ms: int | None, *, complete: bool) -> None:
        self.since_ms, self.complete = since_ms, complete
        self.activity = Activity()

    def reading(self) -> str | None:
        return None if self.complete else f"back to {self.since_ms}"

    async def reach(self, time_ms: int, _patience: float) -> bool:
        return self.since_ms is not None and self.since_ms <= time_ms


def readers(*given: tuple[int | None, bool]) -> ReadersOfLogs:
    made = [Reader(since_ms, complete=complete) for since_ms, complete in given]
    return ReadersOfLogs(cast("list[ActivityReader]", made))


@pytest.mark.parametrize(
    ("given", "since_ms", "reading"),
    [
        (((10, True), (50, True)), 10, None),
        (((10, False), (50, True)), 10, "back to 10"),
        (((10, True), (50, False)), 50, "back to 50"),
        (((10, True), (None, False)), None, "back to None"),
        (((10, False), (50, False)), 50, "back to 50"),
        (((10, True), (None, True)), 10, None),
    ],
)
def test_data_not_read_of_one_log_is_unknown(
    given: tuple[tuple[int | None, bool], ...], since_ms: int | None, reading: str | None
) -> None:
    both = readers(*given)
    assert (both.since_ms, both.reading()) == (since_ms, reading)


def test_a_log_that_began_later_has_no_figures_before() -> None:
    async def reached(*given: tuple[int | None, bool]) -> bool:
        return await readers(*given).reach(20, 1)

    assert asyncio.run(reached((10, True), (50, True)))
    assert not asyncio.run(reached((10, True), (50, False)))
    assert not asyncio.run(reached((30, True), (50, True)))
