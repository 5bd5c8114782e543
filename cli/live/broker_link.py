"""A lasting connection to a running broker: opened when it is needed, again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.common import escaped
from cli.live.broker_client import NoLiveBroker, Refused
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from cli.live.broker_client import LiveBroker


class NotUnderstood(NoLiveBroker):
    """The broker answers, but not what is expected."""


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise NotUnderstood when an answer lacks what it should have."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise NotUnderstood(
            "the broker answers what this foldmq does not understand: is it of another version? "
            f"({type(error).__name__}: {escaped(str(error))})"
        ) from error


@dataclass(frozen=True, slots=True)
class OpenBroker:
    """A broker that was found, until its stack is closed."""

    stack: contextlib.AsyncExitStack
    broker: LiveBroker


class BrokerLink:
    """Asks a broker that may go away and come back, on another port as well."""

    def __init__(
        self,
        find: Callable[[], AbstractAsyncContextManager[LiveBroker]],
        *,
        answer_seconds: float | None = None,
        retry_seconds: float = 0.0,
    ) -> None:
        """``find`` looks for the broker, as ``open_broker`` does.

        The connection is closed when an answer takes longer than ``answer_seconds``, finding the
        broker included. A broker that was away is not looked for within ``retry_seconds``.
        """
        self.epoch = 0
        """How often the connection was opened."""
        self.node = ""
        self.where = ""
        """The place of the broker, for messages; empty before it was found."""
        self._find = find
        self._answer_seconds = answer_seconds
        self._retry_seconds = retry_seconds
        self._opened: OpenBroker | None = None
        self._opening = asyncio.Lock()
        self._failed: tuple[float, str] | None = None

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the broker's answer.

        Raises Refused with the broker's message when it refuses, NoLiveBroker when it is not found
        or does not answer; the next question then looks for it again.
        """
        held: OpenBroker | None = None
        try:
            async with asyncio.timeout(self._answer_seconds):
                held = await self._connected()
                return await held.broker.ask(endpoint, **request)
        except Refused:
            raise
        except TimeoutError:
            why = "no answer in time"
        except NoLiveBroker as error:
            why = str(error)
        await self._drop(held, why)
        raise NoLiveBroker(why)

    async def open(self) -> LiveBroker:
        """Return the broker, finding it if need be; raises NoLiveBroker."""
        return (await self._connected()).broker

    async def _connected(self) -> OpenBroker:
        async with self._opening:
            if self._opened is not None and not self._opened.broker.connected:
                # nats-py would go on dialing a port that a restarted broker may have left.
                await self._drop(self._opened, "the connection to NATS was lost")
            if self._opened is None:
                if self._failed is not None and time.monotonic() < self._failed[0]:
                    raise NoLiveBroker(self._failed[1])
                self._opened = await self._found()
                self.epoch += 1
                self.node = self._opened.broker.node
                self.where = self._opened.broker.where
                self._failed = None
            return self._opened

    async def close(self) -> None:
        """Close the connection."""
        await self._drop(self._opened, "the connection was closed")

    async def _found(self) -> OpenBroker:
        async with contextlib.AsyncExitStack() as stack:
            try:
                broker = await stack.enter_async_context(self._find())
            except FoldmqError as error:
                self._fails(str(error))
                raise NoLiveBroker(str(error)) from None
            return OpenBroker(stack.pop_all(), broker)
        raise AssertionError  # the stack passes every exception on

    async def _drop(self, held: OpenBroker | None, why: str) -> None:
        """Close a connection unless it was replaced already."""
        if held is not None and self._opened is held:
            self._opened = None
            self._fails(why)
            with contextlib.suppress(FoldmqError, OSError):
                await held.stack.aclose()

    def _fails(self, why: str) -> None:
        self._failed = (time.monotonic() + self._retry_seconds, why)
