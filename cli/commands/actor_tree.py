"""``foldmq actors tree``: the supervision tree."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from cli.commands.actor_list import Row, gather, id_order
from cli.common import text
from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags, run_to_end
from projections.views.vocabulary import json_object

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
        known = {row["id"] for row in rows}
        self._children: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.roots: list[dict[str, Any]] = []
        for row in sorted(rows, key=id_order):
            if row["parent"] in known:
                self._children[row["parent"]].append(row)
            else:
                self.roots.append(row)

    def object(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return an actor with its descendants as a JSON object."""
        return {**row, "children": [self.object(one) for one in self._children.get(row["id"], ())]}

    def lines(self, most: int) -> Iterator[str]:
        """Yield the tree as text."""
        for root in self.roots:
            yield _words(root)
            yield from self._below(root, "", most)

    def _below(self, row: dict[str, Any], indent: str, most: int) -> Iterator[str]:
        children = self._children.get(row["id"], [])
        chosen = _some_of_each(children, most)
        rest = _rest(children, chosen)
        for number, child in enumerate(chosen, 1):
            last = number == len(chosen) and not rest
            yield f"{indent}{self._last if last else self._more}{_words(child)}"
            yield from self._below(child, indent + ("   " if last else self._along), most)
        if rest:
            yield f"{indent}{self._last}... and {rest}"


def _some_of_each(children: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Select children so that every type is shown; types with few actors are complete."""
    if len(children) <= most:
        return children
    types: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for child in children:
        types[child["type"]].append(child)
    room = most
    shown: dict[str, int] = {}
    for number, kind in enumerate(sorted(types, key=lambda one: len(types[one]))):
        shown[kind] = min(len(types[kind]), max(min(1, room), room // (len(types) - number)))
        room -= shown[kind]
    return [one for kind, found in types.items() for one in found[: shown[kind]]]


def _rest(children: list[dict[str, Any]], chosen: list[dict[str, Any]]) -> str:
    hidden = len(children) - len(chosen)
    if not hidden:
        return ""
    left = Counter(one["type"] for one in children)
    left.subtract(one["type"] for one in chosen)
    kinds = ", ".join(text.count_of(count, kind) for kind, count in left.items() if count)
    return f"{hidden:,} more: {kinds}"


def _words(row: Row) -> str:
    waiting = f", {row['mailbox']:,} waiting" if row["mailbox"] else ""
    client = row["client"] if row["type"] == "connection" else None
    whose = f"{text.name(client, _NAME_LIMIT)}  " if client is not None else ""
    return (
        f"{text.escaped(row['id'])}  {whose}{text.name(row['name'], _NAME_LIMIT)}  "
        f"{text.escaped(row['state'])}, {row['handled']:,} handled{waiting}"
    )
