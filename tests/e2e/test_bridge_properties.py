"""Properties of MQTT 5 across the bridge, as clients of both sides see them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import mqtt5_packets, packets
from harness.fixtures import unique
from harness.mqtt5_packets import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Properties,
    Publish,
    Will,
)
from harness.mqtt5_rawclient import Clients5, RawClient5
from harness.nats import ACCESS, PASSWORD, USER, Nats
from harness.waiting import until

from e2e.bridging import Place, Visitor, mqtt_subscribed, received, visitor

__all__ = ["visitor"]

ELSEWHERE = ACCESS.replace("nats_", "bridge_")
"""What lets the bridge in at a NATS of its own."""
SOME: Properties = (
    (CONTENT_TYPE, "text/plain"),
    (PAYLOAD_FORMAT, 1),
    (USER_PROPERTY, ("unit", "°C")),
    (USER_PROPERTY, ("site", "north 1")),
    (USER_PROPERTY, ("site", "2")),
)
SOME_HEADERS = {
    "Content-Type": "text/plain",
    "Foldmq-Payload-Format": "1",
    "Foldmq-User-1": "unit=%C2%B0C",
    "site": "2",  # nats-py has the last one of a name
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(tmp_path_factory.mktemp("bridge5")) as made:
        yield made


@pytest.fixture
def clients(place: Place) -> Iterator[Clients5]:
    made = Clients5("127.0.0.1", place.broker.port)
    yield made
    made.close()


class Asked(NamedTuple):
    """A request as a NATS service got it."""

    data: bytes
    reply: str
    headers: Mapping[str, str]


class Service:
    """A NATS service, which answers; ``answers`` says how, given a message of nats-py."""

    def __init__(
        self, visitor: Visitor, subject: str, answers: Callable[[Visitor, Any], Any] | None = None
    ) -> None:
        self.asked: list[Asked] = []
        self._visitor = visitor
        self._answers = answers or plainly
        visitor.do(visitor.client.subscribe(subject, cb=self._answer))
        visitor.flush()

    async def _answer(self, message: Any) -> None:
        self.asked.append(Asked(message.data, message.reply, message.headers or {}))
        if "Foldmq-Response-Topic" in (message.headers or {}):
            await self._answers(self._visitor, message)


async def plainly(visitor: Visitor, message: Any) -> None:
    """Answer as the libraries of most languages do: without headers."""
    await visitor.client.publish(message.reply, b"re: " + message.data)


async def copying(_visitor: Visitor, message: Any) -> None:
    """Answer as nats-py does: with the headers of the request."""
    await message.respond(b"re: " + message.data)


def subscribed5(
    clients: Clients5, visitor: Visitor, topic_filter: str, options: int = 2, subject: str = ""
) -> RawClient5:
    """A client of level 5 with a subscription, when NATS knows of it."""
    client = clients.five()
    assert client.subscribe((topic_filter, options)) == (options & 3,)
    mqtt_subscribed(clients, visitor, subject=subject).close()  # subscriptions arrive in order
    return client


def message(client: RawClient5) -> Publish:
    """The next message, acknowledged."""
    found = client.receive()
    assert isinstance(found, Publish), f"{found}"
    client.acknowledge(found)
    return found


# ------------------------------------------------------------------ both ways


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_headers(
    clients: Clients5, visitor: Visitor, qos: int, retain: bool
) -> None:
    name = unique("to")
    ear = visitor.hear(name)
    publisher = clients.five()
    publisher.publish(name, b"none", qos, retain=retain)
    publisher.publish(name, b"21", qos, retain=retain, properties=SOME)
    publisher.publish(name, b"x", qos, properties=((CORRELATION_DATA, b"\0\xff 7"),))
    clients.connect().publish(name, b"old", qos)
    none, some, correlated, old = ear.after(4)
    wanted = {*SOME_HEADERS, "Foldmq-Correlation-Data"}
    assert not wanted & {*none.headers}
    assert not wanted & {*old.headers}
    assert some.headers.items() >= SOME_HEADERS.items()
    assert some.headers.get("Foldmq-Retain") == ("1" if retain else None)
    assert ("Nats-Msg-Id" in some.headers) == (qos > 0)
    assert correlated.headers["Foldmq-Correlation-Data"] == "%00%FF%207"
    if retain:  # and they are those of the retained message
        clients.five().publish(name, b"", 1, retain=True)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_headers_are_properties(clients: Clients5, visitor: Visitor, qos: int) -> None:
    name = unique("from")
    five = subscribed5(clients, visitor, name)
    four = clients.subscribed(name, 2)
    headers = {
        "Content-Type": "text/plain",
        "Foldmq-Payload-Format": "1",
        "Foldmq-Correlation-Data": "%00%FF 7",
        "Foldmq-User-1": "unit=%C2%B0C",
        "site": "north",
        "Nats-Expected-Stream": "X",
        "Foldmq-QoS": str(qos),
    }
    visitor.do(visitor.client.publish(name, b"21", headers=headers))
    found = message(five)
    assert (found.topic, found.payload, found.qos) == (name, b"21", qos)
    assert sorted(found.properties) == sorted(
        [
            (CONTENT_TYPE, "text/plain"),
            (PAYLOAD_FORMAT, 1),
            (CORRELATION_DATA, b"\0\xff 7"),
            (USER_PROPERTY, ("unit", "°C")),
            (USER_PROPERTY, ("site", "north")),
        ]
    )
    assert received(four, 1) == [(name, b"21", qos)]
    for payload, more in ((b"none", {}), (b"\xff", {"Foldmq_Payload_Format": "1"})):
        visitor.publish(name, payload, Foldmq_QoS=str(qos), **more)
        assert message(five).properties == ()
        assert received(four, 1) == [(name, payload, qos)]


def test_retained_messages_from_nats_keep_their_properties(
    clients: Clients5, visitor: Visitor
) -> None:
    name = unique("kept")
    five = subscribed5(clients, visitor, name)
    visitor.publish(name, b"1", Foldmq_Retain="1", Content_Type="a/b", Foldmq_Message_Expiry="1000")
    assert message(five).get(CONTENT_TYPE) == "a/b"
    late = clients.five()
    late.subscribe((name, 1))
    found = message(late)
    assert found.retain
    assert found.get(CONTENT_TYPE) == "a/b"
    assert found.get(MESSAGE_EXPIRY) in range(990, 1001)
    visitor.publish(name, b"", Foldmq_Retain="1")


def test_offline_clients_get_them(clients: Clients5, visitor: Visitor) -> None:
    name = unique("away")
    five = clients.five("away5", clean=False, properties=((0x11, 1000),))
    five.subscribe((name, 1))
    mqtt_subscribed(clients, visitor).close()
    five.leave()
    visitor.recorded(name, b"1", Content_Type="a/b", Foldmq_Message_Expiry="1000")
    visitor.recorded(name, b"2", Nats_TTL="1h")
    back = clients.five("away5", clean=False, session_present=True, properties=((0x11, 0),))
    first, second = message(back), message(back)
    assert (first.payload, first.get(CONTENT_TYPE)) == (b"1", "a/b")
    assert first.get(MESSAGE_EXPIRY) in range(990, 1001)
    assert second.get(MESSAGE_EXPIRY) in range(3590, 3601)


def test_wills_have_theirs(clients: Clients5, visitor: Visitor) -> None:
    name = unique("will")
    ear = visitor.hear(name)
    client = clients.five(will=Will(name, b"gone", 1, properties=SOME))
    client.close()
    (will,) = ear.after(1)
    assert will.headers.items() >= SOME_HEADERS.items()


# ------------------------------------------------------------------ expiry


def test_messages_that_expired_during_an_outage_are_not_sent(tmp_path: Path) -> None:
    external = Nats(tmp_path)
    external.start()
    place = Place(tmp_path / "place", ELSEWHERE, "--bridge-url", external.url, nats_listen=False)
    place.broker.start()
    clients = Clients5("127.0.0.1", place.broker.port)
    try:
        name = unique("late")
        external.kill()
        publisher = clients.five()
        for qos in (1, 2):
            publisher.publish(name, b"gone", qos, properties=((MESSAGE_EXPIRY, 1),))
            publisher.publish(name, b"kept", qos, properties=((MESSAGE_EXPIRY, 1000), *SOME))
        begun = time.time()
        place.broker.pause()  # what it sends before the visitor listens is lost
        external.start()
        with Visitor(external.port, user=USER, password=PASSWORD) as visitor:
            ear = visitor.hear(name)
            place.broker.resume()
            until(lambda: len(ear.heard) == 2, "what is kept", seconds=30)
            assert ear.payloads == [b"kept", b"kept"]
            for heard in ear.heard:
                left = int(heard.headers["Foldmq-Message-Expiry"])
                assert left <= 1000 - int(time.time() - begun - 1) or left < 1000
                assert heard.headers.items() >= SOME_HEADERS.items()
        assert "reason=expired" in place.broker.log
        assert place.troubles == []
    finally:
        clients.close()
        place.broker.clean_up()
        external.kill()


# ------------------------------------------------------------------ requests


@pytest.mark.parametrize("answers", [plainly, copying])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_nats_service_answers_mqtt_clients(
    clients: Clients5,
    visitor: Visitor,
    qos: int,
    answers: Callable[[Visitor, Any], Any],
) -> None:
    name = unique("svc")
    service = Service(visitor, name, answers)
    asking = subscribed5(clients, visitor, f"{name}/reply/é")
    for number in range(5):
        correlation = b"\0%d\xff" % number
        properties = ((RESPONSE_TOPIC, f"{name}/reply/é"), (CORRELATION_DATA, correlation))
        asking.send(_publish(asking, name, b"%d" % number, qos, properties))
        answer = _answer(asking)
        assert (answer.topic, answer.payload) == (f"{name}/reply/é", b"re: %d" % number)
        assert answer.get(CORRELATION_DATA) == correlation
        assert answer.get(RESPONSE_TOPIC) is None
    assert {one.headers["Foldmq-Response-Topic"] for one in service.asked} == {
        f"{name}/reply/%C3%A9"
    }
    # without Correlation Data there is none in the answer
    asking.send(_publish(asking, name, b"x", qos, ((RESPONSE_TOPIC, f"{name}/reply/é"),)))
    answer = _answer(asking)
    assert (answer.payload, answer.get(CORRELATION_DATA)) == (b"re: x", None)


def _publish(
    client: RawClient5, topic: str, payload: bytes, qos: int, properties: Properties
) -> bytes:
    packet_id = client.next_id() if qos else None
    return mqtt5_packets.publish(topic, payload, qos, packet_id, properties=properties)


def _answer(client: RawClient5) -> Publish:
    """The next message; what else comes belongs to the client's own publications."""
    while not isinstance(found := client.receive(), Publish):
        if isinstance(found, mqtt5_packets.Answer) and found.kind == packets.PUBREC:
            client.send(mqtt5_packets.acknowledge(packets.PUBREL, found.packet_id))
    if found.qos == 1:
        client.send(mqtt5_packets.acknowledge(packets.PUBACK, found.packet_id or 0))
    elif found.qos == 2:
        client.send(mqtt5_packets.acknowledge(packets.PUBREC, found.packet_id or 0))
        while True:
            released = client.receive()
            assert isinstance(released, mqtt5_packets.Answer)
            if released.kind == packets.PUBREL:
                break
            if released.kind == packets.PUBREC:
                client.send(mqtt5_packets.acknowledge(packets.PUBREL, released.packet_id))
        client.send(mqtt5_packets.acknowledge(packets.PUBCOMP, found.packet_id or 0))
    return found


