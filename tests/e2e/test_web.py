"""The web page of a real broker: access, content, and lifetime."""

import contextlib
import html
import http.client
import os
import re
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.broker import Broker, children_of, free_port, wait_until_gone
from harness.fixtures import Clients
from harness.packets import Will
from harness.waiting import TIMEOUT, until

from e2e.log_scenarios import serving
from e2e.tools import HOSTILE_ID, HOSTILE_PAYLOAD, HOSTILE_TOPIC, run
from e2e.webclient import Page, served, web

EVIL = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"
EVIL_TOPIC = "<script>alert(1)</script>/\u202e\x9b"
ON = ("--web", "127.0.0.1:0")
SCRIPTS = [{"src": f"/static/{name}.js", "defer": None} for name in ("page", "time")]


def play(clients: Clients) -> None:
    """The traffic that the tests know."""
    away = clients.connect("away", clean=False)
    away.subscribe(("hall/#", 1))
    away.disconnect()
    screen = clients.connect("screen", clean=False, will=Will("wills/screen", b"gone", 1))
    screen.subscribe(("hall/+", 2), ("lamp", 0))
    sensor = clients.connect("sensor")
    for number in range(3):
        sensor.publish("hall/door", b"%d" % number, 1)
        screen.acknowledge(screen.expect_publish("hall/door", b"%d" % number, 1))
    sensor.publish("lamp", b"on\n<b>bright</b>\n", 1, retain=True)
    sensor.publish("large", b"x" * 300_000, 1, retain=True)
    sensor.publish("hall/door", b"open", 1)
    screen.expect_publish("lamp", b"on\n<b>bright</b>\n", 0)
    screen.expect_publish("hall/door", b"open", 1)
    back = clients.connect("away", clean=False, session_present=True)
    for body in (b"0", b"1", b"2", b"open"):
        back.acknowledge(back.expect_publish("hall/door", body, 1))
    back.subscribe(("late/#", 0))
    back.disconnect()
    evil = clients.connect(EVIL, clean=False)
    evil.subscribe((EVIL_TOPIC, 1))
    evil.publish(EVIL_TOPIC, EVIL.encode(), 1, retain=True)
    worse = clients.connect(HOSTILE_ID)
    worse.publish(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 1, retain=True)
    sensor.expect_alive()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("web"), *ON, play=play, config="") as (broker, _):
        yield broker


@pytest.fixture
def page(played: Broker) -> Page:
    return served(played)


def web_child(broker: Broker) -> int | None:
    """The process that serves the broker's page."""
    for pid in children_of(broker.pid):
        with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
            if b"\0web\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


# ------------------------------------------------------------------------------- access


def test_without_the_token_nothing_is_shown(played: Broker, page: Page) -> None:
    stranger = Page(page.port, played.data_dir)
    for path in ("/", "/sessions", "/session?client=away", "/log", "/nothing", "/session/timeline"):
        got = stranger.get(path)
        assert got.status == 401
        assert str(stranger.token_file) in got.shown
        assert stranger.token not in got.text
        assert "away" not in got.text.replace("session?client=away", "")
    assert stranger.get("/", token="wrong" * 8).status == 401
    assert page.cookie
    last = "1" if page.cookie.endswith("0") else "0"
    stranger.cookie = page.cookie[:-1] + last
    assert stranger.get("/").status == 401
    assert stat.S_IMODE(stranger.token_file.stat().st_mode) == 0o600
    assert stranger.token not in played.log


def test_the_token_leaves_the_address_and_becomes_a_cookie(played: Broker, page: Page) -> None:
    stranger = Page(page.port, played.data_dir)
    got = stranger.get("/log", token=stranger.token, order="oldest")
    assert (got.status, got.headers["Location"]) == (303, "/log?order=oldest")
    cookie = got.headers["Set-Cookie"] or ""
    assert stranger.token not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    stranger.cookie = cookie.partition(";")[0]
    assert stranger.get("/").status == 200


def test_a_login_leads_to_the_requested_page(played: Broker, page: Page) -> None:
    stranger = Page(page.port, played.data_dir)
    assert 'value="/log?session=a"' in stranger.get("/log", session="a").text
    wrong = stranger.ask("POST", "/login", "token=wrong&next=/log")
    assert (wrong.status, "not valid" in wrong.shown) == (401, True)
    right = stranger.ask("POST", "/login", f"token={stranger.token}&next=/log?session=a")
    assert (right.status, right.headers["Location"]) == (303, "/log?session=a")
    elsewhere = stranger.ask("POST", "/login", f"token={stranger.token}&next=//evil.example/")
    assert elsewhere.headers["Location"] == "/"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_only_reads(page: Page, method: str) -> None:
    for path in ("/", "/session?client=away", "/retained", "/log"):
        assert page.ask(method, path).status == 405
    assert page.ask("HEAD", "/sessions").status == 200


