"""The ``topic`` lines of a bridge: mosquitto's, with prefixes in both directions."""

import pytest

from outbox.mqtt.topic_lines import (
    OutgoingTopic,
    TopicLine,
    TopicLineError,
    TopicMap,
    parse_topic_line,
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#", TopicLine("#", "out", 0)),
        ("sensors/# in", TopicLine("sensors/#", "in", 0)),
        ("sensors/#  both   2", TopicLine("sensors/#", "both", 2)),
        ("# both 2 site1/ hq/plant2/", TopicLine("#", "both", 2, "site1/", "hq/plant2/")),
        ('# out 1 "" hq/', TopicLine("#", "out", 1, "", "hq/")),
        ('"" out 1 a/b c/d', TopicLine("", "out", 1, "a/b", "c/d")),
    ],
)
def test_lines(text: str, line: TopicLine) -> None:
    assert parse_topic_line(text) == line
    assert parse_topic_line(line.text) == line


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "'' is not PATTERN DIRECTION QOS LOCAL-PREFIX REMOTE-PREFIX"),
        ("a b c d e f", "is not PATTERN"),
        ("a up", "the direction must be out, in or both, not 'up'"),
        ("a out 3", "the QoS must be 0, 1 or 2, not '3'"),
        ("a/#/b out 1", "'a/#/b': '#' is not a whole level at the end of the filter"),
        ("# out 1 site1", "'site1#': '#' is not a whole level"),
        ("a out 1 +/", "prefix '+/': topic name contains a wildcard"),
        ('"" out 1 a/b', 'the pattern "" needs both prefixes'),
        ("$share/g/a in 1", "a bridge has no shared subscriptions"),
    ],
)
def test_what_is_wrong_with_a_line(text: str, error: str) -> None:
    with pytest.raises(TopicLineError) as raised:
        parse_topic_line(text)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def lines(*texts: str) -> TopicMap:
    return TopicMap([parse_topic_line(text) for text in texts])


def test_out() -> None:
    topics = lines("sensors/# out 1", "# out 2 site1/ hq/plant2/", "back/# in 2")
    assert topics.local_filters == ["sensors/#", "site1/#"]
    assert topics.outgoing("sensors/a") == OutgoingTopic(b"sensors/a", 1)
    assert topics.outgoing("sensors") == OutgoingTopic(b"sensors", 1)
    assert topics.outgoing("site1/a/b") == OutgoingTopic(b"hq/plant2/a/b", 2)
    assert topics.outgoing("back/a") is None
    assert topics.outgoing("site2/a") is None


def test_in() -> None:
    topics = lines("sensors/# out 1", "# both 2 site1/ hq/plant2/", "back/# in 1")
    assert topics.subscriptions == [("hq/plant2/#", 2), ("back/#", 1)]
    assert topics.incoming("hq/plant2/a") == "site1/a"
    assert topics.incoming("back/a") == "back/a"
    assert topics.incoming("sensors/a") is None


def test_the_first_line_that_matches_decides() -> None:
    topics = lines('a/b out 2 "" x/', '# out 1 "" y/')
    assert topics.outgoing("a/b") == OutgoingTopic(b"x/a/b", 2)
    assert topics.outgoing("a/c") == OutgoingTopic(b"y/a/c", 1)
    twice = lines("a/# in 1 x/", "a/# in 2 y/")
    assert twice.subscriptions == [("a/#", 1)]
    assert twice.incoming("a/b") == "x/a/b"


def test_one_topic_to_another() -> None:
    topics = lines('"" both 1 a/b c/d')
    assert topics.outgoing("a/b") == OutgoingTopic(b"c/d", 1)
    assert topics.incoming("c/d") == "a/b"
    assert topics.outgoing("a/b/c") is None


def test_a_topic_that_no_topic_can_be() -> None:
    topics = lines(f"# out 1 site1/ {'x' * 65_000}/")
    assert topics.outgoing("site1/a") == OutgoingTopic(b"x" * 65_000 + b"/a", 1)
    assert topics.outgoing(f"site1/{'a' * 600}") == OutgoingTopic(b"", 1)
    assert lines("# out 1 site1/").outgoing("site1/") == OutgoingTopic(b"", 1)
