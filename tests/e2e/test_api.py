"""The HTTP API of a broker with known traffic: equal to the commands, guarded, and robust."""

import base64
import contextlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from harness import forkserver
from harness.broker import Broker, environment
from harness.fixtures import Clients
from harness.waiting import until

from cli.web.api.operations import BASE, OPERATIONS
from cli.web.tokens import Role
from e2e.apiclient import FORMS, Api, Stream
from e2e.log_scenarios import FEW_QUEUED, serving
from e2e.tools import HOSTILE_ID, HOSTILE_PAYLOAD, HOSTILE_TOPIC, run
from e2e.webclient import served

CORS = "https://dashboard.example"


def _nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = f'{FEW_QUEUED}web_cors = ["{CORS}"]\n'
    with serving(tmp_path_factory.mktemp("api"), "--web", "127.0.0.1:0", config=config) as (
        made,
        _,
    ):
        yield made


@pytest.fixture(scope="module")
def api(broker: Broker) -> Api:
    found = Api(broker)
    for role in Role:
        found.token(role)
    until(lambda: found.get("/status", "view").status == 200, "the tokens are known")
    until(
        lambda: all(
            one["connected"] or one["frozen"]
            for one in found.good("/sessions", Accept=FORMS["ndjson"]).lines
        ),
        "sessions of absent clients are frozen: their rows do not change any more",
    )
    return found


# ----------------------------------------------------------------- equal to the commands

_LIVE = {"time_ms", "process", "memory", "lag", "commit", "kernel", "actors", "rates", "census"}
"""Figures that change from one look to the next."""
_GROWING = {"log", "position", "messages", "packets", "bytes", "record_events", "publish_bytes"}

SAME: dict[str, list[tuple[str, str]]] = {
    "status": [("/status", "status")],
    "metrics-summary": [],  # test_the_summary_has_figures_of_the_status
    "problems": [("/problems", "doctor"), ("/problems?subject=archive", "doctor archive")],
    "sessions": [
        ("/sessions", "sessions ls"),
        ("/sessions?connected=true&match=s*", "sessions ls --connected --match s*"),
    ],
    "session": [
        ("/sessions/archive", "sessions show archive"),
        ("/sessions/archive?at=@AT@", "replay --session archive --at @AT@"),
        ("/sessions/@HOSTILE@?at=@EVIL@", "replay --session @HOSTILE@ --at @EVIL@"),
    ],
    "subscriptions": [
        ("/subscriptions?topic=hall/door", "subscriptions --topic hall/door"),
        ("/subscriptions?topic=lamp&qos=0&size=7", "subscriptions --topic lamp -q 0 --size 7"),
    ],
    "retained": [
        ("/retained", "retained ls"),
        ("/retained?filter=lamp", "retained ls lamp"),
        ("/retained?at=@AT@", "replay --topic # --at @AT@"),
    ],
    "retained-message": [
        ("/retained/lamp", "retained get lamp"),
        ("/retained/@TOPIC@", "retained get @TOPIC@"),
    ],
    "state": [("/state?at=@AT@", "replay --at @AT@")],
    "diff": [
        ("/diff?from=2&to=@AT@", "diff 2 @AT@"),
        ("/diff?from=2&to=@AT@&session=archive", "diff 2 @AT@ --session archive"),
    ],
    "history": [
        ("/history?filter=hall/%23&to=@AT@", "history hall/# --from all --to @AT@"),
        ("/history?from=3&to=@AT@", "history # --from 3 --to @AT@"),
    ],
    "last": [("/last?to=@AT@", "history # --last --to @AT@")],
    "message": [],  # test_each_message_has_a_resource
    "story": [("/messages/@DOOR@/story", "why --position @DOOR@")],
    "why": [
        ("/why?topic=hall/door&last=3", "why --topic hall/door --last 3"),
        ("/why?topic=hall/door&client=archive", "why --client archive --topic hall/door"),
        ("/why?topic=hall/door&at=@AT@", "why --topic hall/door --at @AT@"),
    ],
    "events": [
        ("/events?to=@AT@", "log --to @AT@"),
        ("/events?session=screen&to=@AT@", "log --session screen --to @AT@"),
        (
            "/events?topic=hall/%2B&from=3&to=@AT@&payload=true",
            "log --topic hall/+ --from 3 --to @AT@ --payload",
        ),
        (
            "/events?type=Acked&type=Delivered&to=@AT@",
            "log --type Acked --type Delivered --to @AT@",
        ),
    ],
    "publish": [],  # it changes something
}
"""For each operation: requests, and the commands whose ``--json`` they equal."""


