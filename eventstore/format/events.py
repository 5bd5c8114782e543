"""The events of sessions and messages in the log, in the terms of MQTT.

An event is a slotted dataclass; the hot path builds it without validation. Readers of a log parse
with ``event_parsing``. The events of the node, its checkpoints and its operators are in
``node_events``, those of a turn of the event loop in ``turn_events``.

Events of one session that happen together share one event: columns with a value for each message,
integers as runs (see ``positions``). ``event_parsing.entries`` returns the number of positions that
an event occupies.

Every event type carries its version ``v``. A field may be added with a default without a new
version; any other change needs one, and an upcaster. An added field is declared after ``v`` and
written only where it differs from its default (``event_json``), so that events that do not use it
take the same bytes as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from eventstore.format.positions import Run

NATS_SESSION: Final = "$nats"
"""The client identifier of publications by NATS clients in the log. No client can have it."""
ASSIGNED_ID: Final = "auto-"
"""Prefix of the client identifiers that the broker assigns."""
API_SESSION: Final = "$api/"
"""Prefix of the client identifiers of publications through the HTTP API, before the name of the
token. No client can have such an identifier."""
API_USER: Final = "$api"
"""The user of these publications, in the rules of permissions."""
LOG_SESSION: Final = "$log/"
"""Prefix of the client identifiers of messages taken from other logs, before the name of the log.
No client can have such an identifier."""


MAX_DROPPED_TOPICS: Final[int] = 8
"""Maximum number of topics that a MessageDropped names; if it has that many, other topics may have
been dropped, too."""
LONGEST_DROPPED_TOPIC: Final[int] = 1024
"""Maximum number of characters of such a topic; longer ones are truncated."""


@dataclass(slots=True)
class SessionOpened:
    """A CONNECT was accepted. A session that was not resumed starts empty."""

    session: str
    """Client identifier."""
    resumed: bool
    """True: earlier state continues (session present). False: any earlier state is removed."""
    clean: bool
    """Whether the session ends with its connection: Clean Session, in MQTT 5 a session expiry of
    0."""
    level: int
    """Protocol level: 3, 4 or 5."""
    keep_alive: int = 0
    """Seconds, 0 = off."""
    generation: int = 1
    """Number of connections of this client identifier so far; fences off older connections."""
    address: str = ""
    user: str | None = None
    expiry: int | None = None
    """Session expiry interval in seconds (MQTT 5); None = the broker's setting."""
    properties: dict[str, Any] | None = None
    """User properties of CONNECT (MQTT 5): {"user": [[name, value], ...]}."""
    e: Literal["SessionOpened"] = "SessionOpened"
    v: Literal[1] = 1
    clean_start: bool = False
    """The client asked for a new, empty session (Clean Start, MQTT 5)."""
    receive_maximum: int = 65_535
    """Number of unfinished QoS 1 and 2 deliveries that the client accepts at a time (MQTT 5)."""
    packet_maximum: int = 0
    """Size in bytes of the largest packet that the client accepts (MQTT 5); 0: any."""
    via: str = ""
    """The node of a cluster that the client is connected to; empty: the leader."""
    bridge: bool = False
    """The client is another broker's bridge, which set bit 7 of the protocol level."""


@dataclass(slots=True)
class SessionTakenOver:
    """A new connection was opened for a connected session; the old one is closed."""

    session: str
    generation: int
    """Generation of the closed connection."""
    e: Literal["SessionTakenOver"] = "SessionTakenOver"
    v: Literal[1] = 1


@dataclass(slots=True)
class SessionClosed:
    """The connection of a session ended; a clean session ended with it."""

    session: str
    reason: str
    """disconnect, closed, keep_alive, protocol_error, taken_over, broker_stopped, ..."""
    generation: int = 1
    e: Literal["SessionClosed"] = "SessionClosed"
    v: Literal[1] = 1
    code: int = 0
    """Reason code of the DISCONNECT that was sent or received (MQTT 5)."""
    expiry: int | None = None
    """Session expiry interval in seconds, where DISCONNECT changed it (MQTT 5)."""
    grace: int = 0
    """Seconds for which its will waits for the client, because the broker ended, not the client;
    0: the will does not."""


@dataclass(slots=True)
class SessionExpired:
    """A session that was not connected was removed, with all its state."""

    session: str
    reason: str
    """expired, removed, ..."""
    e: Literal["SessionExpired"] = "SessionExpired"
    v: Literal[1] = 1


