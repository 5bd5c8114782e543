"""Section 3.1: CONNECT."""

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.fixtures import unique
from harness.mqtt5_packets import Answer, Will
from harness.mqtt5_rawclient import Clients5
from harness.packets import CONNACK, PUBACK, SUBACK, Pingresp

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


# ------------------------------------------------------------ first packet


@pytest.mark.mqtt5("MQTT-3.1.0-2", "MQTT-3.2.0-2", "MQTT-4.13.1-1", "MQTT-3.1.2-8")
def test_second_connect_is_a_protocol_error(clients: Clients5, topic: str) -> None:
    watcher = clients.listening(topic)
    client = clients.five(topic, will=Will(topic, b"twice"))
    client.send(p.connect(topic))
    client.expect_ended(PROTOCOL_ERROR)
    watcher.expect_message(topic, b"twice")


# -------------------------------------------------------------- properties


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
    again = clients.resumed(name)
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
    one = clients.resumed(f"{topic}a")
    two = clients.resumed(f"{topic}b")
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
