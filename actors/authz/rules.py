"""What somebody may publish and subscribe to: rules that allow and rules that deny.

A deny goes before every allow, whatever their order. As soon as there is any rule, what no rule
allows is denied. A subscription is granted if one allow covers all of its filter and no deny does;
what a deny takes out of it is kept from it message by message. Several allows that cover a filter
only together do not grant it.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from actors.authz.filter_index import Names, NameWildcard
from actors.authz.name_patterns import NameSet
from actors.authz.rule_sets import Sections
from protocol.mqtt import split_levels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from actors.authz.filter_index import Filters
    from actors.authz.rule_sets import Action, Section

BRIDGE: Final = "$nats"
"""The user, and the client identifier, as which the bridge to NATS acts."""

_MOST_VISITED: Final = 1000
"""Entries of the rules that one question of :meth:`TopicAcl.guards` may look at."""
_REMEMBERED: Final = 16_384
_LONGEST: Final = 512
"""Topics that are remembered for one ACL, and how long they may be (bytes)."""
_REMEMBERED_BYTES: Final = 64 * 1024 * 1024
"""What all topics that are remembered may take, about."""
_ENTRY: Final = 150
"""Bytes that a topic takes beside itself, about."""
_OWN: Final = 256
"""Sets of rules that came with logins and are kept ready."""
_SHOWN: Final = 5


class Rule(NamedTuple):
    """One filter that somebody is allowed, or denied, to publish or subscribe to.

    It is for the named users, for whoever is in one of the named groups, and with ``anonymous`` for
    clients without a user; for everybody if it has none of these. ``clients`` narrows that down to
    the named client identifiers. A ``*`` in the name of a user or client stands for any text.
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
    """Where it stands, for those who ask which rule it was."""
    anonymous: bool = False

    def __str__(self) -> str:
        """Return what it says and where it stands."""
        actions = [name for name in ("publish", "subscribe") if getattr(self, name)]
        said = f"{'allow' if self.allow else 'deny'} {' and '.join(actions)} {self.filter}"
        return f"{said} ({self.where})" if self.where else said


class Explanation(NamedTuple):
    """Why something is allowed or not."""

    allowed: bool
    rule: Rule | None
    """The rule that decided; None if no rule fits, or there is none."""
    text: str
    """The reason, on one line."""
    partly: tuple[Rule, ...] = ()
    """Of a granted subscription: some denies that take topics out of it; of one that is not: some
    allows for a part of it."""


class _Grants(NamedTuple):
    """The filters that count for somebody and one action."""

    allows: tuple[Filters, ...]
    denies: tuple[Filters, ...]

    def allow(self, levels: Sequence[str], names: Names) -> bool:
        """Say whether a topic, or all of a filter, is allowed."""
        for filters in self.denies:
            for _ in filters.covering(levels, names):
                return False
        return self.cover(levels, names)

    def cover(self, levels: Sequence[str], names: Names) -> bool:
        """Say whether one allow covers a filter, whatever is denied."""
        for filters in self.allows:
            for _ in filters.covering(levels, names):
                return True
        return False


class TopicAnswers(dict[bytes, bool]):
    """Whether a raw topic is allowed; what is not remembered is found out and remembered."""

    __slots__ = ("_grants", "_memory", "_names")

    def __init__(self, grants: _Grants, names: Names, memory: _Memory | None) -> None:
        super().__init__()
        self._grants = grants
        self._names = names
        self._memory = memory

    def __missing__(self, raw: bytes) -> bool:
        """Find out."""
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
    """Bounds what all answers together take."""

    __slots__ = ("_size", "holders")

    def __init__(self) -> None:
        self.holders: WeakSet[TopicAcl] = WeakSet()
        self._size = 0

    def grow(self, size: int) -> None:
        """Count what will be remembered; forget everything when it is too much."""
        self._size += size
        if self._size > _REMEMBERED_BYTES:
            self._size = size
            for access in list(self.holders):
                access.publish.clear()
                access.read.clear()


