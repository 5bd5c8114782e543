"""Rules, filters and prefixes: both directions, reserved subjects, covering subscriptions."""

import itertools

import pytest
from harness.natssubjects import nats_matches
from hypothesis import assume, example, given
from hypothesis import strategies as st

from protocol.errors import FoldmqError
from protocol.mqtt.topics import matches
from protocol.nats.mapping import (
    MAX_SUBJECT,
    Mapping,
    MappingError,
    is_reserved_subject,
    parse_users,
)
from protocol.nats.subjects import topic_to_subject

level = st.sampled_from(["a", "b", "c", "", ".", "$x", "_y", " "])
topics = st.lists(level, min_size=1, max_size=5).map("/".join).filter(bool)
token = st.sampled_from(["a", "b", "c", "/", "//"])
subject_prefixes = st.lists(token, max_size=3).map(".".join)
rule_lists = st.lists(
    st.tuples(st.just("") | topics, subject_prefixes),
    max_size=4,
    unique_by=(lambda rule: rule[0], lambda rule: rule[1]),
)
filters = (
    st.tuples(st.lists(level | st.just("+"), max_size=4), st.booleans())
    .map(lambda parts: "/".join(parts[0] + ["#"] * parts[1]))
    .filter(bool)
)
filter_lists = st.just(["#"]) | st.lists(filters, max_size=3)
users = st.sampled_from(["", "u", "u.v", "w"])
mappings = st.builds(Mapping, rule_lists, filter_lists, st.just(["u", "u.v", "w"]))


@given(mappings, topics, users)
@example(Mapping([("a", "x")]), "a/", "")
@example(Mapping([("a", "x")]), "a//", "")
@example(Mapping([("a", "")]), "a", "")
@example(Mapping([("a", "")]), "a/", "")
@example(Mapping([("a", "b"), ("b", "a")]), "a/b", "")
@example(Mapping([("a", "x.y"), ("a/b", "z")]), "x/y/b/c", "")
def test_a_topic_is_derived_from_its_subject(mapping: Mapping, topic: str, user: str) -> None:
    subject = mapping.subject(topic, user)
    if subject is not None:
        assert mapping.topic(subject, user) == topic
        assert not is_reserved_subject(subject)


@given(mappings, st.lists(token | st.just("d"), min_size=1, max_size=6).map(".".join), users)
def test_a_subject_is_derived_from_its_topic(mapping: Mapping, subject: str, user: str) -> None:
    topic = mapping.topic(subject, user)
    if topic is not None:
        assert mapping.subject(topic, user) == subject


@given(mappings, st.text(st.sampled_from("/.. *>a2e0\t+#$_ué\ud800"), max_size=12), users)
def test_any_subject_has_a_topic_or_none(mapping: Mapping, subject: str, user: str) -> None:
    topic = mapping.topic(subject, user)
    if topic is not None:
        assert mapping.subject(topic, user) == subject


@given(mappings, topics, topics)
def test_two_topics_never_have_one_subject(mapping: Mapping, one: str, other: str) -> None:
    assume(one != other)
    subject = mapping.subject(one)
    assert subject is None or subject != mapping.subject(other)


def as_filter(topic: str, wild: list[bool], depth: int | None) -> str:
    """A filter that matches the topic: some levels are wild, and all below `depth`."""
    there = topic.split("/")
    wanted = ["+" if any_level else level for any_level, level in zip(wild, there, strict=False)]
    wanted += there[len(wanted) :]
    return "/".join(wanted if depth is None else [*wanted[:depth], "#"])


