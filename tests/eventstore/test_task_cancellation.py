"""Tasks end although a cancellation is lost, as nats-py on Python 3.11 may lose it."""

import asyncio

import pytest

from eventstore.task_cancellation import end_tasks, keeping_cancellation


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
    await end_tasks([*tasks, failed], again=0.01)
    assert all(task.cancelled() for task in tasks)
    assert sorted(lost) == [0, 0, 1]
    assert isinstance(failed.exception(), ValueError)


async def test_a_clean_up_is_not_cancelled() -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0.3)
            cleaned = True

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert task.cancelled()
    assert cleaned


async def lose_a_cancellation(error: Exception | None = None) -> str:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        if error is not None:
            raise error from None
    return "answer"


@pytest.mark.parametrize("error", [None, TimeoutError()])
async def test_a_lost_cancellation_is_raised(error: Exception | None) -> None:
    async def work() -> None:
        with keeping_cancellation():
            await lose_a_cancellation(error)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_tasks([task], again=60.0)
    assert task.cancelled()


async def test_a_time_limit_is_not_a_cancellation() -> None:
    with keeping_cancellation(), pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with asyncio.timeout(0):
            with keeping_cancellation():
                await lose_a_cancellation()

    with pytest.raises(TimeoutError):
        await ask()


async def test_a_clean_up_after_a_cancellation_may_wait_for_answers() -> None:
    answers = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            with keeping_cancellation():
                await asyncio.sleep(0)
                answers.append("answer")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert answers == ["answer"]
