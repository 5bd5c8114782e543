"""The home of a topic, and the messages that brokers of several logs send each other."""

import pytest

from actors.bridge.interest import TopicHomes, topic_header
from protocol.nats.headers import constant_part, header_block

NAMES = ["n-p0", "n-p1", "n-p2"]
HOMES = [TopicHomes(NAMES, name) for name in NAMES]


@pytest.mark.parametrize("topic", ["a", "a/b", "/", "/a", "", "größe/x", "a b/c"])
def test_a_topic_has_one_home_by_its_first_level(topic: str) -> None:
    (home,) = [one for one in HOMES if one.is_home(topic)]
    assert home.is_home(topic.partition("/")[0] + "/x/y")
    assert home.concerns(topic.partition("/")[0] + "/#")
    assert [one.concerns(topic) for one in HOMES] == [one is home for one in HOMES]


@pytest.mark.parametrize("topic_filter", ["#", "+", "+/a", "+/#"])
def test_a_filter_that_begins_with_a_wildcard_concerns_all(topic_filter: str) -> None:
    assert all(one.concerns(topic_filter) for one in HOMES)


def headers(node: str, topic: str, qos: int = 1, *, retain: bool = False) -> bytes:
    """Return the headers with which a broker sends a message."""
    constant = constant_part(topic, qos, retain=retain, client="c", node=node)
    return header_block(constant, 17 if qos else None)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("topic", ["a/b", "a b/%", "größe"])
def test_a_message_of_any_of_the_brokers_is_recognized(
    topic: str, qos: int, *, retain: bool
) -> None:
    homes = HOMES[0]
    for name in NAMES:
        head = headers(name, topic, qos, retain=retain)
        assert homes.is_from_broker(head, topic_header(topic))
        assert not homes.is_from_broker(head, topic_header(topic + "/x"))
        assert not homes.is_from_broker(head, topic_header(topic[:-1]))
    for other in ("n", "n-p3", "n-p11", "xn-p1", "m"):
        assert not homes.is_from_broker(headers(other, topic, qos), topic_header(topic))
    assert not homes.is_from_broker(b"NATS/1.0\r\nFoldmq-Topic: a\r\n\r\n", topic_header("a"))
