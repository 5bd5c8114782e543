"""Section 3.1: CONNECT."""

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.fixtures import unique
from harness.mqtt5_packets import Answer, Will
from harness.mqtt5_rawclient import Clients5
from harness.packets import CONNACK, CONNECT, PUBACK, SUBACK, Pingresp

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
HEAD = packets.text("MQTT") + b"\x05"


def connect_bytes(flags: int, rest: bytes) -> bytes:
    """A CONNECT without properties; `rest` is its payload."""
    return packets.packet(CONNECT, 0, HEAD + bytes((flags,)) + b"\0\0\0" + rest)


# ------------------------------------------------------------ first packet


@pytest.mark.mqtt5("MQTT-3.1.0-1", "MQTT-3.2.0-1", "MQTT-3.14.0-1")
@pytest.mark.parametrize(
    "data",
    [
        p.publish("first/packet", b"x"),
        p.subscribe(1, ("first/packet", 0)),
        p.disconnect(0),
        p.auth(0x18, ((p.AUTHENTICATION_METHOD, "X"),)),
        packets.pingreq(),
    ],
    ids=["PUBLISH", "SUBSCRIBE", "DISCONNECT", "AUTH", "PINGREQ"],
)
def test_first_packet_other_than_connect_closes(clients: Clients5, data: bytes) -> None:
    client = clients.raw5()
    client.send(data)
    client.expect_closed()


@pytest.mark.mqtt5("MQTT-3.1.0-2", "MQTT-3.2.0-2", "MQTT-4.13.1-1", "MQTT-3.1.2-8")
def test_second_connect_is_a_protocol_error(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    client = clients.five(topic, will=Will(topic, b"twice"))
    client.send(p.connect(topic))
    client.expect_ended(PROTOCOL_ERROR)
    watcher.expect_message(topic, b"twice")


# --------------------------------------------------- protocol name and level


@pytest.mark.mqtt5("MQTT-3.1.2-1")
@pytest.mark.parametrize("name", ["", "MQT", "mqtt", "MQTTX", "HTTP"])
def test_wrong_protocol_name_is_not_served(clients: Clients5, name: str) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), protocol=name))
    assert client.read_to_end() in {b"", b"\x20\x03\x00\x84\x00", b"\x20\x02\x00\x01"}


@pytest.mark.mqtt5("MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [6, 9, 128, 133, 255])
def test_levels_above_5_are_refused(clients: Clients5, level: int) -> None:
    """In the form of MQTT 3.1.1: bridges of other brokers then try without their bit."""
    client = clients.raw5()
    client.send(p.connect(unique("c"), level=level))
    assert client.read_to_end() == b"\x20\x02\x00\x01"


# -------------------------------------------------------- malformed CONNECT


@pytest.mark.mqtt5("MQTT-3.1.2-3", "MQTT-3.1.4-1", "MQTT-4.13.1-1")
def test_reserved_connect_flag(clients: Clients5) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), flags=0x03))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-2.1.3-1", "MQTT-3.1.4-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_reserved_flags_of_the_fixed_header(clients: Clients5, flags: int) -> None:
    client = clients.raw5()
    client.send(bytes((0x10 | flags,)) + p.connect(unique("c"))[1:])
    client.expect_end_of(CONNACK, MALFORMED)


@pytest.mark.mqtt5("MQTT-3.1.2-11", "MQTT-3.1.2-13", "MQTT-3.1.4-1")
@pytest.mark.parametrize("flags", [0x08, 0x10, 0x18, 0x20, 0x28])
def test_will_qos_or_retain_without_will_flag(clients: Clients5, flags: int) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), flags=0x02 | flags))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt5("MQTT-3.1.2-12", "MQTT-3.1.4-1")
def test_will_qos_3(clients: Clients5, topic: str) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), will=Will(topic, qos=3)))
    client.expect_refused(MALFORMED)


WILL = b"\0" + packets.text("will/topic") + packets.text("gone")


