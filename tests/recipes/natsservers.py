"""NATS servers with the configuration of a recipe, each at an address of its own."""

import contextlib
import os
import socket
import subprocess
from pathlib import Path

from harness.broker import nats_server
from harness.waiting import until

NETWORK = f"127.{200 + os.getpid() // 250 % 50}.{1 + os.getpid() % 250}"
"""Three bytes of addresses of this machine that no other test uses: ports stay as they are."""


def address(number: int) -> str:
    """The address of a machine."""
    return f"{NETWORK}.{number}"


def reachable(host: str, port: int) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


class NatsServer:
    """A server whose configuration is a text."""

    def __init__(self, folder: Path, number: int, config: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.number = number
        self.file = folder / "nats-server.conf"
        self.file.write_text(config)
        self._log = folder / "nats.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the cluster may need others."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([nats_server(), "-c", str(self.file)], stderr=log)

    def wait(self) -> None:
        """Return when it accepts clients."""
        until(lambda: reachable(address(self.number), 4222), f"NATS:\n{self._log}")

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
