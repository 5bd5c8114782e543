"""The sink ``otlp``: spans of messages, and metrics, to a collector over HTTP."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson
import structlog

from eventstore.display import escaped
from eventstore.format.positions import sequence_of
from outbox.log_reader import CursorLost, DueMessages, LogPortion, portion_of
from outbox.sinks.http import HttpSink
from outbox.sinks.span_json import attribute
from outbox.sinks.spans import SpanFold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence

    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from eventstore.reading.log_source import LogSource
    from outbox.log_reader import DurableEnd
    from outbox.selection import Selection
    from outbox.sink import OutboxMessage
    from outbox.sinks.http import HttpOptions
    from outbox.sinks.spans import SpanOptions

_log = structlog.get_logger("foldmq")

MAX_POSITION: Final = (1 << 63) - 1
_ANSWER: Final = 64 * 1024
_QUIET: Final = 5.0
"""Seconds without a record after which messages that have been open for long are looked for."""


class OtlpSink(HttpSink):
    """Posts batches of spans to a collector; the same for metrics."""

    def __init__(
        self, options: HttpOptions, encoding: str = "json", signal: str = "traces"
    ) -> None:
        """``options.url`` is the address of the collector, without the path of the signal."""
        super().__init__(replace(options, url=f"{options.url.rstrip('/')}/v1/{signal}"))
        self._protobuf = encoding == "protobuf"
        self._signal = signal

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Post a batch; returns when the collector has answered with success."""
        await self._export("Spans", "spans", [message.payload for message in batch], batch)

    async def push(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Post metrics. Raises TryAgain and RefusedMessages."""
        await self._export("Metrics", "metrics", [orjson.dumps(each) for each in metrics], ())

    async def _export(
        self, name: str, key: str, parts: Sequence[bytes], batch: Sequence[OutboxMessage]
    ) -> None:
        resource = {"service.name": "foldmq", "service.instance.id": self._log}
        head = orjson.dumps(
            {
                "resource": {"attributes": [attribute(*each) for each in resource.items()]},
                f"scope{name}": [{"scope": {"name": "foldmq"}, key: []}],
            }
        ).removesuffix(b"]}]}")
        body = b'{"resource%b":[%b%b]}]}]}' % (name.encode(), head, b",".join(parts))
        kind = "application/json"
        if self._protobuf:
            from outbox.sinks import otlp_protobuf

            body, kind = otlp_protobuf.encode_request(self._signal, body), otlp_protobuf.TYPE
        await self._post(batch, body, {"Content-Type": kind})

    def _identify(self, _batch: Sequence[OutboxMessage], _body: bytes) -> dict[str, str]:
        return self._credentials()[0]

    async def _stored(self, answer: aiohttp.ClientResponse) -> None:
        """Log what a collector says of what it left out: it must not get that again."""
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            data = await answer.content.read(_ANSWER)
            partial: Any = self._decoded(data).get("partialSuccess") or {}
            rejected = partial.get("rejectedSpans") or partial.get("rejectedDataPoints")
            if rejected or partial.get("errorMessage"):
                _log.warning(
                    f"the collector left {'spans' if self._signal == 'traces' else 'metrics'} out",
                    count=int(rejected or 0),
                    reason=escaped(str(partial.get("errorMessage", "")), 200),
                )

    def _decoded(self, data: bytes) -> Any:
        if not self._protobuf:
            return orjson.loads(data)
        from outbox.sinks import otlp_protobuf

        return otlp_protobuf.decode_answer(self._signal, data)


class TracedMessages(DueMessages):
    """The spans of a log as messages that are due, in the order in which they end.

    A cursor is behind the oldest message that is not over, so a restart repeats the spans of later
    ones; they are equal.
    """

    _quiet_seconds = _QUIET
    _whole_turns = False

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
        if parts:
            portion, spans = portion_of(parts), self._fold.take(parts)
        else:
            # No record that is still on its way may be older.
            now_ms = int((time.time() - _QUIET) * 1000)
            portion, spans = LogPortion(0, now_ms, only_cursors=True), self._fold.wait(now_ms)
        portion.messages = [message._replace(number=self._number) for message in spans]
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
            end = await self._end.reach(sequence_of(ref))
            exported: list[OutboxMessage] = []
            async with contextlib.aclosing(self._turns(sequence_of(ref))) as turns:
                with contextlib.suppress(CursorLost):
                    async for parts in turns:
                        exported += fold.take(parts) if parts else ()
                        if fold.through >= ref or not parts or parts[-1].sequence >= end:
                            break
            spans += [each for each in [*exported, *fold.finish()] if each.position == ref]
        return spans
