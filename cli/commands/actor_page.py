"""``foldmq actors show`` and ``foldmq sessions show``: an actor or session in full."""

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from cli.commands.actor_list import ACTOR_TYPES, SESSION_TYPES
from cli.commands.published_messages import with_published
from cli.common import text
from cli.common.tables import duration_text, idle
from cli.logs.broker_client import LiveBroker, Refused, TooLarge
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.format.positions import format_position
from projections.views.session_text import (
    connection_lines,
    more_lines,
    queued_text,
    session_lines,
)
from projections.views.session_view import SessionView, session_from
from projections.views.vocabulary import json_object, plain

ACTOR_ID = re.compile(r"[a-z]+:[0-9]+")

_RATE_SECONDS = 0.5
_SHOWN = 20
"""Maximum number of list items shown as text."""
_IN_JSON = 100
_AT_ONCE = 1000
_LISTS = {
    "subscriptions": "filter",
    "in_flight": "packet_id",
    "releasing": "packet_id",
    "inbound": "packet_id",
}
_LOAD = 1000.0
"""Minimum work in microseconds per second that is shown."""
_COUNTERS = ("messages_in", "messages_out", "bytes_in", "bytes_out")


@run_to_end
async def run_actor(flags: SourceFlags, which: str, *, full: bool, as_json: bool) -> None:
    """Print an actor, or the session of a client, in full; raises Refused if there is neither."""
    async with open_brokers(flags) as brokers:
        broker = broker_of(brokers, which)
        answer = await find_actor(broker, which)
        if answer is None:
            await ask_session(broker, which, most=0)
            await _show_session(broker, which, full=full, as_json=as_json)
        elif answer["actor"]["type"] in SESSION_TYPES:
            client = answer["actor"]["client"]
            await _show_session(broker, client, full=full, as_json=as_json)
        else:
            await _show_actor(broker, answer, as_json=as_json)


@run_to_end
async def run_session(flags: SourceFlags, client: str, *, full: bool, as_json: bool) -> None:
    """Print a session in full; raises Refused if there is none."""
    async with open_brokers(flags) as brokers:
        await _show_session(brokers.of_session(client), client, full=full, as_json=as_json)


def broker_of(brokers: LogBrokers, which: str) -> LiveBroker:
    """Return the broker of an actor ID or of a client; raises UsageError if that is ambiguous."""
    if ACTOR_ID.fullmatch(which):
        return brokers.only(f"{which} is an actor")
    return brokers.of_session(which)


async def find_actor(broker: LiveBroker, which: str) -> dict[str, Any] | None:
    """Return the actor with this ID, or None: it may be a client identifier."""
    if not ACTOR_ID.fullmatch(which):
        return None
    with contextlib.suppress(Refused):
        return await broker.ask("actor", id=which, most=1)
    return None


async def ask_session(broker: LiveBroker, which: str, **part: Any) -> dict[str, Any]:
    """Return the session of a client; raises Refused if there is none.

    ``which`` may look like an actor ID but is none.
    """
    try:
        return await broker.ask("session", client=which, **part)
    except TooLarge:
        raise
    except Refused:
        if ACTOR_ID.fullmatch(which) and which.partition(":")[0] in ACTOR_TYPES:
            raise Refused(f"no actor {which}") from None
        raise


