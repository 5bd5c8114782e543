"""Operators that inspect a running foldmq, and the clients that they inspect."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from bench.brokers.broker_processes import ROOT, BenchError
from bench.brokers.mqtt_client import (
    CONNACK,
    PUBACK,
    SUBACK,
    Client,
    connect,
    publish,
    session_name,
    subscribe,
)
from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags
from protocol.errors import FoldmqError

_AT_ONCE, _SOURCES = 200, 20  # connections made at a time, and the addresses they come from
_SPARE_FILES = 500
_PUBLISH_EVERY = 0.1  # seconds
_TIMEOUT = 60.0
_COLUMNS, _LINES = 120, 40


def _foldmq(words: list[str], work: Path) -> list[str]:
    return [sys.executable, "-m", "cli.main", *words, "--data-dir", str(work / "data")]


def _until(condition: Callable[[], object], process: subprocess.Popen[bytes], what: str) -> None:
    """Wait until a condition holds; raise BenchError if it does not."""
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{what} does not work (status {process.poll()})")
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Top:
    """``foldmq top`` on a pseudo-terminal whose output is read."""

    def __init__(self, work: Path) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            _foldmq(["top"], work),
            cwd=ROOT,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(terminal)
        self.drawn = 0
        """Bytes of output."""
        self._draining = threading.Thread(target=self._drain)
        self._draining.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self.process, signal.SIGTERM)
        self._draining.join()
        os.close(self._master)

    def wait(self) -> None:
        """Wait until it shows a screen of figures, not only control codes."""
        _until(lambda: self.drawn > _COLUMNS * _LINES, self.process, "foldmq top")

    def _drain(self) -> None:
        with contextlib.suppress(OSError):  # raised by Linux when the other end is closed
            while data := os.read(self._master, 65536):
                self.drawn += len(data)


@contextlib.contextmanager
def idle_clients(port: int, count: int, filters: int = 0) -> Iterator[None]:
    """Keep idle clients connected, with subscriptions to unused topics."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < count + _SPARE_FILES:
        raise BenchError(f"only {limit} files may be open: more than {count} are needed (ulimit)")
    with contextlib.ExitStack() as stack:
        for first in range(0, count, _AT_ONCE):
            source = first // _AT_ONCE % _SOURCES + 1
            made = []
            for index in range(first, min(first + _AT_ONCE, count)):
                client = stack.enter_context(Client(port, source))
                wanted = [f"fleet/{session_name(index)}/{number}" for number in range(filters)]
                client.send(connect(session_name(index), clean=True))
                if wanted:
                    client.send(subscribe(*wanted))
                made.append(client)
            for client in made:
                client.expect(CONNACK)
                if filters:
                    client.expect(SUBACK)
        yield


class PublishingClient:
    """A client that publishes a few messages."""

    def __init__(self, port: int, name: str) -> None:
        self._client = Client(port)
        self._client.send(connect(name, clean=True))
        self._client.expect(CONNACK)
        self._topic = f"spoken/{name}"
        self._silent = threading.Event()
        self.problem: str | None = None
        self._publishing = threading.Thread(target=self._publish)
        self._publishing.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._silent.set()
        self._publishing.join()
        self._client.close()

    def _publish(self) -> None:
        try:
            while not self._silent.wait(_PUBLISH_EVERY):
                self._client.send(publish(self._topic, b"a little", 1))
                self._client.expect(PUBACK)
        except (BenchError, OSError) as error:
            self.problem = f"the client that is traced: {error}"


class Tail:
    """``foldmq actors tail`` of one client, written to a file."""

    def __init__(self, work: Path, client: str) -> None:
        self._file = work / "tail.json"
        words = ["actors", "tail", "--client", client, "--json"]
        with self._file.open("wb") as sink:
            self.process = subprocess.Popen(_foldmq(words, work), cwd=ROOT, stdout=sink)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self.process, signal.SIGINT)

    def wait(self) -> None:
        """Wait for the first line."""
        _until(self.packets, self.process, "foldmq actors tail")

    def packets(self) -> int:
        """Return the number of the client's packets in the trace."""
        shown = self._file.read_text("utf-8").splitlines(keepends=True)
        kinds = [json.loads(line)["kind"] for line in shown if line.endswith("\n")]
        return kinds.count("packet_in")


class InspectionLoad:
    """Requests all actors, page by page, then the busiest ones, repeatedly."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._enough = threading.Event()
        self._asking = threading.Thread(target=self._run)
        self.lists: list[float] = []
        """Seconds that each whole list took."""
        self.tops: list[float] = []
        self.actors = 0
        """Rows of the last whole list."""
        self.problem: str | None = None

    def __enter__(self) -> Self:
        self._asking.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the first round is complete, so that there is always a result."""
        self._enough.set()
        self._asking.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._ask())
        except FoldmqError as error:
            self.problem = f"the inspector: {error}"

    async def _ask(self) -> None:
        async with open_brokers(SourceFlags({"data_dir": self._work / "data"})) as brokers:
            (broker,) = brokers.present
            while True:
                started, rows = time.perf_counter(), 0
                async for page in broker.pages("actors"):
                    rows += len(page["rows"])
                    if self.tops and self._enough.is_set():
                        return
                self.lists.append(time.perf_counter() - started)
                self.actors = rows
                started = time.perf_counter()
                await broker.ask("actors", top={"by": "recent", "count": 100})
                self.tops.append(time.perf_counter() - started)
                if self._enough.is_set():
                    return
