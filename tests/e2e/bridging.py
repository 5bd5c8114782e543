"""NATS clients for the tests of the bridge: nats-py without its event loop, and a bare socket."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

import nats
import pytest
from harness import packets
from harness.broker import Broker, free_port
from harness.fixtures import Clients, unique
from harness.packets import Publish, Suback
from harness.rawclient import TIMEOUT, RawClient
from harness.waiting import until
from nats.errors import NoRespondersError


class Heard(NamedTuple):
    """A message as a NATS client got it."""

    subject: str
    data: bytes
    headers: Mapping[str, str]

    @property
    def topic(self) -> str:
        """The topic that its headers tell."""
        return unquote(self.headers["Foldmq-Topic"])

    @property
    def qos(self) -> int:
        """The QoS that its headers tell."""
        return int(self.headers["Foldmq-QoS"])


class Ear:
    """What came for one subscription."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.subscription: Any = None

    async def note(self, message: Any) -> None:
        self.heard.append(Heard(message.subject, message.data, message.headers or {}))

    def after(self, count: int) -> list[Heard]:
        """The received messages, once there are this many."""
        until(lambda: len(self.heard) >= count, f"{count} messages, not {self.heard[-3:]}")
        return self.heard

    @property
    def payloads(self) -> list[bytes]:
        return [message.data for message in self.heard]


class Visitor:
    """A NATS client (nats-py), which blocks."""

    def __init__(self, port: int, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def quiet(_error: Exception) -> None:
            pass

        options.setdefault("allow_reconnect", False)
        try:
            self.client = self.do(
                nats.connect(f"nats://127.0.0.1:{port}", error_cb=quiet, **options)
            )
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run what is to be awaited."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT * 3)

    def close(self) -> None:
        self.do(self.client.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def flush(self) -> None:
        """Return when the server has all that was sent before."""
        self.do(self.client.flush(TIMEOUT))

    def hear(self, *subjects: str, queue: str = "") -> Ear:
        """Subscribe; returns when the server knows."""
        ear = Ear()
        for subject in subjects:
            ear.subscription = self.do(self.client.subscribe(subject, queue, cb=ear.note))
        self.flush()
        return ear

    def publish(self, subject: str, data: bytes = b"", reply: str = "", **headers: str) -> None:
        """Publish; a header's name has ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.do(self.client.publish(subject, data, reply, named or None))
        self.flush()

    def ask(
        self, subject: str, data: bytes = b"", timeout: float = TIMEOUT, **headers: str
    ) -> bytes:
        """The answer to a request; raises NoRespondersError, nats.errors.TimeoutError."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.do(self.client.request(subject, data, timeout, headers=named or None))
        return bytes(answer.data)

    def recorded(
        self,
        subject: str,
        data: bytes = b"",
        qos: int = 1,
        timeout: float = TIMEOUT,
        **headers: str,
    ) -> Any:
        """The broker's answer to a message that it is to record."""
        return json.loads(self.ask(subject, data, timeout, Foldmq_QoS=str(qos), **headers))


@pytest.fixture
def visitor(place: "Place") -> Iterator[Visitor]:
    with Visitor(place.nats_port) as made:
        yield made


def mqtt_subscribed(
    clients: Clients,
    visitor: Visitor,
    *filters: tuple[str, int],
    client: RawClient | None = None,
    subject: str = "",
) -> RawClient:
    """An MQTT client with subscriptions, when NATS knows of them.

    A last filter shows it: subscriptions reach NATS in their order. ``subject`` is put before its
    subject.
    """
    client = client or clients.connect()
    ready = unique("ready")
    client.send(_subscribe(client, *filters, (ready, 0)))
    early = []
    while not isinstance(answer := client.receive(), Suback):
        early.append(answer)
    assert answer.codes == (*(qos for _, qos in filters), 0), answer
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            visitor.recorded(subject + ready)
            break
        except NoRespondersError:
            assert time.monotonic() < deadline, "NATS does not know of the subscription"
    while not isinstance(got := client.receive(), Publish) or got.topic != ready:
        early.append(got)
    client.acknowledge(got)
    client.unread(early)
    return client


def _subscribe(client: RawClient, *filters: tuple[str, int]) -> bytes:
    return packets.subscribe(client.next_id(), *filters)


class Wire:
    """A NATS client that sends the given bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._lines = self.socket.makefile("rb")
        assert self._lines.readline().startswith(b"INFO ")
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hpub(self, subject: bytes, headers: bytes, payload: bytes, reply: bytes = b"") -> None:
        """Publish with a block of headers that may be anything."""
        sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
        where = b"%b %b" % (subject, reply) if reply else subject
        self.send(b"HPUB %b %b\r\n%b%b\r\n" % (where, sizes, headers, payload))

    def pong(self) -> list[bytes]:
        """Return the errors that the server reports until it has processed all that was sent.

        It pings its clients on its own as well, and may repeat its INFO.
        """
        self.send(b"PING\r\n")
        said = []
        while (line := self._lines.readline()) != b"PONG\r\n":
            assert line, f"the server closed the connection after {said[-3:]}"
            if line == b"PING\r\n":
                self.send(b"PONG\r\n")
            elif not line.startswith(b"INFO "):
                said.append(line)
        return said


class Place:
    """A broker whose embedded NATS is open by default."""

    def __init__(
        self, directory: Path, config: str = "", *args: str, nats_listen: bool = True
    ) -> None:
        self.nats_port = free_port()
        directory.mkdir(exist_ok=True)
        listen = ["--nats-listen", f"127.0.0.1:{self.nats_port}"] if nats_listen else []
        self.broker = Broker(directory, args=[*listen, *args], config=config, forked=True)
        self.clients = Clients("127.0.0.1", self.broker.port)

    def __enter__(self) -> Self:
        self.broker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the broker; nothing may have broken in it."""
        try:
            if kind is None:
                assert self.troubles == []
                self.broker.stop()
        finally:
            self.broker.clean_up()

    @property
    def clients_nats(self) -> int:
        """Process of the NATS for clients."""
        return int((self.broker.data_dir / "nats-clients" / "nats.pid").read_text())

    @property
    def troubles(self) -> list[str]:
        """Lines of the broker's log that tell of something broken."""
        words = ("Traceback", "the bridge failed", "[error", "[critical")
        return [line for line in self.broker.log.splitlines() if any(map(line.__contains__, words))]


def received(client: RawClient, count: int) -> list[tuple[str, bytes, int]]:
    """This many messages, each acknowledged; then nothing more."""
    found = []
    for _ in range(count):
        message = client.expect_a(Publish)
        client.acknowledge(message)
        found.append((message.topic, message.payload, message.qos))
    client.expect_alive()
    return found
