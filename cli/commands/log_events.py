"""``foldmq log``: the events of the log, one line each."""

import asyncio
import contextlib
import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cli.common import text
from cli.common.colour import Style, has_colours, painted
from cli.common.progress_bar import progress
from cli.logs.logs import Logs, open_logs
from cli.logs.point_resolution import (
    cut_off,
    end_at,
    is_between,
    parse_point,
    points_at,
    start_at,
    write_clock_notes,
    write_lost_notes,
)
from cli.logs.source import PrintedRecords, write_missed, write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from eventstore.display import log_prefix
from eventstore.errors import CutOff, NotFound, UsageError, naming_log
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Expired,
    MessageDropped,
    Redelivered,
    Refused,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    SubscriptionDenied,
    WillFired,
)
from eventstore.format.node_events import BrokerStarted, BrokerStopped, OperatorActed
from eventstore.format.positions import format_position, sequence_of
from eventstore.partitions import short_name
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from projections.past.event_object import event_object
from projections.past.event_reader import EVENT_TYPES, EventEntry, EventFilter, refs_of
from projections.past.event_text import payload_words, words
from projections.past.merged_events import LogEntry, MergedReader
from projections.past.topic_lookup import MessageTopics

_FOLLOW_SHOWS = 10
_BRIEF_SHOWS = 50
_POLL_SECONDS = 0.2
_SESSION_LIMIT = 40


@dataclass(frozen=True, slots=True)
class Selection:
    """The events to print; None and empty select all."""

    session: str | None = None
    topic: str | None = None
    types: tuple[type, ...] = ()
    start: PointSpec | None = None
    end: PointSpec | None = None
    count: int | None = None
    follow: bool = False
    brief: bool = False
    """The last events only, with a notice if there are more."""


def event_selection(
    session: str | None,
    topic: str | None,
    types: Iterable[str],
    bounds: tuple[str | None, str | None],
    count: int | None,
    *,
    follow: bool,
    brief: bool = False,
) -> Selection:
    """Read the selection from the flags; raises UsageError.

    ``brief``: without a range or a count, only the last events.
    """
    start, end = (parse_point(bound) if bound is not None else None for bound in bounds)
    if follow and end is not None:
        raise UsageError("-f and --to cannot be combined")
    if follow and count is None and start is None:
        count = _FOLLOW_SHOWS
    brief = brief and count is None and start is None and end is None
    if topic is not None:
        check_filter(topic)
    chosen = event_types(types)
    count = _BRIEF_SHOWS if brief else count
    return Selection(session, topic, chosen, start, end, count, follow, brief)


def event_types(names: Iterable[str]) -> tuple[type, ...]:
    """Return the types of events with these names; raises UsageError."""
    return tuple(map(_event_type, names))


def _event_type(typed: str) -> type:
    event_type = EVENT_TYPES.get(typed.casefold())
    if event_type is None:
        close = difflib.get_close_matches(typed.casefold(), EVENT_TYPES, n=1)
        unknown = f'unknown event type "{text.escaped(typed)}"'
        if close:
            raise UsageError(f'{unknown} (did you mean "{EVENT_TYPES[close[0]].__name__}"?)')
        names = ", ".join(kind.__name__ for kind in EVENT_TYPES.values())
        raise UsageError(f"{unknown}: must be one of {names}")
    return event_type


@run_to_end
async def run_events(
    flags: SourceFlags, selection: Selection, *, as_json: bool, payload: bool
) -> None:
    """Print the selected events."""
    indexed = selection.session is not None or selection.topic is not None
    async with open_logs(flags, selection.session, indexed=indexed) as logs:
        for source in logs.values():
            if selection.follow and not source.live:
                raise UsageError(f"cannot follow the log: no broker is running on {source.where}")
        for beginning in _beginnings(logs, await incomplete_logs(logs, selection)):
            write_notice(beginning)
        await write_clock_notes(logs, selection.start, selection.end)
        reader = MergedReader(
            logs, lambda: EventFilter(selection.types, selection.session, selection.topic), progress
        )
        topics = {log: log_reader.topics for log, log_reader in reader.readers.items()}
        printer = _LogPrinter(topics, as_json=as_json, payload=payload)
        ends, more = await points_at(logs, selection.end, end_at), True
        if selection.count is not None and selection.start is None:
            count = selection.count + selection.brief
            entries = await reader.latest(count, ends, ended=not selection.follow)
            if selection.brief and len(entries) == count:
                write_notice(f"the last {selection.count} events; -n COUNT prints more")
                del entries[0]
            for entry in entries:
                if is_between(entry.entry.time_ms, selection.start, selection.end):
                    await printer.print(entry)
            starts = await points_at(logs, None, start_at)
            if len(entries) >= selection.count:
                starts |= printer.printed.starts
        else:
            starts = await points_at(logs, selection.start, start_at)
            more = await _print_from(reader, printer, starts, ends, selection)
            if not more:
                ends = {**starts, **printer.printed.ends}
        if selection.session is not None or selection.topic is not None or selection.types:
            await write_lost_notes(logs, starts, ends)  # the events about it were not selected
        if not more:
            return
        if selection.follow:
            await _follow(reader, printer)
        elif selection.session is not None and not printer.printed.count:
            await _check_session(logs, selection.session)


async def _check_session(logs: Logs, session: str) -> None:
    """Raise NotFound if the logs have no event of a session."""
    reader = MergedReader(logs, lambda: EventFilter((), session), progress)
    ends = {log: LogPoint(source.last) for log, source in logs.items()}
    if not await reader.latest(1, ends, ended=True):
        cuts = [log for log, source in logs.items() if source.cut is not None]
        cut = "".join(f"; {beginning}" for beginning in _beginnings(logs, cuts))
        which = f"the logs {', '.join(logs)} have" if logs.several else "the log has"
        raise NotFound(f"{which} no session {text.name(session)}{cut}")