@pytest.mark.mqtt5("MQTT-3.1.2-9", "MQTT-3.1.2-17", "MQTT-3.1.2-19", "MQTT-3.1.4-1")
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (0x06, b""),
        (0x06, b"\0"),
        (0x06, b"\0" + packets.text("will/topic")),
        (0x06, packets.text("will/topic") + packets.text("gone")),
        (0x82, b""),
        (0x42, b""),
        (0xC2, packets.text("user")),
        (0xC6, WILL + packets.text("user")),
    ],
    ids=["will", "topic", "message", "block", "user", "password", "no-password", "last"],
)
def test_announced_field_is_missing(clients: Clients5, flags: int, payload: bytes) -> None:
    client = clients.raw5()
    client.send(connect_bytes(flags, packets.text(unique("c")) + payload))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-3.1.2-16", "MQTT-3.1.2-18", "MQTT-3.1.4-1")
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (0x02, WILL),
        (0x02, packets.text("user")),
        (0x82, packets.text("user") + packets.text("password")),
        (0x02, b"\0"),
    ],
    ids=["will", "user", "password", "one-byte"],
)
def test_field_that_is_not_announced(clients: Clients5, flags: int, payload: bytes) -> None:
    client = clients.raw5()
    client.send(connect_bytes(flags, packets.text(unique("c")) + payload))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-3.1.3-3", "MQTT-3.1.4-1")
@pytest.mark.parametrize(
    "body",
    [
        HEAD,
        HEAD + b"\x02",
        HEAD + b"\x02\x00\x00",
        HEAD + b"\x02\x00\x00\x00",
        HEAD + b"\x02\x00\x00\x00\x00",
        HEAD + b"\x02\x00\x00\x00\x00\x09cut",
        HEAD + b"\x02\x00\x00\x05\x11\x00\x00",
    ],
    ids=["level", "flags", "keep-alive", "no-id", "half-length", "id-cut", "properties-cut"],
)
def test_connect_cut_short(clients: Clients5, body: bytes) -> None:
    client = clients.raw5()
    client.send(packets.packet(CONNECT, 0, body))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-3.1.4-1", "MQTT-4.7.0-1", "MQTT-4.7.3-1")
@pytest.mark.parametrize("bad", ["", "a/+/b", "a/#", "+"])
def test_will_topic_that_is_no_topic_name(clients: Clients5, bad: str) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), will=Will(bad)))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR, 0x90)


# -------------------------------------------------------------- properties

EXPIRY = p.prop(p.SESSION_EXPIRY, 60)
TWICE = {
    "session-expiry": EXPIRY,
    "receive-maximum": p.prop(p.RECEIVE_MAXIMUM, 10),
    "packet-size": p.prop(p.MAXIMUM_PACKET_SIZE, 1000),
    "alias-maximum": p.prop(p.TOPIC_ALIAS_MAXIMUM, 10),
    "response-information": p.prop(p.REQUEST_RESPONSE_INFORMATION, 1),
    "problem-information": p.prop(p.REQUEST_PROBLEM_INFORMATION, 1),
    "method": p.prop(p.AUTHENTICATION_METHOD, "X"),
}


@pytest.mark.mqtt5("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize("one", TWICE.values(), ids=TWICE)
def test_property_twice(clients: Clients5, one: bytes) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), properties=one + one))
    client.expect_refused(PROTOCOL_ERROR)


@pytest.mark.mqtt5("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "one",
    [
        p.prop(p.RECEIVE_MAXIMUM, 0),
        p.prop(p.MAXIMUM_PACKET_SIZE, 0),
        p.prop(p.REQUEST_RESPONSE_INFORMATION, 2),
        p.prop(p.REQUEST_PROBLEM_INFORMATION, 255),
        p.prop(p.AUTHENTICATION_DATA, b"without method"),
    ],
    ids=["receive-maximum", "packet-size", "response", "problem", "data-without-method"],
)
def test_property_with_a_value_that_must_not_be(clients: Clients5, one: bytes) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), properties=one))
    client.expect_refused(PROTOCOL_ERROR)


