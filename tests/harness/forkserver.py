"""Runs the ``foldmq`` command many times without starting an interpreter each time.

A process that has imported the whole command is forked for each run: as isolated as a process of
its own, in a twentieth of the time. Its output, its files, its exit code and its reaction to
signals are those of the real command. Nevertheless brokers of ``make drills``, and some commands of
each kind, are started as a user starts them.

Run as a program this is that process: it listens on the socket that it inherits.
"""

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import pkgutil
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent

_NUMBER = 4
"""Bytes of a number between the two processes."""

_lock = threading.Lock()
_address: str | None = None


class Process:
    """A forked ``foldmq``: what tests need of subprocess.Popen."""

    def __init__(self, channel: socket.socket, arguments: Sequence[str]) -> None:
        self.returncode: int | None = None
        self._arguments = arguments
        self._channel = channel
        self.pid = self._told()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        if self.returncode is None and self._has_ended(0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if timeout is not None and not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(["foldmq", *self._arguments], timeout)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, seconds: float) -> bool:
        # A worker with many open files has numbers that select() does not take.
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _end(self) -> None:
        self.returncode = self._told()
        self._channel.close()

    def _told(self) -> int:
        return int.from_bytes(_received(self._channel, _NUMBER), "big", signed=True)


def start(
    arguments: Sequence[str],
    env: Mapping[str, str],
    out: int,
    err: int,
    given: int | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start ``foldmq`` with these arguments; return when it has begun.

    `out` and `err` are descriptors it writes to, `given` one it reads from; else it reads nothing.
    `cwd` is its working directory, if it is not that of the tests.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(_server())
    request = {"arguments": list(arguments), "env": dict(env), "directory": str(cwd or Path.cwd())}
    data = json.dumps(request).encode()
    with Path(os.devnull).open("rb") as null:
        fds = [null.fileno() if given is None else given, out, err]
        socket.send_fds(channel, [len(data).to_bytes(_NUMBER, "big")], fds)
        channel.sendall(data)
        return Process(channel, arguments)


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    stop_after: float | None = None,
) -> tuple[int, bytes, bytes]:
    """Run ``foldmq`` with these arguments; return exit code, stdout and stderr.

    The code is negative for a signal. Raises subprocess.TimeoutExpired, having killed it. After
    `stop_after` seconds it gets SIGINT.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given = None
        if stdin is not None:
            given, giving = os.pipe()
        process = start(arguments, env, out.fileno(), err.fileno(), given, cwd)
        if stdin is not None and given is not None:
            os.close(given)
            with contextlib.suppress(BrokenPipeError), open(giving, "wb") as pipe:  # noqa: PTH123
                pipe.write(stdin)
        try:
            if stop_after is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(stop_after)
                process.send_signal(signal.SIGINT)
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for stream in (out, err):
            stream.seek(0)
        return code, out.read(), err.read()


def _received(channel: socket.socket, size: int) -> bytes:
    """Return the next bytes, this many; raises ConnectionError if there are no more."""
    data = b""
    while len(data) < size:
        more = channel.recv(size - len(data))
        if not more:
            raise ConnectionError("the process that is forked has gone")
        data += more
    return data


def _server() -> str:
    """Return the address of the process that is forked, started when it is first needed."""
    global _address
    with _lock:
        if _address is None:
            directory = tempfile.TemporaryDirectory(prefix="foldmq-fork-")
            path = str(Path(directory.name) / "socket")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(path)
            listener.listen(64)
            process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno()), " " * 200],  # room for _show
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
            listener.close()
            atexit.register(_end, process, directory)
            _address = path
        return _address


def _end(process: subprocess.Popen[bytes], directory: tempfile.TemporaryDirectory[str]) -> None:
    process.kill()
    process.wait()
    directory.cleanup()


# ----------------------------------------------------------------------- in the forked process


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which end this
    while True:
        channel, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(channel)
        channel.close()


def _attend(channel: socket.socket) -> None:
    """Fork once more, run the command there, and tell its exit code; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, fds, _, _ = socket.recv_fds(channel, _NUMBER, 3)
    request: dict[str, Any] = json.loads(_received(channel, int.from_bytes(size, "big")))
    pid = os.fork()
    if pid == 0:
        channel.close()
        _become(request, fds)
    for fd in fds:
        os.close(fd)
    channel.sendall(pid.to_bytes(_NUMBER, "big", signed=True))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    # The caller may have ended meanwhile.
    with contextlib.suppress(OSError):
        channel.sendall(code.to_bytes(_NUMBER, "big", signed=True))
    os._exit(0)


def _become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be the command."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 256)
    if os.isatty(0):  # the one that Ctrl-C is pressed on
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    tempfile.tempdir = None  # it is that of the environment
    os.chdir(request["directory"])
    sys.argv = ["foldmq", *request["arguments"]]
    # The processes that it starts of its own program, and its own restart, are real ones, except
    # the first process of each log, and the first ones of its outbox and of its page.
    program = str(Path(sys.executable).with_name("foldmq"))
    sys.orig_argv = [sys.executable, program, *request["arguments"]]
    if request["arguments"][:1] == ["serve"]:
        _prepare(_settings_of(request["arguments"]))
    _run_main()