@pytest.fixture(scope="module")
def places(broker: Broker) -> dict[str, str]:
    """Positions of the log that the requests are about."""
    events = run("log", "--json", "--data-dir", str(broker.data_dir)).objects
    door = next(
        message["position"]
        for event in events
        if event["type"] == "MessagePublished"
        for message in event["messages"]
        if message["topic"] == "hall/door"
    )
    evil = next(
        one for one in events if one["type"] == "SessionOpened" and "evil" in one["session"]
    )
    last = events[-1]["position"]
    return {
        "@AT@": last.partition(".")[0],
        "@DOOR@": door,
        "@EVIL@": evil["position"].partition(".")[0],
        "@HOSTILE@": HOSTILE_ID,
        "@TOPIC@": HOSTILE_TOPIC,
    }


def test_every_operation_is_compared() -> None:
    assert SAME.keys() == {one.name for one in OPERATIONS}


def _stable(value: Any) -> Any:
    """The value without what differs between two looks."""
    if isinstance(value, dict):
        left_out = _LIVE | (_GROWING if "started_ms" in value else set())
        return {
            key: _stable(each)
            for key, each in value.items()
            if key not in left_out and not key.startswith("rate_")
        }
    if isinstance(value, str):
        return re.sub(r"\b(?:\d+ min )?\d+ m?s\b", "N s", value)  # an age in a sentence
    return [_stable(each) for each in value] if isinstance(value, list) else value


def _order(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(_stable(row), sort_keys=True) for row in rows)


@pytest.mark.parametrize(
    ("operation", "number"),
    [(one, number) for one in OPERATIONS for number in range(len(SAME[one.name]))],
    ids=lambda one: getattr(one, "name", one),
)
def test_the_answer_is_that_of_the_command(
    api: Api, places: dict[str, str], operation: Any, number: int
) -> None:
    path, text = SAME[operation.name][number]
    command = text.split()
    for name, place in places.items():
        path = path.replace(name, quote(place, safe=""))
        command = [part.replace(name, place) for part in command]
    answer = api.good(path, Accept=FORMS["ndjson"] if operation.is_list else "application/json")
    found = forkserver.run([*command, "--json", *api.data], environment(), 60.0)
    shown = [json.loads(line) for line in found[1].splitlines()]
    assert shown or operation.name == "problems", found
    if not operation.is_list:
        assert [_stable(answer.json)] == [_stable(one) for one in shown]
        return
    if operation.is_snapshot or "at=" in path:
        assert [_stable(one) for one in answer.lines] == [_stable(one) for one in shown]
    else:
        assert _order(answer.lines) == _order(shown)
    # In pages, it is the same list.
    pages, following = list[Any](), path + ("&" if "?" in path else "?") + "limit=3"
    while True:
        page = api.good(following)
        assert len(page.json["items"]) <= 3
        pages += page.json["items"]
        assert page.json["as_of"] == page.headers["Foldmq-Position"]
        link = page.headers["Link"]
        assert (link is None) == (page.json["next"] is None)
        if link is None:
            break
        assert link.startswith(f"<{BASE}")
        assert link.endswith('>; rel="next"')
        following = link[1 + len(BASE) :].partition(">")[0]
    assert _order(pages) == _order(answer.lines)


