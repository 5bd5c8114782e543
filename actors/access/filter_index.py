"""Index of permission filters: those that match a topic, cover a filter or overlap with it.

One filter *covers* another if it matches every topic that the other one matches; a filter without
wildcards is a topic, and is covered by the filters that match it. Two filters *overlap* if some
topic matches both. Permission filters may contain ``%u`` and ``%c``, which are replaced by the user
and the client identifier of the client, and ``%%``, which is a percent sign.

The filters are a trie over their levels, in which a level with a placeholder is one entry for all
clients. All walks are loops, and visit a node at most once.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from protocol.errors import FoldmqError
from protocol.mqtt.topics import TopicError, split_levels, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOO_MANY: Final = -1
"""Result of a walk that was aborted."""
_ANY: Final = "+"
_TOKEN = re.compile(r"(%[uc%]?)")
_UNFIT = re.compile(r"[/+#]")
"""Characters that a name must not contain if it replaces a level, or a part of one."""


class FilterError(FoldmqError, ValueError):
    """An invalid permission filter."""


class NameWildcard(enum.Enum):
    """The kinds of names that a level may contain."""

    USER = "%u"
    CLIENT = "%c"


Template: TypeAlias = tuple[str | NameWildcard, ...]
"""A level that contains names, in pieces."""

Level: TypeAlias = str | Template


class NameValues(NamedTuple):
    """The values of ``%u`` and ``%c``; None or empty: the client has none."""

    user: str | None
    client: str | None


def parse_filter(text: str) -> list[Level]:
    """Return the levels of a permission filter.

    Raises FilterError if it is not a topic filter, or contains a ``%`` other than ``%u``, ``%c``,
    ``%%``.
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
    """Return whether a filter contains a name of this kind."""
    return any(who in level for level in levels if type(level) is tuple)


class _Node:
    """A node of the trie: the levels that lead to it are matched."""

    __slots__ = ("any", "below", "here", "literals", "templates")

    def __init__(self) -> None:
        self.here: int | None = None
        """The first of the filters that end here."""
        self.below: int | None = None
        """The first of the filters that continue with ``#``."""
        self.any: _Node | None = None
        """The node under ``+``."""
        self.literals: dict[str, _Node] = {}
        self.templates: dict[Template, _Node] = {}


class Filters:
    """Numbered filters; of equal ones the lowest number counts.

    ``fail_closed`` determines what a level matches if its name contains ``/``, ``+`` or ``#``: any
    level for a deny (True), none for an allow (False). An allow never matches a leading ``$`` that
    comes from a name: clients often choose their names, and topics of the broker begin with ``$``.
    """

    __slots__ = ("_fail_closed", "_root")

    def __init__(self, *, fail_closed: bool) -> None:
        self._root = _Node()
        self._fail_closed = fail_closed

    def add(self, levels: Sequence[Level], number: int) -> None:
        """Add a filter; numbers must not decrease."""
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

    def covering(self, levels: Sequence[str], names: NameValues) -> Iterator[int]:
        """Yield the numbers of the filters that cover a valid filter or match a topic."""
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
        self, levels: Sequence[str], names: NameValues, most: int | None = None
    ) -> Iterator[int]:
        """Yield the numbers of the filters that overlap with a valid filter.

        With ``most`` the walk is aborted after ``most`` nodes, and ends with ``TOO_MANY``.
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

    def _wider(self, node: _Node, level: str, names: NameValues, first: bool) -> Iterator[_Node]:
        """Yield the nodes of levels that match everything this one matches."""
        wild = not (first and level.startswith("$"))
        if wild and node.any is not None:
            yield node.any
        if level in node.literals:
            yield node.literals[level]
        for template, child in node.templates.items():
            stands_for = self._rendered(template, names, first)
            if stands_for == level or (wild and stands_for == _ANY):
                yield child

    def _meeting(self, node: _Node, level: str, names: NameValues, first: bool) -> Iterator[_Node]:
        """Yield the nodes of levels that match something this one matches."""
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

    def _rendered(self, template: Template, names: NameValues, first: bool) -> str | None:
        """Return a level with the names of a client; None if it matches nothing."""
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


def _meet(level: str, other: str, first: bool) -> bool:
    """Return whether two levels of filters match a common level, ``#`` aside."""
    if _ANY in (level, other):
        return not (first and "$" in (level[:1], other[:1]))
    return level == other
