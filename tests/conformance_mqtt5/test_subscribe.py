"""Sections 3.8 to 3.11: SUBSCRIBE and UNSUBSCRIBE, their options and their answers."""

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.fixtures import unique
from harness.mqtt5_packets import Answer, Publish
from harness.mqtt5_rawclient import Clients5, OwnBroker, RawClient5
from harness.packets import PUBCOMP, PUBREC, PUBREL, SUBACK, UNSUBACK

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
NO_LOCAL, AS_PUBLISHED, IF_NEW, NEVER = 0x04, 0x08, 0x10, 0x20
KEEP = ((p.SESSION_EXPIRY, 100),)


def identified(number: int) -> p.Properties:
    return ((p.SUBSCRIPTION_IDENTIFIER, number),)


# --------------------------------------------------------------- its answer


@pytest.mark.mqtt5(
    "MQTT-3.8.4-1",
    "MQTT-3.8.4-2",
    "MQTT-2.2.1-6",
    "MQTT-3.8.4-5",
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-7",
    "MQTT-3.9.3-1",
    "MQTT-3.9.3-2",
)
@pytest.mark.parametrize("number", [1, 300, 65_535])
def test_suback(clients: Clients5, topic: str, number: int) -> None:
    client = clients.five()
    filters = [(f"{topic}/{qos}/{index}", qos) for index in range(3) for qos in (2, 0, 1)]
    client.send(p.subscribe(number, *filters))
    client.expect_answer(SUBACK, number, codes=[qos for _, qos in filters])


@pytest.mark.mqtt5("MQTT-3.8.4-8", "MQTT-3.8.4-7")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_the_lower_qos(clients: Clients5, topic: str, granted: int, published: int) -> None:
    client = clients.listening(topic, granted)
    clients.five().publish(topic, b"x", published)
    client.acknowledge(client.expect_message(topic, b"x", min(granted, published)))


@pytest.mark.mqtt5(
    "MQTT-3.10.4-1",
    "MQTT-3.10.4-4",
    "MQTT-3.10.4-5",
    "MQTT-3.10.4-6",
    "MQTT-2.2.1-6",
    "MQTT-3.11.3-1",
    "MQTT-3.11.3-2",
)
def test_unsuback_has_a_reason_code_for_each_filter(clients: Clients5, topic: str) -> None:
    client = clients.listening(f"{topic}/a")
    assert client.subscribe((f"{topic}/b/#", 1)) == (1,)
    filters = (f"{topic}/never", f"{topic}/a", f"{topic}/b/+", f"{topic}/b/#", f"{topic}/a")
    client.send(p.unsubscribe(777, *filters))
    client.expect_answer(UNSUBACK, 777, codes=(0x11, 0x00, 0x11, 0x00, 0x11))
    client.publish(f"{topic}/a")
    client.publish(f"{topic}/b/c")
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.10.4-1", "MQTT-4.7.3-4")
@pytest.mark.parametrize("other", ["T", "t/", "/t", "t/#", "+", " t"])
def test_filters_are_compared_character_by_character(
    clients: Clients5, topic: str, other: str
) -> None:
    client = clients.listening(f"{topic}/t")
    assert client.unsubscribe(f"{topic}/{other}") == (0x11,)
    client.publish(f"{topic}/t", b"still")
    client.expect_message(f"{topic}/t", b"still")
    assert client.unsubscribe(f"{topic}/t") == (0x00,)


@pytest.mark.mqtt5("MQTT-3.10.4-2", "MQTT-3.10.4-3")
def test_deliveries_that_were_begun_are_completed(clients: Clients5, topic: str) -> None:
    client = clients.kept(topic, topic, 2)
    clients.five().publish(topic, b"1", 1)
    clients.five().publish(topic, b"2", 2)
    one, two = client.expect_message(topic, b"1", 1), client.expect_message(topic, b"2", 2)
    assert client.unsubscribe(topic) == (0,)
    clients.five().publish(topic, b"3", 2)
    client.expect_nothing()
    client.reset()
    client = clients.resumed(topic)
    client.expect_message(topic, b"1", 1, dup=True)
    again = client.expect_message(topic, b"2", 2, dup=True)
    assert again.packet_id == two.packet_id
    client.acknowledge(one)
    client.acknowledge(two)
    client.expect_alive()


