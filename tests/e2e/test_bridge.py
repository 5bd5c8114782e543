"""The bridge between MQTT and NATS, as clients of both sides see it."""

import json
import os
import signal
import threading
from collections.abc import Iterator

import nats.errors
import pytest
from harness import packets
from harness.broker import stand_still
from harness.fixtures import Clients, unique
from harness.packets import Publish, Will
from harness.waiting import until
from nats.errors import NoRespondersError

from e2e.bridging import Place, Visitor, Wire, mqtt_subscribed, received, visitor

__all__ = ["visitor"]

NATS_ROWS = [  # the table of NATS Server's documentation
    ("foo/bar", "foo.bar"),
    ("/foo/bar", "/.foo.bar"),
    ("foo/bar/", "foo.bar./"),
    ("foo//bar", "foo./.bar"),
    ("//foo/bar", "/./.foo.bar"),
    ("foo.bar", "foo//bar"),
]
OUR_ROWS = [
    ("foo bar", "foo/20bar"),
    (" ", "/20"),
    ("/", "/./"),
    ("...", "//////"),
    ("a*b/>/c", "a/2ab./3e.c"),
    ("tab\tcr\rlf\nend", "tab/09cr/0dlf/0aend"),
    ("del\x7fnel\x85", "del/7fnel/85"),
    ("größe/温度/🌡", "größe.温度.🌡"),
    ("PING\r\nPUB x 1\r\nx\r\n", "PING/0d/0aPUB/20x/201/0d/0ax/0d/0a"),
]
ROWS = NATS_ROWS + OUR_ROWS


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(tmp_path_factory.mktemp("bridge")) as made:
        yield made


@pytest.fixture
def clients(place: Place) -> Iterator[Clients]:
    made = Clients("127.0.0.1", place.broker.port)
    yield made
    made.close()


# ------------------------------------------------------------------ names


def test_every_topic_has_its_subject_both_ways(
    place: Place, clients: Clients, visitor: Visitor
) -> None:
    ears = {topic: visitor.hear(subject) for topic, subject in ROWS}
    mqtt = mqtt_subscribed(clients, visitor, *[(topic, 2) for topic, _ in ROWS])
    publisher = clients.connect()
    for qos in (0, 1, 2):
        for topic, _ in ROWS:
            publisher.publish(topic, b"%d" % qos, qos)
            assert received(mqtt, 1) == [(topic, b"%d" % qos, qos)]
    for topic, subject in ROWS:
        for qos, message in enumerate(ears[topic].after(3)):
            assert (message.subject, message.topic, message.data) == (subject, topic, b"%d" % qos)
            assert message.headers["Nmqtt-Pub"] == message.headers["Foldmq-QoS"] == str(qos)
            assert message.headers["Foldmq-Client"] == publisher.client_id
            assert ("Nats-Msg-Id" in message.headers) == (qos > 0)
            assert "Foldmq-Retain" not in message.headers
    with Wire(place.nats_port) as wire:  # nats-py counts some of these subjects as bad
        for topic, subject in ROWS:
            name = subject.encode()
            wire.send(b"PUB %b 2\r\nhi\r\n" % name)
            wire.hpub(name, b"NATS/1.0\r\nFoldmq-QoS: 2\r\n\r\n", b"ho")
            assert sorted(received(mqtt, 2)) == [(topic, b"hi", 0), (topic, b"ho", 2)]
        assert wire.pong() == []
    for topic, _ in ROWS:
        assert len(ears[topic].after(5)) == 5


def test_the_name_of_the_bridge_is_no_client_identifier(clients: Clients) -> None:
    assert clients.raw().connect("$nats", clean=False).code == 2


# ------------------------------------------------------------------ what messages say


def test_a_header_makes_and_clears_the_retained_message(clients: Clients, visitor: Visitor) -> None:
    for qos in ("0", "1", "2"):
        name = unique("kept")
        mqtt = mqtt_subscribed(clients, visitor, (name, 2))
        visitor.publish(name, b"kept", Foldmq_Retain="1", Foldmq_QoS=qos)
        assert received(mqtt, 1) == [(name, b"kept", int(qos))]
        late = clients.subscribed(name, 2)
        late.expect_publish(name, b"kept", int(qos), retain=True)
        visitor.publish(name, b"", Foldmq_Retain="1", Foldmq_QoS=qos)
        assert received(mqtt, 1) == [(name, b"", int(qos))]
        clients.subscribed(name, 2).expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_wills_reach_nats(
    place: Place, clients: Clients, visitor: Visitor, qos: int, *, retain: bool
) -> None:
    name = unique("will")
    ear = visitor.hear(name)
    dying = clients.connect(will=Will(name, b"gone", qos, retain))
    with Wire(place.nats_port) as wire:
        wire.send(b"SUB %b 1\r\n" % name.encode())
        wire.pong()
        dying.reset()
        (message,) = ear.after(1)
        said = wire.pong()
    headers = said[said.index(b"NATS/1.0\r\n") + 1 : said.index(b"\r\n")]
    assert len(headers) == len(message.headers) == 5 + retain + bool(qos)
    assert all(b":" in line for line in headers)
    assert (message.topic, message.data, message.qos) == (name, b"gone", qos)
    assert ("Foldmq-Retain" in message.headers) == retain
    assert message.headers["Foldmq-Client"] == dying.client_id


