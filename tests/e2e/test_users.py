"""Users and passwords: CONNACK 0x04 and 0x05."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.fixtures import Clients, unique
from harness.packets import Connack, Will

from e2e.passwordfiles import add_user


@pytest.fixture
def own(make_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker with the user ada, not started."""
    users = tmp_path / "users"
    add_user(users, "ada", "pass word: \u00e9")
    return make_broker(f'password_file = "{users}"\n')


def answer(own: Broker, username: str | None, password: bytes | None) -> Connack:
    """The CONNACK for this user; a refused client must be closed."""
    clients = Clients("127.0.0.1", own.port)
    client = clients.raw()
    connack = client.connect(unique("c"), username=username, password=password)
    if connack.code:
        client.expect_closed()
    else:
        client.expect_alive()
    clients.close()
    return connack


@pytest.mark.mqtt("MQTT-3.2.2-4", "MQTT-3.2.2-5", "MQTT-3.1.2-19", "MQTT-3.1.2-21")
def test_users(own: Broker) -> None:
    own.start()
    good = "pass word: \u00e9".encode()
    assert answer(own, "ada", good) == Connack(0)
    assert answer(own, "ada", b"wrong") == Connack(4)
    assert answer(own, "ada", b"") == Connack(4)
    assert answer(own, "ada", good + b"\0") == Connack(4)
    assert answer(own, "Ada", good) == Connack(4)
    assert answer(own, "nobody", good) == Connack(4)
    assert answer(own, "", b"") == Connack(4)
    assert answer(own, "ada", None) == Connack(4)
    assert answer(own, None, None) == Connack(5)
    own.stop()
    assert "pass word" not in own.log


@pytest.mark.mqtt("MQTT-3.1.4-5", "MQTT-3.1.4-2")
def test_refused_client_touches_nothing(own: Broker) -> None:
    own.start()
    clients = Clients("127.0.0.1", own.port)
    good = {"username": "ada", "password": "pass word: \u00e9".encode()}
    known = clients.connect("known", clean=False, **good)  # type: ignore[arg-type]
    known.subscribe(("#", 1))
    intruder = clients.raw()
    will = Will("t", b"forged", 1, retain=True)
    refused = intruder.connect("known", clean=True, will=will, username="ada", password=b"x")
    assert refused == Connack(4)
    intruder.expect_closed()
    known.expect_alive()
    known.expect_nothing()
    known.disconnect()
    clients.connect("known", clean=False, session_present=True, **good)  # type: ignore[arg-type]
    clients.close()
    own.stop()