def test_each_message_has_a_resource(api: Api, places: dict[str, str]) -> None:
    rows = api.good(f"/history?to={places['@AT@']}").json["items"]
    assert len(rows) >= 6
    for row in rows:
        assert api.good(f"/messages/{row['position']}").json == row
        hidden = api.good(f"/messages/{row['position']}", "view").json
        assert hidden == {key: row[key] for key in row if not key.startswith("payload")}
    assert api.get("/messages/1.0").status == 404
    assert api.get("/messages/99999.0").status == 404


def test_the_summary_has_figures_of_the_status(api: Api) -> None:
    summary, status = api.good("/metrics-summary").json, api.good("/status").json
    assert summary["subscriptions"] == status["subscriptions"] == 3
    assert summary["retained"] == status["retained"]
    assert summary["sessions"] == status["sessions"]


# -------------------------------------------------------------------------------- access

REQUESTS = {
    "status": "/status",
    "metrics-summary": "/metrics-summary",
    "problems": "/problems",
    "sessions": "/sessions",
    "session": "/sessions/archive",
    "subscriptions": "/subscriptions?topic=a",
    "retained": "/retained",
    "retained-message": "/retained/lamp",
    "state": "/state?limit=1",
    "diff": "/diff?from=2&to=3",
    "history": "/history?limit=1",
    "last": "/last?limit=1",
    "message": "/messages/@DOOR@",
    "story": "/messages/@DOOR@/story",
    "why": "/why?topic=hall/door",
    "events": "/events?limit=1",
}
NEEDED = {
    **dict.fromkeys(["status", "metrics-summary", "problems", "sessions", "session"], Role.VIEW),
    **dict.fromkeys(["subscriptions", "retained", "retained-message", "state"], Role.VIEW),
    **dict.fromkeys(["diff", "message", "story", "why", "events"], Role.VIEW),
    **dict.fromkeys(["history", "last"], Role.VIEW_ALL),
    "publish": Role.PUBLISH,
}
"""The role that each operation needs: one without a row here fails."""
INCLUDED = {
    Role.VIEW: {Role.VIEW},
    Role.VIEW_ALL: {Role.VIEW, Role.VIEW_ALL},
    Role.OPERATE: {Role.VIEW, Role.VIEW_ALL},  # publishing needs web_operate
    Role.PUBLISH: {Role.PUBLISH},
    None: set[Role](),
}


@pytest.mark.parametrize("role", [*Role, None])
def test_the_matrix_of_roles_and_operations(
    api: Api, places: dict[str, str], role: Role | None
) -> None:
    """Of the document that the broker serves: each operation has its row."""
    document = api.get("/openapi.json", "").json
    described = [
        (method, operation["operationId"])
        for methods in document["paths"].values()
        for method, operation in methods.items()
    ]
    assert sorted(name for _, name in described) == sorted(NEEDED)
    found = {}
    for method, name in described:
        if method == "post":
            answer = api.publish({"topic": "matrix"}, role or "")
        else:
            path = REQUESTS[name].replace("@DOOR@", places["@DOOR@"])
            answer = api.get(path, role or "")
        found[name] = answer.status
    allowed = {name for name, needed in NEEDED.items() if needed in INCLUDED[role]}
    refused = 403 if role is not None else 401
    assert {name for name, status in found.items() if status in (200, 201)} == allowed
    assert {status for name, status in found.items() if name not in allowed} <= {refused}


def test_payloads_need_the_role(api: Api) -> None:
    assert "payload" in api.good("/retained/lamp").json
    assert "payload" not in api.good("/retained/lamp", "view").json
    evil = api.good(f"/retained/{quote(HOSTILE_TOPIC, safe='')}").json
    assert base64.b64decode(evil["payload_base64"]) == HOSTILE_PAYLOAD
    rows = api.good("/retained?at=now").json["items"]
    assert {"payload", "payload_base64"} & {key for row in rows for key in row}
    hidden = api.good("/retained?at=now", "view").json["items"]
    hidden += api.good("/state?at=now&limit=100", "view").json["items"]
    assert not {"payload", "payload_base64"} & {key for row in hidden for key in row}
    assert api.get("/events?payload=true", "view").status == 403
    # A tag of one form is none of the other.
    tag = api.good("/retained?at=now").headers["ETag"]
    assert api.get("/retained?at=now", "view", If_None_Match=tag).status == 200


