"""A Mosquitto broker, where it is installed."""

import contextlib
import shutil
import signal
import subprocess
from pathlib import Path

from harness.broker import free_port
from harness.rawclient import RawClient
from harness.waiting import until

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


class Mosquitto:
    """A broker with a persistent state; ``lines`` are further settings."""

    def __init__(self, directory: Path, name: str, *lines: str) -> None:
        directory.mkdir(exist_ok=True)
        self.port = free_port()
        self.name = name
        self._config = directory / f"{name}.conf"
        self._log = directory / f"{name}.log"
        self._config.write_text(
            "\n".join(
                [
                    f"listener {self.port} 127.0.0.1",
                    "allow_anonymous true",
                    "persistence true",
                    f"persistence_location {directory}/",
                    f"persistence_file {name}.db",
                    "user root",
                    *lines,
                    "",
                ]
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    def only_users(self) -> None:
        """Require a password of clients, from the next start on."""
        lines = self._config.read_text()
        self._config.write_text(lines.replace("anonymous true", "anonymous false"))

    @property
    def log(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert MOSQUITTO is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(self._config)], stdout=log, stderr=log
            )

        def listens() -> bool:
            with contextlib.suppress(OSError):
                RawClient(self.port).close()
                return True
            return False

        until(listens, f"{self.name} listens: {self.log}")

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def restart(self) -> None:
        """End in good order, with the state on disk, and start again."""
        self.end()
        self.start()

    def end(self, how: int = signal.SIGTERM) -> None:
        """End it with a signal."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(20)
            self._process = None
