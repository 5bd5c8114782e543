"""``foldmq diff``: the differences between the states at two points in time."""

import sys
from collections.abc import Iterator

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.point_resolution import parse_point, points_at, write_clock_notes
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.display import log_prefix
from eventstore.errors import NotFound, UsageError
from eventstore.partitions import short_name
from projections.past.joined_state import (
    LogChanges,
    StatesBetween,
    changes_in_logs,
    joined_retained_changes,
    joined_sessions_changed,
)
from projections.past.replay import AsOf
from projections.views.differences import diff_object


@run_to_end
async def run_diff(
    flags: SourceFlags, before: str, after: str, session: str | None, *, as_json: bool
) -> None:
    """Print the differences between two points in time, the earlier one first."""
    first, second = parse_point(before), parse_point(after)
    later = UsageError(f"{before} is later than {after}: give the earlier point first")
    async with open_logs(flags, session) as logs:
        await write_clock_notes(logs, first, second)
        logs.check_comparable(first, second)
        if session is not None:
            logs.only(session)
        if logs.several and (first.time_ms or 0) > (second.time_ms or 0):
            raise later
        starts, ends = await points_at(logs, first), await points_at(logs, second)
        if any(
            (starts[log].sequence, starts[log].index) > (ends[log].sequence, ends[log].index)
            for log in logs
        ):
            raise later
        changes = changes_in_logs(logs, starts, ends, session, progress)
        if as_json:
            async for log, states in changes:
                check_session(session, states)
                sys.stdout.write(text.json_line(states_object(log, states)) + "\n")
            return
        complete = [each async for each in changes]
    for _, states in complete:
        check_session(session, states)
    for line in diff_lines(
        complete, text.clock(first.time_ms or 0), text.clock(second.time_ms or 0)
    ):
        sys.stdout.write(line + "\n")


def check_session(session: str | None, states: StatesBetween) -> None:
    """Raise NotFound if a session exists at neither point."""
    if session is not None and session not in states.old.sessions | states.new.sessions:
        missing = f"no session {text.name(session)} at either point"
        raise NotFound("; ".join(filter(None, [missing, states.unsure])))


def states_object(log: str, states: StatesBetween) -> dict[str, object]:
    """Return the differences in a log as a JSON object; one of several logs has a name."""
    ends = {"from": states.before.fields(), "to": states.after.fields()}
    changes = diff_object(states.old, states.new)
    unsure = {"unsure": [states.unsure]} if states.unsure is not None else {}
    return {**({"log": log} if log else {}), **ends, **changes, **unsure}


def diff_lines(changes: LogChanges, first: str, second: str) -> Iterator[str]:
    """Yield the differences as text; those of several logs are between two times."""
    if changes[0][0]:
        yield f"from {first}"
        yield f"  to {second}"
    for log, states in changes:
        entries = f"{states.new.entries - states.old.entries:,} entries"
        if log:
            yield f"  log {log}: {_place(states.before)} to {_place(states.after)}, {entries}"
        else:
            yield f"from {states.before}"
            yield f"  to {states.after}: {entries}"
        if states.unsure is not None:
            yield f"  {log_prefix(log)}{states.unsure}"
    same = True
    for log, changed in joined_sessions_changed(changes):
        same = False
        yield from changed.lines(f", log {short_name(log)}" if log else "")
    for each in joined_retained_changes(changes):
        same = False
        where = "" if each.everywhere else f", in {', '.join(map(short_name, each.logs))} only"
        yield each.change.line(where)
    if same:
        yield "no differences"


def _place(as_of: AsOf) -> str:
    return as_of.place if as_of.point.sequence else "its beginning"
