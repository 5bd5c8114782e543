"""Topic filters of permissions: which of many match a topic, cover a filter or overlap with it.

One filter *covers* another if it matches every topic that the other one matches; a filter without
wildcards is a topic, and is covered by what matches it. Two filters *overlap* if some topic matches
both. The filters of permissions may have ``%u`` and ``%c`` in them, which stand for the names of
whoever is asked about, and ``%%``, which is a percent sign.

The filters are a trie over their levels, in which a level with a name in it is one entry for
everybody. All walks are loops, and visit a node at most once.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from protocol.errors import FoldmqError
from protocol.mqtt import TopicError, split_levels, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOO_MANY: Final = -1
"""What a walk gives in place of a number when it was given up."""
_ANY: Final = "+"
_TOKEN = re.compile(r"(%[uc%]?)")
_UNFIT = re.compile(r"[/+#]")
"""What a name must not have in it to stand for a level, or for a part of one."""


class FilterError(FoldmqError, ValueError):
    """Not a filter that permissions can have."""


class NameWildcard(enum.Enum):
    """Whose name a level has in it."""

    USER = "%u"
    CLIENT = "%c"


Template: TypeAlias = tuple[str | NameWildcard, ...]
"""A level with names in it, in pieces."""

Level: TypeAlias = str | Template


class Names(NamedTuple):
    """What ``%u`` and ``%c`` stand for; None or empty: there is no such name."""

    user: str | None
    client: str | None


def parse_filter(text: str) -> list[Level]:
    """Give the levels of a filter of permissions.

    Raises FilterError if it is no topic filter, or a ``%`` in it is none of ``%u``, ``%c``, ``%%``.
    """
    try:
        validate_topic_filter(_TOKEN.sub(_example, text))
    except TopicError as error:
        raise FilterError(error.reason) from None
    return [_parse_level(level) if "%" in level else level for level in split_levels(text)]


def _example(token: re.Match[str]) -> str:
    if token[0] == "%":
        raise FilterError("'%' is not part of %u, %c or %% (a percent sign)")
    return "x"


def _parse_level(level: str) -> Level:
    pieces: list[str | NameWildcard] = []
    literal = ""
    for piece in _TOKEN.split(level):
        if piece in ("%u", "%c"):
            pieces += [literal, NameWildcard(piece)] if literal else [NameWildcard(piece)]
            literal = ""
        else:
            literal += "%" if piece == "%%" else piece
    if not pieces:
        return literal
    return (*pieces, literal) if literal else tuple(pieces)


def uses(levels: Sequence[Level], who: NameWildcard) -> bool:
    """Say whether a filter has a name of this kind in it."""
    return any(who in level for level in levels if type(level) is tuple)


class _Node:
    """A place in the trie: the levels that lead to it are matched."""

    __slots__ = ("any", "below", "here", "literals", "templates")

    def __init__(self) -> None:
        self.here: int | None = None
        """The first of the filters that end here."""
        self.below: int | None = None
        """The first of those that go on with ``#``."""
        self.any: _Node | None = None
        """Where ``+`` leads to."""
        self.literals: dict[str, _Node] = {}
        self.templates: dict[Template, _Node] = {}


