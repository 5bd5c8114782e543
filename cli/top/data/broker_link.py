"""The connection to a broker: opened again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from cli.common.text import escaped
from cli.live.broker_client import NoLiveBroker, Refused
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from cli.live.broker_client import LiveBroker

ANSWER_SECONDS = 4.0
"""How long an answer may take until the broker counts as away."""


class NotUnderstood(NoLiveBroker):
    """The broker answers, but not what is expected."""


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise NotUnderstood when an answer has not what it should have."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise NotUnderstood(
            "the broker answers what this foldmq does not understand: is it of another version? "
            f"({type(error).__name__}: {escaped(str(error))})"
        ) from error


class Link:
    """Asks a broker, which may go away and come back, on another port as well.

    ``find`` looks for it, as ``open_broker`` does.
    """

    def __init__(self, find: Callable[[], AbstractAsyncContextManager[LiveBroker]]) -> None:
        self._find = find
        self._open = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._broker: LiveBroker | None = None
        self.where = ""

    async def open(self) -> LiveBroker:
        """Return the broker, looking for it if need be; raises what ``find`` raises."""
        async with self._opening:
            if self._broker is None:
                self._broker = await self._open.enter_async_context(self._find())
                self.where = self._broker.where
            return self._broker

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the broker's answer.

        Raises Refused with its sentence when it refuses, NoLiveBroker when it does not answer or
        is not found; the next question then looks for it anew.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                broker = await self.open()
                return await broker.ask(endpoint, **request)
        except Refused:
            raise
        except TimeoutError:
            await self.close()
            raise NoLiveBroker("no answer in time") from None
        except FoldmqError as error:
            await self.close()
            raise NoLiveBroker(str(error)) from None

    async def close(self) -> None:
        """Close the connection."""
        self._broker = None
        with contextlib.suppress(FoldmqError, OSError):
            await self._open.aclose()
