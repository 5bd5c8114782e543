"""The web page in a real browser: movement, hostile names, appearance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from harness.broker import Broker
from harness.chromium import CUT, chromium, needs_chromium
from harness.fixtures import Clients
from harness.waiting import until

from e2e.log_scenarios import serving
from e2e.webclient import Page as Visitor
from e2e.webclient import served, web

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [
    needs_chromium,
    pytest.mark.timeout(180),
]

HACK = "<img src=x onerror=\"window.hacked=1;alert('hacked')\">"
NAMES = [
    HACK,
    "<script>window.hacked=2</script>",
    "\"'><svg onload=window.hacked=3>",
    "javascript:window.hacked=4",
    "\u202e\x1b[31m</title></textarea><script>window.hacked=5</script>",
]
TIMEOUT = 30_000
"""Milliseconds in which what must come has come."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("browser")
    with serving(directory, "--web", "127.0.0.1:0", play=play, config="") as (made, _):
        yield made


def play(clients: Clients) -> None:
    """One session that gathers a queue and loses it, and sessions with names that attack."""
    walker = clients.connect("walker", clean=False)
    walker.subscribe(("first/#", 1))
    walker.disconnect()
    sender = clients.connect("sender")
    for number in range(5):
        sender.publish("first/one", b"%d" % number, 1)
    walker = clients.connect("walker", clean=False, session_present=True)
    for number in range(5):
        walker.acknowledge(walker.expect_publish("first/one", b"%d" % number, 1))
    walker.subscribe(("late/#", 1))
    sender.publish("first/one", b"last", 1)
    walker.expect_publish("first/one", b"last", 1)
    for number, name in enumerate(NAMES):
        evil = clients.connect(name, clean=False)
        evil.subscribe((name.replace("#", ""), 1))
        sender.publish(name, name.encode(), 1, retain=True)
        evil.expect_publish(name, name.encode(), 1)
        if number % 2:
            evil.disconnect()
    for number in range(3):
        device = clients.connect(f"0x00158d0001f00{number:03}", clean=False)
        device.subscribe((f"zigbee2mqtt/0x00158d0001f00{number:03}/set/brightness", 1))
    wall = clients.connect("homeassistant-3f2a9c4d8b7e41", clean=False)
    wall.subscribe(("first/#", 1))
    sender.publish("first/brightness_transition_time", b"5", 1, retain=True)
    wall.expect_publish("first/brightness_transition_time", b"5", 1)
    sender.expect_alive()


class Watch:
    """Takes note of all that must not happen in a browser."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.origin = origin
        self.wrong: list[str] = []
        context.on("page", self._on_page)
        context.on("request", self._on_request)

    def _on_page(self, page: Page) -> None:
        page.on("dialog", self._on_dialog)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", self._on_console)

    def _on_dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_console(self, message: Any) -> None:
        # That an answer was a refusal is not an error of the page.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.wrong.append(f"request: {request.url}")


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., tuple[Page, Watch]]]:
    """Opens a page of a visitor's, logged in, in a browser of its own."""
    contexts: list[tuple[BrowserContext, Watch]] = []

    def make(visitor: Visitor, **options: Any) -> tuple[Page, Watch]:
        context = browser.new_context(**options)
        context.set_default_timeout(TIMEOUT)
        watch = Watch(context, f"http://127.0.0.1:{visitor.port}")
        contexts.append((context, watch))
        page = context.new_page()
        page.goto(f"{watch.origin}/?token={visitor.token}")
        return page, watch

    yield make
    for context, watch in contexts:
        for page in context.pages:
            assert page.evaluate("window.hacked") is None
        context.close()
        assert watch.wrong == []


def shown(page: Page, label: str) -> str:
    """What a tile says."""
    return page.locator(".tile", has=page.get_by_text(label, exact=True)).locator("dd").inner_text()


