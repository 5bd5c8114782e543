"""Starts and stops the compared brokers, each on a free port."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import urlsplit

from eventstore.errors import NatsUnavailable
from eventstore.server.process import find_binary

ROOT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT = 600  # seconds; a restart replays a long log first


class BenchError(Exception):
    """A broker or load that cannot be run; the message is for the user."""


@dataclass
class Running:
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    seconds: float
    """Seconds from the start of the process to an open port."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def nats_pid(self) -> int | None:
        """Return the process of the NATS server that the broker has started; None: it has none."""
        for pid, name, parent in _processes():
            if name == "nats-server" and parent == self.pid:
                return pid
        return None


def _processes() -> Iterator[tuple[int, str, int]]:
    """Yield number, name and parent of each process of the machine."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = stat.read_text("utf-8", "replace").rpartition(")")
            yield int(stat.parent.name), head.partition("(")[2], int(rest.split()[1])


def processes_of(pid: int) -> list[int]:
    """Return a process and its children."""
    return [pid, *(child for child, _, parent in _processes() if parent == pid)]


class Foldmq:
    name = "foldmq"
    title = "foldmq"
    watching: ClassVar[tuple[str, ...]] = ("--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0")
    """Metrics and web page are enabled, as by default, on free ports."""
    root: ClassVar[Path] = ROOT
    """The directory of its source."""

    @staticmethod
    def installed() -> bool:
        return True

    @classmethod
    def version(cls) -> str:
        version = output([sys.executable, "-m", "cli.main", "--version"]).removeprefix("foldmq ")
        return f"{version} ({revision(cls.root)})"

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        serve = [sys.executable, "-m", "cli.main", "serve", "--log-format", "json", *cls.watching]
        return [*serve, "--listen", f"127.0.0.1:{port}", "--data-dir", str(work / "data")]


class Released(Foldmq):
    """The released version that foldmq must not be slower than; released_version sets ``root``."""

    name = "released"
    title = "last release"
    commit: ClassVar[str] = ""

    @classmethod
    def version(cls) -> str:
        return f"({cls.commit})"


class Mosquitto:
    name = "mosquitto"
    title = "Mosquitto"

    @classmethod
    def program(cls) -> str | None:
        # Debian installs it in a directory that is not in an ordinary user's PATH.
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")

    @classmethod
    def installed(cls) -> bool:
        return cls.program() is not None

    @classmethod
    def version(cls) -> str:
        return output([cls.program() or "", "-h"]).splitlines()[0].split()[-1]

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        config = work / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 1000\n"
            "max_queued_messages 0\nset_tcp_nodelay true\npersistence false\n"
        )
        return [cls.program() or "", "-c", str(config)]


class NatsServer:
    """NATS Server's own MQTT; JetStream on disk and synced before every acknowledgement."""

    name = "nats"
    title = "NATS Server"

    @classmethod
    def program(cls) -> str | None:
        try:
            return str(find_binary())
        except NatsUnavailable:
            return None

    @classmethod
    def installed(cls) -> bool:
        return cls.program() is not None

    @classmethod
    def version(cls) -> str:
        return output([cls.program() or "", "--version"]).split()[-1]

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        config = work / "nats.json"
        settings = {
            "server_name": "bench",
            "listen": f"127.0.0.1:{free_port()}",
            "jetstream": {"store_dir": str(work / "jetstream"), "sync_interval": "always"},
            "max_payload": 8 * 1024 * 1024,
            "mqtt": {"listen": f"127.0.0.1:{port}", "max_ack_pending": 1000},
        }
        config.write_text(json.dumps(settings))
        return [cls.program() or "", "-c", str(config)]


Broker = type[Foldmq] | type[Mosquitto] | type[NatsServer]
BROKERS: list[Broker] = [Foldmq, Released, Mosquitto, NatsServer]


def revision(root: Path) -> str:
    """Return the commit of a checkout, marked if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return "no commit" if done.returncode else done.stdout.strip()


def output(command: list[str]) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return (result.stdout or result.stderr).strip()


_reserved: list[socket.socket] = []
"""Sockets that are bound to the ports given, and do not listen: no other program gets these."""


def free_port() -> int:
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    return int(reserved.getsockname()[1])


@contextlib.contextmanager
def running(
    broker: Broker, work: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Running]:
    """Run ``broker`` in the directory ``work`` until the block ends; ``settings`` are added to its
    environment.
    """
    port = free_port()
    log = work / f"{broker.name}.log"
    root = broker.root if issubclass(broker, Foldmq) else ROOT
    started = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            broker.command(port, work),
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), **settings},
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_listening(broker, process, port, log)
        seconds = time.monotonic() - started
        if issubclass(broker, Foldmq):
            _wait_web_page(process, log)
        yield Running(port, process, log, seconds)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_listening(broker: Broker, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    tail = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
    raise BenchError(f"{broker.title} did not start: {' '.join(tail) or 'it printed nothing'}")


def _wait_web_page(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until foldmq's web page answers, so that its start is not measured."""
    deadline = time.monotonic() + START_TIMEOUT
    while not (ready := logged(log, "ready")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"foldmq does not report that it is ready in {log}")
        time.sleep(0.05)
    if ready["web"] is None:
        return
    page = http.client.HTTPConnection(urlsplit(ready["web"]).netloc, timeout=60)
    try:
        page.request("GET", "/login")
        page.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"the web page at {ready['web']} does not answer: {error}") from None
    finally:
        page.close()


def cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_all(pid: int) -> float:
    """Return the CPU seconds that a process and its children have used."""
    return sum(map(cpu, processes_of(pid)))


def proc_number(pid: int, file: str, name: str) -> int:
    """Return a number of a file in /proc/PID whose lines begin with names."""
    for line in Path(f"/proc/{pid}/{file}").read_text("ascii", "replace").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def written_bytes(pid: int) -> int:
    """Return the bytes that a process and its children have written to storage."""
    return sum(proc_number(process, "io", "write_bytes:") for process in processes_of(pid))


def log_bytes(work: Path) -> int:
    """Return the bytes of the log in a broker's work directory, without those of projections."""
    return sum(
        block.stat().st_size
        for block in work.rglob("*.blk")
        if not block.parent.parent.name.startswith("FOLDMQ_STATE")
    )


def logged(log: Path, event: str) -> dict[str, Any] | None:
    """Return the first line of foldmq's log about an event."""
    for text in log.read_text("utf-8", "replace").splitlines(keepends=True):
        if text.startswith("{") and text.endswith("\n"):
            line: dict[str, Any] = json.loads(text)
            if line.get("event") == event:
                return line
    return None
