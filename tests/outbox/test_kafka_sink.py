"""The sink kafka without a cluster: what librdkafka itself does not take."""

import pytest

from eventstore.format.positions import position
from outbox.sink import Destination, OutboxMessage, TryAgain

kafka = pytest.importorskip("outbox.sinks.kafka")

pytestmark = pytest.mark.system


async def never(_position: int) -> None:
    raise AssertionError


async def test_a_queue_that_is_shorter_than_a_batch_is_the_reason() -> None:
    options = {"queue.buffering.max.messages": 1, "message.timeout.ms": 100}
    sink = kafka.KafkaSink(kafka.KafkaOptions(["127.0.0.1:1"], "mqtt", 0.1, options=options))
    await sink.open(Destination("k", "n1", 1, 1, 0, 0, never))
    batch = [
        OutboxMessage(position(2, n), position(2, n), n + 1, 1000, "t", b"x", 1, False, "c")
        for n in range(3)
    ]
    with pytest.raises(TryAgain, match="Queue full"):
        await sink.send(batch)
    await sink.close()
