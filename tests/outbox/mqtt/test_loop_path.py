"""The logs that a message has passed."""

from outbox.mqtt.loop_path import MAX_PATH, PATH_PROPERTY, passed_logs, with_log, would_loop
from protocol.mqtt.message_properties import MessageProperties, encode_message_properties
from protocol.mqtt.property_codec import encode_properties


def test_a_message_that_has_passed_a_log_does_not_pass_it_again() -> None:
    block = encode_message_properties(
        MessageProperties(expiry=60, content_type="text/plain", user=(("k", "v"),))
    )
    once = with_log(block, "edge")
    assert once == block + encode_properties({}, ((PATH_PROPERTY, "edge"),))
    twice = with_log(once, "site")
    assert twice == block + encode_properties({}, ((PATH_PROPERTY, "edge,site"),))
    assert passed_logs(block) == ()
    assert passed_logs(twice) == ("edge", "site")
    assert would_loop(twice, "edge")
    assert would_loop(twice, "site")
    assert not would_loop(twice, "sit")


def test_a_path_has_an_end() -> None:
    block = b""
    for number in range(MAX_PATH):
        assert not would_loop(block, "last")
        block = with_log(block, f"log{number}")
    assert would_loop(block, "last")


def test_a_client_may_have_written_the_property_more_than_once() -> None:
    block = encode_properties({}, ((PATH_PROPERTY, "a"), ("k", "v"), (PATH_PROPERTY, ",b,")))
    assert passed_logs(block) == ("a", "b")
    assert with_log(block, "c") == encode_properties({}, (("k", "v"), (PATH_PROPERTY, "a,b,c")))
