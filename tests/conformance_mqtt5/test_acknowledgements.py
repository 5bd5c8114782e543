"""Sections 3.4 to 3.7 and 4.3: acknowledgements, their reason codes, both ways."""

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_rawclient import Clients5, RawClient5
from harness.packets import PUBACK, PUBCOMP, PUBREC, PUBREL

KEEP = ((p.SESSION_EXPIRY, 100),)
REASONS = (
    (p.REASON_STRING, "because"),
    (p.USER_PROPERTY, ("a", "1")),
    (p.USER_PROPERTY, ("a", "1")),
)
REFUSALS = [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]
UNKNOWN = 0x92


def delivered(clients: Clients5, topic: str, qos: int) -> tuple[RawClient5, int]:
    """A client of a session that is kept, and the identifier of a delivery to it."""
    client = clients.kept(topic, topic, qos)
    clients.five().publish(topic, b"x", qos)
    number = client.expect_message(topic, b"x", qos).packet_id
    assert number is not None
    return client, number


# -------------------------------------------------------- server as receiver


@pytest.mark.mqtt5(
    "MQTT-4.3.3-8", "MQTT-4.3.3-11", "MQTT-2.2.1-5", "MQTT-3.5.2-1", "MQTT-3.7.2-1", "MQTT-3.3.4-1"
)
@pytest.mark.parametrize(
    ("number", "release"),
    [
        (1, (None, None)),
        (300, (0, None)),
        (65_535, (0, ())),
        (1, (0, REASONS)),
        (300, (UNKNOWN, None)),
    ],
    ids=["short", "code", "block", "reasons", "unknown"],
)
def test_qos_2_from_a_client(
    clients: Clients5, topic: str, number: int, release: tuple[int | None, p.Properties | None]
) -> None:
    """Every form of PUBREL releases the identifier."""
    subscriber, client = clients.listening(topic, 2), clients.five()
    client.send(p.publish(topic, b"x", 2, number))
    client.expect_answer(PUBREC, number)
    client.send(p.acknowledge(PUBREL, number, *release))
    client.expect_answer(PUBCOMP, number)
    if release[0] != UNKNOWN:
        subscriber.acknowledge(subscriber.expect_message(topic, b"x", 2))
    client.send(p.acknowledge(PUBREL, number))
    client.expect_answer(PUBCOMP, number, UNKNOWN)


@pytest.mark.mqtt5("MQTT-4.3.3-10", "MQTT-4.3.3-8")
@pytest.mark.parametrize("dup", [False, True])
def test_again_before_pubrel_is_not_delivered_twice(
    clients: Clients5, topic: str, *, dup: bool
) -> None:
    subscriber, client = clients.listening(topic, 2), clients.five()
    for number in range(4):
        client.send(p.publish(topic, b"once", 2, 4, dup=dup and number > 0))
        answer = client.receive()
        assert isinstance(answer, p.Answer)
        assert (answer.kind, answer.packet_id, answer.code in {0, 0x10}) == (PUBREC, 4, True)
    client.release(4)
    subscriber.acknowledge(subscriber.expect_message(topic, b"once", 2))
    subscriber.expect_nothing()


@pytest.mark.mqtt5("MQTT-4.3.3-12", "MQTT-4.3.3-11")
def test_after_pubcomp_it_is_a_new_message(clients: Clients5, topic: str) -> None:
    subscriber, client = clients.listening(topic, 2), clients.five()
    for payload, dup in ((b"same", False), (b"same", True), (b"other", False)):
        client.publish(topic, payload, 2, packet_id=8, dup=dup)
        subscriber.acknowledge(subscriber.expect_message(topic, payload, 2))


