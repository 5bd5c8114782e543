"""The sink kafka with a cluster of librdkafka: order by key, nothing lost, refusals."""

from collections.abc import Callable, Iterator

import pytest
from harness.broker import Broker
from harness.kafka import Kafka
from harness.waiting import until

from e2e.outbox_process import VICTIMS, outbox_of, strike
from e2e.test_outbox_http import publish
from e2e.tools import run

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def cluster() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def sink(cluster: Kafka, more: str = "") -> str:
    return (
        f'[sink.k]\nkind = "kafka"\nservers = {cluster.servers!r}\ntopic = "mqtt"\n'
        f'filters = ["orders/#"]\nretry = "50ms 200ms"\n{more}'
    )


def by_key(cluster: Kafka) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for message in cluster.messages():
        values.setdefault(message.key, []).append(message.value.decode())
    return values


def publish_many(broker: Broker, numbers: range) -> None:
    for topic in ("orders/1", "orders/2", "orders/3"):
        publish(broker, *numbers, topic=topic)


def test_messages_are_in_order_of_their_topics(
    make_broker: Callable[..., Broker], cluster: Kafka
) -> None:
    broker = make_broker(sink(cluster))
    broker.start()
    publish_many(broker, range(20))
    publish(broker, "two", qos=2)
    publish(broker, "other", topic="elsewhere")
    until(lambda: len(cluster.messages()) == 61, "all messages")
    expected = [*map(str, range(20))]
    assert by_key(cluster) == {
        "orders/1": [*expected, "two"],
        "orders/2": expected,
        "orders/3": expected,
    }
    where = ("--data-dir", str(broker.data_dir))
    event = run("log", *where, "--json", "--type", "MessagePublished").objects[0]
    first = next(each for each in cluster.messages() if each.key == "orders/1")
    (header,) = first.headers
    assert header[0] == "foldmq-position"
    assert header[1].decode().rpartition("/")[2] == event["position"]
    broker.stop()


@pytest.mark.parametrize("victim", [*VICTIMS, "cluster"])
def test_nothing_is_lost_after_a_kill(
    make_broker: Callable[..., Broker], cluster: Kafka, victim: str
) -> None:
    broker = make_broker(sink(cluster, 'timeout = "1s"\n'))
    broker.start()
    publish_many(broker, range(10))
    until(lambda: outbox_of(broker), "the outbox")
    strike(broker, victim, cluster.stop)
    publish_many(broker, range(10, 20))
    if victim == "cluster":
        where = ("--data-dir", str(broker.data_dir))
        until(lambda: "retrying" in run("outbox", "show", "k", *where).out, "the state")
        cluster.go_on()
    expected = {f"orders/{topic}": [*map(str, range(20))] for topic in (1, 2, 3)}
    until(
        lambda: (
            {key: list(dict.fromkeys(values)) for key, values in by_key(cluster).items()}
            == expected
        ),
        "all messages, in order but for repetitions",
        pause=0.3,
    )
    # What came twice has the same position.
    positions = {(each.key, each.value, each.headers[-1][1]) for each in cluster.messages()}
    assert len(positions) == 60
    broker.stop()


def test_a_message_that_is_too_large_is_refused_and_the_others_come_once(
    make_broker: Callable[..., Broker], cluster: Kafka
) -> None:
    broker = make_broker(
        sink(cluster, 'batch_wait = "500ms"\noptions = {"message.max.bytes" = 2000}\n')
    )
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    publish(broker, "a", "x" * 5000, "b", "y" * 5000, "c")
    until(lambda: by_key(cluster) == {"orders/1": ["a", "b", "c"]}, "the others")
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 2, "the refusals")
    reasons = {row["reason"] for row in run("outbox", "refused", "k", *where, "--json").objects}
    (reason,) = reasons
    assert "Message size too large" in reason
    publish(broker, "d")
    until(lambda: by_key(cluster) == {"orders/1": ["a", "b", "c", "d"]}, "the next message")
    broker.stop()
