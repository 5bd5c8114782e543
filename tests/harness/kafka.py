"""A cluster of Kafka: the one that librdkafka has for tests, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, TopicPartition

_CLUSTER = """
import sys
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 3, "log_level": 0})
brokers = producer.list_topics(timeout=30).brokers.values()
print(",".join(f"{each.host}:{each.port}" for each in brokers), flush=True)
sys.stdin.read()
"""


class Stored(NamedTuple):
    """A message as the cluster has it."""

    key: str
    value: bytes
    headers: list[Any]


class Kafka:
    """The cluster; it keeps messages in memory, and can be stopped and continued."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str]
        self.servers: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip().split(",")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it answer nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def messages(self, topic: str = "mqtt") -> list[Stored]:
        """Return all messages, in the order of each partition."""
        consumer = Consumer(
            {"bootstrap.servers": ",".join(self.servers), "group.id": "test", "log_level": 0}
        )
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            found: list[Stored] = []
            for number in partitions:
                partition = TopicPartition(topic, number, 0)
                _, end = consumer.get_watermark_offsets(partition, timeout=30)
                found += self._read(consumer, partition, end)
            return found
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, partition: TopicPartition, end: int) -> list[Stored]:
        found: list[Stored] = []
        consumer.assign([partition])
        deadline = time.monotonic() + 30
        while len(found) < end:
            assert time.monotonic() < deadline, "messages of Kafka"
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                key, value, headers = message.key(), message.value(), message.headers()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                found.append(Stored(key.decode(), value, list(headers or [])))
        return found
