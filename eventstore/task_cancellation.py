"""Ends tasks that wait for answers of NATS.

``asyncio.wait_for`` of Python 3.11 loses a cancellation that arrives together with the result, and
nats-py uses it. The broker uses ``asyncio.timeout``, which does not.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

_AGAIN: Final = 5.0
"""Seconds after which a task that continues is cancelled again."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], again: float = _AGAIN) -> None:
    """Cancel tasks, and return when they have ended.

    A task that continues is cancelled again after ``again`` seconds, as the cancellation may have
    been lost; that leaves enough time for its clean-up.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=again)


@contextlib.contextmanager
def keeping_cancellation() -> Iterator[None]:
    """Raise CancelledError if the code of the ``with`` block lost a cancellation of its task."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except Exception:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