def test_login_and_live_numbers(
    broker: Broker, browser: Browser, opened: Callable[..., tuple[Page, Watch]]
) -> None:
    visitor = served(broker)
    page, watch = opened(visitor)
    page.context.clear_cookies()
    page.goto(f"{watch.origin}/sessions?match=walk")
    page.get_by_label("Token").fill("not the token")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("This token is not valid.").wait_for()
    page.get_by_label("Token").fill(visitor.token)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="walker").wait_for()
    assert page.url == f"{watch.origin}/sessions?match=walk"
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("Ready").wait_for()
    before = shown(page, "Connections")
    page.evaluate("window.same = true")
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("somebody new")
    until(lambda: shown(page, "Connections") != before, "another number of connections")
    sender = clients.connect("traffic")
    busy = page.get_by_role("link", name="live/topic")

    def seen() -> bool:
        sender.publish("live/topic", b"x", 1)
        return busy.is_visible()

    until(seen, "the busiest topic")
    assert page.evaluate("window.same"), "the page was not loaded again for that"
    # Paused, it stays as it is.
    page.get_by_role("button", name="Pause").click()
    assert page.locator("#live-state").inner_text() == "paused"
    before = shown(page, "Connections")
    clients.close()
    page.get_by_role("button", name="Resume").click()
    until(lambda: shown(page, "Connections") != before, "fewer connections")


def test_the_slider_shows_the_past(
    broker: Broker, opened: Callable[..., tuple[Page, Watch]]
) -> None:
    page, watch = opened(served(broker))
    page.goto(f"{watch.origin}/session?client=walker")
    slider = page.get_by_role("slider", name="Moment")
    slider.wait_for()
    filters = page.locator("table.subscriptions tbody th")
    assert filters.all_inner_texts() == ["first/#", "late/#"]
    assert shown(page, "Queued").startswith("0")
    assert page.locator("#where").inner_text() == "now"

    # Before its first event there was no session.
    slider.focus()
    page.keyboard.press("Home")
    page.get_by_text("The session did not exist at that moment.").wait_for()
    assert "at=" in page.url

    # A mark leads to its record.
    page.get_by_text("Marks as a list").click()
    mark = page.locator("#marks-list a").last
    record = mark.get_attribute("data-at")
    page.locator(".lane.connect svg").click(position={"x": 1, "y": 5})
    page.locator(f'.moment[data-record="{record}"]').wait_for()
    assert page.url.endswith(f"at={record}")
    assert page.get_by_role("slider").get_attribute("aria-valuetext") == mark.inner_text()

    # From event to event, with what each changed.
    previous = page.get_by_role("link", name="Previous event")
    page.get_by_role("link", name="Now", exact=True).click()
    page.get_by_role("link", name="Last event").click()
    previous.wait_for()
    while not page.get_by_text("queued 4 -> 5 messages").is_visible():
        before = page.locator(".moment").get_attribute("data-at")
        previous.click()
        page.locator(f'.moment:not([data-at="{before}"])').wait_for()
    fullest = float(slider.input_value())
    assert "queued 4 -> 5 messages" in page.locator(".changes").inner_text()
    assert page.locator("tr.changed th").all_inner_texts() == ["first/#"]
    page.get_by_role("link", name="Previous event").click()
    page.get_by_text("queued 3 -> 4 messages").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("queued 2 -> 3 messages").wait_for()
    assert page.get_by_role("link", name="Previous event").evaluate(
        "element => element === document.activeElement"
    )
    assert float(slider.input_value()) < fullest

    # The requested moment can be reloaded; then back to now.
    page.reload()
    page.get_by_text("queued 2 -> 3 messages").wait_for()
    page.get_by_role("link", name="Now", exact=True).click()
    page.locator(".moment.now").wait_for()
    assert filters.all_inner_texts() == ["first/#", "late/#"]
    assert page.url == f"{watch.origin}/session?client=walker"
    page.get_by_label("State as of", exact=True).fill("nonsense")
    page.get_by_role("button", name="Show").click()
    page.get_by_text('not a point in time: "nonsense"').wait_for()


