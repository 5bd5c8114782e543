"""``foldmq diff``: the differences between the states at two points in time."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple

from cli.commands.replay import expiry_text
from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.point_resolution import parse_point, points_in_logs, write_clock_notes
from cli.logs.source_flags import SourceFlags
from eventstore.errors import NotFound, UsageError
from eventstore.reading.position_text import PointSpec
from projections.past.changed_states import ChangedSession
from projections.past.log_states import (
    LogChanges,
    StatesBetween,
    changes_in_logs,
    joined_retained_changes,
    joined_sessions_changed,
    retained_changes,
    short_name,
)
from projections.past.replay import AsOf
from projections.past.state_facts import Granted, SessionFacts, StateFacts, WillFacts
from projections.past.subscription_text import OF_MEMBERS, options_text


def run_diff(
    flags: SourceFlags, before: str, after: str, session: str | None, *, as_json: bool
) -> None:
    """Print the differences between two points in time, the earlier one first."""
    asyncio.run(_run(flags, before, after, session, as_json=as_json))


async def _run(
    flags: SourceFlags, before: str, after: str, session: str | None, *, as_json: bool
) -> None:
    moments = [parse_point(before), parse_point(after)]
    changes: list[LogChanges] = []
    async with open_logs(flags, session) as logs:
        await write_clock_notes(logs, *moments)
        logs.check_comparable(*moments)
        if session is not None:
            logs.only(session)
        starts, ends = [await points_in_logs(logs, one) for one in moments]
        if any(astuple(starts[log]) > astuple(ends[log]) for log in logs):
            raise UsageError(f"{before} is later than {after}: give the earlier point first")
        async for change in changes_in_logs(logs, starts, ends, session, progress):
            states = change.states
            if session is not None and session not in states.old.sessions | states.new.sessions:
                raise NotFound(f"no session {text.name(session)} at either point")
            if as_json:
                _write_object(change)
            else:
                changes.append(change)
    for line in () if as_json else diff_lines(changes, moments):
        sys.stdout.write(line + "\n")


def _write_object(change: LogChanges) -> None:
    log, states = change
    ends = {"from": states.before.fields(), "to": states.after.fields()}
    differences = diff_object(states.old, states.new)
    of_log = {"log": log} if log else {}
    sys.stdout.write(text.json_line({**of_log, **ends, **differences}) + "\n")


def diff_lines(changes: Sequence[LogChanges], moments: Sequence[PointSpec]) -> Iterator[str]:
    """Yield the differences between two moments as text."""
    yield from _heading(changes, moments)
    same = True
    for log, changed in joined_sessions_changed(changes):
        same = False
        yield from session_changes(changed, f", log {short_name(log)}" if log else "")
    for one in joined_retained_changes(changes):
        same = False
        where = "" if one.everywhere else f", in {', '.join(map(short_name, one.logs))} only"
        yield f"{one.mark} retained {text.name(one.topic)}, {text.size(one.size)}{where}"
    if same:
        yield "no differences"


def _heading(changes: Sequence[LogChanges], moments: Sequence[PointSpec]) -> Iterator[str]:
    """Yield the two moments, and for several logs the points of each."""
    for log, states in changes:
        if not log:
            yield f"from {states.before}"
            yield f"  to {states.after}: {_entries(states)} entries"
            return
    for word, moment in zip(("from", "  to"), moments, strict=True):
        yield f"{word} {text.clock(moment.time_ms or 0)}"
    for log, states in changes:
        places = f"{_place(states.before)} to {_place(states.after)}"
        yield f"  log {log}: {places}, {_entries(states)} entries"


def _place(as_of: AsOf) -> str:
    return as_of.place if as_of.point.sequence else "its beginning"


def _entries(found: StatesBetween) -> str:
    return f"{found.new.entries - found.old.entries:,}"


def session_changes(one: ChangedSession, where: str = "") -> Iterator[str]:
    """Yield the differences of a session of a broker as text; ``where`` follows its name."""
    yield f"{change_mark(one)} session {text.name(one.name)}{where}"
    lines = session_diff(one.old or _NOTHING, one.new or _NOTHING, one.name)
    yield from (f"    {line}" for line in lines)


def change_mark(one: ChangedSession) -> str:
    """Return ``+`` for a session that was added, ``-`` for one that was removed, else ``~``."""
    return "+" if one.old is None else "-" if one.new is None else "~"


_NOTHING = SessionFacts(False, {}, frozenset(), (0, 0, {}), frozenset(), None)


def session_diff(old: SessionFacts, new: SessionFacts, name: str = "") -> Iterator[str]:
    """Yield the differences of a session; ``name`` is that of a shared subscription."""
    if old.connected != new.connected:
        yield "connected" if new.connected else "no longer connected"
    for topic_filter in sorted(old.subscriptions.keys() | new.subscriptions.keys()):
        was, now = old.subscriptions.get(topic_filter), new.subscriptions.get(topic_filter)
        if was is None or now is None:
            mark, one = ("+", now) if was is None else ("-", was)
            if one is not None:
                granted = OF_MEMBERS if topic_filter == name else _granted(one)
                yield f"{mark} subscription {text.name(topic_filter)} {granted}"
        elif was != now:
            short = was[1:] == now[1:]
            change = f"{_granted(was, short=short)} -> {now.qos if short else _granted(now)}"
            yield f"~ subscription {text.name(topic_filter)} {change}"
    if old.in_flight != new.in_flight:
        gone, come = len(old.in_flight - new.in_flight), len(new.in_flight - old.in_flight)
        changes = (f"{come:,} sent" * bool(come), f"{gone:,} completed" * bool(gone))
        yield (
            f"in flight {len(old.in_flight):,} -> {len(new.in_flight):,} messages "
            f"({', '.join(filter(None, changes))})"
        )
    if old.queue != new.queue:
        yield (
            f"queued {old.queue[0]:,} -> {new.queue[0]:,} messages, "
            f"{text.size(old.queue[1])} -> {text.size(new.queue[1])}"
        )
    if old.inbound != new.inbound:
        yield f"inbound QoS 2 {len(old.inbound):,} -> {len(new.inbound):,} messages"
    if old.will != new.will:
        yield "will removed" if new.will is None else f"will {_will(new.will)}"
    if old.expiry != new.expiry and new is not _NOTHING:
        before = "" if old is _NOTHING else f"{expiry_text(old.expiry)} -> "
        yield f"session expiry {before}{expiry_text(new.expiry)}"


def _granted(one: Granted, *, short: bool = False) -> str:
    if short:
        return f"QoS {one.qos}"
    identifier = f", identifier {one.identifier}" if one.identifier else ""
    return f"QoS {one.qos}{options_text(one.options)}{identifier}"


def _will(will: WillFacts) -> str:
    retained = " retained" if will.retain else ""
    delay = f", {will.delay} s after the connection ends" if will.delay else ""
    return f"{text.name(will.topic)} QoS {will.qos}{retained}{delay}"


def diff_object(old: StateFacts, new: StateFacts) -> dict[str, object]:
    """Return the differences as a JSON object."""
    changed = {}
    for name in sorted(old.sessions.keys() & new.sessions.keys()):
        one, other = old.sessions[name], new.sessions[name]
        if one != other:
            changed[name] = {"from": _session_object(one), "to": _session_object(other)}
    kinds = {"+": "added", "-": "removed", "~": "replaced"}
    retained: dict[str, list[str]] = {kind: [] for kind in kinds.values()}
    for mark, topic, _ in retained_changes(old.retained, new.retained):
        retained[kinds[mark]].append(topic)
    return {
        "entries": new.entries - old.entries,
        "sessions_added": sorted(new.sessions.keys() - old.sessions.keys()),
        "sessions_removed": sorted(old.sessions.keys() - new.sessions.keys()),
        "sessions_changed": changed,
        "retained": retained,
    }


def _session_object(one: SessionFacts) -> dict[str, object]:
    return {
        "connected": one.connected,
        "subscriptions": {name: granted.qos for name, granted in one.subscriptions.items()},
        "subscription_options": {
            name: {"options": granted.options, "identifier": granted.identifier}
            for name, granted in one.subscriptions.items()
            if granted.options or granted.identifier
        },
        "in_flight": sorted(pid for pid, _ in one.in_flight),
        "queued": one.queue[0],
        "queued_bytes": one.queue[1],
        "inbound": sorted(one.inbound),
        "will": None if one.will is None else one.will._asdict(),
        "expiry": one.expiry,
    }
