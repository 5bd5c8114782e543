"""A cluster of NATS servers, each of which can be killed, stopped, suspended or cut off.

The servers connect only through proxies, one for each ordered pair. A cut connection is silent,
like an unplugged cable, and the data on its way arrives when it is plugged in again.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import nats

from harness.broker import free_port, nats_server, stand_still
from harness.nats import PASSWORD, USER, Nats
from harness.silent_proxy import SilentProxy
from harness.waiting import TIMEOUT, until


@dataclass
class Member:
    """One server of a cluster; its configuration and store lie in `folder`."""

    folder: Path
    name: str
    program: str
    port: int = field(default_factory=free_port)
    route: int = field(default_factory=free_port)
    monitor: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server was not started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def configure(self, routes: list[int], more: dict[str, Any]) -> None:
        """Writes the configuration of a server whose peers are behind these ports."""
        config = {
            "server_name": self.name,
            "host": "127.0.0.1",
            "port": self.port,
            "http": f"127.0.0.1:{self.monitor}",
            "max_payload": 4 << 20,
            "authorization": {"user": USER, "password": PASSWORD},
            "jetstream": {"store_dir": str(self.folder / "store"), "sync_interval": "always"},
            "cluster": {
                "name": "drill",
                "listen": f"127.0.0.1:{self.route}",
                # Nothing listens there: routes lead through the proxies only.
                "advertise": f"127.0.0.1:{free_port()}",
                "routes": [f"nats-route://127.0.0.1:{port}" for port in routes],
            },
            **more,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "nats.conf").write_text(json.dumps(config))

    def start(self) -> None:
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "-c", str(self.folder / "nats.conf")], stderr=log
            )

    def kill(self) -> None:
        """SIGKILL, whatever its state; harmless when it has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """An orderly end: leadership is handed over."""
        assert self.process is not None, "the server was not started"
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def suspend(self) -> None:
        stand_still(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def healthy(self) -> bool:
        """Whether all streams of this server are in step, as it says itself."""
        with contextlib.suppress(OSError):
            address = f"http://127.0.0.1:{self.monitor}/healthz"
            with urllib.request.urlopen(address, timeout=1) as answer:
                return bool(json.load(answer)["status"] == "ok")
        return False

    def clients(self) -> list[str]:
        """The names of the clients that are connected to this server."""
        address = f"http://127.0.0.1:{self.monitor}/connz"
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(address, timeout=5) as answer,
        ):
            return [one.get("name", "") for one in json.load(answer)["connections"]]
        return []

    def streams(self) -> dict[str, dict[str, Any]]:
        """The state of each stream as this server's own replica has it."""
        address = f"http://127.0.0.1:{self.monitor}/jsz?accounts=1&streams=1"
        with urllib.request.urlopen(address, timeout=5) as answer:
            accounts = json.load(answer)["account_details"]
        return {
            stream["name"]: stream["state"]
            for account in accounts
            for stream in account.get("stream_detail") or []
        }