@pytest.mark.mqtt5("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "one",
    [
        b"\x00",
        b"\x7f\x00",
        b"\xff\x7f\x00",
        p.prop(p.ASSIGNED_CLIENT_IDENTIFIER, "x"),
        p.prop(p.SERVER_KEEP_ALIVE, 5),
        p.prop(p.REASON_STRING, "x"),
        p.prop(p.TOPIC_ALIAS, 1),
        p.prop(p.SUBSCRIPTION_IDENTIFIER, 1),
        p.prop(p.WILL_DELAY, 1),
        p.prop(p.MESSAGE_EXPIRY, 1),
        p.prop(p.MAXIMUM_QOS, 1),
    ],
    ids=["0", "7F", "two-bytes", "12", "13", "1F", "23", "0B", "18", "02", "24"],
)
def test_property_that_no_connect_has(clients: Clients5, one: bytes) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), properties=one))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-1.5.5-1", "MQTT-3.1.4-1")
@pytest.mark.parametrize(
    "length", [b"\x80\x00", b"\x80\x80\x00", b"\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x01"]
)
def test_property_length_in_too_many_bytes(clients: Clients5, length: bytes) -> None:
    client = clients.raw5()
    head = HEAD + b"\x02\x00\x00" + length
    client.send(packets.packet(CONNECT, 0, head + packets.text(unique("c"))))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "one",
    [
        p.prop(p.WILL_DELAY, 5),
        p.prop(p.PAYLOAD_FORMAT, 1),
        p.prop(p.MESSAGE_EXPIRY, 5),
        p.prop(p.CONTENT_TYPE, "t"),
        p.prop(p.RESPONSE_TOPIC, "r"),
        p.prop(p.CORRELATION_DATA, b"d"),
    ],
    ids=["18", "01", "02", "03", "08", "09"],
)
def test_property_of_a_will_twice(clients: Clients5, topic: str, one: bytes) -> None:
    watcher = clients.listening(topic)
    client = clients.raw5()
    client.send(p.connect(unique("c"), will=Will(topic, properties=one + one)))
    client.expect_refused(PROTOCOL_ERROR)
    watcher.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "one",
    [p.prop(p.SESSION_EXPIRY, 5), p.prop(p.TOPIC_ALIAS, 1), p.prop(p.SUBSCRIPTION_IDENTIFIER, 1)],
    ids=["11", "23", "0B"],
)
def test_property_that_no_will_has(clients: Clients5, topic: str, one: bytes) -> None:
    client = clients.raw5()
    client.send(p.connect(unique("c"), will=Will(topic, properties=one)))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt5("MQTT-1.5.7-1")
def test_user_properties_may_repeat(clients: Clients5) -> None:
    pairs = ((p.USER_PROPERTY, ("same", "1")),) * 3 + ((p.USER_PROPERTY, ("", "")),)
    clients.five(properties=pairs).expect_alive()


# ------------------------------------------------------- client identifiers


@pytest.mark.mqtt5("MQTT-3.1.3-5", "MQTT-3.1.4-5", "MQTT-3.1.3-3")
@pytest.mark.parametrize(
    "client_id",
    ["q", "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ"],
)
def test_every_client_identifier_that_must_be_allowed(clients: Clients5, client_id: str) -> None:
    clients.five(client_id).expect_alive()


