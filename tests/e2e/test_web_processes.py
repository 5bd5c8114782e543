"""The web page of a broker with two processes: it shows both logs."""

import html
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from harness import forkserver
from harness.broker import Broker, children_of, environment, wait_until_gone
from harness.brokerprocesses import client_of
from harness.fixtures import Clients
from harness.waiting import until

from e2e.webclient import Page, served

ON = ("--processes", "2", "--web", "127.0.0.1:0", "--web-operate")


HERE, THERE = client_of(0, "reader"), client_of(1, "reader")
SENDER = client_of(1, "sender")


def play(clients: Clients) -> None:
    """Messages from a client of one log to clients of both."""
    readers = [clients.connect(name, clean=False) for name in (HERE, THERE)]
    for reader in readers:
        reader.subscribe(("hall/+", 1))
    sender = clients.connect(SENDER, clean=False)
    sender.publish("hall/door", b"open", 1)
    for reader in readers:
        reader.acknowledge(reader.expect_publish("hall/door", b"open", 1))
    sender.publish("lamp", b"on", 1, retain=True)
    readers[0].disconnect()
    sender.publish("hall/door", b"closed", 1)
    readers[1].acknowledge(readers[1].expect_publish("hall/door", b"closed", 1))
    sender.expect_alive()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Clients]]:
    broker = Broker(tmp_path_factory.mktemp("web"), args=ON, forked=True)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    try:
        play(clients)
        yield broker, clients
        clients.close()
        broker.stop()
    finally:
        broker.clean_up()
        print(broker.log[-4000:])  # shown if the test failed


@pytest.fixture
def page(played: tuple[Broker, Clients]) -> Page:
    return served(played[0])


@pytest.fixture
def logs(played: tuple[Broker, Clients]) -> list[str]:
    node = (played[0].data_dir / "node").read_text().strip()
    return [f"{node}-p0", f"{node}-p1"]


def foldmq_said(broker: Broker, *args: str) -> list[dict[str, Any]]:
    command = [*args, "--json", "--data-dir", str(broker.data_dir)]
    code, out, err = forkserver.run(command, environment(), 120)
    assert code == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


def test_the_overview_has_a_row_for_each_log(page: Page, logs: list[str]) -> None:
    until(lambda: "2 connected" in page.good("/").shown, "what the clients are doing")
    found = page.good("/")
    rows = {row[0]: row[1:] for row in found.columns(0, 1, 2) if row[0] in logs}
    assert rows == {logs[0]: ("ready", "0"), logs[1]: ("ready", "2")}
    assert "Ready" in found.shown
    assert "No problems" in page.good("/problems").shown
    assert "2 logs" in found.shown


def test_a_session_is_shown_from_the_log_that_has_it(page: Page, logs: list[str]) -> None:
    for client, log in zip((HERE, THERE), logs, strict=True):
        found = page.good("/session", client=client)
        assert f"of log {log}" in found.shown
        assert "hall/+" in found.shown
        link = found.link("prev")
        assert link is not None
        until(lambda link=link: "As of" in page.good(link).shown, "its history")  # type: ignore[misc]
        assert "Acked" in page.good("/log", session=client).shown
    actor = re.search(r'href="(/actor\?[^"]*)"', page.good("/session", client=THERE).text)
    assert actor is not None
    assert f"log={logs[1]}" in actor[1]
    assert "connection" in page.good(html.unescape(actor[1])).shown


def test_the_event_log_has_the_events_of_all_logs_in_order(page: Page, logs: list[str]) -> None:
    seen: list[tuple[str, ...]] = []
    path: str | None = "/log?order=oldest&rows=7"
    while path is not None:
        found = page.good(path)
        seen += found.columns(0, 1, 3)
        path = found.link("next")
    times = [time for _, time, _ in seen]
    assert times == sorted(times)
    assert len(seen) == len(set(seen))
    for number, log in enumerate(logs):
        alone = page.good("/log", log=log, order="oldest", rows=500).columns(0, 3)
        own = [(place, kind) for place, _, kind in seen if place.startswith(f"p{number} ")]
        assert own == [(f"p{number} {place}", kind) for place, kind in alone[: len(own)]]
        assert (f"p{number} 1.0", "BrokerStarted") in own
    assert "each log has its own" in page.get("/log", from_="1.0").shown
    assert page.get("/log", log="nothing").status == 400


