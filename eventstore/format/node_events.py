"""The events of a node: its broker, checkpoints, the log itself, the bridge and operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from eventstore.format.positions import Run


@dataclass(slots=True)
class BrokerStarted:
    """A broker process took over this log. Earlier connections have ended."""

    software: str
    """Version of foldmq that writes from now on."""
    e: Literal["BrokerStarted"] = "BrokerStarted"
    v: Literal[1] = 1
    epoch: int = 0
    """Number of times a node of the cluster became the leader, this time included; 0 = no
    cluster."""
    leader: str = ""
    """The node of the cluster that leads from now on."""
    cause: str = ""
    """Reason for the new leader: first, stopped, dead or silent."""
    crashed: bool = False
    """The previous run did not end cleanly: the broker or its machine crashed, or was killed."""


@dataclass(slots=True)
class LimitsApplied:
    """The limits and permissions that apply from now on.

    Recorded at a start and when a reload changed them, and repeated in each checkpoint.
    """

    limits: dict[str, Any]
    """Settings that determine drops and expiry, by name, in bytes and seconds: max_queued_messages,
    max_queued_bytes, max_ack_pending, max_outbound_bytes, session_expiry, slow_reader_time,
    max_topic_levels, check_payload_format."""
    e: Literal["LimitsApplied"] = "LimitsApplied"
    v: Literal[1] = 1
    permissions: str = ""
    """Digest of the permissions; empty: there are none, everything is allowed."""
    users: str = ""
    """Digest of the password file and of the keys for tokens; empty: there are none."""
    elsewhere: bool = False
    """Logins may have additional permissions or groups, which the digest does not cover."""


@dataclass(slots=True)
class BrokerStopped:
    """The broker shut down cleanly: everything before was committed, every client closed."""

    e: Literal["BrokerStopped"] = "BrokerStopped"
    v: Literal[1] = 1
    to: str = ""
    """The node of the cluster that should lead from now on; empty: any."""


@dataclass(slots=True)
class ClockJumped:
    """The broker's clock was set forward or back; the times of records follow it from here on.

    Nothing expires because of it: sessions, messages and wills keep the time that they had left.
    """

    ms: int
    """Milliseconds by which the times of records jump; negative: back."""
    seen: str
    """running: the clock jumped while the broker ran, compared with the time that had passed.
    start: at the start, compared with the last record: the clock was behind it, or the broker was
    off for longer than max_clock_gap, which may as well be a wrong clock.
    confirmed: no jump. An operator said that the clock is right, so that these milliseconds, which
    the last start did not count, count for the sessions that were offline before it."""
    previous: int = 0
    """Stream sequence of the record with the previous ClockJumped; 0: there was none."""
    e: Literal["ClockJumped"] = "ClockJumped"
    v: Literal[1] = 1


@dataclass(slots=True)
class LeaderProved:
    """A leader that heard no other node of its cluster wrote this to check that it still leads."""

    epoch: int
    """Epoch of the leader's BrokerStarted."""
    e: Literal["LeaderProved"] = "LeaderProved"
    v: Literal[1] = 1


@dataclass(slots=True)
class CheckpointBegun:
    """The whole state is repeated up to the CheckpointCompleted: a log can begin here."""

    checkpoint: int
    """Number of the checkpoint, from 1."""
    e: Literal["CheckpointBegun"] = "CheckpointBegun"
    v: Literal[1] = 1
    epoch: int = 0
    """Epoch of the leader; 0 = no cluster."""


@dataclass(slots=True)
class SessionSnapshot:
    """The state of a session at this position; a large one is split into several events."""

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
    """Retained messages with their payloads: one entry each, their position from now on."""

    topics: list[str]
    """Topic of each message."""
    qos: list[int]
    """QoS of each message."""
    refs: list[Run]
    """The previous positions of the messages."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when all have the same size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    session: str | None = None
    """None: they are retained. Otherwise they are QoS 2 messages of this session that become
    retained with their PUBREL, and they keep their position."""
    e: Literal["RetainedSnapshot"] = "RetainedSnapshot"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks stand directly before the
    first payload, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    same single block, or none has any."""
    blocks_at: Sequence[int] = ()
    """Offset of each block in the payload area. Never written: set for a part of an event, whose
    blocks stand elsewhere."""
    expires: list[Run] | int = 0
    """Steady Unix time in seconds at which each message expires, 0: never; one number when all are
    equal."""
    publishers: list[str] = field(default_factory=list)
    """The distinct client identifiers of the publishers, "" where the publisher is not known; empty
    if none is known, and for messages of ``session``."""
    publisher_of: Sequence[int] = ()
    """For each message, the index of its publisher; empty when there is only one."""


