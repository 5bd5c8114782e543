"""Permission rules, indexed by the users, groups and clients that they apply to."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from actors.access.filter_index import Filters, NameWildcard, parse_filter, uses
from actors.access.name_patterns import NameSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.access.rules import Rule

Action: TypeAlias = Literal["publish", "subscribe"]
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
        wanted: tuple[tuple[Action, bool], ...] = (
            ("publish", rule.publish),
            ("subscribe", rule.subscribe),
        )
        for action, meant in wanted:
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

    __slots__ = ("_found_by", "_others")

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
            for found in keys or ():
                self._found_by.setdefault(found, []).append(section)

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
        return tuple(one for one in candidates if one.concerns(user, groups, client))
