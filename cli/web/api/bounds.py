"""The bounds on requests: rates and streams of each token, and dear operations at the same time."""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from actors.limits.token_bucket import Buckets
from cli.web.api.operation import Item, StreamMark
from cli.web.api.problem_types import TooDear, TooManyRequests, TooManyStreams

RATE: Final = 20.0
"""Requests per second of a token."""
BURST: Final = 100.0
DEAR_AT_ONCE: Final = 2
DEAR_QUEUE: Final = 16
DEAR_SECONDS: Final = 10.0
"""Seconds that a dear request may take, with its wait."""
_TURN_SECONDS, _TURN_ITEMS = 0.05, 64
"""After which a stream that reads much of the log lets others read."""
STREAMS: Final = 64
STREAMS_OF_TOKEN: Final = 8


class RequestBounds:
    """What is in use; ``clock`` returns monotonic seconds. Tokens are named by their marks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates = Buckets(RATE, BURST, 10_000)
        self._dear = asyncio.Semaphore(DEAR_AT_ONCE)
        self._waiting = 0
        self._streams = Counter[str]()

    def take(self, mark: str) -> None:
        """Count a request; raises TooManyRequests."""
        now = self._clock()
        self._rates.forget_full(now)
        if not self._rates.allows(mark, now):
            raise TooManyRequests(
                f"a token may send {RATE:.0f} requests per second, and {BURST:.0f} at once"
            )
        self._rates.take(mark, 1, now)

    @contextlib.contextmanager
    def stream(self, mark: str) -> Iterator[None]:
        """Count an open stream; raises TooManyStreams."""
        if self._streams[mark] >= STREAMS_OF_TOKEN:
            raise TooManyStreams(f"a token may have {STREAMS_OF_TOKEN} streams")
        if self._streams.total() >= STREAMS:
            raise TooManyStreams(f"{STREAMS} streams are open, which is the maximum")
        self._streams[mark] += 1
        try:
            yield
        finally:
            self._streams[mark] -= 1
            if not self._streams[mark]:
                del self._streams[mark]

    @contextlib.asynccontextmanager
    async def dear(self, command: str) -> AsyncIterator[None]:
        """Wait until a dear operation may run; raises TooDear, also if it then takes too long.

        ``command`` has no such bound.
        """
        if self._waiting >= DEAR_QUEUE:
            raise TooDear("too many requests that read much of the log wait", command=command)
        deadline = asyncio.get_running_loop().time() + DEAR_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                self._waiting += 1
                try:
                    await self._dear.acquire()
                finally:
                    self._waiting -= 1
                try:
                    yield
                finally:
                    self._dear.release()
        except TimeoutError:
            sentence = f"the answer takes more than {math.ceil(DEAR_SECONDS)} s: ask for less"
            raise TooDear(sentence, command=command) from None

    async def in_turns(
        self, entries: AsyncIterator[Item | StreamMark]
    ) -> AsyncIterator[Item | StreamMark]:
        """Yield the entries of a dear list, which is read on only while it has a turn.

        What follows when all that there was has been given is not dear.
        """
        live = ended = False
        error: Exception | None = None
        while not (live or ended):
            batch: list[Item | StreamMark] = []
            async with self._dear:
                until = self._clock() + _TURN_SECONDS
                while not (live or ended) and len(batch) < _TURN_ITEMS and self._clock() < until:
                    try:
                        entry = await anext(entries, None)
                    except Exception as problem:  # noqa: BLE001 - what came before it is sent
                        entry, error = None, problem
                    ended = entry is None
                    if entry is not None:
                        batch.append(entry)
                        live = isinstance(entry, StreamMark) and entry.event == "live"
            for each in batch:
                yield each
        if error is not None:
            raise error
        async for each in entries:
            yield each