@pytest.mark.mqtt5("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
@pytest.mark.parametrize("clean", [True, False])
def test_client_without_an_identifier_is_assigned_one(
    clients: Clients5, topic: str, *, clean: bool
) -> None:
    keep = ((p.SESSION_EXPIRY, 100),)
    first = clients.five("", clean=clean, properties=keep)
    other = clients.five("", clean=clean)
    name = first.connack.get(p.ASSIGNED_CLIENT_IDENTIFIER)
    assert isinstance(name, str)
    assert name
    assert other.connack.get(p.ASSIGNED_CLIENT_IDENTIFIER) not in {name, None, ""}
    assert first.subscribe((topic, 1)) == (1,)
    first.leave()
    again = clients.five(name, clean=False, session_present=True)
    assert again.connack.get(p.ASSIGNED_CLIENT_IDENTIFIER) is None
    again.publish(topic, b"mine")
    again.expect_message(topic, b"mine")


@pytest.mark.mqtt5("MQTT-3.1.3-8", "MQTT-3.2.2-8")
@pytest.mark.usefixtures("foldmq_only")
def test_identifier_that_is_refused(clients: Clients5) -> None:
    client = clients.raw5()
    client.send(p.connect("$nats"))  # that of the bridge
    client.expect_refused(0x85)


@pytest.mark.mqtt5("MQTT-3.1.3-2")
def test_the_identifier_names_the_session(clients: Clients5, topic: str) -> None:
    one = clients.five(f"{topic}a", properties=((p.SESSION_EXPIRY, 100),))
    two = clients.five(f"{topic}b", properties=((p.SESSION_EXPIRY, 100),))
    assert one.subscribe((f"{topic}/1", 0)) == (0,)
    assert two.subscribe((f"{topic}/2", 0)) == (0,)
    one.leave()
    two.leave()
    one = clients.five(f"{topic}a", clean=False, session_present=True)
    two = clients.five(f"{topic}b", clean=False, session_present=True)
    one.publish(f"{topic}/1", b"1")
    one.publish(f"{topic}/2", b"2")
    one.expect_message(f"{topic}/1", b"1")
    two.expect_message(f"{topic}/2", b"2")
    one.expect_nothing()
    two.expect_nothing()


# ------------------------------------------------------ users and passwords


@pytest.mark.mqtt5("MQTT-3.1.3-1", "MQTT-3.1.2-9", "MQTT-3.1.2-17", "MQTT-3.1.2-19")
def test_all_fields_in_their_order(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    client = clients.five(
        will=Will(topic, b"\0\xffany bytes", properties=((p.CONTENT_TYPE, "bytes"),)),
        username="user name",
        password=b"\0\xffbinary",
        properties=((p.SESSION_EXPIRY, 0), (p.RECEIVE_MAXIMUM, 9)),
    )
    client.close()
    watcher.expect_message(topic, b"\0\xffany bytes", properties=((p.CONTENT_TYPE, "bytes"),))


@pytest.mark.mqtt5("MQTT-3.1.2-16", "MQTT-3.1.2-19")
def test_password_without_a_user_name(clients: Clients5) -> None:
    """Other than in MQTT 3.1.1 that is allowed (section 3.1.2.9)."""
    clients.five(password=b"token").expect_alive()


# --------------------------------------------------------- after the CONNECT


@pytest.mark.mqtt5("MQTT-3.2.0-1", "MQTT-3.1.4-5")
def test_packets_sent_before_the_connack_are_served_after_it(clients: Clients5, topic: str) -> None:
    client = clients.raw5()
    client.send(
        p.connect(unique("c")),
        p.subscribe(1, (topic, 0)),
        p.publish(topic, b"early", 1, 2),
        packets.pingreq(),
    )
    client.expect_answer(CONNACK)
    client.expect_answer(SUBACK, 1, codes=(0,))
    received = [client.receive() for _ in range(3)]
    assert p.Publish(topic, b"early") in received
    assert Pingresp() in received
    assert [one.kind for one in received if isinstance(one, Answer)] == [PUBACK]


@pytest.mark.mqtt5("MQTT-3.1.4-6", "MQTT-3.2.2-7", "MQTT-3.1.2-8")
def test_nothing_after_a_refused_connect_is_processed(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    client = clients.raw5()
    client.send(
        p.connect(unique("c"), will=Will(topic, b"will"), properties=p.prop(p.RECEIVE_MAXIMUM, 0)),
        p.publish(topic, b"after refusal", retain=True),
        p.subscribe(1, (topic, 0)),
        packets.pingreq(),
    )
    client.expect_refused(PROTOCOL_ERROR)
    watcher.expect_nothing()
    clients.listening(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-4.12.0-1", "MQTT-4.12.0-4", "MQTT-3.2.2-7")
def test_unknown_authentication_method(clients: Clients5) -> None:
    client = clients.raw5()
    method = (p.AUTHENTICATION_METHOD, "no such method")
    client.send(p.connect(unique("c"), properties=(method, (p.AUTHENTICATION_DATA, b"x"))))
    client.expect_refused(0x8C, 0x87)


@pytest.mark.mqtt5("MQTT-4.12.0-6", "MQTT-4.12.0-7", "MQTT-4.13.1-1")
def test_auth_without_a_method_in_the_connect(clients: Clients5) -> None:
    client = clients.five()
    assert client.connack.get(p.AUTHENTICATION_METHOD) is None
    assert client.connack.get(p.AUTHENTICATION_DATA) is None
    client.send(p.auth(0x19, ((p.AUTHENTICATION_METHOD, "X"),)))
    client.expect_ended(PROTOCOL_ERROR)


# ------------------------------------------------------------------ takeover


@pytest.mark.mqtt5("MQTT-3.1.4-3", "MQTT-3.1.4-4", "MQTT-3.14.4-1", "MQTT-3.14.4-2")
@pytest.mark.parametrize("first_clean", [True, False])
@pytest.mark.parametrize("second_clean", [True, False])
@pytest.mark.parametrize("expiry", [0, 100])
def test_the_older_connection_gets_disconnect_at_a_takeover(
    clients: Clients5, topic: str, *, first_clean: bool, second_clean: bool, expiry: int
) -> None:
    keep = ((p.SESSION_EXPIRY, expiry),)
    first = clients.five(topic, clean=first_clean, properties=keep)
    present = not second_clean and expiry > 0
    second = clients.raw5()
    found = second.connect(topic, clean=second_clean, properties=keep)
    assert found.code == 0
    if expiry or second_clean:  # else the session may end with its connection, or go on in the new
        assert found.session_present == present
    first.expect_ended(0x8E)
    second.expect_alive()


@pytest.mark.mqtt5("MQTT-3.1.4-3")
def test_takeover_from_level_4_and_by_level_4(clients: Clients5, topic: str) -> None:
    old = clients.connect(topic, clean=False)
    new = clients.five(
        topic, clean=False, session_present=True, properties=((p.SESSION_EXPIRY, 100),)
    )
    old.expect_closed()
    old = clients.connect(topic, clean=False, session_present=True)
    new.expect_ended(0x8E)
    old.expect_alive()
