"""Section 3.2: CONNACK and its promises."""

from collections.abc import Callable
from pathlib import Path

import argon2
import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.fixtures import unique
from harness.mqtt5_packets import Answer, Properties, Will
from harness.mqtt5_rawclient import Clients5, OwnBroker, RawClient5
from harness.packets import CONNACK, DISCONNECT, PUBACK, SUBACK

KEEP = ((p.SESSION_EXPIRY, 100),)


# ------------------------------------------------------------ session present


@pytest.mark.mqtt5(
    "MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.2.2-1", "MQTT-3.2.2-2", "MQTT-3.2.2-3"
)
def test_session_present(clients: Clients5, topic: str) -> None:
    clients.five(topic, clean=True, properties=KEEP).leave()
    clients.five(topic, clean=True, properties=KEEP).leave()
    clients.resumed(topic, KEEP).close()
    clients.resumed(topic, KEEP).leave()
    clients.five(topic, clean=True, properties=KEEP).leave()
    clients.five(f"{topic}new", clean=False, session_present=False, properties=KEEP).leave()
    clients.resumed(f"{topic}new").leave()


@pytest.mark.mqtt5("MQTT-3.2.2-6", "MQTT-3.2.2-7")
def test_session_present_is_0_where_the_connect_is_refused(clients: Clients5, topic: str) -> None:
    clients.five(topic, properties=KEEP).leave()
    client = clients.raw5()
    client.send(p.connect(topic, clean=False, properties=p.prop(p.MAXIMUM_PACKET_SIZE, 0)))
    assert not client.expect_refused(0x82).session_present


# ---------------------------------------------------------------- properties


@pytest.mark.mqtt5("MQTT-3.2.2-8", "MQTT-3.1.2-28", "MQTT-2.2.2-1", "MQTT-3.2.2-9")
@pytest.mark.parametrize("asked", [None, 0])
def test_no_response_information_unless_requested(clients: Clients5, asked: int | None) -> None:
    properties = () if asked is None else ((p.REQUEST_RESPONSE_INFORMATION, asked),)
    found = clients.five(properties=properties).connack
    assert found.get(p.RESPONSE_INFORMATION) is None
    assert found.get(p.AUTHENTICATION_METHOD) is None
    assert found.get(p.MAXIMUM_QOS) is None
    assert found.get(p.RETAIN_AVAILABLE) in {None, 1}


def test_session_expiry_of_the_connack_is_that_of_the_connect(clients: Clients5) -> None:
    """No bound on it is set, so the server takes what the client asks for (3.2.2.3.2)."""
    for asked in (0, 1, 100, 0xFFFFFFFE, 0xFFFFFFFF):
        client = clients.five(properties=((p.SESSION_EXPIRY, asked),))
        assert client.connack.number(p.SESSION_EXPIRY, asked) == asked
        client.leave(0, ((p.SESSION_EXPIRY, 0),))


@pytest.mark.mqtt5("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_a_limited_session_expiry_is_in_connack(own: OwnBroker, topic: str) -> None:
    _, clients = own('session_expiry = "1s"')
    for asked in (100, 0xFFFFFFFF):
        client = clients.five(f"{topic}{asked}", properties=((p.SESSION_EXPIRY, asked),))
        assert client.connack.get(p.SESSION_EXPIRY) == 1


# ------------------------------------------------------- maximum packet size


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-3.2.2-19", "MQTT-3.2.2-20")
@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 10, 14, 15, 20])
@pytest.mark.parametrize("client_id", [None, ""], ids=["named", "nameless"])
def test_connack_is_no_larger_than_allowed(
    clients: Clients5, size: int, client_id: str | None
) -> None:
    """A CONNACK that would be larger is not sent; `RawClient5` checks each packet."""
    client = clients.raw5()
    client.max_size = size
    name = unique("c") if client_id is None else client_id
    client.send(p.connect(name, properties=((p.MAXIMUM_PACKET_SIZE, size),)), packets.pingreq())
    received = client.receive_all(1.0)
    if received:
        assert isinstance(received[0], Answer)
        assert received[0].kind == CONNACK
    else:
        client.expect_closed()


@pytest.mark.mqtt5("MQTT-3.1.2-24", "MQTT-3.2.2-19", "MQTT-3.1.4-1")
@pytest.mark.parametrize("size", [5, 20, 40])
def test_refusal_is_no_larger_than_allowed(clients: Clients5, size: int) -> None:
    client = clients.raw5()
    client.max_size = size
    both = p.prop(p.MAXIMUM_PACKET_SIZE, size) + p.prop(p.RECEIVE_MAXIMUM, 0)
    client.send(p.connect(unique("c"), properties=both))
    client.expect_end_of(CONNACK, 0x82)


