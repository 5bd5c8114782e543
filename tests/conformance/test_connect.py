"""Sections 3.1 and 3.2: CONNECT and CONNACK."""

import string

import pytest
from harness import packets as p
from harness.fixtures import Clients, unique
from harness.packets import Connack, Pingresp, Puback, Suback, Will

# ------------------------------------------------------------ first packet


@pytest.mark.mqtt("MQTT-3.1.0-2", "MQTT-4.8.0-1", "MQTT-3.1.2-8")
def test_second_connect_closes_and_the_will_is_sent(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect(topic, will=Will(topic, b"twice"))
    client.send(p.connect(topic))
    client.expect_closed()
    watcher.expect_publish(topic, b"twice")


@pytest.mark.mqtt("MQTT-3.1.0-2")
def test_second_connect_in_the_same_segment_closes(clients: Clients) -> None:
    client = clients.raw()
    name = unique("c")
    client.send(p.connect(name), p.connect(name))
    received = client.receive_all(2.0)
    assert received in ([], [Connack(0)])
    client.expect_closed()


# -------------------------------------------------------- malformed CONNECT


@pytest.mark.mqtt("MQTT-3.1.3-1", "MQTT-3.1.2-9", "MQTT-3.1.2-19", "MQTT-3.1.2-21")
def test_all_fields_in_their_order(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic, 2)
    client = clients.connect(
        unique("c"),
        will=Will(topic, b"\0\xffany bytes", qos=1),
        username="user name",
        password=b"\0\xffbinary",
    )
    client.close()
    watcher.acknowledge(watcher.expect_publish(topic, b"\0\xffany bytes", 1))


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.2-9")
def test_empty_will_message_and_empty_password(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic)
    client = clients.connect(unique("c"), will=Will(topic, b""), username="u", password=b"")
    client.close()
    watcher.expect_publish(topic, b"")


# ------------------------------------------------------- client identifiers


@pytest.mark.mqtt("MQTT-3.1.3-5", "MQTT-3.1.3-3", "MQTT-3.1.4-4")
@pytest.mark.parametrize(
    "client_id",
    [
        "q",
        "0123456789abcdefghijklm",
        "nopqrstuvwxyzABCDEFGHIJ",
        "KLMNOPQRSTUVWXYZ",
        string.digits,
    ],
)
def test_every_client_identifier_that_must_be_allowed(clients: Clients, client_id: str) -> None:
    clients.connect(client_id).expect_alive()


@pytest.mark.mqtt("MQTT-3.1.3-5")
@pytest.mark.usefixtures("foldmq_only")
@pytest.mark.parametrize("client_id", ["a b.c/+#>*$", "\u00fc\u4e2d\U0001f600", "x" * 2000])
def test_other_client_identifiers_are_allowed_too(clients: Clients, client_id: str) -> None:
    clients.connect(unique("c") + client_id).expect_alive()


@pytest.mark.mqtt("MQTT-3.1.3-6", "MQTT-3.2.2-1")
def test_empty_client_identifier_gets_a_unique_one(clients: Clients) -> None:
    first, second = clients.connect(""), clients.connect("")
    first.expect_alive()
    second.expect_alive()


@pytest.mark.mqtt("MQTT-3.1.4-5")
def test_nothing_after_a_refused_connect_is_processed(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic)
    client = clients.raw()
    client.send(
        p.connect("", clean=False),
        p.publish(topic, b"after refusal", 0, retain=True),
        p.subscribe(1, (topic, 0)),
        p.pingreq(),
    )
    client.expect(Connack(2))
    client.expect_closed()
    watcher.expect_nothing()
    clients.subscribed(topic).expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.4-5", "MQTT-3.1.2-8")
def test_will_of_a_refused_connect_is_not_sent(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic)
    client = clients.raw()
    assert client.connect("", clean=False, will=Will(topic, b"no")) == Connack(2)
    client.expect_closed()
    watcher.expect_nothing()


@pytest.mark.mqtt("MQTT-3.1.4-4", "MQTT-3.2.0-1")
def test_packets_sent_before_the_connack_are_served_after_it(clients: Clients, topic: str) -> None:
    client = clients.raw()
    client.send(
        p.connect(unique("c")),
        p.subscribe(1, (topic, 0)),
        p.publish(topic, b"early", 1, 2),
        p.pingreq(),
    )
    client.expect(Connack(0))
    client.expect(Suback(1, (0,)))
    received = [client.receive() for _ in range(3)]
    assert p.Publish(topic, b"early") in received
    assert Puback(2) in received
    assert Pingresp() in received


# ------------------------------------------------------------------ takeover


@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.1.3-2")
@pytest.mark.parametrize("first_clean", [True, False])
@pytest.mark.parametrize("second_clean", [True, False])
def test_same_client_identifier_takes_over(
    clients: Clients, topic: str, *, first_clean: bool, second_clean: bool
) -> None:
    first = clients.connect(topic, clean=first_clean)
    present = not (first_clean or second_clean)
    second = clients.connect(topic, clean=second_clean, session_present=present)
    first.expect_closed()
    second.expect_alive()


@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.1.2-8")
def test_takeover_sends_the_will_of_the_old_connection(clients: Clients, topic: str) -> None:
    watcher = clients.subscribed(topic)
    first = clients.connect(topic, will=Will(topic, b"first"))
    second = clients.connect(topic, will=Will(topic, b"second"))
    first.expect_closed()
    watcher.expect_publish(topic, b"first")
    watcher.expect_nothing()
    second.close()
    watcher.expect_publish(topic, b"second")


@pytest.mark.mqtt("MQTT-3.1.4-2")
@pytest.mark.usefixtures("foldmq_only")
def test_two_clients_with_one_identifier_are_throttled(clients: Clients, topic: str) -> None:
    """Each takeover costs about a second, so that the pair cannot spin the broker."""
    answered = 0
    bystander = clients.connect()
    for _ in range(30):
        contender = clients.raw()
        contender.send(p.connect(topic))
        answered += len(contender.receive_all(0.05))
    bystander.expect_alive()
    assert answered <= 20, f"{answered} of 30 takeovers in a row were answered at once"


# ------------------------------------------------------------------- CONNACK


@pytest.mark.mqtt("MQTT-3.2.2-1", "MQTT-3.1.4-3", "MQTT-3.1.4-4")
def test_clean_session_never_has_a_session_present(clients: Clients, topic: str) -> None:
    clients.connect(topic, clean=True).disconnect()
    clients.connect(topic, clean=True).disconnect()
    clients.connect(topic, clean=False).disconnect()
    clients.connect(topic, clean=True).disconnect()


@pytest.mark.mqtt("MQTT-3.2.2-2", "MQTT-3.2.2-3", "MQTT-3.1.4-3")
def test_session_present_is_set_if_state_was_stored(clients: Clients, topic: str) -> None:
    clients.connect(topic, clean=False, session_present=False).disconnect()
    clients.connect(topic, clean=False, session_present=True).close()
    clients.connect(topic, clean=False, session_present=True).disconnect()
    clients.connect(topic, clean=True, session_present=False).disconnect()
    clients.connect(topic, clean=False, session_present=False).disconnect()


# ---------------------------------------------------------------- keep alive


@pytest.mark.mqtt("MQTT-3.1.2-24", "MQTT-3.1.2-23", "MQTT-3.1.2-8")
def test_keep_alive(clients: Clients, topic: str) -> None:
    """A silent client is cut as if the network had failed; others are not."""
    watcher = clients.subscribed(topic)
    pinging = clients.connect(keepalive=1)
    publishing = clients.connect(keepalive=1)
    unlimited = clients.connect(keepalive=0)
    silent = clients.connect(keepalive=1, will=Will(topic, b"silent"))
    for _ in range(40):
        pinging.expect_alive()
        publishing.send(p.publish(f"{topic}/alive", b""))
        try:
            silent.expect_nothing(0.2)
        except AssertionError:
            break
    else:
        pytest.fail("a keep alive of 1 s did not end the connection within 8 s")
    watcher.expect_publish(topic, b"silent")
    for client in (pinging, publishing, unlimited):
        client.expect_alive()


@pytest.mark.mqtt("MQTT-3.1.2-24")
def test_an_endless_packet_does_not_extend_the_keep_alive(clients: Clients, topic: str) -> None:
    """Bytes are no packet; one that is large and on its way at a good rate is let finish."""
    watcher = clients.subscribed(topic)
    trickling = clients.connect(keepalive=1, will=Will(topic, b"cut"))
    trickling.send(p.publish(topic, bytes(10_000))[:8])
    large = clients.connect(keepalive=1)
    packet = p.publish(f"{topic}/large", bytes(100_000), 1, 1)
    for at in range(0, 40_000, 1_000):
        large.send(packet[at : at + 1_000])
        try:
            trickling.send(b"\0")
            trickling.expect_nothing(0.2)
        except (AssertionError, ConnectionError):
            break
    else:
        pytest.fail("a keep alive of 1 s did not end the connection within 8 s")
    watcher.expect_publish(topic, b"cut")
    large.send(packet[at + 1_000 :])
    large.expect(Puback(1))
    large.expect_alive()


# ------------------------------------------------------------------ MQTT 3.1


def test_mqtt_3_1_is_served(clients: Clients, topic: str) -> None:
    old = clients.connect(unique("c"), protocol="MQIsdp", level=3)
    assert old.subscribe((topic, 2), (f"{topic}/+", 1)) == (2, 1)
    new = clients.connect()
    for qos in (0, 1, 2):
        new.publish(topic, b"to 3.1", qos)
        old.acknowledge(old.expect_publish(topic, b"to 3.1", qos))
    assert new.subscribe((f"{topic}/back", 2)) == (2,)
    old.unsubscribe(f"{topic}/+")
    for qos in (0, 1, 2):
        old.publish(f"{topic}/back", b"from 3.1", qos)
        new.acknowledge(new.expect_publish(f"{topic}/back", b"from 3.1", qos))
    old.expect_alive()


def test_mqtt_3_1_has_persistent_sessions_and_no_session_present(
    clients: Clients, topic: str
) -> None:
    old = clients.connect(topic, clean=False, protocol="MQIsdp", level=3)
    assert old.subscribe((topic, 1)) == (1,)
    old.disconnect()
    clients.connect().publish(topic, b"kept", 1)
    again = clients.connect(topic, clean=False, protocol="MQIsdp", level=3, session_present=False)
    again.acknowledge(again.expect_publish(topic, b"kept", 1))
