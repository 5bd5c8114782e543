"""The parts of the web page that need no broker: access, rendering, lists, samples."""

from __future__ import annotations

import asyncio
import html
import io
import os
import re
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from markupsafe import Markup, escape

from cli.commands.advice import Advice, advise
from cli.common.allowed_hosts import Hosts
from cli.common.units import Address
from cli.logs.broker_client import Refused, TooLarge
from cli.logs.log_brokers import log_names
from cli.serve.banner import Facts, announce
from cli.settings.broker_child import environment_for
from cli.settings.log_settings import load_log_settings
from cli.settings.settings import load_settings
from cli.web.own_token import TokenError, find_token
from cli.web.paged_lists import PAGE_ROWS, Listings, Order
from cli.web.pages import middleware
from cli.web.pages.lists import _pattern
from cli.web.pages.middleware import _local
from cli.web.pages.render import environment, labelled, name, url
from cli.web.samples import Samples
from cli.web.svg_charts import HEIGHT, WIDTH, bars, chart
from cli.web.web_log_client import WebLogClient
from eventstore.datadir import DataDir
from eventstore.errors import UsageError
from projections.state.session import ReplayState, SessionState
from projections.views.session_view import session_view

# ------------------------------------------------------------------------------- access


def test_a_token_is_made_once_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "web.token"
    made = find_token(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == made.secret
    assert len(made.secret) >= 32
    assert find_token(file) == made
    assert list(tmp_path.iterdir()) == [file]
    other = find_token(tmp_path / "other")
    assert other.secret != made.secret
    assert made.secret not in repr(made)


def test_a_token_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    file = tmp_path / "web.token"
    file.write_text("a-token-of-somebody-s-own\n")
    file.chmod(0o644)
    assert find_token(file).secret == "a-token-of-somebody-s-own"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40, b"two tokens in a line, long"])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "web.token"
    file.write_bytes(content)
    with pytest.raises(TokenError, match="must contain a token") as caught:
        find_token(file)
    assert str(file) in str(caught.value)


def test_a_token_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="cannot be used"):
        find_token(tmp_path / "missing" / "web.token")


@pytest.mark.parametrize(
    ("listened", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:18830", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost:9999", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "[::1]:18830", True),
        ("127.0.0.1", "127.8.9.10", True),
        ("127.0.0.1", "evil.example:18830", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "192.0.2.7:18830", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[", False),
        ("127.0.0.1", "user@127.0.0.1", False),
        ("127.0.0.1", "evil.example@127.0.0.1", False),
        ("127.0.0.1", "evil.example:1@localhost:18830", False),
        ("127.0.0.1", "127.0.0.1/evil.example", False),
        ("127.0.0.1", "127.0.0.1?evil.example", False),
        ("127.0.0.1", "127.0.0.1#@evil.example", False),
        ("127.0.0.1", "localhost:", False),
        ("127.0.0.1", "localhost:80x", False),
        ("127.0.0.1", "localhost:1:2", False),
        ("127.0.0.1", " localhost", False),
        ("127.0.0.1", "localhost\n", False),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "[localhost]", False),
        ("0.0.0.0", "user@192.0.2.7", False),
        ("broker.lan", "Broker.LAN:18830", True),
        ("broker.lan", "other.lan", False),
        ("0.0.0.0", "192.0.2.7:18830", True),
        ("::", "[2001:db8::1]:18830", True),
        ("0.0.0.0", "evil.example", False),
    ],
)
def test_the_requested_host_must_be_allowed(listened: str, host: str, *, allowed: bool) -> None:
    assert Hosts([Address(listened, 18830)]).allows(host) == allowed


