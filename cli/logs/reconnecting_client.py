"""A connection to running brokers that is opened on demand and reopened when lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from cli.logs.broker_client import LiveBroker, NoDirectory, NoLiveBroker, Refused
from cli.logs.log_brokers import LogBrokers
from eventstore.display import escaped
from protocol.errors import FoldmqError

_LATE_SECONDS = 1.0
"""Seconds to wait for a broker that did not answer before, while others do."""


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
class OpenBrokers:
    """Clients of brokers, valid until their stack is closed."""

    stack: contextlib.AsyncExitStack
    brokers: LogBrokers


class ReconnectingClient:
    """Sends requests to a broker that may restart, even on another port.

    Or to the brokers of several logs: those that answer are heard while others do not.
    """

    def __init__(
        self,
        find: Callable[[], AbstractAsyncContextManager[LogBrokers]],
        *,
        answer_seconds: float | None = None,
        retry_seconds: float = 0.0,
    ) -> None:
        """``find`` searches for the brokers, as ``open_brokers`` does.

        The connection is closed if a reply takes longer than ``answer_seconds``, including the
        search. After a failure there is no new search for ``retry_seconds``.
        """
        self.epoch = 0
        """Number of times the connection was opened."""
        self.node = ""
        self.where = ""
        """The location of the broker as text; empty before it was found."""
        self.polled: LogBrokers | None = None
        """The brokers of the last poll, with those that did not answer; None before."""
        self._find = find
        self._answer_seconds = answer_seconds
        self._retry_seconds = retry_seconds
        self._opened: OpenBrokers | None = None
        self._opening = asyncio.Lock()
        self._failed: tuple[float, str] | None = None

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the only broker's reply.

        Raises Refused with the broker's message, NoLiveBroker if it is not found or does not
        answer; the next request then searches for it again.
        """
        return await self.ask_of(lambda brokers: brokers.of_log(""), endpoint, **request)

    async def ask_of(
        self, choose: Callable[[LogBrokers], LiveBroker], endpoint: str, /, **request: Any
    ) -> dict[str, Any]:
        """Return the reply of one of the brokers; raises as :meth:`ask`, and what ``choose`` does.

        Where there are several, the others may still answer: there is no new search.
        """
        held: OpenBrokers | None = None
        try:
            async with asyncio.timeout(self._answer_seconds):
                held = await self._connected()
                return await choose(held.brokers).ask(endpoint, **request)
        except (Refused, NoDirectory):
            raise
        except TimeoutError:
            why = "no reply in time"
        except NoLiveBroker as error:
            why = str(error)
        if held is not None and not held.brokers.several:
            await self._drop(held, why)
        raise NoLiveBroker(why)

    async def poll(self, endpoint: str, /, **request: Any) -> list[tuple[LiveBroker, Any]]:
        """Return the replies of all brokers that answer, in the order of the logs.

        Raises as :meth:`ask` if none answers. One that did not answer the last poll delays this one
        by a second at most.
        """
        return await self._each(endpoint, request, again=True)

    async def each(self, endpoint: str, /, **request: Any) -> list[tuple[LiveBroker, Any]]:
        """Return the replies of the brokers that answered the last poll; raises as :meth:`poll`."""
        return await self._each(endpoint, request, again=False)

    async def _each(
        self, endpoint: str, request: dict[str, Any], *, again: bool
    ) -> list[tuple[LiveBroker, Any]]:
        try:
            async with asyncio.timeout(self._answer_seconds):
                held = await self._connected()
        except TimeoutError:
            raise NoLiveBroker("no reply in time") from None
        late = dict(self.polled.absent) if self.polled is not None else {}
        brokers = held.brokers.refreshed() if again or self.polled is None else self.polled

        async def ask(broker: LiveBroker) -> dict[str, Any]:
            return await self._reply(broker, endpoint, request, late=broker.node in late)

        try:
            answers = await brokers.each(ask)
        except NoLiveBroker as error:
            await self._drop(held, str(error))
            raise
        self.polled = brokers
        return answers

    async def _reply(
        self, broker: LiveBroker, endpoint: str, request: dict[str, Any], *, late: bool
    ) -> dict[str, Any]:
        """Return the reply of a broker; ``late``: it did not answer before, and others are there.

        Raises as ``LiveBroker.ask``.
        """
        seconds = self._answer_seconds
        if late:
            seconds = _LATE_SECONDS if seconds is None else min(seconds, _LATE_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                return await broker.ask(endpoint, **request)
        except TimeoutError:
            raise NoLiveBroker("no reply in time") from None

    async def open(self) -> LogBrokers:
        """Return the brokers, after a search if needed; raises NoLiveBroker."""
        return (await self._connected()).brokers.refreshed()

    async def _connected(self) -> OpenBrokers:
        async with self._opening:
            if self._opened is not None and not self._opened.brokers.connected:
                # nats-py would retry a port that a restarted broker may no longer use.
                await self._drop(self._opened, "the connection to NATS was lost")
            if self._opened is None:
                if self._failed is not None and time.monotonic() < self._failed[0]:
                    raise NoLiveBroker(self._failed[1])
                self._opened = await self._found()
                self.epoch += 1
                self.node = self._opened.brokers.owner
                self.where = self._opened.brokers.where
                self.polled = None
                self._failed = None
            return self._opened

    async def close(self) -> None:
        """Close the connection."""
        await self._drop(self._opened, "the connection was closed")

    async def _found(self) -> OpenBrokers:
        async with contextlib.AsyncExitStack() as stack:
            try:
                brokers = await stack.enter_async_context(self._find())
            except FoldmqError as error:
                self._fails(str(error))
                if isinstance(error, NoDirectory):
                    raise
                raise NoLiveBroker(str(error)) from None
            return OpenBrokers(stack.pop_all(), brokers)
        raise AssertionError  # the stack re-raises every exception

    async def _drop(self, held: OpenBrokers | None, why: str) -> None:
        """Close a connection unless it was already replaced."""
        if held is not None and self._opened is held:
            self._opened = None
            self._fails(why)
            with contextlib.suppress(FoldmqError, OSError):
                await held.stack.aclose()

    def _fails(self, why: str) -> None:
        self._failed = (time.monotonic() + self._retry_seconds, why)
