"""The data directory: its layout, its lock and its small private files.

::

    foldmq.lock        locked by the broker for its lifetime; contains its process id
    node               the permanent id of this node, generated once
    nats.credentials   user and password of the embedded NATS server (JSON, mode 0600)
    nats.conf          the latest configuration of the embedded NATS server (JSON, mode 0600)
    nats.lock          locked as long as an embedded NATS server may access the store
    nats.pid           process id of this server, which writes the file
    nats.log           log of this server; nats.stderr: its output before it can log
    jetstream/         store of this server
    unfinished.tmp/    until a restore or a salvage is complete: its files
    index/             the index of the log; it may be removed
    pseudonym.key      key of the hashes that replace client identifiers, where configured
    known.logins       keyed hashes of the users who logged in, and of their addresses
    nats-clients/      the same files of the NATS server for NATS clients
    (eventstore.server.client_server)

All files belong to the user of the broker, and other users have no access
(eventstore.file_permissions). Reading the paths, the node id and the credentials needs no lock:
tools may do so while a broker runs. Any writer takes :meth:`DataDir.lock` first.
"""

import base64
import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from eventstore import durable_files, file_permissions
from eventstore.errors import DataDirBusy, DataDirError, DiskFull, EventStoreError
from eventstore.home_paths import expand_home
from eventstore.partitions import partition_names

