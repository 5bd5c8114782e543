"""The web page's connection to the broker and its log, or to those of several logs."""

import contextlib
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import nats.errors

from cli.logs.broker_client import LiveBroker, NoLiveBroker
from cli.logs.broker_search import open_brokers
from cli.logs.key_files import store_key
from cli.logs.log_brokers import log_of_session
from cli.logs.logs import Logs
from cli.logs.reconnecting_client import OpenBrokers, ReconnectingClient
from cli.logs.source import index_path
from cli.logs.source_flags import SourceFlags
from cli.logs.trace_client import LiveTrace, LogTraces, open_traces
from cli.settings.log_settings import load_log_settings
from cli.top.watched_broker import fewer, highest
from eventstore.display import name as shown_name
from eventstore.errors import NatsUnavailable, UsageError
from eventstore.nats.jetstream import check_jetstream
from eventstore.reading.indexed_reading import with_index
from eventstore.reading.log_source import LogSource, open_log

_LOOK_SECONDS: Final = 10.0
"""Seconds between searches for more of the index."""
_NEW_RECORDS: Final = 512
"""Number of unindexed records from which a search for more of the index is worthwhile."""
_RETRY_SECONDS: Final = 1.0
"""Seconds between searches for an unreachable broker."""
_RECENT_SECONDS: Final = 5.0
"""Seconds for which a page leaves out a broker that does not answer, and says so."""
_PASSED_OVER_SECONDS: Final = 30.0
"""Seconds for which others are asked instead of a broker that did not answer."""


class _OpenLog:
    """An open log, and when to search for more of its index."""

    def __init__(self, broker: LiveBroker, source: LogSource) -> None:
        self.broker = broker
        self.source = source
        self.look_again = 0.0