def test_a_stream_that_stores_requests_does_not_answer_them(
    clients: Clients5, visitor: Visitor
) -> None:
    name = unique("stored")
    jetstream = visitor.client.jetstream()
    visitor.do(jetstream.add_stream(name=name, subjects=[f"{name}.>"]))
    Service(visitor, f"{name}.svc")
    asking = subscribed5(clients, visitor, f"reply/{name}")
    for number in range(3):
        properties = ((RESPONSE_TOPIC, f"reply/{name}"), (CORRELATION_DATA, b"%d" % number))
        asking.publish(f"{name}/svc", b"%d" % number, properties=properties)
        found = message(asking)
        assert (found.payload, found.get(CORRELATION_DATA)) == (
            b"re: %d" % number,
            b"%d" % number,
        )
    asking.expect_alive()
    visitor.do(jetstream.delete_stream(name))


@pytest.mark.parametrize("filters", ["{}/add", "$nats/request/+/{}/#"])
def test_an_mqtt_client_answers_nats_clients(
    clients: Clients5, visitor: Visitor, filters: str
) -> None:
    name = unique("ask")
    service = subscribed5(clients, visitor, filters.format(name), 0)
    for number in range(3):
        answers: list[Any] = []

        def ask(answers: list[Any] = answers) -> None:
            answers.append(
                visitor.do(visitor.client.request(f"{name}.add", b"2+2", 5, headers={"by": "me"}))
            )

        asking = threading.Thread(target=ask)
        asking.start()
        request = message(service)
        assert request.topic.endswith(f"{name}/add")
        assert request.get(USER_PROPERTY) == ("by", "me")
        where = request.get(RESPONSE_TOPIC)
        assert isinstance(where, str)
        assert where.startswith("$nats/reply/")
        service.publish(where, b"%d" % number, number, properties=SOME)
        asking.join()
        assert answers[0].data == b"%d" % number
        assert answers[0].headers.items() >= SOME_HEADERS.items()
    visitor.publish(f"{name}.add", b"no reply")
    if not filters.startswith("$"):
        assert message(service).get(RESPONSE_TOPIC) is None
    service.expect_alive()


