"""Topics and subjects with a real NATS Server: the mapping of its MQTT, and accepted subjects."""

import asyncio
import json
import random
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from typing import NamedTuple

import aiomqtt
import nats
import pytest
from harness.broker import free_port, nats_server
from harness.waiting import until
from nats.aio.msg import Msg

from protocol.nats.mapping import MAX_SUBJECT
from protocol.nats.subjects import subject_to_topic, topic_to_subject

pytestmark = pytest.mark.system

# The table of the NATS documentation, and what its rows make together
TOPICS = [
    *("foo/bar", "/foo/bar", "foo/bar/", "foo//bar", "//foo/bar", "foo.bar"),
    *("foo", "/", "//", "///", "/foo/", "a/b///c", "a///b/", "é/日本", "$foo/a"),
    *(".", "..", "...", "./", "/.", "./.", "/./", ".../", "/...", "//.//", ".//."),
    *("a./b", "a/.b", "a./.b", "a/./b", "a/../b", "a//./b", "a/.//b", "a.//b", "a//.b", ".a./.b."),
]


class Server(NamedTuple):
    url: str
    mqtt_port: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("nats")
    port, mqtt_port = free_port(), free_port()
    config = {
        "host": "127.0.0.1",
        "port": port,
        "server_name": "test",
        "jetstream": {"store_dir": str(folder)},
        "mqtt": {"host": "127.0.0.1", "port": mqtt_port},
    }
    path = folder / "nats.conf"
    path.write_text(json.dumps(config))

    def accepts() -> bool:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", mqtt_port), 1)):
            return True
        return False

    process = subprocess.Popen([nats_server(), "-c", str(path)], stderr=subprocess.DEVNULL)
    try:
        until(accepts, "a NATS server with MQTT")
        yield Server(f"nats://127.0.0.1:{port}", mqtt_port)
    finally:
        process.kill()
        process.wait()


async def test_the_nats_server_makes_the_same_subjects_of_topics(server: Server) -> None:
    there: asyncio.Queue[Msg] = asyncio.Queue()
    client = await nats.connect(server.url)
    await client.subscribe(">", cb=there.put)
    await client.flush()
    subjects = []
    async with aiomqtt.Client("127.0.0.1", server.mqtt_port) as publisher:
        for topic in TOPICS:
            await publisher.publish(topic, f"from MQTT {len(subjects)}")
            message = await there.get()
            # The server says to itself what its sessions are
            while not message.data.startswith(b"from MQTT"):
                message = await there.get()
            subjects.append(message.subject)
    await client.close()
    assert subjects == [topic_to_subject(topic) for topic in TOPICS]


async def test_the_nats_server_makes_the_same_topics_of_subjects(server: Server) -> None:
    client = await nats.connect(server.url)
    topics = []
    async with aiomqtt.Client("127.0.0.1", server.mqtt_port) as subscriber:
        await subscriber.subscribe([("#", 0), ("$foo/#", 0)])
        for topic in TOPICS:
            await client.publish(topic_to_subject(topic), b"from NATS")
            message = await anext(subscriber.messages)
            topics.append(str(message.topic))
    await client.close()
    assert topics == TOPICS


def _any_topics(count: int) -> list[str]:
    """Valid topics of characters with a meaning in MQTT, in NATS, or in neither."""
    chosen = random.Random(6)
    alphabet = "//...ab *>$_-=%\\\t\r\n\x01\v\x1b\x7f\x85\xa0é\u2028\ufeff日\U0001f600"
    topics = {"/" * 1899, "." * 1900, " " * 1266, "日" * 1266, "a" * MAX_SUBJECT}
    while len(topics) < count:
        topics.add("".join(chosen.choices(alphabet, k=chosen.randint(1, 12))))
    return sorted(topics)


async def test_the_server_takes_the_subject_of_every_topic(server: Server) -> None:
    refused: list[Exception] = []

    async def note(error: Exception) -> None:
        refused.append(error)

    # A pedantic server looks at subjects
    publisher = await nats.connect(server.url, pedantic=True, error_cb=note)
    subscriber = await nats.connect(server.url, pedantic=True, error_cb=note)
    topics = _any_topics(400)
    came: list[tuple[str, str]] = []

    def noting(topic: str) -> Callable[[Msg], Awaitable[None]]:
        async def got(message: Msg) -> None:
            assert message.data.decode() == topic
            came.append((topic, subject_to_topic(message.subject)))

        return got

    for topic in topics:
        await subscriber.subscribe(topic_to_subject(topic), cb=noting(topic))
    await subscriber.flush()
    for topic in topics:
        await publisher.publish(topic_to_subject(topic), topic.encode())
    await publisher.flush()
    for _ in range(1000):
        if len(came) >= len(topics):
            break
        await asyncio.sleep(0.01)
    await subscriber.drain()
    await publisher.close()
    assert refused == []
    # Each subscription got its own message, and no other one
    assert sorted(came) == [(topic, topic) for topic in topics]
