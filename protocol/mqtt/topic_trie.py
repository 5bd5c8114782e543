"""Matching of topics and filters (section 4.7): a trie of filters, and a trie of topics.

Both are radix tries over topic levels. A name is filed in its parent under one level; the levels
after it up to the next branch, its rest, are one string. So a name costs one entry in its parent,
however many levels it has. A name with a single value and nothing below it is a leaf: a tuple,
which is small, and ignored by the garbage collector when it contains strings only. Everything else
is a node.

All walks are loops over an explicit stack, as a topic may have 65 535 levels, and a match visits
a node or leaf at most once: no set of filters makes it cost more than a visit to each of them.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeAlias, TypeVar

from protocol.mqtt.topics import split_levels

T = TypeVar("T")

_TrieLeaf: TypeAlias = tuple[str, Hashable, T]
"""(rest, key, value): a name that has one value and nothing below it."""

SHARED_STRINGS: Final = 1024
SHARED_LENGTH: Final = 64
"""Number of recent strings that a trie remembers in order to store equal ones once, and their
largest length in characters. Bounded, as they come from clients."""


class _TrieNode(Generic[T]):
    """A place where names branch, or the end of a name with several values."""

    __slots__ = ("children", "held", "rest")

    def __init__(self, rest: str) -> None:
        self.rest = rest
        """The levels after the one under which it is filed, each with a ``/`` at its end."""
        self.children: dict[str, _TrieNode[T] | _TrieLeaf[T]] | None = None
        """The continuations by their first level; never empty."""
        self.held: tuple[Hashable, T] | dict[Hashable, T] | None = None
        """The values of the name that ends here: none, (key, value), or two or more by key."""

    def values(self) -> Iterable[T]:
        """Return the values of the name that ends here."""
        if self.held is None:
            return ()
        return self.held[1:] if isinstance(self.held, tuple) else self.held.values()

    def get(self, key: Hashable) -> T | None:
        """Return the value of the name that ends here for a key, None if there is none."""
        if isinstance(self.held, dict):
            return self.held.get(key)
        return self.held[1] if self.held is not None and self.held[0] == key else None

    def add_value(self, key: Hashable, value: T) -> bool:
        """Add a value; return whether the key is new here."""
        if self.held is None:
            self.held = (key, value)
            return True
        if isinstance(self.held, tuple):
            if self.held[0] == key:
                self.held = (key, value)
                return False
            self.held = dict((self.held,))
        new = key not in self.held
        self.held[key] = value
        return new

    def remove_value(self, key: Hashable) -> bool:
        """Remove a value; return whether it was there."""
        if isinstance(self.held, dict):
            if key not in self.held:
                return False
            del self.held[key]
            if len(self.held) == 1:
                (self.held,) = self.held.items()
            return True
        if self.held is None or self.held[0] != key:
            return False
        self.held = None
        return True


class FilterTrie(Generic[T]):
    """Values filed under (topic filter, key), found by topic: the subscriptions.

    Filters and topics must be legal. ``len()`` counts the values. The filters themselves are not
    stored, only the levels by which they differ. Internally a name also has a ``/`` at its end, and
    a position in it is the start of a level.
    """

    __slots__ = ("_shared", "count", "root")

    def __init__(self) -> None:
        self.root: _TrieNode[T] = _TrieNode("")
        self.count = 0
        self._shared: dict[str, str] = {}

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return self.count > 0

    def match(self, topic: str) -> list[T]:
        """Return the values of all filters that match ``topic``, in no particular order.

        Wildcards in the first level do not match topics that begin with ``$`` [MQTT-4.7.2-1];
        ``#`` also matches the level above it (section 4.7.1.2).
        """
        text = topic + "/"
        end = len(text)
        values: list[T] = []
        wild = not topic.startswith("$")
        # (node, position in the topic of the level to match below it)
        stack = [(self.root, 0)]
        while stack:
            node, at = stack.pop()
            if at == end and node.held is not None:
                values += node.values()
            children = node.children
            if children is None:
                continue
            if wild and "#" in children:
                several = children["#"]
                values += several[2:] if isinstance(several, tuple) else several.values()
            if at == end:
                continue
            stop = text.index("/", at)
            level = text[at:stop]
            at = stop + 1
            for first in (level, "+") if wild else (level,):
                child = children.get(first)
                if child is None:
                    continue
                if isinstance(child, tuple):
                    if _match_filter_rest(child[0], text, at) == end:
                        values.append(child[2])
                elif child.rest:
                    past = _match_filter_rest(child.rest, text, at)
                    if past >= 0:
                        stack.append((child, past))
                else:
                    stack.append((child, at))
            wild = True
        return values

    def get(self, name: str, key: Hashable) -> T | None:
        """Return the value with exactly this name and key, None if there is none."""
        entry = self.walk(name)
        if isinstance(entry, tuple):
            return entry[2] if entry[1] == key else None
        return None if entry is None else entry.get(key)

    def insert(self, name: str, key: Hashable, value: T) -> None:
        """Store a value in place of the one with the same name and key."""
        name += "/"
        node, at = self.root, 0
        while at < len(name):
            first, at = _level(name, at)
            if node.children is None:
                node.children = {}
            child = node.children.get(first)
            if child is None:
                node.children[self._share(first)] = (self._share(name[at:]), key, value)
                self.count += 1
                return
            if isinstance(child, tuple):
                rest, filed_under, _ = child
                if filed_under == key and rest == name[at:]:
                    node.children[first] = (rest, key, value)
                    return
                child = _as_node(child)
                node.children[first] = child
            shared = _shared_length(child.rest, name, at)
            if shared < len(child.rest):
                child = self._split(child, shared)
                node.children[first] = child
            node = child
            at += shared
        self.count += node.add_value(key, value)

    def remove(self, name: str, key: Hashable) -> bool:
        """Remove a value and the entries that only it needs; return whether it was there."""
        path: list[tuple[_TrieNode[T], str]] = []
        entry = self.walk(name, path)
        least: _TrieNode[T] | _TrieLeaf[T] | None = None
        if isinstance(entry, tuple):
            if entry[1] != key:
                return False
        elif entry is not None and entry.remove_value(key):
            least = self._least(entry)
        else:
            return False
        self.count -= 1
        # A simplified node may allow its parent to be simplified, and so on.
        while path and least is not entry:
            entry, first = path.pop()
            if entry.children is not None:
                if least is None:
                    del entry.children[first]
                else:
                    entry.children[first] = least
            least = self._least(entry)
        return True

    def walk(
        self, name: str, path: list[tuple[_TrieNode[T], str]] | None = None
    ) -> _TrieNode[T] | _TrieLeaf[T] | None:
        """Return the entry at the end of the name; fill ``path`` with (parent, first level)."""
        name += "/"
        node, at = self.root, 0
        while node.children is not None:
            stop = name.index("/", at)
            first = name[at:stop]
            child = node.children.get(first)
            if child is None:
                return None
            if path is not None:
                path.append((node, first))
            at = stop + 1
            if isinstance(child, tuple):
                return child if child[0] == name[at:] else None
            if child.rest:
                if not name.startswith(child.rest, at):
                    return None
                at += len(child.rest)
            if at == len(name):
                return child
            node = child
        return None

    def _share(self, text: str) -> str:
        """Return an equal string: a recently filed one if there is one."""
        if len(text) > SHARED_LENGTH:
            return text
        if len(self._shared) == SHARED_STRINGS:
            self._shared.clear()
        return self._shared.setdefault(text, text)

    def _split(self, lower: _TrieNode[T], shared: int) -> _TrieNode[T]:
        """Return a new node for the first ``shared`` characters of the rest, ``lower`` below it."""
        upper: _TrieNode[T] = _TrieNode(self._share(lower.rest[:shared]))
        first, after = _level(lower.rest, shared)
        lower.rest = self._share(lower.rest[after:])
        upper.children = {self._share(first): self._least(lower) or lower}
        return upper

    def _least(self, node: _TrieNode[T]) -> _TrieNode[T] | _TrieLeaf[T] | None:
        """Return the simplest replacement of the node, possibly the node itself."""
        if not node.children:
            node.children = None
            if isinstance(node.held, tuple):
                return (node.rest, *node.held)
            return node if node.held or node is self.root else None
        if node.held is not None or len(node.children) > 1 or node is self.root:
            return node
        ((first, child),) = node.children.items()
        if isinstance(child, tuple):
            rest, key, value = child
            return (self._share(f"{node.rest}{first}/{rest}"), key, value)
        child.rest = self._share(f"{node.rest}{first}/{child.rest}")
        return child


def _as_node(leaf: _TrieLeaf[T]) -> _TrieNode[T]:
    rest, key, value = leaf
    node: _TrieNode[T] = _TrieNode(rest)
    node.held = (key, value)
    return node


def _level(name: str, at: int) -> tuple[str, int]:
    """Return the level at position ``at``, and the position after it."""
    end = name.index("/", at)
    return name[at:end], end + 1


def _shared_length(rest: str, name: str, at: int) -> int:
    """Return how many characters of ``rest``, in whole levels, equal ``name`` from ``at`` on."""
    low, high = 0, len(rest)
    if name.startswith(rest, at):
        return high
    while low < high:  # The compared part halves each time: linear, and nearly all of it in C.
        middle = (low + high + 1) // 2
        if name.startswith(rest[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return rest.rfind("/", 0, low) + 1


def _match_filter_rest(rest: str, text: str, begin: int) -> int:
    """Match the rest of a filter, or of a part of it, with a topic from a position on.

    ``text`` is the topic with a ``/`` at its end. Returns the position after the match, the length
    of ``text`` if ``#`` matched the remainder, or -1 when they do not match. The levels between two
    ``+`` are compared at once, however many they are.
    """
    multi = rest.endswith("#/")
    pieces = (rest[:-2] if multi else rest).split("+/")
    at = begin
    for number, piece in enumerate(pieces):
        if number:
            at = text.find("/", at) + 1
            if not at:
                return -1
        if piece:
            if not text.startswith(piece, at):
                return -1
            at += len(piece)
    return len(text) if multi else at


class TopicTrie(Generic[T]):
    """Values filed under topics, found by filter: the retained messages.

    Filters and topics must be legal. ``len()`` counts the topics.
    """

    __slots__ = ("_tree",)

    def __init__(self) -> None:
        self._tree: FilterTrie[T] = FilterTrie()
        """All values have the key None."""

    def __len__(self) -> int:
        return self._tree.count

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    def set(self, topic: str, value: T) -> None:
        """Store ``value`` under ``topic``, in place of the previous one."""
        self._tree.insert(topic, None, value)

    def get(self, topic: str) -> T | None:
        """Return the value of ``topic``, None if it has none."""
        return self._tree.get(topic, None)

    def discard(self, topic: str) -> bool:
        """Remove the value of ``topic``; return whether there was one."""
        return self._tree.remove(topic, None)

    def values(self) -> Iterator[T]:
        """Yield the values of all topics, including those that begin with ``$``, in no order."""
        stack = [self._tree.root]
        while stack:
            node = stack.pop()
            yield from node.values()
            for child in (node.children or {}).values():
                if isinstance(child, tuple):
                    yield child[2]
                else:
                    stack.append(child)

    def match(self, topic_filter: str) -> Iterator[T]:
        """Yield the values of all topics that ``topic_filter`` matches, in no particular order.

        The trie must not change in the meantime. The rules are those of ``FilterTrie.match``.
        """
        levels = split_levels(topic_filter)
        multi = levels[-1] == "#"
        if multi:
            levels.pop()
        elif "+" not in topic_filter:
            entry = self._tree.walk(topic_filter)
            if entry is not None:
                yield from entry[2:] if isinstance(entry, tuple) else entry.values()
            return
        end = len(levels)
        # (node, number of levels of the filter, without its "#", that are matched so far)
        stack = [(self._tree.root, 0)]
        while stack:
            node, at = stack.pop()
            if at == end:
                yield from node.values()
                if not multi:
                    continue
            followers = self._followers(node, levels[at] if at < end else "+")
            at = min(at + 1, end)
            rest, past = "", at
            for child in followers:
                # Neighbours often have the same rest: then it is matched once for all of them.
                next_rest = child[0] if isinstance(child, tuple) else child.rest
                if next_rest != rest:
                    rest = next_rest
                    past = _match_topic_rest(rest, levels, at, multi=multi) if rest else at
                if isinstance(child, tuple):
                    if past == end:
                        yield child[2]
                elif past >= 0:
                    stack.append((child, past))

    def _followers(self, node: _TrieNode[T], level: str) -> Iterable[_TrieNode[T] | _TrieLeaf[T]]:
        """Return the entries below the node under a level of a filter."""
        children = node.children
        if children is None:
            return ()
        if level != "+":
            child = children.get(level)
            return () if child is None else (child,)
        if node is self._tree.root:
            return [child for first, child in children.items() if first[:1] != "$"]
        return children.values()


def _match_topic_rest(rest: str, levels: list[str], at: int, *, multi: bool) -> int:
    """Match the rest of a topic, or of a part of it, with the levels of a filter from ``at``.

    ``multi`` says that a ``#`` follows those levels. Returns the first level not matched yet, or -1
    when they do not match.
    """
    end = len(levels)
    if multi and at == end:
        return at
    # One level more than the filter has is one too many. Levels after it are not split.
    there = rest.split("/", end - at + 1)
    there.pop()
    past = at + len(there)
    if past > end:
        if not multi:
            return -1
        past = end
        there.pop()
    for level in there:
        if level != levels[at] != "+":
            return -1
        at += 1
    return past
