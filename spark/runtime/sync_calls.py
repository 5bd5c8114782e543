"""Questions to a server from code that is not asynchronous, wherever it is called."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Answer = TypeVar("Answer")


def run_sync(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return what a coroutine does, when it has ended; raises what it raises.

    In a notebook a loop is running in the thread that runs the cells, and no second one may run
    there: then the work has a thread of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "foldmq-question") as pool:
        return pool.submit(asyncio.run, work).result()
