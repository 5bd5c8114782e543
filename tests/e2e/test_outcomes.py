"""The prediction of ``foldmq subscriptions``, proved by the next message."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.broker import Broker
from harness.fixtures import EXTERNAL, Clients

from e2e.tools import run

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs to start its own foldmq")

RULES = """
[[allow]]
anonymous = true
both = ["#"]

[[deny]]
anonymous = true
subscribe = ["hall/secret"]
"""


@pytest.fixture
def limited(make_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    rules = tmp_path / "permissions.toml"
    rules.write_text(RULES)
    made = make_broker(
        f'max_ack_pending = 2\nmax_queued_messages = 2\nack_wait = 0\npermissions = "{rules}"\n'
        "allow_anonymous = true\n"
    )
    made.start()
    return made


@pytest.fixture
def clients(limited: Broker) -> Iterator[Clients]:
    found = Clients("127.0.0.1", limited.port)
    yield found
    found.close()


def outcome(broker: Broker, topic: str, client: str, *more: str) -> dict[str, Any]:
    data = ("--data-dir", str(broker.data_dir))
    (found,) = run("subscriptions", "--topic", topic, *data, "--json", *more).objects
    (row,) = [row for row in found["subscriptions"] if row["client"] == client]
    return dict(row)


def test_a_window_that_is_full_and_a_queue_that_is_full(limited: Broker, clients: Clients) -> None:
    reader, writer = clients.connect("reader", clean=False), clients.connect("writer")
    reader.subscribe(("hall/#", 1))
    for number in range(2):
        assert outcome(limited, "hall/door", "reader")["why"] == "sent"
        writer.publish("hall/door", b"%d" % number, 1)
        reader.expect_publish("hall/door", b"%d" % number, 1)
    for number in range(2):
        row = outcome(limited, "hall/door", "reader")
        assert (row["why"], row["reason"]) == ("queued", "window")
        assert (row["outstanding"], row["window"]) == (2, 2)
        writer.publish("hall/door", b"%d" % number, 1)
    row = outcome(limited, "hall/door", "reader")
    assert (row["why"], row["reason"], row["queue"]) == ("dropped", "window", "queue_messages")
    assert outcome(limited, "hall/door", "reader", "--qos", "0")["why"] == "sent"
    writer.publish("hall/door", b"lost", 1)
    data = ("--data-dir", str(limited.data_dir))
    (event,) = run("log", *data, "--json", "--type", "MessageDropped").objects
    assert (event["session"], event["reason"]) == ("reader", "queue_messages")
    lines = run("subscriptions", "--topic", "hall/door", *data).lines
    assert lines[1].split(maxsplit=3)[3] == (
        "dropped: queue full, 2 (max_queued_messages); "
        "window full, 2 unacknowledged (max_ack_pending)"
    )
    assert lines[2] == (
        "hall/door, a message at QoS 1 now: sent to 0 clients, queued for 0, dropped for 1"
    )


def test_a_client_that_may_not_read_the_topic(limited: Broker, clients: Clients) -> None:
    clients.connect("spy").subscribe(("hall/#", 1))
    assert outcome(limited, "hall/secret", "spy")["why"] == "denied"
    assert outcome(limited, "hall/door", "spy")["why"] == "sent"


def test_a_shared_subscription_without_room(limited: Broker, clients: Clients) -> None:
    name = "$share/pool/hall/#"
    member, writer = clients.connect("member"), clients.connect("writer")
    member.subscribe((name, 1))
    assert outcome(limited, "hall/door", name)["why"] == "shared"
    assert outcome(limited, "hall/secret", name)["why"] == "denied"
    for number in range(2):
        writer.publish("hall/door", b"%d" % number, 1)
        member.expect_publish("hall/door", b"%d" % number, 1)
    row = outcome(limited, "hall/door", name)
    assert (row["why"], row["reason"]) == ("shared_waits", "no_room")
    for number in range(2):
        writer.publish("hall/door", b"%d" % number, 1)
    row = outcome(limited, "hall/door", name)
    assert (row["why"], row["reason"], row["queue"]) == ("dropped", "no_room", "queue_messages")


def test_a_queue_that_is_full_in_bytes(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker('max_queued_bytes = "16KiB"\n')
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    away, writer = clients.connect("away", clean=False), clients.connect("writer")
    away.subscribe(("hall/#", 1))
    away.disconnect()
    for _ in range(6):
        writer.publish("hall/door", bytes(3_000), 1)
    row = outcome(broker, "hall/door", "away")
    assert (row["why"], row["queue"], row["queued"]) == ("dropped", "queue_bytes", 5)
    assert outcome(broker, "hall/door", "away", "--size", "1384")["why"] == "queued"
    assert outcome(broker, "hall/door", "away", "--size", "1385")["why"] == "dropped"
    data = ("--data-dir", str(broker.data_dir))
    lines = run("subscriptions", "--topic", "hall/door", *data).lines
    assert lines[1].endswith(
        "dropped: queue full for more than 1,384 bytes, 15,000 of 16,384 bytes (max_queued_bytes); "
        "offline"
    )
    said = run("doctor", *data, code=1).out
    assert "problem   away loses messages: its queue is full" in said
    evidence = " ".join(said.split())
    assert "5 messages with 15,000 of 16,384 bytes wait, 1 message dropped since" in evidence
    assert (
        "each further one that is larger than 1,384 bytes is dropped (max_queued_bytes)" in evidence
    )
    clients.close()
