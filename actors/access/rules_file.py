"""The permission file: TOML, with tables ``[[allow]]`` and ``[[deny]]``, and groups of users.

    [groups]
    ops = ["ann", "bob"]

    [[allow]]
    groups = ["ops"]
    both = ["machines/#"]

    [[deny]]
    publish = ["machines/+/secret"]

The first error is reported in one line with file, location and valid values: a file with an error
must not allow more than intended.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from actors.access.filter_index import FilterError, parse_filter
from actors.access.rules import Permissions, Rule
from eventstore.display import escaped
from eventstore.edited_files import read_text
from protocol.errors import FoldmqError

_KINDS: Final = ("allow", "deny")
_ACTIONS: Final = ("publish", "subscribe", "both", "history")
_SELECTORS: Final = ("users", "groups", "clients")
_HEADER: Final = re.compile(r"[ \t]*\[\[[ \t]*(allow|deny)[ \t]*\]\]")


class PermissionFileError(FoldmqError):
    """A permission file that cannot be read or has an error."""

    exit_code = 78  # EX_CONFIG of sysexits.h, as in eventstore.errors


class _TablePosition(NamedTuple):
    """The location of a table in the file."""

    file: str
    line: int | None
    kind: str
    number: int
    """Number of the table among those of its kind, from 1."""

    def __str__(self) -> str:
        """Return the location for rules and errors."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}: [[{self.kind}]] {self.number}"


def load(path: Path) -> Permissions:
    """Read a permission file.

    Raises PermissionFileError with file and location if it cannot be read or is invalid.
    """
    return parse_rules(path, read_text(path, "permissions", PermissionFileError))


def parse_rules(path: Path, text: str) -> Permissions:
    """Return the permissions of a file's text; ``path`` is for errors and locations of rules.

    Raises PermissionFileError with the first error of each table.
    """
    content = _toml(path, text)
    keys = ("groups", *_KINDS)
    problems = [
        f"{path}: unknown key {_quoted(key)}{_nearest(key, keys)}: there are [groups], "
        "[[allow]] and [[deny]]"
        for key in content
        if key not in keys
    ]
    groups: dict[str, list[str]] = {}
    rules: list[Rule] = []
    try:
        groups = _groups(path, content.get("groups", {}))
    except PermissionFileError as error:
        problems += error.args
    for place, table in _tables(path, content, text):
        try:
            rules += _rules(place, table)
        except PermissionFileError as error:
            problems += error.args
    if problems:
        raise PermissionFileError(*problems)
    if not any(rule.allow for rule in rules):
        raise PermissionFileError(
            f"{path}: nothing is allowed: there must be at least one [[allow]], such as "
            'both = ["#"] for everything'
        )
    return Permissions(rules, groups, str(path.absolute()))


def _toml(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise PermissionFileError(f"{path}: not TOML: nested too deeply") from None
    except ValueError as error:  # also for numbers with very many digits
        raise PermissionFileError(f"{path}: not TOML: {escaped(str(error))}") from None


def _groups(path: Path, table: object) -> dict[str, list[str]]:
    if not isinstance(table, dict):
        raise PermissionFileError(f'{path}: groups must be a table, such as [groups] ops = ["ann"]')
    groups: dict[str, list[str]] = {}
    for group, users in table.items():
        if not group:
            raise PermissionFileError(f"{path}: [groups]: the name of a group is empty")
        groups[group] = _names(f"{path}: [groups]: {_quoted(group)}", users, "user", least=0)
    return groups


def _tables(
    path: Path, content: dict[str, object], text: str
) -> Iterator[tuple[_TablePosition, dict[str, object]]]:
    """Yield all tables of rules with their places: the allows, then the denies."""
    lines: dict[str, list[int]] = {kind: [] for kind in _KINDS}
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.match(line)
        if header is not None:
            lines[header[1]].append(number)
    for kind in _KINDS:
        tables = content.get(kind, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise PermissionFileError(f"{path}: {kind} must be tables, each begun by [[{kind}]]")
        # The parser reports no lines; text that looks like a heading would make them wrong.
        is_certain = len(lines[kind]) == len(tables)
        for at, table in enumerate(tables):
            yield (
                _TablePosition(str(path), lines[kind][at] if is_certain else None, kind, at + 1),
                table,
            )


def _rules(place: _TablePosition, table: dict[str, object]) -> Iterator[Rule]:
    keys = (*_ACTIONS, *_SELECTORS, "anonymous")
    for key in table:
        if key not in keys:
            raise PermissionFileError(
                f"{place}: unknown key {_quoted(key)}{_nearest(key, keys)}: there are "
                + ", ".join(keys)
            )
    who = {
        key: frozenset(_names(f"{place}: {key}", table[key], key.removesuffix("s"), least=1))
        for key in _SELECTORS
        if key in table
    }
    if table.get("anonymous", True) is not True:
        raise PermissionFileError(
            f'{place}: anonymous must be true; for all clients with a user, write users = ["*"]'
        )
    if not any(key in table for key in _ACTIONS):
        raise PermissionFileError(
            f"{place}: contains no topics: publish, subscribe, both or history must be a list of "
            "topic filters"
        )
    for action in _ACTIONS:
        if action not in table:
            continue
        for topic_filter in _names(f"{place}: {action}", table[action], "topic filter", least=1):
            try:
                parse_filter(topic_filter)
            except FilterError as error:
                raise PermissionFileError(
                    f"{place}: {action}: {_quoted(topic_filter)}: {error}"
                ) from None
            yield Rule(
                place.kind == "allow",
                publish=action in ("publish", "both"),
                subscribe=action in ("subscribe", "both"),
                filter=topic_filter,
                **who,
                where=str(place),
                anonymous="anonymous" in table,
                history=action == "history",
            )


def _names(where: str, value: object, what: str, *, least: int) -> list[str]:
    """Return a list of texts; raises PermissionFileError if it is not one."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise PermissionFileError(f"{where} must be a list, with each {what} in quotes")
    if len(value) < least:
        alternative = "" if what == "topic filter" else ", or be left out"
        raise PermissionFileError(f"{where} must have at least one {what}{alternative}")
    if "" in value:
        raise PermissionFileError(f"{where}: a {what} is empty")
    return value


def _quoted(text: str) -> str:
    return f'"{escaped(text)}"'


def _nearest(name: str, keys: Iterable[str]) -> str:
    for close in difflib.get_close_matches(name[:40], keys, n=1):
        return f' (did you mean "{close}"?)'
    return ""
