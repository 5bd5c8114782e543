"""``foldmq sessions ls``: the sessions of a running broker as a list."""

import time
from typing import Any

from cli.commands.actor_list import NO_ORDER, Row, check_word, fetch, show
from cli.common import text
from cli.common.tables import Column, time_ago, whole_span
from cli.common.units import seconds
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.errors import UsageError
from eventstore.reasons import close_words

_BY_BROKER = ("queued", "queued_bytes", "in_flight", "subscriptions")
_KEYS = {"rate": ("rate_in", "rate_out")}
"""Keys of rows by the words that sort them, where these differ."""
_OTHER_NAMES = {"bytes": "queued_bytes", "inflight": "in_flight"}
_HERE = ("dropped", "connects", "takeovers", "rate_in", "rate_out")
_ORDERS = [*_BY_BROKER, "bytes", "inflight", *_HERE, "rate", "offline", "client"]


@run_to_end
async def run_sessions(
    flags: SourceFlags,
    match: str | None,
    connected: bool | None,
    older_than: str | None,
    sort: str | None,
    limit: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the selected sessions; raises UsageError."""
    check_word(NO_ORDER, sort, _ORDERS)
    sort = _OTHER_NAMES.get(sort or "", sort)
    if connected and older_than is not None:
        raise UsageError("--connected and --older-than cannot be combined")
    wanted = session_selection(match, connected, older_than)
    rows, total, brokers = await fetch(flags, "sessions", wanted, sort, _BY_BROKER, limit)
    if sort in (None, "client"):
        rows.sort(key=lambda row: str(row["session"]))
    elif sort == "offline":
        rows.sort(key=lambda row: (row["closed_ms"] is None, row["closed_ms"]))
    elif sort is not None:
        keys = _KEYS.get(sort, (sort,))
        # Sessions that are not connected have no rates.
        rows.sort(key=lambda row: sum(-1 if row[key] is None else row[key] for key in keys))
        rows.reverse()
    show(rows[:limit], total, "session", session_columns(sort or ""), brokers, as_json=as_json)


def session_selection(
    match: str | None, connected: bool | None, older_than: str | None
) -> dict[str, Any]:
    """Return the query parameters for these sessions; raises UsageError."""
    wanted: dict[str, Any] = {}
    if match is not None:
        wanted["match"] = match
    if connected is not None:
        wanted["connected"] = connected
    if older_than is not None:
        wanted["offline_s"] = age(older_than)
    return wanted


def age(given: str) -> float:
    """Parse a duration in seconds; raises UsageError with the expected form."""
    try:
        found = seconds(given)
    except ValueError as error:
        raise UsageError(f'--older-than "{text.escaped(given)}" {error}') from None
    if not isinstance(found, float):
        raise UsageError(f'--older-than "{text.escaped(given)}" must be a positive time')
    return found


def session_columns(sort: str = "") -> list[Column[Row]]:
    """Return the columns of a list of sessions; the one that it is sorted by is always shown."""
    now_ms = round(time.time() * 1000)
    no_rates = not sort.startswith("rate")
    width = 0 if sort == "queued_bytes" else 110
    return [
        Column("STATE", session_state, style=lambda row: "green" if row["connected"] else "dim"),
        Column("SINCE", lambda row: _offline_for(row, now_ms), right=True),
        Column("SUBSCR.", lambda row: row["subscriptions"], right=True, wide=True),
        Column("IN FLIGHT", lambda row: row["in_flight"], right=True),
        Column("QUEUED", lambda row: row["queued"], right=True),
        Column("BYTES", lambda row: text.size(row["queued_bytes"]), right=True, least_width=width),
        Column(
            "DROPPED",
            lambda row: counted(row, row.get("dropped", 0)),
            right=True,
            style=lambda row: "red" if row.get("dropped") else None,
        ),
        Column("RECONN.", lambda row: counted(row, reconnects(row)), right=True),
        Column("TAKEOV.", lambda row: counted(row, row.get("takeovers", 0)), right=True, wide=True),
        Column("IN/S", lambda row: rate(row.get("rate_in")), right=True, wide=no_rates),
        Column("OUT/S", lambda row: rate(row.get("rate_out")), right=True, wide=no_rates),
        Column("LAST END", _last_end, wide=True, ready=True),
        Column(
            "EXPIRES", lambda row: _left(row["expires_ms"], now_ms), right=True, least_width=150
        ),
        Column("ADDRESS", lambda row: row["address"], least_width=140),
        Column("USER", lambda row: row["user"], name=True, least_width=150),
        Column("CLIENT", lambda row: row["session"], name=True),
    ]


def reconnects(row: Row) -> int:
    """Return the number of a client's reconnects: its connects after the first one counted."""
    connects: int = row.get("connects", 0)
    return max(0, connects - 1)


def counted(row: Row, count: int) -> int | None:
    """Return a count of a client's history; None if the broker has no history of the client."""
    if row.get("members") is not None:  # a shared subscription is counted only when it loses some
        return count
    return None if "counted_since_ms" in row and row["counted_since_ms"] is None else count


def rate(per_second: float | None) -> str | None:
    """Return a rate of messages for a table."""
    if per_second is None:
        return None
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"


def session_state(row: Row) -> str:
    """Return the state of a session in a word; a shared subscription has members instead."""
    if row.get("members") is not None:
        return f"shared by {row['members']:,}"
    return "connected" if row["connected"] else "offline"


def _last_end(row: Row) -> str | None:
    reason = row.get("last_close")
    return close_words(reason) if reason else None


def _offline_for(row: Row, now_ms: int) -> str | None:
    return None if row.get("members") is not None else time_ago(row["closed_ms"], now_ms)


def _left(then_ms: int | None, now_ms: int) -> str | None:
    return None if then_ms is None else f"in {whole_span(max(0, then_ms - now_ms))}"


def clients_of(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the sessions of clients, and the number of shared subscriptions beside them.

    Of several logs, each with members of a shared subscription has a session of its name.
    """
    shared = {row["session"] for row in rows if row.get("members") is not None}
    return [row for row in rows if row["session"] not in shared], len(shared)


def left_out(shared: int) -> str:
    """Return why shared subscriptions are not purged, as text."""
    if shared == 1:
        return "1 shared subscription is left out: it ends with its last member"
    return f"{shared:,} shared subscriptions are left out: each ends with its last member"
