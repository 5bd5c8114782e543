"""A real `foldmq serve` process for tests, driven from outside only."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness import forkserver
from harness.waiting import until

STARTUP = 90.0
"""Seconds a broker may take until its port accepts."""
_UNAVAILABLE = 69
"""Exit code of a broker that cannot listen."""
SHUTDOWN = 20.0
"""Seconds a broker may take to end after SIGTERM."""


_PORTS = range(12_000, 20_000)
"""Below those that the system gives to outgoing connections, and that brokers choose for their
NATS servers (`eventstore.server.process`): no program has one by chance."""
_next_port = itertools.count(os.getpid() * 7919)
_reserved: deque[socket.socket] = deque(maxlen=400)
"""Sockets that are bound to the ports given last, and do not listen. A server with SO_REUSEADDR
may listen there, also after a restart; whatever looks for a free port meanwhile finds it taken."""


def free_port() -> int:
    """A port of 127.0.0.1 that is free, and that no other test gets."""
    while True:
        port = _PORTS[next(_next_port) % len(_PORTS)]
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
            reserved = socket.socket()
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", port))
        except OSError:
            continue
        if len(_reserved) == _reserved.maxlen:
            _reserved.popleft().close()
        _reserved.append(reserved)
        return port


_TAKEN = re.compile(r"cannot listen on [^\n]*:(\d+)[^\n]*: another program is listening there")


def foldmq() -> str:
    """The `foldmq` command of the environment that runs the tests."""
    return str(Path(sys.executable).parent / "foldmq")


def environment() -> dict[str, str]:
    """The environment without FOLDMQ_ variables: foldmq would take them for its settings."""
    return {key: value for key, value in os.environ.items() if not key.startswith("FOLDMQ_")}


def nats_server() -> str:
    """The `nats-server` that came with foldmq, or the one on the PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else "nats-server"


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return not Path("/proc").is_dir()


def wait_until_gone(pid: int, timeout: float = 40.0) -> bool:
    """Whether the process ended within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def children_of(parent: int) -> list[int]:
    """The processes that a process started and that have not ended."""
    return families().get(parent, [])


def families() -> dict[int, list[int]]:
    """All processes that have not ended, by the one that started them."""
    found: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = Path(entry.path, "stat").read_bytes()
                state, parent = stat.rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    found.setdefault(int(parent), []).append(int(entry.name))
    return found


def stand_still(pid: int, timeout: float = 10.0) -> None:
    """SIGSTOP; returns when no thread of the process runs any more, nor waits for the disk."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] not in "TtZ":
            assert time.monotonic() < deadline, f"process {pid} does not stop"
            time.sleep(0.002)


class BrokerFailedError(AssertionError):
    """The broker did not start, or did not end, as it should."""


