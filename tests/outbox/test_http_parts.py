"""What the sink http makes of messages and answers, without a network."""

import base64
import json
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.positions import position
from outbox.sink import OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.cloud_events import EventEncoder, event_headers, event_json
from outbox.sinks.http import judge, seconds_of, webhook_id
from outbox.sinks.webhook_signature import BadSecret, read_secrets, signed_headers
from protocol.mqtt.message_properties import MessageProperties, encode_message_properties


def message(
    payload: bytes = b"x", properties: MessageProperties | None = None, at: int = position(12, 3)
) -> OutboxMessage:
    block = encode_message_properties(properties) if properties is not None else b""
    return OutboxMessage(at, at, 1, 1_700_000_000_123, "a/ü b", payload, 1, True, "pump", block)


def event(payload: bytes, properties: MessageProperties | None = None) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(event_json(message(payload, properties), "n1"))
    return made


def test_a_message_as_an_event() -> None:
    assert event(b'{"n": 1}') == {
        "specversion": "1.0",
        "id": "n1/12.3",
        "source": "urn:foldmq:log:n1",
        "type": "foldmq.message.published",
        "subject": "a/ü b",
        "time": "2023-11-14T22:13:20.123Z",
        "datacontenttype": "application/json",
        "mqttqos": 1,
        "mqttretain": True,
        "mqttclient": "pump",
        "partitionkey": "a/ü b",
        "data": {"n": 1},
    }


@given(
    st.one_of(
        st.binary(max_size=30),
        st.text(max_size=30).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        ).map(lambda value: json.dumps(value).encode()),
        st.sampled_from([b" 1", b"nan", b"\xef\xbb\xbf1", b'"\xff"', b"", b"0x1", b"-", b"\n[]"]),
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    st.booleans(),
)
def test_an_encoder_that_remembers_makes_the_same_events(
    payload: bytes, text: str, retain: bool
) -> None:
    encoder = EventEncoder("n-1_x")
    for qos, time_ms in [(1, 1), (2, 1), (1, 1_700_000_000_123)]:
        each = message(payload)._replace(
            topic=f"t/{text}", client=text, retain=retain, qos=qos, time_ms=time_ms
        )
        assert encoder.encode(each) == event_json(each, "n-1_x")


def test_json_keeps_its_bytes() -> None:
    exact = b'{"n":  1.00, "big": 123456789012345678901234567890e0}'
    assert exact in event_json(message(exact), "n1")


@pytest.mark.parametrize(
    ("payload", "kind", "text", "expected"),
    [
        (b"on", None, 0, ("text/plain", "on")),
        (b"", None, 0, ("text/plain", "")),
        (b"\xff\x00", None, 0, ("application/octet-stream", base64.b64encode(b"\xff\x00"))),
        (b"<a/>", "text/xml", 0, ("text/xml", "<a/>")),
        (b"<a/>", "application/xml", 1, ("application/xml", "<a/>")),
        (b"<a/>", "application/xml", 0, ("application/xml", base64.b64encode(b"<a/>"))),
        (b"{", "application/json", 0, ("application/json", base64.b64encode(b"{"))),
        (b"[1]", "application/senml+json", 0, ("application/senml+json", [1])),
        (b"\xff", "text/plain", 0, ("text/plain", base64.b64encode(b"\xff"))),
    ],
)
def test_the_form_of_data(
    payload: bytes, kind: str | None, text: int, expected: tuple[str, Any]
) -> None:
    made = event(payload, MessageProperties(payload_format=text, content_type=kind))
    name = "data_base64" if isinstance(expected[1], bytes) else "data"
    value = expected[1].decode() if isinstance(expected[1], bytes) else expected[1]
    assert (made["datacontenttype"], made[name]) == (expected[0], value)


def test_a_trace_is_passed_on() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    made = event(b"x", MessageProperties(user=(("traceparent", trace), ("other", "1"))))
    assert made["traceparent"] == trace
    assert "other" not in made