def _beginnings(logs: Mapping[str, LogSource], names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence about the beginning of each of some logs."""
    for log in names:
        yield log_prefix(log) + logs[log].beginning()


def _is_later(moment: PointSpec | None, other: PointSpec | None) -> bool:
    """Return whether a moment is later than another; False if that depends on the log."""
    if moment is None or other is None:
        return False
    if moment.position is not None and other.position is not None:
        return sequence_of(moment.position) > sequence_of(other.position)
    return (
        moment.time_ms is not None and other.time_ms is not None and moment.time_ms > other.time_ms
    )


async def incomplete_logs(logs: Logs, selection: Selection) -> list[str]:
    """Return the logs of which a part of the selection was deleted.

    Raises CutOff if all of it was, and UsageError.
    """
    if _is_later(selection.start, selection.end):
        raise UsageError("--from is later than --to")
    logs.check_comparable(selection.start, selection.end)
    deleted, incomplete = [], []
    for log, source in logs.items():
        with naming_log(log):
            if await cut_off(source, selection.end):
                deleted.append(log)
            if log in deleted or await cut_off(source, selection.start):
                incomplete.append(log)
    if len(deleted) == len(logs):
        raise CutOff(f"these records were deleted: {'; '.join(_beginnings(logs, deleted))}")
    return incomplete


async def _print_from(
    reader: MergedReader,
    printer: "_LogPrinter",
    starts: Mapping[str, LogPoint],
    ends: Mapping[str, LogPoint],
    selection: Selection,
) -> bool:
    """Print events; return whether to continue."""
    remaining = selection.count
    async with contextlib.aclosing(
        reader.entries(starts, ends, ended=not selection.follow)
    ) as entries:
        async for entry in entries:
            if not is_between(entry.entry.time_ms, selection.start, selection.end):
                continue  # the clock was set back: other times lie between
            await printer.print(entry)
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    return False
    return True


async def _follow(reader: MergedReader, printer: "_LogPrinter") -> None:
    while True:
        printed = False
        async for entry in reader.new_entries(write_missed):
            await printer.print(entry)
            printed = True
        sys.stdout.flush()
        if not printed or len(reader.readers) > 1:  # events of other logs may arrive later
            await asyncio.sleep(_POLL_SECONDS)


class _LogPrinter:
    """Prints events of logs, which have names if there are several."""

    def __init__(
        self, topics: Mapping[str, MessageTopics], *, as_json: bool, payload: bool
    ) -> None:
        self._topics = topics
        self._as_json, self._payload = as_json, payload
        self._width = max(len(short_name(log)) for log in topics)
        self._colours = has_colours(sys.stdout)
        self.printed = PrintedRecords()

    async def print(self, log_entry: LogEntry) -> None:
        """Print one event; may read its log for the topics of its messages."""
        log, entry = log_entry
        self.printed.add(log, entry.at)
        topics = self._topics[log]
        with naming_log(log):
            await topics.load(refs_of(entry.event))
        if self._as_json:
            line = text.json_line(entry_object(entry, topics, log, payload=self._payload))
        else:
            line = self._line(log, entry)
        sys.stdout.write(line + "\n")

    def _painted(self, line: str, style: Style | None) -> str:
        return painted(line, style, sys.stdout) if self._colours else line

    def _line(self, log: str, entry: EventEntry) -> str:
        session = getattr(entry.event, "session", None)
        who = text.name(session, _SESSION_LIMIT) if session is not None else "-"
        what = words(entry.event, self._topics[log], entry.jumped_ms)
        if entry.cause:
            what += f": {entry.cause}"
        if self._payload:
            what += payload_words(entry.event, entry.area)
        if entry.void:
            what = f"void (its turn was not completed): {what}"
        short = f" {short_name(log):<{self._width}}" if log else ""
        stamp = self._painted(
            f"{text.clock(entry.time_ms)}{short} {format_position(entry.at):>8}", "dim"
        )
        style = "dim" if entry.void else event_style(entry.event)
        return f"{stamp}  {who:<10} {self._painted(what, style)}"


def entry_object(
    entry: EventEntry, topics: MessageTopics, log: str, *, payload: bool
) -> dict[str, object]:
    """Return an event as a JSON object; ``log`` is its log, if there are several."""
    area = entry.area if payload else None
    fields = event_object(entry.event, entry.at, entry.time_ms, topics, area, entry.jumped_ms)
    if entry.cause:
        fields["cause"] = entry.cause
    if log:
        if "log" in fields:  # of Followed: the other log
            fields["followed"] = fields.pop("log")
        fields = {"log": log, **fields}
    return {**fields, "void": True} if entry.void else fields


def event_style(event: Event) -> Style | None:
    """Return the style of an event: red for losses, yellow for what may explain one."""
    if isinstance(event, SessionClosed):
        return None if event.reason in _ORDERLY else "yellow"
    if isinstance(event, BrokerStarted):
        return "red" if event.crashed else "bold"
    return _STYLES.get(type(event))


_ORDERLY = frozenset({"disconnect", "broker_stopped", "shared"})
"""Reasons for the end of a connection that are no sign of trouble."""
_STYLES: dict[type, Style] = {
    MessageDropped: "red",
    SubscriptionDenied: "red",
    Refused: "red",
    Expired: "red",
    SessionOpened: "green",
    SessionTakenOver: "yellow",
    SessionExpired: "yellow",
    Redelivered: "yellow",
    WillFired: "yellow",
    OperatorActed: "bold",
    BrokerStopped: "bold",
}
