"""A PostgreSQL server of Debian, that a test kills and starts again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from harness.broker import children_of, free_port
from harness.waiting import until

_VERSIONS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
POSTGRES = _VERSIONS[-1].parent if _VERSIONS else None
"""The folder of its programs; None: it is not installed."""
_CONFIG = "shared_buffers = 16MB\nmax_connections = 20\nunix_socket_directories = ''\n"


class Postgres:
    """A server with the database `postgres` of the user `foldmq`, who needs a password."""

    password = "a-password"

    def __init__(self) -> None:
        self.port = free_port()
        # PostgreSQL does not run as root, and does not reach the folders of root's tests.
        self.folder = Path(tempfile.mkdtemp(prefix="foldmq-postgres-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        word = self.folder / "password"
        word.write_text(self.password)
        word.chmod(0o644)
        self._run("initdb", "-D", self._data, "-U", "foldmq", "-A", "scram-sha-256",
                  f"--pwfile={word}", "--no-sync")  # fmt: skip
        with (Path(self._data) / "postgresql.conf").open("a") as config:
            config.write(_CONFIG)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        return f"postgresql://foldmq@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert POSTGRES is not None
        (Path(self._data) / "postmaster.pid").unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [POSTGRES / "postgres", "-D", self._data, "-h", "127.0.0.1", "-p", str(self.port)],
            user=self._user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            start_new_session=True,
        )
        until(self._answers, "PostgreSQL", pause=0.1)

    def _answers(self) -> bool:
        assert POSTGRES is not None
        ready = [str(POSTGRES / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def kill(self) -> None:
        """Kill all of its processes."""
        if self._process is not None:
            for pid in [self._process.pid, *children_of(self._process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        assert POSTGRES is not None
        subprocess.run(
            [str(POSTGRES / program), *arguments],
            user=self._user,
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def query(self, sql: str) -> list[list[str]]:
        """Return the rows of a query as text; none while the table is missing."""
        assert POSTGRES is not None
        done = subprocess.run(
            [POSTGRES / "psql", "-X", "-A", "-t", "-F", "\t", self.url, "-c", sql],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PGPASSWORD": self.password},
        )
        assert done.returncode == 0 or "does not exist" in done.stderr, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]


def row_values(rows: list[list[str]]) -> list[Any]:
    """Return the only column of rows."""
    return [row[0] for row in rows]
