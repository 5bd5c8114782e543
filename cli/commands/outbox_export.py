"""``foldmq outbox export``: sends the spans of a part of the log to the collector of a sink."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.point_resolution import end_at, parse_point, points_at, start_at
from cli.logs.source_flags import SourceFlags
from cli.settings.settings import load_settings
from eventstore.errors import CutMeanwhile, UsageError
from eventstore.format.positions import Position, position, sequence_of
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.log_source import LogSource
from outbox.backoff import Backoff
from outbox.log_reader import CursorLost
from outbox.selection import Selection
from outbox.sink import Destination, OutboxMessage, RefusedMessages, Sink, TryAgain
from outbox.sinks.kinds import make_sink, span_options
from outbox.sinks.otlp import TracedMessages
from protocol.errors import FoldmqError

_ATTEMPTS = 5


class CollectorUnavailable(FoldmqError):  # noqa: N818 - named for the condition
    """The collector does not take the spans."""

    exit_code = 69


class _LogEnd(Exception):  # noqa: N818 - it is an answer, not an error
    """There are no more records."""


class _Past:
    """The end of a log that does not grow."""

    def __init__(self, last: int) -> None:
        self._last = last

    async def reach(self, sequence: int, _seconds: float | None = None) -> int:
        """Return the last record; raises _LogEnd behind it."""
        if sequence > self._last:
            raise _LogEnd
        return self._last


class _Sender:
    """Sends batches; counts what was sent and what was refused."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.sent = self.refused = 0

    async def send(self, batch: list[OutboxMessage]) -> None:
        """Send a batch; raises CollectorUnavailable after a few attempts."""
        backoff = Backoff(0.2, 5.0)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._sink.send(batch)
            except RefusedMessages as answer:
                self.refused += len(batch)
                sys.stderr.write(f"foldmq: {len(batch)} spans refused: {answer.reason}\n")
                return
            except TryAgain as answer:
                if answer.misconfigured or attempt == _ATTEMPTS:
                    raise CollectorUnavailable(
                        f"{answer.reason}; {text.count_of(self.sent, 'span')} sent before"
                    ) from None
                await asyncio.sleep(backoff.next())
            else:
                self.sent += len(batch)
                return


def export_spans(flags: SourceFlags, name: str, start: str | None, end: str | None) -> None:
    """Send the spans of messages published between two moments; raises FoldmqError."""
    settings = load_settings(flags.settings, os.environ, flags.config)
    sink = settings.sinks.get(name)
    if sink is None:
        raise UsageError(
            f"the settings have no sink {text.name(name)}: --config names the file that has it"
        )
    if sink.kind != "otlp":
        raise UsageError(f"sink {text.name(name)} is of kind {sink.kind}: only otlp can export")
    asyncio.run(_run(flags, name, sink.model_dump(mode="json"), (start, end)))


async def _run(
    flags: SourceFlags, name: str, table: Mapping[str, Any], bounds: tuple[str | None, str | None]
) -> None:
    start, end = (parse_point(each) if each is not None else None for each in bounds)
    async with open_logs(flags) as logs:
        starts = await points_at(logs, start, start_at)
        ends = await points_at(logs, end, end_at)
        for log, source in logs.items():
            after = position(starts[log].sequence, starts[log].index) - 1
            until = position(ends[log].sequence, ends[log].index)
            sender = await _export(source, name, table, (after, until))
            where = f"{log}: " if log else ""
            refused = f", {sender.refused} refused" if sender.refused else ""
            sys.stdout.write(f"{where}{text.count_of(sender.sent, 'span')} sent{refused}\n")


async def _export(
    source: LogSource, name: str, table: Mapping[str, Any], bounds: tuple[Position, Position]
) -> _Sender:
    after, until = bounds
    node = source.stream.removeprefix(LOG_STREAM_PREFIX)
    sink, limits = make_sink(table)
    reader = TracedMessages(
        *(source, Selection(table["filters"]), _Past(source.last)),
        *(span_options(table), node, until),
    )
    sender = _Sender(sink)
    batch: list[OutboxMessage] = []
    try:
        await sink.open(Destination(name, node, 0, after, 0, 0, _no_receiver))
        with progress("exporting", max(0, sequence_of(until - after))) as shown:
            async with contextlib.aclosing(reader.spans(after)) as portions:
                with contextlib.suppress(_LogEnd):
                    async for portion in portions:
                        batch += portion.messages
                        while len(batch) >= limits.messages:
                            await sender.send(batch[: limits.messages])
                            del batch[: limits.messages]
                        shown(sequence_of(portion.through - after))
                        if portion.through >= until:
                            break
        batch += reader.unfinished()
        while batch:
            await sender.send(batch[: limits.messages])
            del batch[: limits.messages]
    except TryAgain as answer:
        raise CollectorUnavailable(answer.reason) from None
    except CursorLost as cut:
        raise CutMeanwhile(*cut.args) from None
    finally:
        await sink.close()
    return sender


async def _no_receiver(_received: Position) -> None:
    """Record nothing: spans have no receiver at QoS 2."""
