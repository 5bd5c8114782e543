"""The fair queue: turns, shared work, and the worker threads."""

import asyncio
import threading
from collections.abc import Callable
from operator import itemgetter

import pytest

from actors.access.fair_queue import FairQueue, SingleFlight
from actors.access.login_backoff import LoginRank
from actors.access.workers import Workers


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class Line:
    """A queue, and the order in which callers got their turns."""

    def __init__(self, at_once: int = 1) -> None:
        self.queue = FairQueue(at_once)
        self.order: list[str] = []

    async def add(
        self,
        *names: str,
        rank: Callable[[str], LoginRank] = lambda _name: LoginRank.NEW,
        lane: Callable[[str], str] = itemgetter(0),
    ) -> list[asyncio.Task[None]]:
        """Begin to wait for turns, in lanes that are named by the first letter."""

        async def wait(name: str) -> None:
            await self.queue.enter(lane(name), lambda: rank(name))
            self.order.append(name)

        tasks = [asyncio.create_task(wait(name)) for name in names]
        await settle()
        return tasks

    async def end_turns(self, count: int) -> None:
        for _ in range(count):
            self.queue.leave()
            await settle()


async def test_lanes_are_served_in_rotation() -> None:
    line = Line()
    await line.add("a1", "a2", "a3", "a4", "b1", "c1", "c2")
    assert (line.order, line.queue.waiting) == (["a1"], 6)
    await line.end_turns(6)
    assert line.order == ["a1", "a2", "b1", "c1", "a3", "c2", "a4"]
    assert line.queue.waiting == 0


async def test_one_network_with_many_addresses_is_served_like_one_address() -> None:
    line = Line()
    many = [f"192.0.2.{number}" for number in range(1, 5)]
    several = ["2001:db8:7:1::1", "2001:db8:7:2::1", "2001:db8:7:3::1"]
    others = ["::ffff:198.51.100.9", "198.51.100.8", "fe80::1%eth0", ""]
    tasks = await line.add(*many, *several, *others, lane=str)
    tasks[2].cancel()  # 192.0.2.3
    tasks[5].cancel()  # 2001:db8:7:2::1
    await settle()
    assert line.queue.waiting == 8
    await line.end_turns(8)
    assert line.order == [
        "192.0.2.1",  # no caller waited
        "192.0.2.2",
        "2001:db8:7:1::1",
        "::ffff:198.51.100.9",
        "fe80::1%eth0",
        "",
        "192.0.2.4",
        "2001:db8:7:3::1",
        "198.51.100.8",
    ]
    assert not line.queue.waiting


async def test_so_many_have_a_turn_at_once() -> None:
    line = Line(3)
    await line.add("a1", "a2", "b1", "b2")
    assert line.order == ["a1", "a2", "b1"]
    await line.end_turns(4)
    more = await line.add("a5", "a6", "a7", "a8")
    assert line.order[3:] == ["b2", "a5", "a6", "a7"]
    assert not more[3].done()


async def test_one_that_leaves_the_line_loses_no_turn() -> None:
    line = Line()
    tasks = await line.add("a1", "a2", "a3", "b1")
    tasks[1].cancel()
    await settle()
    assert line.queue.waiting == 2
    line.queue.leave()
    # Its turn has come, and in the same moment it wants it no more.
    tasks[3].cancel()
    tasks[2].cancel()
    await settle()
    assert line.queue.waiting == 0
    await line.add("c1")
    assert line.order == ["a1", "c1"]


async def test_low_priority_work_waits_until_nothing_else_waits() -> None:
    line = Line()
    ranks = {"x1", "x2", "y1"}
    tasks = await line.add(
        *("a1", "x1", "x2", "y1", "b1", "b2"),
        rank=lambda name: LoginRank.SUSPECT if name in ranks else LoginRank.NEW,
    )
    tasks[3].cancel()
    await settle()
    assert line.queue.waiting == 4
    await line.end_turns(4)
    assert line.order == ["a1", "b1", "b2", "x1", "x2"]
    assert line.queue.waiting == 0