@given(
    mappings,
    topics,
    st.lists(st.booleans(), max_size=5),
    st.none() | st.integers(0, 5),
    users,
)
@example(Mapping([("a", "x")]), "a", [True], 1, "")
@example(Mapping([("a", "x")]), "a", [], 0, "")
@example(Mapping([("a/b", "x")]), "a/b", [], 1, "")
@example(Mapping([("$x", "x")], ["$x/#"]), "$x", [], 1, "")
def test_subscriptions_cover_the_topics_of_a_filter(
    mapping: Mapping, topic: str, wild: list[bool], depth: int | None, user: str
) -> None:
    topic_filter = as_filter(topic, wild, depth)
    subject = mapping.subject(topic, user)
    if subject is not None and matches(topic_filter, topic):
        assert any(nats_matches(one, subject) for one in mapping.subjects(topic_filter, user))


@given(mappings, filters, users)
def test_no_subscription_covers_another_one(mapping: Mapping, topic_filter: str, user: str) -> None:
    patterns = mapping.subjects(topic_filter, user)
    assert len(set(patterns)) == len(patterns)
    for wide, narrow in itertools.permutations(patterns, 2):
        # Subjects of the narrow one with tokens that nothing else is made of
        beyond = [".".join("q" if part == "*" else part for part in narrow.split("."))]
        if narrow.endswith(">"):
            beyond = [f"{beyond[0][:-1]}q", f"{beyond[0][:-1]}q.q"]
        assert not all(nats_matches(wide, subject) for subject in beyond)


@given(topics)
def test_without_rules_it_is_the_table(topic: str) -> None:
    subject = Mapping().subject(topic)
    if topic.startswith(("$", "_")):
        assert subject is None
    else:
        assert subject == topic_to_subject(topic)


RULES = ["sensors=plant1.sensors", "a/b=x", "a/b/c=y.z", "$sparkplug=sparkplug", "eq=al=eq"]


@pytest.mark.parametrize(
    ("topic", "subject"),
    [
        ("sensors/hall/temp", "plant1.sensors.hall.temp"),
        ("sensors", "plant1.sensors"),
        ("sensors/", "plant1.sensors./"),
        ("sensors/a.b/c d", "plant1.sensors.a//b.c/20d"),
        ("sensorsx", "sensorsx"),
        ("a/b/d", "x.d"),
        ("a/b/c/d", "y.z.d"),
        ("a", "a"),
        ("/", "/./"),
        ("$sparkplug/x", "sparkplug.x"),
        ("eq=al/1", "eq.1"),
    ],
)
def test_rules(topic: str, subject: str) -> None:
    mapping = Mapping.parse(RULES, ["#", "$sparkplug/#"])
    assert mapping.subject(topic) == subject
    assert mapping.topic(subject) == topic
    assert mapping.subject(topic, "site.u") == f"site.u.{subject}"
    assert mapping.topic(f"site.u.{subject}", "site.u") == topic
    assert mapping.topic(subject, "site.u") is None


def test_rules_for_all_other_topics_and_for_fewer_tokens() -> None:
    mapping = Mapping.parse(["=site", "plant="])
    assert mapping.subject("a/b") == "site.a.b"
    assert mapping.topic("site.a.b") == "a/b"
    assert mapping.subject("plant/a") == "a"
    assert mapping.topic("a") == "plant/a"
    assert mapping.subject("plant") is None
    assert mapping.topic("site") == "plant/site"
    # The longer SUBJECT decides: this topic would have the subject of another one
    assert mapping.subject("plant/site/a") is None


def test_a_topic_that_another_one_hides_is_not_bridged() -> None:
    mapping = Mapping.parse(["sensors=plant1.sensors"])
    assert mapping.subject("plant1/sensors/temp") is None
    assert mapping.topic("sensors.temp") is None
    mapping = Mapping.parse(["plant="])
    assert mapping.subject("x") is None
    assert mapping.topic("x") == "plant/x"


@pytest.mark.parametrize(
    "name",
    [
        *("$SYS/a", "$JS/API/x", "$foldmq/a", "$foo", "$MQTT/x", "$NRG", "$"),
        *("_INBOX/x", "_R_/x", "_GR_/a", "_", "_a/b", "foldmq", "foldmq/log/1"),
    ],
)
def test_reserved(name: str) -> None:
    mapping = Mapping((), ["#", "+/#", "$foo/#", "$/#"])
    subject = topic_to_subject(name)
    assert is_reserved_subject(subject)
    assert mapping.subject(name) is None
    assert mapping.topic(subject) is None
    assert mapping.subjects(name) == ()
    assert mapping.subjects(f"{name}/#") == ()


