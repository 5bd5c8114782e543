"""The mapping of topics to NATS subjects, and the selection of bridged topics.

Without rules a topic's subject is that of ``protocol.nats.subjects``. A rule ``TOPIC=SUBJECT``
replaces the levels TOPIC by SUBJECT; the levels after TOPIC are mapped as in
``protocol.nats.subjects``::

    sensors=plant1.sensors      sensors/hall/temp  is  plant1.sensors.hall.temp
    =site                       all other topics:  a/b  is  site.a.b
    plant=                      plant/a/b  is  a.b

The rule with the longest TOPIC applies to a topic. Several topics may thus map to one subject. Then
it is the subject of one of them, and the others are not bridged: the rule with the longest SUBJECT
takes precedence, and any rule over the mapping without rules. So for all names that
:class:`Mapping` bridges, ``topic(subject(t)) == t`` and ``subject(topic(s)) == s``; hence no
message returns under another name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from protocol.errors import FoldmqError
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import (
    RESERVED_ROOTS,
    TopicError,
    is_reserved_topic,
    split_levels,
    validate_topic_filter,
    validate_topic_name,
)
from protocol.nats.subjects import (
    SubjectError,
    filter_to_subjects,
    subject_to_topic,
    topic_to_subject,
)

MAX_SUBJECT: Final = 3800
"""Length of the longest subject in bytes. A line of a NATS client is limited to 4 096 bytes,
including the verb, the reply subject and the sizes."""

_OWN_ROOT = "foldmq"
_LITERAL = re.compile(
    r"[^\x00-\x20\x7f-\x9f.*>\ud800-\udfff]+(\.[^\x00-\x20\x7f-\x9f.*>\ud800-\udfff]+)*"
)
_SHOWN_LENGTH: Final = 60


class MappingError(FoldmqError, ValueError):
    """A rule, a filter or a user's prefix is invalid; the message is one line."""

    exit_code = 78


class _Rule(NamedTuple):
    topic: str
    """TOPIC; empty: the rule for all other topics."""
    levels: tuple[str, ...]
    subject: str


def is_reserved_subject(subject: str) -> bool:
    """Return whether a subject is never bridged: of NATS (``$...``, ``_INBOX``, ``_R_``) or foldmq.

    A pattern that begins with a wildcard is not reserved, whatever it matches.
    """
    return subject.startswith(("$", "_", f"{_OWN_ROOT}.")) or subject == _OWN_ROOT


def parse_users(texts: Iterable[str]) -> dict[str, str]:
    """Parse texts ``USER=SUBJECT``: the prefix of each user's subjects. Raises MappingError."""
    prefixes: dict[str, str] = {}
    for text in texts:
        user, equals, prefix = text.rpartition("=")
        if not equals or not user or not prefix:
            raise MappingError(f"{_shown(text)}: must be USER=SUBJECT")
        if user in prefixes:
            raise MappingError(f"{_shown(text)}: there is a subject for this user already")
        _check_subject(prefix, text)
        prefixes[user] = prefix
    return prefixes


