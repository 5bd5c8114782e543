"""The sink ``otlp``: spans of messages to a collector, OTLP over HTTP in JSON."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson
import structlog

from eventstore.display import escaped
from eventstore.format.positions import sequence_of
from outbox.log_reader import CursorLost, DueMessages, portion_of
from outbox.sinks.http import HttpSink
from outbox.sinks.span_json import attribute
from outbox.sinks.spans import SpanFold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from eventstore.reading.log_source import LogSource
    from outbox.log_reader import DurableEnd, LogPortion
    from outbox.selection import Selection
    from outbox.sink import OutboxMessage
    from outbox.sinks.http import HttpOptions
    from outbox.sinks.spans import SpanOptions

_log = structlog.get_logger("foldmq")

_TRACES: Final = "/v1/traces"
MAX_POSITION: Final = (1 << 63) - 1
_ANSWER: Final = 64 * 1024


class OtlpSink(HttpSink):
    """Posts batches of spans to a collector."""

    def __init__(self, options: HttpOptions) -> None:
        """``options.url`` is the address of the collector, without the path of traces."""
        super().__init__(replace(options, url=options.url.rstrip("/") + _TRACES))

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Post a batch; returns when the collector has answered with success."""
        resource = {"service.name": "foldmq", "service.instance.id": self._log}
        head = orjson.dumps(
            {
                "resource": {"attributes": [attribute(*each) for each in resource.items()]},
                "scopeSpans": [{"scope": {"name": "foldmq"}, "spans": []}],
            }
        ).removesuffix(b"]}]}")
        spans = b",".join(message.payload for message in batch)
        body = b'{"resourceSpans":[%b%b]}]}]}' % (head, spans)
        await self._post(batch, body, {"Content-Type": "application/json"})

    def _identify(self, batch: Sequence[OutboxMessage], body: bytes) -> dict[str, str]:
        headers = super()._identify(batch, body)
        return {name: headers[name] for name in headers if not name.startswith("webhook-")}

    async def _stored(self, answer: aiohttp.ClientResponse) -> None:
        """Log what a collector says of spans that it left out: it must not get them again."""
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            data = await answer.content.read(_ANSWER)
            partial: Any = orjson.loads(data).get("partialSuccess")
            if partial and (partial.get("rejectedSpans") or partial.get("errorMessage")):
                _log.warning(
                    "the collector left spans out",
                    count=int(partial.get("rejectedSpans", 0)),
                    reason=escaped(str(partial.get("errorMessage", "")), 200),
                )


class TracedMessages(DueMessages):
    """The spans of a log as messages that are due, in the order in which they end.

    A cursor is behind the oldest message that is not over, so a restart repeats the spans of later
    ones; they are equal.
    """

    def __init__(
        self,
        source: LogSource,
        selection: Selection,
        end: DurableEnd,
        options: SpanOptions,
        log: str,
        until: Position = MAX_POSITION,
    ) -> None:
        """Messages that were published after ``until`` are left out."""
        super().__init__(source, selection, end)
        self._options = options
        self._log = log
        self._until = until
        self._fold = self._new_fold(0)

    def _new_fold(self, through: Position) -> SpanFold:
        def is_due(topic: str) -> bool:
            return self._selection.is_due(topic) and self._selection.may_have(topic)

        return SpanFold(self._log, self._options, is_due, (through, self._until))

    async def spans(self, through: Position) -> AsyncGenerator[LogPortion, None]:
        """Yield the turns behind a position."""
        self._fold = self._new_fold(through)
        async for portion in super().after(through, self._number):
            yield portion

    def after(self, through: Position, number: int) -> AsyncIterator[LogPortion]:
        """Yield the turns behind a position, as for all destinations."""
        self._number = number
        return self.spans(through)

    async def _portion(self, parts: list[Record], _through: Position) -> LogPortion:
        portion = portion_of(parts)
        portion.messages = [
            replace(message, number=self._number) for message in self._fold.take(parts)
        ]
        portion.through = self._fold.through
        return portion

    def unfinished(self) -> list[OutboxMessage]:
        """Return the spans of what is not over at the end of a log."""
        return self._fold.finish()

    async def messages_at(self, refs: Iterable[Position]) -> list[OutboxMessage]:
        """Return the spans of some messages that the log still has, as far as they are over."""
        spans: list[OutboxMessage] = []
        for ref in sorted({*refs}):
            fold = self._new_fold(ref - 1)
            last = await self._end.reach(sequence_of(ref))
            exported: list[OutboxMessage] = []
            async with contextlib.aclosing(self._turns(sequence_of(ref))) as turns:
                with contextlib.suppress(CursorLost):
                    async for parts in turns:
                        exported += fold.take(parts)
                        if fold.through >= ref or parts[-1].sequence >= last:
                            break
            spans += [each for each in [*exported, *fold.finish()] if each.position == ref]
        return spans
