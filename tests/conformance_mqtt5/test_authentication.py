"""Enhanced authentication: AUTH at CONNECT and again (sections 3.15 and 4.12)."""

from functools import cache
from pathlib import Path

import pytest
from harness import mqtt5_packets as p
from harness import packets
from harness.broker import Broker
from harness.fixtures import unique
from harness.mqtt5_packets import AUTH, Answer, Properties
from harness.mqtt5_rawclient import Clients5, OwnBroker, RawClient5
from harness.packets import CONNACK, PUBACK, SUBACK
from harness.scram import ScramClient

from actors.access.scram import SCRAM_SHA_256, derive_keys, render_keys

HASH = "$argon2id$v=19$m=64,t=1,p=1$MTIzNDU2Nzg$MTIzNDU2Nzg5MDEyMzQ1Ng"
CONTINUE, AGAIN = 0x18, 0x19
PROTOCOL_ERROR, NOT_AUTHORIZED, QUOTA = 0x82, 0x87, 0x97

pytestmark = [pytest.mark.usefixtures("foldmq_only"), pytest.mark.timeout(60)]


@cache
def line(password: str) -> str:
    return f"{HASH}:{render_keys(derive_keys(password.encode(), 4096))}"


@pytest.fixture
def guarded(own: OwnBroker, tmp_path: Path) -> OwnBroker:
    """Starts a broker with ann and bob, both with SCRAM keys."""
    users = tmp_path / "users"
    users.write_text(f"ann:{line('a')}\nbob:{line('b')}\nold:{HASH}\n")

    def start(config: str = "") -> tuple[Broker, Clients5]:
        common = 'allow_anonymous = true\nlog_format = "json"\n'
        return own(f'password_file = "{users}"\n{common}{config}')

    return start


def method(data: bytes | None = None, name: str = SCRAM_SHA_256) -> Properties:
    found: Properties = ((p.AUTHENTICATION_METHOD, name),)
    return found if data is None else (*found, (p.AUTHENTICATION_DATA, data))


def data_of(answer: Answer) -> bytes:
    data = answer.get(p.AUTHENTICATION_DATA)
    assert isinstance(data, bytes)
    return data


def challenged(client: RawClient5) -> bytes:
    """The server's first message of SCRAM, in an AUTH that names the method."""
    found = client.expect_answer(AUTH, code=CONTINUE)
    assert found.get(p.AUTHENTICATION_METHOD) == SCRAM_SHA_256
    return data_of(found)


def begin(
    clients: Clients5, user: str = "ann", password: str = "a", more: Properties = ()
) -> tuple[RawClient5, ScramClient, bytes]:
    """A client whose CONNECT was answered with a challenge."""
    client, login = clients.raw5(), ScramClient(user, password)
    client.send(p.connect(unique("c"), properties=(*method(login.first), *more)))
    return client, login, challenged(client)


def finish(client: RawClient5, login: ScramClient, challenge: bytes) -> None:
    client.send(p.auth(CONTINUE, method(login.final(challenge))))


def enter(clients: Clients5, more: Properties = ()) -> RawClient5:
    """A client that ann logged in with."""
    client, login, challenge = begin(clients, more=more)
    finish(client, login, challenge)
    client.connack = client.expect_answer(CONNACK)
    assert login.trusts(data_of(client.connack))
    return client


# ------------------------------------------------------------------ CONNECT