# ------------------------------------------------------------------ lies


def test_a_client_cannot_set_headers_of_jetstream(clients: Clients5, visitor: Visitor) -> None:
    name = unique("obeyed")
    jetstream = visitor.client.jetstream()
    visitor.do(jetstream.add_stream(name=name, subjects=[name]))
    evil = [
        ("Nats-Expected-Last-Sequence", "99"),
        ("Nats-Expected-Stream", "OTHER"),
        ("nats-expected-last-msg-id", "x"),
        ("Nats-Msg-Id", "same"),
        ("Nats-TTL", "1s"),
        ("Nats-Rollup", "all"),
        ("x", "1\r\nNats-Rollup: all"),
        ("x\r\nNats-Rollup", "all"),
        ("x: y\r\nNats-Rollup", "all"),
        ("Foldmq-Topic", "other"),
        ("Foldmq-QoS", "2"),
        ("Status", "503"),
    ]
    publisher = clients.five()
    for number in range(3):
        for qos in (0, 1, 2):
            properties = tuple((USER_PROPERTY, one) for one in evil)
            properties += ((CONTENT_TYPE, "a\r\nNats-Rollup: all"),)
            publisher.publish(name, b"%d" % number, qos, properties=properties)
    until(lambda: visitor.do(jetstream.stream_info(name)).state.messages == 9, "nine messages")
    stored = visitor.do(jetstream.get_msg(name, 9))
    theirs = {key.lower() for key in stored.headers if key.lower().startswith("nats-")}
    assert theirs <= {"nats-msg-id"}
    assert stored.headers["Foldmq-Topic"] == name
    visitor.do(jetstream.delete_stream(name))