@pytest.mark.mqtt5("MQTT-3.7.2-1", "MQTT-4.3.3-11")
@pytest.mark.parametrize("code", [None, 0, UNKNOWN])
def test_pubrel_with_an_unknown_identifier(clients: Clients5, code: int | None) -> None:
    client = clients.five()
    client.send(p.acknowledge(PUBREL, 4711, code))
    client.expect_answer(PUBCOMP, 4711, UNKNOWN)
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.7.2-1")
def test_pubrel_twice_in_one_write(clients: Clients5, topic: str) -> None:
    client = clients.five()
    client.send(p.publish(topic, b"x", 2, 5))
    client.expect_answer(PUBREC, 5)
    client.send(p.acknowledge(PUBREL, 5), p.acknowledge(PUBREL, 5))
    client.expect_answer(PUBCOMP, 5)
    client.expect_answer(PUBCOMP, 5, UNKNOWN)


# ---------------------------------------------------------- server as sender


@pytest.mark.mqtt5("MQTT-4.3.2-3", "MQTT-3.4.2-1", "MQTT-2.2.1-4")
@pytest.mark.parametrize(
    "form",
    [(None, None), (0, None), (0, ()), (0, REASONS), (0x10, None), (0x10, REASONS)],
    ids=["short", "code", "block", "reasons", "nobody", "nobody-reasons"],
)
def test_every_form_of_puback(
    clients: Clients5, topic: str, form: tuple[int | None, p.Properties | None]
) -> None:
    client, number = delivered(clients, topic, 1)
    client.send(p.acknowledge(PUBACK, number, *form))
    client.expect_alive()
    client.reset()
    clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-4.4.0-2", "MQTT-3.4.2-1")
def test_puback_that_refuses_ends_the_delivery(clients: Clients5, topic: str) -> None:
    client = clients.kept(topic, topic, 1)
    publisher = clients.five()
    for code in REFUSALS:
        publisher.publish(topic, b"x", 1)
        number = client.expect_message(topic, b"x", 1).packet_id
        client.send(p.acknowledge(PUBACK, number, code, REASONS))
        client.expect_alive()
    client.reset()
    clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-4.4.0-2", "MQTT-3.5.2-1", "MQTT-4.3.3-4", "MQTT-4.3.3-9")
def test_pubrec_that_refuses_ends_the_delivery(clients: Clients5, topic: str) -> None:
    """No PUBREL follows, the message is not sent again, and its identifier is free."""
    client = clients.kept(topic, topic, 2)
    publisher = clients.five()
    for code in REFUSALS:
        publisher.publish(topic, b"x", 2)
        number = client.expect_message(topic, b"x", 2).packet_id
        client.send(p.acknowledge(PUBREC, number, code))
        client.expect_alive()
    client.expect_nothing()
    client.reset()
    client = clients.resumed(topic)
    client.expect_nothing()
    publisher.publish(topic, b"next", 2)
    client.acknowledge(client.expect_message(topic, b"next", 2))


@pytest.mark.mqtt5("MQTT-4.3.3-4", "MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-3.6.2-1", "MQTT-2.2.1-4")
@pytest.mark.parametrize(
    "form",
    [(None, None), (0, None), (0, ()), (0, REASONS), (0x10, None), (0x10, REASONS)],
    ids=["short", "code", "block", "reasons", "nobody", "nobody-reasons"],
)
def test_every_form_of_pubrec_and_pubcomp(
    clients: Clients5, topic: str, form: tuple[int | None, p.Properties | None]
) -> None:
    client, number = delivered(clients, topic, 2)
    client.send(p.acknowledge(PUBREC, number, *form))
    client.expect_answer(PUBREL, number)
    code = form[0] and 0
    client.send(p.acknowledge(PUBCOMP, number, code, form[1]))
    client.expect_alive()
    client.reset()
    clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-4.3.3-4")