@dataclass(slots=True)
class Subscribed:
    """Filters were granted to a session."""

    session: str
    filters: list[tuple[str, int]]
    """Topic filter and granted QoS."""
    properties: dict[str, Any] | None = None
    """Not used."""
    e: Literal["Subscribed"] = "Subscribed"
    v: Literal[1] = 1
    options: Sequence[int] = ()
    """For each filter its subscription options other than the QoS (MQTT 5), as in the packet: 4
    No Local, 8 Retain As Published, 16 and 32 Retain Handling; empty when there are none."""
    identifier: int = 0
    """Subscription identifier (MQTT 5); 0: none."""


@dataclass(slots=True)
class SubscriptionDenied:
    """Filters of a SUBSCRIBE were not granted to a session."""

    session: str
    filters: list[str]
    """Topic filters."""
    reasons: list[Run]
    """Reason code of each, 128 and above: 0x87 not authorized, 0x97 a limit is reached, 0x8f not
    valid here, 0x9e shared subscriptions not supported. A client of MQTT 3 gets 0x80 for each."""
    e: Literal["SubscriptionDenied"] = "SubscriptionDenied"
    v: Literal[1] = 1


@dataclass(slots=True)
class Unsubscribed:
    """Filters were removed from a session; messages on their way to it still arrive."""

    session: str
    filters: list[str]
    e: Literal["Unsubscribed"] = "Unsubscribed"
    v: Literal[1] = 1


@dataclass(slots=True)
class ReplayOpened:
    """A replay was granted: its subscription, granted in the same turn, reads the log.

    Logs are named as by ``Followed``; the empty name is that of this log.
    """

    session: str
    filter: str
    """Filter of the subscription, as the client sent it: $replay/FROM/FILTER and the like."""
    start: dict[str, int]
    """For each log the position after which it begins; a log that is not named begins at
    ``start_ms``."""
    e: Literal["ReplayOpened"] = "ReplayOpened"
    v: Literal[1] = 1
    start_ms: int = 0
    """Unix time in milliseconds: it begins with the first record that is not older; 0: at the
    beginning of the log."""
    until: dict[str, int] = field(default_factory=dict)
    """For each log the last position that it reads; a log that is not named is read up to
    ``until_ms``."""
    until_ms: int = 0
    """Unix time in milliseconds: it ends before the first record that is later; 0: it goes on with
    new messages."""
    last: bool = False
    """Up to ``start`` it sends the last message of each topic, and then all messages."""
    topic_filter: str = ""
    """It sends the messages on topics that match this filter; empty: the one at the end of
    ``filter``."""


@dataclass(slots=True)
class ReplayReached:
    """A replay has read the logs up to these positions.

    The Delivered of its messages at QoS 1 and 2 are in the same turn, before this event.
    """

    session: str
    filter: str
    """Filter of the subscription, as the client sent it."""
    through: dict[str, int]
    """For each log whose position has changed, the last position that was read; messages take
    effect at a position."""
    e: Literal["ReplayReached"] = "ReplayReached"
    v: Literal[1] = 1
    sent: int = 0
    """Number of messages sent since the last such event, at any QoS."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of other messages that match, by the reason: not_permitted, expired,
    packet_too_large, no_local, erased."""
    gap: dict[str, list[int]] = field(default_factory=dict)
    """For each log of which a part was removed unread: first and last position of that part."""
    state: str = ""
    """live: everything was read; withheld: the client may not read the messages at present; ended:
    it reached its end; damaged: the log cannot be read further; too_many_topics: for the last
    message of each; empty: it reads the past."""


