"""Runs coroutines from synchronous code, even inside a running event loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def run_sync(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine to its end; return its result or raise its error.

    In a notebook, the thread that runs the cells already has a running loop, and cannot run a
    second one: then a separate thread runs the coroutine.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "foldmq-question") as pool:
        return pool.submit(asyncio.run, work).result()
