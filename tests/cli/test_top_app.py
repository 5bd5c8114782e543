"""The full-screen view of ``foldmq top``, driven by keys, with a simulated broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from topsamples import actor, status

from cli.logs import trace_client
from cli.logs.broker_client import LiveBroker, NoLiveBroker, Refused, TooLarge
from cli.logs.log_brokers import LogBrokers
from cli.logs.reconnecting_client import NotUnderstood, ReconnectingClient
from cli.logs.trace_client import Portion
from cli.top import once
from cli.top.top_app import TEXT, Top
from cli.top.watched_broker import TopQueries

if TYPE_CHECKING:
    from textual.pilot import Pilot

pytestmark = pytest.mark.slow

HOSTILE = "\x1b[2J[red]evil[/]\u202e"
SHOWN = "\\u001b[2J[red]evil[/]\\u202e"


class Inspected:
    """Answers as the inspector does; ``away`` is what it fails with."""

    where = "/var/lib/foldmq"
    connected = True

    def __init__(self, node: str = "n1") -> None:
        self.node = node
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.away: Exception | None = None
        self.found = 0
        self.seconds = 0
        self.started = 0
        self.per_poll = 2000
        self.status: dict[str, Any] = {"topics": [("plant/temp", 800.0), (HOSTILE, 200.0)]}
        self.actors = [actor(number, name=f"pump-{number}") for number in range(40, 0, -1)]
        self.answers: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def find(self) -> AsyncIterator[Any]:
        self.found += 1
        if self.away is not None:
            raise self.away
        yield LogBrokers([cast("LiveBroker", self)])

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        self.asked.append((endpoint, request))
        if self.away is not None:
            raise self.away
        if endpoint == "status":
            return self._status()
        if endpoint == "actors":
            part = request.get("match", "*").strip("*")
            return {"rows": [row for row in self.actors if part in row["name"]], "total": 40}
        answer = self.answers[endpoint]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def _status(self) -> dict[str, Any]:
        self.seconds += 2
        polls = self.seconds - self.started
        return status(
            **{
                "seconds": self.seconds,
                "node": self.node,
                "started_ms": self.started,
                "received": [0, polls * self.per_poll // 2, 0],
                "commit": [0, 0, polls, 0, 0, 0],
                **self.status,
            }
        )

    def restart(self) -> None:
        self.started = self.seconds

    def requests(self, endpoint: str) -> list[dict[str, Any]]:
        return [request for asked, request in self.asked if asked == endpoint]


class SeveralInspected:
    """The brokers of two logs."""

    def __init__(self) -> None:
        self.brokers = [Inspected(log) for log in ("n-p0", "n-p1")]
        for number, broker in enumerate(self.brokers):
            broker.actors = [
                actor(2 * one + number, name=f"pump-{2 * one + number}") for one in range(20, 0, -1)
            ]

    @contextlib.asynccontextmanager
    async def find(self) -> AsyncIterator[LogBrokers]:
        brokers = [cast("LiveBroker", one) for one in self.brokers]
        yield LogBrokers(brokers, [one.node for one in brokers])


@pytest.fixture
def broker() -> Inspected:
    return Inspected()


@pytest.fixture
def several() -> SeveralInspected:
    return SeveralInspected()


class Screen:
    """A running view."""

    def __init__(self, app: Top, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in strips]

    def text(self) -> str:
        return "\n".join(self.lines())

    async def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait for it; looking renders the screen, and takes half of the time at most."""
        async with asyncio.timeout(seconds):
            while True:
                began = time.monotonic()
                if condition():
                    return
                await self.pilot.pause(max(0.01, time.monotonic() - began))

    async def sees(self, *parts: str) -> None:
        try:
            await self.until(lambda: all(part in self.text() for part in parts))
        except TimeoutError:
            raise AssertionError(f"{parts} not in\n{self.text()}") from None

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def resize(self, width: int, height: int) -> None:
        """Change the size; returns when the screen has it."""
        await self.pilot.resize_terminal(width, height)
        await self.until(lambda: len(self.lines()) == height)


