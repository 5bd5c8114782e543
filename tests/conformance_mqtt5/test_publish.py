"""Section 3.3: PUBLISH, its properties, topic aliases and retained messages."""

import pytest
from harness import mqtt5_packets as p
from harness.mqtt5_packets import Properties
from harness.mqtt5_rawclient import Clients5, OwnBroker
from harness.packets import PUBACK, PUBREC

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
KEEP = ((p.SESSION_EXPIRY, 100),)
ALL: Properties = (
    (p.PAYLOAD_FORMAT, 1),
    (p.CONTENT_TYPE, "text/plain; \ufeffé"),
    (p.RESPONSE_TOPIC, "answers/to/me é"),
    (p.CORRELATION_DATA, b"\0\x01\xff"),
    (p.USER_PROPERTY, ("z", "1")),
    (p.USER_PROPERTY, ("", "")),
    (p.USER_PROPERTY, ("a", "\ufeffbom")),
    (p.USER_PROPERTY, ("z", "1")),
    (p.USER_PROPERTY, ("z", "0")),
)


def assert_same(found: Properties, wanted: Properties) -> None:
    """The same properties; user properties in the same order, others in any."""
    user = [one for one in wanted if one[0] == p.USER_PROPERTY]
    assert [one for one in found if one[0] == p.USER_PROPERTY] == user
    assert {one for one in found if one not in user} == {one for one in wanted if one not in user}


# ----------------------------------------------------- properties passed on


