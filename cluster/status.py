"""The status message that each node of a cluster sends to the others several times a second."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson
from pydantic import TypeAdapter

from eventstore.format.records import FORMAT

STATUS_EVERY = 0.1
"""Seconds between two statuses of a leader."""
FOLLOWER_STATUS_EVERY = 0.3
"""Seconds between two statuses of a node that does not lead."""


class Role(StrEnum):
    """The present activity of a node."""

    STARTING = "starting"
    """The node reads the log."""
    FOLLOWING = "following"
    """The node has read the log and can take over."""
    LEADING = "leading"
    STOPPED = "stopped"
    """The node led and shut down cleanly; this is its last status."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node at one moment."""

    node: str
    role: Role
    epoch: int
    """Epoch of the last leader that the node knows; a leader's own epoch."""
    sequence: int
    """Sequence of the last record: stored on disk for a leader, folded for any other node."""
    link: str
    """Link of that record, in hexadecimal."""
    time_ms: int
    """The node's clock, Unix time in milliseconds."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Version of foldmq."""
    reads: int = FORMAT
    """The latest format of records that the node reads."""
    users: str = ""
    """Digest of the node's users; empty: there are none."""
    permissions: str = ""
    """Digest of the node's permissions; empty: there are none."""
    authorities: str = ""
    """Digests of the authorities whose certificates the node accepts from others, separated by
    commas; empty: not known, or it has none."""
    listen: list[str] = field(default_factory=list)
    """Addresses at which clients connect while the node leads."""
    clients: int = 0
    """Connected clients; of a node that does not lead, those that it passes on."""
    peers: str = ""
    """Address at which a leader accepts the connections of other nodes."""
    parked: int = 0
    """Clients that wait for a leader at this node."""
    serving: bool = True
    """Whether a leader takes clients; otherwise it is not certain that it still leads."""
    to: str = ""
    """The node to which a leader that stopped hands over."""
    problem: str = ""
    """Why a node does not follow at present; empty: it follows, or leads."""
    certificates: list[dict[str, Any]] = field(default_factory=list)
    """As in the status of a broker; only in an answer to a command."""
    reload: dict[str, Any] = field(default_factory=dict)
    """Likewise; empty: there was none."""

    def encode(self) -> bytes:
        """Return the bytes of a status message."""
        return orjson.dumps(self)


_ADAPTER = TypeAdapter(NodeStatus)


def decode_status(data: bytes) -> NodeStatus | None:
    """Return the status in a message; None if the message contains none.

    Fields added by later versions are ignored. Earlier ones do not say what they read.
    """
    try:
        status = _ADAPTER.validate_json(data, strict=True)
        bytes.fromhex(status.link)
    except ValueError:
        return None
    return status if b'"reads":' in data else replace(status, reads=1)
