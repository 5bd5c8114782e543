"""Permissions, compared with a reading of them that is too simple to be wrong."""

from __future__ import annotations

import gc
import itertools
import re
import weakref
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest
from harness.examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from actors.access import rules as rules_module
from actors.access.filter_index import TOO_MANY, FilterError, Filters, NameValues, parse_filter
from actors.access.rules import NameSet, Permissions, Rule, matches_pattern

if TYPE_CHECKING:
    from collections.abc import Collection


def matches(topic_filter: str, topic: str) -> bool:
    """Section 4.7, said as plainly as it can be."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False

    def rest(wanted: list[str], there: list[str]) -> bool:
        if wanted[:1] == ["#"]:
            return True
        if not wanted or not there:
            return wanted == there
        return wanted[0] in ("+", there[0]) and rest(wanted[1:], there[1:])

    return rest(topic_filter.split("/"), topic.split("/"))


class Client(NamedTuple):
    """A client."""

    user: str | None
    groups: frozenset[str]
    name: str

    def meant(self, rule: Rule) -> bool:
        """Whether a rule is for them."""
        if rule.clients and not like(rule.clients, self.name):
            return False
        if not (rule.users or rule.groups or rule.anonymous):
            return True
        if self.user is None:
            return rule.anonymous or bool(self.groups & set(rule.groups))
        return like(rule.users, self.user) or bool(self.groups & set(rule.groups))

    def filter_of(self, rule: Rule) -> str | None:
        """The filter of a rule as it is for them; None: it matches nothing."""
        levels = []
        for number, level in enumerate(rule.filter.split("/")):
            text, unfit = level, False
            for token, name in (("%u", self.user), ("%c", self.name)):
                if token in level:
                    if not name or (
                        rule.allow and number == 0 and level.startswith(token) and name[0] == "$"
                    ):
                        return None
                    unfit = unfit or any(sign in name for sign in "/+#")
                    text = text.replace(token, name)
            if unfit and rule.allow:
                return None
            levels.append("+" if unfit else text)
        return "/".join(levels)


def like(patterns: Collection[str], name: str) -> bool:
    """Whether a name is one of these; only at its end has a pattern a ``*`` here."""
    return any(name.startswith(one[:-1]) if one[-1] == "*" else name == one for one in patterns)


class Model:
    """The specification: everything is tried with every topic that could make a difference."""

    def __init__(self, rules: list[Rule], client: Client, asked: str) -> None:
        self.open = not rules
        mine = [(rule, client.filter_of(rule)) for rule in rules if client.meant(rule)]
        self.rules = [(rule, text) for rule, text in mine if text is not None]
        levels = [text.split("/") for _, text in self.rules] + [asked.split("/")]
        # A level that occurs in no filter represents all such levels.
        alphabet = sorted({"other"}.union(*levels) - {"+", "#"})
        deepest = max(map(len, levels)) + 1
        self.topics = [
            "/".join(chosen)
            for depth in range(1, deepest + 1)
            for chosen in itertools.product(alphabet, repeat=depth)
        ]
        """The empty topic is not legal, but filters are compared as if it were."""
        self.wanted = self.matched(asked)

    def matched(self, topic_filter: str) -> frozenset[str]:
        return frozenset(topic for topic in self.topics if matches(topic_filter, topic))

    def some(self, action: str, topics: frozenset[str], *, allow: bool) -> list[Rule]:
        """The rules that match all these topics, in order."""
        return [
            rule
            for rule, text in self.rules
            if rule.allow is allow and getattr(rule, action) and topics <= self.matched(text)
        ]

    def may(self, action: str, topics: frozenset[str]) -> bool:
        denied = self.some(action, topics, allow=False)
        return self.open or bool(self.some(action, topics, allow=True) and not denied)

    def guards(self) -> bool:
        denies = [text for rule, text in self.rules if rule.subscribe and not rule.allow]
        return not self.open and (
            not self.some("subscribe", self.wanted, allow=True)
            or any(self.wanted & self.matched(text) for text in denies)
        )


def join(parts: tuple[list[str], list[str]]) -> str:
    return "/".join(parts[0] + parts[1])


plain = st.sampled_from(["", "a", "b", "$a", "ann", "+"])
templates = plain | st.sampled_from(["%u", "%c", "d-%u", "%u%c"])
end: st.SearchStrategy[list[str]] = st.sampled_from([[], ["#"]])


def filters_of(level: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(level, max_size=2), end).map(join).filter(bool)


everybody: st.SearchStrategy[frozenset[str]] = st.just(frozenset())
names = everybody | st.frozensets(st.sampled_from(["ann", "a*", "a/b", "$a", "*"]), max_size=2)
groups = everybody | st.frozensets(st.sampled_from(["ops", "guests"]), max_size=1)
some_rules = st.lists(
    st.builds(
        Rule,
        allow=st.booleans(),
        publish=st.booleans(),
        subscribe=st.booleans(),
        filter=filters_of(templates),
        users=names,
        groups=groups,
        clients=names,
        anonymous=st.just(False) | st.booleans(),
    ),
    max_size=5,
)
clients = st.builds(
    Client,
    st.sampled_from([None, "", "ann", "a", "a/b", "$a", "+"]),
    groups,
    st.sampled_from(["ann", "", "a", "#", "$a", "pump", "a/b"]),
)
NOBODY = Client(None, frozenset(), "c")


def allow(topic_filter: str) -> Rule:
    return Rule(True, True, True, topic_filter)


def deny(topic_filter: str) -> Rule:
    return Rule(False, True, True, topic_filter)


@examples(4)
@given(some_rules, clients, filters_of(plain), st.integers(0))
@example([allow("+/#")], NOBODY, "#", 0)
@example([allow("#")], NOBODY, "$a/#", 0)
@example([allow("a/+/#")], NOBODY, "a/#", 0)
@example([allow("a/#")], NOBODY, "a", 0)
@example([allow("/+/#")], NOBODY, "/#", 0)
@example([allow("+/+/b")], NOBODY, "+/a/b", 0)
@example([allow("%c/#")], NOBODY._replace(name="$a"), "$a/a", 0)
@example([allow("#"), deny("a/%c")], NOBODY._replace(name="a/b"), "a/+", 0)
@example([allow("#"), deny("a")], NOBODY, "a/#", 0)
@example([allow("#"), deny("a/$a")], NOBODY, "#", 0)
@example([allow("#"), deny("a/%c")], NOBODY._replace(name="$a"), "#", 0)
@pytest.mark.slow
def test_the_rules_agree_with_a_naive_implementation(
    given_rules: list[Rule], client: Client, topic_filter: str, chosen: int
) -> None:
    model = Model(given_rules, client, topic_filter)
    topic = model.topics[chosen % len(model.topics)]
    access = Permissions(given_rules).access(client.user, client.groups, client.name)
    for _ in range(2):
        assert access.may_publish(topic) == model.may("publish", frozenset({topic}))
        assert access.may_read(topic) == model.may("subscribe", frozenset({topic}))
    assert access.may_subscribe(topic_filter) == model.may("subscribe", model.wanted)
    assert access.guards(topic_filter) == model.guards()


@given(some_rules, clients, filters_of(plain))
def test_names_the_first_rule_that_decides(
    given_rules: list[Rule], client: Client, topic_filter: str
) -> None:
    model = Model(given_rules, client, topic_filter)
    access = Permissions(given_rules).access(client.user, client.groups, client.name)
    explained = access.explain("subscribe", topic_filter)
    denies = model.some("subscribe", model.wanted, allow=False)
    allows = model.some("subscribe", model.wanted, allow=True)
    assert explained.allowed == access.may_subscribe(topic_filter)
    assert explained.rule == next(iter(denies + allows), None)
    partly = {
        rule[3:]: rule  # of rules for the same clients and the same filter the first one is named
        for rule, text in reversed(model.rules)
        if rule.subscribe and rule.allow is not explained.allowed
        if model.wanted & model.matched(text)
    }
    named = [] if denies or model.open else partly.values()
    assert Counter(explained.partly) == Counter(named)


@given(some_rules, clients, filters_of(plain))
def test_the_deny_check_answers_yes_at_its_limit(
    given_rules: list[Rule], client: Client, topic_filter: str
) -> None:
    access = Permissions(given_rules).access(client.user, client.groups, client.name)
    exact = access.guards(topic_filter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules_module, "_MAX_VISITED", 2)
        assert access.guards(topic_filter) >= exact


def test_a_guard_gives_up_on_many_rules() -> None:
    many = [Rule(False, False, True, f"+/{number}/x") for number in range(2000)]
    access = Permissions([allow("#"), *many]).access(None, (), "c")
    assert access.guards("a/+/y")  # wrong, but it would take long to find out
    assert not access.guards("a/b/#")
    assert access.guards("a/5/x")


def test_without_rules_all_is_open() -> None:
    access = Permissions().access("ann", (), "c")
    assert access.open
    assert access.may_publish("a")
    assert access.may_subscribe("#")
    assert not access.guards("#")
    assert access.publish[b"a"]
    assert not access.publish, "nothing need be remembered"
    assert "no permissions" in access.explain("publish", "a").text


def test_rules_of_a_login_count_in_place_of_the_others() -> None:
    permissions = Permissions([allow("#")], {"ops": ["ann"]})
    own = (Rule(True, True, False, "a/%u/#"), Rule(True, True, False, "ops", groups=["ops"]))
    access = permissions.access("ann", (), "c", own)
    assert access.may_publish("a/ann/b")
    assert access.may_publish("ops")
    assert not access.may_publish("b")
    assert not access.may_read("a/ann/b")
    assert permissions.access("ann", (), "c", own) is access
    nothing = permissions.access("ann", (), "c", ())
    assert not nothing.open
    assert not nothing.may_publish("a")
    open_otherwise = Permissions().access("ann", (), "c", own)
    assert not open_otherwise.may_publish("b")
    with pytest.raises(FilterError):
        permissions.access("ann", (), "c", (allow("a#"),))


def test_rules_of_many_logins_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "_OWN", 3)
    permissions = Permissions()
    for number in range(10):
        topic = f"topic {number}"
        assert permissions.access("ann", (), "c", (allow(topic),)).may_publish(topic)
    assert len(permissions._own) == 3


def test_groups() -> None:
    given_rules = [Rule(True, True, True, "ops/#", groups=["ops"])]
    permissions = Permissions(given_rules, {"ops": ["ann", "op-*"], "other": ["ann"]})
    assert permissions.groups_of("ann") == {"ops", "other"}
    assert permissions.groups_of("op-1") == {"ops"}
    assert permissions.groups_of(None) == frozenset()
    assert permissions.access("op-1", (), "c").may_publish("ops/a")
    assert not permissions.access("bob", (), "c").may_publish("ops/a")
    assert permissions.access("bob", ["ops"], "c").may_publish("ops/a")


def test_clients_with_equal_permissions_share_a_cache() -> None:
    given_rules = [allow("a/#"), Rule(True, True, True, "%c/#", users=["ann"])]
    permissions = Permissions(given_rules)
    one = permissions.access("bob", (), "c1")
    assert permissions.access("eve", (), "c2") is one
    ann = permissions.access("ann", (), "c1")
    assert ann is not one
    assert permissions.access("ann", (), "c2") is not ann
    assert permissions.access("ann", (), "c1") is ann
    gone = weakref.ref(ann)
    del ann
    gc.collect()
    assert gone() is None


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "_REMEMBERED", 5)
    permissions = Permissions([allow("a/#"), allow("%c")])
    one, other = permissions.access(None, (), "c1"), permissions.access(None, (), "c2")
    for number in range(23):
        assert one.publish[b"a/%d" % number]
        assert not one.publish[b"b/%d" % number]
    assert 0 < len(one.publish) <= 5
    assert one.publish[b"a/" + b"x" * 600]
    assert b"a/" + b"x" * 600 not in one.publish
    monkeypatch.setattr(rules_module, "_REMEMBERED_BYTES", 1000)
    before = len(one.publish)
    assert before
    assert other.read[b"a/fresh"]
    assert (len(one.publish), len(other.read)) == (0, 1)


def test_which_of_a_batch_are_denied() -> None:
    access = Permissions([allow("a/+")]).access(None, (), "c")
    assert access.denied([b"a/b", b"b", b"a/c", b"b", b"a"]) == {b"b", b"a"}


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("a/+/#", ["a", "+", "#"]),
        ("/", ["", ""]),
        ("100%%/x", ["100%", "x"]),
        ("%%u", ["%u"]),
        ("%%%%c", ["%%c"]),
    ],
)
def test_filters_without_names(text: str, levels: list[str]) -> None:
    assert parse_filter(text) == levels


def test_filters_with_names() -> None:
    filters = Filters(fail_closed=False)
    filters.add(parse_filter("%u/x-%c-%u/%%%u"), 0)
    names = NameValues("ann", "c1")
    assert list(filters.covering(["ann", "x-c1-ann", "%ann"], names)) == [0]
    assert list(filters.covering(["ann", "x-c1-ann", "%u"], names)) == []
    assert list(filters.covering(["%u", "x-%c-%u", "%%u"], names)) == []
    assert list(filters.overlapping(["+", "#"], names)) == [0]
    assert list(filters.overlapping(["+", "#"], names, 1)) == [TOO_MANY]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("a#", "'#'"),
        ("#/a", "'#'"),
        ("a+/b", "'+'"),
        ("+%u", "'+'"),
        ("%c#", "'#'"),
        ("a\0", "U+0000"),
        ("\ud800", "surrogate"),
        ("x" * 65_536, "65536 bytes"),
        ("50%", "'%'"),
        ("%d/a", "'%'"),
        ("%%%", "'%'"),
        ("%/u", "'%'"),
    ],
)
def test_invalid_filters(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=re.escape(reason)):
        parse_filter(text)
    with pytest.raises(FilterError):
        Permissions([allow(text)])


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_patterns_for_names(pattern: str, name: str) -> None:
    parts = map(re.escape, pattern.split("*"))
    expected = re.fullmatch(".*".join(parts), name) is not None
    assert matches_pattern(pattern, name) is expected
    assert (name in NameSet([pattern])) is expected


def test_a_rule_is_shown() -> None:
    assert str(allow("a")) == "allow publish and subscribe a"
    assert str(Rule(False, False, True, "a/#", where="f:1")) == "deny subscribe a/# (f:1)"


def test_long_topics_and_many_rules_are_no_burden() -> None:
    """Counted in walks, not in seconds: deep topics end where the rules do."""
    permissions = Permissions([Rule(True, True, True, f"t/{n}/%u/#") for n in range(10_000)])
    access = permissions.access("ann", (), "c")
    deep = "/".join(["t", "77", "ann"] + ["x"] * 30_000)
    assert access.may_publish(deep)
    assert not access.may_publish("/".join(["x"] * 30_000))
    assert access.may_subscribe(deep + "/#")
    assert not access.guards(deep + "/#")