# ------------------------------------------------------------ login refused


@pytest.fixture
def guarded(own: OwnBroker, tmp_path: Path) -> Callable[..., Clients5]:
    """Starts a broker with one user, who may publish and subscribe below open/ only."""

    def start(config: str = "") -> Clients5:
        hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        (tmp_path / "users").write_text(f"ann:{hasher.hash(b'secret')}\n")
        rules = '[[allow]]\nusers = ["*"]\nboth = ["open/#"]\n'
        (tmp_path / "permissions.toml").write_text(rules)
        files = (
            f'password_file = "{tmp_path / "users"}"\n'
            f'permissions = "{tmp_path / "permissions.toml"}"\n'
        )
        return own(files + config)[1]

    return start


def ann(clients: Clients5, **options: object) -> RawClient5:
    """A connected client of that user."""
    return clients.five(username="ann", password=b"secret", **options)  # type: ignore[arg-type]


@pytest.mark.mqtt5("MQTT-3.1.4-2", "MQTT-3.2.2-7", "MQTT-3.2.2-8", "MQTT-3.2.2-6", "MQTT-4.12.0-4")
def test_wrong_password_and_no_user(guarded: Callable[..., Clients5]) -> None:
    clients = guarded()
    client = clients.raw5()
    client.send(p.connect(unique("c"), username="ann", password=b"wrong"))
    client.expect_refused(0x86, 0x87)
    client = clients.raw5()
    client.send(p.connect(unique("c")))
    client.expect_refused(0x86, 0x87)
    ann(clients).expect_alive()


@pytest.mark.mqtt5("MQTT-3.1.4-2", "MQTT-3.1.4-6")
def test_will_that_is_not_permitted(guarded: Callable[..., Clients5]) -> None:
    clients = guarded('denied_publish = "close"')
    client = clients.raw5()
    will = Will("closed/x")
    client.send(p.connect(unique("c"), username="ann", password=b"secret", will=will))
    client.expect_refused(0x87)


@pytest.mark.mqtt5("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.9.3-1", "MQTT-3.9.3-2", "MQTT-3.8.4-7")
def test_denials_have_a_reason_string(guarded: Callable[..., Clients5]) -> None:
    client = ann(guarded())
    client.send(p.publish("closed/x", b"", 1, 1))
    client.expect_answer(PUBACK, 1, 0x87)
    client.send(p.publish("closed/x", b"", 2, 2))
    client.expect_answer(packets.PUBREC, 2, 0x87)
    assert client.subscribe(("open/a", 1), ("closed/x", 1), ("open/b", 2)) == (1, 0x87, 2)
    client.send(p.publish("closed/x", b"", 2, 2))  # a new message [MQTT-4.3.3-9]
    client.expect_answer(packets.PUBREC, 2, 0x87)
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-4.3.3-9", "MQTT-4.3.2-5", "MQTT-4.3.2-4")
def test_identifier_of_a_refused_message_is_free_again(guarded: Callable[..., Clients5]) -> None:
    clients = guarded()
    client, other = ann(clients), ann(clients)
    assert other.subscribe(("open/#", 2)) == (2,)
    client.send(p.publish("closed/x", b"", 2, 7))
    client.expect_answer(packets.PUBREC, 7, 0x87)
    client.send(p.publish("open/x", b"new", 2, 7))
    client.expect_answer(packets.PUBREC, 7)
    client.release(7)
    other.acknowledge(other.expect_message("open/x", b"new", 2))
    client.send(p.publish("closed/x", b"", 1, 7))
    client.expect_answer(PUBACK, 7, 0x87)
    client.publish("open/y", b"new", 1, packet_id=7)
    other.acknowledge(other.expect_message("open/y", b"new", 1))


@pytest.mark.mqtt5("MQTT-3.3.2-12", "MQTT-3.4.2-1")
def test_alias_that_came_with_a_refused_message_holds(guarded: Callable[..., Clients5]) -> None:
    clients = guarded()
    client, other = ann(clients), ann(clients)
    assert other.subscribe(("open/#", 1)) == (1,)
    alias: Properties = ((p.TOPIC_ALIAS, 1),)
    client.send(p.publish("closed/x", b"", 1, 1, properties=alias))
    client.expect_answer(PUBACK, 1, 0x87)
    client.send(p.publish("", b"", 1, 2, properties=alias))
    client.expect_answer(PUBACK, 2, 0x87)
    client.publish("open/x", b"1", 1, packet_id=3, properties=alias)
    client.publish("", b"2", 1, packet_id=4, properties=alias)
    for payload in (b"1", b"2"):
        other.acknowledge(other.expect_message("open/x", payload, 1))


