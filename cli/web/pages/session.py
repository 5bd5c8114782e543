"""The page of one session: its current state, and its state at any position of the log."""

import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from cli.logs.broker_client import Refused
from cli.logs.next_commands import completed
from cli.logs.point_resolution import parse_point, point_at
from cli.web.background_fold import Folding, Histories, MarkedHistory
from cli.web.pages.responses import Site, asked, chosen_log, is_fragment, moment_ms, number
from cli.web.pages.session_at import described, of_few_records
from cli.web.pages.time_axis_values import (
    axis_about,
    moment_of,
    moments_compared,
    notes_on_clocks,
    pins_compared,
    place_text,
    shared_moment,
)
from cli.web.svg_charts import bars
from cli.web.time_axis import TimeWindow, axis, window_within
from cli.web.web_log_client import WebLogClient
from eventstore.display import count_of
from eventstore.errors import CutOff, UsageError
from eventstore.format.positions import format_position, position
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from projections.past.event_reader import refs_of
from projections.past.event_text import words
from projections.past.session_history import SessionHistory, SessionMoment
from projections.past.topic_lookup import MessageTopics
from projections.state.session import SessionState
from projections.views.differences import NO_SESSION, SessionFacts, session_diff, session_facts
from projections.views.session_text import history_lines
from projections.views.session_view import session_from, session_view

_PART = 100
_PARTS = (_PART, 10, 1)
"""Numbers of list items to request at once, fewer if names are long."""
_MAX_OFFSET = 1 << 31
_TIMEOUT = 1.0
"""Seconds that a page waits for the history."""
_BARS = 150
_MARGIN = 50
"""The axis begins this fraction of its length before the first event."""
_LINES = 40
"""Maximum number of differences listed."""