async def read_session(broker: LiveBroker, client: str, count: int | None) -> SessionView:
    """Return a session with ``count`` items of each of its lists; None: with all.

    The broker sends it in parts; everything but the lists is as of the first part.
    """
    most = _AT_ONCE if count is None else min(count, _AT_ONCE)
    offset = 0
    answer: dict[str, Any] | None = None
    while True:
        try:
            page = await broker.ask("session", client=client, offset=offset, most=most)
        except TooLarge:
            if most == 1:
                raise
            most = max(1, most // 4)
            continue
        answer = page if answer is None else _joined(answer, page)
        offset += most
        longest = max(answer[name]["total"] for name in _LISTS)
        if offset >= (longest if count is None else min(count, longest)):
            return session_from(answer)


def _joined(answer: dict[str, Any], page: dict[str, Any]) -> dict[str, Any]:
    """Append the lists of another part; they may have changed between the two."""
    joined = dict(answer)
    for name, key in _LISTS.items():
        rows = {row[key]: row for part in (answer, page) for row in part[name]["rows"]}
        joined[name] = {"total": answer[name]["total"], "rows": list(rows.values())}
    actors = {row["id"]: row for part in (answer, page) for row in part["actors"]}
    return {**joined, "actors": list(actors.values())}


async def _show_actor(broker: LiveBroker, before: dict[str, Any], *, as_json: bool) -> None:
    began = time.monotonic()
    await asyncio.sleep(_RATE_SECONDS)
    answer = await broker.ask("actor", id=before["actor"]["id"])
    passed = time.monotonic() - began
    rates = connection_rates(connection_of(before), connection_of(answer), passed)
    if as_json:
        _print_json({**answer, "rates": rates})
        return
    for line in actor_lines(answer, rates):
        sys.stdout.write(line + "\n")


async def _show_session(broker: LiveBroker, client: str, *, full: bool, as_json: bool) -> None:
    rates = None
    before = (await broker.ask("session", client=client, most=1))["connection"]
    began = time.monotonic()
    if before is not None:
        await asyncio.sleep(_RATE_SECONDS)
    count = None if full else _IN_JSON if as_json else _SHOWN
    view = await read_session(broker, client, count)
    if before is not None:
        after = (view.live or {})["connection"]
        rates = connection_rates(before, after, time.monotonic() - began)
    view = await with_published(broker, view, thorough=full)
    if as_json:
        _print_json({**plain(view), "rates": rates})
        return
    for line in live_session_lines(view, rates):
        sys.stdout.write(line + "\n")


def connection_of(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return the connection in a reply to ``actor``; None if it is another actor."""
    return answer["detail"] if answer["actor"]["type"] == "connection" else None


def connection_rates(
    before: dict[str, Any] | None, after: dict[str, Any] | None, passed: float
) -> dict[str, float] | None:
    """Return the rates of a connection; None if it was replaced."""
    if before is None or after is None or before["id"] != after["id"]:
        return None
    return {f"{name}_per_s": round((after[name] - before[name]) / passed, 1) for name in _COUNTERS}


def live_session_lines(view: SessionView, rates: dict[str, float] | None) -> Iterator[str]:
    """Yield a session of a running broker in full, with its actors."""
    live, now_ms = view.live or {}, _now_ms()
    yield from session_lines(view, format_position(live["position"]), now_ms, rates)
    if live["actors"]:
        yield "  actors:"
        yield from (f"    {_actor_words(row, now_ms)}" for row in live["actors"])
        yield from more_lines(view.subscriptions)


def actor_lines(answer: dict[str, Any], rates: dict[str, float] | None) -> Iterator[str]:
    """Yield an actor that is not a session in full, as text."""
    row, detail, now_ms = answer["actor"], answer["detail"], _now_ms()
    yield f"{text.escaped(row['type'])} {text.name(row['name'])}"
    parent = text.escaped(row["parent"]) if row["parent"] is not None else "no actor"
    yield f"  {_actor_words(row, now_ms)}"
    yield f"  supervised by {parent}"
    if row["type"] == "connection":
        if detail["client"] is not None:
            yield f"  client {text.name(detail['client'])}"
        yield from connection_lines(detail, rates, now_ms)
    elif row["type"] == "subscription":
        yield from subscription_lines(detail)


def subscription_lines(detail: dict[str, Any]) -> Iterator[str]:
    """Yield the subscription of a connected session as text."""
    yield f"  of {text.name(detail['session'])}, filter {text.name(detail['filter'])}"
    if "qos" in detail:
        parts = [f"QoS {detail['qos']}"]
        if detail["qos"] or detail["outstanding"]:
            parts.append(f"{detail['outstanding']:,} of {detail['window']:,} in flight")
        if detail["qos"] or detail["queued"]:
            parts.append(queued_text(detail["queued"], detail["queued_bytes"]))
        yield f"  {', '.join(parts)}"
    yield (
        f"  {text.count_of(detail['matched'], 'message')} matched, {detail['replayed']:,} retained "
        "ones sent at the beginning"
    )


def _actor_words(row: dict[str, Any], now_ms: int) -> str:
    """Return an actor's counters on a line."""
    idle_text = idle(row["last_active_ms"], now_ms)
    load = f" ({row['recent_us_per_s'] / 1e4:.1f} %)" if row["recent_us_per_s"] >= _LOAD else ""
    return (
        f"{text.escaped(row['id'])}  {text.escaped(row['state'])}, {row['handled']:,} handled, "
        f"mailbox {row['mailbox']:,}/{row['high_water']:,}, "
        f"{'never active' if idle_text is None else f'idle {idle_text}'}, "
        f"busy {duration_text(row['busy_us'] / 1000)}{load}"
    )


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(text.json_line(json_object(value)) + "\n")


def _now_ms() -> int:
    return round(time.time() * 1000)
