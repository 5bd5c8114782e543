"""Patterns that name persons in topics, client identifiers and user names, and the inner names.

A pattern for topics is a topic filter in which ``{}`` or ``{mark}`` stands for a level that names a
person, such as ``home/{}/person/#``. The levels before a mark decide where names are: with this
pattern, the second level below ``home`` is one in every topic. It is replaced by a *token*, such as
``~17``, before anything else sees the topic. What a topic contains is sealed only if it matches a
whole pattern.

The map from topics to inner names is one to one, and filters match inner names exactly as they
match topics: a filter for which that is impossible is ambiguous. A level that begins with ``~`` and
names nobody gets a second one, so that a token is recognised anywhere.

A pattern for client identifiers or user names is text with one mark, and ``*`` at the end for any
further text: ``phone-{}-*``. The name is the shortest that fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.errors import FoldmqError
from protocol.mqtt.topics import (
    MAX_TOPIC_BYTES,
    TopicError,
    matches,
    split_levels,
    validate_topic_filter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Token = Callable[["Name"], str]
    """Returns the token of a name."""

PERSON: Final = "person"
"""The kind of persons that ``{}`` names."""
_MARK: Final = re.compile(r"\{([a-z][a-z0-9_]{0,31})?\}")
_TOKEN: Final = re.compile(r"~(?:[0-9]+\.)?[1-9][0-9]*")
_LITERAL: Final = re.compile(r"[^~{}*]*")


class PatternError(FoldmqError):
    """A pattern is invalid, or contradicts another one."""

    exit_code = 78


class AmbiguousFilterError(TopicError):
    """A level of a filter would name a person in some topics, and nobody in others."""

    def __init__(self, topic_filter: str) -> None:
        super().__init__(f"{topic_filter!r} is ambiguous with personal_topics", "MQTT-4.7.3-4")


class Name(NamedTuple):
    """The name of a person, as clients write it."""

    kind: str
    text: str


def is_token(text: str) -> bool:
    """Return whether a level of an inner name stands for a person."""
    return _TOKEN.fullmatch(text) is not None


class TopicPatterns:
    """The patterns for topics."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Parse them; raises PatternError for an invalid one, and for two that disagree."""
        self._sealed: list[str] = []
        """Filters of the topics whose messages are sealed."""
        self._rules: dict[int, dict[tuple[str, ...], _Rule]] = {}
        """Number of a level -> the levels before it, with ``+`` for marks -> its rule."""
        for text in patterns:
            levels, kinds = _parsed(text)
            self._sealed.append("/".join(levels))
            for number, kind in enumerate(kinds):
                if kind is not None:
                    self._add(tuple(levels[:number]), _Rule(kind, text))

    def _add(self, before: tuple[str, ...], rule: _Rule) -> None:
        rules = self._rules.setdefault(len(before), {})
        for levels, other in rules.items():
            if other.kind != rule.kind and _overlap(levels, before):
                raise PatternError(
                    f"personal_topics: {rule.pattern} and {other.pattern} give the same level of "
                    f"a topic different marks, {rule.kind} and {other.kind}: use one of them"
                )
        rules.setdefault(before, rule)

    def names(self, topic: str) -> list[Name]:
        """Return the persons that a topic names."""
        levels = split_levels(topic)
        kinds = (self._kind(levels[:number], level) for number, level in enumerate(levels))
        named = zip(kinds, levels, strict=True)
        return [Name(kind, level) for kind, level in named if kind is not None]

    def is_sealed(self, topic: str) -> bool:
        """Return whether messages on a topic are sealed."""
        return any(matches(pattern, topic) for pattern in self._sealed)

    def inner_topic(self, topic: str, token: Token) -> str:
        """Return the inner name of a topic. Raises TopicError if that is too long."""
        inner, levels = [], split_levels(topic)
        for number, level in enumerate(levels):
            kind = self._kind(levels[:number], level)
            inner.append(_escaped(level) if kind is None else token(Name(kind, level)))
        return _joined(inner)

    def real_topic(self, inner: str, name: Callable[[str], str | None]) -> str | None:
        """Return the topic of an inner name; None if it names a person who has no name any more.

        ``name`` returns the name of a token. Raises ValueError if no topic has this inner name.
        """
        levels: list[str] = []
        for level in split_levels(inner):
            if self._kind(levels, level) is None:
                levels.append(_unescaped(level))
            elif not is_token(level):
                raise ValueError(f"{level!r} is no token")
            elif (real := name(level)) is None:
                return None
            else:
                levels.append(real)
        return "/".join(levels)

    def inner_filter(self, topic_filter: str, token: Token) -> str:
        """Return the filter of inner names that is equivalent to a filter of topics.

        Raises AmbiguousFilterError if there is none, TopicError if it is too long.
        """
        inner, levels = [], split_levels(topic_filter)
        for number, level in enumerate(levels):
            if level in ("+", "#"):
                inner.append(level)
                continue
            kind = self._kind(levels[:number], level)
            if kind is None:
                inner.append(_escaped(level))
            elif self._is_certain(levels[:number]):
                inner.append(token(Name(kind, level)))
            else:
                raise AmbiguousFilterError(topic_filter)
        return _joined(inner)

    def _kind(self, before: Sequence[str], level: str) -> str | None:
        """Return the kind of person that a level names behind others; None: it never names one.

        The levels before it may be those of a filter: then there are topics in which it does.
        """
        if not level or (not before and level.startswith("$")):
            return None
        for levels, rule in self._rules.get(len(before), {}).items():
            if _overlap(levels, before):
                return rule.kind
        return None

    def _is_certain(self, before: Sequence[str]) -> bool:
        """Return whether a level that may name a person does so in all topics of a filter."""
        return any(
            all(pattern in ("+", level) for pattern, level in zip(levels, before, strict=True))
            for levels in self._rules.get(len(before), {})
            if _overlap(levels, before)
        )


