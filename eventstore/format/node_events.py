"""The events of a node: its broker, checkpoints, the log itself, the bridge and operators."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic reads the types of fields
from dataclasses import dataclass, field
from typing import Any, Literal

from eventstore.format.positions import Run  # noqa: TC001 - pydantic reads the types of fields


@dataclass(slots=True)
class BrokerStarted:
    """A broker process took over this log. Earlier connections have ended."""

    software: str
    """Version of foldmq that writes from here on."""
    e: Literal["BrokerStarted"] = "BrokerStarted"
    v: Literal[1] = 1
    epoch: int = 0
    """How often a node of the cluster became the leader, this time included; 0 = no cluster."""
    leader: str = ""
    """The node of the cluster that leads from here on."""
    cause: str = ""
    """Why another leader was needed: first, stopped, dead or silent."""
    crashed: bool = False
    """The run before did not end as asked: the broker or its machine crashed, or was killed."""


@dataclass(slots=True)
class LimitsApplied:
    """The limits and permissions that hold from here on.

    Recorded at a start and where SIGHUP changed them, and repeated in each checkpoint.
    """

    limits: dict[str, Any]
    """Settings that decide what is dropped and what expires, by name, in bytes and seconds:
    max_queued_messages, max_queued_bytes, max_ack_pending, max_outbound_bytes, session_expiry,
    slow_reader_time, max_topic_levels, check_payload_format."""
    e: Literal["LimitsApplied"] = "LimitsApplied"
    v: Literal[1] = 1
    permissions: str = ""
    """Digest of the permissions; empty: there are none, everything is allowed."""
    users: str = ""
    """Digest of the password file and of the keys for tokens; empty: there are none."""
    elsewhere: bool = False
    """Logins may have permissions or groups of their own, which the digest does not cover."""


@dataclass(slots=True)
class BrokerStopped:
    """The broker ended as asked: everything before was committed, every client closed."""

    e: Literal["BrokerStopped"] = "BrokerStopped"
    v: Literal[1] = 1


@dataclass(slots=True)
class LeaderProved:
    """A leader of a cluster that heard of no other node wrote this to learn that it still leads."""

    epoch: int
    """That of the leader's BrokerStarted."""
    e: Literal["LeaderProved"] = "LeaderProved"
    v: Literal[1] = 1


@dataclass(slots=True)
class CheckpointBegun:
    """From here to its CheckpointCompleted the whole state is repeated: a log can begin here."""

    checkpoint: int
    """Number of the checkpoint, from 1."""
    e: Literal["CheckpointBegun"] = "CheckpointBegun"
    v: Literal[1] = 1
    epoch: int = 0
    """That of the leader; 0 = no cluster."""


@dataclass(slots=True)
class SessionSnapshot:
    """The state of a session at this position; a large one is spread over several events."""

    session: str
    state: dict[str, Any]
    """The state, or a part of it, as ``projections.state.snapshot`` writes it."""
    part: int = 0
    """Number of the part, from 0."""
    last: bool = True
    """No more parts follow."""
    e: Literal["SessionSnapshot"] = "SessionSnapshot"
    v: Literal[1] = 1


@dataclass(slots=True)
class RetainedSnapshot:
    """Retained messages with their payloads: one entry each, and from here on their position."""

    topics: list[str]
    """Topic of each message."""
    qos: list[int]
    """QoS of each message."""
    refs: list[Run]
    """Where the messages stood before."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when they are all of one size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    session: str | None = None
    """None: they are retained. Otherwise they are QoS 2 messages of this session that wait for
    their PUBREL to become so, and they keep their position."""
    e: Literal["RetainedSnapshot"] = "RetainedSnapshot"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks end where the first payload
    begins, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    only one, or none has any."""
    blocks_at: Sequence[int] = ()
    """Offset of each block in the payload area. Never written: for a part of an event, whose
    blocks stand elsewhere."""
    expires: list[Run] | int = 0
    """Unix time in seconds at which each message expires, 0: never; one number when they are all
    alike."""


@dataclass(slots=True)
class CheckpointCompleted:
    """Everything was repeated: a fold that begins with this checkpoint is complete from here."""

    checkpoint: int
    """Its number."""
    begun: int
    """Position of its CheckpointBegun."""
    sessions: int
    """Number of sessions that were repeated."""
    retained: int
    """Number of retained messages that were repeated."""
    e: Literal["CheckpointCompleted"] = "CheckpointCompleted"
    v: Literal[1] = 1


