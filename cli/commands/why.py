"""``foldmq why``: prints what happened to a message."""

import asyncio
import sys
import time

from cli.common import text
from cli.common.colour import has_colours, painted
from cli.common.progress_bar import progress
from cli.logs.logs import flags_of_session, open_logs
from cli.logs.point_resolution import parse_point, point_at, write_clock_notes
from cli.logs.source_flags import SourceFlags
from cli.logs.topic_flags import check_filter
from eventstore.errors import CutOff, NotFound, UsageError, naming_log
from eventstore.format.positions import Position, format_position, position
from projections.past.log_stories import (
    LogStory,
    WantedStories,
    find_histories,
    published_anywhere,
)
from projections.past.message_search import message_at
from projections.past.missing_message import explain_no_message
from projections.past.story_text import TextStyle, log_story_lines, story_object


def run_why(
    flags: SourceFlags,
    client: str | None,
    topic: str | None,
    where: str | None,
    last: int,
    when: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Print the history of messages; raises NotFound if there are none.

    ``when`` is the moment up to which messages are searched.
    """
    if (topic is None) == (where is None):
        raise UsageError("give either --topic or --position")
    if when is not None and topic is None:
        raise UsageError("--at needs --topic: --position names one message already")
    asyncio.run(_run(flags, client, topic, where, last, when, as_json=as_json))


async def _run(
    flags: SourceFlags,
    client: str | None,
    topic: str | None,
    where: str | None,
    last: int,
    when: str | None,
    *,
    as_json: bool,
) -> None:
    if topic is not None:
        check_filter(topic)
    moment = parse_point(when) if when is not None else None
    place = _position(where) if where is not None else None
    flags = flags_of_session(flags, client)
    async with open_logs(flags, whole=True) as logs:
        anywhere = topic is not None and client is None and flags.node is None and logs.several
        home = next(iter(logs)) if anywhere else logs.home(flags.node)
        source = logs[home]
        for log, one in logs.items():
            with naming_log(log):
                one.require_whole()
        ref = await message_at(source, place) if place is not None else None
        until = None
        await write_clock_notes(logs, moment)
        if moment is not None and not anywhere:
            point = await point_at(source, moment)
            until = position(point.sequence, point.index)
        wanted = WantedStories(topic, client, last, ref, until, moment)
        if topic is not None and anywhere:
            groups = await published_anywhere(logs, topic, last, moment, progress)
        else:
            groups = await find_histories(logs, home, wanted, progress)
        found = [one for group in groups for one in group]
        explanation = ""
        if not found and topic is not None:
            explanation = "messages of QoS 0 are recorded only if they are retained"
            if not anywhere:
                explanation = await explain_no_message(source, topic, client, until)
    if not found and ref is not None:
        raise CutOff(
            f"position {format_position(ref)} was deleted, and no record refers to it: "
            f"{source.beginning()}"
        )
    if not found:
        cut = f"; {source.beginning()}" if source.cut is not None else ""
        by = f" until {text.escaped(when)}" if when is not None else ""
        which = f"logs of {', '.join(logs)} record" if logs.several else "log records"
        known = f"the {which} no message on {text.name(topic or '')}{by}{cut}"
        raise NotFound(f"{known}; {explanation}")
    _write(found, flags.node, client, as_json=as_json)


def _on_stdout(said: str, style: TextStyle | None) -> str:
    return painted(said, style, sys.stdout)


def _write(found: list[LogStory], node: str | None, client: str | None, *, as_json: bool) -> None:
    """Print histories; ``node`` is the log that has the session of the client."""
    paint = _on_stdout if has_colours(sys.stdout) else None
    now_ms = int(time.time() * 1000)
    for number, one in enumerate(found):
        log, story, note = one
        if as_json:
            mine = client if log in ("", node) else None
            more = {"log": log, **({"note": note} if note else {})} if log else {}
            sys.stdout.write(text.json_line({**more, **story_object(story, mine)}) + "\n")
            continue
        if number:
            sys.stdout.write("\n")
        if log:
            sys.stdout.write(f"log {log}\n")
        for line in log_story_lines(one, node, client, now_ms, paint):
            sys.stdout.write(line + "\n")


def _position(where: str) -> Position:
    moment = parse_point(where)
    if moment.position is None:
        raise UsageError(f'not a position: "{text.escaped(where)}"; expected one such as 12.3')
    if "." not in moment.text:
        return moment.position & ~((1 << 20) - 1)
    return moment.position
