"""Histories of messages in the logs of a node: in the log of the publication, and in others."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from eventstore import display
from eventstore.errors import UsageError
from eventstore.format.node_events import Followed
from eventstore.format.positions import Position, position
from eventstore.reading.log_points import LogPoint, last_until
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from eventstore.reading.progress import Progress
from projections.past.event_reader import EventFilter, effective_entries
from projections.past.message_search import find_stories
from projections.past.message_story import MessageStory
from projections.past.origin_search import OriginPlace, origin_of, published_here, taken_from
from projections.past.receiver_past import replays_of, replays_of_message
from projections.past.receiver_reason import replay_reason

_LOOK_BACK: Final = 64
"""Records to read first for the last event; each further attempt reads 8 times as many."""


class LogStory(NamedTuple):
    """The history of a message in one of the logs."""

    log: str
    story: MessageStory
    note: str = ""
    """A note about it from the log of the receiver."""


class WantedMessages(NamedTuple):
    """The messages that a question is about: the last ones on a topic, or one."""

    topic: str | None
    client: str | None
    last: int = 1
    ref: Position | None = None
    until: Position | None = None
    """Position up to which messages are searched."""
    moment: PointSpec | None = None
    """The same as it was given; for other logs, a time."""


async def find_histories(
    logs: Mapping[str, LogSource],
    log: str,
    wanted: WantedMessages,
    progress: Progress,
) -> list[list[LogStory]]:
    """Return the histories of messages: for each message, its history in all logs that have it.

    ``log`` is that of the receiver, or of the message; a single one has an empty name. Raises
    UsageError, and as ``LogSource.records``.
    """
    topic, client = wanted.topic, wanted.client
    stories = await find_stories(
        logs[log],
        topic_filter=topic,
        last=wanted.last,
        ref=wanted.ref,
        client=client,
        until=wanted.until,
        progress=progress,
    )
    groups = await stories_elsewhere(logs, log, stories, progress)
    if client is not None and len(logs) > 1:
        groups = [await _with_replays(logs[log], log, client, group) for group in groups]
    if topic is not None and client is not None:
        others = await not_taken(logs, log, client, topic, wanted.last, wanted.moment, progress)
        if others:
            groups = sorted(groups + others, key=lambda group: group[0].story.time_ms or 0)
    return groups[-wanted.last :]


async def _with_replays(
    source: LogSource, log: str, client: str, group: list[LogStory]
) -> list[LogStory]:
    """Return histories with what the client's replays did with a message of another log."""
    first = group[0] if group else None
    state = await replays_of(source, client) if first is not None and first.log != log else None
    if first is None or state is None:
        return group
    replays = await replays_of_message(source, state, first.story, first.log)
    notes = [f"{display.name(client)} {replay_reason(first.story, replay)}" for replay in replays]
    return [first._replace(note="; ".join(filter(None, [first.note, *notes]))), *group[1:]]


async def published_anywhere(
    logs: Mapping[str, LogSource],
    topic_filter: str,
    last: int,
    moment: PointSpec | None,
    progress: Progress,
) -> list[list[LogStory]]:
    """Return the last messages that clients of any log published on a topic.

    Each is a list of its histories, as of :func:`stories_elsewhere`. Raises UsageError if
    ``moment`` is a position, and as ``LogSource.records``.
    """
    groups: list[list[LogStory]] = []
    for log, source in logs.items():
        stories = [
            story
            for ref in await published_here(source, topic_filter, last, await _end(source, moment))
            for story in await find_stories(source, ref=ref, progress=progress)
        ]
        groups += await stories_elsewhere(logs, log, stories, progress)
    groups.sort(key=lambda group: group[0].story.time_ms or 0)
    return groups[-last:]


async def _end(source: LogSource, moment: PointSpec | None) -> LogPoint:
    """Return the position up to which messages are searched: until a time, or all."""
    if moment is None:
        return LogPoint(source.last)
    if moment.position is not None:
        raise UsageError("--at needs a time here: positions of several logs cannot be compared")
    return LogPoint(await last_until(source, moment.time_ms or 0))


async def stories_elsewhere(
    logs: Mapping[str, LogSource], log: str, stories: list[MessageStory], progress: Progress
) -> list[list[LogStory]]:
    """Return for each message of a log its histories in all logs that have it.

    The log where it was published comes first. Raises as ``LogSource.records``.
    """
    groups: list[list[LogStory]] = []
    for story in stories:
        start = OriginPlace(log, story.ref)
        histories: list[LogStory] = []
        for place in await _places(logs, start):
            if place == start:
                histories.append(LogStory(log, story))
                continue
            more = await find_stories(logs[place.log], ref=place.ref, progress=progress)
            histories += [LogStory(place.log, copy) for copy in more]
        groups.append(histories)
    return groups


async def _places(logs: Mapping[str, LogSource], start: OriginPlace) -> list[OriginPlace]:
    """Return where a message is in all logs, the place where it was published first.

    A message for a shared subscription may pass through several logs.
    """
    origin: OriginPlace | None = start
    while origin is not None:
        start = origin
        origin = await origin_of(logs[start.log], start.ref) if start.log in logs else None
    places = [start]
    for place in places:  # the loop appends to it
        for name, source in logs.items():
            if name != place.log:
                copies = await taken_from(source, place.log, [place.ref])
                places += [OriginPlace(name, ref) for ref in copies.get(place.ref, ())]
    return [place for place in places if place.log in logs]


async def not_taken(
    logs: Mapping[str, LogSource],
    log: str,
    client: str,
    topic_filter: str,
    last: int,
    moment: PointSpec | None,
    progress: Progress,
) -> list[list[LogStory]]:
    """Return the last messages on a topic in other logs that the log of a client did not take.

    Raises UsageError if ``moment`` is a position, and as ``LogSource.records``.
    """
    groups: list[list[LogStory]] = []
    for name, source in logs.items():
        if name == log:
            continue
        refs = await published_here(source, topic_filter, last, await _end(source, moment))
        copies = await taken_from(logs[log], name, refs)
        missing = [
            ref
            for ref in refs
            if ref not in copies
            and all(copy.log != log for copy in await _places(logs, OriginPlace(name, ref)))
        ]
        through = await _followed(logs[log], name) if missing else 0
        for ref in missing:
            for story in await find_stories(source, ref=ref, progress=progress):
                note, who = "", display.name(client)
                if story.effective and (story.effective_at or ref) > through:
                    note = f"log {log}, which has the session {who}, has not taken it"
                elif story.effective:
                    note = (
                        f"log {log}, which has the session {who}, does not have it: "
                        "it matched no session there, or it had expired; foldmq log verify checks "
                        "this"
                    )
                group = [LogStory(name, story, note)]
                groups.append(await _with_replays(logs[log], log, client, group))
    return groups


async def _followed(source: LogSource, log: str) -> Position:
    """Return the position up to which a log has taken another one, reading back from its end."""
    back = _LOOK_BACK
    while True:
        start = max(source.begin, source.last - back + 1)
        through: Position | None = None
        async for entry in effective_entries(source, EventFilter((Followed,)), start):
            if isinstance(entry.event, Followed) and entry.event.log == log:
                through = entry.event.through
        if through is not None:
            return through
        if start == source.begin:
            return position(0, 0)
        back *= 8