@dataclass(slots=True)
class MessagesCarried:
    """Messages that sessions still need, repeated because their records are to be cut off.

    One entry each. They keep the position under which sessions refer to them.
    """

    refs: list[Run]
    """Positions of the messages."""
    topics: list[str]
    """The distinct topics."""
    which: list[int]
    """For each message, the index of its topic; empty when there is only one topic."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when they are all of one size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    waiting: list[Run] = field(default_factory=list)
    """Positions of those that become retained with their PUBREL."""
    e: Literal["MessagesCarried"] = "MessagesCarried"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks end where the first payload
    begins, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    only one, or none has any."""
    blocks_at: Sequence[int] = ()
    """Offset of each block in the payload area. Never written: for a part of an event, whose
    blocks stand elsewhere."""
    expires: list[Run] | int = 0
    """Unix time in seconds at which each message expires, 0: never; one number when they are all
    alike."""
    as_retained: list[Run] = field(default_factory=list)
    """Positions of those that were published with RETAIN 1."""
    publishers: list[str] = field(default_factory=list)
    """The distinct sessions that published the messages; empty if that is not known."""
    publisher_of: Sequence[int] = ()
    """For each message, the index of its publisher; empty when there is only one."""


@dataclass(slots=True)
class LogCut:
    """The log is cut: the records before ``first`` are removed as soon as this is on disk."""

    first: int
    """Stream sequence of the first record that stays."""
    link: str
    """Link of the last record that goes, in hexadecimal: what ``first`` continues."""
    begins_ms: int
    """Time of the first record that stays, Unix time in milliseconds."""
    reason: str
    """The bound that was reached: keep or keep_bytes; archived: a bound, and an archive has it."""
    e: Literal["LogCut"] = "LogCut"
    v: Literal[1] = 1


@dataclass(slots=True)
class LogArchived:
    """An archive reported that it has the log up to a record. The newest one counts."""

    through: int
    """Stream sequence of the last record that the archive has, with all before it."""
    link: str
    """Link of that record, in hexadecimal."""
    by: str
    """Name given by the reporter, which had the credentials of the NATS account."""
    where: str
    """Location of the archive, as reported."""
    e: Literal["LogArchived"] = "LogArchived"
    v: Literal[1] = 1


@dataclass(slots=True)
class Bridged:
    """NATS has what was published at QoS 1 and 2 up to a position: its server processed it."""

    through: int
    """That position, packed; 0: there is no bridge any more, and nothing is owed to NATS."""
    e: Literal["Bridged"] = "Bridged"
    v: Literal[1] = 1


@dataclass(slots=True)
class RetainedCleared:
    """Retained messages were removed by an operator; subscribers are not notified."""

    topics: list[str]
    """The topics that have no retained message from here on."""
    e: Literal["RetainedCleared"] = "RetainedCleared"
    v: Literal[1] = 1


@dataclass(slots=True)
class OperatorActed:
    """An operator had something done; what it led to follows in the same turn."""

    action: str
    """kick, restart, remove_session or clear_retained."""
    by: str
    """Name given by the operator, who had the credentials of the NATS account."""
    target: str
    """Client identifier, or name of the actor; for retained messages how many."""
    session: str | None = None
    """Client identifier of the session that it was about."""
    e: Literal["OperatorActed"] = "OperatorActed"
    v: Literal[1] = 1


@dataclass(slots=True)
class WebAccessed:
    """Logins at the web page, what it refused, and its tokens; one may stand for several alike."""

    outcome: str
    """login; refused: a login; denied: a change that the role of the token does not allow;
    token_added, token_removed: the page found its file of tokens changed."""
    address: str
    """Where the first of them came from, without the port; empty: from many addresses, or it is
    about a token."""
    name: str = ""
    """Name of the token; empty when no token is known that was shown. Never the token itself."""
    role: str = ""
    """Role of the token: view, view-all or operate."""
    reason: str = ""
    """Why it was refused or denied: wrong_token, wrong_cookie, expired, role."""
    count: int = 1
    """How many there were."""
    first_ms: int = 0
    """Time of the first of them, Unix time in milliseconds."""
    expires: str = ""
    """End of a token that was added or removed, such as 2026-12-31T23:59:59Z, or never."""
    e: Literal["WebAccessed"] = "WebAccessed"
    v: Literal[1] = 1
