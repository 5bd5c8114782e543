"""``foldmq replay``: the state as of a point in time: totals, one session or retained messages."""

import sys
import time
from collections.abc import Iterator, Sequence
from heapq import nsmallest

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.point_resolution import parse_point, point_at, points_at, write_clock_notes
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from eventstore.display import log_prefix
from eventstore.errors import NotFound, UsageError
from eventstore.partitions import short_name
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from eventstore.reading.progress import Progress
from projections.past.indexed_sessions import session_at
from projections.past.joined_state import JoinedRetained, JoinedState, fold_logs
from projections.past.replay import AsOf, Replay
from projections.past.topic_lookup import MessageTopics
from projections.state.session import SessionState
from projections.views.session_text import session_lines
from projections.views.session_view import (
    SessionView,
    members_of,
    session_view,
    with_messages,
)
from projections.views.state_view import (
    TotalsView,
    retained_line,
    retained_view,
    shared_count,
    totals_lines,
    totals_view,
)
from projections.views.vocabulary import json_object
from protocol.mqtt.shared_filters import SHARE

_LISTED = 20


@run_to_end
async def run_replay(
    flags: SourceFlags, at: str | None, session: str | None, topic: str | None, *, as_json: bool
) -> None:
    """Print the state as of a point in time; raises NotFound if the session did not exist."""
    moment = parse_point(at) if at is not None else None
    if topic is not None:
        check_filter(topic)
        if session is not None:
            raise UsageError("--session and --topic cannot be combined")
    async with open_logs(flags, session, indexed=session is not None) as logs:
        await write_clock_notes(logs, moment)
        logs.check_comparable(moment)
        if session is not None:
            source = logs.only(session)
            point = await point_at(source, moment)
            as_of, view = await session_view_at(source, session, point, progress)
            lines = _session(view, as_of, moment, as_json=as_json)
        else:
            joined = await fold_logs(logs, await points_at(logs, moment), progress)
            title = _as_of(joined, moment)
            if topic is not None:
                lines = _retained(joined, topic, title, as_json=as_json)
            else:
                objects = state_objects(joined, moment)
                lines = map(text.json_line, objects) if as_json else summary_lines(joined, title)
        for line in lines:
            sys.stdout.write(line + "\n")


async def session_view_at(
    source: LogSource, name: str, point: LogPoint, progress: Progress
) -> tuple[AsOf, SessionView]:
    """Return a session at a point of its log; raises NotFound if it did not exist."""
    members = None
    group = name.startswith(SHARE)
    indexed = None if group else await session_at(source, name, point)
    if indexed is not None:
        record = (await source.some([point.sequence]))[0]
        as_of = AsOf(point, record.time_ms, record.jumps.total_ms)
        state, carried, unsure = indexed.state, indexed.carried, None
    else:
        # The members of a shared subscription are in the events of their own sessions.
        replay = Replay(source, point.sequence, None if group else name, progress)
        as_of = await replay.to(point)
        state, carried = replay.state.sessions.get(name), replay.state.carried
        unsure = replay.state.unsure_session(name)
        if group:
            members = members_of(name, replay.state.sessions.values())
    if state is None:
        lost = None if indexed is not None else replay.state.unsure_state()
        missing = f"no session {text.name(name)} as of {as_of}"
        raise NotFound(missing if lost is None else f"{missing}; {lost}")
    topics = MessageTopics(source, carried)
    view = session_view(
        state,
        jumped_ms=as_of.jumped_ms,
        members=members,
        last=as_of.point.sequence,
        unsure=unsure,
    )
    await topics.load(row.position for row in view.messages())
    return as_of, with_messages(view, topics)


def session_at_object(as_of: AsOf, view: SessionView) -> dict[str, object]:
    """Return a session as of a moment as a JSON object."""
    return {**as_of.fields(), **_object(view)}


def _session(
    view: SessionView, as_of: AsOf, moment: PointSpec | None, *, as_json: bool
) -> Iterator[str]:
    if as_json:
        return iter([text.json_line(session_at_object(as_of, view))])
    now_ms = round(time.time() * 1000)
    if moment is not None:
        now_ms = as_of.record_ms if moment.time_ms is None else moment.time_ms
    return session_lines(view, as_of, now_ms)


def _object(view: object, log: str = "") -> dict[str, object]:
    fields = json_object(view)
    assert isinstance(fields, dict)  # noqa: S101 - every view is an object
    return {"log": log, **fields} if log else fields


def _as_of(joined: JoinedState, moment: PointSpec | None) -> str:
    """Return the moment of a state: with several logs a time, since a position is one of a log."""
    if not joined.several:
        return str(joined.parts[0].as_of)
    last_ms = _last_ms(joined, moment)
    return "before the first record" if last_ms is None else text.clock(last_ms)


def _last_ms(joined: JoinedState, moment: PointSpec | None) -> int | None:
    return joined.last_ms if moment is None else moment.time_ms


# ----------------------------------------------------------------------------- totals


def totals(joined: JoinedState) -> TotalsView:
    """Return the totals of a state."""
    retained = ((each.message, each.everywhere) for each in joined.retained())
    return totals_view((state for _, state in joined.sessions()), retained)