class Mapping:
    """Topics to subjects and back, for topics that match one of ``filters``.

    ``rules`` are pairs of TOPIC and SUBJECT. ``prefixes`` are the subjects reserved for users:
    subjects at or below one of them are bridged only by calls with that ``prefix``. Such calls put
    it before everything else. Raises MappingError.
    """

    def __init__(
        self,
        rules: Sequence[tuple[str, str]] = (),
        filters: Sequence[str] = ("#",),
        prefixes: Iterable[str] = (),
    ) -> None:
        self._rules: dict[str, _Rule] = {}
        subjects: dict[str, _Rule] = {}
        for topic, subject in rules:
            rule = _rule(topic, subject)
            if topic in self._rules:
                raise MappingError(f"{_rule_shown(topic, subject)}: a second rule for this topic")
            if subject in subjects:
                raise MappingError(
                    f"{_rule_shown(topic, subject)}: topic {_shown(subjects[subject].topic)} has "
                    "this subject already"
                )
            self._rules[topic] = subjects[subject] = rule
        self._other = self._rules.pop("", _Rule("", (), ""))
        self._has_rules = bool(subjects)
        self._topic_depths = _depths(len(rule.levels) for rule in self._rules.values())
        unmarked = {subjects.pop("", self._other), self._other}
        self._unmarked = sorted((rule for rule in unmarked if not rule.subject), reverse=True)
        self._by_subject = subjects
        self._subject_depths = _depths(subject.count(".") + 1 for subject in subjects)
        self._longest_topic = MAX_SUBJECT + 1 + max(map(len, self._rules), default=0)

        self.filters = tuple(filters)
        """The filters of bridged topics."""
        self._filters = [split_levels(topic_filter) for topic_filter in filters]
        self._bridged: FilterTrie[bool] = FilterTrie()
        for topic_filter in filters:
            _check_filter(topic_filter)
            self._bridged.insert(topic_filter, 0, True)
        self._everything = "#" in filters

        self._prefixes = sorted(set(prefixes), key=len, reverse=True)
        for prefix in self._prefixes:
            _check_subject(prefix, prefix)

    @classmethod
    def parse(
        cls,
        texts: Iterable[str],
        filters: Sequence[str] = ("#",),
        prefixes: Iterable[str] = (),
    ) -> Mapping:
        """Return a mapping for rules as text, ``TOPIC=SUBJECT``; the last ``=`` counts."""
        rules = []
        for text in texts:
            topic, equals, subject = text.rpartition("=")
            if not equals:
                raise MappingError(f"{_shown(text)}: must be TOPIC=SUBJECT")
            rules.append((topic, subject))
        return cls(rules, filters, prefixes)

    def subject(self, topic: str, prefix: str = "") -> str | None:
        """Return the subject of a legal topic name, None if it is not bridged.

        It is not bridged if the topic matches no filter, the topic or the subject is reserved, the
        subject is longer than ``MAX_SUBJECT``, reserved for others, or that of another topic.
        """
        if (
            len(topic) > self._longest_topic
            or is_reserved_topic(topic)
            or not self._is_bridged(topic)
        ):
            return None
        if self._has_rules:
            rule, below = self._follow(topic)
            if below is None:
                subject = rule.subject
            else:
                subject = _joined(rule.subject, topic_to_subject(below))
            if not subject or not self._has_first(rule, subject):
                return None
        else:
            subject = topic_to_subject(topic)
        if prefix:
            subject = f"{prefix}.{subject}"
        return subject if self._is_open(subject, prefix) else None

    def topic(self, subject: str, prefix: str = "") -> str | None:
        """Return the bridged topic with this subject, None if there is none."""
        if not self._is_open(subject, prefix):
            return None
        if prefix:
            if not subject.startswith(f"{prefix}."):
                return None
            subject = subject[len(prefix) + 1 :]
        topic = self._topic(subject)
        if topic is None or is_reserved_topic(topic) or not self._is_bridged(topic):
            return None
        return topic

    def subjects(self, topic_filter: str, prefix: str = "") -> tuple[str, ...]:
        """Return the subjects to subscribe to for a legal topic filter.

        Together they match the subject of every bridged topic that the filter matches, and often
        more: check each message with :meth:`topic`. None of them matches everything that another
        one matches, but two may have subjects in common (``a.*`` and ``*.b``).
        """
        levels = split_levels(topic_filter)
        # Without "/#" at its end a filter is no longer than the topics that it matches.
        if levels[0] in RESERVED_ROOTS or len(topic_filter) > self._longest_topic + 2:
            return ()
        patterns: dict[str, None] = {}
        for bridged in self._filters:
            common = _common_levels(levels, bridged)
            if common is not None:
                patterns.update(dict.fromkeys(self._patterns(common)))
        if prefix:
            patterns = {f"{prefix}.{pattern}": None for pattern in patterns}
        return _without_covered([pattern for pattern in patterns if self._is_open(pattern, prefix)])

    def _is_bridged(self, topic: str) -> bool:
        if self._everything and not topic.startswith("$"):
            return True
        return bool(self._bridged.match(topic))

    def _is_open(self, subject: str, prefix: str) -> bool:
        if is_reserved_subject(subject) or len(subject) > MAX_SUBJECT:
            return False
        if not subject.isascii() and len(subject.encode(errors="surrogatepass")) > MAX_SUBJECT:
            return False
        # Both are prefixes of the subject: the longer one is below the shorter one.
        for owned in self._prefixes:
            if len(owned) <= len(prefix):
                return True
            if subject.startswith(owned) and subject[len(owned) : len(owned) + 1] in ("", "."):
                return False
        return True

    def _follow(self, topic: str) -> tuple[_Rule, str | None]:
        """Return the rule of a topic and the levels after the rule's, None if there are none."""
        if self._topic_depths:
            levels = topic.split("/", self._topic_depths[0])
            for depth in self._topic_depths:
                if depth <= len(levels):
                    rule = self._rules.get("/".join(levels[:depth]))
                    if rule is not None:
                        above = len(rule.topic)
                        return rule, topic[above + 1 :] if len(topic) > above else None
        return self._other, topic

    def _topic(self, subject: str) -> str | None:
        """Return the topic of a subject without prefix by the rules alone."""
        if not self._has_rules:
            return _topic_or_none(subject)
        topics = (self._made_of(rule, below) for rule, below in self._candidates(subject))
        return next((topic for topic in topics if topic is not None), None)

    def _has_first(self, rule: _Rule, subject: str) -> bool:
        """Return whether no other topic has precedence for a subject that this rule produced."""
        for candidate, below in self._candidates(subject):
            if candidate is rule:
                return True
            if self._made_of(candidate, below) is not None:
                return False
        return False

    def _made_of(self, rule: _Rule, below: str | None) -> str | None:
        """Return the topic for which this rule produces a subject that ends with ``below``."""
        if below is None:
            topic: str | None = rule.topic
        elif below == "/" and rule.topic:  # one empty level: only the end of a topic
            topic = f"{rule.topic}/"
        else:
            topic = _topic_or_none(below)
            if topic and rule.topic:
                topic = f"{rule.topic}/{topic}"
        return topic if topic and self._follow(topic)[0] is rule else None

    def _candidates(self, subject: str) -> Iterator[tuple[_Rule, str | None]]:
        """Yield the rules that may have produced a subject, and the tokens after the rule's."""
        if self._subject_depths:
            tokens = subject.split(".", self._subject_depths[0])
            for depth in self._subject_depths:
                if depth <= len(tokens):
                    rule = self._by_subject.get(".".join(tokens[:depth]))
                    if rule is not None:
                        above = len(rule.subject)
                        yield rule, subject[above + 1 :] if len(subject) > above else None
        for rule in self._unmarked:
            yield rule, subject

    def _patterns(self, levels: list[str]) -> Iterator[str]:
        """Yield subjects that match those of all topics that match a filter, by all rules."""
        least = 0  # rules with fewer levels have no topic that the filter matches
        for depth in self._topic_depths:
            if "/".join(levels[:depth]) in self._rules and depth <= len(levels):
                least = depth
                break
        for rule in (*self._rules.values(), self._other):
            below = _levels_below(levels, rule.levels) if len(rule.levels) >= least else None
            if below is None:
                continue
            if below == ["#"]:
                yield _joined(rule.subject, ">")
            elif below:
                for pattern in filter_to_subjects("/".join(below)):
                    yield _joined(rule.subject, pattern)
            if below in ([], ["#"]) and rule.levels and rule.subject:
                yield rule.subject


