"""Both tries, compared with a matcher that is too simple to be wrong."""

import gc
import random
import tracemalloc
from typing import TypeVar

import pytest
from harness.examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.mqtt.topic_trie import (
    SHARED_LENGTH,
    SHARED_STRINGS,
    FilterTrie,
    TopicTrie,
    _TrieNode,
)
from protocol.mqtt.topics import filters_overlap
from protocol.mqtt.topics import matches as says_it_matches

T = TypeVar("T")

TOO_MANY = 65_535


def matches(topic_filter: str, topic: str) -> bool:
    """Section 4.7, said as plainly as it can be, for the few levels of these tests."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False

    def rest(wanted: list[str], there: list[str]) -> bool:
        if wanted[:1] == ["#"]:
            return True
        if not wanted or not there:
            return wanted == there
        return wanted[0] in ("+", there[0]) and rest(wanted[1:], there[1:])

    return rest(topic_filter.split("/"), topic.split("/"))


level = st.sampled_from(["", "a", "b", "ab", "$", "$a"])
topics = st.lists(level, min_size=1, max_size=6).map("/".join).filter(bool)
filters = st.tuples(
    st.lists(st.one_of(level, st.just("+")), min_size=1, max_size=6),
    st.sampled_from([[], ["#"]]),
).map(lambda parts: "/".join(parts[0] + parts[1])).filter(bool) | st.just("#")


def tree_of(trie: FilterTrie[T] | TopicTrie[T]) -> FilterTrie[T]:
    return trie._tree if isinstance(trie, TopicTrie) else trie


def check_shape(tree: FilterTrie[T]) -> int:
    """Nothing is there without need; gives the number of nodes and leaves below the root."""
    count = 0
    stack: list[_TrieNode[T]] = [tree.root]
    while stack:
        node = stack.pop()
        below = node.children
        assert below is None or below
        assert not isinstance(node.held, dict) or len(node.held) > 1
        assert not node.rest or node.rest.endswith("/")
        if node is not tree.root:
            # A single value with nothing below it is a leaf, a single way on is part of the rest
            if below is None:
                assert isinstance(node.held, dict)
            else:
                assert node.held is not None or len(below) > 1
        for first, child in (below or {}).items():
            assert "/" not in first
            count += 1
            if isinstance(child, tuple):
                assert not child[0] or child[0].endswith("/")
            else:
                stack.append(child)
    assert len(tree._shared) <= SHARED_STRINGS
    return count


class FilterTrieMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trie: FilterTrie[str] = FilterTrie()
        self.model: dict[tuple[str, int], str] = {}

    @rule(topic_filter=filters, key=st.integers(0, 2), value=st.text("xyz", max_size=2))
    def insert(self, topic_filter: str, key: int, value: str) -> None:
        self.trie.insert(topic_filter, key, value)
        self.model[topic_filter, key] = value

    @rule(topic_filter=filters, key=st.integers(0, 2))
    def remove(self, topic_filter: str, key: int) -> None:
        there = self.model.pop((topic_filter, key), None) is not None
        assert self.trie.remove(topic_filter, key) is there

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            topic_filter, key = data.draw(st.sampled_from(sorted(self.model)))
            self.remove(topic_filter, key)

    @rule(topic_filter=filters, key=st.integers(0, 2))
    def get(self, topic_filter: str, key: int) -> None:
        assert self.trie.get(topic_filter, key) == self.model.get((topic_filter, key))

    @rule(topic_filter=filters, keys=st.permutations(range(3)), left=st.integers(0, 3))
    def fill_and_empty(self, topic_filter: str, keys: list[int], left: int) -> None:
        """From no key over one and two to three, and back to ``left`` in another order."""
        for key in range(3):
            self.insert(topic_filter, key, "x")
            self.shape()
        for key in keys[left:]:
            self.remove(topic_filter, key)
            self.shape()

    @rule(topic_filter=filters, more=filters, key=st.integers(0, 2))
    def branch_and_join(self, topic_filter: str, more: str, key: int) -> None:
        """A filter that extends another one splits it, and joins it when that is removed."""
        longer = f"{topic_filter}/{more}"
        if "#" not in topic_filter:
            self.insert(longer, key, "y")
            self.shape()
            self.insert(topic_filter, key, "x")
            self.shape()
            self.remove(topic_filter, key)
            self.shape()
            self.get(longer, key)
            self.remove(longer, key)

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        expected = [v for (f, _), v in self.model.items() if matches(f, topic)]
        assert sorted(self.trie.match(topic)) == sorted(expected)

    @invariant()
    def all_there(self) -> None:
        for (topic_filter, key), value in self.model.items():
            assert self.trie.get(topic_filter, key) == value

    @invariant()
    def shape(self) -> None:
        assert len(self.trie) == len(self.model)
        assert check_shape(tree_of(self.trie)) <= 2 * len(self.model)


class TopicTrieMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trie: TopicTrie[int | None] = TopicTrie()
        self.model: dict[str, int | None] = {}

    @rule(topic=topics, value=st.none() | st.integers())
    def set_value(self, topic: str, value: int | None) -> None:
        self.trie.set(topic, value)
        self.model[topic] = value

    @rule(topic=topics)
    def discard(self, topic: str) -> None:
        there = topic in self.model
        self.model.pop(topic, None)
        assert self.trie.discard(topic) is there

    @rule(data=st.data())
    def discard_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self.discard(data.draw(st.sampled_from(sorted(self.model))))

    @rule(topic=topics)
    def get(self, topic: str) -> None:
        assert self.trie.get(topic) == self.model.get(topic)

    @rule()
    def values(self) -> None:
        assert sorted(map(repr, self.trie.values())) == sorted(map(repr, self.model.values()))

    @rule(topic_filter=filters)
    def match(self, topic_filter: str) -> None:
        expected = [v for t, v in self.model.items() if matches(topic_filter, t)]
        assert sorted(map(repr, self.trie.match(topic_filter))) == sorted(map(repr, expected))

    @invariant()
    def shape(self) -> None:
        assert len(self.trie) == len(self.model)
        assert check_shape(tree_of(self.trie)) <= 2 * len(self.model)


TestFilterTrie = FilterTrieMachine.TestCase
TestTopicTrie = TopicTrieMachine.TestCase
TestFilterTrie.settings = examples(1, stateful_step_count=40)
TestFilterTrie.pytestmark = TestTopicTrie.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
TestTopicTrie.settings = examples(1, stateful_step_count=40)


def matched(topic_filter: str, topic: str) -> bool:
    """Match one filter with one topic by both tries, which must agree."""
    by_topic: FilterTrie[bool] = FilterTrie()
    by_topic.insert(topic_filter, 1, True)
    by_filter: TopicTrie[bool] = TopicTrie()
    by_filter.set(topic, True)
    assert by_topic.match(topic) == list(by_filter.match(topic_filter))
    return by_topic.match(topic) == [True]


@given(filters, topics)
def test_one_filter_and_one_topic(topic_filter: str, topic: str) -> None:
    assert matched(topic_filter, topic) is matches(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "yes", "no"),
    [
        # The examples of sections 4.7.1.2 and 4.7.1.3
        (
            "sport/tennis/player1/#",
            [
                "sport/tennis/player1",
                "sport/tennis/player1/ranking",
                "sport/tennis/player1/score/wimbledon",
            ],
            ["sport/tennis/player10", "sport/tennis"],
        ),
        ("sport/#", ["sport", "sport/"], ["sports"]),
        ("sport/tennis/+", ["sport/tennis/player1"], ["sport/tennis/player1/ranking"]),
        ("sport/+", ["sport/"], ["sport"]),
        ("+/+", ["/finance"], ["finance"]),
        ("/+", ["/finance"], []),
        ("+", ["finance"], ["/finance"]),
        ("#", ["a", "/", "a/b/c"], []),
        # Section 4.7.3: case, spaces and empty levels all count
        ("ACCOUNTS", ["ACCOUNTS"], ["Accounts", "/ACCOUNTS", "ACCOUNTS/"]),
        ("Accounts payable", ["Accounts payable"], ["Accountspayable"]),
        ("a//b", ["a//b"], ["a/b"]),
    ],
)
@pytest.mark.mqtt("MQTT-4.7.3-4")
def test_the_examples_of_the_standard(topic_filter: str, yes: list[str], no: list[str]) -> None:
    assert all(matched(topic_filter, topic) for topic in yes)
    assert not any(matched(topic_filter, topic) for topic in no)


@pytest.mark.mqtt5("MQTT-4.7.2-1")
@pytest.mark.mqtt("MQTT-4.7.2-1")
def test_leading_wildcards_do_not_match_dollar_topics() -> None:
    assert not any(matched(f, "$SYS/monitor/Clients") for f in ("#", "+/monitor/Clients", "+/#"))
    assert matched("$SYS/#", "$SYS/monitor/Clients")
    assert matched("$SYS/monitor/+", "$SYS/monitor/Clients")
    assert matched("a/#", "a/$SYS")
    assert matched("a/+", "a/$SYS")


@pytest.mark.mqtt("MQTT-4.7.3-3")
def test_the_deepest_topic() -> None:
    topic = "/" * TOO_MANY
    for topic_filter in ("#", topic, "+/" * 32767 + "+", "/" * 32000 + "+/#"):
        assert matched(topic_filter, topic) is matched_by_hand(topic_filter, topic)


def matched_by_hand(topic_filter: str, topic: str) -> bool:
    wanted, there = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        there = there[: len(wanted)]
    return len(wanted) == len(there) and all(
        w in ("+", t) for w, t in zip(wanted, there, strict=True)
    )


def test_many_deep_filters_with_wildcards_cost_a_visit_each() -> None:
    """``+`` and a name at every level: the number of ways is a power of two, the nodes are not."""
    rng = random.Random(7)
    depth, count = 500, 300
    trie: FilterTrie[int] = FilterTrie()
    for key in range(count):
        trie.insert("/".join(rng.choice("+a") for _ in range(depth)), key, key)
    topic = "/".join("a" * depth)
    assert sorted(trie.match(topic)) == list(range(count))
    assert check_shape(tree_of(trie)) <= 2 * count
    assert trie.match(topic + "/a") == []


def test_the_deepest_names_come_and_go() -> None:
    trie: TopicTrie[int] = TopicTrie()
    deep = ["/" * TOO_MANY, "/" * 40_000 + "a", "a" + "/" * 60_000, "/" * 20_000]
    for number, topic in enumerate(deep):
        trie.set(topic, number)
    assert [trie.get(topic) for topic in deep] == [0, 1, 2, 3]
    assert sorted(trie.match("#")) == [0, 1, 2, 3]
    assert sorted(trie.match("/" * 19_999 + "/#")) == [0, 1, 3]
    assert all(trie.discard(topic) for topic in deep)
    assert tree_of(trie).root.children is None


def test_a_name_costs_one_node() -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number in range(2000):
        trie.set(f"site/{number % 10}/device/{number}/temperature/celsius", number)
    assert check_shape(tree_of(trie)) == 2000 + 10 + 1
    for number in range(2000):
        trie.discard(f"site/{number % 10}/device/{number}/temperature/celsius")
    gc.collect()
    assert check_shape(tree_of(trie)) == 0


def test_runs_part_where_levels_do() -> None:
    """Names that have characters in common, but not the level."""
    names = ["a/bc/d", "a/b", "a/bc", "a/b/d", "a/bcd/d", "a/bc/de", "a", "a/", "a//", "ab/c"]
    for first in names:
        for second in names:
            for third in names:
                trie: FilterTrie[str] = FilterTrie()
                for name in (first, second, third):
                    trie.insert(name, "key", name)
                check_shape(tree_of(trie))
                for name in names:
                    there = name in (first, second, third)
                    assert trie.match(name) == [name] * there
                    assert trie.get(name, "key") == (name if there else None)
                trie.remove(second, "key")
                check_shape(tree_of(trie))
                for name in names:
                    assert trie.match(name) == [name] * (name in {first, third} - {second})


def test_unknown_filters_are_not_found() -> None:
    trie: FilterTrie[int] = FilterTrie()
    assert trie.get("a", 1) is None
    assert not trie.remove("a", 1)
    trie.insert("a/b/c", 1, 10)
    for other in ("a", "a/b", "a/b/c/d", "a/b/", "a/b/cd", "+/b/c", "#"):
        assert trie.get(other, 1) is None
        assert not trie.remove(other, 1)
    assert trie.get("a/b/c", 2) is None
    assert not trie.remove("a/b/c", 2)
    assert trie.get("a/b/c", 1) == 10
    assert len(trie) == 1


def test_equal_strings_of_many_names_are_kept_once() -> None:
    trie: FilterTrie[str] = FilterTrie()
    keys = [f"session-{number}" for number in range(10_000)]
    tracemalloc.start()
    try:
        for number, key in enumerate(keys):
            trie.insert(f"devices/dev{number:07d}/cmd", key, key)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / len(keys) < 230
    # Each group of SHARED_STRINGS new levels may have a "cmd/" of its own
    devices = tree_of(trie).root.children["devices"].children  # type: ignore[index,union-attr]
    copies = {id(leaf[0]) for leaf in devices.values()}  # type: ignore[index,union-attr]
    assert len(copies) <= len(keys) // (SHARED_STRINGS - 1) + 1


def test_shared_results_are_bounded() -> None:
    trie: FilterTrie[int] = FilterTrie()
    for number in range(2 * SHARED_STRINGS):
        trie.insert(f"{number}/{number}x/{'y' * SHARED_LENGTH}/z", 1, 1)
        check = tree_of(trie)._shared
        assert len(check) <= SHARED_STRINGS
        assert all(len(text) <= SHARED_LENGTH for text in check)


@given(one=filters, topic=topics)
def test_the_rules_match_one_filter_and_one_topic(one: str, topic: str) -> None:
    assert says_it_matches(one, topic) == matches(one, topic)


@given(one=filters, other=filters, topic=topics)
def test_filters_that_match_one_topic_overlap(one: str, other: str, topic: str) -> None:
    assert filters_overlap(one, other) == filters_overlap(other, one)
    assert filters_overlap(topic, one) >= matches(one, topic)
    if matches(one, topic) and matches(other, topic):
        assert filters_overlap(one, other)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/b", "a", False),
        ("a/#", "a", True),
        ("a/+/c", "a/b/+", True),
        ("a/+", "a/b/c", False),
        ("+/x", "b/#", True),
        ("+/x", "b/y", False),
        ("#", "whatever/there/is", True),
    ],
)
def test_overlap_of_filters(one: str, other: str, overlap: bool) -> None:
    assert filters_overlap(one, other) is overlap