@dataclass(slots=True)
class CheckpointCompleted:
    """Everything was repeated: a fold that begins with this checkpoint is complete from now on."""

    checkpoint: int
    """Number of the checkpoint."""
    begun: int
    """Position of its CheckpointBegun."""
    sessions: int
    """Number of repeated sessions."""
    retained: int
    """Number of repeated retained messages."""
    e: Literal["CheckpointCompleted"] = "CheckpointCompleted"
    v: Literal[1] = 1


@dataclass(slots=True)
class MessagesCarried:
    """Messages that sessions still need, repeated because their records are about to be cut off.

    One entry each. They keep the position under which sessions refer to them.
    """

    refs: list[Run]
    """Positions of the messages."""
    topics: list[str]
    """The distinct topics."""
    which: list[int]
    """For each message, the index of its topic; empty when there is only one topic."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when all have the same size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    waiting: list[Run] = field(default_factory=list)
    """Positions of the messages that become retained with their PUBREL."""
    e: Literal["MessagesCarried"] = "MessagesCarried"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks stand directly before the
    first payload, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    same single block, or none has any."""
    blocks_at: Sequence[int] = ()
    """Offset of each block in the payload area. Never written: set for a part of an event, whose
    blocks stand elsewhere."""
    expires: list[Run] | int = 0
    """Steady Unix time in seconds at which each message expires, 0: never; one number when all are
    equal."""
    as_retained: list[Run] = field(default_factory=list)
    """Positions of the messages that were published with RETAIN 1."""
    publishers: list[str] = field(default_factory=list)
    """The distinct sessions that published the messages; empty if they are not known."""
    publisher_of: Sequence[int] = ()
    """For each message, the index of its publisher; empty when there is only one."""


@dataclass(slots=True)
class LogCut:
    """The log is cut: the records before ``first`` are removed as soon as this event is on disk."""

    first: int
    """Stream sequence of the first record that stays."""
    link: str
    """Link of the last removed record, in hexadecimal: ``first`` continues it."""
    begins_ms: int
    """Time of the first record that stays, Unix time in milliseconds."""
    reason: str
    """The bound that was reached: keep or keep_bytes; archived: a bound, and an archive has the
    records; imported: there were none, the log begins with the state of another broker."""
    e: Literal["LogCut"] = "LogCut"
    v: Literal[1] = 1
    lost: list[list[int]] = field(default_factory=list)
    """What salvages gave up before ``first``, the last ones: first and last record, number of
    records, times of the records before and after it (0: none), Unix time in milliseconds."""


@dataclass(slots=True)
class LogSalvaged:
    """``foldmq salvage`` gave up the records ``first`` to ``end``: they were damaged or lost.

    Records without events stand in their places, and the record of this event in that of the last
    one. Its successor continues the lost record instead: ``link`` names it
    (``eventstore.format.records.link_of``).
    """

    first: int
    """Stream sequence of the first record that was given up."""
    end: int
    """Stream sequence of the last record that was given up."""
    link: str
    """Link of the lost record ``end``, as the next record names it, in hexadecimal; empty if no
    later record was kept."""
    records: int
    """Number of records that were given up."""
    bytes: int
    """Size in bytes of what the store still contained of them."""
    until: int
    """Stream sequence of the last record of the damaged log that was kept or given up. Later
    records belong to the broker that continued it."""
    source: str
    """The damaged data directory."""
    by: str
    """User and host that ran the command."""
    software: str
    """Version of foldmq that salvaged the log."""
    sessions: list[str] = field(default_factory=list)
    """Sessions whose state depends on the lost records, the first ones in alphabetical order."""
    affected: int = 0
    """Number of these sessions."""
    begins_ms: int = 0
    """Time of the last record before ``first``, Unix time in milliseconds; 0: there is none."""
    ends_ms: int = 0
    """Time of the first record after ``end``, Unix time in milliseconds; 0: none was kept."""
    known: list[int] = field(default_factory=list)
    """Times of each LogEndUnproven behind the lost records whose ``salvaged`` is not before
    ``until``, Unix time in milliseconds: these starts continued an earlier salvage, not this."""
    e: Literal["LogSalvaged"] = "LogSalvaged"
    v: Literal[1] = 1