def test_offline_clients_get_recorded_messages(clients: Clients, visitor: Visitor) -> None:
    name = unique("away")
    client_id = unique("sleeper")
    first = clients.connect(client_id, clean=False)
    mqtt_subscribed(clients, visitor, (f"{name}/#", 2), client=first)
    first.disconnect()
    for qos in (0, 1, 2):
        visitor.publish(f"{name}.a", b"%d" % qos, Foldmq_QoS=str(qos))
    visitor.recorded(f"{name}.b", b"3")
    again = clients.connect(client_id, clean=False, session_present=True)
    wanted = [(f"{name}/a", b"1", 1), (f"{name}/a", b"2", 2), (f"{name}/b", b"3", 1)]
    came = [again.expect_a(Publish) for _ in wanted]
    assert [(message.topic, message.payload, message.qos) for message in came] == wanted


# ------------------------------------------------------------------ answers


def test_an_mqtt_client_answers_requests(clients: Clients, visitor: Visitor) -> None:
    name = unique("svc")
    server = mqtt_subscribed(clients, visitor, (f"$nats/request/+/{name}/#", 1))
    plain = mqtt_subscribed(clients, visitor, (f"{name}/add", 1))
    for number in range(3):
        answers: list[bytes] = []
        asking = threading.Thread(
            target=lambda: answers.append(visitor.ask(f"{name}.add", b"2+2"))  # noqa: B023
        )
        asking.start()
        request = server.expect_a(Publish)
        token, topic = request.topic.split("/", 3)[2:]
        assert (topic, request.payload, request.qos) == (f"{name}/add", b"2+2", 0)
        plain.expect_publish(f"{name}/add", b"2+2")
        clients.connect().publish("$nats/reply/unknown", b"5")
        server.publish(f"$nats/reply/{token}", b"%d" % number, number)
        asking.join()
        assert answers == [b"%d" % number]
    visitor.publish(f"{name}.add", b"no reply")
    plain.expect_publish(f"{name}/add", b"no reply")
    server.expect_alive()


def test_acknowledged_messages_are_in_the_log(
    place: Place, clients: Clients, visitor: Visitor
) -> None:
    name = unique("js")
    mqtt = mqtt_subscribed(clients, visitor, (name, 1))
    stream = f"FOLDMQ_LOG_{(place.broker.data_dir / 'node').read_text().strip()}"
    acknowledgement = visitor.do(
        visitor.client.jetstream().publish(name, b"1", headers={"Foldmq-QoS": "1"})
    )
    assert acknowledgement.stream == stream
    assert acknowledgement.seq > 0
    assert not acknowledgement.duplicate
    assert received(mqtt, 1) == [(name, b"1", 1)]
    said = visitor.recorded(name, b"2", Nats_Msg_Id="once")
    assert said == {"stream": stream, "seq": said["seq"]}
    assert visitor.recorded(name, b"2", Nats_Msg_Id="once") == {**said, "duplicate": True}
    assert received(mqtt, 1) == [(name, b"2", 1)]
    # the same twice in one write
    ear = visitor.hear("_INBOX.twice")
    with Wire(place.nats_port) as wire:
        headers = b"NATS/1.0\r\nFoldmq-QoS: 1\r\nNats-Msg-Id: twice\r\n\r\n"
        lines = b"HPUB %b _INBOX.twice %d %d\r\n%b3\r\n"
        sizes = len(headers), len(headers) + 1
        wire.send(lines % (name.encode(), *sizes, headers) * 2)
        wire.pong()
    answers = [json.loads(message.data) for message in ear.after(2)]
    assert answers[0]["seq"] == answers[1]["seq"] > 0
    assert ["duplicate" in answer for answer in answers].count(True) == 1
    assert received(mqtt, 1) == [(name, b"3", 1)]