# ----------------------------------------------------------------- malformed


@pytest.mark.mqtt5("MQTT-1.5.7-1")
def test_user_properties_are_allowed(clients: Clients5, topic: str) -> None:
    client = clients.five()
    user = ((p.USER_PROPERTY, ("a", "1")), (p.USER_PROPERTY, ("a", "1")))
    client.send(p.subscribe(1, (topic, 0), properties=user))
    client.expect_answer(SUBACK, 1, codes=(0,))
    client.send(p.unsubscribe(2, topic, properties=user))
    client.expect_answer(UNSUBACK, 2, codes=(0,))


# --------------------------------------------------- subscription identifiers


def identifiers_of(client: RawClient5, topic: str, payload: bytes, copies: int = 1) -> set[int]:
    """The identifiers of a message, over the copies the server may make of it."""
    found: set[int] = set()
    for number in range(copies):
        try:
            message = client.receive() if not number else client.receive(0.2)
        except TimeoutError:
            break
        assert isinstance(message, p.Publish)
        assert (message.topic, message.payload) == (topic, payload)
        found |= message.identifiers
        client.acknowledge(message)
    return found


@pytest.mark.mqtt5("MQTT-3.3.4-3")
@pytest.mark.parametrize("number", [1, 127, 128, 16_384, 268_435_455])
def test_identifier_is_sent_with_the_message(clients: Clients5, topic: str, number: int) -> None:
    client = clients.listening(topic, 1, subscription=identified(number))
    plain = clients.listening(topic, 1)
    for qos in (0, 1):
        clients.five().publish(topic, b"x", qos, properties=((p.CONTENT_TYPE, "t"),))
        message = client.expect_message(topic, b"x", qos, properties=None)
        assert set(message.properties) == {(p.CONTENT_TYPE, "t"), *identified(number)}
        client.acknowledge(message)
        plain.acknowledge(
            plain.expect_message(topic, b"x", qos, properties=((p.CONTENT_TYPE, "t"),))
        )


