"""The rules for legal topic names and filters, and for the broker's own."""

import pytest

from protocol.mqtt.topics import (
    TopicError,
    is_reserved_filter,
    is_reserved_topic,
    split_levels,
    validate_topic_filter,
    validate_topic_name,
)

LEGAL_NAMES = [
    "a",
    "/",
    "//",
    "a/b",
    "/a/",
    " ",
    "a b",
    "a.b",
    "$",
    "$SYS/x",
    "\ufeff",
    "\x01",
    "é/日本",
]


@pytest.mark.mqtt("MQTT-4.7.3-1", "MQTT-4.7.3-4")
@pytest.mark.parametrize("name", LEGAL_NAMES)
def test_legal(name: str) -> None:
    validate_topic_name(name)
    validate_topic_filter(name)


@pytest.mark.mqtt("MQTT-4.7.1-2", "MQTT-4.7.1-3")
@pytest.mark.parametrize("legal", ["#", "+", "/#", "+/#", "/+", "+/+", "a/+/b", "$SYS/#", "a//#"])
def test_wildcards_are_for_filters_only(legal: str) -> None:
    validate_topic_filter(legal)
    with pytest.raises(TopicError, match="wildcard") as caught:
        validate_topic_name(legal)
    assert caught.value.statement == "MQTT-3.3.2-2"


@pytest.mark.parametrize(
    ("illegal", "statement"),
    [
        *[
            (text, "MQTT-4.7.1-2")
            for text in ("a#", "#/a", "##", "#/#", "a/#/b", "/a#", "#/", "+#")
        ],
        *[(text, "MQTT-4.7.1-3") for text in ("a+", "+a", "++", "a/+b/c", "a/++", "+/a+")],
    ],
)
@pytest.mark.mqtt("MQTT-4.7.1-2", "MQTT-4.7.1-3")
@pytest.mark.mqtt5("MQTT-4.7.0-1", "MQTT-4.7.1-1", "MQTT-4.7.1-2")
def test_illegal_wildcards(illegal: str, statement: str) -> None:
    with pytest.raises(TopicError) as caught:
        validate_topic_filter(illegal)
    assert caught.value.statement == statement


@pytest.mark.mqtt("MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.7.3-3")
@pytest.mark.parametrize(
    ("illegal", "statement"),
    [
        ("", "MQTT-4.7.3-1"),
        ("a\0", "MQTT-4.7.3-2"),
        ("a" * 65536, "MQTT-4.7.3-3"),
        ("é" * 32768, "MQTT-4.7.3-3"),
        ("\ud800", "MQTT-1.5.3-1"),
    ],
)
def test_illegal_text(illegal: str, statement: str) -> None:
    for validate in (validate_topic_name, validate_topic_filter):
        with pytest.raises(TopicError) as caught:
            validate(illegal)
        assert caught.value.statement == statement
        assert caught.value.reason in str(caught.value)


@pytest.mark.mqtt("MQTT-4.7.3-3")
def test_the_longest() -> None:
    validate_topic_name("a" * 65535)
    validate_topic_filter("+/" * 32767 + "#")


def test_levels() -> None:
    assert split_levels("/a//b") == ["", "a", "", "b"]


@pytest.mark.parametrize(
    ("name", "publish", "subscribe"),
    [
        ("$SYS", True, False),
        ("$SYS/broker/uptime", True, False),
        ("$foldmq", True, True),
        ("$foldmq/log/1", True, True),
        ("$replay/10m/hall", True, True),
        ("$JS/API", True, True),
        ("$MQTT/sess", True, True),
        ("$NRG/x", True, True),
        ("$foldmq2/x", False, False),
        ("$stream/name", False, False),
        ("$SYSTEM", False, False),
        ("$JS.API", False, False),
        ("$sys/x", False, False),
        ("$share/g/t", False, False),
        ("$", False, False),
        ("a/$SYS/x", False, False),
        ("/$foldmq/x", False, False),
    ],
)
def test_topics_reserved_for_the_broker(name: str, publish: bool, subscribe: bool) -> None:
    assert is_reserved_topic(name) is publish
    assert is_reserved_filter(name) is subscribe
    assert is_reserved_filter(name + "/#") is subscribe


@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/API", "+"])
def test_filters_that_begin_with_a_wildcard_are_anyones(topic_filter: str) -> None:
    assert not is_reserved_filter(topic_filter)
