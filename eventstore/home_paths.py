"""Paths in the home directory of a user."""

import os
from pathlib import Path

from eventstore.display import escaped
from protocol.errors import FoldmqError


class NoHome(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A path begins with the home directory of an unknown user."""

    exit_code = 2


def expand_home(path: Path | str) -> Path:
    """Return a path with ``~`` or ``~user`` replaced by the home directory. Raises NoHome."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0].removeprefix("~") or "this user"
        raise NoHome(
            f"{escaped(str(path))}: the home directory of {escaped(user)} is not known"
        ) from None


def user_cache() -> Path | None:
    """Return foldmq's directory in the cache of this user; None: the user has no cache."""
    configured = os.environ.get("XDG_CACHE_HOME")
    try:
        parent = Path(configured) if configured else Path.home() / ".cache"
    except RuntimeError:
        return None
    return parent / "foldmq" if parent.is_absolute() else None
