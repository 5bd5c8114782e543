"""Virtual time: an event loop that never waits, and the measures that make runs reproducible."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from actors.kernel import actor as actor_module
from actors.kernel.actor import LoopActor

T = TypeVar("T")
EPOCH_MS = 1_800_000_000_000


class _NoTime(selectors.SelectSelector):
    """Waits for nothing: time passes at once."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or self.loop.now > self.loop.limit:
            raise RuntimeError("the simulation waits for something that can never happen")
        if timeout > 0:
            self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next deadline instead of waiting for it."""

    limit = 10_000_000.0
    """Seconds of virtual time that no scenario needs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls = 0
        selector = _NoTime()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run calls that are due at the same time in the order of their scheduling."""
        self._calls += 1
        return super().call_at(when + self._calls * 1e-12, callback, *args, context=context)


class SimClock:
    """The loop's time, as the broker sees it; its time of day can be set."""

    def __init__(self) -> None:
        self.set_ms = 0
        """By how much the time of day was set forward."""

    def time_ms(self) -> int:
        return self.steady_ms() + self.set_ms

    def steady_ms(self) -> int:
        return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)

    elapsed_ms = steady_ms

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    stopwatch = processor = monotonic


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
    """Let sets of actors have an order that does not depend on where they lie in memory."""
    serial = actor_module._serial
    actor_module._serial = itertools.count(1)
    LoopActor.__hash__ = _serial_of  # type: ignore[method-assign]
    try:
        yield
    finally:
        del LoopActor.__hash__
        actor_module._serial = serial


def _serial_of(actor: LoopActor) -> int:
    return actor._serial


def simulate(scenario: Callable[[], Awaitable[T]], loop: type[VirtualLoop] = VirtualLoop) -> T:
    """Run a scenario in virtual time; an exception in a callback or a task fails it."""
    problems: list[dict[str, Any]] = []

    async def run() -> T:
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: problems.append(context)
        )
        return await scenario()

    with _in_order(), asyncio.Runner(loop_factory=loop) as runner:
        result = runner.run(run())
    assert not problems, problems
    return result