def test_two_brokers_carry_them(tmp_path: Path) -> None:
    external = Nats(tmp_path)
    external.start()
    places = [
        Place(tmp_path / name, ELSEWHERE, "--bridge-url", external.url, nats_listen=False)
        for name in ("one", "two")
    ]
    made = []
    try:
        for place in places:
            place.broker.start()
            made.append(Clients5("127.0.0.1", place.broker.port))
        name = unique("svc")
        with Visitor(external.port, user=USER, password=PASSWORD) as visitor:
            asking = subscribed5(made[0], visitor, f"{name}/reply")
            service = subscribed5(made[1], visitor, name)
            for qos in (0, 1, 2):
                properties = ((RESPONSE_TOPIC, f"{name}/reply"), (CORRELATION_DATA, b"\0%d" % qos))
                asking.publish(name, b"%d" % qos, qos, properties=(*properties, *SOME))
                request = message(service)
                assert sorted(map(repr, request.properties)) == sorted(
                    map(repr, (*properties, *SOME))
                )
                service.publish(f"{name}/reply", b"re", qos, properties=(properties[1],))
                assert message(asking).properties == (properties[1],)
        assert [place.troubles for place in places] == [[], []]
    finally:
        for one in made:
            one.close()
        for place in places:
            place.broker.clean_up()
        external.kill()
