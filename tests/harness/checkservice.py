"""An auth callout service that answers as a test determines."""

import asyncio
from typing import Any

import orjson

NOW_MS = 1_700_000_000_000


class Clock:
    ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


class Service:
    """Answers with the next answer in line, the last of them for ever."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.now = self.most = 0
        self.asked, self.given_up = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def ask(self, request: bytes, seconds: float) -> bytes:
        assert 0 < seconds <= 2
        self.requests.append(orjson.loads(request))
        self.now += 1
        self.asked.set()
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        finally:
            self.now -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True