def test_the_broker_is_played_and_compared(
    broker: Broker, opened: Callable[..., tuple[Page, Watch]]
) -> None:
    page, watch = opened(served(broker))
    page.goto(f"{watch.origin}/time")
    slider = page.get_by_role("slider", name="Moment")
    slider.wait_for()
    assert page.get_by_role("img", name=re.compile("^Restarts: 1$")).count() == 1
    connects = page.get_by_role("img", name=re.compile(r"^Connects: \d+$"))
    assert int((connects.get_attribute("aria-label") or "").split()[-1]) > len(NAMES)
    width = float(slider.get_attribute("max") or 0) - float(slider.get_attribute("min") or 0)

    # Pin the beginning and the end.
    slider.focus()
    page.keyboard.press("Home")
    page.locator(".moment[data-at]").wait_for()
    page.get_by_role("button", name="Pin A here").click()
    page.get_by_role("link", name="Now", exact=True).click()
    page.get_by_role("button", name="Pin B here").click()
    page.get_by_text("+ session walker").wait_for()
    assert page.locator(".pin:visible").all_inner_texts() == ["A", "B"]
    page.reload()
    page.get_by_text("+ session walker").wait_for()

    # Play from the beginning of what is shown; what moves the moment stops it.
    slider.focus()
    page.keyboard.press("Home")
    page.locator(".moment[data-at]").wait_for()
    start = float(slider.input_value())
    page.get_by_role("button", name="Play").click()
    until(lambda: float(slider.input_value()) > start, "the moment moves")
    page.get_by_role("link", name="Previous record").click()
    page.get_by_role("button", name="Play").wait_for()

    # Zoom around the moment.
    page.get_by_role("button", name="Zoom in").click()

    def shown_width() -> float:
        ends = [float(slider.get_attribute(name) or 0) for name in ("max", "min")]
        return ends[0] - ends[1]

    until(lambda: shown_width() < width, "a part of the time")
    page.get_by_role("button", name="All").click()
    until(lambda: shown_width() >= width, "all of it")


def test_hostile_names_run_nothing(
    broker: Broker, opened: Callable[..., tuple[Page, Watch]]
) -> None:
    page, watch = opened(served(broker))
    page.goto(f"{watch.origin}/sessions")
    links = page.locator("table.list tbody th a")
    addresses = [one for one in links.evaluate_all("all => all.map(one => one.href)") if one]
    assert len(addresses) >= len(NAMES) + 1
    evil = [one for one in addresses if "hacked" in one]
    assert len(evil) == len(NAMES)
    for address in evil:
        page.goto(address)
        page.get_by_role("slider").wait_for()
        page.get_by_role("link", name="Last event").click()
        page.locator(".moment[data-at]").wait_for()
        assert "window.hacked" in page.locator("h1").inner_text()
        assert page.evaluate("window.hacked") is None
        page.get_by_role("link", name="Its events").click()
        page.locator("table.events").wait_for()
    for path in (
        "/developers",
        "/actors",
        "/log?payload=1",
        "/retained",
        "/topics",
        "/disk",
        "/time?at=now&a=1&b=now",
    ):
        page.goto(watch.origin + path)
        page.locator("table").first.wait_for()
        assert page.evaluate("window.hacked") is None
    for number in range(len(NAMES)):
        page.goto(f"{watch.origin}/retained")
        page.get_by_role("link", name=re.compile("hacked")).nth(number).click()
        page.locator("#value pre").wait_for()
        assert "hacked" in page.locator("#value pre").inner_text()
    assert watch.wrong == []


SIZES = [(1400, 900), (390, 844)]
PATHS = [
    "/",
    "/problems",
    "/developers",
    "/session?client=homeassistant-3f2a9c4d8b7e41",
    "/sessions",
    "/session?client=walker",
    "/session?client=walker&at=now",
    "/session?client=walker&a=1&b=now",
    "/time?at=now&a=1&b=now",
    "/actors?sort=recent",
    "/retained?topic=",
    "/subscriptions?topic=first/one",
    "/why?topic=first/one&client=walker",
    "/topics",
    "/topics?under=first",
    "/disk",
    "/topics/tail?topic=first/one",
    "/log?payload=1",
    "/log?from=nonsense",
    "/login",
]
_UNLABELLED = """() => [...document.querySelectorAll("input:not([type=hidden]), select, button, a")]
  .filter((one) => !(one.labels && one.labels.length) && !one.textContent.trim())
  .map((one) => one.outerHTML)"""

