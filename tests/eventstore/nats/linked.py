"""A NATS server that tests configure, kill and stop, and a client that records its callbacks."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from harness.broker import free_port, nats_server
from harness.waiting import happens

from eventstore.nats.batch_client import BatchClient, encode_pub
from eventstore.nats.batch_transport import NatsMessage
from eventstore.nats.connection import ConnectionOptions

TIMEOUT = 30
"""Seconds after which what is awaited will not come any more."""


def render_hpub(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """Return the lines that publish a message; `reply` and `headers` (a block) may be empty."""
    where = b"%b %b" % (subject, reply) if reply else subject
    if not headers:
        return encode_pub(where, payload)
    length = len(headers)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (where, length, length + len(payload), headers, payload)


class Nats:
    """A server with JSON configuration in `folder`; it keeps its port."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.port = free_port()
        self.settings = settings
        self.file = folder / f"nats-{self.port}.conf"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.file.write_text(json.dumps({"host": "127.0.0.1", "port": self.port, **self.settings}))
        self.run()
        await happens(self._greets)

    def run(self) -> None:
        self.process = subprocess.Popen(
            [nats_server(), "-c", str(self.file)], stderr=subprocess.DEVNULL
        )

    def _greets(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


class Linked:
    """A link and its notifications; open ones are closed after each test."""

    opened: ClassVar[list["Linked"]] = []

    def __init__(self) -> None:
        self.messages: list[NatsMessage] = []
        self.batches: list[int] = []
        self.notices: list[str] = []
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.link: BatchClient

    @classmethod
    async def to(cls, *urls: str, **access: Any) -> "Linked":
        self = cls()
        self.link = await BatchClient.open(
            ConnectionOptions(urls=urls, **access),
            on_messages=self._take,
            on_up=lambda: self.notices.append("up"),
            on_down=lambda: self.notices.append("down"),
            on_error=self.problems.append,
            on_refused=self.refused.append,
            timeout=TIMEOUT,
        )
        cls.opened.append(self)
        return self

    def _take(self, messages: list[NatsMessage]) -> None:
        self.messages += messages
        self.batches.append(len(messages))

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    async def settled(self) -> None:
        """Wait until the server has processed all that was written."""
        done = asyncio.Event()
        self.link.fence(done.set)
        async with asyncio.timeout(TIMEOUT):
            await done.wait()

    async def came(self, count: int) -> None:
        await happens(lambda: len(self.messages) >= count)


class Network:
    """Servers and links that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[Nats] = []
        self._folder = folder
        self._links: list[Linked] = []

    def add(self, **settings: Any) -> Nats:
        self.servers.append(Nats(self._folder, **settings))
        return self.servers[-1]

    async def server(self, **settings: Any) -> Nats:
        nats = self.add(**settings)
        await nats.start()
        return nats

    async def link(self, *urls: str, **access: Any) -> Linked:
        self._links.append(await Linked.to(*urls, **access))
        return self._links[-1]

    async def close(self) -> None:
        for linked in self._links:
            await linked.link.close()
        for server in self.servers:
            server.kill()


async def restarted(nats: Nats, *linked: Linked) -> None:
    """Kill the server, wait until all know, start it, wait until all are back."""
    for one in linked:
        one.notices.clear()
    nats.kill()
    await happens(lambda: all(one.notices == ["down"] for one in linked))
    await nats.start()
    await happens(lambda: all(one.notices == ["down", "up"] for one in linked))
    for one in linked:
        assert one.link.connected
        await one.settled()