@contextlib.asynccontextmanager
async def shown(
    broker: Inspected | SeveralInspected,
    width: int = 80,
    height: int = 24,
    interval: float = 0.2,
    answer_seconds: float | None = None,
) -> AsyncIterator[Screen]:
    link = ReconnectingClient(broker.find, answer_seconds=answer_seconds)
    app = Top(link, interval, "recent")
    async with app.run_test(size=(width, height)) as pilot:
        screen = Screen(app, pilot)
        await screen.sees("1,000/s" if isinstance(broker, Inspected) else "2,000/s")
        yield screen
        await ended(app)
    await link.close()


async def ended(app: Top) -> None:
    """Have it end as for a user, its polls first.

    The pilot would take away the screens from below polls that go on, and one that comes to look
    at the screen just then fails the test.
    """
    if app.is_running:
        app.exit(app.return_value)
    async with asyncio.timeout(20):
        while app.is_running:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


def beside(screen: Screen) -> bool:
    """Whether the tables stand beside each other."""
    return any("ACTOR" in line and "TOPIC" in line for line in screen.lines())


# ------------------------------------------------------------------- the overview


async def test_overview_at_several_sizes(broker: Inspected) -> None:
    async with shown(broker) as screen:
        for width, height in ((80, 24), (120, 40), (200, 50)):
            await screen.resize(width, height)
            await screen.sees("q1 1,000", "p99 3.98 ms", "pump-40", "plant/temp", "80%")
            await screen.sees("node n1", "in flight 2", "queued 40", "free 64.0 GiB", "q quit")
            text = screen.text()
            assert ("gate p99  most" in text) == (height >= 36)
            assert beside(screen) == (width >= 110)
            rows = sum("pump-" in line for line in screen.lines())
            assert rows >= (5 if height == 24 else 18)
        await screen.sees("HANDLED")
        await screen.resize(60, 15)
        await screen.sees("1,000/s", "ACTOR")


async def test_names_are_shown_as_they_are_and_harmless(broker: Inspected) -> None:
    broker.actors = [actor(1, name=HOSTILE), actor(2, name="x" * 70_000)]
    async with shown(broker, 120, 30) as screen:
        await screen.sees(SHOWN[:14], "xxx…")
        assert "\x1b" not in screen.text()


async def test_one_poll_requests_only_the_status_and_the_first_actors(
    broker: Inspected,
) -> None:
    async with shown(broker) as screen:
        await screen.until(lambda: len(broker.requests("status")) >= 4)
    assert {endpoint for endpoint, _ in broker.asked} == {"status", "actors"}
    assert len(broker.requests("actors")) <= len(broker.requests("status")) + 1
    assert broker.requests("actors")[0] == {"top": {"by": "recent", "count": 100}}
    assert all(request == {"topics": True} for request in broker.requests("status"))