def test_a_name_that_is_not_ours_is_not_served(page: Page) -> None:
    for host in ("evil.example", f"evil.example:{page.port}", "", "evil.example@127.0.0.1"):
        got = page.ask("GET", "/", Host=host)
        assert got.status in (400, 421)
        assert "Sessions" not in got.text
    assert page.ask("GET", "/", Host="localhost:1234").status == 200


def test_every_answer_has_the_headers_that_keep_a_browser_safe(page: Page) -> None:
    stranger = Page(page.port, page.token_file.parent)
    answers = [
        page.get("/"),
        page.get("/nothing"),
        page.get("/static/page.css"),
        page.get("/session/timeline", client="away"),
        page.get("/log", from_="nonsense"),
        page.ask("POST", "/"),
        page.ask("GET", "/", Host="evil.example"),
        stranger.get("/"),
        stranger.ask("POST", "/login", "token=x"),
        stranger.get("/", token=stranger.token),
    ]
    for got in answers:
        policy = got.headers["Content-Security-Policy"] or ""
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert got.headers["X-Content-Type-Options"] == "nosniff"
        assert got.headers["Referrer-Policy"] == "no-referrer"
        assert got.headers["Server"] == "foldmq"
        static = got.headers["Content-Type"] == "text/css"
        assert got.headers["Cache-Control"] == ("no-cache" if static else "no-store")
    assert page.get("/static/../access.py").status in (403, 404)
    assert page.get("/static/%2e%2e/access.py").status in (403, 404)


# ------------------------------------------------------------------------------- pages


PATHS = [
    "/",
    "/sessions",
    "/sessions?sort=queued",
    "/actors",
    "/actors?sort=recent",
    "/retained",
    "/log",
    "/log?payload=1&order=oldest",
]


def test_hostile_names_are_text_everywhere(page: Page) -> None:
    found = [page.good(path) for path in PATHS]
    for name in (EVIL, HOSTILE_ID):
        found += [page.good("/session", client=name), page.good("/log", session=name)]
        found += [
            page.good("/session", client=name, at="now"),
            page.get("/session", client=name, at="1"),
        ]
        found += [page.good("/sessions", match=name), page.good("/actors", match=name)]
        found += [page.get("/actor", id=name), page.get("/retained", filter=name)]
    for topic in (EVIL_TOPIC, HOSTILE_TOPIC):
        found += [page.good("/retained", topic=topic), page.good("/subscriptions", topic=topic)]
        found += [page.good("/log", topic=topic, payload=1), page.good("/topics", under=topic)]
        found += [page.get("/why", topic=topic, client=topic)]
        found += [page.get("/log", from_=topic), page.get("/log", type=topic)]
    for one in found:
        # A form field has the request unchanged, so that it repeats the same request.
        shown = re.sub(r'<input [^>]*value="[^"]*"', "", one.text)
        assert all(letter.isprintable() or letter == "\n" for letter in shown)
        assert "Traceback" not in one.text
        for tag, attributes in one.elements:
            assert tag not in ("img", "iframe", "object", "style", "base")
            assert tag != "script" or attributes in SCRIPTS
            assert not any(key.startswith("on") or key == "style" for key in attributes)
            for key in ("href", "src", "action"):
                assert (attributes.get(key) or "/").startswith("/") or attributes[key] == "#main"
    assert any("\\u202e" in one.text for one in found)


def test_the_why_page_agrees_with_the_command(played: Broker, page: Page) -> None:
    for query, flags in (
        ({"topic": "hall/door", "client": "away"}, ()),
        ({"topic": "hall/door", "client": "screen", "at": "now"}, ("--at", "now")),
        ({"topic": "lamp", "client": "away"}, ()),
    ):
        where = ("--data-dir", str(played.data_dir), *flags)
        command = run("why", "--topic", query["topic"], "--client", query["client"], *where)
        assert " ".join(command.out.split()) in page.good("/why", **query).shown
    assert "message" in page.good("/why", topic="hall/#", last=3).shown
    assert page.get("/why", topic="nothing/here").status == 404
    for wrong in (
        {"topic": "a/#/b"},
        {"topic": "a", "position": "1.0"},
        {"position": "10m ago"},
        {"position": "999999"},
        {"position": "1.0", "at": "now"},
        {"topic": "a", "last": "many"},
    ):
        assert page.get("/why", **wrong).status == 400


