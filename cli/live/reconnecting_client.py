"""A connection to a running broker that is opened on demand and reopened when lost."""

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
    """The broker sent an unexpected reply."""


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise NotUnderstood if a reply lacks an expected field."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise NotUnderstood(
            "the broker sent a reply that this foldmq does not understand: check that both have "
            f"the same version ({type(error).__name__}: {escaped(str(error))})"
        ) from error


@dataclass(frozen=True, slots=True)
class OpenBroker:
    """A client of a broker, valid until its stack is closed."""

    stack: contextlib.AsyncExitStack
    broker: LiveBroker


class ReconnectingClient:
    """Sends requests to a broker that may restart, even on another port."""

    def __init__(
        self,
        find: Callable[[], AbstractAsyncContextManager[LiveBroker]],
        *,
        answer_seconds: float | None = None,
        retry_seconds: float = 0.0,
    ) -> None:
        """``find`` searches for the broker, as ``open_broker`` does.

        The connection is closed if a reply takes longer than ``answer_seconds``, including the
        search. After a failure there is no new search for ``retry_seconds``.
        """
        self.epoch = 0
        """Number of times the connection was opened."""
        self.node = ""
        self.where = ""
        """The location of the broker as text; empty before it was found."""
        self._find = find
        self._answer_seconds = answer_seconds
        self._retry_seconds = retry_seconds
        self._opened: OpenBroker | None = None
        self._opening = asyncio.Lock()
        self._failed: tuple[float, str] | None = None

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the broker's reply.

        Raises Refused with the broker's message, NoLiveBroker if it is not found or does not
        answer; the next request then searches for it again.
        """
        held: OpenBroker | None = None
        try:
            async with asyncio.timeout(self._answer_seconds):
                held = await self._connected()
                return await held.broker.ask(endpoint, **request)
        except Refused:
            raise
        except TimeoutError:
            why = "no reply in time"
        except NoLiveBroker as error:
            why = str(error)
        await self._drop(held, why)
        raise NoLiveBroker(why)

    async def open(self) -> LiveBroker:
        """Return the broker, after a search if needed; raises NoLiveBroker."""
        return (await self._connected()).broker

    async def _connected(self) -> OpenBroker:
        async with self._opening:
            if self._opened is not None and not self._opened.broker.connected:
                # nats-py would retry a port that a restarted broker may no longer use.
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
        raise AssertionError  # the stack re-raises every exception

    async def _drop(self, held: OpenBroker | None, why: str) -> None:
        """Close a connection unless it was already replaced."""
        if held is not None and self._opened is held:
            self._opened = None
            self._fails(why)
            with contextlib.suppress(FoldmqError, OSError):
                await held.stack.aclose()

    def _fails(self, why: str) -> None:
        self._failed = (time.monotonic() + self._retry_seconds, why)
