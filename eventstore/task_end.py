"""Ends tasks that wait for answers of NATS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_AGAIN: Final = 0.1
"""Seconds after which a task that continues is cancelled again."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when they have ended.

    nats-py waits for answers with ``wait_for``, which in Python 3.11 loses a cancellation that
    arrives together with the answer: a task that works in a loop then continues.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_AGAIN)