@pytest.mark.parametrize(
    "condition",
    [
        {"Nats_Expected_Stream": "ORDERS"},
        {"Nats_Expected_Last_Sequence": "0"},
        {"Nats_Expected_Last_Subject_Sequence": "0"},
        {"Nats_Expected_Last_Msg_Id": "x"},
    ],
)
@pytest.mark.parametrize("qos", ["0", "1"])
def test_messages_for_another_stream_are_not_acknowledged(
    clients: Clients, visitor: Visitor, condition: dict[str, str], qos: str
) -> None:
    name = unique("elsewhere")
    mqtt = mqtt_subscribed(clients, visitor, (name, 1))
    answers = visitor.hear(f"_INBOX.{name}")
    twice = {"Foldmq_QoS": qos, "Nats_Msg_Id": name}
    for _ in range(2):
        visitor.publish(name, b"x", f"_INBOX.{name}", **condition, **twice)
    # it is observed all the same, as any NATS client that subscribed would
    assert received(mqtt, 2 if qos == "0" else 1)[0] == (name, b"x", int(qos))
    assert visitor.recorded(name, b"last")["seq"] > 0
    assert answers.heard == []


def test_a_stream_in_nats_gets_its_answer(clients: Clients, visitor: Visitor) -> None:
    name = unique("orders")
    jetstream = visitor.client.jetstream()
    visitor.do(jetstream.add_stream(name=name, subjects=[f"{name}.>"]))
    mqtt = mqtt_subscribed(clients, visitor, (f"{name}/#", 1))
    for number in range(1, 6):
        said = visitor.do(
            jetstream.publish(f"{name}.a", b"%d" % number, stream=name, headers={"Foldmq-QoS": "1"})
        )
        assert (said.stream, said.seq) == (name, number)
    assert len(received(mqtt, 5)) == 5
    visitor.do(jetstream.delete_stream(name))


def test_the_log_may_be_the_stream_that_is_named(
    place: Place, clients: Clients, visitor: Visitor
) -> None:
    name = unique("ours")
    mqtt_subscribed(clients, visitor, (name, 1))
    stream = f"FOLDMQ_LOG_{(place.broker.data_dir / 'node').read_text().strip()}"
    assert visitor.recorded(name, b"1", Nats_Expected_Stream=stream)["stream"] == stream


def test_without_an_answering_client_nats_reports_no_responders(
    clients: Clients, visitor: Visitor
) -> None:
    name, client_id = unique("svc"), unique("server")
    first = clients.connect(client_id, clean=False)
    wanted = f"$nats/request/+/{name}/#"
    mqtt_subscribed(clients, visitor, (wanted, 1), client=first)

    def nobody() -> bool:
        try:
            visitor.ask(f"{name}.add", timeout=1)
        except NoRespondersError:
            return True
        except nats.errors.TimeoutError:
            return False
        return False

    first.disconnect()
    until(nobody, "word that there is nobody")
    for _ in range(2):
        again = clients.connect(client_id, clean=False, session_present=True)
        answers: list[bytes] = []
        ready = unique("ready")
        mqtt_subscribed(clients, visitor, (ready, 0), client=again)
        asking = threading.Thread(
            target=lambda: answers.append(visitor.ask(f"{name}.add"))  # noqa: B023
        )
        asking.start()
        token = again.expect_a(Publish).topic.split("/")[2]
        again.publish(f"$nats/reply/{token}", b"4")
        asking.join()
        assert answers == [b"4"]
        again.close()  # without a DISCONNECT
        until(nobody, "word that there is nobody")
    back = clients.connect(client_id, clean=False, session_present=True)
    back.unsubscribe(wanted)
    until(nobody, "word that there is nobody")


def test_nothing_is_answered_before_it_is_on_disk(
    place: Place, clients: Clients, visitor: Visitor
) -> None:
    name = unique("disk")
    mqtt = mqtt_subscribed(clients, visitor, (name, 1))
    ear = visitor.hear("_INBOX.disk", name)
    other = clients.connect()
    stand_still(place.broker.nats_pid)
    try:
        visitor.publish(name, b"x", "_INBOX.disk", Foldmq_QoS="1")
        packet_id = mqtt.next_id()
        mqtt.send(packets.publish(name, b"y", 1, packet_id))
        # QoS 0 passes by meanwhile, both ways
        visitor.publish(name, b"z")
        found = [mqtt.expect_a(Publish)]
        assert [message.payload for message in found if message.qos == 0] == [b"z"]
        other.publish(name, b"w")
        ear.after(3)
        assert b"w" in ear.payloads
        assert not any(message.subject.startswith("_INBOX") for message in ear.heard)
        assert b"y" not in ear.payloads
    finally:
        os.kill(place.broker.nats_pid, signal.SIGCONT)
    until(lambda: b"y" in ear.payloads, "what is recorded now")
    (answer,) = [message for message in ear.heard if message.subject.startswith("_INBOX")]
    assert json.loads(answer.data)["seq"] > 0
