"""Matching topics with filters (section 4.7): one trie of filters, one of topics.

Both are radix tries over topic levels: a node holds the run of levels in which nothing branches,
so that a name costs one node and one entry in its parent, however many levels it has. All walks
are loops over an explicit stack, as a topic may have 65 535 levels, and a match visits a node at
most once: no set of filters makes it cost more than looking at each of them.
"""

from collections.abc import Hashable, Iterable, Iterator
from enum import Enum
from typing import Final, Generic, TypeVar

from protocol.topics import split_levels

T = TypeVar("T")
V = TypeVar("V")


class _Absent(Enum):
    ABSENT = 0


_ABSENT: Final = _Absent.ABSENT


class _Node(Generic[V]):
    """A run of levels; below it the nodes that go on from there, by their first level."""

    __slots__ = ("children", "levels", "value")

    def __init__(self, levels: tuple[str, ...]) -> None:
        self.levels = levels
        self.children: dict[str, _Node[V]] | None = None
        self.value: V | _Absent = _ABSENT
        """Absent when no name ends here."""


class _Radix(Generic[V]):
    """Names, split into levels, with one value each."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: _Node[V] = _Node(())

    def find(self, levels: list[str]) -> _Node[V] | None:
        """Give the node at which the name ends, whether or not it has a value."""
        node, at = self.root, 0
        while at < len(levels):
            child = (node.children or {}).get(levels[at])
            if child is None or child.levels != tuple(levels[at : at + len(child.levels)]):
                return None
            node = child
            at += len(child.levels)
        return node

    def add(self, levels: list[str]) -> _Node[V]:
        """Give the node at which the name ends, made if there is none."""
        node, at = self.root, 0
        while at < len(levels):
            if node.children is None:
                node.children = {}
            child = node.children.get(levels[at])
            if child is None:
                child = _Node(tuple(levels[at:]))
                node.children[levels[at]] = child
                return child
            shared = 1
            most = min(len(child.levels), len(levels) - at)
            while shared < most and child.levels[shared] == levels[at + shared]:
                shared += 1
            if shared < len(child.levels):
                child = self._split(node, child, shared)
            node = child
            at += shared
        return node

    def remove(self, levels: list[str]) -> None:
        """Take the value off the name, and every node that is not needed any more."""
        parent, node, at = self.root, self.root, 0
        while at < len(levels):
            parent = node
            node = (node.children or {})[levels[at]]
            at += len(node.levels)
        node.value = _ABSENT
        if not node.children:
            if parent.children is not None:
                parent.children.pop(node.levels[0])
                parent.children = parent.children or None
            node = parent
        if node is not self.root and node.value is _ABSENT and len(node.children or ()) == 1:
            self._merge(node)

    @staticmethod
    def _split(parent: _Node[V], child: _Node[V], shared: int) -> _Node[V]:
        upper: _Node[V] = _Node(child.levels[:shared])
        child.levels = child.levels[shared:]
        upper.children = {child.levels[0]: child}
        if parent.children is not None:
            parent.children[upper.levels[0]] = upper
        return upper

    @staticmethod
    def _merge(node: _Node[V]) -> None:
        (child,) = (node.children or {}).values()
        node.levels += child.levels
        node.children = child.children
        node.value = child.value


class FilterTrie(Generic[T]):
    """Values filed under (topic filter, key), found by topic: the subscriptions.

    Filters and topics are taken to be legal. ``len()`` counts the values.
    """

    __slots__ = ("_count", "_tree")

    def __init__(self) -> None:
        self._tree: _Radix[dict[Hashable, T]] = _Radix()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, topic_filter: str, key: Hashable, value: T) -> None:
        """File ``value``; a value with the same filter and key is replaced."""
        node = self._tree.add(split_levels(topic_filter))
        if node.value is _ABSENT:
            node.value = {}
        self._count += key not in node.value
        node.value[key] = value

    def remove(self, topic_filter: str, key: Hashable) -> bool:
        """Take a value out; says whether it was there."""
        levels = split_levels(topic_filter)
        node = self._tree.find(levels)
        if node is None or node.value is _ABSENT or key not in node.value:
            return False
        del node.value[key]
        self._count -= 1
        if not node.value:
            self._tree.remove(levels)
        return True

    def match(self, topic: str) -> list[T]:
        """Give the values of all filters that match ``topic``, in no particular order.

        Wildcards in the first level do not match topics that begin with ``$`` [MQTT-4.7.2-1];
        ``#`` also matches the level above it (section 4.7.1.2).
        """
        levels = split_levels(topic)
        end = len(levels)
        found: list[T] = []
        children = self._tree.root.children or {}
        firsts = (levels[0],) if topic.startswith("$") else (levels[0], "+", "#")
        # (node, how many levels of the topic come before it)
        stack = [(children[first], 0) for first in firsts if first in children]
        while stack:
            node, at = stack.pop()
            at = _match_filter_levels(node.levels, levels, at)
            if at < 0:
                continue
            if at == end and node.value is not _ABSENT:
                found += node.value.values()
            if node.children is not None:
                for follower in (levels[at], "+", "#") if at < end else ("#",):
                    child = node.children.get(follower)
                    if child is not None:
                        stack.append((child, at))
        return found


def _match_filter_levels(filter_levels: tuple[str, ...], levels: list[str], at: int) -> int:
    """Match a run of filter levels with a topic from level ``at``.

    Gives the first level not matched yet, the end of the topic if ``#`` took what was left, or -1
    when they do not match.
    """
    end = len(levels)
    for level in filter_levels:
        if level == "#":
            return end
        if at == end or level not in ("+", levels[at]):
            return -1
        at += 1
    return at


class TopicTrie(Generic[T]):
    """Values filed under topics, found by filter: the retained messages.

    Filters and topics are taken to be legal. ``len()`` counts the topics.
    """

    __slots__ = ("_count", "_tree")

    def __init__(self) -> None:
        self._tree: _Radix[T] = _Radix()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def set(self, topic: str, value: T) -> None:
        """File ``value`` under ``topic``, in place of what was there."""
        node = self._tree.add(split_levels(topic))
        self._count += node.value is _ABSENT
        node.value = value

    def get(self, topic: str) -> T | None:
        """Give the value of ``topic``, None if it has none."""
        node = self._tree.find(split_levels(topic))
        return None if node is None or node.value is _ABSENT else node.value

    def discard(self, topic: str) -> bool:
        """Take the value of ``topic`` out; says whether there was one."""
        levels = split_levels(topic)
        node = self._tree.find(levels)
        if node is None or node.value is _ABSENT:
            return False
        self._tree.remove(levels)
        self._count -= 1
        return True

    def values(self) -> Iterator[T]:
        """Give the values of all topics, those that begin with ``$`` included, in no order."""
        stack = [self._tree.root]
        while stack:
            node = stack.pop()
            if node.value is not _ABSENT:
                yield node.value
            if node.children is not None:
                stack += node.children.values()

    def match(self, topic_filter: str) -> Iterator[T]:
        """Give the values of all topics that ``topic_filter`` matches, in no particular order.

        The trie must not change in the meantime. The rules are those of ``FilterTrie.match``.
        """
        levels = split_levels(topic_filter)
        end = len(levels)
        stack = [(self._tree.root, 0)]
        while stack:
            node, at = stack.pop()
            at = _match_topic_levels(node.levels, levels, at)
            if at < 0:
                continue
            wanted = levels[at] if at < end else None
            if node.value is not _ABSENT and wanted in (None, "#"):
                yield node.value
            if wanted is None or node.children is None:
                continue
            if wanted not in ("+", "#"):
                child = node.children.get(wanted)
                if child is not None:
                    stack.append((child, at))
                continue
            followers: Iterable[_Node[T]] = node.children.values()
            if node is self._tree.root:
                followers = [
                    child for first, child in node.children.items() if not first.startswith("$")
                ]
            stack += [(child, at) for child in followers]


def _match_topic_levels(topic_levels: tuple[str, ...], levels: list[str], at: int) -> int:
    """Match a run of topic levels with a filter from level ``at``.

    Gives the first level of the filter not matched yet, which is its ``#`` for good once that has
    been reached, or -1 when they do not match.
    """
    end = len(levels)
    for level in topic_levels:
        if at == end:
            return -1
        if levels[at] == "#":
            return at
        if levels[at] not in ("+", level):
            return -1
        at += 1
    return at
