"""Permissions to publish and subscribe: rules that allow and rules that deny.

A deny takes precedence over every allow, whatever their order. If there is any rule, everything
that no rule allows is denied. A subscription is granted if one allow covers its whole filter and no
deny does; messages that a deny excludes are dropped individually. Several allows that only together
cover a filter do not grant it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final, Literal, NamedTuple, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from actors.access.filter_index import Filters, NameValues, NameWildcard, parse_filter, uses
from protocol.mqtt.topics import split_levels

BRIDGE: Final = "$nats"
"""The user name and the client identifier of the bridge to NATS in rules."""

_MAX_VISITED: Final = 1000
"""Maximum entries of the rules that one call of :meth:`TopicAcl.guards` checks."""
_REMEMBERED: Final = 16_384
_LONGEST: Final = 512
"""Maximum number of topics cached for one ACL, and their maximum length in bytes."""
_REMEMBERED_BYTES: Final = 64 * 1024 * 1024
"""Approximate maximum size of all cached topics."""
_ENTRY: Final = 150
"""Approximate overhead of a cached topic in bytes."""
_OWN: Final = 256
"""Maximum number of rule sets from logins that are cached."""
_SHOWN: Final = 5
_ACTIONS: Final = ("publish", "subscribe", "history")


class Rule(NamedTuple):
    """One filter that clients are allowed, or denied, to publish or subscribe to, or to replay.

    It applies to the named users, to members of the named groups, and with ``anonymous`` to clients
    without a user; to all clients if it has none of these. ``clients`` restricts it to the named
    client identifiers. A ``*`` in the name of a user or client matches any text.
    """

    allow: bool
    publish: bool
    subscribe: bool
    filter: str
    """A topic filter, in which ``%u`` is the user, ``%c`` the client and ``%%`` a percent sign."""
    users: Collection[str] = ()
    groups: Collection[str] = ()
    clients: Collection[str] = ()
    where: str = ""
    """Its location in the file, for explanations."""
    anonymous: bool = False
    history: bool = False
    """Whether it is about messages of the past, which replays read."""

    def __str__(self) -> str:
        """Return the rule and its location."""
        actions = [name for name in _ACTIONS if getattr(self, name)]
        text = f"{'allow' if self.allow else 'deny'} {' and '.join(actions)} {self.filter}"
        return f"{text} ({self.where})" if self.where else text


class Explanation(NamedTuple):
    """The reason for a permission or denial."""

    allowed: bool
    rule: Rule | None
    """The deciding rule; None if no rule matches, or there are no rules."""
    text: str
    """The reason, on one line."""
    partly: tuple[Rule, ...] = ()
    """For a granted subscription, some denies that exclude topics from it; otherwise some allows
    for a part of it."""


class _Grants(NamedTuple):
    """The filters that apply to a client and one action."""

    allows: tuple[Filters, ...]
    denies: tuple[Filters, ...]

    def allow(self, levels: Sequence[str], names: NameValues) -> bool:
        """Return whether a topic, or all of a filter, is allowed."""
        for filters in self.denies:
            for _ in filters.covering(levels, names):
                return False
        return self.cover(levels, names)

    def cover(self, levels: Sequence[str], names: NameValues) -> bool:
        """Return whether one allow covers a filter, regardless of denies."""
        for filters in self.allows:
            for _ in filters.covering(levels, names):
                return True
        return False


class TopicAnswers(dict[bytes, bool]):
    """Cache of whether raw topics are allowed; a miss is computed."""

    __slots__ = ("_grants", "_memory", "_names")

    def __init__(self, grants: _Grants, names: NameValues, memory: _Memory | None) -> None:
        super().__init__()
        self._grants = grants
        self._names = names
        self._memory = memory

    def __missing__(self, raw: bytes) -> bool:
        """Compute and cache the answer."""
        memory = self._memory
        if memory is None:
            return True
        allowed = self._grants.allow(split_levels(raw.decode()), self._names)
        if len(raw) <= _LONGEST:
            if len(self) >= _REMEMBERED:
                self.clear()
            memory.grow(len(raw) + _ENTRY)
            self[raw] = allowed
        return allowed


class _Memory:
    """Limits the total size of the caches."""

    __slots__ = ("_size", "holders")

    def __init__(self) -> None:
        self.holders: WeakSet[TopicAcl] = WeakSet()
        self._size = 0

    def grow(self, size: int) -> None:
        """Count a new entry; clear all caches if they are too large."""
        self._size += size
        if self._size > _REMEMBERED_BYTES:
            self._size = size
            for access in list(self.holders):
                access.forget_answers()


class TopicAcl:
    """The permissions of one client; clients with the same permissions share one."""

    __slots__ = (
        "__weakref__",
        "_history",
        "_memory",
        "_names",
        "_publish",
        "_replayed",
        "_rules",
        "_subscribe",
        "open",
        "publish",
        "read",
    )

    def __init__(
        self,
        rules: Sequence[Rule],
        sections: Iterable[RuleSet],
        names: NameValues,
        memory: _Memory | None,
    ) -> None:
        self._rules = rules
        self._names = names
        self._memory = memory
        rule_sets = list(sections)
        self._history = _grants(rule_sets, "history")
        self._publish = _grants(rule_sets, "publish")
        self._subscribe = _grants(rule_sets, "subscribe")
        self.open = memory is None
        """No permissions are configured."""
        self.publish = TopicAnswers(self._publish, names, memory)
        """Whether publishing to a raw topic is allowed."""
        self.read = TopicAnswers(self._subscribe, names, memory)
        """Whether receiving messages on a raw topic is allowed."""
        self._replayed: TopicAnswers | None = None
        if memory is not None:
            memory.holders.add(self)

    @property
    def history(self) -> TopicAnswers:
        """Whether receiving past messages on a raw topic is allowed, besides ``read``."""
        if self._replayed is None:
            self._replayed = TopicAnswers(self._history, self._names, self._memory)
        return self._replayed

    def forget_answers(self) -> None:
        """Empty the caches."""
        self.publish.clear()
        self.read.clear()
        if self._replayed is not None:
            self._replayed.clear()

    def denied(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return the raw topics to which publishing is denied."""
        publish = self.publish
        return {raw for raw in set(topics) if not publish[raw]}

    def may_publish(self, topic: str) -> bool:
        """Return whether publishing to a valid topic is allowed."""
        return self.publish[topic.encode()]

    def may_read(self, topic: str) -> bool:
        """Return whether receiving messages on a valid topic is allowed."""
        return self.read[topic.encode()]

    def forbids(self, topic: str) -> bool:
        """Return whether a deny matches publishing to a valid topic, regardless of allows."""
        levels = split_levels(topic)
        return any(
            True for filters in self._publish.denies for _ in filters.covering(levels, self._names)
        )

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether a subscription to a valid filter is granted."""
        return self.open or self._subscribe.allow(split_levels(topic_filter), self._names)

    def may_replay(self, topic_filter: str) -> bool:
        """Return whether the right ``history`` covers a valid filter."""
        return self.open or self._history.allow(split_levels(topic_filter), self._names)

    def guards(self, topic_filter: str) -> bool:
        """Return whether each topic received through a subscription must be checked.

        False: all topics that the valid filter matches may be received. True otherwise, or if the
        check would take too long.
        """
        if self.open:
            return False
        levels = split_levels(topic_filter)
        if not self._subscribe.cover(levels, self._names):
            return True
        return any(
            True
            for filters in self._subscribe.denies
            for _ in filters.overlapping(levels, self._names, _MAX_VISITED)
        )

    def explain(self, action: Action, topic_or_filter: str) -> Explanation:
        """Return why publishing to a topic, or subscribing to a filter, is allowed or denied.

        If several rules match, the first one is named, a deny before an allow.
        """
        if self.open:
            return Explanation(True, None, "no permissions are set, everything is allowed")
        grants = {
            "publish": self._publish,
            "subscribe": self._subscribe,
            "history": self._history,
        }[action]
        levels = split_levels(topic_or_filter)
        deny = self._first(grants.denies, levels)
        if deny is not None:
            return Explanation(False, deny, str(deny))
        allow = self._first(grants.allows, levels)
        if allow is None:
            partly = self._overlapping(grants.allows, levels)
            text = f"no rule allows {'all of ' if partly else ''}it"
            return Explanation(False, None, text, partly)
        return Explanation(True, allow, str(allow), self._overlapping(grants.denies, levels))

    def _first(self, chosen: Iterable[Filters], levels: Sequence[str]) -> Rule | None:
        covering = (at for filters in chosen for at in filters.covering(levels, self._names))
        first = min(covering, default=None)
        return None if first is None else self._rules[first]

    def _overlapping(self, chosen: Iterable[Filters], levels: Sequence[str]) -> tuple[Rule, ...]:
        numbers = {at for filters in chosen for at in filters.overlapping(levels, self._names)}
        return tuple(self._rules[at] for at in islice(sorted(numbers), _SHOWN))


def _digest(rules: Iterable[Rule], groups: Mapping[str, Sequence[str]]) -> str:
    """Return 16 hexadecimal digits that identify rules and the users of each group."""
    rows = sorted(
        [
            rule.allow, rule.publish, rule.subscribe, rule.filter, sorted(rule.users),
            sorted(rule.groups), sorted(rule.clients), rule.anonymous,
            *(("history",) if rule.history else ()),
        ]
        for rule in rules
    )  # fmt: skip
    text = repr([rows, sorted(groups.items())])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _grants(sections: Iterable[RuleSet], action: Action) -> _Grants:
    allows, denies = (
        tuple(
            section.filters[allow, action]
            for section in sections
            if (allow, action) in section.filters
        )
        for allow in (True, False)
    )
    return _Grants(allows, denies)


def _for_every_user(rule: Rule) -> bool:
    """Return whether a rule applies to all users in the same way."""
    return not (rule.users or rule.groups or rule.anonymous or _names_user(rule.filter))


def _widened(rule: Rule) -> Rule:
    """Return a rule for all users that matches all topics that the given one can match."""
    levels = ["+" if _names_user(level) else level for level in rule.filter.split("/")]
    return rule._replace(filter="/".join(levels), users=(), groups=(), anonymous=False)


def _names_user(text: str) -> bool:
    return "%u" in text.replace("%%", "")


class Permissions:
    """Rules, and the groups of users. Without any rule everything is allowed."""

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        groups: Mapping[str, Iterable[str]] | None = None,
        path: str = "",
    ) -> None:
        """Set the rules, and the users of each group; raises FilterError for an invalid filter.

        ``path`` is the absolute path of the file with the rules; empty: there is none.
        """
        self.path = path
        self.rules = tuple(rules)
        members_of = {group: sorted(users) for group, users in (groups or {}).items()}
        self.digest = _digest(self.rules, members_of) if self.rules else ""
        """Digest of rules and groups, independent of their order in the file; empty: there are no
        rules."""
        self._sections = RuleIndex(self.rules)
        self._for_any_user: tuple[Permissions, Permissions] | None = None
        """What some user and what every user may publish; None: not needed yet."""
        self._groups: dict[str, list[str]] = {}
        """Groups by user name."""
        self._like: list[tuple[NameSet, str]] = []
        """Groups with patterns of user names."""
        for group, users in members_of.items():
            members = NameSet(users)
            for user in members.exact:
                self._groups.setdefault(user, []).append(group)
            if members.patterned:
                self._like.append((members, group))
        self._memory = _Memory()
        self._open = TopicAcl((), (), NameValues(None, None), None)
        """The ACL of all clients while there are no rules."""
        self._accesses: WeakValueDictionary[object, TopicAcl] = WeakValueDictionary()
        self._own: OrderedDict[int, tuple[tuple[Rule, ...], RuleIndex]] = OrderedDict()

    def groups_of(self, user: str | None) -> frozenset[str]:
        """Return the groups that a user is in."""
        if user is None:
            return frozenset()
        like = (group for members, group in self._like if user in members)
        return frozenset((*self._groups.get(user, ()), *like))

    def access(
        self,
        user: str | None,
        groups: Iterable[str],
        client_id: str,
        own_rules: tuple[Rule, ...] | None = None,
    ) -> TopicAcl:
        """Return the permissions of a client; a user of None means that it has none.

        ``groups`` are the user's groups in addition to the groups of the file. ``own_rules``
        replace the rules of the file, even if they are empty; raises FilterError for an invalid
        one.
        """
        rules = self.rules if own_rules is None else own_rules
        if own_rules is None and not rules:
            return self._open
        all_groups = self.groups_of(user).union(groups)
        index = self._sections if own_rules is None else self._kept_ready(own_rules)
        sections = index.concerning(user, all_groups, client_id)
        used = {who for section in sections for who in section.names}
        names = NameValues(
            user if NameWildcard.USER in used else None,
            client_id if NameWildcard.CLIENT in used else None,
        )
        key = index, sections, names
        acl = self._accesses.get(key)
        if acl is None:
            acl = TopicAcl(rules, sections, names, self._memory)
            self._accesses[key] = acl
        return acl

    def decides_publish(self, client_id: str, topic: str) -> bool | None:
        """Return whether the rules let a client whose user is not known publish to a topic.

        None: it depends on the user.
        """
        if not self.rules:
            return True
        # Without any rule everything would be allowed.
        possible, certain = (
            bool(index.rules) and index.access(None, (), client_id).may_publish(topic)
            for index in self._any_user()
        )
        return possible if possible == certain else None

    def _any_user(self) -> tuple[Permissions, Permissions]:
        """Return what some user, and what every user, may publish."""
        if self._for_any_user is None:
            possible, every = (
                Permissions(
                    _widened(rule) if rule.allow == allow else rule
                    for rule in self.rules
                    if rule.allow == allow or _for_every_user(rule)
                )
                for allow in (True, False)
            )
            self._for_any_user = possible, every
        return self._for_any_user

    def _kept_ready(self, own_rules: tuple[Rule, ...]) -> RuleIndex:
        """Return the indexed rules from a login, cached because many logins have the same rules."""
        kept = self._own.pop(id(own_rules), None)
        if kept is None:
            kept = own_rules, RuleIndex(own_rules)
        self._own[id(own_rules)] = kept
        while len(self._own) > _OWN:
            self._own.popitem(last=False)
        return kept[1]


Action: TypeAlias = Literal["publish", "subscribe", "history"]
"""The requested action of a client."""


class RuleSet:
    """The rules with the same selectors: for the same users, groups and clients."""

    __slots__ = ("_anonymous", "_clients", "_everybody", "_groups", "_users", "filters", "names")

    def __init__(self, rule: Rule) -> None:
        self._users = NameSet(rule.users)
        self._groups = frozenset(rule.groups)
        self._clients = NameSet(rule.clients)
        self._anonymous = rule.anonymous
        self._everybody = not (rule.users or rule.groups or rule.anonymous)
        self.filters: dict[tuple[bool, Action], Filters] = {}
        """Filters by (allow or deny, action); the number of a filter is the number of its rule."""
        self.names: set[NameWildcard] = set()
        """The kinds of names that the filters contain."""

    def add(self, rule: Rule, number: int) -> None:
        """Add a rule; raises FilterError."""
        levels = parse_filter(rule.filter)
        self.names.update(who for who in NameWildcard if uses(levels, who))
        actions: tuple[tuple[Action, bool], ...] = (
            ("publish", rule.publish),
            ("subscribe", rule.subscribe),
            ("history", rule.history),
        )
        for action, meant in actions:
            if meant:
                key = rule.allow, action
                if key not in self.filters:
                    self.filters[key] = Filters(fail_closed=not rule.allow)
                self.filters[key].add(levels, number)

    def concerns(self, user: str | None, groups: frozenset[str], client: str) -> bool:
        """Return whether the rules apply to a client."""
        if self._clients and client not in self._clients:
            return False
        if self._everybody or (user is not None and user in self._users):
            return True
        return (self._anonymous and user is None) or not self._groups.isdisjoint(groups)

    def keys(self) -> Iterable[tuple[str, str]] | None:
        """Return (kind, name) keys of the clients it may apply to; None if unknown."""
        if self._clients and not self._clients.patterned:
            return [("client", name) for name in self._clients.exact]
        if self._everybody or self._anonymous or self._users.patterned:
            return None
        return [
            *(("user", name) for name in self._users.exact),
            *(("group", name) for name in self._groups),
        ]


class RuleIndex:
    """Rules, grouped into sections with the same selectors."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Index the rules; raises FilterError for an invalid filter."""
        sections: dict[tuple[object, ...], RuleSet] = {}
        for number, rule in enumerate(rules):
            who = frozenset(rule.users), frozenset(rule.groups), frozenset(rule.clients)
            key = (*who, rule.anonymous)
            if key not in sections:
                sections[key] = RuleSet(rule)
            sections[key].add(rule, number)
        self._found_by: dict[tuple[str, str], list[RuleSet]] = {}
        self._others: list[RuleSet] = []
        """Rules for all clients, for clients without a user, and for patterns of users."""
        for section in sections.values():
            keys = section.keys()
            if keys is None:
                self._others.append(section)
            for key_of in keys or ():
                self._found_by.setdefault(key_of, []).append(section)

    def concerning(
        self, user: str | None, groups: frozenset[str], client: str
    ) -> tuple[RuleSet, ...]:
        """Return the sections that apply to a client, each once, in a fixed order."""
        found_by = self._found_by
        candidates = dict.fromkeys(
            chain(
                self._others,
                found_by.get(("client", client), ()),
                found_by.get(("user", user), ()) if user is not None else (),
                *(found_by.get(("group", group), ()) for group in sorted(groups)),
            )
        )
        return tuple(section for section in candidates if section.concerns(user, groups, client))


_ANY = "*"


class NameSet:
    """Names and patterns of names. They are case-sensitive; only ``*`` is special."""

    __slots__ = ("_patterns", "exact")

    def __init__(self, names: Iterable[str]) -> None:
        chosen = set(names)
        self.exact = frozenset(name for name in chosen if _ANY not in name)
        """The names without a ``*``."""
        self._patterns = tuple(sorted(chosen - self.exact))

    @property
    def patterned(self) -> bool:
        """True if the set contains patterns."""
        return bool(self._patterns)

    def __bool__(self) -> bool:
        return bool(self.exact or self._patterns)

    def __contains__(self, name: str) -> bool:
        return name in self.exact or any(
            matches_pattern(pattern, name) for pattern in self._patterns
        )


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern. Linear: no part of the name is tried twice."""
    first, *others = pattern.split(_ANY)
    if not others:
        return name == pattern
    suffix = others.pop()
    if len(name) < len(first) + len(suffix):
        return False
    if not (name.startswith(first) and name.endswith(suffix)):
        return False
    at, end = len(first), len(name) - len(suffix)
    for part in others:
        place = name.find(part, at, end)
        if place < 0:
            return False
        at = place + len(part)
    return True
