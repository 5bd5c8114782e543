"""The states of one or several logs at a moment, joined, and the differences between two moments.

A session is in the log that its client identifier belongs to; a shared subscription also in each
log with members. The sessions that stand for other logs are left out. Every log has all retained
messages: one that has not been taken by all logs at the moment is shown with the logs that have it.
A single log has an empty name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from eventstore import display
from eventstore.errors import naming_log
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import MAX_INDEX
from eventstore.partitions import directory_name
from projections.past.changed_states import ChangedSession
from projections.past.replay import AsOf, Replay
from projections.past.state_facts import state_facts
from protocol.mqtt.message_properties import expiry_of, with_remaining_expiry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from eventstore.format.positions import Position
    from eventstore.reading.log_points import LogPoint
    from eventstore.reading.log_source import LogSource
    from eventstore.reading.progress import Progress
    from projections.past.state_facts import StateFacts
    from projections.state.node_state import NodeState
    from projections.state.retained import RetainedMessage
    from projections.state.session import SessionState


def short_name(log: str) -> str:
    """Return a name of a log that is unique among those of its node or cluster: ``p0``."""
    return directory_name(log) or log


def _is_shown(log: str, session: str) -> bool:
    return not (log and session.startswith(LOG_SESSION))


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of one of the logs."""

    log: str
    as_of: AsOf
    state: NodeState

    def sessions(self) -> Iterator[SessionState]:
        """Return its sessions without those that stand for other logs."""
        return (one for name, one in self.state.sessions.items() if _is_shown(self.log, name))


class JoinedRetained(NamedTuple):
    """A retained message, with the logs that have it."""

    log: str
    """The first log that has it; its position is one of that log."""
    message: RetainedMessage
    logs: tuple[str, ...]
    everywhere: bool
    """Whether all logs have it."""


class LogStates:
    """The states of all logs as of a moment."""

    def __init__(self, parts: list[LogState], time_ms: int | None = None) -> None:
        """Take the states in the order of the logs, and the time that was asked for, if any."""
        self.parts = parts
        self.jumped_ms = {part.log: part.as_of.jumped_ms for part in parts}
        """Sum of the jumps of the clock in each log: times in states are without them."""
        self._time_ms = time_ms

    @property
    def several(self) -> bool:
        """Whether the logs have names."""
        return all(part.log for part in self.parts)

    @property
    def entries(self) -> int:
        """Number of entries that were folded."""
        return sum(part.state.entries for part in self.parts)

    @property
    def _last_ms(self) -> int | None:
        """The time of the states; None: no log has a record."""
        times = (part.as_of.record_ms for part in self.parts if part.as_of.point.sequence)
        return max(times, default=None) if self._time_ms is None else self._time_ms

    @property
    def as_of(self) -> str:
        """The moment as text: of several logs the given time, or that of the last record."""
        if not self.several:
            return str(self.parts[0].as_of)
        last_ms = self._last_ms
        return "before the first record" if last_ms is None else display.clock(last_ms)

    def fields(self) -> dict[str, object]:
        """Return the moment as fields of a JSON object, of several logs with each of them."""
        if not self.several:
            return self.parts[0].as_of.fields()
        logs = [
            {
                "log": part.log,
                **part.as_of.fields(),
                "entries": part.state.entries,
                "sessions": sum(1 for _ in part.sessions()),
                "retained": len(part.state.retained),
            }
            for part in self.parts
        ]
        last_ms = self._last_ms
        return {"time": None if last_ms is None else display.iso(last_ms), "logs": logs}

    def sessions(self) -> Iterator[tuple[str, SessionState]]:
        """Yield log and session of all sessions, log by log."""
        for part in self.parts:
            for one in part.sessions():
                yield part.log, one

    def retained(self, topic_filter: str | None = None) -> Iterator[JoinedRetained]:
        """Yield the retained messages, or those on matching topics: each version of a topic once.

        Two logs have the same version if payload, QoS and properties are equal. The message expiry
        interval is not compared: a log that took the message has what was left of it then.
        """
        for number, part in enumerate(self.parts):
            for message in _messages(part, topic_filter):
                topic = message.topic
                before = self.parts[:number]
                if all(one.state.retained.get(topic) is None for one in before):
                    yield from self._versions(topic)

    def _versions(self, topic: str) -> Iterator[JoinedRetained]:
        found: dict[tuple[object, ...], list[tuple[str, RetainedMessage]]] = {}
        for part in self.parts:
            message = part.state.retained.get(topic)
            if message is not None:
                block = message.block
                if expiry_of(block) is not None:
                    block = with_remaining_expiry(block, 0)
                version = (message.payload, message.qos, block)
                found.setdefault(version, []).append((part.log, message))
        for same in found.values():
            log, message = same[0]
            logs = tuple(name for name, _ in same)
            yield JoinedRetained(log, message, logs, len(logs) == len(self.parts))