@dataclass(slots=True)
class MessagePublished:
    """Messages were accepted from a session: one entry each.

    At QoS 0 (recorded only when retained) and QoS 1 a message takes effect here; at QoS 2 with
    the ``Released`` that names its packet identifier.
    """

    session: str
    qos: int
    retain: bool
    topics: list[str]
    """The distinct topics."""
    which: list[int]
    """For each message, the index of its topic; empty when there is only one topic."""
    pids: list[Run]
    """Packet identifiers (QoS 1 and 2), as runs."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when all have the same size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    will: bool = False
    """The broker published the message as the session's will."""
    properties: list[dict[str, Any] | None] | None = None
    """Not used: see blocks."""
    e: Literal["MessagePublished"] = "MessagePublished"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks are directly before the first
    payload, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    same single block, or none has any."""
    blocks_at: Sequence[int] = ()
    """Offset of each block in the payload area. Never written: set for a part of an event, whose
    blocks are elsewhere."""
    origins: Sequence[Run] = ()
    """Positions of the messages in the log that they were taken from; empty when a client of this
    log published them."""
    share: str = ""
    """The shared subscription that the other log assigned the messages to, and the only one that
    gets them; empty: they are for all subscriptions that match."""


@dataclass(slots=True)
class Delivered:
    """Messages were sent to a session under new packet identifiers: one entry each."""

    session: str
    filter: str
    """The subscription through which they are delivered."""
    qos: int
    """QoS of the delivery, 1 or 2."""
    pids: list[Run]
    refs: list[Run]
    """Positions of the messages."""
    retain: bool = False
    queued: int = -1
    """-1: sent on arrival. Otherwise they left the head of the queue with this many payload
    bytes."""
    e: Literal["Delivered"] = "Delivered"
    v: Literal[1] = 1
    rap: bool = False
    """RETAIN was sent because the messages were published with it (Retain As Published, MQTT
    5)."""


@dataclass(slots=True)
class Queued:
    """Messages wait for a session that is offline or whose window is full: one entry each."""

    session: str
    filter: str
    qos: int
    refs: list[Run]
    size: int
    """Payload bytes of all messages together."""
    retain: bool = False
    e: Literal["Queued"] = "Queued"
    v: Literal[1] = 1
    expires: list[Run] | int = 0
    """Steady Unix time in seconds at which each message expires, 0: never; one number when all are
    equal."""
    behind: int = -1
    """Number of queued messages that stay ahead of them, if a member of the shared subscription
    returned them; -1: all."""


@dataclass(slots=True)
class Redelivered:
    """Unacknowledged packets were sent again (DUP), under their packet identifiers."""

    session: str
    pids: list[Run]
    cause: str
    """resumed or ack_wait."""
    e: Literal["Redelivered"] = "Redelivered"
    v: Literal[1] = 1


@dataclass(slots=True)
class Acked:
    """PUBACK was received from the session: QoS 1 deliveries are complete."""

    session: str
    pids: list[Run]
    e: Literal["Acked"] = "Acked"
    v: Literal[1] = 1
    reasons: Sequence[Run] = ()
    """Reason codes (MQTT 5); empty when all are 0."""


@dataclass(slots=True)
class Received:
    """PUBREC was received from the session: it owns the QoS 2 messages; PUBREL is sent.

    With the reason code 0x98 none came: the client may not read the topic any more, and the
    delivery is completed.
    """

    session: str
    pids: list[Run]
    e: Literal["Received"] = "Received"
    v: Literal[1] = 1
    reasons: Sequence[Run] = ()
    """Reason codes (MQTT 5); empty when all are 0."""


@dataclass(slots=True)
class Refused:
    """PUBREC with an error was received: QoS 2 deliveries ended unaccepted (MQTT 5)."""

    session: str
    pids: list[Run]
    reasons: list[Run]
    """Reason codes, 128 and above."""
    e: Literal["Refused"] = "Refused"
    v: Literal[1] = 1


@dataclass(slots=True)
class Completed:
    """PUBCOMP was received from the session: QoS 2 deliveries are complete."""

    session: str
    pids: list[Run]
    e: Literal["Completed"] = "Completed"
    v: Literal[1] = 1
    reasons: Sequence[Run] = ()
    """Reason codes (MQTT 5); empty when all are 0."""


@dataclass(slots=True)
class InboundReplaced:
    """QoS 2 messages of the session will not take effect: it did not release them.

    The client, which lost its state, used their packet identifiers for other messages.
    """

    session: str
    pids: list[Run]
    refs: list[Run]
    """Positions of the messages."""
    e: Literal["InboundReplaced"] = "InboundReplaced"
    v: Literal[1] = 1


@dataclass(slots=True)
class Released:
    """PUBREL was received from the session: its QoS 2 messages take effect now, in this order."""

    session: str
    pids: list[Run]
    refs: list[Run]
    """Positions of the messages."""
    e: Literal["Released"] = "Released"
    v: Literal[1] = 1


@dataclass(slots=True)
class WillArmed:
    """The CONNECT of the session's connection contained a will."""

    session: str
    topic: str
    qos: int
    retain: bool
    size: int
    at: int
    """Offset of the payload in the record's payload area."""
    delay: int = 0
    """Will delay interval in seconds (MQTT 5)."""
    properties: dict[str, Any] | None = None
    """Not used: see blocks."""
    e: Literal["WillArmed"] = "WillArmed"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Size in bytes of its block of properties (MQTT 5), which is directly before the payload;
    empty: it has none."""


@dataclass(slots=True)
class WillFired:
    """The will is published; the ``MessagePublished`` with ``will`` set follows."""

    session: str
    e: Literal["WillFired"] = "WillFired"
    v: Literal[1] = 1


@dataclass(slots=True)
class WillCancelled:
    """The will is discarded unpublished: DISCONNECT, or a new connection within its delay."""

    session: str
    e: Literal["WillCancelled"] = "WillCancelled"
    v: Literal[1] = 1


@dataclass(slots=True)
class MessageDropped:
    """Messages that matched a subscription of the session will not be delivered to it."""

    session: str
    reason: str
    """queue_messages, queue_bytes, unsubscribed, slow_reader, not_permitted, and others."""
    count: int
    refs: list[Run] = field(default_factory=list)
    """Positions of the messages, where they have one (QoS 1 and 2)."""
    filter: str = ""
    queued: int = -1
    """-1: never queued. Otherwise they left the head of the queue with this many payload bytes."""
    e: Literal["MessageDropped"] = "MessageDropped"
    v: Literal[1] = 1
    topics: list[str] = field(default_factory=list)
    """The distinct topics of messages without a position, at most eight of them."""


@dataclass(slots=True)
class Expired:
    """Queued messages expired: they left the queue, wherever they were in it (MQTT 5)."""

    session: str
    filter: str
    refs: list[Run]
    size: int
    """Payload bytes of all messages together."""
    e: Literal["Expired"] = "Expired"
    v: Literal[1] = 1


@dataclass(slots=True)
class Assigned:
    """Messages of a shared subscription were given to one of its members: one entry each.

    The Delivered of the member, or its QoS 0 packet, belongs to the same turn. Another log takes
    the messages assigned to it in one of its later turns.
    """

    session: str
    """Client identifier of the shared subscription: $share/NAME/FILTER."""
    member: str
    """Client identifier of the member; ``$log/NAME``: the shared subscription of that name in
    another log, for its members."""
    refs: list[Run]
    queued: int = -1
    """-1: assigned on arrival. Otherwise they left the head of the queue with this many payload
    bytes."""
    e: Literal["Assigned"] = "Assigned"
    v: Literal[1] = 1
    by_topic: bool = False
    """Each topic goes to one member as long as the same members are connected:
    ``shared_strategy`` is topic, and every member may receive every message."""
    qos: int = 0
    """QoS of the messages, where the member is the shared subscription of another log."""
    refused: list[str] = field(default_factory=list)
    """The logs whose members may not receive the messages or do not accept them, where the member
    is the shared subscription of another log."""


@dataclass(slots=True)
class Returned:
    """QoS 1 deliveries of a shared subscription ended unacknowledged: its member left.

    A Queued of the shared subscription, or an Assigned, belongs to the same turn.
    """

    session: str
    """Client identifier of the member."""
    filter: str
    """$share/NAME/FILTER."""
    pids: list[Run]
    refs: list[Run]
    e: Literal["Returned"] = "Returned"
    v: Literal[1] = 1


@dataclass(slots=True)
class RetainedExpired:
    """Retained messages expired: their topics no longer have any (MQTT 5)."""

    topics: list[str]
    """The topics that no longer have a retained message."""
    e: Literal["RetainedExpired"] = "RetainedExpired"
    v: Literal[1] = 1


SessionEvent: TypeAlias = (
    SessionOpened
    | SessionTakenOver
    | SessionClosed
    | SessionExpired
    | Subscribed
    | SubscriptionDenied
    | Unsubscribed
    | ReplayOpened
    | ReplayReached
    | MessagePublished
    | Delivered
    | Queued
    | Redelivered
    | Acked
    | Received
    | Refused
    | Completed
    | InboundReplaced
    | Released
    | WillArmed
    | WillFired
    | WillCancelled
    | MessageDropped
    | Expired
    | Assigned
    | Returned
    | RetainedExpired
)