async def test_a_slow_list_is_requested_less_often(
    broker: Inspected, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(broker) as screen:
        answer = broker.ask

        async def ask(endpoint: str, /, **request: Any) -> dict[str, Any]:
            if endpoint == "actors":
                await asyncio.sleep(0.5)
            return await answer(endpoint, **request)

        monkeypatch.setattr(broker, "ask", ask)
        lists = len(broker.requests("actors"))
        await screen.until(lambda: len(broker.requests("actors")) > lists)
        polls = len(broker.requests("status"))
        await screen.until(lambda: len(broker.requests("status")) > polls + 5)
        assert len(broker.requests("actors")) == lists + 1
        # Explicit requests are made at once.
        await screen.press("s")
        await screen.until(lambda: len(broker.requests("actors")) > lists + 1)


async def test_the_mark_stays_with_its_row(broker: Inspected) -> None:
    async with shown(broker, 80, 24) as screen:
        await screen.press("down", "down")
        table = screen.app.screen._tables["actors"]
        assert table.marked["id"] == "session:38"
        broker.actors.reverse()
        await screen.until(lambda: table.items[0]["id"] == "session:1")
        assert table.marked["id"] == "session:38"
        await screen.sees("session:38")
        await screen.press("home")
        assert table.marked["id"] == "session:1"


async def test_sorting(broker: Inspected) -> None:
    async with shown(broker, 120, 40) as screen:
        await screen.press("s")
        await screen.until(lambda: broker.requests("actors")[-1]["top"]["by"] == "busy")
        await screen.press("s", "s")
        await screen.until(lambda: broker.requests("actors")[-1]["top"]["by"] == "mailbox")
        await screen.sees("BOX▼")
        await screen.press("tab", "s")
        rows = screen.app.screen._tables["topics"].items
        assert [row["topic"] for row in rows] == sorted([HOSTILE, "plant/temp"])


async def test_the_broker_filters_actors(broker: Inspected) -> None:
    async with shown(broker) as screen:
        await screen.press("slash", *"pump-2", "enter")
        await screen.until(lambda: broker.requests("actors")[-1].get("match") == "*pump-2*")
        await screen.sees("NAME /pump-2", "pump-29")
        assert "pump-40" not in screen.text()
        await screen.press("escape")
        await screen.sees("pump-40")
        assert "match" not in broker.requests("actors")[-1]


async def test_filter_of_topics(broker: Inspected) -> None:
    async with shown(broker) as screen:
        await screen.press("tab", "slash", *"evil", "enter")
        await screen.sees("TOPIC /evil")
        await screen.until(lambda: "plant/temp" not in screen.text())
        assert SHOWN in screen.text()
        await screen.press("slash", *"xxx", "enter")
        await screen.sees("no matching topics")
        await screen.press("slash", "escape")
        await screen.sees("plant/temp")


async def test_keys_that_are_typed_into_the_filter_do_nothing_else(broker: Inspected) -> None:
    async with shown(broker) as screen:
        await screen.press("slash", *"qps?t")
        assert screen.app.is_running
        assert not screen.app.monitor.paused
        await screen.sees("qps?t")


async def test_pause_stops_requests(broker: Inspected) -> None:
    async with shown(broker) as screen:
        await screen.press("p")
        await screen.sees("PAUSED")
        asked = len(broker.requests("status"))
        await screen.pilot.pause(0.3)
        assert len(broker.requests("status")) == asked
        await screen.press("p")
        await screen.until(lambda: len(broker.requests("status")) > asked)
        await screen.sees("ready")


async def test_help_and_quit(broker: Inspected) -> None:
    async with shown(broker) as screen:
        await screen.press("question_mark")
        await screen.sees("Enter           open an actor")
        await screen.press("end")
        await screen.sees("yellow or red")
        assert max(map(len, TEXT.splitlines())) < 80
        await screen.press("escape")
        await screen.sees("pump-40")
        await screen.press("q")
        await screen.until(lambda: not screen.app.is_running)
    assert screen.app.return_value is None


# ------------------------------------------------------------------- trouble


async def test_problems_are_shown_at_the_top(broker: Inspected) -> None:
    async with shown(broker) as screen:
        broker.status["trouble"] = ["the log cannot be written: disk full", HOSTILE]
        await screen.sees("NOT READY", "disk full", SHOWN)
        broker.status["trouble"] = []
        await screen.until(lambda: "disk full" not in screen.text())
        await screen.sees("ready")


async def test_a_broker_that_goes_away_and_comes_back(broker: Inspected) -> None:
    async with shown(broker) as screen:
        broker.away = NoLiveBroker("no broker is running on /var/lib/foldmq")
        await screen.sees("NO ANSWER", "no answer since", "no broker is running")
        found = broker.found
        await screen.until(lambda: broker.found > found + 1)
        broker.restart()
        broker.per_poll = 3000
        broker.away = None
        await screen.until(lambda: "NO ANSWER" not in screen.text())
        await screen.sees("1,500/s")
        assert "no answer since" not in screen.text()
        curve = screen.app.monitor.frame.history.curve("in")
        assert None in curve
        assert min(value for value in curve if value is not None) >= 0


@pytest.mark.parametrize("place", ["/var/lib/foldmq", f"/srv/{'long/' * 60}foldmq"])
async def test_the_remedy_is_visible_on_small_terminals(broker: Inspected, place: str) -> None:
    advice = "start it with foldmq serve, or give --data-dir or --nats-url"
    async with shown(broker) as screen:
        await screen.until(lambda: screen.app.screen._tables["actors"].items)
        broker.away = NoLiveBroker(f"no broker is running on {place}: {advice}")
        for width, height in ((60, 15), (80, 24), (109, 35), (200, 50)):
            await screen.resize(width, height)
            await screen.sees("no answer since", *(["session:"] if height >= 24 else []))
            await screen.until(lambda: advice in " ".join(screen.text().split()))


async def test_a_connection_is_shown_with_its_client(broker: Inspected) -> None:
    broker.actors = [actor(7, "connection", "127.0.0.1:54", client="pump-7")]
    async with shown(broker) as screen:
        for width, height in ((80, 24), (110, 30), (120, 40), (200, 50)):
            await screen.resize(width, height)
            await screen.sees("connection:7", "127.0.0.1:54", "pump-7")


async def test_an_answer_that_does_not_come_counts_as_none(
    broker: Inspected, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(broker, answer_seconds=0.05) as screen:
        never = asyncio.Event()

        async def ask(*_: Any, **__: Any) -> dict[str, Any]:
            await never.wait()
            return {}

        monkeypatch.setattr(broker, "ask", ask)
        await screen.sees("NO ANSWER", "no reply in time")


async def test_a_refusal_is_shown(broker: Inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(broker) as screen:
        broker.away = Refused("busy: try again")
        await screen.sees("NO ANSWER", "busy: try again")
        broker.away = None
        await screen.until(lambda: "NO ANSWER" not in screen.text())


async def test_a_broker_of_another_version_ends_the_view_with_a_sentence(
    broker: Inspected,
) -> None:
    async with shown(broker) as screen:
        broker.actors = [{"id": "session:1"}]
        await screen.until(lambda: not screen.app.is_running)
    assert "the same version" in str(screen.app.return_value)


# ------------------------------------------------------------------- pages


def page_of(row: dict[str, Any], detail: dict[str, Any]) -> dict[str, Any]:
    return {"actor": row, "detail": detail, "position": 1}


CONNECTION = {
    "id": "connection:7",
    "address": "127.0.0.1:5",
    "client": "pump",
    "level": 4,
    "keep_alive": 60,
    "connected_ms": 1,
    "bytes_in": 0,
    "bytes_out": 0,
    "messages_in": 0,
    "messages_out": 0,
    "unsent": 0,
    "gated": 0,
    "writable": True,
    "paused": [],
}


async def test_page_of_an_actor_and_back(broker: Inspected) -> None:
    row = actor(40, "connection", HOSTILE)
    broker.actors = [row]
    broker.answers["actor"] = page_of(row, CONNECTION)
    async with shown(broker) as screen:
        await screen.press("enter")
        await screen.sees(f"connection {SHOWN}", "MQTT 3.1.1, keep alive 60 s", "messages/s")
        assert broker.requests("actor")[0]["id"] == "connection:40"
        actors = len(broker.requests("actors"))
        polls = len(broker.requests("actor"))
        await screen.until(lambda: len(broker.requests("actor")) > polls + 1)
        # Lists are not requested while they are not visible.
        assert len(broker.requests("actors")) <= actors + 1
        assert broker.requests("status")[-1] == {"topics": False}
        broker.answers["actor"] = Refused("no actor connection:40")
        await screen.sees("connection:40 no longer exists", "no actor connection:40")
        await screen.press("escape")
        await screen.sees("ACTOR", "connection:40")


async def test_a_page_does_not_wait_for_the_next_poll(broker: Inspected) -> None:
    row = actor(40, "connection")
    broker.answers["actor"] = page_of(row, CONNECTION)
    async with shown(broker) as screen:
        screen.app.monitor.interval = 3600
        asked = len(broker.requests("status"))
        await screen.until(lambda: len(broker.requests("status")) > asked)
        await screen.press("enter")
        await screen.sees("MQTT 3.1.1, keep alive 60 s")
        rows = len(broker.requests("actors"))
        await screen.press("escape")
        await screen.until(lambda: len(broker.requests("actors")) > rows)


async def test_page_of_a_topic(broker: Inspected) -> None:
    receiver = {"client": HOSTILE, "filter": "plant/#", "qos": 1, "why": "sent", "chosen": True}
    broker.answers["subscriptions"] = {
        "rows": [{**receiver, "connected": True}],
        "more": False,
        "retained": None,
    }
    broker.answers["session"] = Refused("no session")
    async with shown(broker) as screen:
        await screen.press("tab", "enter")
        await screen.sees(
            "plant/temp, a message at QoS 1 now: sent to 1 client", "plant/#", SHOWN, "OUTCOME"
        )
        assert broker.requests("subscriptions")[0] == {"topic": "plant/temp"}
        await screen.press("enter")
        await screen.sees(f"session {SHOWN} no longer exists")
        assert broker.requests("session")[0]["client"] == HOSTILE


# ------------------------------------------------------------------- the live trace


class FakeTrace:
    """A trace whose portions a test gives."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Portion | Exception] = asyncio.Queue()
        self.wanted: list[dict[str, Any]] = []
        self.brokers: list[LiveBroker] = []
        self.token = "t"
        self.open = 0

    @contextlib.asynccontextmanager
    async def opened(self, broker: LiveBroker, **wanted: Any) -> AsyncIterator[FakeTrace]:
        self.wanted.append(wanted)
        self.brokers.append(broker)
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def portions(self) -> AsyncIterator[Portion]:
        while True:
            portion = await self.queue.get()
            if isinstance(portion, Exception):
                raise portion
            yield portion
            if portion.ended is not None:
                return


def line(number: int) -> dict[str, Any]:
    return {"ms": 1000 + number, "actor": "session:40", "kind": "starts", "number": number}


def unknown(number: int) -> dict[str, Any]:
    return {"ms": number, "actor": HOSTILE, "kind": "new", "what": f"{HOSTILE} {number}"}


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> FakeTrace:
    made = FakeTrace()
    monkeypatch.setattr(trace_client, "open_trace", made.opened)
    return made


@pytest.fixture
def traced(broker: Inspected, trace: FakeTrace) -> FakeTrace:
    row = actor(40, "connection")
    broker.answers["actor"] = page_of(row, CONNECTION)
    return trace


async def test_live_trace_of_an_actor(broker: Inspected, traced: FakeTrace) -> None:
    async with shown(broker) as screen:
        await screen.press("enter")
        await screen.sees("MQTT 3.1.1")
        await screen.press("t")
        await screen.sees("trace of session:40  following")
        traced.queue.put_nowait(Portion([line(1), unknown(2)], skipped=7))
        await screen.sees("session:40", "starts", SHOWN, "skipped 7 lines")
        traced.queue.put_nowait(Portion([], skipped=5))
        await screen.sees("skipped 12 lines")
        assert screen.text().count("skipped") == 1
        (wanted,) = traced.wanted
        assert wanted["actor"] == "session:40"
        await screen.press("escape")
        await screen.until(lambda: traced.open == 0)
        await screen.sees("MQTT 3.1.1")


async def test_a_trace_that_is_scrolled_back_does_not_move(
    broker: Inspected, traced: FakeTrace
) -> None:
    async with shown(broker) as screen:
        await screen.press("enter", "t")
        await screen.sees("trace of")
        traced.queue.put_nowait(Portion([unknown(number) for number in range(100)]))
        await screen.sees("evil[/]\\u202e 99")
        await screen.press("home")
        await screen.sees("scrolled back", "evil[/]\\u202e 0")
        traced.queue.put_nowait(Portion([unknown(100)]))
        await screen.until(lambda: traced.queue.empty())
        await screen.pilot.pause(0.4)
        assert "evil[/]\\u202e 100" not in screen.text()
        await screen.press("end")
        await screen.sees("following", "evil[/]\\u202e 100")


async def test_a_trace_continues_when_the_broker_is_back(
    broker: Inspected, traced: FakeTrace
) -> None:
    async with shown(broker) as screen:
        await screen.press("enter", "t")
        await screen.sees("trace of")
        traced.queue.put_nowait(NoLiveBroker("the broker of node n1 is gone"))
        await screen.sees("the broker of node n1 is gone; retrying")
        await screen.until(lambda: len(traced.wanted) == 2)
        traced.queue.put_nowait(Portion([line(5)], ended="the actor ended", cause="actor"))
        await screen.sees("starts", "the trace has ended: the actor ended")


# ------------------------------------------------------------------- several logs


async def test_overview_of_several_logs(several: SeveralInspected) -> None:
    several.brokers[1].status["topics"] = [("plant/temp", 100.0), ("plant/door", 50.0)]
    async with shown(several) as screen:
        await screen.sees("foldmq top  n, 2 logs  ready", "q1 2,000", "queued 80", "sessions all 8")
        await screen.sees("l logs", "q quit", "session:41")
        rows = [line.split()[:3] for line in screen.lines() if "session:" in line]
        # The busiest of both.
        assert rows[:3] == [
            ["session:41", "p1", "pump-41"],
            ["session:40", "p0", "pump-40"],
            ["session:39", "p1", "pump-39"],
        ]
        await screen.until(
            lambda: any(
                "plant/temp" in line and "900" in line and "45%" in line for line in screen.lines()
            )
        )
        await screen.sees("retained 2")  # both have the same


async def test_the_mark_stays_with_the_actor_of_a_log(several: SeveralInspected) -> None:
    first, second = several.brokers
    first.actors, second.actors = [actor(7, name="a")], [actor(7, name="b"), actor(6, name="c")]
    async with shown(several) as screen:
        await screen.press("down")
        table = screen.app.screen._tables["actors"]
        assert (table.marked["id"], table.marked["name"]) == ("session:7", "b")
        second.actors[0]["recent_us_per_s"] = 999_999.0
        await screen.until(lambda: table.items[0]["name"] == "b")
        assert table.marked["name"] == "b"


async def test_figures_of_each_log(several: SeveralInspected) -> None:
    several.brokers[1].per_poll = 3000
    link = ReconnectingClient(several.find)
    app = Top(link, 0.05, "recent")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.sees("2,500/s")
        await screen.press("l")
        await screen.sees("LOG", "QUEUED")
        lines = [line.split() for line in screen.lines() if line.startswith("n-p")]
        assert [(line[0], line[1], line[3]) for line in lines] == [
            ("n-p0", "ready", "1,000"),
            ("n-p1", "ready", "1,500"),
        ]
        several.brokers[1].away = NoLiveBroker("no broker of node n-p1 answers")
        await screen.until(lambda: "n-p1  " in screen.text() and "no answer" in screen.text())
        await screen.press("escape")
        await screen.sees("ACTOR")
        await ended(app)
    await link.close()


async def test_a_log_that_goes_away_and_comes_back(several: SeveralInspected) -> None:
    async with shown(several) as screen:
        several.brokers[1].away = NoLiveBroker("no broker of node n-p1 answers")
        await screen.sees(
            "NOT READY",
            "log n-p1 does not answer, and is not included: no broker of node n-p1 answers",
            "1,000/s",
            "p0   pump-40",
        )
        await screen.until(lambda: "p1   pump" not in screen.text())
        assert "NO ANSWER" not in screen.text()
        several.brokers[1].away = None
        await screen.sees("2,000/s", "p1   pump-41", "ready")
        several.brokers[0].away = several.brokers[1].away = NoLiveBroker("no broker is running")
        await screen.sees("NO ANSWER", "no answer since", "no broker is running")


async def test_pages_ask_the_log_of_their_row(several: SeveralInspected, trace: FakeTrace) -> None:
    first, second = several.brokers
    row = actor(41, "connection")
    second.actors = [row]
    second.answers["actor"] = page_of(row, CONNECTION)
    second.answers["session"] = Refused("no session pump")
    async with shown(several) as screen:
        await screen.press("enter")
        await screen.sees("connection pump, log n-p1", "MQTT 3.1.1")
        await screen.press("t")
        await screen.sees("trace of connection:41, log n-p1")
        await screen.until(lambda: trace.open == 1)
        assert [broker.node for broker in trace.brokers] == ["n-p1"]
        await screen.press("escape")
        await screen.sees("MQTT 3.1.1")
        await screen.press("enter")
        await screen.sees("session pump no longer exists, log n-p1")
        # What the page asks is not answered: the other log still is.
        second.away = NoLiveBroker("no broker of node n-p1 answers")
        await screen.sees("log n-p1 does not answer")
        assert "NO ANSWER" not in screen.text()
    assert first.requests("actor") == first.requests("session") == []


async def test_the_page_and_the_trace_of_a_topic_are_about_all_logs(
    several: SeveralInspected, trace: FakeTrace
) -> None:
    for number, broker in enumerate(several.brokers):
        row = {"client": f"screen-{number}", "filter": "plant/#", "qos": 1, "why": "sent"}
        broker.answers["subscriptions"] = {
            "rows": [{**row, "chosen": True, "connected": True}],
            "more": False,
            "retained": None,
        }
    several.brokers[1].answers["session"] = Refused("no session")
    async with shown(several) as screen:
        await screen.press("tab", "enter")
        await screen.sees("sent to 2 clients", "p0   screen-0", "p1   screen-1")
        await screen.press("t")
        await screen.sees("trace of topic plant/temp  following")
        await screen.until(lambda: len(trace.brokers) == 2)
        assert [one["rate"] for one in trace.wanted] == [50, 50]  # 100 lines a second are read
        assert {broker.node for broker in trace.brokers} == {"n-p0", "n-p1"}
        trace.queue.put_nowait(Portion([line(1)]))
        await screen.until(lambda: " p0 session:40" in screen.text() or "p1 s" in screen.text())
        trace.queue.put_nowait(NoLiveBroker("the broker is gone"))
        await screen.sees("... the broker is gone; its lines are missing until it is back")
        await screen.press("escape", "down", "enter")
        await screen.sees("session screen-1 no longer exists, log n-p1")


# ------------------------------------------------------------------- answers that are too large


async def test_less_is_requested_when_an_answer_does_not_fit(
    broker: Inspected, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = broker.ask

    async def ask(endpoint: str, /, **request: Any) -> dict[str, Any]:
        found = await answer(endpoint, **request)
        much = request.get("top", {}).get("count", 0) > 10 or request.get("most", 0) > 40
        if much or request.get("topics"):
            raise TooLarge("too large")
        return found

    monkeypatch.setattr(broker, "ask", ask)
    broker.answers["session"] = {"client": "c"}
    questions = TopQueries(ReconnectingClient(broker.find))
    for _ in range(2):
        assert len(await questions.actors("recent")) == 6
        assert await questions.session("c") == {"client": "c"}
        assert "n1" in await questions.statuses(topics=True)
    counts = [request["top"]["count"] for request in broker.requests("actors")]
    assert counts == [100, 25, 6, 6]
    assert [request["most"] for request in broker.requests("session")] == [200, 50, 12, 12]
    asked = [request["topics"] for request in broker.requests("status")]
    assert asked == [True, False, False]


# ------------------------------------------------------------------- one frame


async def test_one_frame_as_text(broker: Inspected, capsys: pytest.CaptureFixture[str]) -> None:
    broker.actors = [actor(1, name=HOSTILE)]
    await once.run_once(ReconnectingClient(broker.find), 0.01, "recent", 80, as_json=False)
    said = capsys.readouterr().out
    assert said.replace("\n", "").isprintable()
    assert all(len(one) <= 80 for one in said.splitlines())
    for part in ("1,000/s", "p99 3.98 ms", SHOWN, "plant/temp", "BUSY▼"):
        assert part in said


async def test_one_frame_as_json(broker: Inspected, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    await once.run_once(ReconnectingClient(broker.find), 0.01, "mailbox", 80, as_json=True)
    said = capsys.readouterr().out
    assert said.isascii()
    found = json.loads(said)
    assert found["rates"]["messages_in"] == [0, 1000, 0]
    assert found["rates"]["commit"]["count"] == 2
    assert found["topics"][1] == {"topic": HOSTILE, "per_s": 200.0}
    assert found["status"]["sessions"]["total"] == 4
    assert found["actors"][0]["id"] == "session:40"
    assert broker.requests("actors")[0]["top"]["by"] == "mailbox"


@pytest.mark.parametrize("missing", [False, True])
async def test_one_frame_of_several_logs(
    several: SeveralInspected, missing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    async def run(*, as_json: bool) -> str:
        link = ReconnectingClient(several.find)
        expected = (
            pytest.raises(NoLiveBroker, match="incomplete, without 1 of 2 logs: gone")
            if missing
            else contextlib.nullcontext()
        )
        with expected:
            await once.run_once(link, 0.01, "recent", 100, as_json=as_json)
        await link.close()
        return capsys.readouterr().out

    if missing:
        several.brokers[1].away = NoLiveBroker("gone")
    said = await run(as_json=False)
    logs = [" ".join(line.split()[:2]) for line in said.splitlines() if line.startswith("n-p")]
    assert logs == ["n-p0 ready", "n-p1 no" if missing else "n-p1 ready"]
    assert "p0   pump-40" in said
    assert ("p1   pump-41" in said) is not missing
    assert ("! log n-p1 does not answer, and is not included: gone" in said) is missing
    found = json.loads(await run(as_json=True))
    assert found["node"] == "n"
    assert found["rates"]["messages_in"] == [0, 1000 if missing else 2000, 0]
    assert found["rates"]["commit"]["count"] == (2 if missing else 4)
    assert [one["log"] for one in found["logs"]] == ["n-p0", "n-p1"][: 1 if missing else 2]
    assert found["logs"][0]["rates"]["messages_in"] == [0, 1000, 0]
    assert found["logs"][0]["status"]["node"] == "n-p0"
    assert found["not_answering"] == (["n-p1"] if missing else [])
    assert [(row["log"], row["id"]) for row in found["actors"]][-1] == ("n-p0", "session:2")
    assert found["topics"][0]["per_s"] == (800 if missing else 1600)


async def test_a_strange_answer_is_named() -> None:
    broker = Inspected()
    broker.status = {"received": [1, 2]}
    broker.answers = {}
    broker.actors = [{"id": 1}]
    from cli.logs.reconnecting_client import understood

    with pytest.raises(NotUnderstood, match="the same version"), understood():
        await once.run_once(ReconnectingClient(broker.find), 0.01, "recent", 80, as_json=False)