def test_the_tree_of_topics_has_figures_and_retained_publishers(page: Page) -> None:
    def rows(**query: str) -> dict[str, tuple[str, ...]]:
        found = page.good("/topics", **query).columns(*range(9))
        return {row[0]: row for row in found}

    until(lambda: "hall/" in rows(), "what was published")
    assert rows()["hall/"][1:3] == ("1", "4")
    _, topics, messages, rate, size, _, by, retained, setter = rows()["lamp"]
    assert (topics, messages, by, retained) == ("1", "1", "sensor", "1")
    assert re.fullmatch(r"\d+ B", size)
    assert setter.startswith("sensor 2")
    assert rate.endswith("/s")
    below = rows(under="hall")
    assert list(below) == ["door"]
    assert below["door"][2] == "4"
    assert rows(under="nothing") == {}
    assert page.get("/topics", sort="colour").status == 400
    assert page.get("/topics/tail", topic="a/#/b").status == 400


def test_the_overview_has_the_numbers(page: Page) -> None:
    shown = page.good("/").shown
    assert shown.startswith("Overview")
    assert re.search(r"Ready: (all is well|\d problems?) foldmq \S+, process \d+", shown), shown
    assert re.search(r"Changes since .* Connects [1-9]\d* ", shown), shown
    assert "The last 24 hours" in shown
    assert page.good("/").text.count('<figure class="chart">') == 8
    assert re.search(r"Sessions 5 5 connected|Sessions 4 \d connected|Sessions \d", shown)
    assert "Retained 4 " in shown
    actors = page.good("/developers").shown
    assert re.search(r"Actors \d+ broker 1 .*connection \d+ ", actors), actors
    assert "Mailboxes" in actors
    assert "Memory" in actors
    fragment = page.good("/", part="live")
    assert "<html" not in fragment.text
    assert fragment.shown.startswith("Ready")


def test_a_session_is_shown_in_full(page: Page) -> None:
    shown = page.good("/session", client="screen").shown
    for part in (
        "connected",
        "wills/screen",
        "hall/+",
        "lamp",
        "In flight 1",
        "hall/door",
        "MQTT 3.1.1",
    ):
        assert part in shown
    away = page.good("/session", client="away").shown
    assert "offline since" in away
    gone = page.get("/session", client="nobody")
    assert (gone.status, "no session 'nobody'" in gone.shown) == (404, True)
    assert page.get("/session").status == 400


def test_every_actor_has_its_page(page: Page) -> None:
    ids = [one for (one,) in page.good("/actors").columns(0)]
    assert {one.partition(":")[0] for one in ids} >= {
        "broker",
        "session",
        "connection",
        "subscription",
    }
    for one in ids:
        assert page.good("/actor", id=one).shown.startswith(f"Actor {one}")
    assert page.get("/actor", id="session:999999").status == 404
    (row,) = page.good("/actors", match="screen", type="session").columns(0, 1, 2)
    assert row[1:] == ("screen", "connected")


# ------------------------------------------------------------------------------- the log


@pytest.fixture(scope="module")
def events(played: Broker) -> list[dict[str, Any]]:
    """What `foldmq log --json` prints; nothing is added to the log by the tests."""
    return run("log", "--data-dir", str(played.data_dir), "--json").objects


def of_session(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in events if one.get("session") == name]


def place(event: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, event["position"].split(".")))


def on_topic(event: dict[str, Any], prefix: str) -> bool:
    messages = event.get("messages", [])
    return any(one.get("topic", "").startswith(prefix) for one in messages)


def positions(page: Page, count: int, **query: Any) -> list[str]:
    """The positions on all pages of the log, `count` events on each."""
    found: list[str] = []
    got = page.good("/log", rows=count, **query)
    while True:
        found += [one for (one,) in got.columns(0)]
        following = got.link("next")
        if following is None:
            return found
        got = page.ask("GET", f"{following}&rows={count}")
        assert got.status == 200


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, lambda _: True),
        ({"session": "away"}, lambda one: one.get("session") == "away"),
        ({"session": EVIL}, lambda one: one.get("session") == EVIL),
        ({"topic": "hall/#"}, lambda one: on_topic(one, "hall/")),
        ({"type": ["Queued", "acked"]}, lambda one: one["type"] in ("Queued", "Acked")),
        ({"from_": "3", "to": "8.1"}, lambda one: (3, 0) <= place(one) <= (8, 1)),
        ({"from_": "1h ago", "to": "now"}, lambda _: True),
    ],
)
def test_the_log_page_shows_what_foldmq_log_prints(
    page: Page, events: list[dict[str, Any]], query: dict[str, Any], wanted: Callable[..., bool]
) -> None:
    expected = [one["position"] for one in events if wanted(one)]
    assert len(expected) > 2
    assert positions(page, 7, order="oldest", **query) == expected
    assert positions(page, 7, **query) == expected[::-1]