_BROKEN = """() => {
  const broken = [];
  for (const name of document.querySelectorAll(".name")) {
    for (const word of name.childNodes) {
      const range = document.createRange();
      range.selectNodeContents(word);
      const lines = range.getClientRects().length;
      if (/^\\w{1,29}$/.test(word.textContent) && lines > 1) broken.push(word.textContent);
    }
  }
  return broken;
}"""
"""Parts of identifiers that are broken into lines."""


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        pytest.param("light", SIZES[0], id="light-wide", marks=pytest.mark.long),
        pytest.param("light", SIZES[1], id="light-narrow"),
        pytest.param("dark", SIZES[0], id="dark-wide"),
        pytest.param("dark", SIZES[1], id="dark-narrow", marks=pytest.mark.long),
    ],
)
def test_every_page_fits(
    broker: Broker,
    opened: Callable[..., tuple[Page, Watch]],
    size: tuple[int, int],
    scheme: str,
) -> None:
    width, height = size
    page, watch = opened(
        served(broker), viewport={"width": width, "height": height}, color_scheme=scheme
    )
    backs = set()
    for path in PATHS if scheme == "light" else PATHS[::3]:  # only the colours differ
        page.goto(watch.origin + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(CUT) == [], path
        assert page.evaluate(_BROKEN) == [], path
        assert page.evaluate(_UNLABELLED) == [], path
        assert page.locator("h1").count() == 1
        backs.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    (back,) = backs
    brightness = sum(map(int, re.findall(r"\d+", back)[:3])) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60


@pytest.mark.parametrize("scripts", [True, False])
def test_a_narrow_window_has_a_menu_and_rows_with_labels(
    broker: Broker, opened: Callable[..., tuple[Page, Watch]], scripts: bool
) -> None:
    page, watch = opened(
        served(broker), viewport={"width": 390, "height": 844}, java_script_enabled=scripts
    )
    pages = page.get_by_role("navigation", name="Pages", exact=True)
    assert not pages.is_visible()
    page.get_by_text("Menu").click()
    assert pages.get_by_role("link").count() == 11
    pages.get_by_role("link", name="Sessions").click()
    page.wait_for_url(f"{watch.origin}/sessions")
    row = page.locator("tbody tr", has=page.get_by_role("link", name="walker"))
    label = "element => getComputedStyle(element, '::before').content"
    expected = {'"State "', '"Subscriptions "', '"Queued "', '"Dropped "', '"Address "'}

    def labels() -> set[str]:
        """The labels of the row; a refresh may replace it meanwhile."""
        return {cell.evaluate(label) for cell in row.locator("td:visible").all()}

    until(lambda: expected <= labels(), "labels")
    page.get_by_role("link", name="Queued").click()
    page.get_by_text("only the highest are shown").wait_for()


def test_without_scripts_everything_but_the_slider_works(
    broker: Broker, opened: Callable[..., tuple[Page, Watch]]
) -> None:
    page, watch = opened(served(broker), java_script_enabled=False)
    page.get_by_text("Ready").wait_for()
    assert not page.get_by_role("button", name="Pause").is_visible()
    page.goto(f"{watch.origin}/session?client=walker")
    assert not page.get_by_role("slider").is_visible()
    page.get_by_role("link", name="Last event").click()
    page.get_by_role("link", name="Previous event").click()
    page.get_by_role("link", name="Next event").wait_for()
    page.get_by_label("State as of", exact=True).fill("1")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("The session did not exist at that moment.").wait_for()


def test_it_recovers_when_the_broker_does(
    make_broker: Callable[..., Broker], opened: Callable[..., tuple[Page, Watch]]
) -> None:
    broker = make_broker()
    broker.start()
    with web(broker.data_dir, "--data-dir", str(broker.data_dir)) as (visitor, _):
        page, watch = opened(visitor)
        page.get_by_text("Ready").wait_for()
        broker.stop()
        page.get_by_role("alert").filter(has_text="no broker").wait_for()
        assert page.locator("#live-state").inner_text() == "away"
        assert not page.get_by_text("Ready").is_visible()
        page.goto(f"{watch.origin}/sessions")
        page.get_by_role("heading", name="The broker does not answer").wait_for()
        broker.start()
        page.get_by_role("heading", name="Sessions").wait_for()
        page.get_by_role("link", name="Overview").click()
        page.get_by_text("Ready").wait_for()
        assert page.locator("#live-state").inner_text() == "live"