def test_only_tokens_and_the_page_itself_are_let_in(api: Api) -> None:
    page = served(api.broker)
    assert page.get(f"{BASE}/status").status == 200  # with the cookie of the page
    assert page.ask("GET", f"{BASE}/status", Sec_Fetch_Site="x").status == 200
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": CORS},
    ):
        assert page.ask("GET", f"{BASE}/status", **headers).status == 403, headers
    assert page.ask("POST", f"{BASE}/messages", "{}").status == 403
    assert api.get("/status", "", Authorization="Bearer wrong").status == 401
    assert api.get("/status", "", Authorization="Basic eDp5").status == 401
    answer = api.get("/status", "")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert api.get(f"/status?token={api.token('view')}", "").status == 401
    assert api.get("/openapi.json", "").json["openapi"] == "3.1.0"
    assert api.get("/problem-types/cut", "").json["status"] == 410
    # A token for publishing opens no page.
    assert page.get("/").status == 200
    other = page.ask("POST", "/login", f"token={api.token('publish')}&next=/")
    assert (other.status, other.headers["Set-Cookie"]) == (403, None)


def test_head_gives_the_headers_of_get(api: Api, places: dict[str, str]) -> None:
    at = places["@AT@"]
    for path, form in (
        (f"/sessions/archive?at={at}", "application/json"),
        (f"/history?to={at}", "application/json"),
        (f"/history?to={at}", FORMS["ndjson"]),
        ("/events?follow=true", FORMS["sse"]),
        ("/openapi.json", "application/json"),
        ("/sessions/nobody", "application/json"),
    ):
        head = api.ask("HEAD", path, Accept=form)
        assert head.body == b"", path
        assert head.status == (404 if "nobody" in path else 200), path
        if "follow" not in path:
            whole = api.get(path, Accept=form)
            for name in ("Content-Type", "ETag", "Foldmq-Position"):
                assert head.headers[name] == whole.headers[name], (path, name)
    assert api.ask("HEAD", "/history", role="view").status == 403
    assert api.ask("HEAD", "/messages", role="publish").status == 405
    page = served(api.broker)
    assert page.ask("HEAD", f"{BASE}/status").status == 200


def test_who_had_subscribed_at_a_moment(api: Api, places: dict[str, str]) -> None:
    at = places["@AT@"]
    then = api.good(f"/subscriptions?topic=hall/door&at={at}", "view")
    assert then.headers["ETag"]
    now = api.good("/subscriptions?topic=hall/door", "view").json
    named = [{key: one[key] for key in ("client", "filter", "qos")} for one in now["subscriptions"]]
    found = then.json["subscriptions"]
    assert [{key: one[key] for key in ("client", "filter", "qos")} for one in found] == sorted(
        named, key=lambda one: str(one["client"])
    )
    assert found
    lamp = api.good(f"/subscriptions?topic=lamp&at={at}", "view").json
    assert lamp["retained"]["topic"] == "lamp"
    assert "payload" not in lamp["retained"]
    assert api.good("/subscriptions?topic=hall/door&at=1", "view").json["subscriptions"] == []
    assert api.get(f"/subscriptions?topic=hall/door&size=3&at={at}").status == 400


