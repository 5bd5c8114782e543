"""The state of a node or cluster with several logs: each folded to a moment, and joined.

A session is in the log that its client identifier belongs to; a shared subscription also in each
log with members. The sessions that stand for other logs are left out. Every log has all retained
messages: one that has not been taken by all logs at the moment is shown with the logs that have it.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from eventstore.errors import naming_log
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import MAX_INDEX
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress
from projections.past.replay import AsOf, Replay
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState
from projections.views.differences import (
    ChangedRetained,
    ChangedSession,
    StateFacts,
    retained_changes,
    sessions_changed,
    state_facts,
)
from protocol.mqtt.message_properties import expiry_of, with_remaining_expiry


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of one of the logs."""

    log: str
    """Its name; empty: the only one."""
    as_of: AsOf
    state: NodeState

    def sessions(self) -> Iterator[SessionState]:
        """Yield its sessions; of several logs without those that stand for other logs."""
        for name, state in self.state.sessions.items():
            if not (self.log and name.startswith(LOG_SESSION)):
                yield state


class JoinedRetained(NamedTuple):
    """A retained message, with the logs that have it."""

    log: str
    """The first log that has it; its position is one of that log."""
    message: RetainedMessage
    logs: tuple[str, ...]
    everywhere: bool
    """Whether all logs have it."""


class JoinedState:
    """The states of all logs as of a moment."""

    def __init__(self, parts: list[LogState]) -> None:
        """Take the states of the logs, in the order of the logs."""
        self.parts = parts

    @property
    def several(self) -> bool:
        """Whether the logs have names."""
        return "" not in {part.log for part in self.parts}

    @property
    def entries(self) -> int:
        """Number of entries that were folded."""
        return sum(part.state.entries for part in self.parts)

    @property
    def last_ms(self) -> int | None:
        """Time of the last record of all, in Unix milliseconds; None: no log has one."""
        times = (part.as_of.record_ms for part in self.parts if part.as_of.point.sequence)
        return max(times, default=None)

    def sessions(self) -> Iterator[tuple[str, SessionState]]:
        """Yield log and session of all sessions, log by log."""
        for part in self.parts:
            for state in part.sessions():
                yield part.log, state

    def retained(self, topic_filter: str | None = None) -> Iterator[JoinedRetained]:
        """Yield the retained messages, or those on matching topics: each version of a topic once.

        Two logs have the same version if payload, QoS and properties are equal. The message expiry
        interval is not compared: a log that took the message has what was left of it then.
        """
        for number, part in enumerate(self.parts):
            retained = part.state.retained
            messages = retained.all() if topic_filter is None else retained.match(topic_filter)
            for message in messages:
                topic = message.topic
                before = self.parts[:number]
                if all(earlier.state.retained.get(topic) is None for earlier in before):
                    yield from self._versions(topic)

    def _versions(self, topic: str) -> Iterator[JoinedRetained]:
        versions: dict[tuple[object, ...], list[tuple[str, RetainedMessage]]] = {}
        for part in self.parts:
            message = part.state.retained.get(topic)
            if message is not None:
                block = message.block
                if expiry_of(block) is not None:
                    block = with_remaining_expiry(block, 0)
                version = (message.payload, message.qos, block)
                versions.setdefault(version, []).append((part.log, message))
        for same in versions.values():
            log, message = same[0]
            logs = tuple(name for name, _ in same)
            yield JoinedRetained(log, message, logs, len(logs) == len(self.parts))


async def fold_logs(
    logs: Mapping[str, LogSource], points: Mapping[str, LogPoint], progress: Progress
) -> JoinedState:
    """Fold each log up to a point.

    Raises CorruptLog, UnreadableEvent, CutMeanwhile, and CutOff if the state of a log there is not
    known.
    """
    parts = []
    for log, point in points.items():
        with naming_log(log):
            replay = Replay(logs[log], point.sequence, None, progress)
            as_of = await replay.to(point)
        parts.append(LogState(log, as_of, replay.state))
    return JoinedState(parts)


class StatesBetween(NamedTuple):
    """The compared facts of a log at two points.

    With its name, which is empty for a single log, they are an element of :data:`LogChanges`.
    """

    before: AsOf
    after: AsOf
    old: StateFacts
    new: StateFacts
    unsure: str | None = None
    """What is not certain of one of the states; None: all of both is."""


LogChanges: TypeAlias = Sequence[tuple[str, StatesBetween]]


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
    unsure = _unsure(replay.state, session)
    if first.index != MAX_INDEX:  # a fold cannot continue inside a record
        replay = Replay(source, second.sequence, session, progress)
    after = await replay.to(second)
    new = state_facts(replay.state, session, replay.origins.of)
    return StatesBetween(before, after, old, new, _unsure(replay.state, session) or unsure)


def _unsure(state: NodeState, session: str | None) -> str | None:
    if session is not None and session in state.sessions:
        return state.unsure_session(session)
    return state.unsure_state()


async def changes_in_logs(
    logs: Mapping[str, LogSource],
    starts: Mapping[str, LogPoint],
    ends: Mapping[str, LogPoint],
    session: str | None,
    progress: Progress,
) -> AsyncIterator[tuple[str, StatesBetween]]:
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
        yield log, states


def joined_sessions_changed(changes: LogChanges) -> list[tuple[str, ChangedSession]]:
    """Return log and change of the sessions that differ, by name."""
    changed = [
        (log, each) for log, states in changes for each in sessions_changed(states.old, states.new)
    ]
    return sorted(changed, key=lambda pair: pair[1].name)


def joined_retained_changes(changes: LogChanges) -> list[JoinedChange]:
    """Return the retained messages that differ, by topic.

    A topic that changed in some logs only, or not in the same way, has an element for each way.
    """
    ways: dict[ChangedRetained, list[str]] = {}
    for log, states in changes:
        for way in retained_changes(states.old.retained, states.new.retained):
            ways.setdefault(way, []).append(log)
    joined = [
        JoinedChange(way, tuple(logs), len(logs) == len(changes)) for way, logs in ways.items()
    ]
    return sorted(joined, key=lambda each: each.change.topic)