@pytest.mark.mqtt5(
    "MQTT-3.3.2-4",
    "MQTT-3.3.2-15",
    "MQTT-3.3.2-16",
    "MQTT-3.3.2-17",
    "MQTT-3.3.2-18",
    "MQTT-3.3.2-20",
    "MQTT-1.5.4-3",
    "MQTT-1.5.7-1",
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_passed_on_unaltered(clients: Clients5, topic: str, qos: int) -> None:
    """Live, from a queue, and retained; a client of MQTT 3.1.1 gets the payload alone."""
    live, old = clients.listening(topic, qos), clients.subscribed(topic, qos)
    waiting = clients.kept(topic, topic, qos)
    waiting.leave()
    clients.five().publish(topic, "é".encode(), qos, retain=True, properties=ALL)
    message = live.expect_message(topic, "é".encode(), qos, properties=None)
    assert_same(message.properties, ALL)
    live.acknowledge(message)
    old.acknowledge(old.expect_publish(topic, "é".encode(), qos))
    late = clients.listening(topic, qos)
    message = late.expect_message(topic, "é".encode(), qos, retain=True, properties=None)
    assert_same(message.properties, ALL)
    late.acknowledge(message)
    if qos:
        waiting = clients.resumed(topic)
        message = waiting.expect_message(topic, "é".encode(), qos, properties=None)
        assert_same(message.properties, ALL)
        waiting.acknowledge(message)
    clients.five().publish(topic, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.2-4", "MQTT-3.3.2-17", "MQTT-2.2.2-1", "MQTT-3.3.2-20")
@pytest.mark.parametrize("one", ALL, ids=range(len(ALL)))
def test_each_property_alone(clients: Clients5, topic: str, one: tuple[int, p.Value]) -> None:
    client = clients.listening(topic)
    publisher = clients.five()
    publisher.send(
        p.publish(topic, b"1", properties=(one,)),
        p.publish(topic, b"2"),
        p.publish(topic, b"3", properties=((p.PAYLOAD_FORMAT, 0),)),
        p.publish(topic, b"4", properties=(one, (p.USER_PROPERTY, ("k", "v" * 5000)))),
    )
    client.expect_message(topic, b"1", properties=(one,))
    client.expect_message(topic, b"2")
    received = client.expect_message(topic, b"3", properties=None).properties
    assert received in {(), ((p.PAYLOAD_FORMAT, 0),)}
    client.expect_message(topic, b"4", properties=(one, (p.USER_PROPERTY, ("k", "v" * 5000))))


@pytest.mark.mqtt5("MQTT-3.3.2-17", "MQTT-3.3.2-18")
def test_many_user_properties(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, 1)
    many = tuple((p.USER_PROPERTY, (f"k{number % 7}", str(number))) for number in range(500))
    clients.five().publish(topic, b"x", 1, properties=many)
    client.acknowledge(client.expect_message(topic, b"x", 1, properties=many))


# ------------------------------------------------------- malformed PUBLISH


@pytest.mark.mqtt5("MQTT-2.2.1-2", "MQTT-4.3.1-1", "MQTT-3.3.4-1")
def test_qos_0_has_no_identifier_and_no_answer(clients: Clients5, topic: str) -> None:
    watcher, client = clients.listening(topic), clients.five()
    client.send(p.publish(topic, b"\0\x05payload"))
    watcher.expect_message(topic, b"\0\x05payload")
    client.expect_alive()


# ------------------------------------------------------------ topic aliases


@pytest.mark.mqtt5("MQTT-3.3.2-12", "MQTT-3.1.2-27", "MQTT-3.3.2-3", "MQTT-3.3.2-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_alias_up_to_the_maximum(clients: Clients5, topic: str, qos: int) -> None:
    """Subscribers get the topic, and no alias of another connection."""
    watcher = clients.listening(f"{topic}/#", qos)
    client = clients.five()
    most = client.connack.number(p.TOPIC_ALIAS_MAXIMUM, 0)
    assert most >= 1
    aliases = {alias for alias in (1, 2, most // 2 + 1, most) if alias <= most}
    for alias in aliases:
        client.publish(f"{topic}/{alias}", b"1", qos, properties=((p.TOPIC_ALIAS, alias),))
        watcher.acknowledge(watcher.expect_message(f"{topic}/{alias}", b"1", qos))
    for alias in aliases:
        properties = ((p.TOPIC_ALIAS, alias), (p.CONTENT_TYPE, "t"))
        client.publish("", b"2", qos, properties=properties)
        message = watcher.expect_message(
            f"{topic}/{alias}", b"2", qos, properties=((p.CONTENT_TYPE, "t"),)
        )
        watcher.acknowledge(message)


@pytest.mark.mqtt5("MQTT-3.3.2-12", "MQTT-3.3.2-7")
def test_an_alias_is_given_to_another_topic(clients: Clients5, topic: str) -> None:
    watcher, client = clients.listening(f"{topic}/#"), clients.five()
    one: Properties = ((p.TOPIC_ALIAS, 1),)
    client.send(
        p.publish(f"{topic}/a", b"1", properties=one),
        p.publish("", b"2", properties=one),
        p.publish(f"{topic}/b", b"3", properties=one),
        p.publish("", b"4", properties=one),
        p.publish(f"{topic}/a", b"5"),
        p.publish("", b"6", properties=one),
    )
    for payload, name in zip(b"123456", "aabbab", strict=True):
        watcher.expect_message(f"{topic}/{name}", bytes((payload,)))


@pytest.mark.mqtt5("MQTT-3.3.2-7", "MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", ["never", "other-connection", "earlier-connection"])
def test_an_unknown_topic_alias(clients: Clients5, topic: str, kind: str) -> None:
    properties = ((p.TOPIC_ALIAS, 1),)
    watcher = clients.listening(topic)
    if kind != "never":
        other = clients.five(topic, properties=KEEP)
        other.publish(topic, b"1", properties=properties)
        watcher.expect_message(topic, b"1")
        if kind == "earlier-connection":
            other.leave()
    present = kind == "earlier-connection"
    name = topic if present else None
    client = clients.five(name, clean=not present, session_present=present)
    client.send(p.publish("", b"2", properties=properties))
    client.expect_ended(PROTOCOL_ERROR)
    watcher.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.3.2-9", "MQTT-3.2.2-17", "MQTT-4.13.1-1")
def test_alias_above_the_maximum(clients: Clients5, topic: str) -> None:
    watcher, client = clients.listening(topic), clients.five()
    most = client.connack.number(p.TOPIC_ALIAS_MAXIMUM, 0)
    client.send(p.publish(topic, b"x", properties=((p.TOPIC_ALIAS, most + 1),)))
    client.expect_ended(0x94)
    watcher.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
@pytest.mark.parametrize("most", [None, 0, 1, 2])
def test_no_alias_above_the_clients_maximum(
    clients: Clients5, topic: str, most: int | None
) -> None:
    """`RawClient5` checks each PUBLISH."""
    properties = () if most is None else ((p.TOPIC_ALIAS_MAXIMUM, most),)
    client = clients.listening(f"{topic}/#", properties=properties)
    publisher = clients.five()
    names: dict[object, str] = {}
    for _ in range(3):
        for number in range(5):
            publisher.publish(f"{topic}/{number}", b"x", properties=((p.TOPIC_ALIAS, 1),))
            message = client.receive()
            assert isinstance(message, p.Publish)
            alias = message.get(p.TOPIC_ALIAS)
            name = message.topic or names[alias]
            assert name == f"{topic}/{number}"
            names[alias] = name


# ------------------------------------------------------------------ retained


@pytest.mark.mqtt5("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT-3.3.1-8", "MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_message_is_stored_replaced_and_removed(
    clients: Clients5, topic: str, qos: int
) -> None:
    client = clients.five()
    live = clients.listening(topic, 2)
    client.publish(topic, b"1", qos, retain=True, properties=((p.CONTENT_TYPE, "1"),))
    client.publish(topic, b"2", qos, retain=True, properties=((p.CONTENT_TYPE, "2"),))
    client.publish(topic, b"not retained", qos)
    late = clients.listening(topic, 2)
    found = late.expect_message(topic, b"2", qos, retain=True, properties=((p.CONTENT_TYPE, "2"),))
    late.acknowledge(found)
    client.publish(topic, b"", 0, properties=())
    clients.listening(topic).expect_message(topic, b"2", retain=True, properties=None)
    client.publish(topic, b"", qos, retain=True, properties=((p.CONTENT_TYPE, "3"),))
    clients.listening(topic).expect_nothing()
    payloads = []
    for _ in range(5):
        message = live.receive()
        while not isinstance(message, p.Publish):
            message = live.receive()
        assert not message.retain
        payloads.append(message.payload)
        if message.packet_id:
            kind = PUBACK if message.qos == 1 else PUBREC
            live.send(p.acknowledge(kind, message.packet_id))
    assert sorted(payloads) == [b"", b"", b"1", b"2", b"not retained"]


def test_retained_messages_of_one_level_are_read_by_the_others(
    clients: Clients5, topic: str
) -> None:
    clients.five().publish(f"{topic}/5", b"5", 1, retain=True, properties=ALL)
    clients.connect().publish(f"{topic}/4", b"4", 1, retain=True)
    for number in (4, 5):
        name, payload = f"{topic}/{number}", b"%d" % number
        clients.subscribed(name).expect_publish(name, payload, retain=True)
        message = clients.listening(name).expect_message(
            name, payload, retain=True, properties=None
        )
        assert_same(message.properties, ALL if number == 5 else ())
        clients.connect().publish(name, retain=True)


@pytest.mark.mqtt5("MQTT-3.3.1-5", "MQTT-3.3.2-17", "MQTT-3.3.2-18")
@pytest.mark.parametrize("kill", [False, True])
def test_properties_survive_a_restart(own: OwnBroker, topic: str, *, kill: bool) -> None:
    broker, clients = own()
    client = clients.kept(topic, topic, 1)
    client.leave()
    clients.five().publish(topic, b"x", 1, retain=True, properties=ALL)
    broker.restart(kill=kill)
    client = clients.resumed(topic)
    message = client.expect_message(topic, b"x", 1, properties=None)
    assert_same(message.properties, ALL)
    client.acknowledge(message)
    late = clients.listening(topic)
    assert_same(late.expect_message(topic, b"x", retain=True, properties=None).properties, ALL)


# ------------------------------------------------------- payload and expiry


def test_request_and_response(clients: Clients5, topic: str) -> None:
    """The dialogue of section 4.10, based on properties alone."""
    asking, answering = clients.listening(f"{topic}/answer", 1), clients.listening(topic, 1)
    asked: Properties = ((p.RESPONSE_TOPIC, f"{topic}/answer"), (p.CORRELATION_DATA, b"\x07"))
    asking.publish(topic, b"?", 1, properties=asked)
    question = answering.expect_message(topic, b"?", 1, properties=asked)
    answering.acknowledge(question)
    to, data = question.get(p.RESPONSE_TOPIC), question.get(p.CORRELATION_DATA)
    assert isinstance(to, str)
    assert isinstance(data, bytes)
    answering.publish(to, b"!", 1, properties=((p.CORRELATION_DATA, data),))
    answer = asking.expect_message(to, b"!", 1, properties=((p.CORRELATION_DATA, data),))
    asking.acknowledge(answer)


# ------------------------------------------------------------- answers to it


@pytest.mark.mqtt5("MQTT-3.3.4-1", "MQTT-4.3.2-4", "MQTT-2.2.1-5", "MQTT-3.4.2-1")
@pytest.mark.parametrize("number", [1, 300, 65_535])
def test_qos_1_is_answered_with_puback(clients: Clients5, topic: str, number: int) -> None:
    subscriber, client = clients.listening(topic, 1), clients.five()
    for dup in (False, True, False):  # whatever its DUP, it is a new message [MQTT-4.3.2-5]
        client.publish(topic, b"x", 1, packet_id=number, dup=dup)
        subscriber.acknowledge(subscriber.expect_message(topic, b"x", 1))


@pytest.mark.mqtt5("MQTT-3.3.1-3", "MQTT-4.3.2-5", "MQTT-4.3.2-2", "MQTT-4.3.3-2", "MQTT-3.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_not_passed_on(clients: Clients5, topic: str, qos: int) -> None:
    subscriber, client = clients.listening(topic, qos), clients.five()
    client.send(p.publish(topic, b"x", qos, 9, dup=True))
    if qos == 2:
        client.expect_answer(PUBREC, 9)
        client.release(9)
    else:
        client.expect_answer(PUBACK, 9)
    subscriber.acknowledge(subscriber.expect_message(topic, b"x", qos))


# ------------------------------------------------------------ payload format

TEXT = ((p.PAYLOAD_FORMAT, 1),)
NO_TEXT = b"\xff\xfe"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payload_formats_are_not_checked_by_default(
    clients: Clients5, topic: str, qos: int
) -> None:
    other = clients.listening(topic, qos)
    clients.five().publish(topic, NO_TEXT, qos, properties=TEXT)
    other.expect_message(topic, NO_TEXT, qos, properties=TEXT)


def test_a_payload_that_is_not_utf_8_is_refused_if_configured(own: OwnBroker, topic: str) -> None:
    broker, clients = own("check_payload_format = true\n")
    other, client = clients.listening(topic, 2), clients.five()
    client.publish(topic, "ä".encode(), 1, properties=TEXT)
    other.acknowledge(other.expect_message(topic, "ä".encode(), 1, properties=TEXT))
    for number in (1, 2):  # singly, and several at once
        client.send(
            *(p.publish(topic, NO_TEXT, 1, 10 + at, properties=TEXT) for at in range(number)),
            p.publish(topic, NO_TEXT, 2, 20, properties=TEXT),
            p.publish(topic, NO_TEXT, 0, properties=TEXT),
            p.publish(topic, b"no text", 1, 30),
        )
        for at in range(number):
            client.expect_answer(PUBACK, 10 + at, 0x99)
        client.expect_answer(PUBREC, 20, 0x99)
        client.expect_answer(PUBACK, 30)
        other.acknowledge(other.expect_message(topic, b"no text", 1))
    other.expect_nothing()
    client.send(p.publish(topic, b"text", 2, 20, properties=TEXT))  # the identifier is free
    client.expect_answer(PUBREC, 20)
    assert "payload_format" in broker.log


def test_a_will_that_is_not_utf_8_is_refused_if_configured(own: OwnBroker, topic: str) -> None:
    _, clients = own("check_payload_format = true\n")
    client = clients.raw5()
    client.send(p.connect("c", will=p.Will(topic, NO_TEXT, 1, False, TEXT)))
    client.expect_refused(0x99)
    client = clients.raw5()
    client.send(p.connect("c", will=p.Will(topic, b"text", 1, False, TEXT)))
    assert client.receive().code == 0


# ------------------------------------------------ topic aliases to clients


def aliases(number: int) -> Properties:
    return ((p.TOPIC_ALIAS_MAXIMUM, number),)


def test_no_aliases_are_sent_by_default(clients: Clients5, topic: str) -> None:
    client = clients.listening(topic, 1, properties=aliases(10))
    for _ in range(3):
        clients.five().publish(topic, b"x", 1)
        client.acknowledge(client.expect_message(topic, b"x", 1))


@pytest.mark.mqtt5("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-10", "MQTT-3.3.2-11")
def test_topics_are_sent_as_aliases_if_configured(own: OwnBroker, topic: str) -> None:
    """Each connection gets topic and alias together first, and within its own maximum."""
    _, clients = own("topic_aliases_out = 2\n")
    one = clients.listening(f"{topic}/#", 1, properties=aliases(10))
    less = clients.listening(f"{topic}/#", 1, properties=aliases(1))
    none = clients.listening(f"{topic}/#", 1)
    sender = clients.five()
    for turn in range(2):
        for number in (1, 2, 3):
            sender.publish(f"{topic}/{number}", b"x", 1)
            for client, most in ((one, 2), (less, 1), (none, 0)):
                found = client.receive()
                assert isinstance(found, p.Publish)
                assert found.payload == b"x"
                if number > most:
                    assert (found.topic, found.properties) == (f"{topic}/{number}", ())
                else:
                    assert found.topic == ("" if turn else f"{topic}/{number}")
                    assert found.get(p.TOPIC_ALIAS) == number
                client.acknowledge(found)


@pytest.mark.mqtt5("MQTT-3.3.2-7")
def test_aliases_end_with_their_connection(own: OwnBroker, topic: str) -> None:
    """What is sent again, and what waited, has its topic."""
    _, clients = own("topic_aliases_out = 2\n")
    keep = (*aliases(10), (p.SESSION_EXPIRY, 100))
    client = clients.five(f"{topic}c", properties=keep)
    assert client.subscribe((topic, 1)) == (1,)
    sender = clients.five()
    for name in (topic, ""):
        sender.publish(topic, b"1", 1)
        assert client.expect_message(name, b"1", 1, properties=((p.TOPIC_ALIAS, 1),))
    client.leave()
    sender.publish(topic, b"2", 1)
    client = clients.resumed(f"{topic}c", keep)
    for payload in (b"1", b"1", b"2"):
        client.acknowledge(client.expect_message(topic, payload, 1, dup=payload == b"1"))
    sender.publish(topic, b"3", 1)
    client.acknowledge(client.expect_message(topic, b"3", 1, properties=((p.TOPIC_ALIAS, 1),)))


def test_a_message_without_a_wait_does_not_use_the_alias_of_one_that_waits_for_the_disk(
    own: OwnBroker, topic: str
) -> None:
    _, clients = own("topic_aliases_out = 2\n")
    client = clients.listening(topic, 1, properties=aliases(10))
    clients.five().send(
        p.publish(topic, b"waits", 1, 1), p.publish(topic, b"at once"), p.publish(topic, b"last")
    )
    known = False
    for _ in range(3):
        found = client.receive()
        assert isinstance(found, p.Publish)
        known = known or found.topic == topic
        assert known
