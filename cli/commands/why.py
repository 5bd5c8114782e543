"""``foldmq why``: prints what happened to a message."""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from cli.common import text
from cli.common.colour import has_colours, painted
from cli.common.progress_bar import progress
from cli.logs.logs import flags_of_session, open_logs
from cli.logs.point_resolution import parse_point, point_at, write_clock_notes
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from eventstore.errors import CutOff, NotFound, UsageError, naming_log
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import Position, format_position, position, sequence_of
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress
from projections.log_proof import statement
from projections.past.forwarding import (
    ForwardOutcome,
    MessageOrigin,
    find_copies,
    find_forwards,
    find_origin,
)
from projections.past.log_stories import (
    LogStory,
    WantedMessages,
    find_histories,
    published_anywhere,
)
from projections.past.lost_records import lost_before, lost_records
from projections.past.message_search import message_at
from projections.past.missing_message import explain_no_message
from projections.past.story_text import log_story_lines, story_object


@run_to_end
async def run_why(
    flags: SourceFlags,
    client: str | None,
    topic: str | None,
    where: str | None,
    last: int,
    when: str | None = None,
    origin: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Print the history of messages; raises NotFound if there are none.

    ``when`` is the moment up to which messages are searched. ``origin`` is the log of another
    broker in which the position is.
    """
    if (topic is None) == (where is None):
        raise UsageError("give either --topic or --position")
    if when is not None and topic is None:
        raise UsageError("--at needs --topic: --position names one message already")
    if topic is not None:
        check_filter(topic)
    if origin is not None and where is None:
        raise UsageError("--origin needs --position: a position in the log that it names")
    moment = parse_point(when) if when is not None else None
    place = position_of_message(where) if where is not None else None
    flags = flags_of_session(flags, client)
    async with open_logs(flags, whole=True, indexed=True) as logs:
        anywhere = topic is not None and client is None and flags.node is None and logs.several
        home = None if anywhere or origin is not None else logs.home(flags.node)
        for log, source in logs.items():
            with naming_log(log):
                source.require_whole()
        await write_clock_notes(logs, moment)
        if origin is not None and place is not None:
            home, place = await _brought(logs, flags.node, origin, place)
        question = WantedMessages(topic, client, last, place, moment=moment)
        stories = await find_messages(logs, home, question, progress)
        ways = [await _way(logs, story) for story in stories]
    _write(stories, ways, flags.node, client, as_json=as_json)


async def _brought(
    logs: Mapping[str, LogSource], node: str | None, origin: str, place: Position
) -> tuple[str, Position]:
    """Return the log and the position of a message that a connection brought from another log."""
    for log, source in logs.items():
        if node in (None, log) or len(logs) == 1:
            for ref in reversed(await find_copies(source, origin, place)):
                return log, ref
    raise NotFound(
        f"no connection brought the message at position {format_position(place)} of log "
        f"{text.name(origin)} here, or that was deleted; messages at QoS 2 and over MQTT 3.1.1 "
        "come without their position: search them with --topic"
    )


class _Way(NamedTuple):
    """Where a message came from, and where it went, beside its history."""

    origin: MessageOrigin | None
    forwards: Sequence[ForwardOutcome]


async def _way(logs: Mapping[str, LogSource], log_story: LogStory) -> _Way:
    """Return the bridge that brought a message, and what destinations got of it."""
    source, story = logs.get(log_story.log), log_story.story
    if source is None:
        return _Way(None, ())
    copied = (story.session or "").startswith(LOG_SESSION)  # copies of other logs are due to none
    forwards = [] if copied else await find_forwards(source, story)
    return _Way(await find_origin(source, story.ref), forwards)


async def find_messages(
    logs: Mapping[str, LogSource], log: str | None, question: WantedMessages, progress: Progress
) -> list[LogStory]:
    """Return the histories of messages, searched in one of the logs, or in all without ``log``.

    Raises NotFound and CutOff if there are none, UsageError, and as ``LogSource.records``.
    """
    topic, client, last, ref, _, moment = question
    source = logs[next(iter(logs)) if log is None else log]
    ref = await message_at(source, ref) if ref is not None else None
    until = None
    if moment is not None and log is not None:
        point = await point_at(source, moment)
        until = position(point.sequence, point.index)
    if topic is not None and log is None:
        groups = await published_anywhere(logs, topic, last, moment, progress)
    else:
        question = question._replace(ref=ref, until=until)
        groups = await find_histories(logs, log or "", question, progress)
    stories = [log_story for group in groups for log_story in group]
    lost = {
        name: [*lost_before(own), *await lost_records(own, own.last)] for name, own in logs.items()
    }
    for log_story in stories:
        # Of a client, also its subscriptions from before the message count.
        since = sequence_of(log_story.story.ref) if client is None else 0
        log_story.story.not_proven = [
            statement(doubt) for doubt in lost.get(log_story.log, ()) if doubt.until >= since
        ]
    if stories:
        return stories
    if ref is not None:
        raise CutOff(
            f"position {format_position(ref)} was deleted, and no record refers to it: "
            f"{source.beginning()}"
        )
    explanation = "messages of QoS 0 are recorded only if they are retained"
    if topic is not None and log is not None:
        explanation = await explain_no_message(source, topic, client, until)
    cut = f"; {source.beginning()}" if source.cut is not None else ""
    by = f" until {text.escaped(moment.text)}" if moment is not None else ""
    which = "log records" if "" in logs else f"logs of {', '.join(logs)} record"
    unknown = "".join(f"; {statement(doubt)}" for doubts in lost.values() for doubt in doubts)
    raise NotFound(
        f"the {which} no message on {text.name(topic or '')}{by}{cut}; {explanation}{unknown}"
    )


def _write(
    stories: list[LogStory],
    ways: list[_Way],
    node: str | None,
    client: str | None,
    *,
    as_json: bool,
) -> None:
    """Print histories; ``node`` is the log that has the session of the client."""
    paint = partial(painted, stream=sys.stdout) if has_colours(sys.stdout) else None
    now_ms = int(time.time() * 1000)
    for number, (story, (origin, forwards)) in enumerate(zip(stories, ways, strict=True)):
        if as_json:
            more = log_story_object(story, node, client)
            if origin is not None:
                more["origin"] = origin.as_object()
            if forwards:
                more["destinations"] = [outcome.as_object() for outcome in forwards]
            sys.stdout.write(text.json_line(more) + "\n")
            continue
        lines = [*([""] if number else ()), *([f"log {story.log}"] if story.log else ())]
        lines += log_story_lines(story, node, client, now_ms, paint)
        lines += [f"  {origin.text()}"] if origin is not None else []
        for outcome in forwards:
            lines += [f"  {line}" for line in (outcome.text(), outcome.there) if line]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def log_story_object(history: LogStory, node: str | None, client: str | None) -> dict[str, object]:
    """Return a history as a JSON object; ``node`` is the log with the session of the client."""
    log, story, note = history
    mine = client if log in ("", node) else None
    more = {"log": log, **({"note": note} if note else {})} if log else {}
    return {**more, **story_object(story, mine)}


def position_of_message(typed: str) -> Position:
    """Return a position as typed, of a record that of its first event; raises UsageError."""
    moment = parse_point(typed)
    if moment.position is None:
        raise UsageError(f'not a position: "{text.escaped(typed)}"; expected one such as 12.3')
    return moment.position if "." in moment.text else position(sequence_of(moment.position), 0)
