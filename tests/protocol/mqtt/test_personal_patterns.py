"""Names of persons in topics, filters, client identifiers and user names, and their tokens."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.personal_patterns import (
    AmbiguousFilterError,
    Name,
    PatternError,
    TextPatterns,
    TopicPatterns,
    is_token,
)
from protocol.mqtt.topics import TopicError, matches


class Tokens:
    """Gives tokens to names, each its own."""

    def __init__(self, log: str = "") -> None:
        self.given: dict[Name, str] = {}
        self._log = log

    def token(self, name: Name) -> str:
        return self.given.setdefault(name, f"~{self._log}{len(self.given) + 1}")

    def name(self, token: str) -> str | None:
        return {value: name.text for name, value in self.given.items()}.get(token)


HOME = TopicPatterns(["home/{}/person/#", "patients/{patient}/#", "cameras/#", "chat/{}/to/{}"])


def test_the_levels_before_a_mark_decide_which_level_is_a_name() -> None:
    tokens = Tokens()
    inner = [
        HOME.inner_topic(topic, tokens.token)
        for topic in (
            "home/alice/person/heart",
            "home/alice/lights",
            "home",
            "home/bob",
            "patients/alice/x",
            "cameras/alice",
            "chat/alice/to/bob",
            "chat/alice/from/bob",
            "office/alice/person/x",
        )
    ]
    assert inner == [
        "home/~1/person/heart",
        "home/~1/lights",
        "home",
        "home/~2",
        "patients/~3/x",
        "cameras/alice",
        "chat/~1/to/~2",
        "chat/~1/from/bob",
        "office/alice/person/x",
    ]
    assert HOME.names("chat/alice/to/bob") == [Name("person", "alice"), Name("person", "bob")]
    assert HOME.names("patients/p7/x") == [Name("patient", "p7")]


def test_only_whole_matches_are_sealed() -> None:
    sealed = ("home/a/person/x", "home/a/person", "patients/a", "cameras/1", "chat/a/to/b")
    assert all(map(HOME.is_sealed, sealed))
    others = ("home/a/lights", "home/a", "chat/a/to", "office/a", "$SYS/x", "camera")
    assert not any(map(HOME.is_sealed, others))
    assert not TopicPatterns(["#"]).is_sealed("$SYS/x")


@pytest.mark.parametrize(
    ("topic_filter", "inner"),
    [
        ("home/alice/#", "home/~1/#"),
        ("home/+/#", "home/+/#"),
        ("#", "#"),
        ("+/+/person/+", "+/+/person/+"),
        ("chat/+/to/alice", "chat/+/to/~1"),
        ("cameras/alice", "cameras/alice"),
        ("~x/+", "~~x/+"),
        ("home//x", "home//x"),
    ],
)
def test_filters(topic_filter: str, inner: str) -> None:
    assert HOME.inner_filter(topic_filter, Tokens().token) == inner


@pytest.mark.parametrize("topic_filter", ["+/alice/#", "+/alice", "chat/+/+/alice"])
def test_a_filter_that_could_mean_both_is_refused(topic_filter: str) -> None:
    with pytest.raises(AmbiguousFilterError, match="is ambiguous with personal_topics"):
        HOME.inner_filter(topic_filter, Tokens().token)


def test_a_name_that_looks_like_a_token_is_none() -> None:
    tokens = Tokens()
    assert HOME.inner_topic("home/~17/~18", tokens.token) == "home/~1/~~18"
    assert HOME.real_topic("home/~1/~~18", tokens.name) == "home/~17/~18"
    assert HOME.real_topic("home/~5/x", tokens.name) is None
    for wrong in ("home/alice", "office/~1", "~"):
        with pytest.raises(ValueError, match=r"is no token|names nobody"):
            HOME.real_topic(wrong, tokens.name)
    assert [*map(is_token, ("~1", "~2.17", "~0", "~", "1", "~1x", "~~1"))] == [True] * 2 + [
        False
    ] * 5


def test_a_topic_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(TopicError, match="too long"):
        HOME.inner_topic("~/" * 30_000, Tokens().token)


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        (["home/{A}/x"], "a mark is a whole level"),
        (["home/x{}/y"], "a mark is a whole level"),
        (["home/{/x"], "a mark is a whole level"),
        (["home/#/{}"], "'#' is not a whole level at the end"),
        (["home/a+/{}"], "personal_topics: home/a\\+/{}"),
        ([""], "personal_topics"),
        (["$SYS/{}"], r"topics that begin with \$"),
        (["~1/{}"], "is like a token"),
        (["home/{a}/x", "+/{b}/#"], "different marks"),
        (["{a}/{b}", "x/{c}"], "different marks"),
    ],
)
def test_wrong_patterns(patterns: list[str], problem: str) -> None:
    with pytest.raises(PatternError, match=problem) as caught:
        TopicPatterns(patterns)
    assert caught.value.exit_code == 78


LEVELS = ("h", "a", "~1", "$x", "")
TOPICS = [
    "/".join(levels)
    for length in (1, 2, 3)
    for levels in itertools.product(LEVELS, repeat=length)
    if levels != ("",)
]
PATTERNS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["h", "a", "", "+", "{}", "{p}"]), min_size=1, max_size=3),
        st.sampled_from(["", "/#"]),
    ).map(lambda given: "/".join(given[0]) + given[1]),
    min_size=1,
    max_size=3,
)
FILTERS = st.tuples(
    st.lists(st.sampled_from([*LEVELS, "+"]), min_size=1, max_size=3), st.sampled_from(["", "/#"])
).map(lambda given: "/".join(given[0]) + given[1])


def patterns_of(texts: list[str]) -> TopicPatterns | None:
    try:
        return TopicPatterns(texts)
    except PatternError:
        return None


@given(PATTERNS)
def test_topics_and_inner_names_are_one_to_one(texts: list[str]) -> None:
    patterns = patterns_of(texts)
    if patterns is None:
        return
    tokens = Tokens()
    inner = [patterns.inner_topic(topic, tokens.token) for topic in TOPICS]
    assert len(set(inner)) == len(TOPICS)
    assert [patterns.real_topic(one, tokens.name) for one in inner] == TOPICS
    for topic, one in zip(TOPICS, inner, strict=True):
        named = [level for level in one.split("/") if is_token(level)]
        assert named == [tokens.given[name] for name in patterns.names(topic)]


@given(PATTERNS, FILTERS)
def test_a_filter_matches_inner_names_as_it_matches_topics(
    texts: list[str], topic_filter: str
) -> None:
    patterns = patterns_of(texts)
    if patterns is None or not topic_filter:
        return
    tokens = Tokens()
    try:
        inner = patterns.inner_filter(topic_filter, tokens.token)
    except AmbiguousFilterError:
        assert is_ambiguous(patterns, topic_filter)
        return
    for topic in TOPICS:
        assert matches(inner, patterns.inner_topic(topic, tokens.token)) == matches(
            topic_filter, topic
        ), (inner, topic)


def is_ambiguous(patterns: TopicPatterns, topic_filter: str) -> bool:
    """Whether a level of a filter names a person in some of the topics, and nobody in others."""
    levels = topic_filter.split("/")
    for number, level in enumerate(levels):
        before = levels[:number]
        topics = [
            [*topic, level]
            for topic in itertools.product(("h", "a", "z", "~1", "$x", ""), repeat=number)
            if matches("/".join([*before, level]), "/".join([*topic, level]))
        ]
        named = {is_name(patterns, "/".join(topic), number) for topic in topics}
        if level not in ("+", "#") and len(named) == 2:
            return True
    return False


def is_name(patterns: TopicPatterns, topic: str, number: int) -> bool:
    inner = patterns.inner_topic(topic, Tokens().token)
    return is_token(inner.split("/")[number])


# ------------------------------------------------------------------- identifiers and users


@pytest.mark.parametrize(
    ("patterns", "text", "name", "inner"),
    [
        (["phone-{}-*"], "phone-alice-1", "alice", "phone-~1-1"),
        (["phone-{}-*"], "phone-alice-b-1", "alice", "phone-~1-b-1"),
        (["phone-{}-*"], "phone-alice", None, "phone-alice"),
        (["{}"], "alice", "alice", "~1"),
        (["{user}@home"], "a@b@home", "a@b", "~1@home"),
        (["x-{}", "{}"], "x-alice", "alice", "x-~1"),
        (["x-{}", "{}"], "y-alice", "y-alice", "~1"),
    ],
)
def test_texts(patterns: list[str], text: str, name: str | None, inner: str) -> None:
    made, tokens = TextPatterns("personal_clients", patterns), Tokens()
    found = made.name(text)
    assert (found and found.text) == name
    assert made.inner(text, tokens.token) == inner
    assert made.real(inner, tokens.name) == text


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("phone", "has no mark"),
        ("{}-{}", "has one mark"),
        ("a*{}", "\\* only at the end"),
        ("~{}", "none of ~"),
        ("{}*", "must end the name"),
        ("{}7", "would not end a token"),
        ("{}.x", "would not end a token"),
    ],
)
def test_wrong_patterns_of_texts(pattern: str, problem: str) -> None:
    with pytest.raises(PatternError, match=f"personal_users: {re.escape(pattern)}: .*{problem}"):
        TextPatterns("personal_users", [pattern])


TEXTS = [
    "".join(letters) for size in range(1, 6) for letters in itertools.product("a-~1", repeat=size)
]


@pytest.mark.parametrize("log", ["", "2."])
@pytest.mark.parametrize(
    "patterns",
    [["{}"], ["a{}-*"], ["a{}-", "a{}"], ["a{}-*", "a{}"], ["a-{}", "a{}-*"], ["1{}a*", "{}-1*"]],
)
def test_texts_and_inner_names_are_one_to_one(patterns: list[str], log: str) -> None:
    made, tokens = TextPatterns("personal_clients", patterns), Tokens(log)
    inner = [made.inner(text, tokens.token) for text in TEXTS]
    assert len(set(inner)) == len(TEXTS)
    names = {token: name.text for name, token in tokens.given.items()}
    assert [made.real(one, names.get) for one in inner] == TEXTS


def test_topics_of_the_broker_name_nobody() -> None:
    patterns = TopicPatterns(["+/{}/#"])
    assert patterns.names("x/alice") == [Name("person", "alice")]
    assert patterns.names("$SYS/alice") == []
    assert patterns.inner_filter("$SYS/alice", Tokens().token) == "$SYS/alice"
