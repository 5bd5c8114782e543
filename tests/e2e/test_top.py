"""`foldmq top` on a terminal, watching a real broker with real traffic."""

import os
import re
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.broker import Broker, environment, foldmq
from harness.fixtures import Clients
from harness.rawclient import RawClient

from e2e.tools import HOSTILE_ID, HOSTILE_PAYLOAD, HOSTILE_TOPIC, run

TMUX = shutil.which("tmux")

pytestmark = pytest.mark.timeout(180)
needs_tmux = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")

SHOWN_ID = '"evil\\u001b[2J\\n\\u009b\\u007f id"'
SHOWN_TOPIC = "ev\\u001b[31mil/\\u202e\\r\\n"


class Terminal:
    """A terminal with `foldmq top` on it; its screen is what tmux understood of the output."""

    def __init__(self, *arguments: str, width: int = 80, height: int = 24) -> None:
        self._socket = f"foldmq-{secrets.token_hex(4)}"
        # The environment of the tests may have the size of another terminal.
        kept = {k: v for k, v in environment().items() if k not in ("COLUMNS", "LINES")}
        self._env = {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        command = shlex.join([foldmq(), "top", *arguments])
        # The shell remains and prints the exit code.
        size = ["-x", str(width), "-y", str(height)]
        shell = f"{command}; echo EXIT $?; exec sleep 600"
        self._tmux("-f", os.devnull, "new-session", "-d", *size, shell)

    def _tmux(self, *arguments: str) -> str:
        command = [str(TMUX), "-u", "-L", self._socket, *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, check=True, timeout=30)
        return done.stdout.decode()

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", key)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def sees(self, *parts: str, seconds: float = 40.0) -> str:
        """Waits until all of these are on the screen; returns it."""
        return self.until(lambda screen: all(part in screen for part in parts), parts, seconds)

    def until(self, condition: Callable[[str], object], what: object, seconds: float = 40.0) -> str:
        deadline = time.monotonic() + seconds
        while not condition(screen := self.screen):
            assert time.monotonic() < deadline, f"{what} not within {seconds} s:\n{screen}"
            time.sleep(0.1)
        return screen

    def drawn_anew(self) -> None:
        """Waits until the clock on the screen went on: what was pressed before has its effect."""
        before = self.screen.partition("\n")[0]
        self.until(lambda shown: shown.partition("\n")[0] != before, "drawn anew")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str, width: int = 80, height: int = 24) -> Terminal:
        made.append(Terminal(*arguments, width=width, height=height))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Traffic:
    """Publishes at QoS 1 to a subscriber with a strange name until it is stopped."""

    def __init__(self, clients: Clients) -> None:
        self._receiver = clients.connect(HOSTILE_ID)
        assert self._receiver.subscribe((HOSTILE_TOPIC, 1), ("calm/#", 0)) == (1, 0)
        self._publisher = clients.connect("pump-1")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            self._publisher.publish(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 1)
            self._publisher.publish("calm/sea", b"x", 0)
            for _ in range(2):
                packet: Any = self._receiver.receive()
                if packet.qos:
                    self._receiver.acknowledge(packet)

    def end(self) -> None:
        self._end.set()
        self._thread.join(20)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, forked=True) as made:
        yield made


@pytest.fixture
def traffic(watched: Broker) -> Iterator[Traffic]:
    clients = Clients("127.0.0.1", watched.port)
    made = Traffic(clients)
    yield made
    made.end()
    clients.close()


def source(broker: Broker) -> tuple[str, ...]:
    return ("--data-dir", str(broker.data_dir))


def rate_in(screen: str) -> float:
    """The first figure of the line `in`; -1 when none is known."""
    found = re.search(r"^in +([\d.,<]+)/s", screen, re.MULTILINE)
    return float(found[1].replace(",", "").replace("<", "")) if found else -1


@needs_tmux
def test_figures_tables_and_sizes(
    watched: Broker, traffic: Traffic, terminal: Callable[..., Terminal]
) -> None:
    top = terminal(*source(watched), "--interval", "0.5")
    top.sees("ready", "ACTOR", "pump-1", SHOWN_TOPIC)
    screen = top.until(lambda shown: rate_in(shown) > 0, "messages come in")
    assert re.search(r"^gate +p99 [\d.]+ ms", screen, re.MULTILINE), screen
    assert re.search(r"q1 [\d.]+ ", screen)
    assert re.search(r"free [\d.]+ [KMGT]iB", screen)
    assert "clients  open 2" in screen
    assert len(screen.splitlines()) == 24
    top.resize(200, 50)
    screen = top.sees("HANDLED", "gate p99  most")
    assert any("ACTOR" in line and "TOPIC" in line for line in screen.splitlines())
    top.resize(100, 30)
    top.until(lambda shown: "STATE" in shown and "most" not in shown, "no curves")
    top.press("p")
    top.sees("PAUSED")
    top.press("q")
    top.sees("EXIT 0")


@needs_tmux
def test_broker_is_killed_and_comes_back(
    watched: Broker, terminal: Callable[..., Terminal]
) -> None:
    clients = Clients("127.0.0.1", watched.port)
    publisher: RawClient = clients.connect()
    for number in range(200):
        publisher.publish("a", b"%d" % number, 1)
    top = terminal(*source(watched), "--interval", "0.5")
    top.sees("ready", "0/s")
    watched.kill_all()
    top.sees("NO ANSWER", "no answer since")
    watched.start()
    screen = top.until(lambda shown: "NO ANSWER" not in shown and "ready" in shown, "it goes on")
    assert "no answer since" not in screen
    again = clients.connect()
    for number in range(200):
        again.publish("a", b"%d" % number, 1)
    top.until(lambda shown: rate_in(shown) >= 0, "rates")
    clients.close()
    # A broker that stands still is one that does not answer.
    watched.pause()
    try:
        top.sees("NO ANSWER", "no reply in time")
    finally:
        watched.resume()
    top.until(lambda shown: "NO ANSWER" not in shown, "it goes on")


def test_one_frame(watched: Broker, traffic: Traffic) -> None:
    ran = run("top", "--once", "--interval", "1", *source(watched))
    assert rate_in(ran.out) > 0
    assert SHOWN_ID[:14] in ran.out
    assert SHOWN_TOPIC in ran.out
    assert "p99" in ran.out
    (found,) = run("top", "--once", "--json", "--interval", "1", *source(watched)).objects
    assert found["rates"]["messages_in"][1] > 0
    assert found["rates"]["commit"]["p50"] <= found["rates"]["commit"]["p99"]
    assert found["status"]["connections"]["open"] == 2
    assert {row["name"] for row in found["actors"]} >= {HOSTILE_ID, "pump-1"}
    assert {row["topic"] for row in found["topics"]} == {HOSTILE_TOPIC, "calm/sea"}
