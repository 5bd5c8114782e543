"""Permissions of shared subscriptions: joining a group, and receiving its messages."""

from collections.abc import Iterator
from pathlib import Path

import argon2
import pytest
from harness.broker import Broker
from harness.fixtures import unique
from harness.mqtt5_packets import Publish
from harness.mqtt5_rawclient import Clients5, RawClient5
from harness.packets import Pingresp, pingreq
from harness.waiting import until

USERS = ("ann", "bob", "writer")
RULES = """
[[allow]]
users = ["*"]
both = ["#"]

[[deny]]
users = ["bob"]
subscribe = ["closed/#"]
"""
WITHDRAWN = """
[[deny]]
users = ["bob"]
subscribe = ["open/#"]
"""


class Guarded:
    """A broker with users and permissions, and clients of level 5."""

    def __init__(self, directory: Path) -> None:
        self.rules = directory / "permissions.toml"
        self.rules.write_text(RULES)
        hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        users = directory / "users"
        users.write_text("".join(f"{user}:{hasher.hash(b'secret')}\n" for user in USERS))
        config = f'password_file = "{users}"\npermissions = "{self.rules}"\nlog_format = "json"\n'
        self.broker = Broker(directory, config=config, forked=True)

    def reload(self, rules: str) -> None:
        """SIGHUP with these rules; returns when the broker has taken them over."""
        before = len(self.broker.told("settings reloaded"))
        self.rules.write_text(rules)
        self.broker.hangup()
        until(lambda: len(self.broker.told("settings reloaded")) > before, "the reload")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("shared_permissions"))
    made.broker.start()
    try:
        yield made
        made.broker.stop()
        assert "Traceback" not in made.broker.log
    finally:
        made.broker.clean_up()


@pytest.fixture
def guarded(started: Guarded) -> Iterator[Guarded]:
    """The broker; a test that changes its rules gets them back."""
    yield started
    if started.rules.read_text() != RULES:
        started.reload(RULES)


@pytest.fixture
def clients(guarded: Guarded) -> Iterator[Clients5]:
    made = Clients5("127.0.0.1", guarded.broker.port)
    yield made
    made.close()


def user(clients: Clients5, name: str) -> RawClient5:
    return clients.five(username=name, password=b"secret")


def received(client: RawClient5) -> list[bytes]:
    """The messages that the client gets, all acknowledged, until there are no more."""
    found: list[Publish] = []
    client.send(pingreq())
    while not isinstance(one := client.receive(), Pingresp):
        assert isinstance(one, Publish), one
        found.append(one)
    for one in found:
        client.acknowledge(one)
    return [one.payload for one in found] + (received(client) if found else [])


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%02d" % number for number in range(begin, end)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_member_without_permission_gets_nothing(
    guarded: Guarded, clients: Clients5, qos: int
) -> None:
    topic = f"open/{unique('t')}"
    bob, ann, writer = (user(clients, name) for name in USERS[1::-1] + USERS[2:])
    for one in (bob, ann):
        assert one.subscribe((f"$share/g/{topic}", qos)) == (qos,)
    for payload in numbers(0, 6):
        writer.publish(topic, payload, qos)
    writer.send(pingreq())
    writer.expect(Pingresp())
    before = received(bob)
    assert before
    assert sorted(before + received(ann)) == numbers(0, 6)
    guarded.reload(RULES + WITHDRAWN)
    for payload in numbers(6, 26):
        writer.publish(topic, payload, qos)
    writer.send(pingreq())
    writer.expect(Pingresp())
    assert received(bob) == []
    assert received(ann) == numbers(6, 26)
    guarded.reload(RULES)
    for payload in numbers(26, 46):
        writer.publish(topic, payload, qos)
    writer.send(pingreq())
    writer.expect(Pingresp())
    assert sorted(received(bob) + received(ann)) == numbers(26, 46)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("back", ["ann", "bob"])
def test_messages_that_no_member_may_read_wait_for_one_that_may(
    guarded: Guarded, clients: Clients5, qos: int, back: str
) -> None:
    """For another member, or for the permission."""
    topic = f"open/{unique('t')}"
    bob, writer = user(clients, "bob"), user(clients, "writer")
    assert bob.subscribe((f"$share/g/{topic}", qos)) == (qos,)
    guarded.reload(RULES + WITHDRAWN)
    for payload in numbers(0, 6):
        writer.publish(topic, payload, qos)
    assert received(bob) == []
    if back == "ann":
        taker = user(clients, "ann")
        assert taker.subscribe((f"$share/g/{topic}", qos)) == (qos,)
    else:
        taker = bob
        guarded.reload(RULES)  # sessions get them in later turns
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(received(taker))
        return len(found) >= 6

    until(has_all, "what waited")
    assert found == numbers(0, 6)
    assert received(bob) == []