STORE_KEY = "$FOLDMQ_STORE_KEY"
"""The variable with the key of an encrypted store, in the environment of its NATS server."""
_NODE = re.compile(r"[A-Za-z0-9_-]{1,32}")
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
_REASONS = {
    errno.EACCES: "is not writable: change its owner or mode, or choose another --data-dir",
    errno.EPERM: "is not writable: change its owner or mode, or choose another --data-dir",
    errno.EROFS: "is on a read-only file system: choose another --data-dir",
    errno.ENOTDIR: "is or lies below a file: choose another --data-dir",
    errno.EEXIST: "is a file: choose another --data-dir",
    errno.ENOLCK: "is on a file system without locks: choose a local one",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password of the embedded NATS server."""

    user: str
    password: str = field(repr=False)


def new_node_id() -> str:
    """Return a random node id."""
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()


class DataDir:
    """The directory of one broker. :meth:`lock` creates it; the constructor accesses no file.

    As a context manager it holds the lock.
    """

    def __init__(self, path: Path | str) -> None:
        """Use the directory at ``path``; raises NoHome for an unknown home directory."""
        self.path = expand_home(path).absolute()
        self.jetstream = self.path / "jetstream"
        """The store of the embedded NATS server."""
        self.unfinished = self.path / "unfinished.tmp"
        """The work of a command that creates this directory; it remains if that was killed."""
        self.processes = self.path / "processes"
        """The file with the number of broker processes; it exists if there are several."""
        self.nats_config = self.path / "nats.conf"
        """The configuration file of the embedded NATS server."""
        self.nats_log = self.path / "nats.log"
        """The log file of the embedded NATS server."""
        self.nats_stderr = self.path / "nats.stderr"
        """The output of the embedded NATS server before it logs, and when it panics."""
        self.nats_pid = self.path / "nats.pid"
        """The process id of the embedded NATS server."""
        self.nats_lock = self.path / "nats.lock"
        """Locked, through an inherited descriptor, as long as an embedded NATS server runs."""
        self.nats_credentials = self.path / "nats.credentials"
        """The file that :meth:`credentials` reads."""
        self.narrowed: tuple[str, ...] = ()
        """A line for each file that was open to other users until the lock was taken."""
        self._lock: int | None = None

    def blocks(self, stream: str) -> Path:
        """Return the directory with the blocks of a stream of the embedded NATS server."""
        return self.jetstream / "jetstream" / "$G" / "streams" / stream / "msgs"

    def log_names(self) -> list[str]:
        """Return the names of the logs of several processes; none if there is one process.

        Raises DataDirError if the directory cannot be read.
        """
        try:
            count = int(self.processes.read_text("utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise DataDirError(self.processes, f"cannot be read: {error}") from None
        return partition_names(self.node(), count)

    def nats_port(self) -> int | None:
        """Return the port in that file; None: it cannot be read, or contains none."""
        try:
            text = self.nats_config.read_text("utf-8")
            # The name of the variable is the only part that is not JSON.
            return int(json.loads(text.replace(f": {STORE_KEY}", ": null"))["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def lock(self) -> None:
        """Create the directory if missing and hold its lock until :meth:`unlock` or exit.

        Access of other users is removed from the modes; ``narrowed`` lists the changes.

        Raises DataDirBusy when another process holds the lock, DataDirError when the directory
        cannot be created or written or belongs to another user, DiskFull when the disk is full.
        """
        if self._lock is not None:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
            held = take_lock(self.path / "foldmq.lock")
        except OSError as error:
            raise self._explain(error) from None
        if held is None:
            raise DataDirBusy(self.path, self._holder())
        self._lock = held
        try:
            self.narrowed = tuple(file_permissions.close(self.path))
            os.ftruncate(held, 0)
            os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            self.unlock()
            raise self._explain(error) from None
        except DataDirError:
            self.unlock()
            raise

    def check_usable(self) -> None:
        """Raise the error of :meth:`lock` if the directory cannot be created or written.

        Another process may hold its lock. A directory is created and removed again for this.
        """
        place = self.path
        try:
            if place.exists():
                if not place.is_dir():
                    raise FileExistsError(errno.EEXIST, "")
                self._check()
            while not place.exists() and place != place.parent:
                place = place.parent
            Path(tempfile.mkdtemp(prefix=".foldmq-check-", dir=place)).rmdir()
        except OSError as error:
            raise self._explain(error) from None

    def _check(self) -> None:
        """Raise DataDirError for files of another user; DataDirBusy if a broker runs there."""
        try:
            file_permissions.check(self.path)
        except DataDirError:
            if is_locked(self.path / "foldmq.lock"):
                raise DataDirBusy(self.path, self._holder()) from None
            raise

    def unlock(self) -> None:
        """Release the lock. The file stays: without it, two brokers could lock two files."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unlock()

    def node(self) -> str:
        """Return the permanent id of this node; the first call generates it.

        Raises DataDirError when the file is damaged, or is missing although there is a log, or a
        command that creates one was killed: with a new id the broker would silently begin an empty
        log beside the old one.
        """
        file = self.path / "node"
        text = self._read(file)
        if text is None:
            if self.unfinished.exists():
                raise DataDirError(
                    self.path,
                    "is incomplete, because 'foldmq restore', 'salvage' or 'import' was "
                    "interrupted: run that command again with this directory",
                )
            logs = sorted(self.jetstream.glob("jetstream/*/streams/FOLDMQ_LOG_*"))
            if logs:
                node = logs[0].name.removeprefix("FOLDMQ_LOG_")
                raise DataDirError(
                    self.path, f"file 'node' is missing but there is a log: write {node!r} into it"
                )
            text = new_node_id()
            self.write_private(file, text + "\n")
        node = text.strip()
        if not _NODE.fullmatch(node):
            raise DataDirError(
                self.path,
                f"file 'node' contains {node[:40]!r}: 1 to 32 of A-Z a-z 0-9 _ - expected",
            )
        return node

    def credentials(self) -> Credentials:
        """Return the embedded NATS server's user and password; the first call generates them."""
        text = self._read(self.nats_credentials)
        if text is None:
            made = Credentials("foldmq", secrets.token_urlsafe(24))
            document = {"user": made.user, "password": made.password}
            self.write_private(self.nats_credentials, json.dumps(document) + "\n")
            return made
        try:
            document = json.loads(text)
            return Credentials(str(document["user"]), str(document["password"]))
        except (ValueError, KeyError, TypeError):
            raise DataDirError(
                self.path, "file 'nats.credentials' is damaged: remove it, a new one is created"
            ) from None

    def secret(self, name: str, size: int) -> bytes:
        """Return the random bytes in a private file; the first call generates them.

        Raises DataDirError when the file is damaged: other bytes would be useless.
        """
        file = self.path / name
        text = self._read(file)
        if text is None:
            made = secrets.token_bytes(size)
            self.write_private(file, made.hex() + "\n")
            return made
        try:
            secret_bytes = bytes.fromhex(text.strip())
        except ValueError:
            secret_bytes = b""
        if len(secret_bytes) != size:
            raise DataDirError(
                self.path, f"file {name!r} is damaged: restore it from a backup ({size} bytes, hex)"
            )
        return secret_bytes

    def stored_bytes(self, streams: str) -> int:
        """Return the size of the blocks of streams of the embedded NATS server, by pattern."""
        total = 0
        for path in self.jetstream.glob(f"jetstream/$G/streams/{streams}/msgs/*.blk"):
            with contextlib.suppress(FileNotFoundError):  # cut off meanwhile
                total += path.stat().st_size
        return total

    def free_bytes(self) -> int:
        """Return the number of bytes that this user can still write here.

        If the directory does not exist yet: in the one where it will be created.
        """
        place = self.path
        while not place.exists() and place != place.parent:
            place = place.parent
        facts = os.statvfs(place)
        return facts.f_bavail * facts.f_frsize

    def write_private(self, file: Path, text: str) -> None:
        """Write, atomically, a file that only this user can read, and sync it."""
        try:
            durable_files.replace(file, text.encode())
        except OSError as error:
            raise self._explain(error) from None

    def open_private(self, file: Path) -> BinaryIO:
        """Open an empty file for writing that only this user can read. Raises OSError."""
        return os.fdopen(os.open(file, _WRITTEN | os.O_TRUNC, 0o600), "wb")

    def _read(self, file: Path) -> str | None:
        try:
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise DataDirError(self.path, f"file {file.name!r} is damaged: not text") from None
        except OSError as error:
            raise self._explain(error) from None

    def _holder(self) -> int | None:
        text = self._read(self.path / "foldmq.lock")
        return int(text) if text and text.strip().isdecimal() else None

    def _explain(self, error: OSError) -> EventStoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(self.path)
        what = _REASONS.get(error.errno or 0, f"cannot be used: {error.strerror}")
        return DataDirError(self.path, what)


def take_lock(file: Path) -> int | None:
    """Open and lock a file; return the descriptor, or None when another process holds the lock.

    The lock belongs to the open file: it lasts until every copy of the descriptor is closed,
    including inherited ones. Raises OSError when the file cannot be opened.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file; changes nothing."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
