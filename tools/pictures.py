"""Makes the pictures of the documentation: a broker with a few clients, as its commands show it.

``python tools/pictures.py`` starts a broker and writes ``docs/pictures``: the output of ``foldmq
doctor``, ``why`` and ``top``, and the web page, for which it needs Chromium and playwright.
"""

from __future__ import annotations

import html
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
COMMANDS = {
    "doctor": ["doctor"],
    "why": ["why", "--client", "panel", "--topic", "hall/door"],
    "top": ["top", "--once"],
}
WAIT_S = 13
"""A client counts as not acknowledging after ten seconds."""
STYLE = "font:13px ui-monospace,Menlo,Consolas,monospace;fill:#e5e7eb;white-space:pre"
LINE_PX, CHARACTER_PX, MARGIN_PX = 18, 8.0, 14


def main() -> None:
    """Start the broker and its clients, and write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        port, web = _free_port(), _free_port()
        addresses = ["--listen", f"127.0.0.1:{port}", "--web", f"127.0.0.1:{web}"]
        broker = subprocess.Popen(  # noqa: S603 -- the words are those of this file
            ["foldmq", "serve", *addresses, "--metrics", "off", "--max-ack-pending", "20"],  # noqa: S607
            **_place(directory),
            stderr=subprocess.DEVNULL,
        )
        try:
            sensor = _clients(port)
            threading.Thread(target=_publish, args=(sensor,), daemon=True).start()
            time.sleep(WAIT_S)
            for name, words in COMMANDS.items():
                line = f"$ foldmq {' '.join(words)}"
                shown = _output(words, directory)
                (PICTURES / f"{name}.svg").write_text(svg(f"{line}\n{shown}"), "utf-8")
            token = (Path(directory) / "foldmq-data" / "web.token").read_text("utf-8").strip()
            _photograph(f"http://127.0.0.1:{web}/?token={token}", PICTURES / "page.png")
        finally:
            broker.terminate()
            broker.wait()


def _place(directory: str) -> dict[str, Any]:
    """Return where a command runs: with the default data directory, found by its name."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"cwd": directory, "env": {**os.environ, "PATH": path}}


def _output(words: list[str], directory: str) -> str:
    shown: str = subprocess.run(  # noqa: S603 -- the words are those of this file
        ["foldmq", *words],  # noqa: S607
        **_place(directory),
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return shown


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _clients(port: int) -> mqtt.Client:
    """Connect a good subscriber, one that does not acknowledge, and return a publisher."""
    for name in ("screen", "panel", "sensor"):
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, name, clean_session=False, manual_ack=name == "panel"
        )
        for _ in range(100):
            try:
                client.connect("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                time.sleep(0.2)
        client.loop_start()
        client.subscribe("hall/#" if name != "sensor" else "orders/#", qos=1)
    time.sleep(1)
    return client


def _publish(client: mqtt.Client) -> None:
    """Publish twenty messages a second until the program ends."""
    for topic in itertools.cycle(["hall/door", "hall/window", "hall/lamp"]):
        client.publish(topic, "open", qos=1)
        time.sleep(0.05)


def svg(text: str) -> str:
    """Return a text as it looks in a terminal."""
    lines = text.rstrip().splitlines()
    width = round(max(map(len, lines)) * CHARACTER_PX + 2 * MARGIN_PX)
    height = len(lines) * LINE_PX + 2 * MARGIN_PX
    box = f'viewBox="0 0 {width} {height}"'
    rows = [
        f'<text x="{MARGIN_PX}" y="{MARGIN_PX + LINE_PX * number + 13}" '
        f'textLength="{len(line) * CHARACTER_PX:g}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {box}>',
            f"<style>text{{{STYLE}}}</style>",
            f'<rect width="{width}" height="{height}" rx="6" fill="#1f2937"/>',
            *rows,
            "</svg>\n",
        ]
    )


def _photograph(url: str, picture: Path) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if program is None:
        sys.exit("tools/pictures.py: the page needs chromium (on Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        # In a container chromium runs as root, for which it has no sandbox.
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(url)
        page.wait_for_timeout(3000)
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