def test_the_log_from_its_very_end_on_is_no_error(page: Page, events: list[dict[str, Any]]) -> None:
    overview = page.good("/").text
    (link,) = re.findall(r'at position <a class="place" href="([^"]*)"', overview)
    assert page.ask("GET", html.unescape(link)).status == 200
    last = place(events[-1])[0]
    for at in (last, f"{last}.999", last + 1, f"{last + 1}.0", last + 7):
        assert page.get("/log", from_=at, order="oldest").status == 200
        assert page.get("/log", from_=at).status == 200
    beyond = page.good("/log", from_=f"{last + 1}.0")
    assert f"no events yet: the last record of the log is {last:,}" in beyond.shown
    assert page.get("/log", from_=last + 1, to=last + 9).status == 400


def test_payloads_are_shown_on_request(page: Page) -> None:
    assert "bright" not in page.good("/log", topic="lamp").shown
    assert '"on\\n<b>bright</b>\\n"' in page.good("/log", topic="lamp", payload=1).shown


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("from_", "zz"),
        ("to", "99999999"),
        ("type", "Nope"),
        ("topic", "a/#/b"),
        ("after", "10m ago"),
        ("order", "sideways"),
        ("rows", "many"),
    ],
)
def test_invalid_parameters_are_reported_on_the_page(page: Page, key: str, value: str) -> None:
    got = page.get("/log", **{key: value})
    assert got.status == 400
    assert 'class="notice bad" role="alert"' in got.text


# ------------------------------------------------------------------------------- the past


