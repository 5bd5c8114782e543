"""The web page's connection to the broker and its log."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import nats.errors

from cli.live import (
    NoLiveBroker,
    ReconnectingClient,
    TooLarge,
    open_broker,
    open_brokers,
    open_trace,
)
from cli.logsource import index_directory
from eventstore.errors import NatsUnavailable
from eventstore.nats import check_jetstream
from eventstore.reading import open_log, with_index

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from cli.live import LiveBroker, LiveTrace, LogBrokers, OpenBrokers
    from cli.logsource import SourceFlags
    from eventstore.reading import LogSource

_LOOK_SECONDS = 10.0
"""Seconds between searches for more of the index."""
_NEW_RECORDS = 512
"""Number of unindexed records from which a search for more of the index is worthwhile."""
_RETRY_SECONDS = 1.0
"""Seconds between searches for an unreachable broker."""


class WebLogClient(ReconnectingClient):
    """A connection shared by all pages."""

    def __init__(self, flags: SourceFlags) -> None:
        super().__init__(lambda: _only_broker(flags), retry_seconds=_RETRY_SECONDS)
        self._flags = flags
        self._source: tuple[LiveBroker, LogSource] | None = None
        self._look_again = 0.0

    async def ask_less(
        self,
        endpoint: str,
        counts: Sequence[int],
        request: Callable[[int], dict[str, Any]],
    ) -> tuple[dict[str, Any], int]:
        """Request many items at once, or fewer if their names are too long.

        ``request`` builds the request for one of the ``counts``, which decrease. Returns the reply,
        and the count that fitted. Raises as ``ask`` does.
        """
        for count in counts[:-1]:
            with contextlib.suppress(TooLarge):
                return await self.ask(endpoint, **request(count)), count
        return await self.ask(endpoint, **request(counts[-1])), counts[-1]

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[LogSource]:
        """Yield the current log.

        Raises NoLiveBroker if NATS does not answer, here or while the log is read, and as
        ``eventstore.reading.open_log``.
        """
        held = await self._connected()
        try:
            yield await self._as_of_now(held)
        except NatsUnavailable as error:
            await self._drop(held, str(error))
            raise NoLiveBroker(str(error)) from None
        except nats.errors.Error:  # the connection closed during the read
            raise NoLiveBroker("the connection to NATS was lost") from None

    @contextlib.asynccontextmanager
    async def trace(self, **wanted: Any) -> AsyncIterator[LiveTrace]:
        """Run a trace over a connection of its own.

        Raises as ``open_broker`` and ``open_trace``.
        """
        async with open_broker(self._flags) as broker, open_trace(broker, **wanted) as trace:
            yield trace

    async def _as_of_now(self, held: OpenBrokers) -> LogSource:
        broker = _only(held.brokers)
        if self._source is not None and self._source[0] is broker:
            source = self._source[1]
            first, last = await source.bounds()
            if first == source.first:
                source = replace(source, last=last)
                if last - _indexed(source) > _NEW_RECORDS and time.monotonic() > self._look_again:
                    source = await self._with_index(source)
                    self._source = broker, source
                return source
        else:
            await check_jetstream(broker.client)
        source = await open_log(broker.client, f"FOLDMQ_LOG_{broker.node}", broker.where)
        source = await self._with_index(source)
        self._source = broker, source
        return source

    async def _with_index(self, source: LogSource) -> LogSource:
        """Return the log with its current index; its files are closed when nothing reads them."""
        self._look_again = time.monotonic() + _LOOK_SECONDS
        return await with_index(source, index_directory(self._flags, source.stream).path)


@contextlib.asynccontextmanager
async def _only_broker(flags: SourceFlags) -> AsyncIterator[LogBrokers]:
    async with open_brokers(flags) as brokers:
        _only(brokers)
        yield brokers


def _only(brokers: LogBrokers) -> LiveBroker:
    return brokers.only("the page shows the broker")


def _indexed(source: LogSource) -> int:
    return source.index.last if source.index is not None else 0
