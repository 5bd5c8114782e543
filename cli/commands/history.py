"""``foldmq history``: the messages of the past on the topics of a filter."""

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import Logs, open_logs
from cli.logs.point_resolution import parse_point, write_clock_notes, write_lost_notes
from cli.logs.source import PrintedRecords, write_missed, write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from eventstore.display import log_prefix
from eventstore.errors import UsageError
from eventstore.partitions import short_name
from eventstore.reading.moments import LAST, NEW, BadMoment, Moment, ends_before, parse_moment
from eventstore.reading.position_text import PointSpec
from projections.past.message_history import (
    HistoryRange,
    MessageHistory,
    history_range,
    last_messages,
)
from projections.views.publication_view import (
    PublicationView,
    publication_line,
    publication_object,
)

_FOLLOW_SHOWS = 10
_BRIEF_SHOWS = 50
_POLL_SECONDS = 0.2
_EXPECTED = (
    "expected all, new or last, a position such as 12.3, an age such as 10m, or a time such as "
    "'2026-11-20 09:30' or 09:30"
)


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The messages to print; None selects all."""

    topic_filter: str
    start: Moment | None = None
    until: Moment | None = None
    count: int | None = None
    follow: bool = False
    brief: bool = False
    """The last messages only, with a notice if there are more."""


def history_query(
    topic_filter: str,
    bounds: tuple[str | None, str | None],
    count: int | None,
    *,
    last: bool,
    follow: bool,
    brief: bool,
) -> HistoryQuery:
    """Read the selection from the flags; raises UsageError.

    ``last``: the last message on each topic. ``brief``: without a range or a count, only the last
    messages.
    """
    check_filter(topic_filter)
    start, until = (bound if bound is None else moment_of(bound) for bound in bounds)
    if last and start is not None:
        raise UsageError("--last and --from cannot be combined")
    if last:
        start = Moment(word=LAST)
    if until is not None and until.word:
        raise UsageError("--to: all, new and last are beginnings; give a position, age or time")
    if follow and until is not None:
        raise UsageError("-f and --to cannot be combined")
    if start is not None and start.word == NEW and not follow:
        raise UsageError("--from new needs -f: there is nothing new in the past")
    if start is not None and start.word == LAST and count is not None:
        raise UsageError("-n and the last message of each topic cannot be combined")
    if start is not None and until is not None and ends_before(start, until):
        raise UsageError("--from is later than --to")
    if follow and count is None and start is None:
        count = _FOLLOW_SHOWS
    brief = brief and count is None and start is None and until is None
    count = _BRIEF_SHOWS if brief else count
    return HistoryQuery(topic_filter, start, until, count, follow, brief)


def moment_of(typed: str) -> Moment:
    """Return a moment as replays take it, or as other commands do; raises UsageError.

    A time without a zone is local, as in other commands.
    """
    with contextlib.suppress(UsageError):
        point = parse_point(typed)
        if point.position is not None:
            return Moment(positions={"": point.position})
        return Moment(time_ms=max(0, point.time_ms or 0))
    try:
        return parse_moment(typed.strip(), round(time.time() * 1000))
    except BadMoment:
        raise UsageError(f'not a moment: "{text.escaped(typed)}"; {_EXPECTED}') from None


@run_to_end
async def run_history(
    flags: SourceFlags, query: HistoryQuery, *, as_json: bool, payloads: bool
) -> None:
    """Print the selected messages."""
    async with open_logs(flags, indexed=True) as logs:
        for source in logs.values():
            if query.follow and not source.live:
                raise UsageError(f"cannot follow the log: no broker is running on {source.where}")
        part = await history_range(logs, query.start, query.until)
        for log in part.cut:
            write_notice(log_prefix(log) + logs[log].beginning())
        moments = [
            PointSpec("", time_ms=point.time_ms)
            for point in (query.start, query.until)
            if point is not None and point.time_ms is not None
        ]
        await write_clock_notes(logs, *moments)
        history = MessageHistory(logs, query.topic_filter, progress)
        printer = _MessagePrinter(logs, as_json=as_json, payloads=payloads)
        more = await _print_past(logs, history, printer, query, part)
        all_looked_at = query.start is not None or printer.printed.count < (query.count or 0)
        starts = part.starts if all_looked_at else {**part.starts, **printer.printed.starts}
        ends = part.ends if more else {**part.starts, **printer.printed.ends}
        await write_lost_notes(logs, starts, ends)
        if not more:
            return
        if query.follow:
            await _follow(history, printer)
        elif not printer.printed.count:
            write_notice(
                f"no message on {text.name(query.topic_filter)} here; messages of QoS 0 are "
                "recorded only if they are retained"
            )


async def _print_past(
    logs: Logs,
    history: MessageHistory,
    printer: "_MessagePrinter",
    query: HistoryQuery,
    part: HistoryRange,
) -> bool:
    """Print the messages that there are; return whether to continue."""
    start, remaining = query.start, query.count
    if start is not None and start.word == LAST:
        for view in await last_messages(logs, query.topic_filter, part, progress):
            printer.print(view)
        return True
    if remaining is not None and start is None:
        views = await history.latest(remaining + query.brief, part)
        if query.brief and len(views) > remaining:
            write_notice(f"the last {remaining} messages; -n COUNT prints more")
            del views[0]
        for view in views:
            printer.print(view)
        return True
    async with contextlib.aclosing(history.between(part)) as messages:
        async for view in messages:
            printer.print(view)
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    return False
    return True


async def _follow(history: MessageHistory, printer: "_MessagePrinter") -> None:
    while True:
        sys.stdout.flush()
        count = printer.printed.count
        async for view in history.new(write_missed):
            printer.print(view)
        if printer.printed.count == count:
            await asyncio.sleep(_POLL_SECONDS)


class _MessagePrinter:
    """Prints messages of one or several logs."""

    def __init__(self, logs: Logs, *, as_json: bool, payloads: bool) -> None:
        self._width = max(len(short_name(log)) for log in logs)
        self._as_json, self._payloads = as_json, payloads
        self.printed = PrintedRecords()

    def print(self, view: PublicationView) -> None:
        """Print one message."""
        self.printed.add(view.log, view.position)
        if self._as_json:
            line = text.json_line(publication_object(view, payload=self._payloads))
        else:
            line = publication_line(view, payload=self._payloads, log_width=self._width)
        sys.stdout.write(line + "\n")