def test_the_past_is_that_of_foldmq_replay(
    played: Broker, page: Page, events: list[dict[str, Any]]
) -> None:
    places = [one["position"] for one in of_session(events, "away")]
    assert len(places) > 10
    for at in (places[2], places[len(places) // 2]):
        flags = ["--data-dir", str(played.data_dir), "--at", at, "--session", "away", "--json"]
        (expected,) = run("replay", *flags).objects
        shown = page.good("/session", client="away", at=at).shown
        assert f"State {'connected' if expected['connected'] else 'offline'}" in shown
        assert f"Queued {expected['queued']} " in shown
        assert f"In flight {expected['in_flight']['total']} " in shown
        assert expected["subscriptions"]["rows"]
        for held in expected["subscriptions"]["rows"]:
            assert held["filter"] in shown


def test_one_can_walk_from_event_to_event(page: Page, events: list[dict[str, Any]]) -> None:
    places = [one["position"] for one in of_session(events, "away")]
    got = page.good("/session", client="away", at="now")
    walked = []
    while (previous := got.link("prev")) is not None:
        walked.append(re.search(r"Last event: (\S+)", got.shown)[1])  # type: ignore[index]
        got = page.ask("GET", previous)
    assert walked == places[::-1]
    assert "The session did not exist at that moment" in got.shown
    assert "The session has no earlier event" in got.shown
    following = page.ask("GET", got.link("next") or "")
    assert "+ session" in following.shown


# ------------------------------------------------------------------------------- its life


def test_it_ends_with_the_broker_and_is_started_again(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("", *ON)
    broker.start()
    served(broker)
    first = web_child(broker)
    assert first is not None
    token = (broker.data_dir / "web.token").read_text()
    # Killed, it is replaced, on the same address.
    os.kill(first, signal.SIGKILL)
    until(lambda: web_child(broker) not in (None, first), "another web page")
    served(broker).good("/")
    assert broker.log.count("web page ended, restarting it") == 1
    second = web_child(broker)
    assert second is not None
    niceness = os.getpriority(os.PRIO_PROCESS, broker.pid)
    assert os.getpriority(os.PRIO_PROCESS, second) == min(niceness + 5, 19)
    # It does not outlive a broker that is killed, nor one that ends.
    broker.kill()
    assert wait_until_gone(second)
    told = broker.log.count("asks for the token")
    broker.start()
    until(lambda: broker.log.count("asks for the token") > told, "the page of the second start")
    served(broker).good("/")
    third = web_child(broker)
    assert third is not None
    broker.stop()
    assert wait_until_gone(third)
    assert (broker.data_dir / "web.token").read_text() == token


def test_it_starts_at_the_first_connection_and_ends_when_idle(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker("web_idle = 0.5", *ON)
    broker.start()
    assert web_child(broker) is None
    page = served(broker)
    page.good("/")
    first = web_child(broker)
    assert first is not None
    assert wait_until_gone(first)
    until(lambda: web_child(broker) is None, "no process of the page")
    # Clients that come while it starts, or while it ends, wait.
    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(lambda _: page.ask("GET", "/").status, range(200)))
    assert set(answers) == {200}
    for _ in range(5):
        page.good("/")
        time.sleep(0.5)
    assert "web page ended" not in broker.log


def test_a_connection_holds_it(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("web_idle = 0.2", *ON)
    broker.start()
    page = served(broker)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", page.port)) as held:
        held.connect()
        until(lambda: web_child(broker), "a process of the page")
        child = web_child(broker)
        for _ in range(4):
            held.request("GET", "/login")
            assert held.getresponse().read()
            time.sleep(0.5)
        assert web_child(broker) == child
    assert child is not None
    assert wait_until_gone(child)


def test_it_ends_with_a_killed_broker_while_suspended(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker("", *ON)
    broker.start()
    served(broker)
    child = web_child(broker)
    assert child is not None
    os.kill(child, signal.SIGSTOP)
    broker.kill()
    os.kill(child, signal.SIGCONT)
    assert wait_until_gone(child)


def test_a_taken_configured_address_ends_the_start(
    make_broker: Callable[..., Broker],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        said = make_broker("", "--web", taken).refused(69)
    assert said.startswith(f"cannot listen on {taken} (--web): another program is listening there")


def test_a_token_that_is_no_use_costs_the_page_and_not_the_broker(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker("log_format = 'json'", *ON)
    broker.data_dir.mkdir()
    (broker.data_dir / "web.token").write_text("short\n")
    broker.start()
    (told,) = broker.told("web page not available")
    assert "must contain a token" in told["reason"]
    (ready,) = broker.told("ready")
    assert ready["web"] is None
    assert web_child(broker) is None


def test_secrets_of_a_foreign_nats_are_in_no_command_line(
    on_external: Callable[..., Broker], external: Any
) -> None:
    broker = on_external(f'web = "127.0.0.1:{free_port()}"\n')
    broker.start()
    page = served(broker)
    with_session = Clients("127.0.0.1", broker.port)
    with_session.connect("somebody", clean=False)
    try:
        assert "somebody" in page.good("/sessions").shown
        assert ", record " in page.good("/session", client="somebody", at="now").shown
        child = web_child(broker)
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        for secret in re.findall(rb'nats_password = "([^"]*)"', broker.config_file.read_bytes()):
            assert secret not in command
    finally:
        with_session.close()


# ------------------------------------------------------------------------------- foldmq web


def test_the_page_while_the_broker_restarts(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    with web(broker.data_dir, "--data-dir", str(broker.data_dir)) as (page, _):
        page.log_in()
        until(lambda: "Ready" in page.get("/").shown, "the broker on the page")
        broker.stop()
        until(lambda: page.get("/sessions").status == 503, "sessions without a broker")
        assert "does not answer" in page.get("/sessions").shown
        until(lambda: page.get("/").status == 503, "the overview without numbers of before")
        assert page.get("/", part="live").status == 503
        assert page.get("/session", client="a", at="now").status == 503
        broker.start()
        until(lambda: "Ready" in page.get("/").shown, "the broker on the page again")
        assert page.get("/").status == 200


def test_foldmq_web_prints_its_address_and_not_the_token(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker()
    broker.start()
    token = broker.directory / "my.token"
    flags = ("--data-dir", str(broker.data_dir), "--token-file", str(token))
    with web(broker.data_dir, *flags) as (page, process):
        page.token_file = token
        page.log_in()
        assert page.get("/").status == 200
        process.terminate()
        _, said = process.communicate(timeout=TIMEOUT)
    where = f"http://127.0.0.1:{page.port}/ (asks for the token in {token})"
    assert said.startswith(f"foldmq: the web page is at {where}\n")
    assert "web page login" in said
    assert page.token not in said
    missing = run("web", "--data-dir", str(broker.directory / "none"), code=66)
    assert "or --token-file" in missing.err
    assert "--listen: must be" in run("web", *flags, "--listen", "nowhere", code=2).err


def test_problems_are_shown(page: Page) -> None:
    """The overview has them only if there are some; their page says if there are none."""
    assert "The findings of foldmq doctor" in page.good("/problems").shown