def test_a_moment_is_one_of_all_logs(page: Page, logs: list[str]) -> None:
    axis = json.loads(page.good("/time/axis").text)["axis"]
    lanes = {lane["kind"]: lane for lane in axis["lanes"]}
    assert lanes["restart"]["total"] == 2
    assert lanes["connect"]["total"] == 3
    places = [mark[2] for mark in lanes["connect"]["marks"]]
    assert all(isinstance(place, str) for place in places)
    past = page.good("/time", at=places[0])
    assert re.search(r"record \d+ of p0, record \d+ of p1", past.shown)
    previous = past.link("prev")
    assert previous is not None
    assert "As of" in page.good(previous).shown
    until(lambda: "+ session" in page.good("/time", a=places[0], b="now").shown, "the difference")
    diff = page.good("/time", a=places[0], b="now").shown
    assert f"log {logs[1]}" in diff
    assert re.search(rf"log {logs[1]}: sessions: \d+ added", diff)
    assert "each log has its own" in page.get("/time", at="3").shown
    assert "record 1" in page.good("/time", log=logs[0], at="1").shown
    axis = json.loads(page.good("/time/axis", log=logs[0]).text)["axis"]
    assert isinstance(axis["lanes"][0]["marks"][0][2], int)


def test_the_live_tail_shows_a_message_once(page: Page, played: tuple[Broker, Clients]) -> None:
    _, clients = played
    page.good("/topics/tail", topic="tail/#")
    watcher = clients.connect(client_of(0, "watcher"))
    watcher.subscribe(("tail/#", 1))
    sender = clients.connect(client_of(1, "tail"))
    sender.publish("tail/a", b"1", 1)
    watcher.acknowledge(watcher.expect_publish("tail/a", b"1", 1))
    sender.publish("tail/b", b"1", 0)
    watcher.expect_publish("tail/b", b"1", 0)

    def rows() -> list[tuple[str, ...]]:
        return page.good("/topics/tail", topic="tail/#").columns(0, 2)

    until(lambda: len(rows()) >= 2, "the messages")
    assert rows() == [("p1", "tail/b"), ("p1", "tail/a")]


def test_changes_go_to_the_broker_of_the_session(
    page: Page, played: tuple[Broker, Clients], logs: list[str]
) -> None:
    broker, clients = played
    victims = [clients.connect(client_of(number, "victim"), clean=False) for number in range(2)]
    for number, victim in enumerate(victims):
        client = client_of(number, "victim")
        confirm(page, do="kick", client=client)
        victim.expect_closed()
        confirm(page, do="remove_session", client=client)
        (one, other) = foldmq_said(broker, "log", "--type", "OperatorActed", "--node", logs[number])
        assert (one["action"], other["action"]) == ("kick", "remove_session")
        assert page.get("/session", client=client).status == 404
    confirm(page, do="clear_retained", filter="lamp")
    until(lambda: not page.good("/retained").columns(0, 5), "it is removed")
    (login,) = foldmq_said(broker, "log", "--type", "WebAccessed", "--node", logs[0])[:1]
    assert login["outcome"] == "login"


def confirm(page: Page, **given: str) -> None:
    """Make a change: confirm it twice."""
    path, values = "/change", dict(given)
    first = page.good("/change", **given)
    for path in ("/change", "/change/confirmed"):
        values = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', first.text))
        typed = re.search(r"type <code>([^<]*)</code>", first.text)
        if typed is not None:
            values["typed"] = html.unescape(typed[1])
        first = page.ask("POST", path, urlencode(values))
        assert first.status == 200, first.shown


def test_a_process_that_hangs_is_named_and_left_out(tmp_path: Any) -> None:
    broker = Broker(tmp_path, args=ON, forked=True)
    broker.start()
    stopped = 0
    try:
        with_page = served(broker)
        node = (broker.data_dir / "node").read_text().strip()
        (stopped,) = [
            pid
            for pid in children_of(broker.pid)
            if (broker.data_dir / "p1" / "foldmq.lock").read_text().strip() == str(pid)
        ]
        os.kill(stopped, signal.SIGSTOP)
        found = with_page.good("/").shown
        assert f"No answer from {node}-p1" in found
        assert "Not ready" in found
        assert f"the broker of log {node}-p1" in with_page.good("/problems").shown
        rows = with_page.good("/actors").columns(0, 1)
        assert {row[0] for row in rows} == {"p0"}
        assert "BrokerStarted" in with_page.good("/log", log=f"{node}-p1").shown
        os.kill(stopped, signal.SIGCONT)
        until(lambda: "Not ready" not in with_page.good("/").shown, "it answers again")
        broker.stop()
        assert wait_until_gone(stopped)
    finally:
        if stopped and broker.running:
            os.kill(stopped, signal.SIGCONT)
        broker.clean_up()
        print(broker.log[-4000:])  # shown if the test failed