def _rule(topic: str, subject: str) -> _Rule:
    shown = _rule_shown(topic, subject)
    if topic:
        try:
            validate_topic_name(topic)
        except TopicError as error:
            raise MappingError(f"{shown}: {error}") from None
        if len(topic.encode()) > MAX_SUBJECT:
            raise MappingError(f"{shown}: the topic is longer than {MAX_SUBJECT} bytes")
        if is_reserved_topic(topic):
            raise MappingError(f"{shown}: the topic is reserved for the broker")
    if subject:
        _check_subject(subject, f"{topic}={subject}")
    return _Rule(topic, tuple(split_levels(topic)) if topic else (), subject)


def _check_subject(subject: str, text: str) -> None:
    if not _LITERAL.fullmatch(subject):
        raise MappingError(
            f"{_shown(text)}: {_shown(subject)} is not a subject without wildcards, spaces and "
            "empty tokens"
        )
    if len(subject.encode()) > MAX_SUBJECT:
        raise MappingError(f"{_shown(text)}: the subject is longer than {MAX_SUBJECT} bytes")
    if is_reserved_subject(subject):
        raise MappingError(f"{_shown(text)}: subjects of NATS and of foldmq are not bridged")


def _check_filter(topic_filter: str) -> None:
    try:
        validate_topic_filter(topic_filter)
    except TopicError as error:
        raise MappingError(f"{_shown(topic_filter)}: {error}") from None
    if topic_filter.partition("/")[0] in RESERVED_ROOTS:
        raise MappingError(f"{_shown(topic_filter)}: topics of the broker are not bridged")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]!r}..."