async def test_known_users_go_first_also_from_an_address_with_many_waiting() -> None:
    line = Line()
    ranks = [LoginRank.NEW, *[LoginRank.SUSPECT] * 3, LoginRank.NEW, LoginRank.KNOWN]
    await line.add(*(f"a{at}" for at in range(6)), rank=lambda name: ranks[int(name[1])])
    await line.end_turns(6)
    assert line.order == ["a0", "a5", "a4", "a1", "a2", "a3"]


async def test_one_that_turns_out_to_be_last_meanwhile_waits_for_others() -> None:
    line, suspects = Line(), set[str]()
    tasks = await line.add(
        *"abcd", rank=lambda name: LoginRank.SUSPECT if name in suspects else LoginRank.NEW
    )
    suspects.add("b")
    await line.end_turns(3)
    assert line.order == ["a", "c", "d", "b"]
    assert all(task.done() for task in tasks)


async def test_the_same_work_is_done_once() -> None:
    once: SingleFlight[int] = SingleFlight()
    begun, go = 0, asyncio.Event()

    async def work() -> int:
        nonlocal begun
        begun += 1
        await go.wait()
        return begun

    tasks = [asyncio.create_task(once.do(b"k", work)) for _ in range(50)]
    other = asyncio.create_task(once.do(b"other", work))
    await settle()
    tasks[0].cancel()
    await settle()
    go.set()
    assert await asyncio.gather(*tasks[1:]) == [2] * 49
    assert await other == 2
    assert await once.do(b"k", work) == 3


async def test_work_without_a_waiter_is_cancelled_and_can_be_restarted() -> None:
    once: SingleFlight[str] = SingleFlight()
    ends: list[str] = []

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("given up")
            raise
        return "never"

    async def quick() -> str:
        return "done"

    tasks = [asyncio.create_task(once.do(b"k", work)) for _ in range(3)]
    await settle()
    for task in tasks:
        task.cancel()
    again = asyncio.create_task(once.do(b"k", quick))
    assert await again == "done"
    assert ends == ["given up"]


async def test_an_error_reaches_all_waiters() -> None:
    once: SingleFlight[int] = SingleFlight()

    async def work() -> int:
        await asyncio.sleep(0)
        raise LookupError("broken")

    results = await asyncio.gather(*(once.do(b"k", work) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [LookupError] * 3


async def test_threads_are_few_and_end_with_the_last_work() -> None:
    workers = Workers(2)
    here, most, lock, go = 0, 0, threading.Lock(), threading.Event()
    both = threading.Event()

    def work(number: int) -> int:
        nonlocal here, most
        with lock:
            here += 1
            most = max(most, here)
            if here == 2:
                both.set()
        go.wait(30)
        with lock:
            here -= 1
        return number

    tasks = [asyncio.create_task(workers.run("a", work, number)) for number in range(6)]
    await settle()
    assert workers.waiting == 4
    workers.close()
    late = asyncio.create_task(workers.run("b", work, 6))
    await settle()
    assert await asyncio.to_thread(both.wait, 30)  # a thread may take its time to start
    go.set()
    assert await asyncio.gather(*tasks, late) == list(range(7))
    assert most == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("foldmq-auth") and here]


async def test_a_thread_with_cancelled_work_is_still_busy() -> None:
    workers = Workers(1)
    begun, go = threading.Semaphore(0), threading.Event()
    seen: list[str] = []

    def work(name: str) -> str:
        begun.release()
        go.wait(30)
        seen.append(name)
        return name

    first = asyncio.create_task(workers.run("a", work, "first"))
    await asyncio.to_thread(begun.acquire)
    waiting = [asyncio.create_task(workers.run("a", work, f"left {n}")) for n in range(20)]
    last = asyncio.create_task(workers.run("a", work, "last"))
    await settle()
    for task in (first, *waiting):
        task.cancel()
    await settle()
    assert workers.waiting == 1
    go.set()
    assert await last == "last"
    assert seen == ["first", "last"]
    workers.close()


async def test_work_that_fails_in_its_thread() -> None:
    workers = Workers(1)

    def work() -> None:
        raise LookupError("broken")

    for _ in range(3):
        with pytest.raises(LookupError, match="broken"):
            await workers.run("a", work)
    workers.close()