def _messages(part: LogState, topic_filter: str | None) -> Iterable[RetainedMessage]:
    retained = part.state.retained
    return retained.all() if topic_filter is None else retained.match(topic_filter)


async def fold_logs(
    logs: Mapping[str, LogSource],
    points: Mapping[str, LogPoint],
    time_ms: int | None,
    progress: Progress,
) -> LogStates:
    """Fold each log up to a point; ``time_ms`` is the time that was asked for, if any.

    Raises CorruptLog, UnreadableEvent, CutMeanwhile, and CutOff if the state of a log at that time
    is not known.
    """
    parts = []
    for log, source in logs.items():
        with naming_log(log):
            replay = Replay(source, points[log].sequence, None, progress)
            as_of = await replay.to(points[log])
        parts.append(LogState(log, as_of, replay.state))
    return LogStates(parts, time_ms)


# ----------------------------------------------------------------------------- differences


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


class LogChanges(NamedTuple):
    """The states of one of the logs at two moments."""

    log: str
    states: StatesBetween


class JoinedChange(NamedTuple):
    """A retained message that differs in the same way in some logs, or in all."""

    mark: str
    """``+``: added, ``-``: removed, ``~``: replaced."""
    topic: str
    size: int
    """Payload bytes, of a removed message before."""
    logs: tuple[str, ...]
    everywhere: bool
    """Whether it differs so in all logs."""


async def changes_in_logs(
    logs: Mapping[str, LogSource],
    starts: Mapping[str, LogPoint],
    ends: Mapping[str, LogPoint],
    session: str | None,
    progress: Progress,
) -> AsyncIterator[LogChanges]:
    """Yield the states of each log at two points; of one session, if given.

    Raises CorruptLog, UnreadableEvent, CutMeanwhile, and CutOff if the state of a log at one of the
    points is not known.
    """
    for log, source in logs.items():
        with naming_log(log):
            found = await states_between(source, starts[log], ends[log], session, progress)
        for facts in (found.old, found.new):
            for name in [name for name in facts.sessions if not _is_shown(log, name)]:
                del facts.sessions[name]
        yield LogChanges(log, found)


def joined_sessions_changed(changes: Iterable[LogChanges]) -> list[tuple[str, ChangedSession]]:
    """Return log and change of the sessions that differ, by name."""
    found = [
        (one.log, changed)
        for one in changes
        for changed in sessions_changed(one.states.old, one.states.new)
    ]
    return sorted(found, key=lambda each: each[1].name)


def joined_retained_changes(changes: Iterable[LogChanges]) -> list[JoinedChange]:
    """Return the retained messages that differ, by topic.

    A topic that changed in some logs only, or not in the same way, has an element for each way.
    """
    ways: dict[tuple[str, str, int], list[str]] = {}
    count = 0
    for one in changes:
        count += 1
        for way in retained_changes(one.states.old.retained, one.states.new.retained):
            ways.setdefault(way, []).append(one.log)
    found = [
        JoinedChange(mark, topic, size, tuple(logs), len(logs) == count)
        for (mark, topic, size), logs in ways.items()
    ]
    return sorted(found, key=lambda each: each.topic)