def _run_main() -> NoReturn:
    """Run the command of sys.argv."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(fd, "w", encoding="utf-8", closefd=False, buffering=1 if fd == 2 else -1)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    from cli.main import main

    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(code + "\n")
    except BaseException:  # noqa: BLE001 - shown as the interpreter would
        sys.excepthook(*sys.exc_info())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


# ------------------------------------------------------------------- processes that a broker starts


def _settings_of(arguments: Sequence[str]) -> str:
    """Return the arguments of a broker, and the text of its settings."""
    settings = ""
    if "--config" in arguments:
        with contextlib.suppress(OSError):
            settings = Path(arguments[arguments.index("--config") + 1]).read_text("utf-8")
    return f"{' '.join(arguments)}\n{settings}"


def _prepare(settings: str, *, log: bool = False) -> None:
    """Fork the processes that a broker, or the process of a log, will probably start."""
    found = re.search(r"--processes[ =](\d+)|(?m:^)(?:processes|partitions) *= *(\d+)", settings)
    logs = 0 if log or not found else int(found[1] or found[2])
    outbox = bool(re.search(r"(?m)^\[(?:sink|connection)\.", settings)) and logs < 2
    web = bool(re.search(r"--web[ =]\d|(?m:^)web *= *.\d", settings)) and not log
    # The next ones, where these were killed, are started as a broker starts them.
    _fork_spares(logs if logs > 1 else 0, outbox + web, settings)


def _fork_spares(logs: int, helpers: int, settings: str) -> None:
    """Fork processes that wait until the broker starts one for a log or beside it.

    They are children of the broker, as those that it starts itself, and end with it.
    """
    spares: list[tuple[int, socket.socket]] = []
    for number in range(logs + helpers):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for other in (ours, *(channel for _, channel in spares)):
                other.close()
            _await_start(theirs, settings if number < logs else None)
        theirs.close()
        spares.append((pid, ours))
    of_logs, beside = spares[:logs], spares[logs:]
    create = asyncio.create_subprocess_exec

    async def create_or_take(program: str, *arguments: str, **options: Any) -> Any:
        command = (program, *arguments)
        if of_logs and command == (sys.executable, *sys.orig_argv[1:]):
            return _Spare(*of_logs.pop(0), sys.argv[1:], options["env"], options["pass_fds"])
        if beside and command[:4] == (sys.executable, "-P", "-m", "foldmq"):
            reading, writing = os.pipe()
            pipe = os.fdopen(writing, "wb", 0)
            process = _Spare(
                *beside.pop(0), arguments[3:], options["env"], options["pass_fds"], reading
            )
            os.close(reading)
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin,  # type: ignore[attr-defined]
                pipe,
            )
            process.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
            return process
        return await create(program, *arguments, **options)

    asyncio.create_subprocess_exec = create_or_take  # type: ignore[assignment]


def _await_start(channel: socket.socket, settings: str | None) -> NoReturn:
    """Wait for arguments, an environment and descriptors, and be the command with them.

    That of a log may start others: `settings` are those of its broker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the broker, and that ends this
    size, fds, _, _ = socket.recv_fds(channel, _NUMBER, 8)
    if not size:  # the broker has ended
        os._exit(0)
    given = json.loads(_received(channel, int.from_bytes(size, "big")))
    channel.close()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
    os.closerange(3, 100)
    for number, fd in zip(given["fds"], high, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(given["env"])
    sys.argv = ["foldmq", *given["arguments"]]
    if settings is not None:
        _prepare(settings, log=True)
    else:
        os.setsid()
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 1)
        _show(["python", "-P", "-m", *sys.argv])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _run_main()


def _show(arguments: Sequence[str]) -> None:
    """Make these the arguments that the system shows of this process."""
    first, last = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    shown = b"\0".join(word.encode() for word in (*arguments, ""))
    ctypes.memmove(first, shown[: last - first - 1].ljust(last - first, b"\0"), last - first)


class _Spare:
    """A process that was forked before: what the broker needs of asyncio.subprocess.Process."""

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        arguments: Sequence[str],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stdin: int | None = None,
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._end)
        fds = {fd: fd for fd in pass_fds} | ({} if stdin is None else {0: stdin})
        given = {"arguments": list(arguments), "env": dict(env), "fds": [*fds]}
        data = json.dumps(given).encode()
        with channel, contextlib.suppress(OSError):  # it was killed
            socket.send_fds(channel, [len(data).to_bytes(_NUMBER, "big")], [*fds.values()])
            channel.sendall(data)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """Return the exit code when it has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _load_all() -> None:
    """Import all that the command may need; what starts threads is not there at import."""
    sys.path[0] = str(ROOT)  # not the folder of this file, whose modules have common names
    import cli

    for found in pkgutil.walk_packages(cli.__path__, "cli."):
        __import__(found.name)
    from cli.program.command_table import GROUPS, load_commands
    from cli.settings.log_settings import LogSettings
    from cli.settings.settings import Settings

    # What the command makes when it needs it takes more time than all the rest.
    for module in {entry.module for entries in GROUPS.values() for entry in entries}:
        load_commands(module)
    for model in (LogSettings, Settings):
        model.model_rebuild()
    gc.freeze()  # the pages stay shared


if __name__ == "__main__":
    _load_all()
    _serve(socket.socket(fileno=int(sys.argv[1])))