@pytest.mark.parametrize(
    "subject", ["foldmqx", "a.$SYS", "a._INBOX", "*", ">", "*.x", "foldmq-1.a"]
)
def test_not_reserved(subject: str) -> None:
    assert not is_reserved_subject(subject)


def test_the_broker_s_own_topics_are_not_bridged_by_any_way() -> None:
    mapping = Mapping.parse(["=all"], ["#", "+/#"])
    assert mapping.subject("$SYS/broker/uptime") is None
    assert mapping.topic("all.$SYS.broker.uptime") is None
    assert mapping.subject("_INBOX/a") == "all._INBOX.a"
    assert mapping.topic("u.$SYS.broker", "u") is None


def test_filters_limit_both_directions_and_subscriptions() -> None:
    mapping = Mapping((), ["sensors/#", "+/alarm"])
    assert mapping.subject("sensors") == "sensors"
    assert mapping.subject("hall/alarm") == "hall.alarm"
    assert mapping.subject("hall/temp") is None
    assert mapping.topic("hall.temp") is None
    assert mapping.topic("sensors.x.y") == "sensors/x/y"
    assert sorted(mapping.subjects("#")) == ["*.alarm", "sensors", "sensors.>"]
    assert mapping.subjects("hall/+") == ("hall.alarm",)
    assert mapping.subjects("hall/temp") == ()
    assert mapping.subjects("sensors/+/x") == ("sensors.*.x",)
    assert Mapping((), []).subjects("#") == ()
    assert Mapping((), []).subject("a") is None


@pytest.mark.parametrize(
    ("topic_filter", "subjects"),
    [
        ("#", {">"}),
        ("+", {"*", "plant1.sensors"}),
        ("a/#", {"a.>", "a"}),
        ("/#", {"/.>", "/"}),
        ("+/temp", {"plant1.sensors.temp", "*.temp"}),
        ("sensors/temp", {"plant1.sensors.temp"}),
        ("sensors/#", {"plant1.sensors.>", "plant1.sensors"}),
        ("sensors/", {"plant1.sensors./"}),
        ("+/#", {"*.>", "*"}),
        ("sensors", {"plant1.sensors"}),
        ("$SYS/#", set()),
        ("a.b/+", {"a//b.*"}),
    ],
)
def test_subscriptions(topic_filter: str, subjects: set[str]) -> None:
    mapping = Mapping.parse(["sensors=plant1.sensors"])
    assert set(mapping.subjects(topic_filter)) == subjects
    prefixed = {f"u.{subject}" for subject in subjects}
    assert set(mapping.subjects(topic_filter, "u")) == prefixed


def test_subjects_of_one_user_are_for_no_other_user() -> None:
    mapping = Mapping((), ["#"], ["alice", "alice.b"])
    assert mapping.subject("x", "alice") == "alice.x"
    assert mapping.topic("alice.x", "alice") == "x"
    assert mapping.topic("alice.x") is None
    assert mapping.subject("alice/x") is None
    assert mapping.subject("alice") is None
    assert mapping.subject("alicex") == "alicex"
    assert mapping.subject("b/x", "alice") is None
    assert mapping.subject("x", "alice.b") == "alice.b.x"
    assert mapping.topic("alice", "alice") is None
    assert mapping.topic("x", "alice") is None
    assert mapping.subjects("alice/#") == ()
    assert mapping.subjects("#", "alice") == ("alice.>",)


