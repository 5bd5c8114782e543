"""Helper processes: commands on stdin, low priority, file descriptors."""

import asyncio
import os
import resource
import sys
from collections.abc import Coroutine
from typing import Any


async def stdin() -> asyncio.StreamReader:
    """Return a reader of the lines that the benchmark sends."""
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), sys.stdin
    )
    return words


def run_as_attacker(work: Coroutine[Any, Any, None], descriptors: int) -> None:
    """Run work that needs this many file descriptors.

    Attackers have computers of their own: these must not take the time of those they attack.
    """
    os.nice(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors, hard), hard))
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)