def test_other_origins_need_to_be_listed(api: Api) -> None:
    asked = {
        "Access_Control_Request_Method": "GET",
        "Access_Control_Request_Headers": "authorization",
    }
    allowed = api.ask("OPTIONS", "/status", role="", Origin=CORS, **asked)
    assert allowed.status == 204
    assert allowed.headers["Access-Control-Allow-Origin"] == CORS
    assert "Authorization" in allowed.headers["Access-Control-Allow-Headers"]
    assert allowed.headers["Access-Control-Allow-Credentials"] is None
    answer = api.good("/status", Origin=CORS)
    assert answer.headers["Access-Control-Allow-Origin"] == CORS
    for origin in ("https://evil.example", "null", CORS + ".evil.example", CORS.upper()):
        refused = api.ask("OPTIONS", "/status", role="", Origin=origin, **asked)
        assert refused.status in (401, 405)
        for one in (refused, api.good("/status", Origin=origin)):
            assert one.headers["Access-Control-Allow-Origin"] is None
    assert api.get("/status", Host="evil.example").status == 421


def test_a_token_has_a_rate(api: Api) -> None:
    run("web-token", "add", "fast", "--role", "view", *api.data)
    statuses = []
    for _ in range(300):
        statuses.append(api.ask("GET", "/status?limit=x", None, "operate").status)
        if statuses[-1] == 429:
            break
    assert statuses[-1] == 429
    assert api.good("/status", "view")


# ----------------------------------------------------------------------- moments and lists


def test_an_answer_about_a_moment_never_changes(api: Api, places: dict[str, str]) -> None:
    at = places["@AT@"]
    first = api.good(f"/sessions/archive?at={at}")
    assert first.headers["Foldmq-Position"] == first.json["as_of"] == at
    same = api.get(f"/sessions/archive?at={at}", If_None_Match=first.headers["ETag"])
    assert (same.status, same.body) == (304, b"")
    assert same.headers["ETag"] == first.headers["ETag"]
    now = api.good("/sessions/archive?at=now")
    where = now.headers["Content-Location"]
    assert where == f"{BASE}/sessions/archive?at={now.headers['Foldmq-Position']}"
    assert api.good(where.removeprefix(BASE)).body == now.body
    other = api.good(f"/sessions/screen?at={at}", If_None_Match=first.headers["ETag"])
    assert other.headers["ETag"] != first.headers["ETag"]
    live = api.good("/sessions/archive")
    assert (live.headers["ETag"], live.headers["Cache-Control"]) == (None, "no-store")


def test_a_page_goes_on_at_the_moment_of_the_first(api: Api) -> None:
    first = api.good("/state?at=now&limit=1").json
    assert api.publish({"topic": "later", "payload": "x", "retain": True}).status == 201
    rest = api.good(f"/state?at=now&limit=1000&next={first['next']}").json
    assert rest["as_of"] == first["as_of"]
    assert "later" not in {row.get("topic") for row in rest["items"]}
    for wrong in (
        f"/state?at=now&limit=1000&next={first['next'][:-3]}",
        f"/diff?from=2&next={first['next']}",
    ):
        assert api.get(wrong).status == 400


def test_a_page_is_named_by_tokens_of_this_list_only(api: Api) -> None:
    def forged(path: str, **changed: object) -> int:
        token = api.good(path).json["next"]
        value = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))) | changed
        token = base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
        return api.get(f"{path}&next={token}").status

    assert forged("/state?at=now&limit=1") == 200
    for number in ("9" * 4500, "\N{SUPERSCRIPT TWO}", "-1"):
        assert forged("/state?at=now&limit=1", place=number) == 400
    for moments in ({"limit": "x"}, {"log": "x"}, {"filter": "#/#"}):
        assert forged("/history?limit=1", moments=moments) == 400


def test_the_newest_first_as_a_stream_are_all(api: Api) -> None:
    for number in range(5):
        assert api.publish({"topic": "newest", "payload": str(number)}).status == 201
    path = "/history?filter=newest&order=newest&limit=1"
    found = api.good(path, Accept=FORMS["ndjson"]).lines
    assert [one["payload"] for one in found] == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_a_page_of_large_payloads_is_bounded(api: Api, order: str) -> None:
    line = json.dumps({"topic": f"large/{order}", "payload": "x" * 200_000}).encode() + b"\n"
    for _ in range(2):
        sent = api.ask("POST", "/messages", line * 30, "publish", Content_Type=FORMS["ndjson"])
        assert sent.status == 200
    path = f"/history?filter=large/{order}&order={order}&limit=1000"
    first = api.good(path)
    assert len(first.body) < 9 * 1024 * 1024
    rest = api.good(f"{path}&next={first.json['next']}").json
    assert rest["next"] is None
    found = [one["position"] for one in first.json["items"] + rest["items"]]
    assert len(set(found)) == len(found) == 60