def _rule_shown(topic: str, subject: str) -> str:
    return _shown(f"{topic}={subject}")


def _depths(counts: Iterable[int]) -> list[int]:
    return sorted(set(counts), reverse=True)


def _topic_or_none(subject: str) -> str | None:
    try:
        return subject_to_topic(subject)
    except SubjectError:
        return None


def _joined(above: str, below: str) -> str:
    return f"{above}.{below}" if above else below


# Filters as lists of their levels, and the removal of covered NATS subscriptions.


def _common_levels(levels: list[str], other: list[str]) -> list[str] | None:
    """Return the filter for the topics that two filters both match, None if there are none."""
    for mine, yours in ((levels[0], other[0]), (other[0], levels[0])):
        if mine in ("+", "#") and yours.startswith("$"):  # [MQTT-4.7.2-1]
            return None
    common: list[str] = []
    for at, (mine, yours) in enumerate(zip(levels, other, strict=False)):
        if mine == "#":
            return common + other[at:]
        if yours == "#":
            return common + levels[at:]
        if mine != yours and "+" not in (mine, yours):
            return None
        common.append(yours if mine == "+" else mine)
    after = (levels if len(levels) > len(other) else other)[len(common) :]
    return common if after in ([], ["#"]) else None


def _levels_below(levels: list[str], above: tuple[str, ...]) -> list[str] | None:
    """Return the levels of a filter below ``above``: ``[]`` for itself only, None for nothing."""
    if above and above[0].startswith("$") and levels[0] in ("+", "#"):  # [MQTT-4.7.2-1]
        return None
    for pattern, level in zip(levels, above, strict=False):
        if pattern == "#":
            return ["#"]
        if pattern not in ("+", level):
            return None
    if len(levels) < len(above):
        return None
    return levels[len(above) :]


def _without_covered(patterns: list[str]) -> tuple[str, ...]:
    """Remove each pattern that another one covers; the patterns must be different."""
    root = _PatternNode()
    for pattern in patterns:
        node = root
        for token in pattern.split("."):
            node = node.below.setdefault(token, _PatternNode())
        node.pattern = pattern
    return tuple(pattern for pattern in patterns if not _is_covered(pattern, root))


class _PatternNode:
    """The patterns that begin with the same tokens."""

    __slots__ = ("below", "pattern")

    def __init__(self) -> None:
        self.below: dict[str, _PatternNode] = {}
        self.pattern: str | None = None
        """The pattern that ends here."""


def _is_covered(pattern: str, root: _PatternNode) -> bool:
    """Return whether another pattern matches everything that this one matches."""
    nodes = [root]
    for token in pattern.split("."):
        for node in nodes:
            deeper = node.below.get(">")
            if deeper is not None and deeper.pattern != pattern:
                return True
        wider = ("*",) if token in ("*", ">") else ("*", token)
        nodes = [node.below[key] for node in nodes for key in wider if key in node.below]
    ends_with_rest = pattern == ">" or pattern.endswith(".>")
    return not ends_with_rest and any(node.pattern not in (None, pattern) for node in nodes)
