"""Tasks end although a cancellation is lost, as nats-py on Python 3.11 may lose it."""

from __future__ import annotations

import asyncio

from eventstore.task_end import end_tasks


async def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    lost: list[int] = []

    async def work(losses: int) -> None:
        for number in range(losses):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                lost.append(number)
        await asyncio.get_running_loop().create_future()

    async def fail() -> None:
        raise ValueError

    tasks = [asyncio.create_task(work(losses)) for losses in (0, 1, 2)]
    failed = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_tasks([*tasks, failed])
    assert all(task.cancelled() for task in tasks)
    assert sorted(lost) == [0, 0, 1]
    assert isinstance(failed.exception(), ValueError)