class Broker:
    """A broker whose store is `directory`/data and whose log is `directory`/broker.log.

    `config` is the text of its TOML file, `args` are further command-line arguments, `env` are
    further variables. `metrics` and `web` are off unless the file or the arguments say where.
    With `forked` it starts in a part of the time, as `harness.forkserver` says.
    """

    def __init__(
        self,
        directory: Path,
        *,
        args: Sequence[str] = (),
        config: str = "",
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        forked: bool = False,
    ) -> None:
        self.forked = forked
        self.env = dict(env or {})
        self.directory = directory
        self.data_dir = directory / "data"
        self.args = list(args)
        self.config_file = directory / "foldmq.toml"
        self.port = port or free_port()
        self.moved: dict[int, int] = {}
        """New ports, by those that were taken by other programs."""
        self._started_before = False
        self._log_file = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | forkserver.Process | None = None
        self.configure(config)

    def __enter__(self) -> Self:
        """Start it; however the block ends, nothing of it runs any more."""
        try:
            self.start()
        except BaseException:
            self.clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.clean_up()

    def configure(self, config: str) -> None:
        """Writes the TOML file; the broker sees it at the next start or SIGHUP."""
        self.config_file.write_text(config)

    def command(self) -> list[str]:
        options = ["--data-dir", str(self.data_dir), "--config", str(self.config_file)]
        settings = self.config_file.read_text() if self.config_file.exists() else ""
        if "[[listen]]" not in settings:  # else one of those is at the port
            options += ["--listen", f"127.0.0.1:{self.port}"]
        for name in ("metrics", "web"):
            if f"--{name}" not in self.args and f"{name} =" not in settings:
                options += [f"--{name}", "off"]
        return [foldmq(), "serve", *options, *self.args]

    def environment(self) -> dict[str, str]:
        return {**environment(), **self.env}

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """All that the broker wrote to stdout and stderr, over all its starts."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def told(self, what: str) -> list[dict[str, Any]]:
        """The log lines whose event says so; needs `log_format = 'json'`."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if what in line.get("event", "")]

    @property
    def nats_pid(self) -> int:
        return int((self.data_dir / "nats.pid").read_text())

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code of the process, None while it runs."""
        assert self._process is not None, "the broker was not started"
        return self._process.poll()

    def start(self) -> None:
        """Starts the process and returns when its port accepts connections and it has said so.

        If another program has taken one of its ports before its first start, it gets another one.
        Later, a process that a killed broker was about to start may have its listeners for a while.
        """
        for _ in range(5):
            before = len(self.log)
            try:
                self._start_once()
            except BrokerFailedError:
                taken = _TAKEN.search(self.log[before:])
                if taken is None or self.returncode != _UNAVAILABLE:
                    raise
                if self._started_before:
                    time.sleep(0.3)
                    continue
                self._log_file.unlink()
                self._move(taken[1], str(free_port()))
            else:
                self._started_before = True
                return
        raise BrokerFailedError(f"its ports were taken five times:\n{self.log}")

    def _move(self, old: str, new: str) -> None:
        """Use another port in the settings and arguments."""
        self.args = [re.sub(rf":{old}\b", f":{new}", one) for one in self.args]
        settings = re.sub(rf":{old}\b", f":{new}", self.config_file.read_text())
        self.config_file.write_text(settings)
        if self.port == int(old):
            self.port = int(new)
        self.moved[int(old)] = int(new)

    def _start_once(self) -> None:
        assert not self.running, "the broker runs already"
        before = len(self.log)
        with self._log_file.open("ab") as log:
            self._process = self._started(log.fileno())
        deadline = time.monotonic() + STARTUP
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerFailedError(f"exit {self._process.returncode} at start:\n{self.log}")
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0),
            ):
                until(lambda: self._ready(before), f"its banner in:\n{self.log}")
                if self.running:
                    return
            time.sleep(0.02)
        self.kill()
        raise BrokerFailedError(f"port {self.port} not open after {STARTUP} s:\n{self.log}")

    def _ready(self, before: int) -> bool:
        """Whether it has said that it is ready, behind so much of its log; or has ended."""
        said = self.log[before:]
        if not self.running or not said.endswith("\n"):
            return not self.running
        banner = said.partition(f", process {self.pid}\n")[2]
        return "\n  guarantee " in banner or '"event": "ready"' in said

    def _started(self, log: int) -> subprocess.Popen[bytes] | forkserver.Process:
        command, env = self.command(), self.environment()
        if self.forked:
            return forkserver.start(command[1:], env, log, log)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def refused(self, code: int) -> str:
        """The problems for which it refuses to start, a line each, with this exit code."""
        found, _, err = forkserver.run(self.command()[1:], self.environment(), STARTUP)
        said = err.decode()
        assert found == code, said
        assert "Traceback" not in said
        lines = [line for line in said.splitlines() if line.startswith("foldmq: ")]
        assert lines, said
        assert lines == said.splitlines()[-len(lines) :]
        return "\n".join(line.removeprefix("foldmq: ") for line in lines)

    def stop(self) -> None:
        """SIGTERM; the process must end with exit code 0."""
        process = self._process
        assert process is not None, "the broker was not started"
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(SHUTDOWN)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(f"no end {SHUTDOWN} s after SIGTERM:\n{self.log}") from None
        if code != 0:
            raise BrokerFailedError(f"exit {code} after SIGTERM:\n{self.log}")

    def kill(self) -> None:
        """SIGKILL to the broker's process only."""
        assert self._process is not None, "the broker was not started"
        self._process.kill()
        self._process.wait()

    def kill_nats(self) -> int:
        """SIGKILL to the embedded NATS server; returns the pid it had."""
        pid = self.nats_pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def pause(self) -> None:
        """SIGSTOP to the broker's process; returns when it stands still."""
        stand_still(self.pid)

    def resume(self) -> None:
        """SIGCONT to the broker's process."""
        os.kill(self.pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """SIGKILL to the broker and every process that it started; returns when they are gone."""
        stand_still(self.pid)
        children = children_of(self.pid)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        self.kill()
        for pid in children:
            assert wait_until_gone(pid), f"process {pid} does not end"

    def hangup(self) -> None:
        """SIGHUP: the broker rereads what it can."""
        os.kill(self.pid, signal.SIGHUP)

    def restart(self, *, kill: bool = False) -> None:
        """Ends the process, by SIGKILL if `kill`, and starts it on the same port and store."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def clean_up(self) -> None:
        """Ends whatever still runs, however the test ended."""
        if self.running:
            self.kill()
        with contextlib.suppress(OSError, ValueError):
            pid = self.nats_pid
            if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
