"""The differences between the states of one or several logs at two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventstore.errors import naming_log
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import MAX_INDEX
from projections.past.replay import Replay
from projections.views.differences import (
    ChangedRetained,
    retained_changes,
    sessions_changed,
    state_facts,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from eventstore.reading.log_points import LogPoint
    from eventstore.reading.log_source import LogSource
    from eventstore.reading.progress import Progress
    from projections.past.replay import AsOf
    from projections.views.differences import ChangedSession, StateFacts


class StatesBetween(NamedTuple):
    """The compared facts of a log at two points."""

    before: AsOf
    after: AsOf
    old: StateFacts
    new: StateFacts


class LogChanges(NamedTuple):
    """The states of one of the logs at two moments."""

    log: str
    """Its name; empty: the only one."""
    states: StatesBetween


class JoinedChange(NamedTuple):
    """A retained message that differs in the same way in some logs, or in all."""

    change: ChangedRetained
    logs: tuple[str, ...]
    everywhere: bool
    """Whether it differs so in all logs."""


async def states_between(
    source: LogSource, first: LogPoint, second: LogPoint, session: str | None, progress: Progress
) -> StatesBetween:
    """Return the facts of a log at two points, the earlier one first; of one session, if given.

    Raises CorruptLog, UnreadableEvent, CutOff or CutMeanwhile.
    """
    replay = Replay(source, second.sequence, session, progress)
    before = await replay.to(first)
    old = state_facts(replay.state, session, replay.origins.of)
    if first.index != MAX_INDEX:  # a fold cannot continue inside a record
        replay = Replay(source, second.sequence, session, progress)
    after = await replay.to(second)
    return StatesBetween(before, after, old, state_facts(replay.state, session, replay.origins.of))


async def changes_in_logs(
    logs: Mapping[str, LogSource],
    starts: Mapping[str, LogPoint],
    ends: Mapping[str, LogPoint],
    session: str | None,
    progress: Progress,
) -> AsyncIterator[LogChanges]:
    """Yield the states of each log at two points; of one session, if given.

    Of several logs, the sessions that stand for other logs are left out. Raises as
    :func:`states_between`.
    """
    for log, source in logs.items():
        with naming_log(log):
            states = await states_between(source, starts[log], ends[log], session, progress)
        for facts in (states.old, states.new) if log else ():
            for name in [name for name in facts.sessions if name.startswith(LOG_SESSION)]:
                del facts.sessions[name]
        yield LogChanges(log, states)


def joined_sessions_changed(changes: Iterable[LogChanges]) -> list[tuple[str, ChangedSession]]:
    """Return log and change of the sessions that differ, by name."""
    changed = [
        (log, each) for log, states in changes for each in sessions_changed(states.old, states.new)
    ]
    return sorted(changed, key=lambda pair: pair[1].name)


def joined_retained_changes(changes: Iterable[LogChanges]) -> list[JoinedChange]:
    """Return the retained messages that differ, by topic.

    A topic that changed in some logs only, or not in the same way, has an element for each way.
    """
    ways: dict[ChangedRetained, list[str]] = {}
    count = 0
    for log, states in changes:
        count += 1
        for way in retained_changes(states.old.retained, states.new.retained):
            ways.setdefault(way, []).append(log)
    joined = [JoinedChange(way, tuple(logs), len(logs) == count) for way, logs in ways.items()]
    return sorted(joined, key=lambda each: each.change.topic)