class SessionPages:
    """Pages of one session."""

    def __init__(self, link: WebLogClient, site: Site, histories: Histories) -> None:
        self._link = link
        self._site = site
        self._histories = histories
        self._topics: tuple[tuple[str, int, int], MessageTopics] | None = None

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/session", self.session)
        app.router.add_get("/session/timeline", self.timeline)
        app.router.add_get("/session/past", self.past)
        app.router.add_get("/session/diff", self.difference)

    async def session(self, request: web.Request) -> web.Response:
        """Show a session now, or as of ``at``."""
        client = _client(request)
        log = await self._log(request, client)
        if asked(request, "at") is not None:
            values = await self._as_of(request, client, log)
            values |= await self._time_values(request, client, log)
            return self._site.page(request, "session.html", **values)
        offset = number(request, "offset", 0, _MAX_OFFSET)
        view = reason = None
        part, history = _PART, list[str]()
        now_ms = round(time.time() * 1000)
        try:
            answer, part = await self._link.ask_less(
                "session",
                _PARTS,
                lambda most: {"client": client, "offset": offset, "most": most},
                log,
            )
        except Refused as error:
            reason = str(error)
        else:
            view = session_from(answer)
            history = [line.strip() for line in history_lines(answer, now_ms)]
            async with self._link.log(log) as source:
                view = await described(view, source, self._message_topics(source))
        shown = {
            "view": view,
            "gone": reason,
            "offset": offset,
            "part": part,
            "log": log,
            "history": history,
            "now_ms": now_ms,
        }
        shown |= await self._time_values(request, client, log)
        status = 200 if view is not None or is_fragment(request) else 404
        return self._site.page(
            request, "session.html", status, client=client, past=None, folding=None, **shown
        )

    async def _log(self, request: web.Request, client: str) -> str:
        """Return the log that has the session: one that is named, for a session of no client."""
        name = await chosen_log(request, self._link) if client.startswith("$") else ""
        return await self._link.log_of(client, name)

    def _message_topics(self, source: LogSource) -> MessageTopics:
        """Return the cached topics that are still valid."""
        held = (source.stream, self._link.epoch, source.first)
        if self._topics is None or self._topics[0] != held:
            self._topics = held, MessageTopics(source)
        return self._topics[1]

    async def past(self, request: web.Request) -> web.Response:
        """Return the part of the page that the slider changes."""
        client = _client(request)
        values = await self._as_of(request, client, await self._log(request, client))
        return self._site.part(request, "past.html", **values)

    async def timeline(self, request: web.Request) -> web.Response:
        """Return the time axis, once the log has been folded."""
        client = _client(request)
        log = await self._log(request, client)
        history = await self._histories.find(client, _TIMEOUT, log)
        reading = percent = why = drawn = None
        if isinstance(history, Folding):
            reading, percent = _progress(history), history.percent
        elif history.partial:
            why = _too_short(history)
        elif history.first_ms is not None:
            drawn = _axis(request, history, history.first_ms)
        return web.json_response(
            {"axis": drawn, "reading": reading, "percent": percent, "why": why}
        )

    async def difference(self, request: web.Request) -> web.Response:
        """Return the part of the page with the difference between two moments."""
        client = _client(request)
        values = await self._time_values(request, client, await self._log(request, client))
        return self._site.part(request, "difference.html", **values)

    async def _time_values(self, request: web.Request, client: str, log: str) -> dict[str, Any]:
        """Return the values of the time axis for the template."""
        moments = moments_compared(request)
        diff = None
        if moments is not None:
            diff = await self._difference(client, log, [parse_point(text) for text in moments])
        about = axis_about("/session", _address(client, log), "Its events", "timeline")
        return {"about": about, "asked": pins_compared(request, diff)}

    async def _difference(
        self, client: str, log: str, moments: Sequence[PointSpec]
    ) -> dict[str, Any]:
        history = await self._histories.find(client, _TIMEOUT, log)
        if isinstance(history, Folding):
            return {"folding": history}
        async with self._link.log(log) as source:
            points = [_within(history, await point_at(source, spec)) for spec in moments]
            points.sort(key=lambda point: (point.sequence, point.index))
            seen = [await _seen(source, history, point) for point in points]
            ends = [await shared_moment({"": source}, {"": point}) for point in points]
            clocks = await notes_on_clocks({"": source}, *moments)
        return {
            "folding": None,
            "ends": ends,
            "figures": [("Events of this session", f"{seen[1].number - seen[0].number:,}")],
            "lines": _changes(seen[0].state, seen[1].state),
            "clocks": clocks,
        }

    async def _as_of(self, request: web.Request, client: str, log: str) -> dict[str, Any]:
        """Return the session as of a moment for the template."""
        moment = parse_point(asked(request, "at") or "now")
        offset = number(request, "offset", 0, _MAX_OFFSET)
        history = await self._histories.find(client, _TIMEOUT, log)
        values: dict[str, Any] = {"client": client, "gone": None, "offset": offset, "part": _PART}
        values |= {"log": log, "about": {"fields": _address(client, log)}}
        if isinstance(history, Folding):
            return {**values, "folding": history, "past": None, "view": None}
        async with self._link.log(log) as source:
            point = _within(history, await point_at(source, moment))
            past = await self._past(source, history, point, offset)
            past["notes"] = await notes_on_clocks({log: source}, moment)
        view, now_ms = past.pop("view"), past["as_of"].record_ms
        return {**values, "folding": None, "past": past, "view": view, "now_ms": now_ms}

    async def _past(
        self, source: LogSource, history: SessionHistory, point: LogPoint, offset: int
    ) -> dict[str, Any]:
        at = position(point.sequence, point.index)
        seen = await _seen(source, history, point)
        as_of = await moment_of(source, point)
        topics = MessageTopics(source, history.carried)
        view = None
        if seen.state is not None:
            view = session_view(
                seen.state,
                jumped_ms=as_of.jumped_ms,
                offset=offset,
                most=_PART,
                last=point.sequence,
                unsure=seen.unsure,
            )
            view = await described(view, source, topics)
        number = seen.number
        return {
            "view": view,
            "unsure": seen.unsure,
            "as_of": as_of,
            "at": place_text(at),
            "record": point.sequence,
            "end": point.sequence >= history.done,
            "number": history.forgotten + number,
            "total": history.forgotten + len(history),
            "event": await _event(seen, topics),
            "changes": _changes(seen.before, seen.state),
            "changed": _changed(seen.before, seen.state),
            "earlier": place_text(seen.earlier) if seen.earlier else _before_first(history, seen),
            "later": place_text(seen.later),
        }


def _client(request: web.Request) -> str:
    client = request.query.get("client")
    if not client:
        raise UsageError("the URL lacks a client")
    return client


def _address(client: str, log: str) -> dict[str, str]:
    """Return the parameters of the page: a client's identifier says which log has its session."""
    return {"client": client, "log": log} if log and client.startswith("$") else {"client": client}


