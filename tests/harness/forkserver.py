"""Runs the ``foldmq`` command many times without starting an interpreter each time.

A process that has imported all of the command is forked for each run: as separate as a process of
its own, in a twentieth of the time. Only what is printed, the exit code and what is left behind
can be seen of it, as with the real one.

Run as a program this is that process: it listens on the socket that it inherits.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent.parent

_lock = threading.Lock()
_address: str | None = None


def run(
    arguments: Sequence[str], env: Mapping[str, str], timeout: float
) -> tuple[int, bytes, bytes]:
    """Run ``foldmq`` with these arguments; return exit code, stdout and stderr.

    The code is negative for a signal. Raises subprocess.TimeoutExpired, having killed it.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel,
    ):
        channel.connect(_server())
        request = {"arguments": list(arguments), "env": dict(env), "directory": str(Path.cwd())}
        data = json.dumps(request).encode()
        socket.send_fds(channel, [len(data).to_bytes(4, "big")], [out.fileno(), err.fileno()])
        channel.sendall(data)
        answers = channel.makefile("rb")
        pid = int(answers.readline())
        channel.settimeout(timeout)
        try:
            code = int(answers.readline())
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["foldmq", *arguments], timeout) from None
        for stream in (out, err):
            stream.seek(0)
        return code, out.read(), err.read()


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
                [sys.executable, __file__, str(listener.fileno())],
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
    while True:
        channel, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(channel)
        channel.close()


def _attend(channel: socket.socket) -> None:
    """Fork once more, run the command there, and tell its exit code; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, fds, _, _ = socket.recv_fds(channel, 4, 2)
    data = b""
    wanted = int.from_bytes(size, "big")
    while len(data) < wanted:
        data += channel.recv(wanted - len(data))
    request: dict[str, Any] = json.loads(data)
    pid = os.fork()
    if pid == 0:
        channel.close()
        _become(request, fds)
    channel.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Be the command; never returns."""
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate([null, *fds]):
        os.dup2(fd, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["directory"])
    sys.argv = ["foldmq", *request["arguments"]]
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


def _load_all() -> None:
    """Import all that the command may need; what starts threads is not there at import."""
    sys.path[0] = str(ROOT)  # not the folder of this file, whose modules have common names
    import cli

    for found in pkgutil.walk_packages(cli.__path__, "cli."):
        __import__(found.name)


if __name__ == "__main__":
    _load_all()
    _serve(socket.socket(fileno=int(sys.argv[1])))
