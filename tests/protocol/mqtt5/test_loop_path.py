"""The logs that a message has passed."""

from protocol.mqtt.loop_path import (
    MAX_PATH,
    PATH_PROPERTY,
    has_passed,
    passed_logs,
    took_in,
    with_logs,
    would_loop,
)
from protocol.mqtt.message_properties import MessageProperties, encode_message_properties
from protocol.mqtt.property_codec import encode_properties


def test_a_message_that_has_passed_a_log_does_not_pass_it_again() -> None:
    block = encode_message_properties(
        MessageProperties(expiry=60, content_type="text/plain", user=(("k", "v"),))
    )
    once = with_logs(block, "edge")
    assert once == block + encode_properties({}, ((PATH_PROPERTY, "edge"),))
    twice = with_logs(once, "site")
    assert twice == block + encode_properties({}, ((PATH_PROPERTY, "edge,site"),))
    assert passed_logs(block) == ()
    assert passed_logs(twice) == ("edge", "site")
    assert would_loop(twice, "edge")
    assert would_loop(twice, "site")
    assert not would_loop(twice, "sit")
    assert has_passed(twice, {"far", "edge"})
    assert not has_passed(twice, {"far"})
    assert not has_passed(block, {"edge"})
    assert with_logs(block, "edge", "site") == with_logs(twice, "site") == twice
    assert took_in(twice, "site")
    assert not took_in(twice, "edge")
    assert not took_in(block, "site")


def test_a_path_has_an_end() -> None:
    block = b""
    for number in range(MAX_PATH):
        assert not would_loop(block, "last")
        block = with_logs(block, f"log{number}")
    assert would_loop(block, "last")


def test_a_client_may_have_written_the_property_more_than_once() -> None:
    block = encode_properties({}, ((PATH_PROPERTY, "a"), ("k", "v"), (PATH_PROPERTY, ",b,")))
    assert passed_logs(block) == ("a", "b")
    assert with_logs(block, "c") == encode_properties({}, (("k", "v"), (PATH_PROPERTY, "a,b,c")))


def test_a_client_may_have_written_a_text_that_is_no_path() -> None:
    long = (PATH_PROPERTY, "x" * 65_535)
    block = encode_properties({}, (long, long, (PATH_PROPERTY, "a,")))
    assert passed_logs(block) == ("a",)
    assert not would_loop(block, "b")
    assert with_logs(block, "b") == encode_properties({}, ((PATH_PROPERTY, "a,b"),))