def _progress(folding: Folding) -> str:
    return f"Reading the log: {folding.percent} %, {folding.done:,} of {folding.of:,} records"


def _axis(request: web.Request, history: MarkedHistory, first_ms: int) -> dict[str, Any]:
    """Return the time axis of a session: from before its first event until now."""
    now_ms = max(round(time.time() * 1000), first_ms + 1000)
    whole = TimeWindow(first_ms - (now_ms - first_ms) // _MARGIN, now_ms)
    window = window_within(whole, moment_ms(request, "from"), moment_ms(request, "to"))
    counts = history.counts(window.edges(_BARS))
    return {**axis(whole, window, history.marks.kinds()), "bars": bars(counts)}


def _within(history: SessionHistory, point: LogPoint) -> LogPoint:
    """Return a point of the log that the history has reached; the log continues."""
    return point if point.sequence <= history.done else LogPoint(history.done)


async def _seen(source: LogSource, history: SessionHistory, point: LogPoint) -> SessionMoment:
    """Return the session as of a point of the log; raises CutOff before its history begins."""
    at = position(point.sequence, point.index)
    if history.partial or (at < history.begin and history.begin > position(1, 0)):
        raise CutOff(_too_early(source, history))
    return await history.at(source, at)


def _before_first(history: SessionHistory, seen: SessionMoment) -> str | None:
    """Return a position before the first event, if its state is known."""
    if not seen.number:
        return None
    before = history.begin if history.forgotten else history.position_of(0) - 1
    return place_text(before) if history.forgotten or before >= history.begin - 1 else None


async def _event(seen: SessionMoment, topics: MessageTopics) -> dict[str, Any] | None:
    """Return the last event before the moment, as text."""
    event = seen.last
    if event is None:
        return None
    await topics.load(of_few_records(refs_of(event.event)))
    return {
        "at": event.at,
        "time_ms": event.time_ms,
        "kind": event.event.e,
        "said": words(event.event, topics, event.time_ms - event.steady_ms),
    }


def _facts(state: SessionState | None) -> SessionFacts:
    return NO_SESSION if state is None else session_facts(state)


def _changes(before: SessionState | None, after: SessionState | None) -> list[str]:
    """Return the changes by the last event, as text."""
    lines = []
    if before is None and after is not None:
        lines.append("+ session")
    elif before is not None and after is None:
        lines.append("- session")
    lines += session_diff(_facts(before), _facts(after))
    if len(lines) > _LINES:
        lines[_LINES:] = [f"and {count_of(len(lines) - _LINES, 'more difference')}"]
    return lines


def _changed(before: SessionState | None, after: SessionState | None) -> dict[str, Any]:
    """Return the changed parts of the state, and the removed ones."""
    if after is None:
        return {"rows": frozenset(), "fields": frozenset(), "gone": []}
    old, new = {} if before is None else _parts(before), _parts(after)
    changed = {key for key, value in new.items() if old.get(key) != value}
    removed = [key[1] for key in old.keys() - new.keys() if key[0] == "subscriptions"]
    fields = {key[0] for key in changed if key[1] is None}
    return {"rows": changed, "fields": fields, "gone": sorted(map(str, removed))}


def _parts(state: SessionState) -> dict[tuple[str, object], object]:
    """Return what may change: fields without a key, and the rows of lists with theirs."""
    view = session_view(state)
    parts: dict[tuple[str, object], object] = {
        (name, None): getattr(view, name)
        for name in ("connected", "clean", "user", "queued", "queued_bytes", "generation", "will")
    }
    parts["subscriptions", None], parts["sent", None] = view.subscriptions.total, view.sent
    parts |= {("subscriptions", row.filter): row for row in view.subscriptions.rows}
    for name in ("in_flight", "releasing", "inbound"):
        parts |= {(name, row.packet_id): row for row in getattr(view, name).rows}
    return parts


def _too_short(history: SessionHistory) -> str:
    return (
        f"The log was cut before record {history.first_record} and contains no complete state "
        "after it yet: there is no history to show."
    )


def _too_early(source: LogSource, history: SessionHistory) -> str:
    if history.partial:
        return _too_short(history)
    since = format_position(history.begin)
    if history.forgotten:
        return (
            f"this page shows the session from {since} on, because {history.forgotten:,} earlier "
            f"events are too many: {completed('foldmq replay --session')} shows any moment"
        )
    return f"no state before {since} can be rebuilt: {source.beginning()}"