@pytest.mark.mqtt5("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5")
@pytest.mark.parametrize("live", [True, False])
def test_overlapping_subscriptions(clients: Clients5, topic: str, *, live: bool) -> None:
    client = clients.five(topic, properties=KEEP)
    for number, (name, qos) in enumerate((("a/#", 1), ("+/b", 2), ("a/b", 0), ("c", 1)), 1):
        properties = identified(number) if number != 3 else ()
        assert client.subscribe((f"{topic}/{name}", qos), properties=properties) == (qos,)
    if not live:
        client.leave()
    clients.five().publish(f"{topic}/a/b", b"x", 2)
    if not live:
        client = clients.resumed(topic)
    messages = []
    while True:
        try:
            message = client.receive(8.0 if not messages else 0.2)
        except TimeoutError:
            break
        assert isinstance(message, p.Publish)
        messages.append(message)
        client.acknowledge(message)
    assert max(message.qos for message in messages) == 2
    assert set().union(*(message.identifiers for message in messages)) == {1, 2}
    if len(messages) == 1:
        assert messages[0].identifiers == {1, 2}
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.3.4-4")
@pytest.mark.parametrize("live", [True, False])
def test_one_identifier_for_several_filters_and_clients(
    clients: Clients5, topic: str, *, live: bool
) -> None:
    """A copy for two subscriptions has the identifier of both twice (section 3.3.4).

    That of another client goes to that client.
    """
    client, other = clients.five(topic, properties=KEEP), clients.five()
    client.subscribe((f"{topic}/#", 1), (f"{topic}/+", 1), properties=identified(7))
    other.subscribe((f"{topic}/#", 1), properties=identified(8))
    if not live:
        client.leave()
    clients.five().publish(f"{topic}/x", b"x", 1)
    if not live:
        client = clients.resumed(topic)
    found = client.receive_all()
    values: list[object] = []
    for message in found:
        assert isinstance(message, p.Publish)
        values += [value for key, value in message.properties if key == p.SUBSCRIPTION_IDENTIFIER]
    assert values == [7, 7]
    other.expect_message(f"{topic}/x", b"x", 1, properties=identified(8))


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.8.4-3")
def test_identifier_is_replaced_with_the_subscription(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, 1, subscription=identified(1))
    for properties in (identified(2), (), identified(3)):
        assert client.subscribe((topic, 1), properties=properties) == (1,)
        clients.five().publish(topic, b"x", 1)
        client.acknowledge(client.expect_message(topic, b"x", 1, properties=properties))


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.3.1-9")
def test_identifier_of_retained_messages(clients: Clients5, topic: str) -> None:
    """They carry that of the SUBSCRIBE that they answer."""
    clients.five().publish(topic, b"r", 1, retain=True)
    client = clients.five()
    assert client.subscribe((f"{topic}/#", 1), properties=identified(1)) == (1,)
    client.acknowledge(client.expect_message(topic, b"r", 1, retain=True, properties=identified(1)))
    assert client.subscribe((topic, 1), properties=identified(2)) == (1,)
    message = client.expect_message(topic, b"r", 1, retain=True, properties=None)
    assert message.identifiers == {2}
    client.acknowledge(message)
    clients.five().publish(topic, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.3.1-9", "MQTT-4.6.0-5")
@pytest.mark.parametrize("live", [True, False])
def test_identifier_of_retained_messages_that_wait_behind_others(
    clients: Clients5, topic: str, *, live: bool
) -> None:
    publisher, name = clients.five(), f"{topic}/x"
    publisher.publish(name, b"r", 1, retain=True)
    properties = (*KEEP, (p.RECEIVE_MAXIMUM, 1))
    client = clients.five(topic, properties=properties)
    assert client.subscribe((f"{topic}/#", 1 | 2 << 4), properties=identified(1)) == (1,)
    for number in range(3):
        publisher.publish(f"{topic}/y", b"%d" % number, 1)
    first = client.expect_message(f"{topic}/y", b"0", 1, properties=identified(1))
    assert client.subscribe((name, 1), properties=identified(2)) == (1,)
    publisher.publish(name, b"l", 1)
    if live:
        client.acknowledge(first)
    else:
        client.leave()
        client = clients.resumed(topic, properties)
        again = client.expect_message(f"{topic}/y", b"0", 1, dup=True, properties=identified(1))
        client.acknowledge(again)
    for number in (1, 2):
        wanted = f"{topic}/y", b"%d" % number, 1
        client.acknowledge(client.expect_message(*wanted, properties=identified(1)))
    client.acknowledge(client.expect_message(name, b"r", 1, retain=True, properties=identified(2)))
    message = client.expect_message(name, b"l", 1, properties=None)
    assert message.identifiers == {1, 2}
    client.acknowledge(message)
    publisher.publish(name, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.1.2-5")
def test_identifiers_are_kept_with_the_session(clients: Clients5, topic: str) -> None:
    client = clients.five(topic, properties=KEEP)
    assert client.subscribe((topic, 1), properties=identified(99)) == (1,)
    client.leave()
    clients.five().publish(topic, b"queued", 1)
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"queued", 1, properties=identified(99)))
    clients.five().publish(topic, b"live", 1)
    client.acknowledge(client.expect_message(topic, b"live", 1, properties=identified(99)))


# ------------------------------------------------------------------ no local