class Filters:
    """Filters with a number each; of equal ones the lowest number counts.

    ``fail_closed`` says what a level with a name in it means if the name cannot stand in a topic,
    as it has ``/``, ``+`` or ``#`` in it: any level for a deny (True), none for an allow (False).
    No allow begins with a ``$`` that comes from a name: names are often chosen by the client, and
    the topics of the broker begin so.
    """

    __slots__ = ("_fail_closed", "_root")

    def __init__(self, *, fail_closed: bool) -> None:
        self._root = _Node()
        self._fail_closed = fail_closed

    def add(self, levels: Sequence[Level], number: int) -> None:
        """Take a filter in; numbers must not get lower."""
        node = self._root
        for level in levels:
            if level == "#":
                if node.below is None:
                    node.below = number
                return
            if level == _ANY:
                if node.any is None:
                    node.any = _Node()
                node = node.any
            elif isinstance(level, str):
                node = node.literals.setdefault(level, _Node())
            else:
                node = node.templates.setdefault(level, _Node())
        if node.here is None:
            node.here = number

    def covering(self, levels: Sequence[str], names: Names) -> Iterator[int]:
        """Give the numbers of the filters that cover a legal filter or match a topic."""
        root, end = self._root, len(levels)
        stack = [(root, 0)]
        while stack:
            node, at = stack.pop()
            level = levels[at] if at < end else None
            # Wildcards in the first level do not match topics that begin with $ [MQTT-4.7.2-1].
            wild = at > 0 or not levels[0].startswith("$")
            if wild and node.below is not None:
                yield node.below
            if level is None:
                if node.here is not None:
                    yield node.here
                continue
            if level != "#":
                stack += [(child, at + 1) for child in self._wider(node, level, names, at == 0)]
            elif at == 0:  # Every topic has a first level: "+/#" is "#".
                for child in self._wider(node, _ANY, names, first=True):
                    if child.below is not None:
                        yield child.below

    def overlapping(
        self, levels: Sequence[str], names: Names, most: int | None = None
    ) -> Iterator[int]:
        """Give the numbers of the filters that overlap with a legal filter.

        With ``most`` the walk is given up after so many nodes, and ends with ``TOO_MANY``.
        """
        end = len(levels)
        stack = [(self._root, 0)]
        visited = 0
        while stack:
            node, at = stack.pop()
            level = levels[at] if at < end else None
            visited += 1 + (len(node.literals) if level in (_ANY, "#") else 0)
            if most is not None and visited > most:
                yield TOO_MANY
                return
            if node.below is not None and (at or not levels[0].startswith("$")):
                yield node.below
            if node.here is not None and (level is None or level == "#"):
                yield node.here
            first = node is self._root
            if level == "#":
                stack += [(child, at) for child in self._meeting(node, _ANY, names, first)]
            elif level is not None:
                stack += [(child, at + 1) for child in self._meeting(node, level, names, first)]

    def _wider(self, node: _Node, level: str, names: Names, first: bool) -> Iterator[_Node]:
        """Give what is filed under a level that matches all that this one matches."""
        wild = not (first and level.startswith("$"))
        if wild and node.any is not None:
            yield node.any
        if level in node.literals:
            yield node.literals[level]
        for template, child in node.templates.items():
            stands_for = self._rendered(template, names, first)
            if stands_for == level or (wild and stands_for == _ANY):
                yield child

    def _meeting(self, node: _Node, level: str, names: Names, first: bool) -> Iterator[_Node]:
        """Give what is filed under a level that matches something that this one matches."""
        wild = level == _ANY
        if node.any is not None and not (first and level.startswith("$")):
            yield node.any
        if not wild:
            if level in node.literals:
                yield node.literals[level]
        elif first:
            yield from (child for text, child in node.literals.items() if text[:1] != "$")
        else:
            yield from node.literals.values()
        for template, child in node.templates.items():
            stands_for = self._rendered(template, names, first)
            if stands_for is not None and _meet(stands_for, level, first):
                yield child

    def _rendered(self, template: Template, names: Names, first: bool) -> str | None:
        """Give what a level is for somebody; None: such a level does not exist."""
        text = ""
        fit = True
        for piece in template:
            if isinstance(piece, str):
                text += piece
                continue
            name = names.user if piece is NameWildcard.USER else names.client
            if not name or (first and not text and name[0] == "$" and not self._fail_closed):
                return None
            fit = fit and _UNFIT.search(name) is None
            text += name
        if fit:
            return text
        return _ANY if self._fail_closed else None


def _meet(one: str, other: str, first: bool) -> bool:
    """Say whether there is a level that two levels of filters match, ``#`` aside."""
    if _ANY in (one, other):
        return not (first and "$" in (one[:1], other[:1]))
    return one == other