class _Rule(NamedTuple):
    kind: str
    pattern: str


def _parsed(text: str) -> tuple[list[str], list[str | None]]:
    """Return the levels of a pattern, with ``+`` for marks, and the kind of each mark."""
    levels: list[str] = []
    kinds: list[str | None] = []
    for level in split_levels(text):
        found = _MARK.fullmatch(level)
        if found is None and ("{" in level or "}" in level):
            raise PatternError(
                f"personal_topics: {text}: a mark is a whole level, {{}} or {{name}} with a name "
                "of at most 32 lower-case letters, digits and _"
            )
        levels.append(level if found is None else "+")
        kinds.append(None if found is None else found[1] or PERSON)
    try:
        validate_topic_filter("/".join(levels))
    except TopicError as error:
        raise PatternError(f"personal_topics: {text}: {error.reason}") from None
    if levels[0].startswith("$"):
        raise PatternError(f"personal_topics: {text}: topics that begin with $ name nobody")
    if any(level.startswith("~") for level in levels):
        raise PatternError(f"personal_topics: {text}: a level that begins with ~ is like a token")
    return levels, kinds


def _overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether there is a topic whose first levels match both; they have no ``#``."""
    if first and "$" in (first[0][:1], second[0][:1]) and "+" in (first[0], second[0]):
        return False  # a wildcard does not match it [MQTT-4.7.2-1]
    return all(
        one == other or "+" in (one, other) for one, other in zip(first, second, strict=True)
    )


def _escaped(level: str) -> str:
    return f"~{level}" if level.startswith("~") else level


def _unescaped(level: str) -> str:
    if level.startswith("~") and not level.startswith("~~"):
        raise ValueError(f"{level!r} names nobody there")
    return level.removeprefix("~")


def _joined(levels: Sequence[str]) -> str:
    inner = "/".join(levels)
    if len(inner) > MAX_TOPIC_BYTES // 4 and len(inner.encode()) > MAX_TOPIC_BYTES:
        raise TopicError("topic is too long with tokens in place of names", "MQTT-4.7.3-3")
    return inner


@dataclass(frozen=True, slots=True)
class _TextPattern:
    kind: str
    real: re.Pattern[str]
    inner: re.Pattern[str]


class TextPatterns:
    """The patterns for client identifiers, or for user names; the first that fits counts."""

    def __init__(self, setting: str, patterns: Iterable[str]) -> None:
        """Parse the patterns of a setting; raises PatternError for an invalid one."""
        self._patterns = [_text_pattern(setting, text) for text in patterns]

    def name(self, text: str) -> Name | None:
        """Return the person that a text names; None: nobody."""
        found = self._find(text)
        return None if found is None else Name(found[0], found[1][2])

    def inner(self, text: str, token: Token) -> str:
        """Return the inner name of a text."""
        found = self._find(text)
        if found is None:
            return text
        kind, match = found
        return match[1] + token(Name(kind, match[2])) + match[3]

    def real(self, inner: str, name: Callable[[str], str | None]) -> str | None:
        """Return the text of an inner name; None if it names a person who has no name any more.

        ``name`` returns the name of a token.
        """
        for pattern in self._patterns:
            match = pattern.inner.fullmatch(inner)
            if match is not None:
                real = name(match[2])
                return None if real is None else match[1] + real + match[3]
        return inner

    def _find(self, text: str) -> tuple[str, re.Match[str]] | None:
        for pattern in self._patterns:
            match = pattern.real.fullmatch(text)
            if match is not None:
                return pattern.kind, match
        return None


def _text_pattern(setting: str, text: str) -> _TextPattern:
    found = _MARK.search(text)
    if found is None:
        raise PatternError(f"{setting}: {text}: has no mark: put {{}} where the name is")
    before, after = text[: found.start()], text[found.end() :]
    end = ".*" if after.endswith("*") else ""
    after = after.removesuffix("*")
    if not (_LITERAL.fullmatch(before) and _LITERAL.fullmatch(after)):
        raise PatternError(
            f"{setting}: {text}: has one mark, * only at the end, and none of ~ {{ }} otherwise"
        )
    if end and not after:
        raise PatternError(f"{setting}: {text}: text between the mark and * must end the name")
    if after[:1].isdecimal() or after.startswith("."):
        raise PatternError(f"{setting}: {text}: a digit or . behind the mark would not end a token")
    parts = rf"({re.escape(before)})({{}})({re.escape(after)}{end})"
    return _TextPattern(
        found[1] or PERSON,
        re.compile(parts.replace("({})", "(.+?)"), re.DOTALL),
        re.compile(parts.replace("({})", f"({_TOKEN.pattern})"), re.DOTALL),
    )
