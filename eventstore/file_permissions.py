"""The owner and the modes of the data directory.

Its files give access to everything: passwords, keys, all messages. So the directory and foldmq's
files in it belong to the user of the broker (or to root), and other users have no access. Modes
that allow more are changed. Files of another user, and symbolic links in place of files, are
rejected: foldmq would write, with its own rights, to a location that another user chose.
"""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from eventstore.errors import DataDirError

_ROOT: Final = 0
_SECRET: Final = (
    "nats.credentials",
    "nats.conf",
    "pseudonym.key",
    "web.token",
    "web.tokens",
    "bridge.pem",
    "server-key.pem",
)
_FILES: Final = (
    *_SECRET,
    "foldmq.lock",
    "log.mark",
    "nats.lock",
    "nats.log",
    "nats.pid",
    "nats.stderr",
    "node",
    "server.pem",
    "trusted.pem",
)
"""All files with a fixed name that foldmq, or one of its NATS servers, writes there."""
_DIRECTORIES: Final = ("jetstream", "nats-clients")
_LOOSE: Final = stat.S_IWGRP | stat.S_IRWXO
"""Permissions that are removed. The operator may give a group read access for backups, except to
secrets."""
_LOOSE_SECRET: Final = stat.S_IRWXG | stat.S_IRWXO


def check(directory: Path) -> None:
    """Raise DataDirError unless a data directory and foldmq's files in it are this user's."""
    _check_owner(directory, directory.stat(), directory, "choose another --data-dir")
    for name in _DIRECTORIES:
        place = directory / name
        if not place.is_symlink() and not place.exists():
            continue
        if not place.is_dir():
            raise DataDirError(directory, f"{name!r} is not a directory: remove it")
        _check_owner(place, place.stat(), directory, "remove it")
    for name, status in _present(directory):
        if stat.S_ISLNK(status.st_mode):
            raise DataDirError(
                directory,
                f"file {name!r} is a symbolic link: put the file itself in its place, or remove it",
            )
        if not stat.S_ISREG(status.st_mode):
            raise DataDirError(directory, f"{name!r} is not a file: remove it")
        _check_owner(directory / name, status, directory, "remove it")


def close(directory: Path) -> list[str]:
    """Remove access for other users; return a line for each changed mode.

    Raises DataDirError when a mode cannot be changed.
    """
    lines = _close_directory(directory)
    loose = [
        name
        for name, status in _present(directory)
        if status.st_mode & (_LOOSE_SECRET if name in _SECRET else _LOOSE)
    ]
    for name in loose:
        _change(directory / name, 0o600, directory)
    if loose:
        lines.append(
            f"data directory {directory}: other users could read or write {', '.join(loose)}: "
            "mode set to 0600"
        )
    return lines


def _close_directory(directory: Path) -> list[str]:
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & _LOOSE:
        return []
    if status.st_uid == _ROOT != os.geteuid():
        # Kubernetes gives a volume to a group (fsGroup); this mode must not be changed
        if mode & stat.S_IWOTH:
            raise DataDirError(
                directory,
                f"belongs to root and all users may write there (mode {mode:04o}): change its "
                "mode, or name a directory below it, which is made private",
            )
        reason = f"belongs to root and is open to other users (mode {mode:04o})"
        return [f"data directory {directory} {reason}: a directory below it would be made private"]
    _change(directory, 0o700, directory)
    return [f"data directory {directory} was open to other users (mode {mode:04o}): set to 0700"]


def _present(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield foldmq's files that exist, with their status; links are not followed."""
    for name in sorted(_FILES):
        try:
            yield name, (directory / name).lstat()
        except FileNotFoundError:
            continue


def _check_owner(place: Path, status: os.stat_result, directory: Path, else_do: str) -> None:
    if status.st_uid in (os.geteuid(), _ROOT):
        return
    what = "" if place == directory else f"{place.name!r} "
    raise DataDirError(
        directory,
        f"{what}belongs to {_user(status.st_uid)}, foldmq runs as {_user(os.geteuid())}: run it as "
        f"that user, change the owner, or {else_do}",
    )


def _change(place: Path, mode: int, directory: Path) -> None:
    try:
        place.chmod(mode)
    except OSError as error:
        what = "" if place == directory else f"file {place.name!r} "
        raise DataDirError(
            directory,
            f"{what}is open to other users and its mode cannot be changed: {error.strerror}",
        ) from None


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"
