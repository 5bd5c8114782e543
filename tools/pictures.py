"""Makes the pictures of the docs from a running broker: ``make pictures``.

It starts a broker with the clients of a house: sensors, displays, one that does not acknowledge,
one that is offline, one without permission. ``docs/pictures`` gets the web page in a wide and in a
narrow window as PNG, and ``foldmq top``, ``why`` and ``doctor`` as SVG. It needs Chromium.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from PIL import Image
from playwright.sync_api import sync_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cli.logs.broker_search import open_brokers  # noqa: E402
from cli.logs.reconnecting_client import ReconnectingClient  # noqa: E402
from cli.logs.source_flags import SourceFlags  # noqa: E402
from cli.top.top_app import Top  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = ROOT / "docs" / "pictures"
FOLDMQ = str(Path(sys.executable).with_name("foldmq"))
ROOMS = ("attic", "bath", "bedroom", "garage", "garden", "hall", "kitchen", "office", "study")
KINDS = ("temperature", "humidity", "motion", "power")
LOAD_SECONDS = 75
"""So that rates are known, and unacknowledged messages are a problem."""
START_SECONDS = 60
READING_MS = 120_000
COLUMNS, LINES = 100, 32
# Pictures load nothing from other hosts.
SVG = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
PAGES = {"overview": "/", "session": "/session?client=wall-display", "problems": "/problems"}
WINDOWS = {"": (1400, 900), "-phone": (390, 844)}
SETTINGS = """
max_ack_pending = 20
max_queued_messages = 200
ack_wait = "15s"
permissions = "permissions.toml"
"""
PERMISSIONS = """
[[allow]]
anonymous = true
both = ["#"]

[[deny]]
both = ["house/safe/#"]
"""


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class House:
    """Clients of a broker, until it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[paho.Client] = []
        self._random = random.Random(1)  # noqa: S311 - values of sensors
        self._ended = threading.Event()
        self.sensors = [self.client(f"sensor-{room}") for room in ROOMS]
        self.reader("recorder", "house/#", qos=0)
        for room in ROOMS:
            self.reader(f"thermostat-{room}", f"house/{room}/temperature")
            self.reader(f"lamp-{room}", f"house/{room}/motion")
        # It takes messages, but acknowledges none.
        self.reader("wall-display", "house/hall/#", manual_ack=True)
        self.reader("notebook", "house/kitchen/#").disconnect()
        self.reader("guest-tablet", "house/safe/#")
        self._publishing = threading.Thread(target=self._publish)
        self._publishing.start()

    def client(self, name: str, **options: Any) -> paho.Client:
        """Connect a client whose session the broker keeps."""
        client = paho.Client(CallbackAPIVersion.VERSION2, name, clean_session=False, **options)
        client.will_set(f"house/status/{name}", "offline", 1, retain=True)
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.connect("127.0.0.1", self._port)
        client.loop_start()
        connected.wait(START_SECONDS)
        self._clients.append(client)
        return client

    def reader(self, name: str, topic_filter: str, qos: int = 1, **options: Any) -> paho.Client:
        """Connect a client that subscribes."""
        client = self.client(name, **options)
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe(topic_filter, qos)
        subscribed.wait(START_SECONDS)
        return client

    def _publish(self) -> None:
        while not self._ended.wait(0.05):
            room = self._random.randrange(len(ROOMS))
            for kind in KINDS:
                value = f"{self._random.gauss(21, 2):.1f}"
                topic = f"house/{ROOMS[room]}/{kind}"
                self.sensors[room].publish(topic, value, 1, retain=kind == "temperature")

    def close(self) -> None:
        """Disconnect all clients."""
        self._ended.set()
        self._publishing.join()
        for client in self._clients:
            client.disconnect()
            client.loop_stop()


@contextlib.contextmanager
def running_broker(directory: Path, *flags: str) -> Iterator[tuple[int, int]]:
    """Run a broker with its data in a directory; yield its ports for MQTT and the web page."""
    port, web = free_port(), free_port()
    (directory / "config.toml").write_text(SETTINGS)
    (directory / "permissions.toml").write_text(PERMISSIONS)
    command = [FOLDMQ, "serve", "--config", "config.toml", "--data-dir", "data"]
    command += ["--listen", f"127.0.0.1:{port}", "--web", f"127.0.0.1:{web}", *flags]
    with (directory / "broker.log").open("wb") as log:
        broker = subprocess.Popen(command, cwd=directory, stderr=log)  # noqa: S603 - as above
    try:
        until = time.monotonic() + START_SECONDS
        while b"web page" not in (directory / "broker.log").read_bytes():
            if broker.poll() is not None or time.monotonic() > until:
                sys.exit((directory / "broker.log").read_text())
            time.sleep(0.1)
        yield port, web
    finally:
        broker.terminate()
        broker.wait()


def take_pages(web: int, token: str) -> None:
    """Take pictures of the web page."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for suffix, (width, height) in WINDOWS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(f"http://127.0.0.1:{web}/?token={token}")
            page.get_by_text("Reading the log").wait_for(state="hidden", timeout=READING_MS)
            for name, path in PAGES.items():
                page.goto(f"http://127.0.0.1:{web}{path}")
                page.wait_for_timeout(3000)  # for live figures and the time axis
                file = PICTURES / f"{name}{suffix}.png"
                page.screenshot(path=file)
                # 128 colours are a third of the bytes.
                Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
        browser.close()


def take_command(name: str, directory: Path, *words: str) -> None:
    """Take a picture of the output of a command, as on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(  # noqa: S603 - what this file says
        [FOLDMQ, *words, "--data-dir", "data"],
        cwd=directory,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # its end
        while read := os.read(ours, 65536):
            output += read
    os.close(ours)
    process.wait()
    shown = output.decode().replace("\r\n", "\n").replace(f"{directory}/", "")
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(Text.from_ansi(f"$ foldmq {' '.join(words)}\n{shown}"), soft_wrap=False)
    console.save_svg(str(PICTURES / f"{name}.svg"), title="", code_format=SVG)


async def take_top() -> None:
    """Take a picture of ``foldmq top`` for the broker of the current directory."""
    flags = SourceFlags({"data_dir": "data"})
    link = ReconnectingClient(lambda: open_brokers(flags))
    app = Top(link, 1.0, "recent")
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        await pilot.pause(8)
        drawn = app.export_screenshot(title="foldmq top")
        app.exit()
    await link.close()
    drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)
    here = f"{Path.cwd()}/"
    drawn = drawn.replace(here, "&#160;" * len(here))  # blanks keep the columns
    (PICTURES / "top.svg").write_text(drawn)


def main() -> None:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    # So that commands are shown without the folder of this environment.
    os.environ["PATH"] = f"{Path(FOLDMQ).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="foldmq-") as name:
        directory = Path(name)
        with running_broker(directory) as (port, web):
            house = House(port)
            try:
                time.sleep(LOAD_SECONDS)
                take_pages(web, (directory / "data" / "web.token").read_text().strip())
                with contextlib.chdir(directory):
                    asyncio.run(take_top())
                take_command("doctor", directory, "doctor")
                topic = "house/hall/temperature"
                take_command("why", directory, "why", "--topic", topic, "--client", "wall-display")
            finally:
                house.close()


if __name__ == "__main__":
    main()