def test_before_the_first_position_is_no_gap(api: Api) -> None:
    assert "gaps" not in api.good("/history?from=0.0&limit=1").json
    with contextlib.closing(Stream(api, "/history?to=9", "0.0")) as stream:
        stream.until("end")
    with contextlib.closing(Stream(api, "/events?to=9", "0.0")) as stream:
        stream.until("end")


@pytest.mark.parametrize("path", ["/history?follow=true", "/events?follow=true"])
def test_a_stream_does_not_wait_at_a_place_of_another_log(api: Api, path: str) -> None:
    with contextlib.closing(Stream(api, path, "999999.0")) as stream:
        assert stream.answer.status == 400


def test_a_reader_waits_for_its_own_publication(api: Api) -> None:
    receipt = api.publish({"topic": "own", "payload": "1"}).json
    answer = api.good(f"/events?from={receipt['position']}&after={receipt['position']}")
    assert answer.json["items"][0]["position"] == receipt["position"]
    last = int(answer.headers["Foldmq-Position"])
    late = api.get(f"/status?after={last + 1000}")
    assert (late.status, late.json["type"]) == (503, f"{BASE}/problem-types/not-yet")


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/sessions/nobody", 404, "not-found"),
        ("/sessions/nobody?at=now", 404, "not-found"),
        ("/state?at=999999999", 400, "invalid-request"),
        ("/state?at=soon", 400, "invalid-request"),
        ("/diff?from=now&to=2", 400, "invalid-request"),
        ("/diff", 400, "invalid-request"),
        ("/subscriptions?topic=a/%2B", 400, "invalid-request"),
        ("/retained?filter=a/%23/b", 400, "invalid-request"),
        ("/events?type=Nope", 400, "invalid-request"),
        ("/events?follow=true", 406, "not-acceptable"),
        ("/events?limit=2&limit=3", 400, "invalid-request"),
        ("/why?topic=never/published", 404, "not-found"),
        ("/nothing", 404, "not-found"),
        ("/problem-types/none", 404, "not-found"),
    ],
)
def test_a_wrong_request_has_a_problem(api: Api, path: str, status: int, kind: str) -> None:
    answer = api.get(path)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status, answer.json["type"]) == (status, f"{BASE}/problem-types/{kind}")
    assert answer.json["detail"]


# -------------------------------------------------------------------------------- streams


def test_events_are_followed_and_resumed_without_a_gap(api: Api) -> None:
    with contextlib.closing(Stream(api, "/events?from=1&follow=true")) as stream:
        assert stream.answer.status == 200
        past = stream.until("live")
        assert past == api.good("/events", Accept=FORMS["ndjson"]).lines[: len(past)]
        first = api.publish({"topic": "live/1"}).json["position"]
        event, data = stream.next()
        while data.get("messages", [{}])[0].get("position") != first:
            event, data = stream.next()
        assert (event, data["type"]) == ("message", "MessagePublished")
        last = stream.last
    second = api.publish({"topic": "live/2"}).json["position"]
    with contextlib.closing(Stream(api, "/events?from=1&follow=true", last)) as stream:
        missed = stream.until("live")
    positions = [one["position"] for one in missed]
    assert first not in positions
    assert second in positions
    everything = [one["position"] for one in api.good("/events", Accept=FORMS["ndjson"]).lines]
    known = [one["position"] for one in past] + [first]
    assert everything[: len(known)][-1] == first or first in everything
    assert positions == everything[everything.index(first) + 1 :][: len(positions)]