@pytest.mark.mqtt5("MQTT-4.12.0-2", "MQTT-4.12.0-3", "MQTT-4.12.0-5", "MQTT-3.2.0-1")
def test_auth_until_connack(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client = enter(clients)
    assert client.connack.get(p.AUTHENTICATION_METHOD) == SCRAM_SHA_256
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-4.12.0-4", "MQTT-3.2.2-7")
@pytest.mark.parametrize("user", ["ann", "old", "nobody"])
def test_wrong_password_in_an_exchange(guarded: OwnBroker, user: str) -> None:
    _, clients = guarded()
    client, login, challenge = begin(clients, user, "wrong")
    finish(client, login, challenge)
    client.expect_refused(0x86, NOT_AUTHORIZED)


def test_salts_do_not_reveal_which_users_have_a_password(guarded: OwnBroker) -> None:
    broker, clients = guarded()
    users = ("ann", "old", "nobody")
    before = {user: begin(clients, user)[2].split(b",", 1)[1] for user in users}
    assert {user: begin(clients, user)[2].split(b",", 1)[1] for user in users} == before
    assert len(set(before.values())) == len(users)
    assert {len(rest) for rest in before.values()} == {len(before["ann"])}
    broker.stop()
    broker.start()
    assert {user: begin(clients, user)[2].split(b",", 1)[1] for user in users} == before


@pytest.mark.mqtt5("MQTT-3.1.2-30", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "packet",
    [
        p.publish("t", b"early"),
        p.publish("t", b"early", 1, 1),
        p.subscribe(1, ("t", 0)),
        p.unsubscribe(1, "t"),
        packets.pingreq(),
        p.acknowledge(PUBACK, 1),
        p.auth(AGAIN, method(b"x")),
        p.auth(CONTINUE, method(b"x")) + p.publish("t", b"early"),
    ],
    ids=["PUBLISH", "PUBLISH1", "SUBSCRIBE", "UNSUBSCRIBE", "PINGREQ", "PUBACK", "0x19", "after"],
)
def test_nothing_but_auth_and_disconnect_before_connack(guarded: OwnBroker, packet: bytes) -> None:
    _, clients = guarded()
    client, _, _ = begin(clients)
    client.send(packet)
    client.expect_refused(PROTOCOL_ERROR, 0x86)


@pytest.mark.mqtt5("MQTT-3.1.2-30")
def test_packets_in_one_write_with_the_connect(guarded: OwnBroker, topic: str) -> None:
    _, clients = guarded()
    watcher = clients.five()
    watcher.subscribe((topic, 0))
    for packet in (p.publish(topic, b"early"), p.subscribe(1, (topic, 0))):
        client, login = clients.raw5(), ScramClient("ann", "a")
        client.send(p.connect(unique("c"), properties=method(login.first)) + packet)
        challenged(client)
        client.expect_refused(PROTOCOL_ERROR)
    watcher.expect_nothing()


@pytest.mark.mqtt5("MQTT-3.1.2-30", "MQTT-4.13.1-1")
def test_packets_in_one_write_with_the_last_auth(guarded: OwnBroker, topic: str) -> None:
    _, clients = guarded()
    watcher = clients.five()
    watcher.subscribe((topic, 0))
    client, login, challenge = begin(clients)
    client.send(p.auth(CONTINUE, method(login.final(challenge))) + p.publish(topic, b"early"))
    found = client.receive()
    assert isinstance(found, Answer)
    if found.code:
        assert (found.kind, found.code) == (CONNACK, PROTOCOL_ERROR)
        client.expect_closed()
    else:
        client.expect_ended(PROTOCOL_ERROR)
    watcher.expect_nothing()


def test_disconnect_instead_of_an_answer(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client, _, _ = begin(clients)
    client.leave()


@pytest.mark.mqtt5("MQTT-4.12.0-5", "MQTT-4.13.1-1")
def test_another_method_than_that_of_the_connect(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client, login, challenge = begin(clients)
    client.send(p.auth(CONTINUE, method(login.final(challenge), "SCRAM-SHA-1")))
    client.expect_refused(PROTOCOL_ERROR, 0x8C)
    client = enter(clients)
    client.send(p.auth(AGAIN, method(b"x", "SCRAM-SHA-1")))
    client.expect_ended(PROTOCOL_ERROR, 0x8C)


@pytest.mark.mqtt5("MQTT-4.12.0-1")
@pytest.mark.parametrize("name", ["SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "", "scram-sha-256"])
def test_other_methods_are_not_supported(guarded: OwnBroker, name: str) -> None:
    _, clients = guarded()
    client = clients.raw5()
    client.send(p.connect(unique("c"), properties=method(b"x", name)))
    client.expect_refused(0x8C, NOT_AUTHORIZED)


@pytest.mark.parametrize("flag", ["p=tls-unique", "p=tls-exporter"])
def test_channel_binding_is_refused(guarded: OwnBroker, flag: str) -> None:
    _, clients = guarded()
    client = clients.raw5()
    login = ScramClient("ann", "a", flag)
    client.send(p.connect(unique("c"), properties=method(login.first)))
    client.expect_refused(0x86, NOT_AUTHORIZED)


@pytest.mark.parametrize("data", [None, b"", b"\xff", b"n,,n=ann"])
def test_data_that_is_no_scram(guarded: OwnBroker, data: bytes | None) -> None:
    _, clients = guarded()
    client = clients.raw5()
    client.send(p.connect(unique("c"), properties=method(data)))
    client.expect_refused(0x86, NOT_AUTHORIZED)
    client, _, _ = begin(clients)
    client.send(p.auth(CONTINUE, method(data)))
    client.expect_refused(0x86, NOT_AUTHORIZED)


@pytest.mark.mqtt5("MQTT-3.1.2-24")
def test_a_challenge_larger_than_the_client_allows(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client, login = clients.raw5(), ScramClient("ann", "a")
    client.max_size = 40
    size = (p.MAXIMUM_PACKET_SIZE, 40)
    client.send(p.connect(unique("c"), properties=(*method(login.first), size)))
    client.expect_refused(0x95)


@pytest.mark.mqtt5("MQTT-3.15.2-3", "MQTT-3.15.2-2")
def test_an_auth_has_only_the_required_properties(guarded: OwnBroker) -> None:
    """No Reason String and no User Property; those of the auth callout are in tests/e2e."""
    _, clients = guarded()
    client = enter(clients)
    again = ScramClient("ann", "a")
    client.send(p.auth(AGAIN, method(again.first)))
    found = client.expect_answer(AUTH, code=CONTINUE)
    assert {identifier for identifier, _ in found.properties} == {
        p.AUTHENTICATION_METHOD,
        p.AUTHENTICATION_DATA,
    }


def test_an_exchange_that_takes_too_long(guarded: OwnBroker) -> None:
    _, clients = guarded('connect_timeout = "1s"\n')
    client, _, _ = begin(clients)
    client.expect_closed()
    client = enter(clients)
    client.send(p.auth(AGAIN, method(ScramClient("ann", "a").first)))
    challenged(client)
    client.expect_ended(NOT_AUTHORIZED)


def test_bounds_of_an_exchange(guarded: OwnBroker) -> None:
    _, clients = guarded("max_auth_bytes = 200\nmax_auth_steps = 1\nmax_reauthentications = 2\n")
    client = clients.raw5()
    client.send(p.connect(unique("c"), properties=method(b"x" * 201)))
    client.expect_refused(QUOTA)
    client, login, challenge = begin(clients)
    finish(client, login, challenge)
    client.expect_refused(QUOTA)


def test_level_4_has_no_auth(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client = clients.connect()
    client.send(p.auth(AGAIN, method(b"x")))
    client.expect_closed()


# ------------------------------------------------------------------ again


@pytest.mark.mqtt5("MQTT-4.12.1-1", "MQTT-4.12.0-5")
def test_authenticating_again(guarded: OwnBroker, topic: str) -> None:
    """Messages come and go meanwhile."""
    _, clients = guarded()
    client = enter(clients)
    for _ in range(3):
        login = ScramClient("ann", "a")
        client.send(p.subscribe(7, (topic, 0)) + p.auth(AGAIN, method(login.first)))
        client.expect_answer(SUBACK, 7, codes=(0,))
        challenge = challenged(client)
        client.send(p.publish(topic, b"meanwhile"))
        client.expect_message(topic, b"meanwhile")
        finish(client, login, challenge)
        found = client.expect_answer(AUTH, code=0)
        assert found.get(p.AUTHENTICATION_METHOD) == SCRAM_SHA_256
        assert login.trusts(data_of(found))
    client.expect_alive()


@pytest.mark.mqtt5("MQTT-4.12.1-2")
def test_failing_to_authenticate_again_closes_and_keeps_the_session(
    guarded: OwnBroker, topic: str
) -> None:
    broker, clients = guarded()
    name, keep = unique("c"), (p.SESSION_EXPIRY, 100)

    def connect(*, present: bool) -> RawClient5:
        client, login = clients.raw5(), ScramClient("ann", "a")
        properties = (*method(login.first), keep)
        client.send(p.connect(name, clean=False, properties=properties))
        finish(client, login, challenged(client))
        assert client.expect_answer(CONNACK).session_present == present
        return client

    first = connect(present=False)
    first.send(p.subscribe(1, (topic, 1)))
    first.receive()
    for user, password in (("ann", "wrong"), ("bob", "b"), ("nobody", "x")):
        login = ScramClient(user, password)
        first.send(p.auth(AGAIN, method(login.first)))
        finish(first, login, challenged(first))
        first.expect_ended(NOT_AUTHORIZED)
        publisher = enter(clients)
        publisher.publish(topic, user.encode(), 1)
        first = connect(present=True)
        first.acknowledge(first.expect_message(topic, user.encode(), 1))
    lines = broker.told("re-authentication failed")
    assert [one["reason"] for one in lines][:2] == ["reauthentication", "other_user"]


@pytest.mark.mqtt5("MQTT-4.13.1-1")
@pytest.mark.parametrize("packet", [p.auth(CONTINUE, method(b"x")), p.auth(0x00, method(b"x"))])
def test_an_unexpected_auth(guarded: OwnBroker, packet: bytes) -> None:
    _, clients = guarded()
    client = enter(clients)
    client.send(packet)
    client.expect_ended(PROTOCOL_ERROR)


@pytest.mark.mqtt5("MQTT-4.13.1-1")
def test_authenticating_twice_at_once(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client = enter(clients)
    client.send(p.auth(AGAIN, method(ScramClient("ann", "a").first)))
    challenged(client)
    client.send(p.auth(AGAIN, method(ScramClient("ann", "a").first)))
    client.expect_ended(PROTOCOL_ERROR)


def test_authenticating_too_often(guarded: OwnBroker) -> None:
    _, clients = guarded("max_reauthentications = 2\n")
    client = enter(clients)
    for _ in range(2):
        login = ScramClient("ann", "a")
        client.send(p.auth(AGAIN, method(login.first)))
        finish(client, login, challenged(client))
        client.expect_answer(AUTH, code=0)
    client.send(p.auth(AGAIN, method(ScramClient("ann", "a").first)))
    client.expect_ended(QUOTA)


@pytest.mark.mqtt5("MQTT-4.12.0-7", "MQTT-4.12.0-6")
def test_a_client_without_a_method_cannot_authenticate_again(guarded: OwnBroker) -> None:
    _, clients = guarded()
    client = clients.five()
    client.send(p.auth(AGAIN, method(ScramClient("ann", "a").first)))
    client.expect_ended(PROTOCOL_ERROR)


def test_failures_slow_a_user(guarded: OwnBroker) -> None:
    broker, clients = guarded("login_failures = 2\n")
    for _ in range(2):
        client, login, challenge = begin(clients, "bob", "wrong")
        finish(client, login, challenge)
        client.expect_refused(0x86)
    enter(clients).expect_alive()
    assert broker.told("logins slowed for a while")
