"""An external NATS server, for a broker with `--nats-url`."""

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats

from harness.broker import free_port, nats_server
from harness.waiting import until

USER, PASSWORD = "broker", "secret"
ACCESS = f"nats_user = '{USER}'\nnats_password = '{PASSWORD}'\n"
"""What lets a broker in: a part of its TOML file."""


@dataclass
class Nats:
    """A server whose configuration and store lie in `folder`."""

    folder: Path
    max_payload: int = 4 << 20
    sync_interval: str = "always"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server was not started"
        return self.process.pid

    def start(self) -> None:
        config = {
            "host": "127.0.0.1",
            "port": self.port,
            "max_payload": self.max_payload,
            "authorization": {"user": USER, "password": PASSWORD},
            "jetstream": {
                "store_dir": str(self.folder / "store"),
                "sync_interval": self.sync_interval,
            },
        }
        (self.folder / "nats.conf").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [nats_server(), "-c", str(self.folder / "nats.conf")], stderr=subprocess.DEVNULL
        )
        until(self._greets, "a NATS server")

    def move(self, folder: Path) -> None:
        """Restarts with an empty store in another folder."""
        self.kill()
        self.folder = folder
        self.start()

    def _greets(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def do(self, work: Callable[[Any], Any]) -> Any:
        """Run what is given a connected client."""

        async def run() -> Any:
            client = await nats.connect(self.url, user=USER, password=PASSWORD)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(run())

    def api(self, method: str, body: object = None) -> dict[str, Any]:
        async def ask(client: Any) -> Any:
            data = b"" if body is None else json.dumps(body).encode()
            return json.loads((await client.request(f"$JS.API.{method}", data, timeout=10)).data)

        answer: dict[str, Any] = self.do(ask)
        assert "error" not in answer, answer
        return answer


def access(server: Nats) -> dict[str, str]:
    """The options of the Spark source that let it in."""
    return {"nats": server.url, "user": USER, "password": PASSWORD}
