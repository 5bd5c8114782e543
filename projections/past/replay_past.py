"""What the replays of a client did with a message: read it, not yet, or never will."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format.events import ReplayReached
from eventstore.format.positions import MAX_INDEX, sequence_of
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import asked_of
from eventstore.reading.log_points import LogPoint
from projections.past.event_reader import EventFilter, EventReader
from projections.past.indexed_sessions import IndexedSessions
from projections.past.subscriber_state import ReadMark, ReplayPast
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource
    from projections.past.message_story import MessageStory
    from projections.state.session import ReplayState, SessionState


async def replays_of(source: LogSource, client: str) -> SessionState | None:
    """Return the session of a client at the end of a log if it has replays; else None.

    Raises as ``LogSource.records``.
    """
    end = LogPoint(source.last)
    state = await asked_of(source, lambda one: IndexedSessions(one).at(client, end))
    return state if state is not None and state.replays else None


async def replays_of_message(
    source: LogSource, state: SessionState, story: MessageStory
) -> list[ReplayPast]:
    """Return what each replay did with a message that matches; raises as ``LogSource.records``."""
    found = []
    for name, held in state.replays.items():
        replay = held.replay
        if replay is None or not matches(replay.topic_filter, story.topic or ""):
            continue
        reason = _never(replay, story)
        through = replay.through.get("", -1)
        mark = None
        if not reason and through >= story.effective_at:
            mark = await _read_mark(source, state.session, name, story)
        found.append(ReplayPast(name, through, replay.state, reason, mark))
    return found


def _never(replay: ReplayState, story: MessageStory) -> str:
    """Return why a replay does not read a message; empty: it reads it."""
    at, time_ms = story.effective_at, story.time_ms or 0
    start, until = replay.start.get(""), replay.until.get("")
    if start is not None and at <= start:
        return "last" if replay.last else "before"
    if start is None and story.time_ms is not None and time_ms < replay.start_ms:
        return "before"
    if until is not None and at > until:
        return "after"
    return "after" if 0 < replay.until_ms < time_ms else ""


async def _read_mark(
    source: LogSource, client: str, topic_filter: str, story: MessageStory
) -> ReadMark | None:
    """Return the step in which a replay passed a message; None: the log does not show it."""
    reader = EventReader(source, EventFilter((ReplayReached,), client))
    first = LogPoint(max(source.begin, sequence_of(story.effective_at)), 0)
    last = LogPoint(source.last, MAX_INDEX)
    turns = TurnAssembler(anywhere=True)
    async for entry in reader.entries(first, last, turns, ended=True):
        event = entry.event
        if not isinstance(event, ReplayReached) or entry.void or event.filter != topic_filter:
            continue
        if event.through.get("", -1) >= story.effective_at:
            gap = event.gap.get("")
            unread = bool(gap) and gap is not None and gap[0] <= story.effective_at <= gap[-1]
            return ReadMark(entry.at, entry.time_ms, event.sent, event.left_out, unread)
    return None
