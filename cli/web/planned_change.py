"""A planned change: the sessions or retained messages that it concerns, and its requests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cli.commands.bulk_change import portions
from cli.commands.session_list import clients_of, left_out
from cli.common import text
from cli.common.units import seconds
from cli.logs.broker_client import Refused
from cli.logs.topic_flags import check_filter
from cli.web.broker_lists import BrokerList
from cli.web.web_log_client import WebLogClient
from eventstore.display import count_of, escaped, name
from eventstore.errors import UsageError

MAX: Final = 5_000
"""Maximum sessions or retained messages of one change."""
_LONGEST_TYPED: Final = 64


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change that is not confirmed yet."""

    question: str
    """The change, as a question."""
    effect: str
    concerned: list[str]
    """The names of the sessions or retained messages."""
    typed: str
    """The text that the operator types to confirm it."""
    requests: list[tuple[str, dict[str, Any]]]
    """The requests, each with the log to whose broker it goes."""
    done: str
    """The success message; the count precedes it."""
    back: str
    """The page to return to."""


async def plan_change(link: WebLogClient, fields: Mapping[str, str]) -> PlannedChange:
    """Return the change that the parameters of a request describe.

    Raises UsageError, Refused if there is nothing to change, and NoLiveBroker.
    """
    match fields.get("do"):
        case "kick":
            return await _kick(link, _required(fields, "client"))
        case "remove_session":
            return await _remove(link, _required(fields, "client"))
        case "purge":
            return await _purge(link, fields.get("older_than"), fields.get("match"))
        case "clear_retained":
            return await _clear(link, _required(fields, "filter"))
    raise UsageError("do must be one of kick, remove_session, purge, clear_retained")


async def _kick(link: WebLogClient, client: str) -> PlannedChange:
    log = await link.log_of(client)
    session = await link.ask_log(log, "session", client=client, most=0)
    if session["connection"] is None:
        raise Refused(f"{name(client)} is not connected")
    return PlannedChange(
        question=f"Disconnect {name(client)}?",
        effect="Its connection is closed, its will is published. A persistent session stays, and "
        "the client may connect again at once.",
        concerned=[client],
        typed=_typed(client),
        requests=[(log, {"do": "kick", "client": client})],
        done="disconnected",
        back="/sessions",
    )


async def _remove(link: WebLogClient, client: str) -> PlannedChange:
    log = await link.log_of(client)
    session = await link.ask_log(log, "session", client=client, most=0)
    held = [count_of(session["subscriptions"]["total"], "subscription")]
    held.append(f"{count_of(session['queued'], 'queued message')}")
    state = "It is connected, and is disconnected first. " if session["connected"] else ""
    return PlannedChange(
        question=f"Remove the session of {name(client)}?",
        effect=f"{state}Its {' and '.join(held)} are lost. This cannot be undone.",
        concerned=[client],
        typed=_typed(client),
        requests=[(log, {"do": "remove_sessions", "clients": [client]})],
        done="removed",
        back="/sessions",
    )


async def _purge(link: WebLogClient, older_than: str | None, match: str | None) -> PlannedChange:
    if older_than is None and match is None:
        raise UsageError("give a time or a pattern to select sessions")
    selection: dict[str, Any] = {"connected": False}
    if match is not None:
        selection["match"] = match
    if older_than is not None:
        selection["offline_s"] = _span(older_than)
    selection["without_logs"] = True
    pages = await link.ask_each("sessions", **selection)
    sessions = await _gathered(link, pages, "foldmq sessions purge")
    rows, shared = clients_of(sessions)
    if not rows:
        raise Refused("no matching offline session" + (f"; {left_out(shared)}" if shared else ""))
    rows.sort(key=lambda row: row["closed_ms"])
    by_log: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_log.setdefault(row["log"], []).append(row)
    requests: list[tuple[str, dict[str, Any]]] = [
        (
            log,
            {
                "do": "remove_sessions",
                "clients": [row["session"] for row in part],
                # A session that connects meanwhile stays.
                "offline_before_ms": part[-1]["closed_ms"],
            },
        )
        for log, own in by_log.items()
        for part in portions(own)
    ]
    return PlannedChange(
        question=f"Remove {count_of(len(rows), 'offline session')}?",
        effect="Their subscriptions and queued messages are lost. This cannot be undone. A session "
        "whose client connects meanwhile stays." + (f" {left_out(shared)}." if shared else ""),
        concerned=sorted(row["session"] for row in rows),
        typed=str(len(rows)),
        requests=requests,
        done="removed",
        back="/sessions",
    )


async def _clear(link: WebLogClient, topic_filter: str) -> PlannedChange:
    check_filter(topic_filter)
    # What is removed from the retained messages of one log, the others take from it.
    log, page = await link.ask_any("retained", filter=topic_filter)
    rows = await _gathered(link, [(log, page)], "foldmq retained rm")
    if not rows:
        raise Refused(f"no retained message on {name(topic_filter)}")
    topics = sorted(row["topic"] for row in rows)
    total = text.size(sum(row["size"] for row in rows))
    return PlannedChange(
        question=f"Remove {count_of(len(rows), 'retained message')}?",
        effect=f"New subscribers no longer get {'it' if len(rows) == 1 else 'them'} ({total}); "
        "current subscribers are not notified. This cannot be undone.",
        concerned=topics,
        typed=_typed(topics[0]) if len(topics) == 1 else str(len(topics)),
        requests=[(log, {"do": "clear_retained", "topics": part}) for part in portions(topics)],
        done="removed",
        back="/retained",
    )


async def _gathered(
    link: WebLogClient, pages: Iterable[tuple[str, dict[str, Any]]], command: str
) -> list[dict[str, Any]]:
    """Return all rows of a list, from the first pages of each log; raises UsageError for many."""
    held = BrokerList(command)
    held.begin(pages)
    while held.cursors:
        if len(held.rows) > MAX:
            raise UsageError(f"more than {MAX:,} are concerned: {command} has no limit")
        await held.read_on(link)
    return held.rows


def _span(text: str) -> float:
    """Return a length of time in seconds; raises UsageError."""
    expected = f'a time such as 7d or 12h is expected, not "{escaped(text)}"'
    try:
        span = seconds(text)
    except ValueError:
        raise UsageError(expected) from None
    if not isinstance(span, float) or span <= 0:
        raise UsageError(expected)
    return span


def _required(fields: Mapping[str, str], key: str) -> str:
    value = fields.get(key)
    if not value:
        raise UsageError(f"the request lacks {key}")
    return value


def _typed(name_shown: str) -> str:
    """Return the text to type for a name: the name itself, if it can be typed."""
    if name_shown.isascii() and name_shown.isprintable() and name_shown == name_shown.strip() != "":
        return name_shown if len(name_shown) <= _LONGEST_TYPED else "yes"
    return "yes"
