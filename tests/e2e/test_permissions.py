"""Permissions: every kind of denial, on a real broker."""

from collections.abc import Iterator
from pathlib import Path

import argon2
import pytest
from harness.broker import Broker, free_port
from harness.fixtures import Clients, unique
from harness.packets import Publish
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.bridging import Visitor, mqtt_subscribed
from e2e.tools import refused, run

PASSWORD = b"secret"
RULES = """
[groups]
ops = ["olga"]

[[allow]]
users = ["*"]
both = ["open/#"]

[[allow]]
users = ["ann", "olga"]
publish = ["own/%u/#", "by/%c"]
subscribe = ["own/%u/#", "by/+"]

[[allow]]
groups = ["ops"]
both = ["ops/#", "$SYS/#"]

[[allow]]
anonymous = true
subscribe = ["open/news"]

[[deny]]
both = ["open/secret/#", "open/+/hidden"]
"""


class Place:
    """A broker with users and permissions, and what tests change about them."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.rules = directory / "permissions.toml"
        users = directory / "users"
        hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        hashed = hasher.hash(PASSWORD)
        users.write_text("".join(f"{user}:{hashed}\n" for user in ("ann", "bob", "olga")))
        self.nats_port = free_port()
        self.config = (
            f'password_file = "{users}"\npermissions = "{self.rules}"\nallow_anonymous = true\n'
            f'nats_listen = "127.0.0.1:{self.nats_port}"\nnats_anonymous = true\n'
            f'log_format = "json"\n{config}'
        )
        self.rules.write_text(RULES)
        self.broker = Broker(directory, config=self.config, forked=True)
        self.clients: Clients | None = None

    def reload(self, rules: str | None = None, config: str | None = None) -> None:
        """SIGHUP; returns when the broker has taken it over."""
        before = len(self.broker.told("settings reloaded"))
        if rules is not None:
            self.rules.write_text(rules)
        if config is not None:
            self.broker.configure(config)
        self.broker.hangup()
        until(lambda: len(self.broker.told("settings reloaded")) > before, "the reload", 15)

    def client(self, user: str | None, client_id: str | None = None, **more: object) -> RawClient:
        """A connected client."""
        assert self.clients is not None
        password = None if user is None else PASSWORD
        return self.clients.connect(
            client_id,
            username=user,
            password=password,
            **more,  # type: ignore[arg-type]
        )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("permissions"))
    made.broker.start()
    try:
        yield made
        made.broker.stop()
        assert "Traceback" not in made.broker.log
    finally:
        made.broker.clean_up()


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    """The shared broker; a test that changes its rules gets them back."""
    made = shared.clients = Clients("127.0.0.1", shared.broker.port)
    yield shared
    made.close()
    if shared.rules.read_text() != RULES or shared.broker.config_file.read_text() != shared.config:
        shared.reload(RULES, shared.config)


def got(client: RawClient, count: int) -> list[tuple[str, bytes]]:
    """This many messages, each acknowledged, and no more: next comes the answer to a ping."""
    messages = []
    for _ in range(count):
        message = client.expect_a(Publish)
        client.acknowledge(message)
        messages.append((message.topic, message.payload))
    client.expect_alive()
    return messages


# ------------------------------------------------------------------ changes


def test_a_bad_file_changes_nothing(place: Place) -> None:
    before = len(place.broker.told("not reloaded"))
    place.rules.write_text('[[allow]]\nboth = ["#", "a#"]\n')
    place.broker.hangup()
    until(lambda: len(place.broker.told("not reloaded")) > before, "the line about it")
    reason = place.broker.told("not reloaded")[-1]["reason"]
    assert reason.startswith(f"{place.rules}:1: [[allow]] 1: both: ")
    assert place.client("ann").subscribe(("ops/#", 0)) == (0x80,)


def test_a_broker_with_a_bad_file_does_not_start(shared: Place, tmp_path: Path) -> None:
    bad = tmp_path / "permissions.toml"
    bad.write_text("[[allow]]\npublsh = ['a']\n")
    broker = Broker(tmp_path, config=f'permissions = "{bad}"\n', forked=True)
    said = broker.refused(78)
    assert said.startswith(f'{bad}:1: [[allow]] 1: unknown key "publsh"')


# ------------------------------------------------------------------ NATS


def test_the_bridge_is_bound_as_well(place: Place) -> None:
    """It is the user $nats: publish is what NATS may publish, subscribe is what NATS may get."""
    topic = unique("t")
    place.reload(
        """
        [[allow]]
        both = ["#"]
        [[deny]]
        users = ["$nats"]
        publish = ["in/no/#"]
        subscribe = ["out/no/#"]
        """
    )
    assert place.clients is not None
    writer = place.client("bob")
    with Visitor(place.nats_port) as visitor:
        reader = mqtt_subscribed(place.clients, visitor, ("in/#", 1))
        ear = visitor.hear("out.>")
        for qos in (0, 1):
            writer.publish(f"out/no/{topic}", b"x", qos)
            writer.publish(f"out/yes/{topic}", b"x", qos)
        visitor.publish(f"in.no.{topic}", b"x")
        visitor.publish(f"in.yes.{topic}", b"x")
        assert visitor.recorded(f"in.no.{topic}", b"x")["error"]["code"] == 403
        assert "error" not in visitor.recorded(f"in.yes.{topic}", b"x")
        assert {one.subject for one in ear.after(2)} == {f"out.yes.{topic}"}
        assert [name for name, _ in got(reader, 2)] == [f"in/yes/{topic}"] * 2
        # Taken from it while all runs, and given back
        before = place.rules.read_text()
        place.reload(before.replace("/no/", "/"))
        assert visitor.recorded(f"in.yes.{topic}", b"x")["error"]["code"] == 403
        place.reload(before)
        assert "error" not in visitor.recorded(f"in.yes.{topic}", b"x")
        writer.publish(f"out/yes/{topic}", b"again", 1)
        assert ear.after(3)[-1].data == b"again"
        assert got(reader, 1) == [(f"in/yes/{topic}", b"x")]


# ------------------------------------------------------------------ retained messages


def test_retained_messages_without_permission_are_listed_and_removed(place: Place) -> None:
    data = ("--data-dir", str(place.broker.data_dir))
    topic, topics = unique("kept"), {}
    for user in ("ann", "olga"):
        writer = place.client(user, f"{topic}-{user}", clean=False)
        topics[user] = f"own/{user}/{topic}"
        writer.publish(topics[user], b"x", 1, retain=True)
        writer.close()
    shared_topic = f"open/{topic}"
    left = place.client("bob", unique("left"))
    left.publish(shared_topic, b"x", 1, retain=True)
    left.close()

    def permitted() -> dict[str, bool | None]:
        rows = run("retained", "ls", f"+/+/{topic}", "--json", *data).objects
        rows += run("retained", "ls", shared_topic, "--json", *data).objects
        return {row["topic"]: row["permitted"] for row in rows}

    assert permitted() == {topics["ann"]: True, topics["olga"]: True, shared_topic: True}
    place.reload(RULES.replace('users = ["ann", "olga"]', 'users = ["olga"]'))
    assert permitted() == {topics["ann"]: False, topics["olga"]: True, shared_topic: True}
    only = run("retained", "ls", f"+/+/{topic}", "--not-permitted", *data).lines
    assert [line.split()[-4:] for line in only[1:]] == [["no", "-", "-", topics["ann"]]]
    ran = run("retained", "rm", f"+/+/{topic}", "--not-permitted", "--yes", *data)
    assert ran.out.startswith("removed 1 retained message, recorded at ")
    assert permitted() == {topics["olga"]: True, shared_topic: True}
    why = refused("retained", "rm", f"+/+/{topic}", "--not-permitted", "--yes", *data, code=1)
    assert why == f"no retained message without permission on +/+/{topic}"
    assert "--not-permitted" in refused("retained", "rm", "--yes", *data, code=2)
