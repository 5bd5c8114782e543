"""Search of a log for the histories of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.errors import UsageError
from eventstore.format.event_parsing import entries
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import Position, format_position, from_runs, index_of, sequence_of
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.progress import Progress, silent
from projections.past.event_reader import refs_of
from projections.past.indexed_stories import find_indexed_stories
from projections.past.receiver_past import add_receiver_past
from projections.past.story_builder import StoryBuilder
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format.records import Record
    from eventstore.reading.log_source import LogSource
    from projections.past.message_story import MessageStory

_UPDATE_EVERY = 16
_REPEATING = (b'"MessagesCarried"', b'"will":[')
"""Substrings of the records that repeat messages or contain wills."""


async def find_stories(
    source: LogSource,
    *,
    matches: Callable[[str], bool] | None = None,
    last: int = 1,
    topic_filter: str | None = None,
    ref: Position | None = None,
    client: str | None = None,
    until: Position | None = None,
    progress: Progress = silent,
) -> list[MessageStory]:
    """Return the histories of the last messages whose topic ``matches``, or of the one at ``ref``.

    With ``topic_filter``, which must be the filter of ``matches``, the index of the log is used.

    With ``client`` each history shows this session's subscriptions at that time, its earlier
    session if it had none, and messages that were dropped because it did not read. Messages of
    which nothing is known are left out, and those published after ``until``. Raises CorruptLog,
    UnreadableEvent or CutMeanwhile.
    """
    found = await find_indexed_stories(
        source,
        topic_filter=topic_filter,
        matches=matches,
        last=last,
        ref=ref,
        client=client,
        until=until,
    )
    if found is None:
        found = await _read_stories(source, matches, last, ref, client, until, progress)
    if client is not None:
        await add_receiver_past(source, found, client)
    return found


async def _read_stories(
    source: LogSource,
    matches: Callable[[str], bool] | None,
    last: int,
    ref: Position | None,
    client: str | None,
    until: Position | None,
    progress: Progress,
) -> list[MessageStory]:
    """Return the histories of messages from all records of the log."""
    explainer = StoryBuilder(
        wanted=matches, last=last, ref=ref, client=client, begin=source.begin, until=until
    )
    if source.begin > 1:
        with progress("searching for messages from before the cut", source.last) as update:
            async for record in source.records_with(_REPEATING, update):
                explainer.look_ahead(record)
    turns = TurnAssembler()
    with progress("reading", source.last) as update:
        async for record in source.records(source.begin, source.last):
            for part in turns.take(record)[1]:
                _take(explainer, part)
            if record.sequence % _UPDATE_EVERY == 0:
                update(record.sequence)
    return [story for story in explainer.stories.values() if story.known]


def _take(explainer: StoryBuilder, record: Record) -> None:
    try:
        explainer.take(record)
    except INCONSISTENCIES as error:
        raise inconsistency(record, error) from error


async def message_at(source: LogSource, place: Position) -> Position:
    """Return the position of the message at a position, or of the message that its event concerns.

    For a retained message that a checkpoint repeated, it is the earliest position in the log.
    Raises UsageError if there is none, CorruptLog or CutMeanwhile.
    """
    sequence = sequence_of(place)
    if not 1 <= sequence <= source.last:
        raise UsageError(
            f"position {format_position(place)} is beyond the log, whose last record is "
            f"{source.last}"
        )
    if sequence < source.first:
        return place
    record = next(one for one in await source.some([sequence]) if one.sequence == sequence)
    for index, event in record.events():
        offset = index_of(place) - index
        if not 0 <= offset < entries(event):
            continue
        if isinstance(event, MessagePublished):
            return place
        refs = refs_of(event)
        if isinstance(event, (MessagesCarried, RetainedSnapshot)):
            refs = from_runs(event.refs)
        if offset < len(refs) and refs[offset] < place:
            return await message_at(source, refs[offset])
        raise UsageError(
            f"position {format_position(place)} is not a message but {event.e}: foldmq log --from "
            f"{format_position(place)} -n 1 shows it"
        )
    raise UsageError(
        f"there is no position {format_position(place)}: record {sequence} ends before"
    )
