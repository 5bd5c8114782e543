"""The neighbours of a stage while it is fuzzed, and an event loop that does not run."""

import asyncio
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable
from typing import Any, Self


class Turns:
    """An event loop as far as stages need one; its time stands still."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def __enter__(self) -> Self:
        _set_running_loop(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        _set_running_loop(None)

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._ready.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object]) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(delay, callback, (), self)  # type: ignore[arg-type]

    def time(self) -> float:
        return 1000.0

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: object) -> None: ...

    def run(self) -> None:
        """Run all that is to be run soon, and what follows from it."""
        for _ in range(100_000):
            if not self._ready:
                return
            callback, args = self._ready.popleft()
            callback(*args)
        raise AssertionError("it does not come to rest")


class Lower(asyncio.Transport):
    """A socket that takes note."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        assert not self.closed, "something is written behind the end"
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default


class Upper(asyncio.Protocol):
    """A connection that takes note."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        assert data
        assert not self.lost
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