def summary_lines(joined: JoinedState, as_of: str) -> Iterator[str]:
    """Yield a state as text, largest sessions first."""
    of_logs = f" of {text.count_of(len(joined.parts), 'log')}" if joined.several else ""
    yield f"state{of_logs} as of {as_of} ({joined.entries:,} entries folded)"
    yield from totals_lines(totals(joined), shared_count(state for _, state in joined.sessions()))
    yield from (f"  {line}" for line in unsure_lines(joined))
    if joined.several:
        yield ""
        for part in joined.parts:
            count = text.count_of(sum(1 for _ in part.sessions()), "session")
            place = f"as of {part.as_of}" if part.as_of.point.sequence else str(part.as_of)
            yield f"  log {part.log}: {count}, {place}"
    yield from _session_lines(list(joined.sessions()))


def _session_lines(sessions: Sequence[tuple[str, SessionState]]) -> Iterator[str]:
    """Yield the largest sessions, each with its log if there are several."""
    if not sessions:
        return
    listed = nsmallest(_LISTED, sessions, key=lambda each: _weight(each[1]))
    width = max(len(short_name(log)) for log, _ in listed)
    title = f"{'log':<{width + 2}}" if width else ""
    yield ""
    yield f"  {title}{'session':<32} {'':<9} {'subscr.':>9} {'in flight':>9} {'queued':>10}"
    for log, held in listed:
        sent = len(held.inflight) + len(held.releasing)
        state_word = "connected" if held.connected else "offline"
        if held.session.startswith(SHARE):
            state_word = "shared"
        where = f"{short_name(log):<{len(title)}}"
        yield (
            f"  {where}{text.name(held.session, 32):<32} {state_word:<9} {len(held.active()):>9,} "
            f"{sent:>9,} {held.queued:>10,}"
        )
    if len(sessions) > len(listed):
        yield f"  and {len(sessions) - len(listed):,} more sessions (--json lists all)"


def unsure_lines(joined: JoinedState) -> Iterator[str]:
    """Yield what is not certain of the states of logs that lack records."""
    for part in joined.parts:
        if (unsure := part.state.unsure_state()) is not None:
            yield f"{log_prefix(part.log)}{unsure}"


def _weight(state: SessionState) -> tuple[int, int, bool, str]:
    sent = len(state.inflight) + len(state.releasing)
    return -state.queued, -sent, not state.connected, state.session


def state_objects(joined: JoinedState, moment: PointSpec | None) -> Iterator[dict[str, object]]:
    """Yield JSON objects: the totals, every session, and every retained message."""
    head: dict[str, object] = {"kind": "state"}
    all_of = _object(totals(joined))
    if joined.several:
        last_ms = _last_ms(joined, moment)
        head["time"] = None if last_ms is None else text.iso(last_ms)
        head["logs"] = [
            {
                "log": part.log,
                **part.as_of.fields(),
                "entries": part.state.entries,
                "sessions": sum(1 for _ in part.sessions()),
                "retained": len(part.state.retained),
            }
            for part in joined.parts
        ]
    else:
        head.update(joined.parts[0].as_of.fields())
    unsure = list(unsure_lines(joined))
    if unsure:
        head["unsure"] = unsure
    yield {**head, "entries": joined.entries, **all_of}
    jumped, nodes = _jumped_by_log(joined), {part.log: part.state for part in joined.parts}
    for log, state in joined.sessions():
        why = nodes[log].unsure_session(state.session)
        shown = _object(session_view(state, jumped_ms=jumped[log], unsure=why), log)
        yield {"kind": "session", **shown}
    for retained in joined.retained():
        yield {"kind": "retained", **_retained_object(retained, jumped)}


def _jumped_by_log(joined: JoinedState) -> dict[str, int]:
    return {part.log: part.as_of.jumped_ms for part in joined.parts}


def _retained(
    joined: JoinedState, topic_filter: str, as_of: str, *, as_json: bool
) -> Iterator[str]:
    if as_json:
        for note in unsure_lines(joined):
            write_notice(note)
        yield from map(text.json_line, retained_objects(joined, topic_filter))
        return
    messages, jumped = list(joined.retained(topic_filter)), _jumped_by_log(joined)
    count = text.count_of(len({each.message.topic for each in messages}), "retained message")
    yield f"{count} on {text.name(topic_filter)} as of {as_of}"
    yield from (f"  {line}" for line in unsure_lines(joined))
    for each in messages:
        line = retained_line(retained_view(each.message, jumped[each.log]), each.message.payload)
        only = "" if each.everywhere else f" (in {', '.join(map(short_name, each.logs))} only)"
        yield f"{f'  {short_name(each.log)}' if each.log else ''}{line}{only}"


def retained_objects(joined: JoinedState, topic_filter: str) -> Iterator[dict[str, object]]:
    """Yield the retained messages on matching topics as JSON objects."""
    jumped = _jumped_by_log(joined)
    return (_retained_object(each, jumped) for each in joined.retained(topic_filter))


def _retained_object(retained: JoinedRetained, jumped: dict[str, int]) -> dict[str, object]:
    only = {} if retained.everywhere else {"only_in": list(retained.logs)}
    view = retained_view(retained.message, jumped[retained.log])
    payload = text.payload_field(retained.message.payload)
    return {**_object(view, retained.log), **payload, **only}
