"""The differences between the states of a log at two points."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventstore.format.positions import MAX_INDEX
from projections.past.changed_states import ChangedSession
from projections.past.replay import Replay
from projections.past.state_facts import state_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventstore.format.positions import Position
    from eventstore.reading.log_points import LogPoint
    from eventstore.reading.log_source import LogSource
    from eventstore.reading.progress import Progress
    from projections.past.replay import AsOf
    from projections.past.state_facts import StateFacts


class StatesBetween(NamedTuple):
    """The compared facts of a log at two points."""

    before: AsOf
    after: AsOf
    old: StateFacts
    new: StateFacts


async def states_between(
    source: LogSource, first: LogPoint, second: LogPoint, session: str | None, progress: Progress
) -> StatesBetween:
    """Return the facts of a log at two points, the earlier one first; of one session, if given.

    Raises CorruptLog, UnreadableEvent, CutOff or CutMeanwhile.
    """
    replay = Replay(source, second.sequence, session, progress)
    before = await replay.to(first)
    old = state_facts(replay.state, session, replay.origins)
    if first.index != MAX_INDEX:  # a fold cannot continue inside a record
        replay = Replay(source, second.sequence, session, progress)
    after = await replay.to(second)
    return StatesBetween(before, after, old, state_facts(replay.state, session, replay.origins))


def sessions_changed(old: StateFacts, new: StateFacts) -> Iterator[ChangedSession]:
    """Yield the sessions that differ, in order."""
    for name in sorted(old.sessions.keys() | new.sessions.keys()):
        one, other = old.sessions.get(name), new.sessions.get(name)
        if one != other:
            yield ChangedSession(name, one, other)


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