@pytest.mark.mqtt5("MQTT-3.8.3-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(clients: Clients5, topic: str, qos: int) -> None:
    client = clients.listening(topic, qos | NO_LOCAL)
    other = clients.listening(topic, qos)
    client.publish(topic, b"own", qos)
    other.acknowledge(other.expect_message(topic, b"own", qos))
    other.publish(topic, b"other's", qos)
    client.acknowledge(client.expect_message(topic, b"other's", qos))
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.8.3-3", "MQTT-3.3.4-2")
def test_no_local_on_one_of_two_filters(clients: Clients5, topic: str) -> None:
    """The other subscription has its copy, and its identifier alone."""
    client = clients.five()
    assert client.subscribe((topic, 2 | NO_LOCAL), properties=identified(1)) == (2,)
    assert client.subscribe((f"{topic}/#", 0), properties=identified(2)) == (0,)
    client.publish(topic, b"own")
    client.expect_message(topic, b"own", properties=identified(2))
    client.expect_nothing()
    clients.five().publish(topic, b"other's")
    assert identifiers_of(client, topic, b"other's", 2) == {1, 2}


@pytest.mark.mqtt5("MQTT-3.8.3-3", "MQTT-3.3.4-3")
@pytest.mark.parametrize("restart", [False, True])
def test_the_identifier_of_a_no_local_subscription_is_not_sent_with_queued_messages(
    own: OwnBroker, topic: str, *, restart: bool
) -> None:
    """What the client published itself waited for it, as it could not take more."""
    broker, clients = own()
    client = clients.five(topic, properties=(*KEEP, (p.RECEIVE_MAXIMUM, 1)))
    assert client.subscribe((topic, 1 | NO_LOCAL), properties=identified(1)) == (1,)
    assert client.subscribe((f"{topic}/#", 1), properties=identified(2)) == (1,)
    for payload in (b"1", b"2"):
        client.send(p.publish(topic, payload, 1, 7))
        if payload == b"1":
            first = client.receive_all(0.5)
    clients.five().publish(topic, b"other's", 1)
    message = next(one for one in first if isinstance(one, Publish))
    assert message.properties == identified(2)
    if restart:
        broker.kill()
        broker.start()
        client = clients.resumed(topic, KEEP)
        again = client.expect_message(topic, b"1", 1, dup=True, properties=identified(2))
        client.acknowledge(again)
    else:
        client.receive_all(0.5)
        client.acknowledge(message)
    client.acknowledge(client.expect_message(topic, b"2", 1, properties=identified(2)))
    last = client.expect_message(topic, b"other's", 1, properties=None)
    assert {value for key, value in last.properties if key == p.SUBSCRIPTION_IDENTIFIER} == {1, 2}


@pytest.mark.mqtt5("MQTT-3.8.3-3", "MQTT-3.8.4-3")
def test_no_local_is_replaced_with_the_subscription(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, NO_LOCAL)
    client.publish(topic, b"1")
    assert client.subscribe((topic, 0)) == (0,)
    client.publish(topic, b"2")
    client.expect_message(topic, b"2")
    assert client.subscribe((topic, NO_LOCAL)) == (0,)
    client.publish(topic, b"3")
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.8.3-3")
def test_no_local_is_kept_with_the_session(clients: Clients5, topic: str) -> None:
    client = clients.five(topic, properties=KEEP)
    assert client.subscribe((topic, 1 | NO_LOCAL)) == (1,)
    client.leave()
    client = clients.resumed(topic)
    client.publish(topic, b"own", 1)
    client.expect_nothing()
    clients.five().publish(topic, b"other's", 1)
    client.acknowledge(client.expect_message(topic, b"other's", 1))


@pytest.mark.mqtt5("MQTT-3.8.3-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_and_retained_messages(clients: Clients5, topic: str, qos: int) -> None:
    """A client is not sent those that it published itself, over connections too."""
    client = clients.five(topic, properties=KEEP)
    client.publish(f"{topic}/own", b"own", qos, retain=True)
    other = clients.five()
    other.publish(f"{topic}/other", b"other's", qos, retain=True)
    other.expect_nothing()  # its message is handled
    for again in (False, True):
        if again:
            client.leave()
            client = clients.resumed(topic)
        assert client.subscribe((f"{topic}/+", qos | NO_LOCAL)) == (qos,)
        client.acknowledge(client.expect_message(f"{topic}/other", b"other's", qos, retain=True))
        client.expect_nothing()
    assert client.subscribe((f"{topic}/own", qos)) == (qos,)
    client.acknowledge(client.expect_message(f"{topic}/own", b"own", qos, retain=True))


@pytest.mark.mqtt5("MQTT-3.8.3-3", "MQTT-3.8.4-4")
def test_retained_messages_for_a_filter_that_is_there_twice(clients: Clients5, topic: str) -> None:
    """First with No Local, and much later in the packet without: as in packets of their own."""
    client = clients.five(topic, properties=KEEP)
    client.publish(topic, b"own", 1, retain=True)
    others = [(f"{topic}/{number}", 1) for number in range(100)]
    client.subscribe((topic, 1 | NO_LOCAL), *others, (topic, 1))
    client.acknowledge(client.expect_message(topic, b"own", 1, retain=True))


@pytest.mark.mqtt5("MQTT-3.8.3-3")
@pytest.mark.parametrize("killed", [False, True])
def test_no_local_and_retained_messages_after_a_restart(
    own: OwnBroker, topic: str, *, killed: bool
) -> None:
    broker, clients = own()
    client = clients.five(topic, properties=KEEP)
    client.publish(f"{topic}/1", b"own", 1, retain=True)
    client.publish(f"{topic}/2", b"own too", 2, retain=True)
    clients.five().publish(f"{topic}/3", b"other's", 1, retain=True)
    client.leave()
    if killed:
        broker.kill()
        broker.start()
    else:
        broker.restart()
    client = clients.resumed(topic)
    assert client.subscribe((f"{topic}/+", 1 | NO_LOCAL)) == (1,)
    client.acknowledge(client.expect_message(f"{topic}/3", b"other's", 1, retain=True))
    client.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.8.3-4", "MQTT-4.13.1-1")
def test_no_local_on_a_shared_subscription(clients: Clients5, topic: str) -> None:
    client = clients.five()
    client.send(p.subscribe(1, (f"$share/group/{topic}", NO_LOCAL)))
    client.expect_ended(PROTOCOL_ERROR)


# ------------------------------------------------------- retain as published


@pytest.mark.mqtt5("MQTT-3.3.1-12", "MQTT-3.3.1-13")
@pytest.mark.parametrize(("qos", "live"), [(0, True), (1, True), (2, True), (1, False), (2, False)])
def test_retain_as_published(clients: Clients5, topic: str, qos: int, *, live: bool) -> None:
    names = {f"{topic}a": 0, f"{topic}b": AS_PUBLISHED}
    for name, options in names.items():
        client = clients.five(name, properties=KEEP)
        assert client.subscribe((topic, qos | options)) == (qos,)
        if not live:
            client.leave()
            continue
        for retain in (True, False):
            clients.five().publish(topic, b"x", qos, retain=retain)
            client.acknowledge(
                client.expect_message(topic, b"x", qos, retain=retain and bool(options))
            )
        client.unsubscribe(topic)
        clients.five().publish(topic, retain=True)
    if not live:
        clients.five().publish(topic, b"1", qos, retain=True)
        clients.five().publish(topic, b"0", qos)
        for name, options in names.items():
            client = clients.resumed(name)
            client.expect_message(topic, b"1", qos, retain=bool(options))
            client.expect_message(topic, b"0", qos)
        clients.five().publish(topic, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.1-12", "MQTT-3.3.1-13", "MQTT-4.4.0-1")
def test_retain_is_sent_again_as_it_was(clients: Clients5, topic: str) -> None:
    client = clients.five(topic, properties=KEEP)
    assert client.subscribe((topic, 1 | AS_PUBLISHED)) == (1,)
    clients.five().publish(topic, b"x", 1, retain=True)
    client.expect_message(topic, b"x", 1, retain=True)
    client.reset()
    client = clients.resumed(topic)
    client.acknowledge(client.expect_message(topic, b"x", 1, retain=True, dup=True))
    clients.five().publish(topic, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.1-9")
@pytest.mark.parametrize("options", [0, AS_PUBLISHED])
def test_retained_messages_come_with_retain(clients: Clients5, topic: str, options: int) -> None:
    clients.five().publish(topic, b"x", retain=True)
    clients.listening(topic, options).expect_message(topic, b"x", retain=True)
    clients.five().publish(topic, retain=True)


# ----------------------------------------------------------- retain handling


@pytest.mark.mqtt5("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-3", "MQTT-3.8.4-4")
@pytest.mark.parametrize("handling", [0, IF_NEW, NEVER])
def test_retain_handling(clients: Clients5, topic: str, handling: int) -> None:
    clients.five().publish(topic, b"r", 1, retain=True)
    client = clients.five(topic, properties=KEEP)

    def subscribe(*, sent: bool, qos: int = 1) -> None:
        assert client.subscribe((topic, qos | handling)) == (qos,)
        if sent:
            client.acknowledge(client.expect_message(topic, b"r", qos, retain=True))
        client.expect_nothing(0.1)

    subscribe(sent=handling != NEVER)
    subscribe(sent=handling == 0)
    subscribe(sent=handling == 0, qos=0)  # as another QoS makes no new subscription
    client.leave()
    client = clients.resumed(topic)
    subscribe(sent=handling == 0)
    client.unsubscribe(topic)
    subscribe(sent=handling != NEVER)
    clients.five().publish(topic, b"live", 1)
    client.acknowledge(client.expect_message(topic, b"live", 1))
    clients.five().publish(topic, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.3.1-9")
def test_retain_handling_of_each_filter(clients: Clients5, topic: str) -> None:
    for name in "abc":
        clients.five().publish(f"{topic}/{name}", name.encode(), retain=True)
    client = clients.listening(f"{topic}/a", IF_NEW)
    client.expect_message(f"{topic}/a", b"a", retain=True)
    filters = ((f"{topic}/a", IF_NEW), (f"{topic}/b", NEVER), (f"{topic}/c", IF_NEW))
    assert client.subscribe(*filters) == (0, 0, 0)
    client.expect_message(f"{topic}/c", b"c", retain=True)
    client.expect_nothing()
    for name in "abc":
        clients.five().publish(f"{topic}/{name}", retain=True)


@pytest.mark.mqtt5("MQTT-3.8.4-4", "MQTT-3.8.4-3")
def test_no_message_is_lost_while_a_subscription_is_replaced(clients: Clients5, topic: str) -> None:
    client, publisher = clients.listening(topic, 1), clients.five()
    for number in range(100):
        publisher.send(p.publish(topic, b"%d" % number, 1, number + 1))
        if number % 10 == 5:
            client.send(p.subscribe(1000 + number, (topic, 1 + number % 20 // 10)))
    payloads: list[bytes] = []
    while len(payloads) < 100:
        message = client.receive()
        if isinstance(message, p.Publish):
            payloads.append(message.payload)
            client.acknowledge(message)
    assert payloads == [b"%d" % number for number in range(100)]


# ------------------------------------------------------------------- matching


@pytest.mark.mqtt5("MQTT-4.7.3-3")
def test_the_longest_topic(clients: Clients5, topic: str) -> None:
    name = topic + "x" * (65_535 - len(topic))
    client = clients.listening(name)
    client.publish(name, b"long")
    client.expect_message(name, b"long")
    assert client.unsubscribe(name) == (0,)


# --------------------------------------------------------- several at a time


@pytest.mark.mqtt5("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.10.4-6")
def test_the_same_filter_twice_in_a_packet(clients: Clients5, topic: str) -> None:
    client = clients.five()
    assert client.subscribe((topic, 0), (f"{topic}/x", 1), (topic, 2)) == (0, 1, 2)
    client.publish(topic, b"x", 2)
    message = client.receive()
    assert isinstance(message, p.Publish)
    assert (message.qos, message.payload) == (2, b"x")
    assert message.packet_id is not None
    client.send(p.acknowledge(PUBREC, message.packet_id))
    client.expect_answer(PUBREL, message.packet_id)
    client.send(p.acknowledge(PUBCOMP, message.packet_id))
    assert client.unsubscribe(topic, topic) == (0x00, 0x11)


@pytest.mark.mqtt5("MQTT-3.8.4-1", "MQTT-4.5.0-1")
@pytest.mark.parametrize("end", [packets.disconnect(), b"\x36\x02\0\0"], ids=["leaves", "errs"])
def test_a_subscribe_counts_although_the_connection_ends_behind_it(
    clients: Clients5, topic: str, end: bytes
) -> None:
    client, name = clients.raw5(), unique("c")
    client.send(
        p.connect(name, properties=p.prop(p.SESSION_EXPIRY, 100)),
        p.subscribe(1, (topic, 1)),
        p.publish(topic, b"own", 1, 4),
        end,
    )
    found = [client.receive() for _ in range(3)]
    kinds = [one.kind for one in found if isinstance(one, Answer)]
    assert kinds == [packets.CONNACK, packets.SUBACK, packets.PUBACK]
    again = clients.resumed(name)
    again.acknowledge(again.expect_message(topic, b"own", 1))


@pytest.mark.mqtt5("MQTT-3.8.4-1")
def test_a_long_subscribe_counts_although_its_client_leaves(clients: Clients5, topic: str) -> None:
    name, count = unique("c"), 500
    client = clients.five(name, properties=((p.SESSION_EXPIRY, 100),))
    filters = [(f"{topic}/{number}", 1) for number in range(count)]
    client.send(p.subscribe(1, *filters), packets.disconnect())
    answer = client.receive()
    assert isinstance(answer, Answer)
    assert answer.codes == (1,) * count
    clients.five().publish(f"{topic}/{count - 1}", b"last", 1)
    again = clients.resumed(name)
    again.acknowledge(again.expect_message(f"{topic}/{count - 1}", b"last", 1))


@pytest.mark.mqtt5("MQTT-3.3.1-12", "MQTT-3.3.1-13")
@pytest.mark.parametrize("first", [0, AS_PUBLISHED])
def test_of_equal_subscriptions_the_one_with_retain_as_published_decides(
    clients: Clients5, topic: str, first: int
) -> None:
    client = clients.five()
    for topic_filter, options in ((topic, first), (f"{topic}/#", AS_PUBLISHED - first)):
        assert client.subscribe((topic_filter, 1 | options)) == (1,)
    clients.five().publish(topic, b"x", 1, retain=True)
    client.acknowledge(client.expect_message(topic, b"x", 1, retain=True))
    clients.five().publish(topic, b"", 1, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.4-3", "MQTT-3.3.1-11")
def test_retained_messages_have_the_identifier_of_their_subscription(
    clients: Clients5, topic: str
) -> None:
    """Those that waited for room in the window too."""
    sender, count = clients.five(), 4
    for number in range(count):
        sender.publish(f"{topic}/{number}", b"r", 1, retain=True)
    client = clients.five(properties=((p.RECEIVE_MAXIMUM, 1),))
    client.subscribe((f"{topic}/#", 1 | NEVER), properties=identified(11))
    client.subscribe((f"{topic}/+", 1), properties=identified(12))
    for number in range(count):
        client.acknowledge(
            client.expect_message(
                f"{topic}/{number}", b"r", 1, retain=True, properties=identified(12)
            )
        )
    for number in range(count):
        sender.publish(f"{topic}/{number}", b"", 1, retain=True)
