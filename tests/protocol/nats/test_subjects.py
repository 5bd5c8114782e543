"""Topics as NATS subjects: every row of the table, and every legal topic in both directions."""

import re

import pytest
from harness.natssubjects import nats_matches
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import validate_topic_filter
from protocol.nats.subjects import (
    SubjectError,
    filter_to_subjects,
    subject_to_topic,
    topic_to_subject,
)

any_text = st.text(
    st.one_of(
        st.sampled_from("/.. *>$_-0a2e\t\r\n\x7f\x85"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize(
    ("topic", "subject"),
    [
        # The table of the NATS documentation, row by row
        ("foo/bar", "foo.bar"),
        ("/foo/bar", "/.foo.bar"),
        ("foo/bar/", "foo.bar./"),
        ("foo//bar", "foo./.bar"),
        ("//foo/bar", "/./.foo.bar"),
        ("foo.bar", "foo//bar"),
        # Not supported there, escaped here
        ("foo bar", "foo/20bar"),
        ("foo\tbar\r\n", "foo/09bar/0d/0a"),
        ("*", "/2a"),
        (">", "/3e"),
        ("a*/>b", "a/2a./3eb"),
        ("\x01\x1f\x7f\x80\x9f", "/01/1f/7f/80/9f"),
        # Corners
        ("/", "/./"),
        (".", "//"),
        ("...", "//////"),
        (". .", "///20//"),
        ("./.", "//.//"),
        ("foo", "foo"),
        ("$SYS/a", "$SYS.a"),
        ("é/日本/\xa0", "é.日本.\xa0"),
        ("\ufeffa", "\ufeffa"),
    ],
)
def test_topic_and_subject(topic: str, subject: str) -> None:
    assert topic_to_subject(topic) == subject
    assert subject_to_topic(subject) == topic


@given(any_text)
def test_every_topic_has_a_unique_subject(topic: str) -> None:
    subject = topic_to_subject(topic)
    assert subject_to_topic(subject) == topic
    tokens = subject.split(".")
    assert all(tokens)
    assert len(tokens) == topic.count("/") + 1
    assert not re.search(r"[\x00-\x20\x7f-\x9f*>]", subject)


@given(st.text(st.sampled_from("/.. *>a2e0\t+#"), max_size=12) | st.text(max_size=12))
def test_a_subject_has_its_topic_or_none(subject: str) -> None:
    try:
        topic = subject_to_topic(subject)
    except SubjectError:
        return
    assert topic_to_subject(topic) == subject


@pytest.mark.parametrize(
    "subject",
    [
        *("", ".", "a.", ".a", "a..b"),
        *("*", ">", "a.>", "a.+", "#", "a+"),
        *("a b", "\0", "\ud800"),
        *("a/b", "a/", "/a", "a///", "/2e", "/2A", "/00", "/41"),
    ],
)
def test_subjects_without_a_topic(subject: str) -> None:
    with pytest.raises(SubjectError, match="has no MQTT topic"):
        subject_to_topic(subject)


@pytest.mark.parametrize(
    ("topic_filter", "subjects"),
    [
        ("#", (">",)),
        ("+", ("*",)),
        ("foo/#", ("foo.>", "foo")),
        ("foo/+", ("foo.*",)),
        ("+/#", ("*.>", "*")),
        ("/#", ("/.>", "/")),
        ("+/foo/+", ("*.foo.*",)),
        ("/+/", ("/.*./",)),
        ("a.b/+/c d", ("a//b.*.c/20d",)),
        ("foo", ("foo",)),
        ("*/>", ("/2a./3e",)),
    ],
)
def test_filter(topic_filter: str, subjects: tuple[str, ...]) -> None:
    validate_topic_filter(topic_filter)
    assert filter_to_subjects(topic_filter) == subjects


level = st.sampled_from(["", "a", ".", " ", "*", ">", "b"])


@given(
    st.lists(level | st.just("+"), min_size=1, max_size=4),
    st.booleans(),
    st.lists(level, min_size=1, max_size=5),
)
def test_the_subjects_of_a_filter_match_its_topics(
    wanted: list[str], rest: bool, there: list[str]
) -> None:
    topic_filter, topic = "/".join(wanted + ["#"] * rest) or "/", "/".join(there) or "/"
    trie: FilterTrie[int] = FilterTrie()
    trie.insert(topic_filter, 1, 1)
    subjects = [
        subject
        for subject in filter_to_subjects(topic_filter)
        if nats_matches(subject, topic_to_subject(topic))
    ]
    # Each message comes once, not twice, also when the filter has two subjects.
    assert len(subjects) == len(trie.match(topic))
