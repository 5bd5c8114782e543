"""The HTTP API while something fails, with permissions, and in a browser."""

import contextlib
import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.broker import Broker, free_port
from harness.chromium import chromium, needs_chromium
from harness.fixtures import Clients
from harness.packets import Connack
from harness.waiting import TIMEOUT, until

from cli.web.api.operations import BASE
from e2e.apiclient import FORMS, Api, Stream
from e2e.log_damage import flip, salvage, without_projections
from e2e.tools import run
from e2e.webclient import served, web

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NDJSON = "application/x-ndjson"
RULES = """
[[allow]]
users = ["$api"]
publish = ["cmd/#"]

[[allow]]
anonymous = true
both = ["#"]
"""


@contextlib.contextmanager
def served_here() -> Iterator[int]:
    """Serve the examples under an origin of their own; yield the port."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(EXAMPLES))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@needs_chromium
def test_a_page_of_thirty_lines_shows_the_last_hour_and_goes_on(tmp_path: Path) -> None:
    assert len((EXAMPLES / "last-hour.html").read_text().splitlines()) <= 30
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(served_here())
        config = f'web_cors = ["http://127.0.0.1:{port}"]\n'
        arguments = ("--web", f"127.0.0.1:{free_port()}")
        broker = stack.enter_context(Broker(tmp_path, args=arguments, config=config, forked=True))
        clients = stack.enter_context(contextlib.closing(Clients("127.0.0.1", broker.port)))
        api = Api(broker)
        sensor = clients.connect("sensor")
        for payload in (b"open", b"shut"):
            sensor.publish("hall/door", payload, 1)
        page = stack.enter_context(chromium()).new_page()
        page.set_default_timeout(TIMEOUT * 1000)
        page.goto(f"http://127.0.0.1:{port}/last-hour.html")
        page.fill("[name=url]", f"http://127.0.0.1:{api.port}")
        page.fill("[name=token]", "wrong")
        page.click("button")
        page.wait_for_function("() => document.querySelector('p').textContent.includes('valid')")
        page.fill("[name=token]", api.token("view-all"))

        def shown() -> list[str]:
            texts: list[str] = page.locator("li").all_text_contents()
            return [text.partition(" ")[2] for text in texts]

        def is_shown() -> bool:
            if page.locator("button").is_visible():  # until an answer has come
                page.click("button")
            page.wait_for_timeout(300)
            return bool(shown())

        until(is_shown, "the token is known, and the past is shown")
        assert shown()[:2] == ["hall/door open", "hall/door shut"]
        sensor.publish("hall/door", b"ajar", 1)
        until(lambda: shown()[-1] == "hall/door ajar", "it goes on live")
        broker.kill()
        broker.start()
        sensor = clients.connect("sensor")
        sensor.publish("hall/door", b"locked", 1)
        until(lambda: shown()[-1] == "hall/door locked", "it goes on behind what it has")
        expected = [f"hall/door {payload}" for payload in ("open", "shut", "ajar", "locked")]
        assert shown() == expected


def test_rules_for_the_api_are_those_of_its_user(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    arguments = ("--web", "127.0.0.1:0", "--permissions", str(rules))
    with Broker(tmp_path, args=arguments, forked=True) as broker:
        api = Api(broker)
        until(lambda: api.publish({"topic": "cmd/a"}).status == 201, "the token is known")
        refused = api.publish({"topic": "other", "retain": True})
        assert (refused.status, refused.json["reason"]) == (409, "not_permitted")
        lines = b'{"topic":"cmd/b"}\n{"topic":"other"}\n{"topic":"cmd/c"}\n'
        answer = api.ask("POST", "/messages", lines, "publish", Content_Type=NDJSON)
        receipts = answer.lines
        assert receipts[1] == {"refused": "not_permitted"}
        assert ["position" in one for one in receipts] == [True, False, True]
        # No client has the name of the session, or the user.
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            connack = clients.raw().connect("$api/t-publish")
            assert connack == Connack(2)
        broker.stop()
        assert "intact" in run("log", "verify", *api.data).out
        closed = run("log", "--json", "--type", "SessionClosed", *api.data).objects
        assert [(one["session"], one["reason"]) for one in closed] == [
            ("$api/t-publish", "broker_stopped")
        ]


def test_a_broker_that_is_gone_is_unavailable_and_found_again(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, forked=True) as broker,
        web(broker.data_dir, "--data-dir", str(broker.data_dir)) as (page, _process),
    ):
        api = Api.__new__(Api)
        api.broker, api.port, api._tokens = broker, page.port, {}
        api.data = ("--data-dir", str(broker.data_dir))
        until(lambda: api.get("/status").status == 200, "the token is known")
        with contextlib.closing(Stream(api, "/events?follow=true")) as stream:
            stream.until("live")
            broker.kill()
            until(lambda: api.get("/status").status == 503, "the broker is gone")
            for path in ("/sessions", "/state", "/events", "/history", "/why?topic=a"):
                answer = api.get(path)
                assert answer.status == 503, path
                assert answer.headers["Retry-After"], path
                assert answer.json["type"] == f"{BASE}/problem-types/unavailable", path
            assert api.publish({"topic": "a"}).status == 503
            event, said = stream.next()
            assert (event, said["status"]) == ("error", 503)
        broker.start()
        until(lambda: api.get("/status").status == 200, "it is found again")
        # A crash cut nothing off: the list goes on behind the last event.
        with contextlib.closing(Stream(api, "/events?follow=true", stream.last)) as again:
            kinds = [one["type"] for one in again.until("live")]
        assert "BrokerStarted" in kinds
        assert api.publish({"topic": "a"}).status == 201


def test_a_reader_older_than_the_log_is_told_of_the_gap(tmp_path: Path) -> None:
    config = 'keep_bytes = "16 MiB"\n'
    arguments = ("--web", "127.0.0.1:0")
    with Broker(tmp_path, args=arguments, config=config, forked=True) as broker:
        api = Api(broker)
        until(lambda: api.get("/status").status == 200, "the token is known")
        body = b"".join(
            json.dumps({"topic": f"t/{n}", "payload": "x" * 10_000}).encode() + b"\n"
            for n in range(100)
        )

        def is_cut() -> bool:
            answer = api.ask(
                "POST", "/messages", body, "publish", Content_Type="application/x-ndjson"
            )
            assert answer.status in (200, 429), answer.body
            first: int = api.good("/status").json["log"]["first"]
            return first > 3

        until(is_cut, "the log was cut")
        cut = api.get("/sessions/nobody?at=2")
        assert (cut.status, cut.json["type"]) == (410, f"{BASE}/problem-types/cut")
        assert int(cut.json["first"]) > 3
        for path in ("/events?from=2.0&limit=1", "/history?from=2.0&limit=1"):
            assert api.good(path).json["gaps"] == [{"first": f"{cut.json['first']}.0"}], path
        for path in ("/events?follow=true", "/history?follow=true&from=all"):
            with contextlib.closing(Stream(api, path, "2.0")) as stream:
                event, said = stream.next()
                assert event == "gap", path
                assert int(said["first"].partition(".")[0]) > 3


LISTS = ("/sessions?limit=1", "/retained", "/state", "/history", "/last", "/events?session=some")
SUBJECTS = ("/problems?subject=some", "/problems?subject=t")


def test_what_lost_records_leave_open_is_said(tmp_path: Path) -> None:
    """In each answer about a state, or a part of the log, that may lack them."""
    with Broker(tmp_path, args=("--web", "127.0.0.1:0")) as broker:
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            some = clients.connect("some", clean=False)
            some.subscribe(("t", 1))
            for number in range(20):
                some.publish("other", b"message %d" % number * 10, 1)
        broker.stop()
        flip(broker, 0.3)
        without_projections(broker)
        salvage(broker, tmp_path / "saved")
        broker.start()
        api = Api(broker)
        until(lambda: api.get("/status").status == 200, "the token is known")
        gave_up = "foldmq salvage gave up record"
        last = api.good("/status").headers["Foldmq-Position"]
        (salvaged,) = api.good("/events?type=LogSalvaged").json["items"]
        lost = int(salvaged["position"].partition(".")[0])
        assert lost < int(last)
        paths = [
            *LISTS,
            *SUBJECTS,
            f"/retained?at={last}",
            "/history?order=newest",
            "/history?from=last",
        ]
        for path in paths:
            answer = api.good(path).json
            notes = answer.get("unsure") or answer["items"][0]["unsure"]
            assert gave_up in notes[0], path
        for path in ("/subscriptions?topic=t", f"/subscriptions?topic=t&at={last}"):
            (note,) = api.good(path).json["unsure"]
            assert gave_up in note, path
        assert gave_up in api.good("/sessions/some").json["unsure"]
        assert gave_up in api.good("/diff?from=2&to=now").json["items"][0]["unsure"][0]
        for path in (f"/messages/{lost}.0", "/sessions/nobody", "/diff?from=2&session=nobody"):
            answer = api.get(path)
            assert (answer.status, gave_up in answer.json["detail"]) == (404, True), path
        page = served(broker)
        for path in ("/sessions", "/log?session=some", "/log?session=some&order=oldest"):
            assert gave_up in page.good(path).shown, path
        assert gave_up not in page.good(f"/log?session=some&from={lost + 1}").shown
        # As a stream it comes first; before the hole, or behind it, all is known.
        first = api.good("/history", Accept=FORMS["ndjson"]).lines[0]
        assert (first["event"], gave_up in first["unsure"][0]) == ("unsure", True)
        with contextlib.closing(Stream(api, "/history?from=all")) as stream:
            event, about = stream.next()
            assert (event, gave_up in about["unsure"][0]) == ("unsure", True)
        for path in (
            f"/history?to={lost - 1}",
            f"/history?from={lost}",
            f"/retained?at={salvaged['first'] - 1}",
            f"/subscriptions?topic=t&at={salvaged['first'] - 1}",
        ):
            assert "unsure" not in api.good(path).json, path
        for command in (
            ("history", "other"),
            ("history", "other", "-n", "500"),
            ("history", "#", "--last"),
            ("log", "--session", "some"),
            ("sessions", "ls"),
            ("replay", "--topic", "#", "--json"),
        ):
            assert gave_up in run(*command, *api.data).err, command
        assert gave_up in run("diff", "2", "now", *api.data).out
        for command in (("history", "other", "-n", "1"), ("history", "#", "--from", str(lost))):
            assert gave_up not in run(*command, *api.data).err, command


def test_one_slow_reader_keeps_no_other_waiting(tmp_path: Path) -> None:
    with Broker(tmp_path, args=("--web", "127.0.0.1:0"), forked=True) as broker:
        api = Api(broker)
        until(lambda: api.get("/status").status == 200, "the token is known")
        body = b"".join(
            json.dumps({"topic": f"t/{n}", "payload": "x" * 10_000}).encode() + b"\n"
            for n in range(400)
        )
        for _ in range(3):
            answer = api.ask(
                "POST", "/messages", body, "publish", Content_Type="application/x-ndjson"
            )
            assert answer.status == 200, answer.body
        with contextlib.ExitStack() as stack:
            slow: list[Any] = []
            for _ in range(6):  # 12 MB each, of which nothing is read
                slow.append(Stream(api, "/history?from=all&follow=true", form="ndjson"))
                stack.callback(slow[-1].close)
            for _ in range(10):
                assert api.good("/status").status == 200
            fast = Stream(api, "/history?from=all")
            stack.callback(fast.close)
            assert len(fast.until("end")) == 1200
            # Those that were slow have missed nothing.
            lines = [json.loads(slow[0].answer.readline())["topic"] for _ in range(1200)]
            assert lines == [f"t/{n}" for _ in range(3) for n in range(400)]