def test_pubrec_again_is_answered_again(clients: Clients5, topic: str) -> None:
    client, number = delivered(clients, topic, 2)
    for _ in range(2):
        client.send(p.acknowledge(PUBREC, number))
        client.expect_answer(PUBREL, number)
    client.send(p.acknowledge(PUBCOMP, number))
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.6.2-1", "MQTT-3.4.2-1")
def test_acknowledgements_with_unknown_identifiers(clients: Clients5) -> None:
    """A client that lost its state may answer what the server has forgotten."""
    client = clients.five()
    client.send(p.acknowledge(PUBREC, 998))
    client.expect_answer(PUBREL, 998, UNKNOWN)
    client.send(p.acknowledge(PUBREC, 997, 0x80))
    client.send(p.acknowledge(PUBACK, 999), p.acknowledge(PUBACK, 999, 0x80))
    client.send(p.acknowledge(PUBCOMP, 999), p.acknowledge(PUBCOMP, 999, UNKNOWN))
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.6.2-1")
def test_pubrec_for_a_message_of_qos_1(clients: Clients5, topic: str) -> None:
    """The delivery still waits for its PUBACK."""
    client, number = delivered(clients, topic, 1)
    client.send(p.acknowledge(PUBREC, number))
    client.expect_answer(PUBREL, number, UNKNOWN)
    client.reset()
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"x", 1, dup=True))


@pytest.mark.mqtt5("MQTT-3.6.2-1", "MQTT-4.3.3-4")
def test_pubrec_after_one_with_an_error(clients: Clients5, topic: str) -> None:
    """The delivery has ended, and is not released as well."""
    client, number = delivered(clients, topic, 2)
    client.send(p.acknowledge(PUBREC, number, 0x80), p.acknowledge(PUBREC, number, 0))
    client.expect_answer(PUBREL, number, UNKNOWN)
    client.expect_alive()
    client.reset()
    clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-3.7.2-1", "MQTT-4.3.3-5")
def test_pubcomp_of_an_unknown_identifier_ends_the_exchange(clients: Clients5, topic: str) -> None:
    client, number = delivered(clients, topic, 2)
    client.send(p.acknowledge(PUBREC, number))
    client.expect_answer(PUBREL, number)
    client.send(p.acknowledge(PUBCOMP, number, UNKNOWN))
    client.expect_alive()
    client.reset()
    clients.resumed(topic).expect_nothing()


@pytest.mark.mqtt5("MQTT-4.3.2-1", "MQTT-4.3.3-1", "MQTT-2.2.1-4", "MQTT-4.3.3-2", "MQTT-4.3.2-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_that_are_in_use_are_not_used(clients: Clients5, topic: str, qos: int) -> None:
    client, held = delivered(clients, topic, qos)
    publisher = clients.five()
    used = {held}
    for index in range(40):
        publisher.publish(topic, b"%d" % index, qos)
        message = client.expect_message(topic, b"%d" % index, qos)
        assert message.packet_id not in used
        if index % 2:
            client.acknowledge(message)
        else:
            assert message.packet_id is not None
            used.add(message.packet_id)
            if qos == 2:
                client.send(p.acknowledge(PUBREC, message.packet_id))
                client.expect_answer(PUBREL, message.packet_id)


# ----------------------------------------------------------------- malformed


@pytest.mark.mqtt5("MQTT-4.13.1-1", "MQTT-3.14.4-1", "MQTT-4.3.2-4")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_packets_before_a_malformed_packet_are_processed(
    clients: Clients5, topic: str, qos: int
) -> None:
    """What stands behind it is not, and the connection ends with the reason alone."""
    watcher = clients.listening(topic)
    client = clients.five()
    number = 5 if qos else None
    client.send(
        p.publish(topic, b"before", qos, number),
        *([p.acknowledge(PUBREL, 5)] if qos == 2 else []),
        p.publish(topic, b"bad", properties=b"\x7f\x00"),
        p.publish(topic, b"behind", 0),
    )
    if qos == 1:
        client.expect_answer(PUBACK, 5)
    if qos == 2:
        client.expect_answer(PUBREC, 5)
        client.expect_answer(PUBCOMP, 5)
    client.expect_ended(0x81)
    watcher.expect_message(topic, b"before")
    watcher.expect_nothing()