class TopicAcl:
    """What one client may do; clients that may do the same share one."""

    __slots__ = (
        "__weakref__",
        "_names",
        "_publish",
        "_rules",
        "_subscribe",
        "open",
        "publish",
        "read",
    )

    def __init__(
        self,
        rules: Sequence[Rule],
        sections: Iterable[Section],
        names: Names,
        memory: _Memory | None,
    ) -> None:
        self._rules = rules
        self._names = names
        found = list(sections)
        self._publish = _grants(found, "publish")
        self._subscribe = _grants(found, "subscribe")
        self.open = memory is None
        """No permissions are set: there is no need to ask."""
        self.publish = TopicAnswers(self._publish, names, memory)
        """Whether a raw topic may be published to."""
        self.read = TopicAnswers(self._subscribe, names, memory)
        """Whether messages on a raw topic may be received."""
        if memory is not None:
            memory.holders.add(self)

    def denied(self, topics: Iterable[bytes]) -> set[bytes]:
        """Return those of some raw topics that may not be published to."""
        publish = self.publish
        return {raw for raw in set(topics) if not publish[raw]}

    def may_publish(self, topic: str) -> bool:
        """Say whether a legal topic may be published to."""
        return self.publish[topic.encode()]

    def may_read(self, topic: str) -> bool:
        """Say whether messages on a legal topic may be received."""
        return self.read[topic.encode()]

    def forbids(self, topic: str) -> bool:
        """Say whether a deny keeps a legal topic from being published to, whatever is allowed."""
        levels = split_levels(topic)
        return any(
            True for filters in self._publish.denies for _ in filters.covering(levels, self._names)
        )

    def may_subscribe(self, topic_filter: str) -> bool:
        """Say whether a subscription to a legal filter is granted."""
        return self.open or self._subscribe.allow(split_levels(topic_filter), self._names)

    def guards(self, topic_filter: str) -> bool:
        """Say whether each topic must be looked at that comes through a subscription.

        False: all that a legal filter matches may be received. True if that is not so, or would
        take long to find out.
        """
        if self.open:
            return False
        levels = split_levels(topic_filter)
        if not self._subscribe.cover(levels, self._names):
            return True
        return any(
            True
            for filters in self._subscribe.denies
            for _ in filters.overlapping(levels, self._names, _MOST_VISITED)
        )

    def explain(self, action: Action, topic_or_filter: str) -> Explanation:
        """Say why a legal topic may be published to, or a legal filter subscribed to, or not.

        Of several rules the first one is named, a deny before an allow.
        """
        if self.open:
            return Explanation(True, None, "no permissions are set, everything is allowed")
        grants = self._publish if action == "publish" else self._subscribe
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
        found = {at for filters in chosen for at in filters.overlapping(levels, self._names)}
        return tuple(self._rules[at] for at in islice(sorted(found), _SHOWN))


def _grants(sections: Iterable[Section], action: Action) -> _Grants:
    allows, denies = (
        tuple(
            section.filters[allow, action]
            for section in sections
            if (allow, action) in section.filters
        )
        for allow in (True, False)
    )
    return _Grants(allows, denies)


class Permissions:
    """Rules, and who is in which group. Without any rule everything is allowed."""

    __slots__ = ("_accesses", "_groups", "_like", "_memory", "_own", "_sections", "rules")

    def __init__(
        self, rules: Iterable[Rule] = (), groups: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """Take the rules, and the users of each group; raises FilterError for a bad filter."""
        self.rules = tuple(rules)
        self._sections = Sections(self.rules)
        self._groups: dict[str, list[str]] = {}
        """Of users by name."""
        self._like: list[tuple[NameSet, str]] = []
        """The groups that have users like a pattern."""
        for group, users in (groups or {}).items():
            members = NameSet(users)
            for user in members.exact:
                self._groups.setdefault(user, []).append(group)
            if members.patterned:
                self._like.append((members, group))
        self._memory = _Memory()
        self._accesses: WeakValueDictionary[object, TopicAcl] = WeakValueDictionary()
        self._own: OrderedDict[int, tuple[tuple[Rule, ...], Sections]] = OrderedDict()

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
        """Return what a client may do; None as the user means that it has none.

        ``groups`` are those that the user is in beside those given here. ``own_rules`` count in
        place of the rules given here, also when they are empty; raises FilterError for a bad one.
        """
        rules = self.rules if own_rules is None else own_rules
        all_groups = self.groups_of(user).union(groups)
        index = self._sections if own_rules is None else self._kept_ready(own_rules)
        sections = index.concerning(user, all_groups, client_id)
        used = {who for section in sections for who in section.names}
        names = Names(
            user if NameWildcard.USER in used else None,
            client_id if NameWildcard.CLIENT in used else None,
        )
        key = index, sections, names
        found = self._accesses.get(key)
        if found is None:
            is_open = own_rules is None and not rules
            found = TopicAcl(rules, sections, names, None if is_open else self._memory)
            self._accesses[key] = found
        return found

    def _kept_ready(self, own_rules: tuple[Rule, ...]) -> Sections:
        """Return the sections of rules that came with a login: often with many logins."""
        kept = self._own.pop(id(own_rules), None)
        if kept is None:
            kept = own_rules, Sections(own_rules)
        self._own[id(own_rules)] = kept
        while len(self._own) > _OWN:
            self._own.popitem(last=False)
        return kept[1]