class NatsCluster:
    """Servers with JetStream, started together."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        program: str = "",
        config: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.members = [
            Member(folder / f"n{n}", f"n{n}", program or nats_server()) for n in range(size)
        ]
        self._proxies = {
            (one.name, other.name): SilentProxy(other.route)
            for one in self.members
            for other in self.members
            if one is not other
        }
        for one in self.members:
            routes = [
                proxy.port for (source, _), proxy in self._proxies.items() if source == one.name
            ]
            one.configure(routes, config or {})

    @property
    def url(self) -> str:
        return ",".join(member.url for member in self.members)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        """Returns when every server has a leader for everything and has caught up."""
        until(lambda: all(one.healthy() for one in self.members), "a cluster")

    def close(self) -> None:
        for member in self.members:
            member.kill()
        for proxy in self._proxies.values():
            proxy.close()

    def cut_off(self, victim: Member) -> None:
        """Lets nothing through between a server and the others; no connection is closed."""
        for pair, proxy in self._proxies.items():
            if victim.name in pair:
                proxy.silence()

    def rejoin(self, victim: Member) -> None:
        """Lets through what waited since, and what comes."""
        for pair, proxy in self._proxies.items():
            if victim.name in pair:
                proxy.restore()

    def leader(self, stream: str) -> Member:
        """The server that leads a stream, as soon as there is one."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
                found = self.api(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader")
                for member in self.members:
                    if member.name == found:
                        return member
            assert time.monotonic() < deadline, f"stream {stream} has no leader"
            time.sleep(0.1)

    def connected(self, name: str) -> Member:
        """The server that a client of this name is connected to, as soon as there is one."""
        found: list[Member] = []

        def look() -> bool:
            found[:] = [one for one in self.members if name in one.clients()]
            return bool(found)

        until(look, f"a connection of {name}")
        return found[0]

    def api(self, method: str, body: object = None, *, via: Member | None = None) -> dict[str, Any]:
        """JetStream's answer, asked at one of the servers."""

        async def ask() -> dict[str, Any]:
            urls = [member.url for member in ([via] if via else self.members) if member.running]
            client = await nats.connect(
                urls, user=USER, password=PASSWORD, connect_timeout=1, allow_reconnect=False
            )
            try:
                data = b"" if body is None else json.dumps(body).encode()
                reply = await client.request(f"$JS.API.{method}", data, timeout=5)
                answer: dict[str, Any] = json.loads(reply.data)
                return answer
            finally:
                await client.close()

        return asyncio.run(ask())

    def in_step(self, stream: str) -> bool:
        """Whether all replicas of a stream have the same bounds and size."""
        with contextlib.suppress(OSError):
            states = [member.streams().get(stream, {}) for member in self.members]
            keys = ("first_seq", "last_seq", "messages", "bytes")
            return len({tuple(state.get(key) for key in keys) for state in states}) == 1
        return False

    def check_replicas(self, stream: str) -> int:
        """Reads each replica whole and compares them; returns how many messages each has.

        The servers end: each store is read by a server of its own, that asks no other.
        """
        self.wait_until_healthy()
        until(lambda: self.in_step(stream), f"equal replicas of {stream}")
        for member in self.members:
            member.stop()
        replicas = [list(self._read_alone(member, stream)) for member in self.members]
        first = replicas[0]
        assert first, f"stream {stream} is empty"
        for member, other in zip(self.members[1:], replicas[1:], strict=True):
            assert len(other) == len(first), f"{member.name}: {len(other)} of {len(first)} messages"
            for mine, its in zip(first, other, strict=True):
                assert mine == its, f"{member.name}: message {its[0]} is not message {mine[0]}"
        return len(first)

    def _read_alone(self, member: Member, stream: str) -> Iterator[tuple[int, bytes, bytes]]:
        """Sequence, headers and data of all messages in one server's store."""
        folder = self.folder / f"alone-{member.name}"
        shutil.copytree(member.folder / "store", folder / "store")
        (stored,) = folder.glob(f"store/jetstream/*/streams/{stream}")
        config = json.loads((stored / "meta.inf").read_text())
        # A server without a cluster takes no replica as it is: it fills a stream that is made.
        for name in ("meta.inf", "meta.sum"):
            (stored / name).unlink()
        alone = Nats(folder)
        alone.start()
        try:
            wanted = {key: value for key, value in config.items() if key != "Created"}
            state = alone.api(f"STREAM.CREATE.{stream}", {**wanted, "num_replicas": 1})["state"]
            sequences = range(state["first_seq"], state["last_seq"] + 1)
            yield from alone.do(lambda client: _messages(client, stream, sequences))
        finally:
            alone.kill()
            shutil.rmtree(folder)


async def _messages(client: Any, stream: str, sequences: range) -> list[tuple[int, bytes, bytes]]:
    found = []
    for sequence in sequences:
        body = json.dumps({"seq": sequence}).encode()
        reply = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", body, timeout=10)
        message = json.loads(reply.data)["message"]
        parts = (base64.b64decode(message.get(part, "")) for part in ("hdrs", "data"))
        found.append((sequence, *parts))
    return found
