"""The HTTP API without a broker: its table, document, parameters, bounds and streams."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from cli.logs.broker_client import Refused
from cli.web.api import bounds as bounds_module
from cli.web.api.bounds import BURST, DEAR_QUEUE, STREAMS, STREAMS_OF_TOKEN, RequestBounds
from cli.web.api.endpoints import ApiEndpoints, accepted, sentence
from cli.web.api.live_lists import ListExpired, LiveLists
from cli.web.api.openapi import openapi_document
from cli.web.api.operation import Item, StreamMark, refusal
from cli.web.api.operations import BASE, OPERATIONS
from cli.web.api.parameters import ListParams, moment, read_params
from cli.web.api.past_answers import EventsParams, place_text, places_after
from cli.web.api.problem_types import (
    BY_NAME,
    KeyReused,
    NotAcceptable,
    TooDear,
    TooManyRequests,
    TooManyStreams,
    problem_details,
    problem_of,
)
from cli.web.api.publishing import ApiPublisher
from cli.web.api.snapshots import matches_tag
from cli.web.api.streams import EVENT_STREAM, NDJSON, as_event, as_line, send_stream
from cli.web.tokens import Grant, Role
from eventstore.errors import (
    CorruptLog,
    CutMeanwhile,
    CutOff,
    LogUnavailable,
    NoLog,
    NotFound,
    UsageError,
)
from eventstore.format.positions import position
from eventstore.reading.log_points import LogPoint

ROOT = Path(__file__).parents[2]

# ------------------------------------------------------------------------------- the table


def _reference() -> Any:
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "tools/api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _outline(document: dict[str, Any]) -> dict[str, Any]:
    """What the document says, whatever words pydantic chooses for a schema."""
    operations = {
        (path, method): (
            one["operationId"],
            one["x-role"],
            [(each["name"], each["in"], each["required"]) for each in one["parameters"]],
            sorted(one["responses"]),
            sorted(one["responses"].get("200", one["responses"].get("201"))["content"]),
        )
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }
    members = {
        name: sorted(one.get("properties", ()))
        for name, one in document["components"]["schemas"].items()
    }
    return {"operations": operations, "members": members}


def test_the_document_in_the_tree_is_that_of_the_table() -> None:
    written = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    assert _outline(written) == _outline(openapi_document(OPERATIONS))


def test_the_page_has_the_tables() -> None:
    module = _reference()
    assert module.PAGE.read_text("utf-8") == module.page(), "run python tools/api_reference.py"


def test_each_route_is_described() -> None:
    app, nothing = web.Application(), cast("Any", None)
    ApiEndpoints(nothing, nothing).install(app)
    routes = {(one.method, one.resource.canonical) for one in app.router.routes() if one.resource}
    described = {
        (method.upper(), BASE + path)
        for path, methods in openapi_document(OPERATIONS)["paths"].items()
        for method in methods
    }
    described |= {("GET", f"{BASE}/openapi.json"), ("GET", f"{BASE}/problem-types/{{name}}")}
    assert {route for route in routes if route[0] != "HEAD"} == described


def test_names_and_routes_are_unique() -> None:
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    for one in OPERATIONS:
        assert {*one.path_params, *one.moments} <= one.params.model_fields.keys(), one.name
        assert (one.function is None) == (one.method != "GET") == (one.body is not None), one.name


def test_a_refusal_says_what_is_missing() -> None:
    operate = refusal(Role.OPERATE, Role.PUBLISH, changes=False)
    assert operate == "tokens with the role operate may publish if web_operate is set"
    assert refusal(Role.OPERATE, Role.PUBLISH, changes=True) == ""
    assert "may only publish" in refusal(Role.PUBLISH, Role.VIEW, changes=True)
    assert "view-all, or a higher one" in refusal(Role.VIEW, Role.VIEW_ALL, changes=True)


# ------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": "0"}, "limit: input should be greater than or equal to 1"),
        ({"limit": "many"}, "limit: input should be a valid integer"),
        ({"colour": "red"}, "colour: extra inputs are not permitted"),
        ({"after": "tomorrow"}, "after: string should match pattern"),
        ({"from_": "1"}, "from_"),
    ],
)
def test_an_invalid_parameter_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_params(ListParams, given)


def test_parameters_are_read_as_their_types() -> None:
    params = read_params(EventsParams, {"from": "3", "type": ["Acked"], "follow": "true"})
    assert isinstance(params, EventsParams)
    assert (params.from_, params.type, params.follow, params.limit) == ("3", ("Acked",), True, 100)


def test_moments_are_positions_times_and_ages() -> None:
    assert moment("12").position == position(12, (1 << 20) - 1)
    assert moment("12.3").position == position(12, 3)
    assert moment("@1764408600").time_ms == 1_764_408_600_000
    assert moment("@1764408600.25").time_ms == 1_764_408_600_250
    # A time without a zone is in UTC, whatever the zone of the machine.
    assert moment("2025-11-29T09:30:00").time_ms == 1_764_408_600_000
    assert moment("2025-11-29T10:30:00+01:00").time_ms == 1_764_408_600_000
    ago, now = moment("10m").time_ms, moment("now").time_ms
    assert ago is not None
    assert now is not None
    assert 599_000 <= now - ago <= 601_000


@pytest.mark.parametrize("given", ["soon", "", "12.", "-1", "12.3.4", "@", "10 parsecs", "\x00"])
def test_other_text_is_no_moment(given: str) -> None:
    with pytest.raises(UsageError, match="not a moment"):
        moment(given)


def test_a_list_continues_behind_an_event() -> None:
    assert place_text({"": position(12, 3)}) == "12.3"
    assert places_after("12.3", [""]) == {"": LogPoint(12, 4)}
    both = {"p0": position(7, 0), "p1": position(9, 1)}
    assert places_after(place_text(both), both) == {"p0": LogPoint(7, 1), "p1": LogPoint(9, 2)}
    # Of a record that was read to its end, the next one is meant.
    assert places_after(place_text({"": position(6, 0) - 1}), [""]) == {"": LogPoint(6, 0)}


@pytest.mark.parametrize("given", ["", "12.3,13.4", "p9:1.0", "x", "p0:1.0,p1:x"])
def test_the_place_of_another_log_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="not one of this log"):
        places_after(given, ["p0", "p1"])


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        (NDJSON, NDJSON),
        ("application/json;q=0.5, text/event-stream", EVENT_STREAM),
        ("text/*", EVENT_STREAM),
        ("application/x-ndjson; q=1.0", NDJSON),
    ],
)
def test_the_client_chooses_the_form(header: str, chosen: str) -> None:
    assert accepted(header, ("application/json", NDJSON, EVENT_STREAM)) == chosen


@pytest.mark.parametrize("header", ["text/html", "application/json;q=0", "image/*"])
def test_no_form_is_acceptable(header: str) -> None:
    with pytest.raises(NotAcceptable):
        accepted(header, ("application/json", NDJSON))


def test_a_tag_is_compared_as_a_whole() -> None:
    assert matches_tag('"a", W/"b"', "b")
    assert matches_tag("*", "b")
    assert not matches_tag('"ab"', "b")
    assert not matches_tag("*", "")
    assert not matches_tag(None, "b")


# ---------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (UsageError("x"), 400, "invalid-request"),
        (NotFound("x"), 404, "not-found"),
        (Refused("x"), 404, "not-found"),
        (NoLog("x"), 404, "no-log"),
        (CutOff("x"), 410, "cut"),
        (ListExpired(), 410, "list-expired"),
        (CorruptLog(3, "x"), 500, "internal"),
        (CutMeanwhile(3), 503, "cut-meanwhile"),
        (LogUnavailable("x"), 503, "unavailable"),
    ],
)
def test_errors_have_a_status(error: Any, status: int, name: str) -> None:
    kind = problem_of(error)
    assert (kind.status, kind.name) == (status, name)
    details = problem_details(error, str(error), "/api/v1")
    assert details["type"] == f"/api/v1/problem-types/{name}"
    assert details["type"].rpartition("/")[2] in BY_NAME


def test_flags_of_commands_are_parameters_here() -> None:
    said = "5 is a position of one log: give a time, or --node, one of a, b"
    assert sentence(UsageError(said)) == said.replace("--node", "log")
    assert sentence(UsageError("--from is later than --to")) == "from is later than to"
    said = "position 2.0 is not a message: foldmq log --from 2.0 -n 1 shows it"
    assert sentence(UsageError(said)).endswith("log --from 2.0 -n 1 shows it")


# ---------------------------------------------------------------------------------- bounds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_token_has_a_rate_of_its_own() -> None:
    clock = Clock()
    bounds = RequestBounds(clock)
    for _ in range(int(BURST)):
        bounds.take("ann")
    with pytest.raises(TooManyRequests):
        bounds.take("ann")
    bounds.take("bob")
    clock.now += 0.1
    bounds.take("ann")


def test_streams_are_counted_and_given_back() -> None:
    bounds = RequestBounds()
    held = [bounds.stream("ann") for _ in range(STREAMS_OF_TOKEN)]
    for one in held:
        one.__enter__()
    with pytest.raises(TooManyStreams, match=f"{STREAMS_OF_TOKEN}"), bounds.stream("ann"):
        pass
    others = [bounds.stream(f"token {n}") for n in range(STREAMS - STREAMS_OF_TOKEN)]
    for one in others:
        one.__enter__()
    with pytest.raises(TooManyStreams, match=f"{STREAMS}"), bounds.stream("bob"):
        pass
    held[0].__exit__(None, None, None)
    with bounds.stream("bob"):
        pass


async def test_dear_requests_wait_for_a_turn_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds_module, "DEAR_SECONDS", 0.2)
    bounds = RequestBounds()
    running = most = 0

    async def work(seconds: float) -> None:
        nonlocal running, most
        async with bounds.dear("foldmq why"):
            running += 1
            most = max(most, running)
            await asyncio.sleep(seconds)
            running -= 1

    await asyncio.gather(*(work(0.001) for _ in range(6)))
    assert most == 2
    with pytest.raises(TooDear) as caught:
        await work(30.0)
    assert caught.value.fields == {"command": "foldmq why"}
    stuck = [asyncio.create_task(work(30.0)) for _ in range(2 + DEAR_QUEUE)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(TooDear, match="too many"):
        await work(0.0)
    found = await asyncio.gather(*stuck, return_exceptions=True)
    assert {type(one) for one in found} == {TooDear}
    running = 0
    await work(0.0)  # nothing was left taken


async def _entries(count: int, *more: StreamMark) -> AsyncIterator[Item | StreamMark]:
    for number in range(count):
        yield Item({"n": number}, str(number))
    for mark in more:
        yield mark
    if more:
        await asyncio.sleep(30.0)  # nothing happens


async def test_dear_streams_read_on_in_turns() -> None:
    bounds = RequestBounds()
    reading = most = 0

    async def entries() -> AsyncIterator[Item | StreamMark]:
        nonlocal reading, most
        async for entry in _entries(200):
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0)
            reading -= 1
            yield entry

    async def read() -> list[object]:
        return [entry.value["n"] async for entry in bounds.in_turns(entries())]

    assert await asyncio.gather(*(read() for _ in range(5))) == [[*range(200)]] * 5
    assert most == bounds_module.DEAR_AT_ONCE


async def test_a_stream_that_waits_or_is_not_read_holds_no_turn() -> None:
    bounds = RequestBounds()
    followed = [bounds.in_turns(_entries(3, StreamMark("live", {}))) for _ in range(3)]
    unread = [bounds.in_turns(_entries(200)) for _ in range(3)]
    for stream in followed:
        assert [await anext(stream) for _ in range(4)][-1] == StreamMark("live", {})
    waiting = [asyncio.ensure_future(anext(stream)) for stream in followed]
    for stream in unread:
        await anext(stream)
    async with asyncio.timeout(5), bounds.dear("foldmq why"), bounds.dear("foldmq log"):
        pass
    for each in waiting:
        each.cancel()


async def test_an_error_comes_behind_what_was_read() -> None:
    async def entries() -> AsyncIterator[Item | StreamMark]:
        async for entry in _entries(3):
            yield entry
        raise CutOff("gone")

    found = RequestBounds().in_turns(entries())
    assert [await anext(found) for _ in range(3)] == [Item({"n": n}, str(n)) for n in range(3)]
    with pytest.raises(CutOff):
        await anext(found)


# ----------------------------------------------------------------------------- live lists


class FakeLink:
    """A broker with numbered rows, in pages of three."""

    names: ClassVar[list[str]] = []

    def __init__(self, count: int) -> None:
        self.pages = [
            [{"session": f"s{n}"} for n in range(start, min(start + 3, count))]
            for start in range(0, count, 3)
        ] or [[]]
        self.asked = 0

    def _page(self, number: int) -> dict[str, Any]:
        more = number + 1 < len(self.pages)
        return {"rows": self.pages[number], "cursor": str(number + 1) if more else None}

    async def ask_each(self, _endpoint: str, **_: Any) -> list[tuple[str, dict[str, Any]]]:
        return [("", self._page(0))]

    async def ask_log(self, _log: str, _endpoint: str, cursor: str) -> dict[str, Any]:
        self.asked += 1
        if cursor == "expired":
            raise Refused("this list has expired: request it again")
        return self._page(int(cursor))


async def _rows(lists: LiveLists, start: str | None, count: int, match: str = "*") -> list[Any]:
    found: list[Any] = []
    async for part in lists.parts("sessions", {"match": match}, start, None, of_all=True):
        found += part
        if len(found) >= count:
            break
    return found[:count]


async def test_a_live_list_goes_on_where_its_page_ended() -> None:
    link = FakeLink(10)
    lists = LiveLists(cast("Any", link))
    first = await _rows(lists, None, 4)
    second = await _rows(lists, first[-1][1], 4)
    again = await _rows(lists, first[-1][1], 4)
    rest = await _rows(lists, second[-1][1], 4)
    names = [row["session"] for row, _ in first + second + rest]
    assert names == [f"s{n}" for n in range(10)]
    assert again == second
    assert link.asked == 3
    assert await _rows(lists, rest[-1][1], 4) == []
    with pytest.raises(ListExpired):
        await _rows(lists, first[-1][1], 4, match="other")
    with pytest.raises(ListExpired):
        await _rows(LiveLists(cast("Any", link)), first[-1][1], 4)


# --------------------------------------------------------------------------------- streams


def test_items_and_gaps_are_written() -> None:
    item, gap = Item({"a": "x\ny"}, "12.3"), StreamMark("gap", {"first": "7.0"})
    assert as_line(item) == b'{"a":"x\\ny"}\n'
    assert as_event(item) == b'id: 12.3\nevent: message\ndata: {"a":"x\\ny"}\n\n'
    assert as_line(gap) == b'{"event":"gap","first":"7.0"}\n'
    assert as_event(gap) == b'event: gap\ndata: {"first":"7.0"}\n\n'
    assert as_line(StreamMark("live", {})) == b""
    # Who got no message yet must not miss any while it reconnects.
    assert as_event(StreamMark("live", {}, "7.1")) == b"id: 7.1\nevent: live\ndata: {}\n\n"
    assert as_line(Item({"bad": "\ud800"}, "1")) == b'{"bad":"?"}\n'


async def _served(
    entries: Callable[[], AsyncIterator[Item | StreamMark]], form: str
) -> tuple[TestClient[Any, Any], Callable[[], Awaitable[None]]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = form
        await response.prepare(request)
        await send_stream(request, response, entries(), lambda error: {"detail": str(error)})
        return response

    app = web.Application()
    app.router.add_get("/", handle)
    client = TestClient(TestServer(app))
    await client.start_server()
    return client, client.close


@pytest.mark.system
async def test_an_error_in_the_middle_is_said() -> None:
    async def entries() -> AsyncIterator[Item]:
        yield Item({"n": 1}, "1.0")
        raise CutMeanwhile(9)

    for form, said in ((NDJSON, '{"error":{"detail":"'), (EVENT_STREAM, "event: error\ndata: ")):
        client, close = await _served(entries, form)
        text = await (await client.get("/")).text()
        await close()
        assert '{"n":1}' in text
        assert said in text
    assert text.endswith("event: end\ndata: {}\n\n")


@pytest.mark.system
async def test_a_slow_reader_pauses_the_reading() -> None:
    produced = 0
    ended = asyncio.Event()

    async def entries() -> AsyncIterator[Item]:
        nonlocal produced
        try:
            while True:
                produced += 1
                yield Item({"filling": "x" * 1000}, str(produced))
        finally:
            ended.set()

    client, close = await _served(entries, NDJSON)
    response = await client.get("/")
    await response.content.readany()
    before = -1
    while produced != before:  # until nothing more is read
        before = produced
        await asyncio.sleep(0.2)
    assert produced < 20_000
    response.close()
    await _until(ended)
    await close()


@pytest.mark.system
async def test_reading_ends_when_the_client_leaves_while_nothing_happens() -> None:
    ended = asyncio.Event()

    async def entries() -> AsyncIterator[Item]:
        try:
            yield Item({"n": 1}, "1.0")
            await asyncio.sleep(3600)
        finally:
            ended.set()

    client, close = await _served(entries, EVENT_STREAM)
    response = await client.get("/")
    await response.content.readany()
    response.close()
    await _until(ended)
    await close()


async def _until(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


# ------------------------------------------------------------------------------ publishing


class PublishLink:
    """A broker that publishes, and counts."""

    names: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.parts: list[list[dict[str, Any]]] = []
        self.fails = False

    async def logs(self) -> list[str]:
        return [""]

    async def ask_log(self, _log: str, _endpoint: str, **request: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.fails:
            raise LogUnavailable("no broker")
        done = sum(map(len, self.parts))
        self.parts.append(request["messages"])
        receipts = [
            {"position": position(done + at, 0), "matched": 1}
            for at in range(1, len(request["messages"]) + 1)
        ]
        return {"node": "n", "receipts": receipts}


GRANT = Grant("gateway", Role.PUBLISH, "0" * 64)


async def _publishing(publisher: ApiPublisher) -> TestClient[Any, Any]:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await publisher.publish(request, GRANT, "/api/v1")
        except Exception as error:  # noqa: BLE001 - as the API answers it
            return web.Response(status=problem_of(error).status, text=str(error))

    app = web.Application()
    app.router.add_post("/", handle)
    client = TestClient(TestServer(app))
    await client.start_server()
    return client


@pytest.mark.system
async def test_a_key_publishes_once() -> None:
    link, clock = PublishLink(), Clock()
    client = await _publishing(ApiPublisher(cast("Any", link), clock))
    key = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    body = b'{"topic":"a","payload":"1"}'
    both = await asyncio.gather(*(client.post("/", data=body, headers=key) for _ in range(2)))
    third = await client.post("/", data=body, headers=key)
    assert {one.status for one in (*both, third)} == {201}
    assert {await one.text() for one in (*both, third)} == {
        '{"position":"1.0","log":"n","matched":1}'
    }
    assert {one.headers["Location"] for one in both} == {"/api/v1/messages/1.0"}
    assert len(link.parts) == 1
    other = await client.post("/", data=b'{"topic":"b"}', headers=key)
    assert other.status == problem_of(KeyReused("")).status == 422
    clock.now += 601
    assert (await client.post("/", data=body, headers=key)).status == 201
    assert len(link.parts) == 2
    await client.close()


@pytest.mark.system
async def test_a_failed_request_may_be_tried_again_with_its_key() -> None:
    link = PublishLink()
    client = await _publishing(ApiPublisher(cast("Any", link)))
    key = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    link.fails = True
    assert (await client.post("/", data=b'{"topic":"a"}', headers=key)).status == 503
    link.fails = False
    assert (await client.post("/", data=b'{"topic":"a"}', headers=key)).status == 201
    await client.close()


@pytest.mark.system
@pytest.mark.parametrize("key", ["", "k" * 201, "a b", "é"])
async def test_a_key_that_the_schema_forbids_is_refused(key: str) -> None:
    link = PublishLink()
    client = await _publishing(ApiPublisher(cast("Any", link)))
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    assert (await client.post("/", data=b'{"topic":"a"}', headers=headers)).status == 400
    assert link.parts == []
    await client.close()


@pytest.mark.system
async def test_many_messages_are_sent_in_parts_that_fit() -> None:
    link = PublishLink()
    client = await _publishing(ApiPublisher(cast("Any", link)))
    lines = b"".join(b'{"topic":"a","payload":"%b"}\n' % (b"x" * 100_000) for _ in range(9))
    answer = await client.post("/", data=lines, headers={"Content-Type": NDJSON})
    assert [len(part) for part in link.parts] == [2, 2, 2, 2, 1]
    receipts = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert [one["position"] for one in receipts] == [f"{n}.0" for n in range(1, 10)]
    await client.close()


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "body", "status", "said"),
    [
        ("application/json", b"{", 400, "the body: is not JSON"),
        ("application/json", b"[]", 400, "the body"),
        ("application/json", b'{"topic":"a/+"}', 400, "the body: topic"),
        ("application/json", b'{"topic":"a","qos":3}', 400, "the body: qos"),
        ("application/json", b'{"topic":"a","qos":true}', 400, "the body: qos"),
        ("application/json", b'{"topic":"a","color":1}', 400, "the body: color"),
        ("application/json", b'{"topic":"a","payload":"x","payload_base64":"eA=="}', 400, "one of"),
        ("application/json", b'{"topic":"a","payload_base64":"e"}', 400, "not base64"),
        ("text/plain", b"x", 415, "Content-Type"),
        (NDJSON, b"", 400, "1 to 1,000 lines"),
        (NDJSON, b'{"topic":"a"}\n' * 1001, 400, "1 to 1,000 lines"),
        (NDJSON, b'{"topic":"a"}\n{"topic":""}\n', 400, "line 2: topic"),
        ("application/json", b'{"topic":"a","payload":"%b"}' % (b"x" * 270_000), 413, "262,144"),
        ("application/json", b'"%b"' % (b"x" * 600_000), 413, "524,288"),
    ],
)
async def test_a_bad_message_publishes_nothing(
    kind: str, body: bytes, status: int, said: str
) -> None:
    link = PublishLink()
    client = await _publishing(ApiPublisher(cast("Any", link)))
    answer = await client.post("/", data=body, headers={"Content-Type": kind})
    text = await answer.text()
    await client.close()
    assert (answer.status, link.parts) == (status, []), text
    assert said in text
