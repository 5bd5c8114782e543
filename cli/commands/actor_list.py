"""``foldmq actors ls`` and ``actors tree``: the actors of a running broker."""

import contextlib
import dataclasses
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from cli.commands.command_flags import ActorListFlags, RowFlags
from cli.common import text
from cli.common.progress_bar import progress
from cli.common.tables import Column, Table, duration_text, idle
from cli.logs.broker_client import LiveBroker, TooLarge
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.errors import UsageError
from projections.views.vocabulary import json_object

Row = Mapping[str, Any]

_BY_NUMBER = {
    "busy": "busy_us",
    "recent": "recent_us_per_s",
    "handled": "handled",
    "mailbox": "mailbox",
    "high_water": "high_water",
    "last_active": "last_active_ms",
}
_BY_NAME = ("id", "name", "state", "type")
ORDERS = (*_BY_NUMBER, *_BY_NAME)
"""Sort keys of a list of actors."""
NO_ORDER = "cannot sort by"
SESSION_TYPES = ("session", "sharedsession")
"""The types of actors that are sessions."""
ACTOR_TYPES = (
    *("broker", "inspector"),
    *SESSION_TYPES,
    *("connection", "subscription", "bridge", "logexchange", "fanout", "replaywork"),
    "turnwork",
)
"""All types of actors."""
STATES = (
    *("connected", "offline", "loading", "rebuilding"),
    *("connecting", "open", "paused", "closing"),
    "running",
)
"""The states of sessions, of connections and of the others."""
LOG_COLUMN: Column[Row] = Column("LOG", lambda row: row["log"])
"""The log of a row, in a list of several logs."""
_MAX_AT_TOP = 500
"""Maximum number of rows that the broker sorts."""


@run_to_end
async def run_actors(
    flags: SourceFlags, selection: ActorListFlags, part: RowFlags, *, as_json: bool
) -> None:
    """Print the selected actors; raises UsageError for an unknown type, state or sort key."""
    sort = part.sort
    check_word(NO_ORDER, sort, ORDERS)
    check_word("unknown type", selection.type, ACTOR_TYPES)
    check_word("unknown state", selection.state, STATES)
    query = {**dataclasses.asdict(selection), "match": part.match}
    query = {key: value for key, value in query.items() if value is not None}
    rows, total, brokers = await fetch(flags, "actors", query, sort, _BY_NUMBER, part.limit)
    if sort is not None:
        rows.sort(key=sort_key(sort), reverse=sort in _BY_NUMBER)
    show(rows[: part.limit], total, "actor", actor_columns(), brokers, as_json=as_json)


def check_word(before: str, word: str | None, words: Sequence[str]) -> None:
    """Raise UsageError unless a word is known; ``before`` precedes it in the message."""
    if word is not None and word not in words:
        raise UsageError(f'{before} "{text.escaped(word)}": must be one of {", ".join(words)}')


async def fetch(
    flags: SourceFlags,
    endpoint: str,
    query: dict[str, Any],
    sort: str | None,
    by_broker: Collection[str],
    limit: int | None,
) -> tuple[list[dict[str, Any]], int, LogBrokers]:
    """Return rows to be sorted by ``sort``, their total number, and the brokers that were asked.

    The brokers sort by the keys in ``by_broker``.
    """
    async with open_brokers(flags) as brokers:
        if endpoint == "sessions" and brokers.several and "match" not in query:
            # The sessions of the other logs, for which these stand, are in the list themselves.
            query = {**query, "without_logs": True}
        if endpoint == "sessions":
            for note in await brokers.unsure_notes():
                write_notice(note)
        if sort is None:
            return *await gather(brokers, endpoint, limit, **query), brokers
        by = sort if sort in by_broker else None
        return *await gather_top(brokers, endpoint, by, limit, **query), brokers


