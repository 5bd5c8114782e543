"""Starts programs beside a broker; a helper takes commands and answers with lines of JSON."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any, Self

from bench.brokers.broker_processes import ROOT, BenchError

_TIMEOUT = 150.0
"""Seconds to wait for an answer."""


class Helper:
    """A process that takes commands on stdin and answers with lines of JSON, for a ``with``
    block."""

    def __init__(self, command: list[str]) -> None:
        self._name = " ".join(command[:3])
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def send(self, word: str) -> None:
        """Send a line, unless the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            _file(self._process.stdin).write(f"{word}\n".encode())
            _file(self._process.stdin).flush()

    def receive(self) -> dict[str, Any]:
        """Return the next answer."""
        out = _file(self._process.stdout).fileno()
        while b"\n" not in self._read:
            if not select.select([out], [], [], _TIMEOUT)[0]:
                raise BenchError(f"{self._name} does not answer")
            data = os.read(out, 2**16)
            if not data:
                raise BenchError(f"{self._name} ended with {self._process.wait()}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _file(file: IO[bytes] | None) -> IO[bytes]:
    if file is None:
        raise BenchError("no pipe")
    return file


def program(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of the benchmark, with ROOT as its directory."""
    return [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]


def helper(module: str, *arguments: object) -> Helper:
    """Start a module of the benchmark as a helper."""
    return Helper(program(module, *arguments))


@contextlib.contextmanager
def busy_host() -> Iterator[None]:
    """Keep every processor busy until the block ends."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