def test_long_subjects_are_not_bridged() -> None:
    mapping = Mapping()
    assert mapping.subject("a" * MAX_SUBJECT) == "a" * MAX_SUBJECT
    assert mapping.subject("a" * (MAX_SUBJECT + 1)) is None
    assert mapping.subject("a" * (MAX_SUBJECT - 1), "u") is None
    assert mapping.subject("é" * (MAX_SUBJECT // 2)) is not None
    assert mapping.subject("é" * (MAX_SUBJECT // 2 + 1)) is None
    assert mapping.subject("/" * MAX_SUBJECT) is None
    assert mapping.subject("." * 65_535) is None
    assert mapping.topic("a" * (MAX_SUBJECT + 1)) is None
    assert mapping.subjects("+/" + "a" * MAX_SUBJECT) == ()
    assert mapping.subjects("a" * 65_535) == ()
    # It is the subject that must fit
    prefix = "t" * 100
    mapping = Mapping.parse([f"{prefix}=", "s=longer"])
    assert mapping.subject(f"{prefix}/{'a' * MAX_SUBJECT}") == "a" * MAX_SUBJECT
    assert mapping.topic("a" * MAX_SUBJECT) == f"{prefix}/{'a' * MAX_SUBJECT}"
    assert mapping.subject(f"s/{'a' * (MAX_SUBJECT - 6)}") is None


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (["a"], "must be TOPIC=SUBJECT"),
        (["a/+=x"], "wildcard"),
        (["#=x"], "wildcard"),
        (["a\0=x"], "U+0000"),
        (["a=x.*"], "not a subject"),
        (["a=x.>"], "not a subject"),
        (["a=x y"], "not a subject"),
        (["a= x"], "not a subject"),
        (["a=x..y"], "not a subject"),
        (["a=.x"], "not a subject"),
        (["a=x\x1b[31m"], "not a subject"),
        (["a=\ud800"], "not a subject"),
        (["a=$SYS.x"], "not bridged"),
        (["a=_INBOX"], "not bridged"),
        (["a=foldmq.x"], "not bridged"),
        (["$SYS=x"], "reserved for the broker"),
        (["$SYS/broker=x"], "reserved for the broker"),
        (["a=x", "a=y"], "second rule"),
        (["a=x", "b=x"], "'a' has this subject already"),
        (["a=", "="], "has this subject already"),
        (["a=" + "x" * 4000], "longer than"),
        (["t" * 4000 + "=x"], "longer than"),
    ],
)
def test_rules_that_cannot_be(rules: list[str], reason: str) -> None:
    with pytest.raises(MappingError) as caught:
        Mapping.parse(rules)
    text = str(caught.value)
    assert reason in text
    assert len(text) < 400
    assert text.isprintable()
    assert isinstance(caught.value, FoldmqError)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "\0", "$SYS/#", "$JS"])
def test_filters_that_cannot_be(topic_filter: str) -> None:
    with pytest.raises(MappingError):
        Mapping((), [topic_filter])


@pytest.mark.parametrize("prefix", ["", "a b", "a..b", "*", "$SYS", "foldmq"])
def test_prefixes_that_cannot_be(prefix: str) -> None:
    with pytest.raises(MappingError):
        Mapping((), ["#"], [prefix])


def test_users() -> None:
    assert parse_users(["ann=site.ann", "b=b=x"]) == {"ann": "site.ann", "b=b": "x"}


@pytest.mark.parametrize("text", ["", "ann", "ann=", "=x", "ann=a b", "ann=_INBOX.x", "ann=a.*"])
def test_users_that_cannot_be(text: str) -> None:
    with pytest.raises(MappingError):
        parse_users([text])
    with pytest.raises(MappingError, match="already"):
        parse_users(["ann=x", "ann=y"])


def test_many_rules() -> None:
    mapping = Mapping([(f"plant/{number}", f"p{number}.x") for number in range(500)])
    assert mapping.subject("plant/77/a") == "p77.x.a"
    assert mapping.topic("p499.x.a") == "plant/499/a"
    assert mapping.subjects("plant/3/#") == ("p3.x.>", "p3.x")
    assert mapping.subjects("#") == (">",)
    assert len(mapping.subjects("plant/+/a")) == 501