@dataclass(slots=True)
class LogEndUnproven:
    """A broker started, and could not show that the log ended with the last acknowledged record.

    Nothing can be said about the time between record ``end`` and this start.
    """

    reason: str
    """no_watermark: no watermark named the last record; copy: the data directory was a copy;
    restored: it was restored from a backup."""
    end: int
    """Stream sequence of the last record of the log at that start."""
    end_ms: int
    """Time of that record, Unix time in milliseconds."""
    noted: int = 0
    """Stream sequence of the last record that the watermark names: if it is later than ``end``,
    the records between are missing; 0: there is no watermark."""
    source: str = ""
    """The backup from which the data directory was restored; empty: not known."""
    salvaged: int = 0
    """LogSalvaged.until, if the log ends before that record: from here on the state that was left
    is continued; 0: it does not."""
    e: Literal["LogEndUnproven"] = "LogEndUnproven"
    v: Literal[1] = 1


@dataclass(slots=True)
class LogArchived:
    """An archive reported that it has the log up to a record. The newest report counts."""

    through: int
    """Stream sequence of the last archived record; the archive also has all records before it."""
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
    """NATS has the QoS 1 and 2 publications up to a position: its server processed them.

    Written by earlier versions; today this is a Forwarded to ``nats``.
    """

    through: int
    """That position, packed; 0: there is no longer a bridge, and nothing is pending for NATS."""
    e: Literal["Bridged"] = "Bridged"
    v: Literal[1] = 1


@dataclass(slots=True)
class Followed:
    """The log has taken the messages that took effect in another log of the node up to a position.

    The messages that it took, with their deliveries, are in the same turn.
    """

    log: str
    """Name of the other log."""
    through: int
    """That position, packed."""
    link: str
    """Link of the record at that position, in hexadecimal."""
    e: Literal["Followed"] = "Followed"
    v: Literal[1] = 1
    expired: list[Run] = field(default_factory=list)
    """Positions there of messages that were not taken in this turn because they had expired."""
    erased: list[Run] = field(default_factory=list)
    """Positions there of messages that were not taken in this turn because they are erased."""


@dataclass(slots=True)
class RetainedCleared:
    """Retained messages were removed by an operator; subscribers are not notified."""

    topics: list[str]
    """The topics that no longer have a retained message."""
    e: Literal["RetainedCleared"] = "RetainedCleared"
    v: Literal[1] = 1


@dataclass(slots=True)
class OperatorActed:
    """An operator requested an action; its consequences follow in the same turn."""

    action: str
    """kick, restart, remove_session, clear_retained, confirm_clock, reload, pause_destination,
    resume_destination, skip_destination or retry_messages."""
    by: str
    """Name given by the operator, who had the credentials of the NATS account."""
    target: str
    """Client identifier, or name of the actor; for retained messages their number;
    settings for a reload, the clock for confirm_clock; name of the destination."""
    session: str | None = None
    """Client identifier of the session concerned."""
    e: Literal["OperatorActed"] = "OperatorActed"
    v: Literal[1] = 1
    refs: list[Run] = field(default_factory=list)
    """Positions of the refused messages that retry_messages concerns."""


@dataclass(slots=True)
class WebAccessed:
    """Logins to the web page, refusals, and changes of tokens; one event may count equal ones."""

    outcome: str
    """login; refused: a login; denied: a change that the role of the token does not allow;
    token_added, token_removed: the page found its file of tokens changed."""
    address: str
    """Address of the first of them, without the port; empty: there were many addresses, or the
    event concerns a token."""
    name: str = ""
    """Name of the token; empty when the given token is not known. Never the token itself."""
    role: str = ""
    """Role of the token: view, view-all or operate."""
    reason: str = ""
    """Reason of the refusal or denial: wrong_token, wrong_cookie, expired, role."""
    count: int = 1
    """Number of equal ones."""
    first_ms: int = 0
    """Time of the first of them, Unix time in milliseconds."""
    expires: str = ""
    """End of a token that was added or removed, such as 2026-12-31T23:59:59Z, or never."""
    e: Literal["WebAccessed"] = "WebAccessed"
    v: Literal[1] = 1


NodeEvent: TypeAlias = (
    BrokerStarted
    | LimitsApplied
    | BrokerStopped
    | ClockJumped
    | LeaderProved
    | CheckpointBegun
    | SessionSnapshot
    | RetainedSnapshot
    | CheckpointCompleted
    | MessagesCarried
    | LogCut
    | LogSalvaged
    | LogEndUnproven
    | LogArchived
    | Bridged
    | Followed
    | RetainedCleared
    | OperatorActed
    | WebAccessed
)