def test_refusals_carry_a_reason_string(guarded: Callable[..., Clients5]) -> None:
    clients, name = guarded(), unique("c")
    client = ann(clients, client_id=name)
    client.send(
        p.publish("closed/x", b"", 1, 1),
        p.publish("closed/x", b"", 2, 2),
        p.subscribe(3, ("open/a", 0), ("closed/x", 0), ("closed/y", 0)),
        p.publish("open/x", b"", 1, 4),
    )
    answers = {}
    for _ in range(4):
        answer = client.receive()
        assert isinstance(answer, Answer)
        codes = answer.codes or (answer.code,)
        answers[answer.kind, answer.packet_id] = (codes, answer.get(p.REASON_STRING))
    assert answers == {
        (PUBACK, 1): ((0x87,), "not authorized"),
        (packets.PUBREC, 2): ((0x87,), "not authorized"),
        (SUBACK, 3): ((0, 0x87, 0x87), "not authorized: closed/x (and 1 more)"),
        (PUBACK, 4): ((0,), None),
    }
    again = ann(clients, client_id=name)
    assert client.expect_ended(0x8E).get(p.REASON_STRING) == (
        "another connection uses this client identifier"
    )
    again.send(p.publish("", b"no topic and no alias"))
    assert again.expect_ended(0x82).get(p.REASON_STRING)
    refused = clients.raw5()
    refused.send(p.connect(unique("c"), username="ann", password=b"wrong"))
    assert refused.expect_refused(0x86, 0x87).get(p.REASON_STRING) is None


@pytest.mark.mqtt5("MQTT-3.1.2-29")
def test_problem_information_0_leaves_reasons_out(guarded: Callable[..., Clients5]) -> None:
    client = ann(guarded(), properties=((p.REQUEST_PROBLEM_INFORMATION, 0),))
    client.send(
        p.publish("closed/x", b"", 1, 1),
        p.publish("closed/x", b"", 2, 2),
        p.subscribe(3, ("closed/x", 0)),
        p.unsubscribe(4, "never/subscribed"),
        p.acknowledge(packets.PUBREL, 9),
        p.acknowledge(packets.PUBREC, 9),
    )
    answers = [client.receive() for _ in range(6)]
    for answer in answers:
        assert isinstance(answer, Answer)
        assert answer.properties == ()
    client.send(p.publish("", b"no topic and no alias"))
    found = client.receive()
    assert isinstance(found, Answer)
    assert (found.kind, found.code) == (DISCONNECT, 0x82)  # which may have a reason string


@pytest.mark.mqtt5(
    "MQTT-3.1.2-24",
    "MQTT-3.4.2-2",
    "MQTT-3.4.2-3",
    "MQTT-3.5.2-2",
    "MQTT-3.5.2-3",
    "MQTT-3.6.2-2",
    "MQTT-3.6.2-3",
    "MQTT-3.7.2-2",
    "MQTT-3.7.2-3",
    "MQTT-3.9.2-1",
    "MQTT-3.9.2-2",
    "MQTT-3.11.2-1",
    "MQTT-3.11.2-2",
    "MQTT-3.14.2-3",
    "MQTT-3.14.2-4",
)
def test_reason_strings_do_not_make_packets_too_large(guarded: Callable[..., Clients5]) -> None:
    """20 bytes leave room for each answer, and not for a sentence beside it."""
    client = ann(guarded(), properties=((p.MAXIMUM_PACKET_SIZE, 20),))
    client.send(
        p.publish("closed/x", b"", 1, 1),
        p.publish("closed/x", b"", 2, 2),
        p.subscribe(3, ("closed/x", 0)),
        p.unsubscribe(4, "never/subscribed"),
        p.acknowledge(packets.PUBREL, 9),
        p.acknowledge(packets.PUBREC, 9),
    )
    kinds = {PUBACK, packets.PUBREC, SUBACK, packets.UNSUBACK, packets.PUBCOMP, packets.PUBREL}
    answers = [client.receive() for _ in range(6)]
    assert {answer.kind for answer in answers if isinstance(answer, Answer)} == kinds
    client.send(p.publish("", b"no topic and no alias"))
    client.expect_ended(0x82)


# ------------------------------------------------------------------ maximum QoS