class WebLogClient(ReconnectingClient):
    """A connection shared by all pages.

    Where there are several logs, requests name one of them, or are about all. The name of a single
    log is empty.
    """

    def __init__(self, flags: SourceFlags) -> None:
        self.flags = replace(flags, verbose=False)
        super().__init__(lambda: open_brokers(self.flags), retry_seconds=_RETRY_SECONDS)
        self._sources: dict[str, _OpenLog] = {}
        self._polled_at = -math.inf
        self._failing: dict[str, float] = {}
        """When brokers did not answer while others did, by node; in monotonic seconds."""
        self._logs: list[str] = []

    @property
    def names(self) -> list[str]:
        """The names of the logs, as far as they were found; none if there is a single one."""
        if self._opened is not None:
            brokers = self._opened.brokers
            self._logs = brokers.nodes if brokers.several else []
        return self._logs

    @property
    def absent(self) -> list[str]:
        """The logs whose brokers did not answer a moment ago, while others did."""
        return self._failed_within(_RECENT_SECONDS)

    def _failed_within(self, seconds: float) -> list[str]:
        since = time.monotonic() - seconds
        return [node for node in self.names if self._failing.get(node, -math.inf) > since]

    async def logs(self) -> list[str]:
        """Return the names of the logs, one empty name for a single log; raises NoLiveBroker."""
        await self.open()
        return self.names or [""]

    async def log_of(self, client: str, log: str | None = None) -> str:
        """Return the log that has a session: ``log``, or the one that it belongs to.

        Raises NoLiveBroker, also if there is no such log, and UsageError for a session that belongs
        to no log, such as one that stands for another log.
        """
        brokers = await self.open()
        if not brokers.several:
            return ""
        if log:
            return brokers.of_log(log).node
        if log_of_session(brokers.logs, client) is None:
            raise UsageError(
                f"{shown_name(client)} may be in any log: the URL lacks the name of the log"
            )
        return brokers.of_session(client).node

    async def check_log(self, log: str | None) -> str:
        """Return the name of a log if there is such a one, else an empty name."""
        return log if log in await self.logs() and log is not None else ""

    async def ask_log(self, log: str, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the reply of the broker of a log; raises as ``ask``."""
        return await self.ask_of(lambda brokers: brokers.of_log(log), endpoint, **request)

    async def ask_each(self, endpoint: str, /, **request: Any) -> list[tuple[str, dict[str, Any]]]:
        """Return the replies of all brokers that answer, with the names of their logs.

        Rows name their ``log``. Raises as ``poll``.
        """
        recent = time.monotonic() - self._polled_at < _RECENT_SECONDS
        # A broker that just failed to answer is asked again only by the next poll.
        answers = await (self.each if recent else self.poll)(endpoint, **request)
        brokers = self.polled or await self.open()
        return [_labelled(brokers.name_of(broker), answer) for broker, answer in answers]

    async def ask_any(self, endpoint: str, /, **request: Any) -> tuple[str, dict[str, Any]]:
        """Return the reply of the first broker that answers, about what every log has.

        Its rows name their ``log``. Raises as ``ask``.
        """
        brokers = await self.open()
        if not brokers.several:
            return _labelled("", await self.ask(endpoint, **request))
        late = self._failed_within(_PASSED_OVER_SECONDS)
        for node in late if len(late) < len(brokers.nodes) else ():
            brokers.absent[node] = NoLiveBroker(f"the broker of node {node} does not answer")

        async def ask(broker: LiveBroker) -> tuple[str, dict[str, Any]]:
            late = broker.node in self._failing
            try:
                answer = await self._reply(broker, endpoint, request, late=late)
            except NoLiveBroker:
                self._failing[broker.node] = time.monotonic()
                raise
            self._failing.pop(broker.node, None)
            return _labelled(broker.node, answer)

        return await brokers.any(ask)

    async def ask_less(
        self,
        endpoint: str,
        counts: Sequence[int],
        request: Callable[[int], dict[str, Any]],
        log: str = "",
    ) -> tuple[dict[str, Any], int]:
        """Request many items of a log at once, or fewer if their names are too long.

        ``request`` builds the request for one of the ``counts``, which decrease. Returns the reply,
        and the count that fitted. Raises as ``ask`` does.
        """
        answer, (count, *_) = await fewer(
            counts, lambda count: self.ask_log(log, endpoint, **request(count))
        )
        return answer, count

    async def ask_highest(
        self, endpoint: str, counts: Sequence[int], by: str, selection: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
        """Request the rows with the highest values of a figure, of all logs that answer.

        Returns as many as fit into a reply, and the replies. Raises as ``poll``.
        """
        answers, (count, *_) = await fewer(
            counts,
            lambda count: self.ask_each(endpoint, **selection, top={"by": by, "count": count}),
        )
        return highest([answer["rows"] for _, answer in answers], by, count), answers

    async def _each(
        self, endpoint: str, request: dict[str, Any], *, again: bool
    ) -> list[tuple[LiveBroker, Any]]:
        answers = await super()._each(endpoint, request, again=again)
        if again:
            self._polled_at = time.monotonic()
        for broker, _ in answers:
            self._failing.pop(broker.node, None)
        for node in self.polled.absent if self.polled is not None else ():
            self._failing[node] = time.monotonic()
        return answers

    @contextlib.asynccontextmanager
    async def log(self, log: str = "") -> AsyncIterator[LogSource]:
        """Yield the current log, or that of a name.

        Raises NoLiveBroker if NATS does not answer, here or while the log is read, UsageError if
        there are several and none is named, and as ``eventstore.reading.log_source.open_log``.
        """
        held = await self._connected()
        try:
            yield await self._as_of_now(held, log)
        except NatsUnavailable as error:
            await self._drop(held, str(error))
            raise NoLiveBroker(str(error)) from None
        except nats.errors.Error:  # the connection closed during the read
            raise NoLiveBroker("the connection to NATS was lost") from None

    @contextlib.asynccontextmanager
    async def sources(self, log: str = "") -> AsyncIterator[Logs]:
        """Yield the log of a name, or without one all of them, by name; raises as :meth:`log`."""
        logs = Logs([log] if log else await self.logs())
        async with contextlib.AsyncExitStack() as stack:
            for name in logs.names:
                logs[name] = await stack.enter_async_context(self.log(name))
            yield logs

    @contextlib.asynccontextmanager
    async def trace(self, **selection: Any) -> AsyncIterator[LiveTrace | LogTraces]:
        """Run a trace, of a topic in all logs, over a connection of its own.

        Raises as ``open_brokers`` and ``open_traces``.
        """
        async with open_brokers(self.flags) as brokers, open_traces(brokers, **selection) as trace:
            yield trace

    async def _as_of_now(self, held: OpenBrokers, log: str) -> LogSource:
        broker = held.brokers.of_log(log)
        opened = self._sources.get(log)
        if opened is not None and opened.broker is broker:
            source = opened.source
            first, last = await source.bounds()
            if first == source.first:
                source = replace(source, last=last)
                if last - source.index.last > _NEW_RECORDS and time.monotonic() > opened.look_again:
                    source = await self._with_index(opened, source)
                return source
        else:
            await check_jetstream(broker.client)
        source = await open_log(broker.client, f"FOLDMQ_LOG_{broker.node}", broker.where)
        opened = self._sources[log] = _OpenLog(broker, source)
        return await self._with_index(opened, source)

    async def _with_index(self, opened: _OpenLog, source: LogSource) -> LogSource:
        """Return the log with its current index; its files are closed when nothing reads them."""
        opened.look_again = time.monotonic() + _LOOK_SECONDS
        settings = load_log_settings(self.flags.settings, os.environ, self.flags.config)
        source = replace(source, key=store_key(settings.encryption_key_file))
        opened.source = await with_index(source, index_path(settings.data_dir, source.stream))
        return opened.source


def _labelled(log: str, answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    for row in answer.get("rows", ()):
        row["log"] = log
    return log, answer