def test_the_last_messages_are_followed_and_resumed(api: Api) -> None:
    for payload in ("1", "2"):
        assert api.publish({"topic": "last/a", "payload": payload}).status == 201
    path = "/history?from=last&filter=last/%23&follow=true"
    with contextlib.closing(Stream(api, path)) as stream:
        assert [one["payload"] for one in stream.until("live")] == ["2"]
        last = stream.last
    assert api.publish({"topic": "last/b", "payload": "3"}).status == 201
    with contextlib.closing(Stream(api, path, last)) as stream:
        assert [one["payload"] for one in stream.until("live")] == ["3"]
        assert api.publish({"topic": "last/b", "payload": "4"}).status == 201
        assert stream.next()[1]["payload"] == "4"
        last = stream.last
    with contextlib.closing(Stream(api, path, last)) as stream:
        assert stream.until("live") == []


def test_a_bounded_stream_ends(api: Api, places: dict[str, str]) -> None:
    with contextlib.closing(Stream(api, f"/events?to={places['@AT@']}")) as stream:
        assert stream.until("end")[-1]["position"].partition(".")[0] == places["@AT@"]


def test_streams_are_limited_and_readers_that_leave_make_room(api: Api) -> None:
    with contextlib.ExitStack() as stack:
        held: list[Stream] = []

        def open_one() -> int:
            stream = Stream(api, "/events?follow=true")
            stack.callback(stream.close)
            if stream.answer.status == 200:
                held.append(stream)
            return len(held)

        until(lambda: open_one() == 8, "streams of earlier tests are gone")
        assert Stream(api, "/events?follow=true").answer.status == 429

    def has_room() -> bool:
        with contextlib.closing(Stream(api, "/events?follow=true")) as stream:
            return stream.answer.status == 200

    until(has_room, "there is room")


# ----------------------------------------------------------------------------- publishing


def test_a_published_message_is_on_disk_and_delivered(api: Api, clients: Clients) -> None:
    reader = clients.connect("reader")
    reader.subscribe(("cmd/#", 1))
    answer = api.publish({"topic": "cmd/a", "payload": "on"})
    assert answer.status == 201
    reader.acknowledge(reader.expect_publish("cmd/a", b"on", 1))
    receipt = answer.json
    assert receipt["matched"] == 1
    assert api.good(answer.headers["Location"].removeprefix(BASE)).json["payload"] == "on"
    story = api.good(f"/messages/{receipt['position']}/story").json["items"][0]
    assert story["position"] == receipt["position"] == answer.headers["Foldmq-Position"]
    assert (story["session"], story["copies"][0]["session"]) == ("$api/t-publish", "reader")
    (event,) = api.good(f"/events?from={receipt['position']}&limit=1").json["items"]
    assert event["messages"][0]["topic"] == "cmd/a"
    second = api.publish({"topic": "nobody", "payload_json": {"a": [1]}, "qos": 2})
    assert second.json["matched"] == 0
    row = api.good(second.headers["Location"].removeprefix(BASE)).json
    assert (row["position"], row["payload"]) == (second.json["position"], '{"a":[1]}')
    assert api.good(f"/history?from={receipt['position']}&filter=nobody").json["items"] == [row]
    at_most_once = api.publish({"topic": "cmd/b", "payload_base64": "AP8=", "qos": 0})
    assert (at_most_once.status, at_most_once.json) == (202, {"matched": 1})
    reader.expect_publish("cmd/b", b"\x00\xff", 0)