async def gather(
    brokers: LogBrokers, endpoint: str, limit: int | None, /, **request: Any
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a list, at least ``limit`` if there are as many, and their total number.

    The number includes rows that were not requested. With several logs, each row names its ``log``.
    """
    first = await brokers.each(lambda broker: broker.ask(endpoint, **request))
    begun = {broker.node: page for broker, page in first}
    totals = {broker.node: page.get("total", 0) for broker, page in first}
    counts: Counter[str] = Counter()

    with progress("asking the broker", sum(totals.values()), "rows") as update:

        async def read(broker: LiveBroker) -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            async for page in broker.pages_from(begun[broker.node]):
                rows += [brokers.labelled(broker, row) for row in page["rows"]]
                counts[broker.node] = len(rows)
                update(counts.total())
                if limit is not None and len(rows) >= limit:
                    break
            return rows

        parts = await brokers.each(read)
    rows = [row for _, part in parts for row in part]
    return rows, sum(totals[broker.node] for broker, _ in parts)


async def gather_top(
    brokers: LogBrokers, endpoint: str, by: str | None, limit: int | None, /, **request: Any
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a list, or only the first by a sort key if the brokers can select them.

    Of several brokers, those are the first of each.
    """
    if by is not None and limit is not None and limit <= _MAX_AT_TOP:
        with contextlib.suppress(TooLarge):
            return await gather(brokers, endpoint, None, top={"by": by, "count": limit}, **request)
    return await gather(brokers, endpoint, None, **request)


def sort_key(sort: str) -> Callable[[Row], Any]:
    """Return the sort key of rows by one of :data:`ORDERS`."""
    if sort == "id":
        return id_order
    field = _BY_NUMBER.get(sort, sort)
    if sort in _BY_NUMBER:
        return lambda row: row[field] or 0
    return lambda row: str(row[field])


def id_order(row: Row) -> tuple[str, int]:
    """Return the sort key of an actor: its type, then its number."""
    kind, _, number = str(row["id"]).partition(":")
    return kind, int(number) if number.isdecimal() else 0


def show(
    rows: list[dict[str, Any]],
    total: int,
    noun: str,
    columns: list[Column[Row]],
    brokers: LogBrokers | None = None,
    *,
    as_json: bool,
) -> None:
    """Print rows, and on a terminal the number of further ones.

    ``brokers`` are those that were asked; raises NoLiveBroker if some of them did not answer.
    """
    if as_json:
        for row in rows:
            sys.stdout.write(text.json_line(json_object(row)) + "\n")
    else:
        several = brokers is not None and brokers.several
        table = Table([LOG_COLUMN, *columns] if several else columns)
        for row in rows:
            table.add(row)
        table.close()
        if table.terminal and len(rows) < total:
            shown = f"{len(rows):,} of " if rows else "none of "
            sys.stdout.write(f"{shown}{text.count_of(total, noun)}\n")
    if brokers is not None:
        brokers.check_complete()


def actor_columns() -> list[Column[Row]]:
    """Return the columns of a list of actors."""
    now_ms = round(time.time() * 1000)
    return [
        Column("TYPE:ID", lambda row: row["id"]),
        Column("STATE", lambda row: row["state"]),
        Column("MAILBOX", lambda row: f"{row['mailbox']}/{row['high_water']}", right=True),
        Column("HANDLED", lambda row: row["handled"], right=True),
        Column("IDLE", lambda row: idle(row["last_active_ms"], now_ms), right=True),
        Column("BUSY", lambda row: duration_text(row["busy_us"] / 1000), right=True),
        Column("LOAD", lambda row: f"{row['recent_us_per_s'] / 1e4:.1f} %", right=True, wide=True),
        Column("CLIENT", _client, name=True, wide=True),
        Column("NAME", lambda row: row["name"], name=True),
    ]


def _client(row: Row) -> str | None:
    client: str | None = row["client"] if row["type"] not in SESSION_TYPES else None
    return client


_NAME_LIMIT = 60
_DRAWN = ("├─ ", "└─ ", "│  ")
_PLAIN = ("|- ", "`- ", "|  ")


@run_to_end
async def run_actor_tree(flags: SourceFlags, children: int, *, as_json: bool) -> None:
    """Print the tree, with a limited number of children of each actor."""
    async with open_brokers(flags) as brokers:
        rows, _ = await gather(brokers, "actors", None)
    by_log: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_log[row.get("log", "")].append(row)
    plain = not _can_draw(sys.stdout.encoding or "ascii")
    trees = [Tree(part, plain=plain) for part in by_log.values()]
    if as_json:
        roots = [tree.object(root) for tree in trees for root in tree.roots]
        sys.stdout.write(text.json_line(json_object(roots)) + "\n")
    else:
        for tree in trees:
            for line in tree.lines(children):
                sys.stdout.write(line + "\n")
    brokers.check_complete()


def _can_draw(encoding: str) -> bool:
    try:
        "".join(_DRAWN).encode(encoding)
    except UnicodeError:
        return False
    return True


class Tree:
    """Actors by parent. Parents may be missing, because the pages were read one after the other."""

    def __init__(self, rows: list[dict[str, Any]], *, plain: bool = False) -> None:
        self._more, self._last, self._along = _PLAIN if plain else _DRAWN
        ids = {row["id"] for row in rows}
        self._children: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.roots: list[dict[str, Any]] = []
        for row in sorted(rows, key=id_order):
            if row["parent"] in ids:
                self._children[row["parent"]].append(row)
            else:
                self.roots.append(row)

    def object(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return an actor with its descendants as a JSON object."""
        return {
            **row,
            "children": [self.object(child) for child in self._children.get(row["id"], ())],
        }

    def lines(self, most: int) -> Iterator[str]:
        """Yield the tree as text."""
        for root in self.roots:
            yield _words(root)
            yield from self._below(root, "", most)

    def _below(self, row: dict[str, Any], indent: str, most: int) -> Iterator[str]:
        children = self._children.get(row["id"], [])
        chosen = _some_of_each(children, most)
        others = _rest(children, chosen)
        for number, child in enumerate(chosen, 1):
            is_last = number == len(chosen) and not others
            yield f"{indent}{self._last if is_last else self._more}{_words(child)}"
            yield from self._below(child, indent + ("   " if is_last else self._along), most)
        if others:
            yield f"{indent}{self._last}... and {others}"


def _some_of_each(children: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Select children so that every type is shown; types with few actors are complete."""
    if len(children) <= most:
        return children
    types: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for child in children:
        types[child["type"]].append(child)
    room = most
    shown: dict[str, int] = {}
    for number, kind in enumerate(sorted(types, key=lambda entry: len(types[entry]))):
        shown[kind] = min(len(types[kind]), max(min(1, room), room // (len(types) - number)))
        room -= shown[kind]
    return [entry for kind, actors in types.items() for entry in actors[: shown[kind]]]


def _rest(children: list[dict[str, Any]], chosen: list[dict[str, Any]]) -> str:
    hidden = len(children) - len(chosen)
    if not hidden:
        return ""
    counts = Counter(actor["type"] for actor in children)
    counts.subtract(actor["type"] for actor in chosen)
    kinds = ", ".join(text.count_of(count, kind) for kind, count in counts.items() if count)
    return f"{hidden:,} more: {kinds}"


def _words(row: Row) -> str:
    waiting = f", {row['mailbox']:,} waiting" if row["mailbox"] else ""
    client = row["client"] if row["type"] == "connection" else None
    whose = f"{text.name(client, _NAME_LIMIT)}  " if client is not None else ""
    return (
        f"{text.escaped(row['id'])}  {whose}{text.name(row['name'], _NAME_LIMIT)}  "
        f"{text.escaped(row['state'])}, {row['handled']:,} handled{waiting}"
    )
