"""Finds servers that outlived their broker, by their exact arguments, and ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from eventstore.errors import DataDirBusy

_TIMEOUT_SECONDS: Final = 5.0


def processes_with(arguments: list[str]) -> list[int]:
    """Return the processes with exactly these arguments."""
    if not Path("/proc/self/cmdline").exists():
        return listed_processes_with(arguments)
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _has_arguments(int(entry.name), arguments)
    ]


def _has_arguments(pid: int, arguments: list[str]) -> bool:
    if not Path("/proc/self/cmdline").exists():
        return pid in listed_processes_with(arguments)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[1:-1] == [os.fsencode(argument) for argument in arguments]


def listed_processes_with(arguments: list[str]) -> list[int]:
    """Return the same on systems without /proc, from the output of ``ps``."""
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
    handle: int | None = None
    try:
        if sys.platform == "linux":  # a pidfd always refers to the same process, a pid may not
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