def test_an_event_is_passed_on_as_it_is() -> None:
    own = b'{"specversion":"1.0", "id":"7", "source":"/s", "type":"t"}'
    kind = MessageProperties(content_type="application/cloudevents+json; charset=utf-8")
    assert event_json(message(own, kind), "n1") == own
    # Without its attributes it is data.
    assert "data" in event(b'{"id":"7"}', kind)


def test_an_event_in_user_properties_keeps_its_attributes() -> None:
    user = (("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t"), ("my-own", "x"))
    made = event(b"1", MessageProperties(content_type="application/json", user=user))
    expected = {"specversion": "1.0", "id": "7", "source": "/s", "type": "t"}
    assert made == {**expected, "datacontenttype": "application/json", "data": 1}


def test_headers_of_the_binary_mode_are_ascii_and_have_one_line() -> None:
    headers = event_headers(message(b"on"), "n1")
    assert headers["Content-Type"] == "text/plain"
    assert headers["ce-subject"] == "a/%C3%BC b"
    assert (headers["ce-mqttretain"], headers["ce-mqttqos"]) == ("true", "1")
    hostile = MessageProperties(content_type="a\r\nb: c", user=(("traceparent", 'a"\r\nb%é'),))
    made = event_headers(message(b"on", hostile), "n1")
    assert made["Content-Type"] == "application/octet-stream"
    assert made["ce-traceparent"] == "a%22%0D%0Ab%25%C3%A9"


def test_a_signature_of_the_standard() -> None:
    """The example of standardwebhooks.com."""
    (secret,) = read_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    body = b'{"test": 2432232314}'
    made = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body, [secret])
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert made["webhook-timestamp"] == "1614265330"
    two = signed_headers("m", 1, body, [secret, bytes(32)])["webhook-signature"].split()
    assert len(two) == 2
    assert "webhook-signature" not in signed_headers("m", 1, body, [])


@pytest.mark.parametrize(
    "text",
    ["", "\n", "abc", "whsec_", "whsec_%", "whsec_AAAA", "\n".join(["whsec_" + "A" * 44] * 3)],
)
def test_bad_secrets(text: str) -> None:
    with pytest.raises(BadSecret):
        read_secrets(text)


def test_the_identifier_of_a_batch_has_no_dot() -> None:
    first, last = message(at=position(12, 3)), message(at=position(40, 0))
    assert webhook_id("n1", [first, last]) == "n1_12-3_40-0"


def outcome(status: int, batch: Sequence[OutboxMessage], retry_after: str | None = None) -> str:
    try:
        judge(status, "why", retry_after, batch)
    except TryAgain as answer:
        known = str(status) in answer.reason
        return "settings" if answer.misconfigured else f"again {answer.after}" * known
    except RefusedMessages as answer:
        return f"refused {len(answer.at)}" * (answer.code == status)
    return "stored"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((200, 201, 202, 204, 299), "stored"),
        ((408, 425, 429, 500, 502, 503, 504, 599), "again None"),
        ((301, 304, 401, 403, 404, 410), "settings"),
        ((400, 405, 409, 413, 415, 422), "refused 1"),
    ],
)
def test_answers(statuses: Sequence[int], expected: str) -> None:
    assert {outcome(status, [message()]) for status in statuses} == {expected}


@pytest.mark.parametrize("status", [503, 401, 422])
def test_an_answer_about_sealed_contents_is_not_quoted(status: int) -> None:
    for key in (0, 7):
        with pytest.raises((TryAgain, RefusedMessages)) as raised:
            judge(status, "invalid: secret", None, [message(), message()._replace(key=key)])
        assert ("secret" in str(raised.value.reason)) == (not key)


def test_a_refused_batch_names_no_message() -> None:
    assert outcome(422, [message(), message()]) == "refused 0"


def test_retry_after() -> None:
    assert outcome(429, [message()], "7") == "again 7.0"
    assert outcome(503, [message()], "0") == "again None"  # the back-off decides
    assert seconds_of("nonsense") is None
    assert seconds_of(formatdate(0)) == 0.0
    assert (seconds_of(formatdate(2**33)) or 0) > 1000
