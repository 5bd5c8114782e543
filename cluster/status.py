"""What a node of a cluster tells the others of itself, several times a second."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import orjson

STATUS_EVERY = 0.1
"""Seconds between two statuses of a leader."""
FOLLOWER_STATUS_EVERY = 0.3
"""Seconds between two statuses of a node that does not lead."""


class Role(StrEnum):
    """What a node does at present."""

    STARTING = "starting"
    """It reads the log."""
    FOLLOWING = "following"
    """It has read the log, and can take over."""
    LEADING = "leading"
    STOPPED = "stopped"
    """It led, and ended in order: its last status."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node at one moment."""

    node: str
    role: Role
    epoch: int
    """That of the last leader it knows of; its own if it leads."""
    sequence: int
    """The last record that is on disk, of a leader; that was folded, of another."""
    link: str
    """Its link, in hexadecimal."""
    time_ms: int
    """The node's clock, Unix time in milliseconds."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Version of foldmq."""
    users: str = ""
    """Digest of its users; empty: there are none."""
    permissions: str = ""
    """Digest of its permissions; empty: there are none."""
    listen: list[str] = field(default_factory=list)
    """Where its clients connect while it leads."""
    clients: int = 0
    """Connected clients."""

    def encode(self) -> bytes:
        """Return the bytes of a message."""
        return orjson.dumps(self)


_NAMES = frozenset(one.name for one in fields(NodeStatus))
_KINDS: dict[str, type] = {
    "node": str,
    "epoch": int,
    "sequence": int,
    "link": str,
    "time_ms": int,
    "host": str,
    "pid": int,
    "version": str,
    "users": str,
    "permissions": str,
    "listen": list,
    "clients": int,
}


def decode_status(data: bytes) -> NodeStatus | None:
    """Return the status in a message; None if it is none.

    What a later version added is ignored.
    """
    try:
        raw: dict[str, Any] = orjson.loads(data)
        role = Role(raw.pop("role"))
        known = {name: value for name, value in raw.items() if name in _NAMES}
        if not all(isinstance(value, _KINDS[name]) for name, value in known.items()):
            return None
        bytes.fromhex(known["link"])
        return NodeStatus(role=role, **known)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
