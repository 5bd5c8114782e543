"""MQTT.js against every listener: in node, and from a page in a browser."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.broker import Broker
from harness.chromium import chromium, needs_chromium

from e2e.listening import Place
from e2e.passwordfiles import add_user

if TYPE_CHECKING:
    from playwright.sync_api import Page

WEB = Path(__file__).resolve().parent / "web"
COUNT = 30
LARGE = 1_500_000
"""Bytes: more than a frame has room for before the CONNECT."""


@pytest.fixture
def package(mqttjs: Path | None) -> Path:
    """The folder that MQTT.js was installed into."""
    if mqttjs is None:
        pytest.skip("MQTT.js cannot be had")
    return mqttjs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("mqttjs_listeners"))
    made.start()
    try:
        yield made
        made.broker.stop()
    finally:
        made.broker.clean_up()


def check(result: dict[str, Any]) -> None:
    """Everything came, in the order of its topic, and no more often than it may."""
    assert result["granted"] == [2]
    for qos in (0, 1, 2):
        numbers = [text for got, size, text in result["came"] if got == qos and size < 10]
        assert numbers == [str(number) for number in range(COUNT)], f"QoS {qos}"
    assert result["came"][-1] == [1, LARGE, "x" * 10]


def test_mqttjs_in_node(place: Place, package: Path) -> None:
    transports = ("tcp", "tls", "ws", "wss")
    jobs = [
        {
            "url": place.url(transport),
            "clientId": f"node-{transport}",
            "ca": str(place.authority.file) if transport in ("tls", "wss") else None,
            "count": COUNT,
            "large": LARGE,
        }
        for transport in transports
    ]
    command = ["node", str(WEB / "node.js"), str(package), json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    for transport, result in zip(transports, json.loads(done.stdout), strict=True):
        print(transport)
        check(result)


def test_mqttjs_logs_in_with_scram(
    package: Path, make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """And again on the same connection; with a wrong password it is refused."""
    add_user(tmp_path / "users", "ann", "secret")
    broker = make_broker(f'password_file = "{tmp_path}/users"\n')
    broker.start()
    for password, expected in (("secret", "authenticated twice"), ("wrong", "refused 134")):
        job = {"url": f"mqtt://127.0.0.1:{broker.port}", "user": "ann", "password": password}
        command = ["node", str(WEB / "scram.js"), str(package), json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


@pytest.fixture
def page(package: Path) -> Iterator[Page]:
    """A page with MQTT.js on it, served from this machine."""
    site = package / "site"
    site.mkdir()
    for file in (
        WEB / "page.html",
        WEB / "roundtrip.js",
        package / "node_modules" / "mqtt" / "dist" / "mqtt.min.js",
    ):
        shutil.copy(file, site)
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with chromium() as browser:
        opened = browser.new_context(ignore_https_errors=True).new_page()
        opened.goto(f"http://127.0.0.1:{server.server_port}/page.html")
        yield opened
    server.shutdown()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Says nothing about each request."""

    def log_message(self, *_: object) -> None: ...


@needs_chromium
def test_mqttjs_on_a_page(place: Place, page: Page) -> None:
    for transport in ("ws", "wss"):
        result = page.evaluate(
            "([url, clientId, count, large]) => roundtrip(mqtt, url, { clientId }, count, large)",
            [place.url(transport), f"page-{transport}", COUNT, LARGE],
        )
        check(result)
