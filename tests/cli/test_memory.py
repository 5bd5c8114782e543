import asyncio
import gc
import weakref

import pytest

from cli.common import memory
from cli.common.memory import GarbageCollector
from eventstore.reading.progress import few_collections


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_garbage_is_collected_while_the_number_of_objects_stays_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_LATEST", 0.01)
    turns = 0

    async def scenario() -> None:
        nonlocal turns
        task = asyncio.create_task(GarbageCollector(lambda: turns).collect_young())
        await asyncio.sleep(0.05)
        kept = weakref.ref(Cycle())
        await asyncio.sleep(0.1)
        assert kept() is not None  # there was no turn: nothing was done
        turns = 1
        for _ in range(500):
            await asyncio.sleep(0.01)
            if kept() is None:
                break
        assert kept() is None
        task.cancel()

    gc.disable()  # else Python begins collections of its own
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_collections_that_take_long_come_sooner() -> None:
    assert memory._next_pause(0.2, 0.040) == pytest.approx(0.02)
    assert memory._next_pause(0.2, 0.008) == pytest.approx(0.1)
    assert memory._next_pause(0.02, 1.0) == memory._SOONEST
    assert memory._next_pause(0.1, 0.003) == 0.1
    assert memory._next_pause(0.1, 0.001) == pytest.approx(0.15)
    assert memory._next_pause(0.2, 0.0) == memory._LATEST


@pytest.mark.parametrize("many", [False, True])
def test_an_idle_broker_collects_all_or_freezes_the_rest(
    monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(memory, "trim", lambda: done.append("trim"))
    collector = GarbageCollector(lambda: 7)
    collector._spent = 1.0 if many else 0.0
    sleep = asyncio.sleep

    async def scenario() -> None:
        monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
        task = asyncio.create_task(collector.collect_when_idle())
        while done.count("trim") < 2:
            await sleep(0.001)
        task.cancel()

    asyncio.run(scenario())
    assert done[:3] == ["freeze" if many else "collect", "trim", "collect"]


def test_garbage_is_collected_seldom_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    if before[0] > 10_000:  # by a test before
        gc.set_threshold(700, *before[1:])
        before = gc.get_threshold()
    with few_collections():
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0] > 0
    assert gc.get_threshold() == before


def test_garbage_is_collected_as_before_after_a_failure() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), few_collections():
        raise ValueError("x")
    assert gc.get_threshold() == before