def test_many_messages_have_a_receipt_each(api: Api, clients: Clients) -> None:
    reader = clients.connect("many")
    reader.subscribe(("many/#", 0))
    lines = [{"topic": f"many/{n}", "payload": str(n), "qos": 1 + n % 2} for n in range(300)]
    lines[7] = {"topic": "$SYS/broker/x", "payload": "no"}
    body = "".join(json.dumps(one) + "\n" for one in lines).encode()
    answer = api.ask("POST", "/messages", body, "publish", Content_Type=FORMS["ndjson"])
    assert answer.status == 200, answer.body
    receipts = answer.lines
    assert receipts.pop(7) == {"refused": "reserved_topic"}
    del lines[7]
    assert len(receipts) == len(lines)
    for line, receipt in zip(lines, receipts, strict=True):
        assert receipt["matched"] == 1
        reader.expect_publish(str(line["topic"]), str(line["payload"]).encode(), 0)
    positions = [one["position"] for one in receipts if "position" in one]
    assert positions == sorted(positions, key=lambda one: [*map(int, one.split("."))])


def test_an_error_behind_published_lines_says_which_they_were(api: Api) -> None:
    """The lines go to the broker in several requests: the receipts of earlier ones are kept."""
    large = "x" * 200_000
    lines = [
        {"topic": "part/1", "payload": large},
        {"topic": "part/2", "payload": large, "properties": {"response_topic": "a/+"}},
        {"topic": "part/3", "payload": large},
    ]
    body = "".join(json.dumps(one) + "\n" for one in lines).encode()
    key = {"Content_Type": FORMS["ndjson"], "Idempotency_Key": "part"}
    answer = api.ask("POST", "/messages", body, "publish", **key)
    assert answer.status == 200, answer.body
    receipt, last = answer.lines
    assert receipt["position"]
    assert last["error"]["status"] == 409
    detail = last["error"]["detail"]
    assert detail.startswith("line 2: response_topic: ")
    assert detail.endswith("; the lines behind 2 were not published")
    assert api.ask("POST", "/messages", body, "publish", **key).body == answer.body
    (row,) = api.good("/history?filter=part/%23").json["items"]
    assert (row["topic"], row["position"]) == ("part/1", receipt["position"])


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        ({"topic": "$SYS/x"}, 409, "reserved_topic"),
        ({"topic": "a/#"}, 400, None),
        ({"topic": "a", "properties": {"response_topic": "a/+"}}, 409, None),
        ({"topic": "a", "properties": {"colour": "red"}}, 400, None),
        ({"topic": "a", "payload_json": _nested(300)}, 400, None),
    ],
)
def test_a_refused_message_says_why(
    api: Api, message: dict[str, Any], status: int, reason: str | None
) -> None:
    answer = api.publish(message)
    assert answer.status == status, answer.body
    assert answer.json.get("reason") == reason


# -------------------------------------------------------------------------- schemathesis

_BY_HAND = {"after", "next"}
"""Parameters whose valid values a generator cannot guess; other tests are about them."""


@pytest.fixture
def api_schema(api: Api) -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    document = api.good("/openapi.json").json
    for methods in document["paths"].values():
        for one in methods.values():
            one["parameters"] = [each for each in one["parameters"] if each["name"] not in _BY_HAND]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=f"http://127.0.0.1:{api.port}{BASE}")
    return schema


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_generated_requests_are_answered_as_documented(
    api: Api, api_schema: Any, operation: Any, examples: int
) -> None:
    """schemathesis makes requests of the document, valid ones and others, and checks answers."""
    from hypothesis import HealthCheck, given, settings
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    described = api_schema[operation.path][operation.method]
    role = "publish" if operation.role is Role.PUBLISH else "view-all"
    statuses: set[int] = set()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=[*HealthCheck],
        )
        @given(case=described.as_strategy(generation_mode=mode))
        def run_case(case: Any) -> None:
            case.headers["Authorization"] = f"Bearer {api.token(role)}"
            response = case.call()
            while response.status_code == 429:
                time.sleep(0.2)
                response = case.call()
            statuses.add(response.status_code)
            case.validate_response(
                response,
                checks=[
                    not_a_server_error,
                    status_code_conformance,
                    content_type_conformance,
                    response_headers_conformance,
                    response_schema_conformance,
                    # What is too large is refused before it is looked at.
                    *([negative_data_rejection] if response.status_code != 413 else []),
                ],
            )

        run_case()
    assert statuses & {200, 201, 202, 404}, statuses