@pytest.mark.mqtt5(
    "MQTT-3.2.2-9", "MQTT-3.2.2-10", "MQTT-3.2.2-11", "MQTT-3.2.2-12", "MQTT-3.1.4-2"
)
def test_a_server_without_qos_2(own: OwnBroker, topic: str) -> None:
    _, clients = own("reject_qos2_publish = true")
    client = clients.five()
    assert client.connack.get(p.MAXIMUM_QOS) == 1
    assert client.subscribe((topic, 2))[0] in {1, 2}
    client.publish(topic, b"one", 1)
    client.acknowledge(client.expect_message(topic, b"one", 1))
    client.send(p.publish(topic, b"two", 2, 9))
    client.expect_ended(0x9B)
    refused = clients.raw5()
    refused.send(p.connect(unique("c"), will=Will(topic, qos=2)))
    refused.expect_refused(0x9B)
    clients.five(will=Will(topic, qos=1)).expect_alive()


# ------------------------------------------------------------------ keep alive


@pytest.mark.mqtt5("MQTT-3.1.2-22", "MQTT-3.1.2-20", "MQTT-3.2.2-22", "MQTT-3.1.2-8")
def test_keep_alive(clients: Clients5, topic: str) -> None:
    """A silent client is closed as if the network had failed, and gets DISCONNECT."""
    watcher = clients.listening(topic)
    pinging = clients.five(keepalive=1)
    unlimited = clients.five(keepalive=0)
    silent = clients.five(keepalive=1, will=Will(topic, b"silent"))
    assert silent.connack.get(p.SERVER_KEEP_ALIVE) is None
    for _ in range(40):
        pinging.expect_alive()
        try:
            silent.expect_nothing(0.2)
        except AssertionError as error:
            assert "DISCONNECT(0x8D" in str(error)  # noqa: PT017
            break
    else:
        pytest.fail("a keep alive of 1 s did not end the connection within 8 s")
    silent.expect_closed()
    watcher.expect_message(topic, b"silent")
    pinging.expect_alive()
    unlimited.expect_alive()


@pytest.mark.mqtt5("MQTT-3.2.2-22")
def test_a_longest_keep_alive(own: OwnBroker) -> None:
    """CONNACK has the value if it differs from the requested one; the broker enforces it."""
    _, clients = own('max_keep_alive = "2s"\n')
    silent = {asked: clients.five(keepalive=asked) for asked in range(4)}
    announced = [client.connack.get(p.SERVER_KEEP_ALIVE) for client in silent.values()]
    assert announced == [2, None, None, 2]
    for client in silent.values():
        client.expect_ended(0x8D)


@pytest.mark.mqtt5("MQTT-3.12.4-1")
def test_pingreq(clients: Clients5) -> None:
    client = clients.five()
    for _ in range(3):
        client.expect_alive()


# ----------------------------------------------------------------- shutting down


@pytest.mark.mqtt5("MQTT-4.13.2-1", "MQTT-3.14.4-2", "MQTT-3.14.2-2", "MQTT-3.14.2-1")
def test_a_server_shutdown_sends_disconnect(own: OwnBroker) -> None:
    broker, clients = own()
    new, old = clients.five(), clients.connect()
    broker.stop()
    new.expect_ended(0x8B)
    old.expect_closed()


@pytest.mark.mqtt5("MQTT-3.1.2-28")
def test_response_information_for_those_that_request_it(own: OwnBroker) -> None:
    _, clients = own('response_information = "reply/%c"\n')
    asked = ((p.REQUEST_RESPONSE_INFORMATION, 1),)
    for client_id, properties, found in (
        ("one", asked, "reply/one"),
        ("one", (), None),
        ("two/levels", asked, None),
        ("#", asked, None),
    ):
        client = clients.five(client_id, properties=properties)
        assert client.connack.get(p.RESPONSE_INFORMATION) == found
    longest = clients.five("x" * 65_530, properties=asked)
    assert longest.connack.get(p.RESPONSE_INFORMATION) is None
    client = clients.five("", properties=asked)
    assigned = client.connack.get(p.ASSIGNED_CLIENT_IDENTIFIER)
    assert client.connack.get(p.RESPONSE_INFORMATION) == f"reply/{assigned}"


@pytest.mark.mqtt5("MQTT-3.1.2-24")
def test_a_refused_login_is_no_larger_than_allowed(guarded: Callable[..., Clients5]) -> None:
    client = guarded().raw5()
    client.send(p.connect(unique("c"), properties=((p.MAXIMUM_PACKET_SIZE, 4),)))
    client.expect_closed()