@pytest.mark.parametrize(
    ("given", "local"),
    [
        ("/log?session=a%20b", "/log?session=a%20b"),
        ("/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("log", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
        ("//[", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_nowhere_else(given: str, local: str) -> None:
    assert _local(given) == local


def test_secrets_go_to_the_process_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [one for one in os.environ if one.startswith("FOLDMQ_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("FOLDMQ_MAX_SESSIONS", "7")
    monkeypatch.setenv("OTHER", "kept")
    secrets = {"nats_url": "nats://u:secret@h:1", "nats_password_file": "/p", "nats_user": "me"}
    settings = load_settings({**secrets, "log_format": "json", "web": "broker.lan:18830"}, {})
    made = environment_for(settings, DataDir(tmp_path))
    ours = {key: value for key, value in made.items() if key.startswith("FOLDMQ_")}
    assert ours == {
        "FOLDMQ_NATS_URL": "nats://u:secret@h:1",
        "FOLDMQ_NATS_PASSWORD_FILE": "/p",
        "FOLDMQ_NATS_USER": "me",
        "FOLDMQ_LOG_FORMAT": "json",
        "FOLDMQ_DATA_DIR": str(tmp_path),
        "FOLDMQ_WEB": "broker.lan:18830",
    }
    assert made["OTHER"] == "kept"
    again = load_settings({}, ours)
    assert (again.nats_url, again.nats_user) == ("nats://u:secret@h:1", "me")


def test_the_process_of_a_cluster_with_several_logs_knows_all_of_them(tmp_path: Path) -> None:
    key = tmp_path / "key"
    given = {
        "cluster": "plant",
        "partitions": 2,
        "cluster_listen": "10.0.0.1:7883",
        "cluster_key_file": str(key),
        "nats_url": "nats://h:1",
    }
    made = environment_for(load_settings(given, {}), DataDir(tmp_path))
    ours = {key: value for key, value in made.items() if key.startswith("FOLDMQ_")}
    again = load_settings({}, ours)
    assert (again.cluster, again.partitions, again.cluster_key_file) == ("plant", 2, key)
    assert log_names(load_log_settings({}, ours, None)) == ["plant-p0", "plant-p1"]


# ------------------------------------------------------------------------------- rendering


HOSTILE = [
    '<script>alert("1")</script>',
    "'\" onmouseover=alert(1) x='",
    "&lt;b&gt;",
    "\x1b[2J\x00\x07\r\n\x9b",
    "\u202eevil\u2066\u200b\ufeff",
    "{{ 7 * 7 }}{% raw %}",
    "${7*7}",
    "]]>--><!--",
    "x" * 65_535,
    "e\u0301" * 400,
    "\u05d0\u05d1 right to left",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_name_is_text(hostile: str) -> None:
    shown = str(name(hostile)).replace("<wbr>", "")
    assert len(shown) < 20_000
    found = re.fullmatch(r'<bdi class="name"(?: title="([^"<>]*)")?>([^<>]*)</bdi>', shown)
    assert found is not None
    text = html.unescape(found[2])
    assert text.isprintable()
    assert "49" not in text
    if len(hostile) < 120 and hostile.isprintable() and " " not in hostile and '"' not in hostile:
        assert text == hostile


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_value_in_a_template_is_text(hostile: str) -> None:
    made = environment()
    shown = made.from_string(
        '<a title="{{ one }}" href="{{ url("/session", client=one) }}">{{ one }}</a>'
    )
    text = shown.render(one=hostile)
    assert re.fullmatch(r'<a title="[^"<>]*" href="/session\?client=[\w%.+~-]*">[^<>]*</a>', text)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_cell_has_the_title_of_its_column_and_its_text(hostile: str) -> None:
    head = "<thead><tr><th>Client</th><th><a>Queued &darr;</a> <small>bytes</small></th>"
    head += "<th>User</th></tr></thead>"
    nothing = '<td><span class="muted">-</span></td></tr>'
    row = '<tr><th scope="row">{}</th><td class="n">{}</td>' + nothing
    made = str(labelled(Markup(head + row).format(hostile, hostile)))
    text = str(escape(hostile))
    cells = f'<tr><th scope="row">{text}</th><td class="n" data-label="Queued">{text}</td>'
    assert made == head + cells + nothing


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("0x00158d0001f00000", "0x00158d0001f00000"),
        ("home/hall_lamp-2/set", "home/<wbr>hall_<wbr>lamp-<wbr>2/<wbr>set"),
        ("a//b/", "a//<wbr>b/"),
        ("a/<b>", "a/<wbr>&lt;b&gt;"),
    ],
)
def test_a_name_is_broken_at_its_separators(given: str, shown: str) -> None:
    assert name(given) == f'<bdi class="name">{shown}</bdi>'


def test_a_problem_links_to_its_session() -> None:
    late = {"code": "slow_acks", "count": 1, "age_ms": 1000, "quiet_ms": 1000, "lasts": True}
    shared = "$share/g/t"
    advice = [advise({**late, "client": client}) for client in ("a/b c", shared)]
    advice.append(Advice("problem", "the log", "lacks records", "", "", "foldmq log"))
    template = environment().get_template("parts/problems.html")
    for logs in ([], ["p0", "p1"]):
        shown = template.render(advice=advice, more=0, logs=logs)
        assert '<a href="/session?client=a%2Fb+c">' in shown
        # Sessions of a shared subscription may be in several logs.
        assert ('<a href="/session?client=%24share%2Fg%2Ft">' in shown) == (not logs)
        assert shown.count("<a ") == (1 if logs else 2)
        assert "<b>the log</b> lacks records" in shown


def test_a_url_has_the_given_parameters() -> None:
    assert url("/log") == "/log"
    assert url("/log", session=None, topic="", type=[], payload=False) == "/log"
    assert url("/log", {"from": "1.2"}, payload=True) == "/log?from=1.2&payload=1"
    assert url("/log", type=["A", "B"]) == "/log?type=A&type=B"
    assert (
        url("/session", client="a/b#c?d&e=f +%\n")
        == "/session?client=a%2Fb%23c%3Fd%26e%3Df+%2B%25%0A"
    )


# ------------------------------------------------------------------------------- curves


def numbers(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def test_a_curve_fills_its_chart_and_leaves_gaps() -> None:
    made = chart("c", [10.0, 12.0, 14.0, 16.0, 20.0], [("a", [0.0, 5.0, None, 10.0, 5.0])])
    assert (made.top, made.seconds) == (10.0, 10.0)
    (curve,) = made.curves
    first, second = curve.line.split(" M")
    assert numbers(first) == [(0.0, HEIGHT), (60.0, pytest.approx(HEIGHT - 28))]
    assert numbers(second) == [(180.0, pytest.approx(4.0)), (WIDTH, pytest.approx(HEIGHT - 28))]
    assert curve.area.count("Z") == 2


@pytest.mark.parametrize("values", [[], [None], [3.0], [0.0, 0.0], [None, None]])
def test_a_curve_of_hardly_anything_is_drawn(values: list[float | None]) -> None:
    made = chart("c", [float(at) for at in range(len(values))], [("a", values)])
    assert "nan" not in made.curves[0].line
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers(made.curves[0].line))


def test_bars_exist_only_for_events() -> None:
    assert bars([0, 0]) == ""
    drawn = re.findall(r"M([\d.]+) 60h[\d.]+v-([\d.]+)", bars([0, 4, 0, 16]))
    assert [(float(x), float(y)) for x, y in drawn] == [(75.0, 30.0), (225.0, 60.0)]


# ------------------------------------------------------------------------------- lists


class FakeLink:
    """Answers `sessions` with this many rows, 500 at a time, as the broker does."""

    def __init__(self, count: int) -> None:
        self.rows = [{"client": f"c{number}"} for number in range(count)]
        self.fits = 500
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.forgets = False
        self._cursors: dict[str, int] = {}

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        self.asked.append((endpoint, request))
        start = 0
        if request.get("top", {}).get("count", 0) > self.fits:
            raise TooLarge("the answer is too large")
        if endpoint == "page":
            if self.forgets:
                raise Refused("this list has expired: request it again")
            start = self._cursors.pop(request["cursor"])
        stop = start + 500
        cursor = f"k{stop}" if stop < len(self.rows) else None
        if cursor is not None:
            self._cursors[cursor] = stop
        rows = self.rows[start:stop]
        return {"rows": rows, "total": len(self.rows), "more": cursor is not None, "cursor": cursor}

    async def ask_log(self, log: str, endpoint: str, /, **request: Any) -> dict[str, Any]:
        assert not log
        return await self.ask(endpoint, **request)

    async def ask_each(self, endpoint: str, /, **request: Any) -> list[tuple[str, dict[str, Any]]]:
        return [("", await self.ask(endpoint, **request))]

    ask_highest = WebLogClient.ask_highest


BY_CLIENT = Order("client", lambda row: str(row["client"]))


def listings(count: int) -> tuple[Listings, FakeLink]:
    link = FakeLink(count)
    return Listings(cast(WebLogClient, link)), link


def test_pages_of_a_list_can_be_turned_back_and_loaded_again() -> None:
    async def turn() -> None:
        lists, link = listings(1250)
        first = await lists.find("sessions", {}, None, None, 0)
        seen = []
        page, found = 0, first
        while True:
            seen += [row["client"] for row in found.rows]
            assert found.first == page * PAGE_ROWS + 1
            if not found.more:
                break
            page += 1
            found = await lists.find("sessions", {}, None, first.id, page)
        assert seen == [row["client"] for row in link.rows]
        assert len(link.asked) == 3
        again = await lists.find("sessions", {}, None, first.id, 3)
        assert [row["client"] for row in again.rows] == seen[300:400]
        assert len(link.asked) == 3

    asyncio.run(turn())


def test_a_short_list_is_not_kept() -> None:
    async def short() -> None:
        lists, _ = listings(PAGE_ROWS)
        found = await lists.find("sessions", {"connected": True}, "queued", None, 0)
        assert (found.id, found.more, len(found.rows)) == (None, False, PAGE_ROWS)

    asyncio.run(short())


def test_an_expired_list_restarts_with_a_notice() -> None:
    async def forget() -> None:
        lists, link = listings(1250)
        first = await lists.find("sessions", {}, None, None, 0)
        other = await lists.find("sessions", {"connected": True}, None, first.id, 2)
        assert (other.page, other.first) == (0, 1)
        assert "expired" in (other.problem or "")
        link.forgets = True
        late = await lists.find("sessions", {}, None, first.id, 7)
        assert "expired" in (late.problem or "")
        assert late.rows == []

    asyncio.run(forget())


def test_a_list_is_put_in_order_before_it_has_pages() -> None:
    async def turn() -> None:
        lists, link = listings(1250)
        link.rows.reverse()
        names = sorted(row["client"] for row in link.rows)
        first = await lists.find("sessions", {}, BY_CLIENT, None, 0)
        assert [row["client"] for row in first.rows] == names[:PAGE_ROWS]
        assert (first.order, first.problem) == ("client", None)
        last = await lists.find("sessions", {}, BY_CLIENT, first.id, 12)
        assert [row["client"] for row in last.rows] == names[1200:]
        assert len(link.asked) == 3
        # The same list in another order is another list.
        backwards = Order("backwards", lambda row: -int(row["client"][1:]))
        other = await lists.find("sessions", {}, backwards, first.id, 1)
        assert (other.first, other.rows[0]["client"]) == (1, "c1249")

    asyncio.run(turn())


@pytest.mark.parametrize(("wanted", "asked"), [({}, 1), ({"match": "*c*"}, 2)])
def test_a_list_too_long_to_be_sorted_has_a_notice(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any], asked: int
) -> None:
    monkeypatch.setattr("cli.web.paged_lists.MAX_SORTED", 1000)

    async def much() -> None:
        lists, link = listings(1001)
        first = await lists.find("sessions", wanted, BY_CLIENT, None, 0)
        assert [row["client"] for row in first.rows] == [f"c{one}" for one in range(PAGE_ROWS)]
        assert first.order is None
        assert "Only lists of up to 1,000 rows" in (first.problem or "")
        assert len(link.asked) == asked

    asyncio.run(much())


def test_fewer_rows_are_requested_for_long_names() -> None:
    async def less() -> None:
        lists, link = listings(30)
        link.fits = 5
        await lists.find("sessions", {}, "queued", None, 0)
        assert [request["top"]["count"] for _, request in link.asked] == [500, 50, 5]
        link.fits = 0
        with pytest.raises(TooLarge):
            await lists.find("sessions", {}, "queued", None, 0)

    asyncio.run(less())


@pytest.mark.parametrize("fits", [100, 10, 1])
def test_less_of_a_session_is_requested_for_long_names(fits: int) -> None:
    asked: list[int] = []

    class Full:
        async def ask_log(self, log: str, _endpoint: str, /, **request: Any) -> dict[str, Any]:
            assert log == "n-p1"
            asked.append(request["most"])
            if request["most"] > fits:
                raise TooLarge("the answer is too large")
            return {"rows": request["most"]}

        ask_less = WebLogClient.ask_less

    async def less() -> None:
        found = await Full().ask_less("session", (100, 10, 1), lambda most: {"most": most}, "n-p1")
        assert found == ({"rows": fits}, fits)

    asyncio.run(less())
    assert asked == [one for one in (100, 10, 1) if one >= fits]


@pytest.mark.parametrize(
    ("given", "pattern"),
    [("a", "*a*"), ("a*", "a*"), ("x" * 254, f"*{'x' * 254}*"), ("*a" * 16, "*a" * 16)],
)
def test_a_part_of_a_name_becomes_a_pattern(given: str, pattern: str) -> None:
    assert _pattern(given) == pattern


@pytest.mark.parametrize("given", ["x" * 255, "?" * 257, "*a" * 17])
def test_a_pattern_that_costs_too_much_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="at most 256 characters and 16 stars"):
        _pattern(given)


def test_a_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.web.paged_lists._MAX_ROWS", 1000)

    async def bounded() -> None:
        lists, link = listings(5000)
        first = await lists.find("sessions", {}, None, None, 0)
        last = await lists.find("sessions", {}, None, first.id, 9)
        assert len(last.rows) == PAGE_ROWS
        assert not last.more
        assert "1,000 rows" in (last.problem or "")
        assert len(link.asked) == 2

    asyncio.run(bounded())


# ------------------------------------------------------------------------------- samples


def status(ms: int, messages: int) -> dict[str, Any]:
    histogram = {"bounds": [0.001, 0.01], "counts": [messages, 0, 0], "sum": 0.0, "count": messages}
    return {
        "node": "n",
        "pid": 1,
        "started_ms": 0,
        "time_ms": ms,
        "messages": {"in": [messages, 0, 0], "out": [0, messages, 0]},
        "bytes": {"in": 0, "out": 0},
        "packets": {"in": 0, "out": 0},
        "connections": {"accepted": 0},
        "log": {"records": 0, "events": 0, "bytes": 0},
        "kernel": {"turns": 0, "handled": 0},
        "process": {"cpu_s": 0.0},
        "dropped": {},
        "commit": histogram,
        "lag": histogram,
        "census": {"queued": 3, "in_flight": 4},
    }


class Clocked:
    """A broker that takes 100 messages a second, by the clock of the test."""

    node = "n"
    polled = None

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0

    async def poll(self, endpoint: str, /, **request: Any) -> list[tuple[Clocked, Any]]:
        return [(self, await self.ask(endpoint, **request))]

    async def ask(self, _endpoint: str, /, **_request: Any) -> dict[str, Any]:
        self.asked += 1
        self.now += 0.5
        return status(round(self.now * 1000), round(self.now * 100))


def test_busiest_topics_with_long_names_are_left_out() -> None:
    class LongNames(Clocked):
        async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
            if request["topics"]:
                raise TooLarge("the answer is too large")
            return await super().ask(endpoint, **request)

    async def look() -> None:
        link = LongNames()
        samples = Samples(cast(WebLogClient, link), clock=lambda: link.now)
        assert "topics" not in (await samples.latest()).status
        await samples.close()

    asyncio.run(look())


def test_there_are_rates_at_the_first_look() -> None:
    async def look() -> None:
        link = Clocked()
        samples = Samples(cast(WebLogClient, link), clock=lambda: link.now)
        first = await samples.latest()
        assert link.asked == 2
        assert first.rates is not None
        assert first.rates.messages_in == (100.0, 0.0, 0.0)
        await samples.latest()
        assert link.asked == 2, "what is fresh is not asked for again"
        link.now += 60
        await samples.latest()
        assert link.asked == 3
        charts = samples.charts()
        assert charts[0].title == "Messages per second"
        assert charts[0].top == pytest.approx(100.0)
        assert charts[3].top == 7.0
        await samples.close()

    asyncio.run(look())


# ------------------------------------------------------------------------------- looks


def colours() -> dict[str, dict[str, str]]:
    """The colours of the style sheet, light and dark."""
    sheet = (Path(middleware.__file__).parents[1] / "static" / "page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)[:2]
    found = {}
    for scheme, text in (("light", light), ("dark", dark)):
        found[scheme] = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
    return found


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read(scheme: str) -> None:
    found = colours()[scheme]
    pairs = [(ink, back) for ink in ("text", "muted", "link") for back in ("back", "card", "code")]
    pairs += [("text", f"{tone}-back") for tone in ("good", "warn", "bad")]
    pairs += [("muted", "good-back"), ("text", "mark"), ("link", "mark"), ("good", "good-back")]
    pairs += [(tone, "card") for tone in ("good", "warn", "bad")] + [("bad", "bad-back")]
    pairs += [("on-strong", "strong")]
    low = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < 4.5} == {}


def test_the_banner_shows_the_token_on_a_terminal_only() -> None:
    facts = Facts(
        listening=[Address("127.0.0.1", 1)],
        metrics=None,
        web="http://127.0.0.1:2/",
        web_token="?token=geheim",
        users=0,
        data="/d",
        node="n",
        nats="x",
        promise="y",
        durable=True,
    )

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in (
        (Terminal(), "http://127.0.0.1:2/?token=geheim"),
        (io.StringIO(), "http://127.0.0.1:2/ (asks for the token in /d/web.token)"),
    ):
        announce(load_settings({}, {}), facts, stream)
        assert f"  web page   {shown}\n" in stream.getvalue()


def test_the_page_of_a_session_shows_its_replays() -> None:
    state = SessionState("c", connected=True, clean=False)
    held = state.subscription("$replay/all/<b>")
    held.active = True
    held.replay = ReplayState("<b>", {}, through={"": 900 << 20}, sent=3, reached_ms=1000)
    state.own_replays()[held.filter] = held
    unchanged: dict[str, list[Any]] = {"rows": [], "fields": [], "gone": []}
    module: Any = environment().get_template("parts/state.html").make_module({})
    view = session_view(state, last=905)
    found = str(module.state(view, unchanged, "/session", 0, 100, 61_000, ""))
    assert (
        "<small>replay: reads the past, has read through 900.0, 6 records behind (1 min ago), "
        "3 messages sent</small>"
    ) in found
    assert "<b>" not in found
