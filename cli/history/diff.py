"""``foldmq diff``: the differences between the states at two points in time."""

import asyncio
import sys
from collections.abc import Iterator, Mapping

from cli.common import progress, text
from cli.history.replay import expiry_text
from cli.logsource import SourceFlags, flags_of_session, open_source, parse_point, point_at
from eventstore.errors import NotFound, UsageError
from eventstore.format import MAX_INDEX, Position
from projections.comparison import (
    ChangedSession,
    Granted,
    SessionFacts,
    StateFacts,
    WillFacts,
    state_facts,
)
from projections.replay import AsOf, Replay, options_text


def run_diff(
    flags: SourceFlags, before: str, after: str, session: str | None, *, as_json: bool
) -> None:
    """Print the differences between two points in time, the earlier one first."""
    asyncio.run(_run(flags, before, after, session, as_json=as_json))


async def _run(
    flags: SourceFlags, before: str, after: str, session: str | None, *, as_json: bool
) -> None:
    moments = [parse_point(before), parse_point(after)]
    async with open_source(flags_of_session(flags, session)) as source:
        first, second = [await point_at(source, one) for one in moments]
        if (first.sequence, first.index) > (second.sequence, second.index):
            raise UsageError(f"{before} is later than {after}: give the earlier point first")
        replay = Replay(source, second.sequence, session, progress)
        from_moment = await replay.to(first)
        old = state_facts(replay.state, session, replay.origins)
        if first.index != MAX_INDEX:  # a fold cannot continue inside a record
            replay = Replay(source, second.sequence, session, progress)
        to_moment = await replay.to(second)
        new = state_facts(replay.state, session, replay.origins)
    if session is not None and session not in old.sessions and session not in new.sessions:
        raise NotFound(f"no session {text.name(session)} at either point")
    if as_json:
        found = diff_object(old, new)
        ends = {"from": from_moment.fields(), "to": to_moment.fields()}
        sys.stdout.write(text.json_line({**ends, **found}) + "\n")
        return
    for line in diff_lines(old, new, from_moment, to_moment):
        sys.stdout.write(line + "\n")


def diff_lines(old: StateFacts, new: StateFacts, before: AsOf, after: AsOf) -> Iterator[str]:
    """Yield the differences as text."""
    yield f"from {before}"
    yield f"  to {after}: {new.entries - old.entries:,} entries"
    same = True
    for one in sessions_changed(old, new):
        same = False
        yield from session_changes(one)
    for mark, topic, size in retained_changes(old.retained, new.retained):
        same = False
        yield f"{mark} retained {text.name(topic)}, {text.size(size)}"
    if same:
        yield "no differences"


def sessions_changed(old: StateFacts, new: StateFacts) -> Iterator[ChangedSession]:
    """Yield the sessions that differ, in order."""
    for name in sorted(old.sessions.keys() | new.sessions.keys()):
        one, other = old.sessions.get(name), new.sessions.get(name)
        if one != other:
            yield ChangedSession(name, one, other)


def session_changes(one: ChangedSession) -> Iterator[str]:
    """Yield the differences of a session of a broker as text."""
    yield f"{change_mark(one)} session {text.name(one.name)}"
    yield from (f"    {line}" for line in session_diff(one.old or _NOTHING, one.new or _NOTHING))


def change_mark(one: ChangedSession) -> str:
    """Return ``+`` for a session that was added, ``-`` for one that was removed, else ``~``."""
    return "+" if one.old is None else "-" if one.new is None else "~"


_NOTHING = SessionFacts(False, {}, frozenset(), (0, 0, {}), frozenset(), None)


def session_diff(old: SessionFacts, new: SessionFacts) -> Iterator[str]:
    """Yield the differences of a session."""
    if old.connected != new.connected:
        yield "connected" if new.connected else "no longer connected"
    for topic_filter in sorted(old.subscriptions.keys() | new.subscriptions.keys()):
        was, now = old.subscriptions.get(topic_filter), new.subscriptions.get(topic_filter)
        if was is None or now is None:
            mark, one = ("+", now) if was is None else ("-", was)
            if one is not None:
                yield f"{mark} subscription {text.name(topic_filter)} {_granted(one)}"
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


def retained_changes(
    old: Mapping[str, tuple[Position, int]], new: Mapping[str, tuple[Position, int]]
) -> Iterator[tuple[str, str, int]]:
    """Yield mark, topic and size of the retained messages that differ, in order."""
    for topic in sorted(old.keys() | new.keys()):
        was, now = old.get(topic), new.get(topic)
        if was == now:
            continue
        if now is None:
            yield "-", topic, was[1] if was is not None else 0
        else:
            yield "+" if was is None else "~", topic, now[1]


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
